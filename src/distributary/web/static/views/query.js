// SQL over the tables, read only: a box, and the answer as a table.

import { get, post, Refused } from "../api.js";
import { base } from "../base.js";
import { h, put } from "../dom.js";
import { counted, number, shellQuoted } from "../format.js";
import { command, empty, grid, heading, problem, section } from "../parts.js";

const NAMES = 60;
const NUMBER = /^(u?int|float|double|decimal|half)/;

export const query = {
  title: () => "Query",
  // a new batch must not replace the text that a user types
  still: true,
  load: () => get("/api/tables", { sort: "table", size: NAMES }),
  render: (data, page) => {
    const box = h("textarea", { id: "sql", rows: "5", maxlength: "20000", spellcheck: "false", "aria-label": "SQL", placeholder: "select * from …" });
    // an address may contain a statement; the user decides whether to run it
    box.value = page.query.sql || "";
    const cut = h("input", { id: "as-of", type: "text", maxlength: "100", spellcheck: "false", "aria-label": "Cut", placeholder: "newest cut, 41, or a time in UTC" });
    cut.value = page.query.as_of || "";
    const result = h("div", { id: "answer", "aria-live": "polite" });
    const button = h("button", { type: "button", class: "primary", onclick: () => run() }, "Run");
    const run = async () => {
      const sql = box.value.trim();
      if (!sql || button.disabled) return;
      const asOf = cut.value.trim();
      const at = asOf ? `&as_of=${encodeURIComponent(asOf)}` : "";
      history.replaceState(null, "", `${base}/query?sql=${encodeURIComponent(sql)}${at}`);
      button.disabled = true;
      put(result, h("p", { class: "muted", role: "status" }, "Running…"));
      const began = performance.now();
      try {
        put(result, answer(await post("/api/query", asOf ? { sql, as_of: asOf } : { sql }), performance.now() - began));
      } catch (failure) {
        if (!(failure instanceof Refused)) throw failure;
        put(result, problem(failure.error));
      } finally {
        button.disabled = false;
      }
    };
    box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
    });
    return h("div", { class: "page query" },
      heading("", "Query", h("span", { class: "muted" }, "read-only; Ctrl-Enter runs the statement")),
      data.tables.length ? null : empty("There are no tables yet.", "Run a pipeline first."),
      box, h("div", { class: "buttons" }, button, cut),
      result,
      section("Tables", h("span", { class: "muted" }, counted(data.total, "table")),
        h("p", {}, data.tables.map((each) => h("button", { type: "button", class: "chip", onclick: () => { box.value = `select * from ${quoted(each.table.table)} limit 20`; box.focus(); } }, each.table.table)),
          data.total > data.tables.length ? h("span", { class: "muted" }, ` and ${number(data.total - data.tables.length)} more`) : null)),
      h("p", { class: "muted" }, "The same in a terminal: ", command(`distributary query --lake ${shellQuoted(data.lake)}`)));
  },
};

function quoted(name) {
  return /^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`;
}

function answer(data, milliseconds) {
  const rows = data.rows;
  const seconds = `${(milliseconds / 1000).toFixed(1)} s`;
  const count = data.more ? `the first ${number(rows.length)} rows` : counted(rows.length, "row");
  const columns = data.columns.map((column) => ({
    label: column.name,
    right: NUMBER.test(column.type),
    cell: (row) => (row[column.name] === null ? h("span", { class: "muted" }, "null") : text(row[column.name])),
  }));
  return section("Answer", h("span", { class: "muted" }, `${count}, ${seconds}`),
    h("div", { class: "preview" }, grid(columns, rows, { key: "answer", caption: "The answer" })));
}

function text(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
