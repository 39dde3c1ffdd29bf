// One table: its rows, columns and commits, and the dead letters of its type.

import { get, Refused } from "../api.js";
import { chart } from "../chart.js";
import { address, h, link } from "../dom.js";
import { counted, duration, number, size, spelled } from "../format.js";
import { parkedReason } from "../jobs.js";
import { badge, batchLink, code, command, empty, facts, grid, heading, problem, section, since } from "../parts.js";
import { readOnly } from "./overview.js";

const ROLES = {
  each: "table of one type", bronze: "bronze table: every record as it came", unified: "unified table: all types in one",
  dead_letters: "dead-letter table", log: "log of changes", merged: "table of current rows", history: "history of rows",
};

export const table = {
  title: ([name]) => name,
  load: async ([name]) => {
    const [now, commits, rows] = await Promise.all([
      get(address("api", "tables", name)),
      get("/api/commits", { table: name }),
      get("/api/preview", { table: name }).catch((error) => {
        if (error instanceof Refused && error.status !== 401) return { error: error.error };
        throw error;
      }),
    ]);
    return { ...now, commits, rows };
  },
  render: (data) => {
    const each = data.table;
    return h("div", { class: "page" },
      heading(ROLES[each.role] || "table", each.table, badge(data.health), h("span", { class: "muted" }, "last commit ", since(each.last_commit))),
      readOnly(data),
      each.parked_batches ? waiting(each, data.writable) : null,
      facts([
        ["rows", number(each.rows)], ["columns", number(each.columns)], ["size", size(each.bytes)],
        ["type", spelled(each.type) || null],
        ["pipeline", link(address("pipelines", each.pipeline), each.pipeline)],
        ["schemas", data.about.schema_ids.length ? h("span", {}, link(address("schemas", each.table), counted(data.about.schema_ids.length, "version")), ` (ids ${ids(data.about.schema_ids)})`) : null],
        ["version", data.about.table_version === undefined ? null : number(data.about.table_version)],
        ["changes", Object.keys(each.changes).length ? Object.entries(each.changes).filter(([, count]) => count).map(([kind, count]) => `${kind} ${number(count)}`).join(", ") : null],
        ["newest change", each.last_event ? since(each.last_event) : null],
        ["folder", h("span", { class: "path" }, data.path)],
      ]),
      section("Rows", h("span", { class: "muted" }, "newest commit first"), preview(data.rows, data.about)),
      data.refused.length ? section("Dead letters of this type", null, refused(data.refused, each)) : null,
      data.expectations.length ? section("Expectations", null, rules(data.expectations)) : null,
      section("Commits", null, commits(data.commits, each)),
      section("Columns", link(address("schemas", each.table), "schema history"), columns(data.about, each.pipeline)));
  },
};

const KINDS = ["insert", "update", "delete", "read", "truncate"];
// tables that merges rewrite: the ledger has no counts of their rows
const DERIVED = ["merged", "history", "aggregate"];

function ids(found) {
  const shown = found.slice(-6).join(", ");
  return found.length > 6 ? `… ${shown}` : shown;
}

function waiting(each, writable) {
  return h("div", { class: "banner bad" }, h("b", {}, "Parked."), ` ${counted(each.parked_records, "record")} in ${counted(each.parked_batches, "batch", "batches")} wait: `,
    parkedReason(each.pipeline, each.table, each.error, writable));
}

// a column that came after the table was made, within the last day
const NEW_MILLISECONDS = 86_400_000;

function isNew(column) {
  return Boolean(column?.added) && Date.now() - Date.parse(column.added.at) < NEW_MILLISECONDS;
}

function preview(rows, about) {
  if (rows.error) return problem(rows.error);
  if (!rows.rows.length) return empty("The table has no rows.", "They appear here as soon as a batch has some.");
  // our own columns are grey: they describe the record and are not part of it
  const shown = rows.columns.map((column, n) => ({
    label: column.name, right: column.kind === "number",
    cell: (row) => (row[n] === null ? h("span", { class: "null" }, "null") : h("span", { class: column.name.startsWith("_") ? "muted" : column.kind }, row[n])),
  }));
  const fresh = new Set(about.columns.filter(isNew).map((column) => column.name));
  const head = (column) => [column.label, fresh.has(column.label) ? [" ", badge("new column")] : null, h("small", {}, rows.columns.find((other) => other.name === column.label).type)];
  const left = [];
  if (rows.left_out.length) left.push(`too large to show: ${rows.left_out.join(", ")}`);
  if (rows.more_columns) left.push(`${counted(rows.more_columns, "more column")}`);
  return h("div", { class: "preview" }, grid(shown, rows.rows, { caption: "Rows", head }), left.length ? h("p", { class: "muted" }, left.join("; ")) : null);
}

