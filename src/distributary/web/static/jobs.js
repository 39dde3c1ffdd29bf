// Replay, discard, resume, pause, continue: a dry run shows the effects, then the user confirms.

import { get, post, Refused } from "./api.js";
import { h, put } from "./dom.js";
import { counted, number } from "./format.js";
import { badge, facts, problem } from "./parts.js";

const NAMES = { replay: "Replay", discard: "Discard", resume: "Resume", pause: "Pause", continue: "Continue" };
const LOOK_MILLISECONDS = 600;

// why a source went back in its log, as for `resume --source-was`: the button and its meaning
const ANSWERS = {
  replaced: ["Another server took over…", "Another server took over, with new positions",
    "From the first of these events on, all events of the source count as newer than the rows of the table, whatever their positions. Choose this after a failover, a restored dump or a new server."],
  repeated: ["Old events were sent again…", "Old events were sent again",
    "The events that go back change no row: the table stays as it is. Choose this if the connector has sent old events again."],
};
const WENT_BACK = "SOURCE_WENT_BACK: ";

// the parked batches of a table with their reason, and the buttons for them
export function parkedReason(pipeline, table, error, writable) {
  const button = (words, more, kind) => h("button", { type: "button", class: kind, disabled: !writable,
    onclick: () => propose({ action: "resume", pipeline, table, ...more }) }, words);
  if (!error.startsWith(WENT_BACK)) return [h("span", { class: "muted" }, error), " ", button("Resume…", {}, "primary")];
  return h("div", { class: "went-back" },
    h("p", {}, "The source went back in its log, and its events do not show why. None of these events is in the table yet."),
    h("ul", {}, error.slice(WENT_BACK.length).split("; ").map((line) => h("li", {}, line))),
    h("p", {}, "What has happened?"),
    h("div", { class: "buttons" }, Object.entries(ANSWERS).map(([word, [words]]) => button(words, { source_was: word }, null))));
}

function isPause(wish) {
  return wish.action === "pause" || wish.action === "continue";
}

export function about(wish) {
  if (wish.action === "resume") return `table ${wish.table}`;
  if (isPause(wish)) return `pipeline ${wish.pipeline}`;
  const what = wish.id ? `dead letter ${wish.id}` : wish.reason ? `dead letters with ${wish.reason}` : "all open dead letters";
  return wish.type ? `${what} of type ${wish.type}` : what;
}

// the result of a job, in one sentence
export function outcome(job) {
  const found = job.result || {};
  if (typeof found.error === "string") return `Still parked: ${found.error}`;
  if (found.error) return found.error.what;
  const into = Object.entries(found.tables || {}).map(([name, count]) => `${name} ${number(count)}`).join(", ");
  const again = Object.entries(found.failed_again || {}).map(([name, count]) => `${name} ${number(count)}`).join(", ");
  if (job.wish.action === "replay") {
    if (!found.selected) return "Nothing to replay.";
    const done = job.dry_run ? `${number(found.replayed)} would decode` : `${number(found.replayed)} replayed`;
    const fail = job.dry_run ? "would fail again" : "failed again";
    return `${done}${into && found.replayed ? `, into ${into}` : ""}.${again ? ` ${fail}: ${again}.` : ""}`;
  }
  if (job.wish.action === "discard") {
    return job.dry_run ? `${counted(found.selected || 0, "dead letter")} would be discarded.` : `${number(found.discarded || 0)} discarded.`;
  }
  if (isPause(job.wish)) return pausing(job, found);
  const waiting = found.waiting || { batches: 0, records: 0 };
  if (!waiting.batches) return "No batch of this table is parked.";
  const much = `${counted(waiting.batches, "batch", "batches")} with ${counted(waiting.records, "record")}`;
  return job.dry_run ? `${much} would be published.` : `${number(found.published)} of ${much} published.`;
}

function pausing(job, found) {
  const goes = found.runs ? "" : " It does not run now.";
  if (job.wish.action === "continue") {
    if (!found.was_paused) return "The pipeline is not paused.";
    return job.dry_run ? `The pause would end.${goes}` : `The pause has ended.${goes}`;
  }
  if (found.was_paused) return "The pipeline is paused already.";
  const when = found.runs ? "after its current batch" : "at its next start";
  return `It ${job.dry_run ? "would read" : "reads"} nothing more ${when}, until it is continued.`;
}

// a command whose attempt failed has ended, but is not done
function state(job) {
  return typeof (job.result || {}).error === "string" ? "parked" : job.state;
}

// the number of changes that a dry run reports
function worth(job) {
  const found = job.result || {};
  if (job.wish.action === "replay") return found.replayed || 0;
  if (job.wish.action === "discard") return found.selected || 0;
  if (isPause(job.wish)) return Number(found.was_paused === (job.wish.action === "continue"));
  return (found.waiting || {}).batches || 0;
}

