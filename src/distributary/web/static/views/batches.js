// Batches: their records, steps and tables.

import { get } from "../api.js";
import { address, h, link } from "../dom.js";
import { clock, counted, duration, number, size } from "../format.js";
import { badge, code, equation, facts, freshnessOf, grid, heading, section, since, tableLink } from "../parts.js";
import { batchGrid } from "./pipeline.js";

const STEPS = ["plan", "stage", "manifest", "publish"];

export const batches = {
  title: () => "Batches",
  load: (params, query) => get("/api/batches", { pipeline: query.pipeline, last: 100 }),
  render: (data, page) => h("div", { class: "page" },
    heading("", "Batches", page.query.pipeline ? link("/batches", "of all pipelines") : null),
    batchGrid(data.batches, page.query.pipeline)),
};

export const batch = {
  title: ([pipeline, number]) => `Batch ${number} of ${pipeline}`,
  load: ([pipeline, number]) => get(address("api", "batches", pipeline, number)),
  render: (data, page) => h("div", { class: "page" },
    heading("batch", `${page.params[0]} #${page.params[1]}`, link(address("pipelines", page.params[0]), "pipeline")),
    data.batches.length > 1 ? h("p", { class: "muted" }, "Several batches have this number: the stream and replays, and every life of the checkpoint, have their own numbers.") : null,
    data.batches.map(one)),
};

function one(each) {
  return h("section", {},
    h("div", { class: "head" }, h("h2", {}, each.lane === "stream" ? "Stream" : each.lane === "replay" ? "Replay of dead letters" : each.lane), h("div", { class: "aside" }, h("span", { class: "muted" }, "finished ", since(each.finished_at)))),
    each.batches > 1 ? h("p", { class: "banner" }, `Only totals are kept of old batches: these are the totals of ${number(each.batches)} batches up to this one.`) : null,
    equation(each.counts, each.balanced),
    steps(each),
    facts([
      ["began", clock(new Date(each.started_at))], ["took", duration(each.seconds)],
      ["rows", number(each.rows)], ["files", number(each.files)], ["size", size(each.bytes)],
      ["lag after it", each.lag_records === null ? null : counted(each.lag_records, "record")],
      ["freshness", freshnessOf(each)],
      ["staged", each.stages > 1 ? `${number(each.stages)} times` : null],
      ["life", each.life],
      ["dead letters", Object.keys(each.dead_letters).length ? h("span", {}, Object.entries(each.dead_letters).map(([name, count]) => [code(name), ` ${number(count)} `])) : null],
    ]),
    section("Read", null, grid([
      { label: "Topic", cell: (row) => row.topic },
      { label: "Partition", right: true, cell: (row) => number(row.partition) },
      { label: "From", right: true, cell: (row) => number(row.start) },
      { label: "To", right: true, cell: (row) => number(row.end) },
      { label: "Records", right: true, cell: (row) => number(row.records) },
    ], each.ranges, { caption: "Source ranges" }), rest(each.all_ranges - each.ranges.length, "partition")),
    section("Tables", null, grid([
      { label: "Table", cell: (row) => tableLink(row.table) },
      { label: "Outcome", cell: (row) => badge(row.outcome) },
      { label: "Records", right: true, cell: (row) => number(row.records) },
      { label: "Rows", right: true, cell: (row) => number(row.rows) },
      { label: "Size", right: true, cell: (row) => size(row.bytes) },
      { label: "Version", right: true, cell: (row) => number(row.version) },
      ...(each.touched.some((row) => row.error) ? [{ label: "Error", wide: true, cell: (row) => h("span", { class: "muted" }, row.error) }] : []),
    ], each.touched, { caption: "Tables of the batch" }), rest(each.all_touched - each.touched.length, "table")));
}

function rest(count, noun) {
  return count > 0 ? h("p", { class: "muted" }, `and ${counted(count, `more ${noun}`)}`) : null;
}

// the time of each step
function steps(each) {
  const whole = Math.max(each.seconds, STEPS.reduce((sum, name) => sum + each.steps[name], 0), 0.001);
  const bar = h("div", { class: "share steps", role: "img", "aria-label": `Steps: ${STEPS.map((name) => `${name} ${duration(each.steps[name])}`).join(", ")}` });
  const names = STEPS.map((name, n) => {
    const piece = h("i", { class: `s${n}`, title: `${name} ${duration(each.steps[name])}` });
    piece.style.flexGrow = String(Math.max(each.steps[name] / whole, 0.004));
    bar.append(piece);
    return h("span", { class: "part" }, h("i", { class: `key s${n}` }), `${name} `, h("b", {}, duration(each.steps[name])), " ");
  });
  return h("div", { class: "equation" }, bar, h("p", {}, names));
}