function refused(found, each) {
  return grid([
    { label: "Reason", cell: (row) => code(row.code) },
    { label: "Open dead letters", right: true, cell: (row) => number(row.count) },
    { label: "Last seen", right: true, cell: (row) => since(row.last_seen) },
    { label: "", cell: (row) => link(`/dead-letters?${new URLSearchParams({ reason: row.code, type: each.type, pipeline: each.pipeline })}`, "show them") },
  ], found, { caption: "Records of this type that are dead letters" });
}

// the results of the rules for its rows, over all batches
function rules(found) {
  return grid([
    { label: "Rule", cell: (row) => h("span", { class: "name" }, row.rule) },
    { label: "Then", cell: (row) => row.action },
    { label: "Broken by", right: true, cell: (row) => (row.violated ? h("b", { class: "warn" }, counted(row.violated, "row")) : "no row") },
    { label: "Checked", right: true, cell: (row) => counted(row.checked, "row") },
    { label: "Last broken", right: true, cell: (row) => since(row.last_violated) },
    { label: "Example", cell: (row) => (row.example ? link(`/search?q=${encodeURIComponent(row.example)}`, row.example) : "–") },
    { label: "", wide: true, cell: (row) => h("span", { class: "warn" }, row.unfit) },
  ], found, { caption: "Rules for rows of this table" });
}

function commits(data, each) {
  if (!data.commits.length) return empty("No commit is known.", "Only totals are kept of old batches.");
  const at = (name) => [{ name: "", points: data.points.map((point) => [Date.parse(point.at), point[name], address("batches", each.pipeline, point.batch)]) }];
  // a table that is built from a log is rewritten: its commits are counted in events
  const changes = data.commits.some((row) => row.events !== null);
  // up to now, unless its last commit is older than the shown period
  const times = data.points.map((point) => Date.parse(point.at));
  const [first, last] = [Math.min(...times), Math.max(...times)];
  const span = { to: Date.now() - last > last - first ? null : Date.now() };
  return h("div", { class: "stack" },
    h("div", { class: "charts two" },
      changes ? chart({ title: "Events", note: "changes of the source, by commit", series: at("events"), bars: true, tell: (value) => counted(value, "event"), ...span })
        : chart({ title: "Rows", note: "by commit", series: at("rows"), bars: true, tell: (value) => counted(value, "row"), ...span }),
      chart({ title: "Pauses", note: "time since the commit before", series: at("pause"), format: duration, least: 1, ...span })),
    grid([
      { label: "Batch", cell: (row) => batchLink(each.pipeline, row.batch) },
      { label: "When", right: true, cell: (row) => since(row.at) },
      { label: "Outcome", cell: (row) => badge(row.outcome) },
      ...(changes ? [{ label: "Events", right: true, cell: (row) => number(row.events) },
        { label: "Of which", wide: true, cell: (row) => h("span", { class: "muted" }, KINDS.filter((kind) => row[`${kind}s`]).map((kind) => `${kind} ${number(row[`${kind}s`])}`).join(", ")) }] : []),
      ...(DERIVED.includes(each.role) ? [] : [{ label: "Rows", right: true, cell: (row) => number(row.rows) },
        { label: "Size", right: true, cell: (row) => size(row.bytes) }]),
      { label: "Version", right: true, cell: (row) => number(row.version) },
      ...(data.commits.some((row) => row.error) ? [{ label: "Error", wide: true, cell: (row) => h("span", { class: "muted" }, row.error) }] : []),
    ], data.commits, { caption: "Commits, the newest first" }));
}

function columns(about, pipeline) {
  if (about.error) return problem(about.error);
  return h("div", {}, grid([
    { label: "Column", cell: (row) => h("span", { class: "name" }, row.name) },
    { label: "Type", cell: (row) => h("code", {}, row.type) },
    { label: "Since", cell: (row) => (row.added ? h("span", {}, isNew(row) ? [badge("new column"), " "] : null, since(row.added.at), " in batch ", batchLink(pipeline, row.added.batch)) : h("span", { class: "muted" }, "the beginning")) },
    { label: "About", wide: true, cell: (row) => h("span", { class: "muted" }, row.comment) },
  ], about.columns, { caption: "Columns" }), about.columns.length ? null : command("distributary tables"));
}
