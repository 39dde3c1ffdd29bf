// The history of tables' columns, as a diff.

import { get } from "../api.js";
import { address, h } from "../dom.js";
import { counted, spelled } from "../format.js";
import { batchLink, empty, heading, since, tableLink } from "../parts.js";

const TONES = { "+": "plus", "-": "minus", "~": "tilde", "!": "refused" };
const SHOWN = 12;

export const schemas = {
  title: () => "Schemas",
  load: (params, query) => get("/api/schemas", { last: query.last }),
  render: (data, page) => h("div", { class: "page" },
    heading("", "Schema changes", h("span", { class: "muted" }, counted(data.total, "change"))),
    data.versions.length ? h("div", { class: "diffs" }, data.versions.map((version) => diff(version, true))) : none(),
    data.total > data.versions.length ? h("p", {}, h("button", { type: "button", onclick: () => page.go("/schemas?last=500", { replace: true }) }, "Show more")) : null),
};

export const schema = {
  title: ([name]) => `Schema of ${name}`,
  load: ([name]) => get(address("api", "schemas", name)),
  render: (data) => h("div", { class: "page" },
    heading("schema history", tableLink(data.table), h("span", { class: "muted" }, [spelled(data.type), counted(data.schema_ids.length, "schema version")].filter(Boolean).join(" · "))),
    data.versions.length ? h("div", { class: "diffs one" }, data.versions.map((version) => diff(version, false))) : none()),
};

function none() {
  return empty("No schema has changed a table yet.", "New fields, types and versions appear here with their batch.");
}

function diff(version, named) {
  const lines = version.lines.map((line) => h("li", { class: TONES[line.sign] || null },
    h("span", { class: "sign" }, line.sign), h("span", {}, line.text),
    line.action && line.action !== "add" && line.action !== "create" ? h("em", {}, line.action) : null));
  const many = lines.length > SHOWN;
  return h("article", { class: "diff" },
    h("header", {}, named ? h("a", { class: "name", href: address("schemas", version.table) }, version.table) : null,
      h("b", {}, version.schema || "inferred"), h("span", { class: "muted" }, ` id ${version.schema_id}`),
      h("span", { class: "right muted" }, "batch ", batchLink(version.pipeline, version.batch), " ", since(version.at))),
    h("ul", {}, lines.slice(0, SHOWN)),
    many ? h("details", { "data-key": `${version.table}-${version.schema_id}-${version.batch}` }, h("summary", {}, counted(lines.length - SHOWN, "more line")), h("ul", {}, lines.slice(SHOWN))) : null);
}
