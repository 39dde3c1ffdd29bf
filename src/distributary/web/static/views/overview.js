// Everything at a glance, the worst first.

import { get } from "../api.js";
import { place } from "../base.js";
import { chart } from "../chart.js";
import { address, h, link } from "../dom.js";
import { compact, counted, duration, number, shellQuoted } from "../format.js";
import { parkedReason } from "../jobs.js";
import { badge, batchLink, code, command, empty, equation, facts, failed, freshnessOf, lagOf, retrying, section, select, since, tableLink, underWay, waits } from "../parts.js";

export const WINDOWS = [["15m", "15 minutes"], ["1h", "1 hour"], ["6h", "6 hours"], ["24h", "24 hours"], ["7d", "7 days"], ["all", "everything"]];

export const overview = {
  title: () => "Overview",
  load: async (params, query) => {
    // only the overview handles a lake that does not answer; charts do not
    const away = (refused) => {
      if (refused.error?.code !== "LAKE_UNAVAILABLE") throw refused;
      return null;
    };
    const [now, series] = await Promise.all([get("/api/overview"), get("/api/series", { window: query.window }).catch(away)]);
    return { ...now, series };
  },
  render: (data, page) => {
    if (!data.pipelines.length) return nothing(data);
    return h("div", { class: "page" },
      h("h1", { class: "unseen", tabindex: "-1" }, "Overview"),
      readOnly(data),
      unavailable(data),
      tiles(data.pipelines),
      attention(data),
      section("Pipelines", h("span", { class: "muted" }, data.lake), data.pipelines.map((each) => card(each, data))),
      data.series === null ? null : section("Over time", windowChoice(data.series.window, page), plots(data.series, data.pipelines)));
  },
};

export function readOnly(data) {
  return data.writable ? null : h("p", { class: "banner warn" }, h("b", {}, "This lake is read-only here."), " You can view everything; actions would fail.");
}

function unavailable(data) {
  const why = data.unavailable;
  return why ? h("p", { class: "banner bad", role: "status" }, h("b", {}, "The lake does not answer."), " The data below was read earlier; a pipeline whose checkpoint is elsewhere is shown in its current state. ",
    code(why.code), ` ${why.evidence || why.what}`) : null;
}

function nothing(data) {
  return h("div", { class: "page" }, h("h1", { tabindex: "-1" }, "Overview"),
    empty("Nothing has run in this lake yet.", ["This page shows ", h("code", {}, data.lake), ". As soon as a pipeline runs there, it appears here by itself."],
      h("p", {}, "To create a pipeline file for your topic: ", command("distributary init --kafka HOST:PORT --topic TOPIC")),
      h("p", {}, "To look around first, create a demo lake: ", command("distributary demo games")),
      h("p", {}, "To run a pipeline file: ", command("distributary run pipeline.yaml"))));
}

function tiles(pipelines) {
  const sum = (of) => pipelines.reduce((total, each) => total + (of(each) || 0), 0);
  const states = ["failed", "crashed", "retrying", "paused", "running", "done", "stopped", "new", "unknown"].map((state) => [state, pipelines.filter((each) => each.state === state).length]).filter(([, count]) => count);
  const bad = states.some(([state]) => ["failed", "crashed", "retrying"].includes(state));
  const fast = pipelines.filter((each) => each.records_per_second !== null);
  const open = sum((each) => each.dead_letters.by_status.open);
  const parked = sum((each) => each.parked.reduce((total, table) => total + table.records, 0));
  const stale = sum((each) => each.tables.stale);
  const parkedTables = sum((each) => each.parked.length);
  const missing = sum((each) => each.tables.missing);
  const behind = sum((each) => each.tables.behind);
  return h("div", { class: "tiles" },
    tile("Pipelines", number(pipelines.length), states.length ? states.map(([state, count]) => `${count} ${state}`).join(", ") : "none is running", null, bad ? "bad" : ""),
    tile("Tables", compact(sum((each) => each.tables.total)), tableNote({ missing, behind, parked: parkedTables, stale }, sum((each) => each.tables.healthy)), "/tables", missing || behind || parkedTables ? "bad" : stale ? "warn" : ""),
    tile("Records", compact(sum((each) => each.totals.read)), `${compact(sum((each) => each.rows))} rows in tables`, "/tables?sort=rows&order=desc"),
    tile("Speed", fast.length ? `${compact(sum((each) => each.records_per_second))}/s` : "–", fast.length ? "records, while in a batch" : "no batch is running", null),
    tile("Dead letters", compact(open), open ? "open" : "none open", "/dead-letters", open ? "warn" : ""),
    tile("Parked", compact(parked), parkedTables ? `records, ${counted(parkedTables, "table")}` : "no table", parkedTables ? "/tables?health=parked" : null, parked ? "bad" : ""));
}

function tableNote(counts, healthy) {
  const bad = Object.entries(counts).filter(([, count]) => count).map(([word, count]) => `${number(count)} ${word}`);
  return bad.length ? bad.join(", ") : `${number(healthy)} healthy`;
}

function tile(label, value, note, path, tone = "") {
  const inner = [h("span", { class: "label" }, label), h("b", {}, value), h("span", { class: `note ${tone}` }, note)];
  return path ? h("a", { class: "tile", href: path }, inner) : h("div", { class: "tile" }, inner);
}

