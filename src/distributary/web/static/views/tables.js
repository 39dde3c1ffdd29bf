// A thousand tables: searched, sorted and paged by the server.

import { asked, get } from "../api.js";
import { h } from "../dom.js";
import { counted, number, size, spelled } from "../format.js";
import { badge, command, empty, grid, heading, select, since, tableLink } from "../parts.js";

const COLUMNS = [
  { label: "Table", sort: "table", cell: (row) => tableLink(row.table.table) },
  { label: "Health", sort: "health", cell: (row) => badge(row.health) },
  { label: "Type", sort: "type", line: true, cell: (row) => h("span", { class: "muted" }, spelled(row.table.type) || row.table.role.replace("_", " ")) },
  { label: "Rows", sort: "rows", right: true, cell: (row) => number(row.table.rows) },
  { label: "Columns", sort: "columns", right: true, cell: (row) => number(row.table.columns) },
  { label: "Schemas", sort: "versions", right: true, cell: (row) => number(row.versions) },
  { label: "Size", sort: "bytes", right: true, cell: (row) => size(row.table.bytes) },
  { label: "Batches", sort: "batches", right: true, cell: (row) => number(row.table.batches) },
  { label: "Last commit", sort: "last_commit", right: true, line: true, cell: (row) => since(row.table.last_commit) },
];
const DOWN = new Set(["rows", "columns", "versions", "bytes", "batches", "last_commit"]);
const TYPING_MILLISECONDS = 200;

export const tables = {
  title: () => "Tables",
  load: (params, query) => get("/api/tables", query),
  render: (data, page) => {
    const query = page.query;
    const change = (more) => page.go(`/tables${asked({ ...query, page: "", ...more })}`, { replace: true });
    const narrowed = query.q || query.health || query.pipeline || query.role;
    return h("div", { class: "page" },
      heading("", "Tables", h("span", { class: "muted" }, narrowed ? `${number(data.matching)} of ${counted(data.total, "table")}` : counted(data.total, "table"))),
      data.total ? filters(data, query, change) : null,
      data.tables.length ? list(data, query, change, page) : none(data, narrowed, page));
  },
};

function filters(data, query, change) {
  let waiting = 0;
  const box = h("input", {
    id: "only", type: "search", value: query.q || "", placeholder: "name or type", "aria-label": "Only tables with this name or type",
    autocomplete: "off", spellcheck: "false", maxlength: "200",
    oninput: (event) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => change({ q: event.target.value }), TYPING_MILLISECONDS);
    },
  });
  const health = Object.entries(data.counts).map(([name, count]) => [name, `${name} (${number(count)})`]);
  const some = (names) => [["", "all"], ...names.map((name) => [name, name.replace("_", " ")])];
  return h("div", { class: "filters" }, box,
    select("health", "Health", query.health || "", [["", "all"], ...health], (value) => change({ health: value })),
    data.roles.length > 1 ? select("role", "Kind", query.role || "", some(data.roles), (value) => change({ role: value })) : null,
    data.pipelines.length > 1 ? select("pipeline", "Pipeline", query.pipeline || "", [["", "all"], ...data.pipelines.map((name) => [name, name])], (value) => change({ pipeline: value })) : null);
}

function list(data, query, change, page) {
  const sort = query.sort || "health";
  const order = query.order === "desc" ? "desc" : "asc";
  const columns = COLUMNS.map((column) => ({ ...column, sorted: column.sort === sort ? (order === "desc" ? "descending" : "ascending") : null }));
  const head = (column) => h("button", {
    type: "button", class: "sort", id: `sort-${column.sort}`,
    onclick: () => {
      const first = DOWN.has(column.sort) ? "desc" : "asc";
      change({ sort: column.sort, order: column.sort === sort ? (order === "desc" ? "asc" : "desc") : first });
    },
  }, column.label, column.sorted ? h("span", { "aria-hidden": "true" }, order === "desc" ? " ↓" : " ↑") : null);
  return h("div", {}, grid(columns, data.tables, { caption: "Tables", head }), pages(data, query, page));
}

function pages(data, query, page) {
  if (data.pages < 2) return null;
  const to = (number) => page.go(`/tables${asked({ ...query, page: number })}`);
  return h("nav", { class: "pages", "aria-label": "More tables" },
    h("button", { type: "button", disabled: data.page <= 1, onclick: () => to(data.page - 1) }, "Previous"),
    h("span", {}, `${number(data.page)} of ${number(data.pages)}`),
    h("button", { type: "button", id: "next", disabled: data.page >= data.pages, onclick: () => to(data.page + 1) }, "Next"));
}

function none(data, narrowed, page) {
  if (narrowed) return empty("No table matches.", h("button", { type: "button", onclick: () => page.go("/tables") }, "Show all"));
  return empty("There are no tables yet.", ["A pipeline creates them when records arrive: ", command("distributary run pipeline.yaml")]);
}
