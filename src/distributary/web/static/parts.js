// Components of several pages.

import { address, h, link } from "./dom.js";
import { ago, clock, counted, duration, number } from "./format.js";

const WORDS = {
  running: "ok", paused: "warn", retrying: "bad", done: "ok", stopped: "quiet", failed: "bad", crashed: "bad", new: "quiet", unknown: "quiet",
  healthy: "ok", stale: "warn", parked: "bad", refusing: "bad", doubtful: "warn", missing: "bad", behind: "bad", absent: "quiet", "new column": "ok",
  open: "warn", replayed: "ok", discarded: "quiet",
  published: "ok", resumed: "ok", skipped: "quiet", already: "quiet", accepted: "quiet",
};

// a colour and the word: never the colour alone
export function badge(word) {
  return h("span", { class: `badge ${WORDS[word] || "quiet"}` }, word);
}

// a moment ago, the exact time on hover; main.js keeps the words true
export function since(moment, { absent = "never" } = {}) {
  if (!moment) return h("span", { class: "muted" }, absent);
  const date = new Date(moment);
  return h("time", { datetime: moment, title: clock(date), "data-ago": moment }, ago(date));
}

export function code(word) {
  return h("a", { class: "code", href: address("errors", word) }, word || "unknown");
}

// the beginning of a key or a header, as text or as hex
export function shownBytes(found) {
  if (!found) return null;
  return h("span", {}, h("code", {}, found.kind === "hex" ? `0x ${found.shown}` : found.shown), h("span", { class: "muted" }, ` ${counted(found.bytes, "byte")}`));
}

// a text of the documentation: parts between backticks are code
export function prose(text) {
  const plain = String(text || "").replaceAll("\\|", "|").replace(/\[([^\]]*)\]\([^)]*\)/g, "$1");
  return plain.split("`").map((part, n) => (n % 2 ? h("code", {}, part) : part));
}

export function command(text) {
  const button = h("button", { type: "button", class: "copy", title: "Copy" }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "select it";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  return h("span", { class: "command" }, h("code", {}, text), button);
}

export function empty(title, next, ...more) {
  return h("div", { class: "empty" }, h("p", {}, h("b", {}, title)), next ? h("p", {}, next) : null, ...more);
}

export function problem(error, retry) {
  return h("div", { class: "problem", role: "alert" },
    h("p", {}, error.code ? code(error.code) : null, " ", h("b", {}, error.what || "Something went wrong.")),
    facts([["where", error.where], ["seen", error.evidence], ["next", error.next_step ? h("span", {}, prose(error.next_step)) : null]]),
    retry ? h("button", { type: "button", onclick: retry }, "Try again") : null);
}

// the failure that is being retried: since when, how often, and the next attempt
export function retrying(failure) {
  const next = failure.next_try ? new Date(failure.next_try) : null;
  return h("p", { class: "banner bad", role: "status" }, h("b", {}, "Retrying."), " ", code(failure.code), ` ${failure.what}`,
    failure.where ? h("span", { class: "muted" }, ` (${failure.where})`) : null, ". It failed first ", since(failure.since),
    `, ${counted(failure.attempts, "attempt")} so far; `, next && next > new Date() ? `next try in ${duration((next - Date.now()) / 1000)}` : "the next try is under way", ".",
    failure.next_step ? [h("br", {}), h("b", {}, "What to do: "), prose(failure.next_step)] : null);
}

// the error that ended the last run: since when, and what to do
export function failed(failure) {
  return h("p", { class: "banner bad", role: "status" }, h("b", {}, "Failed."), " ", code(failure.code), ` ${failure.what}`,
    failure.where ? h("span", { class: "muted" }, ` (${failure.where})`) : null, ". Its last run ended ", since(failure.at), ".",
    failure.next_step ? [h("br", {}), h("b", {}, "What to do: "), prose(failure.next_step)] : null);
}

// the batch under way
export function underWay(batch) {
  return h("span", {}, `#${number(batch.batch)}`, batch.records === null ? null : ` of ${counted(batch.records, "record")}`, `, step ${batch.step}, began `, since(batch.started_at));
}

// older measurements than this are shown with their time
const OLD_MILLISECONDS = 10_000;

export function lagOf(each) {
  const lag = each.lag;
  const forecast = ["catching_up", "holding", "behind"].includes(lag.trend);
  const old = lag.lag_at && Date.now() - Date.parse(lag.lag_at) > OLD_MILLISECONDS;
  return h("span", { class: lag.trend === "falling_behind" ? "warn" : null }, each.lag_in_words,
    lag.lag_records !== null && !forecast ? `, ${counted(lag.lag_records, "record")}` : null,
    old ? h("span", { class: "muted" }, " as of ", since(lag.lag_at)) : null);
}

// from produced to readable; null if unknown
export function freshnessOf(lag) {
  const off = lag.event_seconds === null || lag.event_seconds === undefined ? null
    : h("span", { class: "muted" }, ` (its own time is ${duration(Math.abs(lag.event_seconds))} ${lag.event_seconds > 0 ? "back" : "ahead"})`);
  if (lag.lag_seconds === null) return off ? h("span", {}, "unknown: the arrival of the newest record was not observed", off) : null;
  return h("span", {}, off ? `at most ${duration(lag.lag_seconds)} from reaching the source to readable` : `${duration(lag.lag_seconds)} from produced to readable`, off);
}

// when batches begin, of a run whose trigger is a freshness
export function paceOf(pace) {
  const takes = `${duration(pace.batch_seconds)} for about ${counted(pace.records, "record")}`;
  const wanted = `readable within ${duration(pace.freshness_seconds)}`;
  return pace.late ? h("span", { class: "warn" }, `no pauses, and still not ${wanted}: a batch takes ${takes}`)
    : `a batch every ${duration(pace.interval_seconds)}, ${takes}: ${wanted}`;
}

// the records that wait for the ends of their transactions
export function heldBack(held) {
  return h("span", {}, `${counted(held.records, "record")} of ${counted(held.transactions, "transaction")} that did not come completely, the oldest from `, since(held.since));
}

export function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  if (!known.length) return null;
  return h("dl", { class: "facts" }, known.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

export function section(title, aside, ...children) {
  return h("section", {}, h("div", { class: "head" }, h("h2", {}, title), aside ? h("div", { class: "aside" }, aside) : null), ...children);
}

export function heading(kind, title, ...aside) {
  return h("div", { class: "title" }, h("div", {}, kind ? h("p", { class: "kind" }, kind) : null,
    h("h1", { tabindex: "-1" }, title)), h("div", { class: "aside" }, ...aside));
}

// columns: [{label, cell(row), right, wide, line}]; on a phone every row is a card, and what is
// `wide` or `line` has a line of its own
export function grid(columns, rows, { key = "", caption = "", head = (column) => column.label } = {}) {
  return h("div", { class: "scroll", "data-scroll": key || caption, tabindex: "0", role: "region", "aria-label": caption },
    h("table", { class: "grid" },
      caption ? h("caption", { class: "unseen" }, caption) : null,
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.right ? "right" : null, "aria-sort": column.sorted || null }, head(column))))),
      h("tbody", {}, rows.map((row) => h("tr", {}, columns.map((column) => h("td", { class: [column.right && "right", column.wide && "wide", column.line && "line"].filter(Boolean).join(" ") || null, "data-label": column.label }, column.cell(row))))))));
}

