// One pipeline: its state, its history, and its parked tables.

import { get } from "../api.js";
import { address, h, link } from "../dom.js";
import { counted, duration, number, shellQuoted, size } from "../format.js";
import { propose } from "../jobs.js";
import { badge, batchLink, code, command, empty, equation, facts, freshnessOf, grid, heading, heldBack, lagOf, paceOf, problem, retrying, section, since, tableLink, underWay } from "../parts.js";
import { parked, plots, readOnly, windowChoice } from "./overview.js";

const MOST_CONNECTORS = 5;

export const pipeline = {
  title: ([name]) => name,
  load: async ([name], query) => {
    const [now, series] = await Promise.all([
      get(address("api", "pipelines", name)),
      get("/api/series", { pipeline: name, window: query.window }),
    ]);
    return { ...now, series };
  },
  render: (data, page) => {
    const each = data.pipeline;
    const hint = h("div", { class: "hint" });
    offer(hint, each, data.writable);
    return h("div", { class: "page" },
      heading("pipeline", each.name, badge(each.state), each.as_of ? h("span", { class: "muted" }, "as of ", since(each.as_of)) : null),
      readOnly(data),
      paused(each, data.writable),
      each.state === "retrying" ? retrying(each.failure) : each.failure ? problem(each.failure) : null,
      equation(each.totals, each.balanced),
      facts([
        ["batch under way", each.under_way ? underWay(each.under_way) : null],
        ["lag", lagOf(each)],
        ["held back", each.held ? heldBack(each.held) : null],
        ["freshness", freshnessOf(each.lag)],
        ["pace", each.pace ? paceOf(each.pace) : null],
        ["heartbeat", each.heartbeats.length ? heartbeats(each.heartbeats) : null],
        ["slots", each.slots ? slots(each.slots) : null],
        ["speed", each.records_per_second ? `${number(each.records_per_second)} records/s` : null],
        ["rows", `${number(each.rows)} in ${counted(each.tables.total, "table")}`],
        ["slowest step", each.lag.slowest_step ? `${each.lag.slowest_step}, ${Math.round(each.lag.slowest_share * 100)} % of the time` : null],
        ["iceberg", each.iceberg ? mirrors(each.iceberg) : null],
        ["upkeep", each.upkeep ? upkeep(each.upkeep) : null],
        ["file", each.file], ["checkpoint", each.checkpoint],
      ]),
      ENDS[each.state] ? h("p", { class: "muted" }, `${ENDS[each.state]} To start it: `, command(`distributary run ${shellQuoted(each.file || "pipeline.yaml")}`)) : null,
      section("Over time", windowChoice(data.series.window, page), plots(data.series, [each])),
      each.backlog && data.partitions ? section("Partitions", [h("span", { class: "muted" }, "measured ", since(each.backlog.at)), " ", link(address("messages", each.name), "look at messages")], partitions(each.backlog, data.partitions)) : null,
      each.parked.length ? section("Parked tables", null, h("ul", { class: "attention" }, each.parked.map((table) => parked(each, table, data.writable)))) : null,
      section("Dead letters", link(`/dead-letters?pipeline=${encodeURIComponent(each.name)}`, "all"), hint, reasons(each)),
      each.expectations.length ? section("Expectations", null, rules(each.expectations)) : null,
      section("Tables", link(`/tables?pipeline=${encodeURIComponent(each.name)}`, counted(each.tables.total, "table")), worst(each)),
      section("Batches", link(`/batches?pipeline=${encodeURIComponent(each.name)}`, "more"), batchGrid(data.batches, each.name)),
      section("Log", h("span", { class: "muted" }, "its last lines"), log(data.lines, each.name)),
      section("Settings", each.file ? h("span", { class: "path muted" }, each.file) : null, settings(each)));
  },
};

// a pause with the button that ends it, or the button that begins one
function paused(each, writable) {
  const button = (action, words, kind) => h("button", { type: "button", class: kind, disabled: !writable,
    onclick: () => propose({ action, pipeline: each.name }) }, words);
  if (!each.pause) return RUNS.includes(each.state) ? h("p", {}, button("pause", "Pause…", null)) : null;
  return h("p", { class: "banner warn", role: "status" }, h("b", {}, "Paused."), each.pause.since ? [" Since ", since(each.pause.since)] : null,
    each.pause.note ? `: ${each.pause.note}` : null, ". It reads nothing and writes no table. ", button("continue", "Continue…", "primary"));
}

const RUNS = ["running", "retrying"];

// the last heartbeat of each connector, the longest silent first
function heartbeats(all) {
  const some = all.slice(0, MOST_CONNECTORS).map((beat) => h("div", {}, `${beat.connector}: last one sent `, since(beat.at),
    beat.looked_at ? ["; checked for a newer one ", since(beat.looked_at)] : "; newer ones may not be read yet"));
  return [some, all.length > some.length ? h("div", { class: "muted" }, `${counted(all.length - some.length, "connector")} more with later heartbeats`) : null];
}