const LOST = { missing: "does not exist, although batches were written to it", behind: "lacks batches that were written to it" };

function attention(data) {
  const lines = data.pipelines.flatMap((each) => [
    ...trouble(each),
    ...each.parked.slice(0, 5).map((table) => parked(each, table, data.writable)),
    ...each.tables.worst.filter((table) => LOST[table.health]).slice(0, 5).map((table) => h("li", {}, badge(table.health), " ", tableLink(table.table), ` ${LOST[table.health]}: `, command(`distributary verify ${shellQuoted(table.table)} --lake ${shellQuoted(data.lake)}`))),
    ...each.tables.worst.filter((table) => table.health === "stale").slice(0, 3).map((table) => h("li", {}, badge("stale"), " ", tableLink(table.table), h("span", { class: "muted" }, " has had no commit for much longer than usual: last commit ", since(table.last_commit)))),
  ]);
  return lines.length ? section("Needs attention", null, h("ul", { class: "attention" }, lines)) : null;
}

// a failure of the run before the current one is not shown
function trouble(each) {
  const name = link(address("pipelines", each.name), each.name);
  if (each.state === "retrying") return [h("li", {}, badge("retrying"), " ", name, retrying(each.failure))];
  if (each.state === "failed" && each.failure) return [h("li", {}, badge("failed"), " ", name, failed(each.failure))];
  if (each.state === "crashed" || each.state === "failed") {
    return [h("li", {}, badge(each.state), " ", name, " ended without a message; no batch is half written. To start it: ", command(`distributary run ${shellQuoted(each.file || "pipeline.yaml")}`))];
  }
  return [];
}

export function parked(pipeline, table, writable) {
  return h("li", {}, badge("parked"), " ", tableLink(table.table), ` ${waits(table)} wait, the first since `, since(table.since), ": ",
    parkedReason(pipeline.name, table.table, table.error, writable));
}

function card(each, data) {
  const open = each.dead_letters.by_status.open || 0;
  const down = each.state === "failed" || each.state === "crashed";
  return h("article", { class: down ? "pipeline down" : "pipeline" },
    h("div", { class: "who" }, h("h3", {}, link(address("pipelines", each.name), each.name)), badge(each.state),
      each.state === "failed" && each.failure ? h("span", {}, code(each.failure.code), " ", since(each.failure.at)) : null,
      h("span", { class: "muted" }, each.as_of ? ["last batch ", batchLink(each.name, each.batch), " ", since(each.as_of)] : "no batch yet")),
    equation(each.totals, each.balanced),
    facts([
      ["batch under way", each.under_way ? underWay(each.under_way) : null],
      ["lag", lagOf(each)],
      ["freshness", freshnessOf(each.lag)],
      ["speed", each.records_per_second ? `${number(each.records_per_second)} records/s` : null],
      ["tables", h("span", {}, link(`/tables?pipeline=${encodeURIComponent(each.name)}`, counted(each.tables.total, "table")), `, ${number(each.rows)} rows`)],
      ["dead letters", open ? h("span", {}, each.dead_letters.reasons.slice(0, 3).map((reason) => [code(reason.code), ` ${number(reason.count)}  `])) : "none open"],
    ]));
}

export function windowChoice(value, page) {
  return select("window", "Window", value, WINDOWS, (chosen) => page.go(`${place()}?window=${chosen}`, { replace: true }));
}

const GAP_MILLISECONDS = 120_000;

// the newest batches of `pipelines` may be old: later measurements follow them
export function plots(series, pipelines) {
  const lines = (name) => series.pipelines.map((each) => ({
    name: each.name,
    points: each.points.map((point) => [Date.parse(point.at), point[name], point.batch === null ? null : address("batches", each.name, point.batch)]),
  }));
  const lag = lines("lag").map((line) => {
    const now = pipelines.find((each) => each.name === line.name)?.lag;
    const last = line.points.length ? line.points[line.points.length - 1][0] : 0;
    const at = now?.lag_at ? Date.parse(now.lag_at) : 0;
    if (at <= last) return line;
    // times without measurements stay empty
    const gap = at - last > GAP_MILLISECONDS ? [[(at + last) / 2, null, null]] : [];
    return { ...line, points: [...line.points, ...gap, [at, now.lag_records, null]] };
  });
  // if nothing runs, the chart ends with the last batch, not with an empty stretch until now
  const over = series.window === "all" && !pipelines.some((each) => each.state === "running" || each.state === "retrying");
  const seen = lag.flatMap((line) => line.points.map(([time]) => time));
  const span = { from: series.pipelines.length ? Date.parse(series.from) : null, to: over && seen.length ? Math.max(...seen) : Date.parse(series.to) };
  return h("div", { class: "charts" },
    chart({ title: "Throughput", note: "records/s in batches", series: lines("rate"), tell: (value) => `${number(value)} records/s`, ...span }),
    chart({ title: "Lag", note: "records not read yet", series: lag, tell: (value) => counted(value, "record"), least: 10, ...span }),
    chart({ title: "Freshness", note: "from produced to readable", series: lines("age"), format: duration, least: 1, ...span }));
}