export function propose(wish) {
  const body = h("div", { class: "steps" });
  const dialog = h("dialog", { class: "ask", "aria-labelledby": "ask-title" },
    h("h2", { id: "ask-title" }, `${NAMES[wish.action]} ${about(wish)}`),
    facts([["pipeline", isPause(wish) ? null : wish.pipeline], ["answer", ANSWERS[wish.source_was]?.[1]]]),
    wish.source_was ? h("p", { class: "muted" }, ANSWERS[wish.source_was][2]) : null, body);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  if (NOTES[wish.action]) askNote(dialog, body, wish);
  else tryOut(dialog, body, wish);
}

// the second click of a double click was meant for the button before
function close(dialog, word = "Cancel") {
  return h("button", { type: "button", class: "plain", onclick: (event) => { if (event.detail < 2) dialog.close(); } }, word);
}

// the actions that take a note: the question, and whether it must be answered
const NOTES = {
  discard: ["Why are they discarded? The records stay in the table, with this note.", true],
  pause: ["Why is it paused? This page and `status` show the note; it may be empty.", false],
};

function askNote(dialog, body, wish) {
  const [question, required] = NOTES[wish.action];
  const note = h("input", { id: "note", maxlength: "300", required, autocomplete: "off" });
  put(body, h("form", {
    onsubmit: (event) => {
      event.preventDefault();
      if (note.value.trim() || !required) tryOut(dialog, body, { ...wish, note: note.value.trim() });
    },
  }, h("label", { for: "note" }, question), note,
  h("div", { class: "buttons" }, close(dialog), h("button", { type: "submit" }, "Preview"))));
  note.focus();
}

async function tryOut(dialog, body, wish) {
  const job = await follow(dialog, body, { ...wish, dry_run: true }, "Dry run: nothing is changed.");
  if (!job) return;
  const useful = worth(job) > 0;
  const yes = h("button", { type: "button", class: wish.action === "discard" ? "danger" : "primary", id: "confirm" }, NAMES[wish.action]);
  yes.addEventListener("click", () => carryOut(dialog, body, wish, job.id));
  put(body, h("p", { class: "verdict" }, outcome(job)),
    useful ? null : h("p", { class: "muted" }, "There is nothing to do now."),
    h("div", { class: "buttons" }, close(dialog, useful ? "Cancel" : "Close"), useful ? yes : null));
  if (useful) yes.focus();
}

async function carryOut(dialog, body, wish, after) {
  const job = await follow(dialog, body, { ...wish, dry_run: false, after }, "Running. You can close this dialog: the action continues.");
  if (!job) return;
  put(body, h("p", { class: "verdict" }, badge(state(job)), " ", outcome(job)),
    h("div", { class: "buttons" }, close(dialog, "Close")));
}

// starts a job and shows its output until it ends; null if it failed or the dialog was closed
async function follow(dialog, body, wish, words) {
  const said = h("pre", { class: "said", "aria-live": "polite" });
  put(body, h("p", { class: "busy" }, words), said, h("div", { class: "buttons" }, close(dialog, "Close")));
  try {
    let { job } = await post("/api/jobs", wish);
    while (job.state === "running" && dialog.open) {
      await new Promise((resolve) => { setTimeout(resolve, LOOK_MILLISECONDS); });
      ({ job } = await get(`/api/jobs/${job.id}`));
      said.textContent = job.lines.slice(-6).join("\n");
    }
    if (!dialog.open) return null;
    if (job.state === "done") return job;
    const reported = job.result.error;
    const error = reported && typeof reported === "object" ? reported : { what: `It ended with exit code ${job.exit_code}.`, evidence: job.lines.slice(-3).join("\n") };
    put(body, problem(error), h("div", { class: "buttons" }, close(dialog, "Close")));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    put(body, problem(error.error), h("div", { class: "buttons" }, close(dialog, "Close")));
  }
  return null;
}

export async function showTray(tray) {
  let jobs = [];
  try {
    ({ jobs } = await get("/api/jobs"));
  } catch {
    return;
  }
  const recent = jobs.filter((job) => job.state === "running" || (!job.dry_run && Date.now() - Date.parse(job.ended_at) < 30_000));
  put(tray, recent.slice(0, 3).map((job) => h("div", { class: "job" },
    h("p", {}, badge(state(job)), " ", h("b", {}, `${job.dry_run ? "Trying: " : ""}${NAMES[job.wish.action]} ${about(job.wish)}`)),
    h("p", { class: "muted" }, job.state === "running" ? job.lines[job.lines.length - 1] || "starting" : outcome(job)))));
}