// how much log of the source each replication slot holds back, the most first
function slots(source) {
  const some = source.slots.slice(0, MOST_CONNECTORS).map((slot) => h("div", { class: slot.lost ? "warn" : null },
    slot.name, slot.active ? "" : ", which has no reader",
    slot.lost ? ": the database has removed log that it needs" : `: holds back ${size(slot.bytes)} of log`));
  const state = source.error ? h("div", { class: "warn" }, "unknown: ", source.error) : null;
  const at = source.at ? h("div", { class: "muted" }, "measured ", since(source.at)) : null;
  return [some, at, state];
}

// how far the Iceberg mirrors of the tables are
function mirrors(state) {
  const words = [counted(state.tables, "mirror")];
  if (state.behind) words.push(`${number(state.behind)} behind`);
  if (state.made_again) words.push(`${number(state.made_again)} made again`);
  const until = state.current_until ? [", up to what was committed ", since(state.current_until)] : null;
  const why = state.problems.length ? `; ${state.problems[0].table}: ${state.problems[0].error}` : "";
  return h("span", { class: state.behind ? "warn" : null }, words.join(", "), until, why);
}

function upkeep(last) {
  const words = [counted(last.tables, "table")];
  if (last.files_after < last.files_before) words.push(`${number(last.files_before)} files became ${number(last.files_after)}`);
  if (last.files_deleted) words.push(`${counted(last.files_deleted, "file")} deleted`);
  if (last.left) words.push(`${counted(last.left, "table")} next time`);
  if (last.rows_removed) words.push(`${counted(last.rows_removed, "old row")} removed ${since(last.rows_removed_at)}`);
  return h("span", { class: last.error ? "warn" : null }, since(last.at), ": ", words.join(", "), last.error ? `; ${last.error}` : null);
}

// the meaning of states without a running process
const ENDS = {
  done: "Its last run ended by itself: it had read all available records.",
  stopped: "Its last run was stopped, by a person or a signal.",
  failed: "Its last run ended with an error.",
  crashed: "The process of its last run ended without a message: it was killed, or the machine went down. No batch is half written.",
  new: "It has not run yet.",
  unknown: "Its checkpoint is not here, so this page cannot see whether it runs.",
};

function partitions(backlog, all) {
  const rows = Object.entries(backlog.partitions);
  const ends = backlog.ends || {};
  return h("div", {}, grid([
    { label: "Topic", cell: ([place]) => place.slice(0, place.lastIndexOf("/")) },
    { label: "Partition", right: true, cell: ([place]) => place.slice(place.lastIndexOf("/") + 1) },
    { label: "Next offset", right: true, cell: ([place, count]) => number(place in ends ? ends[place] - count : null) },
    { label: "End", right: true, cell: ([place]) => number(ends[place]) },
    { label: "Not read yet", right: true, cell: ([, count]) => counted(count, "record") },
  ], rows, { caption: "Offsets by partition, the furthest behind first" }),
  all > rows.length ? h("p", { class: "muted" }, `and ${counted(all - rows.length, "more partition")}`) : null);
}

// the filter of each pipeline's log stays while the page is open
const filters = new Map();

function log(lines, name) {
  if (!lines.length) return empty("Nothing was logged yet.", "A run writes its last lines here while it runs.");
  const text = h("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Log", "data-scroll": "log" });
  const count = h("span", { class: "muted", role: "status" });
  const show = () => {
    const wanted = (filters.get(name) || "").toLowerCase().split(/\s+/).filter(Boolean);
    const shown = lines.filter((line) => wanted.every((word) => line.toLowerCase().includes(word)));
    text.textContent = shown.length ? shown.join("\n") : "No line has all of these words.";
    count.textContent = wanted.length ? `${shown.length} of ${counted(lines.length, "line")}` : "";
  };
  const filter = h("input", { id: "log-filter", type: "search", value: filters.get(name) || "", autocomplete: "off", spellcheck: "false",
    maxlength: "200", placeholder: "words, such as ERROR or chess", oninput: (event) => { filters.set(name, event.target.value); show(); } });
  show();
  // the newest line is at the end; a scrolled position stays
  requestAnimationFrame(() => { if (!text.scrollTop) text.scrollTop = text.scrollHeight; });
  return h("div", {}, h("p", { class: "filters" }, h("label", { class: "choice" }, h("span", {}, "Lines with"), filter), " ", count), text);
}

// settings are loaded once, when they are opened
const known = new Map();

function settings(each) {
  const inner = h("div", {});
  const fill = async () => {
    try {
      const found = known.get(each.name) || await get("/api/settings", { pipeline: each.name });
      known.set(each.name, found);
      inner.replaceChildren(found.why ? problem(found.why) : grid([
        { label: "Setting", cell: (row) => h("code", {}, row.key) },
        { label: "Value", wide: true, cell: (row) => (typeof row.value === "string" ? row.value : JSON.stringify(row.value)) },
        { label: "From", cell: (row) => h("span", { class: "muted" }, origin(row.origin)) },
      ], found.settings, { caption: "Settings, secrets hidden" }));
    } catch (failure) {
      inner.replaceChildren(problem(failure.error || { what: "The settings could not be read." }));
    }
  };
  const details = h("details", { "data-key": "settings", ontoggle: (event) => { if (event.target.open && !inner.childElementCount) fill(); } },
    h("summary", {}, "Show the settings, secrets hidden"), inner);
  return details;
}