// read = written + dead letters + parked + skipped + filtered, as a line of that length
export function equation(totals, balanced) {
  const parts = [["written", totals.written], ["dead letters", totals.dead_lettered], ["parked", totals.parked], ["skipped", totals.skipped], ["filtered", totals.filtered || 0]];
  const whole = Math.max(parts.reduce((sum, [, count]) => sum + count, 0), 1);
  const bar = h("div", { class: "share", "aria-hidden": "true" });
  parts.forEach(([name, count], n) => {
    if (!count) return;
    const piece = h("i", { class: `p${n}`, title: `${name} ${number(count)}` });
    // a part above zero must be visible
    piece.style.flexGrow = String(Math.max(count / whole, 0.008));
    bar.append(piece);
  });
  const shown = parts.filter(([name, count]) => !["skipped", "filtered"].includes(name) || count);
  return h("div", { class: "equation" }, bar,
    h("p", {}, "read ", h("b", {}, number(totals.read)), " = ",
      shown.map(([name, count], n) => [n ? " + " : "", h("span", { class: "part" }, h("i", { class: `key p${parts.findIndex(([other]) => other === name)}` }), `${name} `, h("b", {}, number(count)))]),
      balanced ? null : h("span", { class: "badge bad" }, "does not add up")));
}

export function tableLink(name) {
  return h("a", { class: "name", href: address("tables", name) }, name);
}

export function batchLink(pipeline, batch) {
  return batch === null || batch === undefined ? "–" : link(address("batches", pipeline, batch), `#${number(batch)}`);
}

export function waits(table) {
  return `${counted(table.records, "record")} in ${counted(table.batches, "batch", "batches")}`;
}

export function select(id, label, value, options, onchange) {
  return h("label", { class: "choice" }, h("span", {}, label),
    h("select", { id, onchange: (event) => onchange(event.target.value) },
      options.map(([given, shown]) => h("option", { value: given, selected: given === value }, shown))));
}
