// Where rows come from: topics, pipelines, tables, and the tables that are made of them.

import { asked, get } from "../api.js";
import { address, h, link, s } from "../dom.js";
import { counted, number, spelled } from "../format.js";
import { badge, empty, heading } from "../parts.js";

const WIDE = 218;
const HIGH = 40;
const BETWEEN = 12;
const GAP = 64;
const LETTERS = 27;
const TOP = 4;
const FEW = 30;
const MORE = 200;
const ROLES = { bronze: "every record", unified: "all types", dead_letters: "dead letters", each: "", log: "log of changes", merged: "current rows", history: "history", aggregate: "counts and sums" };
// what a table is made of, in the order of preference
const PARENTS = { merged: ["log"], history: ["merged"], aggregate: ["merged", "each", "log"] };

export const lineage = {
  title: () => "Lineage",
  load: (params, query) => get("/api/lineage", query),
  render: (data, page) => {
    const change = (more) => page.go(`/lineage${asked({ ...page.query, ...more })}`, { replace: true });
    const box = h("input", { id: "lineage-q", type: "search", value: data.q, maxlength: "200", placeholder: "a type or a table", oninput: (event) => change({ q: event.target.value }) });
    return h("div", { class: "page" },
      heading("", "Lineage", h("span", { class: "muted" }, "from topics to tables")),
      h("div", { class: "filters" }, h("label", { class: "choice" }, h("span", {}, "Show"), box)),
      data.pipelines.length ? data.pipelines.map((each) => drawn(each, change)) : empty("Nothing has run in this lake yet.", "As soon as a pipeline runs, its sources and tables appear here."));
  },
};

function drawn(each, change) {
  const left = each.all_families - each.families.length;
  return h("section", {},
    h("div", { class: "head" }, h("h2", {}, link(address("pipelines", each.name), each.name)), h("div", { class: "aside" }, badge(each.state))),
    h("div", { class: "lineage", tabindex: "0", role: "region", "aria-label": `Lineage of ${each.name}`, "data-scroll": `lineage-${each.name}` }, graph(each)),
    left > 0 ? h("p", { class: "muted" }, `and ${counted(left, "more type")}. `, each.families.length <= FEW
      ? h("button", { type: "button", class: "plain", onclick: () => change({ size: MORE }) }, `Show up to ${MORE}`)
      : "Enter a type or a table to see it.") : null);
}

function graph(each) {
  const boxes = [];
  const lines = [];
  const put = (column, row, box) => {
    const made = { ...box, x: column * (WIDE + GAP), y: row * (HIGH + BETWEEN) };
    boxes.push(made);
    return made;
  };
  const join = (from, to) => lines.push([from, to]);
  const families = each.families.map((family) => rowsOf(family));
  const rows = Math.max(each.shared.length + families.reduce((sum, family) => sum + family.rows, 0), each.sources.length + (each.all_sources > each.sources.length ? 1 : 0), 1);
  // of a tall picture the beginning is seen first: the pipeline stays there
  const middle = (count) => Math.min(Math.max((rows - count) / 2, 0), TOP);
  const pipeline = put(1, middle(1), { kind: "pipeline", name: each.name, note: `pipeline, ${each.state}`, href: address("pipelines", each.name) });
  const hidden = each.all_sources - each.sources.length;
  const sources = [...each.sources.map((name) => ({ kind: "source", name, note: "source", href: address("messages", each.name) })),
    ...(hidden > 0 ? [{ kind: "source", name: `${number(hidden)} more`, note: "sources" }] : [])];
  sources.forEach((source, n) => join(put(0, middle(sources.length) + n, source), pipeline));
  let row = 0;
  for (const table of each.shared) join(pipeline, put(2, row++, boxOf(table)));
  for (const family of families) {
    const placed = new Map();
    for (const { table, column, below } of family.places) {
      const box = put(2 + column, row + below, boxOf(table));
      placed.set(table.role, placed.get(table.role) || box);
      const parent = (PARENTS[table.role] || []).map((role) => placed.get(role)).find(Boolean);
      join(parent || pipeline, box);
    }
    row += family.rows;
  }
  return svg(boxes, lines, each.name);
}

// the place of each table of a type: one column for each step away from the pipeline
function rowsOf(family) {
  const used = [];
  const columns = new Map();
  const places = family.tables.map((table) => {
    const parent = (PARENTS[table.role] || []).find((role) => columns.has(role));
    const column = parent === undefined ? 0 : columns.get(parent) + 1;
    if (!columns.has(table.role)) columns.set(table.role, column);
    used[column] = (used[column] || 0) + 1;
    return { table, column, below: used[column] - 1 };
  });
  return { places, rows: Math.max(...used.filter(Boolean), 1) };
}

function boxOf(table) {
  const role = ROLES[table.role] ?? table.role;
  const note = [role, table.rows === null ? "" : counted(table.rows, "row")].filter(Boolean).join(", ");
  return { kind: table.role, health: table.health, name: table.table, note, href: address("tables", table.table) };
}

function svg(boxes, lines, name) {
  const width = Math.max(...boxes.map((box) => box.x)) + WIDE + 2;
  const height = Math.max(...boxes.map((box) => box.y)) + HIGH + 2;
  const picture = s("svg", { width, height, viewBox: `-1 -1 ${width} ${height}`, role: "img", "aria-label": `Sources, pipeline and tables of ${name}` });
  for (const [from, to] of lines) {
    const [x, y, u, v] = [from.x + WIDE, from.y + HIGH / 2, to.x, to.y + HIGH / 2];
    picture.append(s("path", { class: "edge", d: `M${x} ${y} C${x + GAP / 2} ${y} ${u - GAP / 2} ${v} ${u} ${v}` }));
  }
  for (const box of boxes) {
    const parts = [s("title", {}, `${spelled(box.name)}: ${box.note}${box.health ? `, ${box.health}` : ""}`),
      s("rect", { width: WIDE, height: HIGH, rx: 7 }),
      s("text", { x: 10, y: 17, class: "name" }, cut(spelled(box.name))),
      s("text", { x: 10, y: 32, class: "note" }, cut(box.health && box.health !== "healthy" ? `${box.health}: ${box.note}` : box.note, LETTERS + 6))];
    const place = { transform: `translate(${box.x} ${box.y})`, class: `node ${box.kind} ${box.health || ""}` };
    picture.append(box.href ? s("a", { ...place, href: box.href }, parts) : s("g", place, parts));
  }
  return picture;
}

function cut(name, most = LETTERS) {
  return name.length > most ? `${name.slice(0, most - 1)}…` : name;
}