function origin(from) {
  return [from.kind, from.name, from.line ? `line ${from.line}` : ""].filter(Boolean).join(" ");
}

// the registry is asked whether dead letters would decode now: the page does not wait for it
async function offer(hint, each, writable) {
  if (!each.dead_letters.reasons.length) return;
  try {
    const healing = await get("/api/healing", { pipeline: each.name });
    if (healing.why?.code === "FILE_NOT_TRUSTED") {
      hint.replaceChildren(h("p", { class: "muted" }, `It is unknown whether dead letters would decode now: ${healing.why.what}; ${healing.why.next_step}.`));
    }
    if (!healing.count) return;
    const reasons = Object.keys(healing.by_reason);
    const wish = { action: "replay", pipeline: each.name, reason: reasons.length === 1 ? reasons[0] : "" };
    hint.replaceChildren(h("p", { class: "banner ok" }, h("b", {}, `${counted(healing.count, "dead letter")} would decode now.`), " ",
      h("button", { type: "button", class: "primary", disabled: !writable, onclick: () => propose(wish) }, "Replay…")));
  } catch {
    // unknown: no action is offered
  }
}

function reasons(each) {
  const found = each.dead_letters.reasons;
  if (!found.length) return empty("No open dead letters.", "Every record that was read is in a table.");
  return grid([
    { label: "Reason", cell: (row) => code(row.code) },
    { label: "Count", right: true, cell: (row) => number(row.count) },
    { label: "Last seen", right: true, cell: (row) => since(row.last_seen) },
    { label: "Example", cell: (row) => link(address("dead-letters", row.example), row.example) },
  ], found, { caption: "Dead letters by reason" });
}

function rules(found) {
  return grid([
    { label: "Rule", cell: (row) => h("span", { class: "name" }, row.rule) },
    { label: "Then", cell: (row) => row.action },
    { label: "Broken by", right: true, cell: (row) => (row.violated ? h("b", { class: "warn" }, counted(row.violated, "row")) : "no row") },
    { label: "Checked", right: true, cell: (row) => `${counted(row.checked, "row")} in ${counted(row.tables, "table")}` },
    { label: "Last broken", right: true, cell: (row) => since(row.last_violated) },
    { label: "Worst in", wide: true, cell: (row) => row.violating.map((table) => [tableLink(table.table), ` ${number(table.violated)} `]) },
  ], found, { caption: "Rules for rows" });
}

function worst(each) {
  const shown = each.tables.shown;
  if (!shown.length) return empty("No tables yet.", "The first batch creates them.");
  return h("div", {}, grid([
    { label: "Table", cell: (row) => tableLink(row.table.table) },
    { label: "Health", cell: (row) => badge(row.health) },
    { label: "Rows", right: true, cell: (row) => number(row.table.rows) },
    { label: "Last commit", right: true, cell: (row) => since(row.table.last_commit) },
  ], shown, { caption: "Tables, the worst first" }),
  each.tables.healthy_not_shown ? h("p", { class: "muted" }, `and ${number(each.tables.healthy_not_shown)} healthy`) : null);
}

export function batchGrid(rows, pipeline = null) {
  if (!rows.length) return empty("No batch is finished yet.", "The first one will appear here.");
  const columns = [
    { label: "Batch", cell: (row) => [batchLink(row.pipeline, row.batch), row.lane === "stream" ? null : h("span", { class: "muted" }, ` ${row.lane}`)] },
    { label: "Pipeline", cell: (row) => link(address("pipelines", row.pipeline), row.pipeline) },
    { label: "Finished", right: true, cell: (row) => since(row.finished_at) },
    { label: "Took", right: true, cell: (row) => duration(row.seconds ?? (Date.parse(row.finished_at) - Date.parse(row.started_at)) / 1000) },
    { label: "Read", right: true, cell: (row) => number((row.counts || row).read) },
    { label: "Written", right: true, cell: (row) => number((row.counts || row).written) },
    { label: "Dead letters", right: true, cell: (row) => number((row.counts || row).dead_lettered) },
    { label: "Parked", right: true, cell: (row) => number((row.counts || row).parked) },
    { label: "Tables", right: true, cell: (row) => number(row.tables) },
    { label: "Lag", right: true, cell: (row) => number(row.lag_records) },
  ];
  if (rows[0].bytes !== undefined) columns.push({ label: "Size", right: true, cell: (row) => size(row.bytes) });
  return grid(pipeline ? columns.filter((column) => column.label !== "Pipeline") : columns, rows, { caption: "Batches, the newest first" });
}
