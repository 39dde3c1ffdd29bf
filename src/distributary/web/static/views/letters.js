// Dead letters: their reasons and records, with the actions for them.

import { asked, get } from "../api.js";
import { address, h, link } from "../dom.js";
import { clock, counted, number, shellQuoted, spelled } from "../format.js";
import { propose } from "../jobs.js";
import { badge, batchLink, code, command, empty, facts, grid, heading, section, select, shownBytes, since } from "../parts.js";
import { readOnly } from "./overview.js";

export const letters = {
  title: () => "Dead letters",
  load: (params, query) => get("/api/dead-letters", query),
  render: (data, page) => {
    const query = page.query;
    const change = (more) => page.go(`/dead-letters${asked({ ...query, ...more })}`, { replace: true });
    const all = Object.values(data.counts).reduce((sum, count) => sum + count, 0);
    const states = [...Object.entries(data.counts).map(([name, count]) => [name, `${name} (${number(count)})`]), ["all", `all (${number(all)})`]];
    const narrowed = ["reason", "type", "pipeline"].filter((name) => query[name]);
    return h("div", { class: "page" },
      heading("", "Dead letters", h("span", { class: "muted" }, counted(data.counts.open || 0, "open dead letter", "open dead letters"))),
      readOnly(data),
      h("div", { class: "filters" }, select("status", "Status", data.status, states, (value) => change({ status: value })),
        narrowed.map((name) => h("button", { type: "button", class: "chip", onclick: () => change({ [name]: "" }), title: "Remove this filter" }, `${name}: ${spelled(query[name])} ×`))),
      data.reasons.length ? [
        section("By reason", null, reasons(data, query, change)),
        section("Records", h("span", { class: "muted" }, `the first ${number(data.letters.length)}`), list(data.letters)),
      ] : none(data, all));
  },
};

export const letter = {
  title: ([id]) => `Dead letter ${id}`,
  load: ([id]) => get(address("api", "dead-letters", id)),
  render: (data) => {
    const each = data.letter;
    const wish = { pipeline: each.pipeline, id: each.id };
    const open = each.status === "open";
    return h("div", { class: "page" },
      heading("dead letter", each.id, badge(each.status), code(each.error_code)),
      readOnly(data),
      h("p", { class: "verdict" }, each.error_message || "The decoder gave no message."),
      open ? h("div", { class: "buttons" },
        h("button", { type: "button", class: "primary", disabled: !data.writable, onclick: () => propose({ ...wish, action: "replay" }) }, "Replay…"),
        h("button", { type: "button", disabled: !data.writable, onclick: () => propose({ ...wish, action: "discard" }) }, "Discard…")) : null,
      facts([
        ["record", link(`/search?q=${encodeURIComponent(`${each.topic}/${each.partition}/${each.offset}`)}`, `${each.topic}/${each.partition}/${each.offset}`)],
        ["written", each.timestamp ? clock(new Date(each.timestamp)) : null],
        ["pipeline", h("span", {}, link(address("pipelines", each.pipeline), each.pipeline), ", batch ", batchLink(each.pipeline, each.batch))],
        ["type", spelled(each.type) || "unknown"], ["schema", data.schema || "unknown"], ["failed in", `step ${each.stage}`],
        ["first seen", since(each.first_seen)], ["last tried", h("span", {}, since(each.last_seen), `, ${counted(each.attempts || 0, "attempt")}`)],
        ["note", each.note],
        ["key", shownBytes(data.key)],
        ...data.headers.map((header) => [`header ${header.key}`, shownBytes(header.value)]),
      ]),
      section("Decoded, as far as possible", data.with_schema ? null : h("span", { class: "muted" }, `without its schema: ${data.without_schema.what}; ${data.without_schema.next_step}`),
        data.decoded ? h("pre", { class: "decoded", tabindex: "0" }, data.decoded) : empty("The record cannot be decoded.", "The bytes are below.")),
      section("Bytes", data.bytes === null ? null : h("span", { class: "muted" }, counted(data.bytes, "byte"), data.payload_start ? `, payload from byte ${number(data.payload_start)}` : ""),
        data.hex.length ? h("pre", { class: "hex", tabindex: "0" }, data.hex.map((line) => h("span", { class: /^ *\^\^/.test(line) ? "mark" : null }, `${line}\n`))) : empty(data.bytes === null ? "The record has no value (null)." : "The value is empty.", "")),
      h("p", { class: "muted" }, "The same in a terminal: ", command(`distributary dlq show ${each.id} --lake ${shellQuoted(data.lake)}`)));
  },
};

function reasons(data, query, change) {
  return grid([
    { label: "Reason", cell: (row) => code(row.code) },
    { label: "Count", right: true, cell: (row) => number(row.count) },
    { label: "Pipeline", cell: (row) => link(address("pipelines", row.pipeline), row.pipeline) },
    { label: "Types", wide: true, cell: (row) => types(row, change) },
    { label: "First seen", right: true, cell: (row) => since(row.first_seen) },
    { label: "Last seen", right: true, cell: (row) => since(row.last_seen) },
    { label: "", cell: (row) => actions(row, data, change) },
  ], data.reasons.filter((row) => !query.reason || row.code === query.reason), { caption: "Dead letters by reason" });
}

function types(row, change) {
  const shown = Object.entries(row.types).slice(0, 4).map(([name, count]) => (name
    ? h("button", { type: "button", class: "chip", onclick: () => change({ reason: row.code, type: name, pipeline: row.pipeline }) }, claim(name), ` ${number(count)}`)
    : h("span", { class: "muted" }, `type unknown ${number(count)} `)));
  return [shown, row.all_types > 4 ? h("span", { class: "muted" }, ` and ${number(row.all_types - 4)} more`) : null];
}

function claim(type) {
  return h("span", { class: "claim", title: spelled(type) }, spelled(type));
}

function actions(row, data, change) {
  const wish = { pipeline: row.pipeline, reason: row.code };
  const look = h("button", { type: "button", class: "plain", onclick: () => change({ reason: row.code, pipeline: row.pipeline }) }, "Only these");
  if (data.status !== "open") return look;
  return h("span", { class: "buttons" }, look,
    h("button", { type: "button", disabled: !data.writable, onclick: () => propose({ ...wish, action: "replay" }) }, "Replay…"),
    h("button", { type: "button", disabled: !data.writable, onclick: () => propose({ ...wish, action: "discard" }) }, "Discard…"));
}

function list(found) {
  return grid([
    { label: "Id", cell: (row) => h("a", { class: "mono", href: address("dead-letters", row.id) }, row.id) },
    { label: "Reason", line: true, cell: (row) => code(row.error_code) },
    { label: "Type", line: true, cell: (row) => (row.type ? claim(row.type) : h("span", { class: "muted" }, "unknown")) },
    { label: "Record", line: true, cell: (row) => h("span", { class: "mono" }, `${row.topic}/${row.partition}/${row.offset}`) },
    { label: "Error", wide: true, cell: (row) => h("span", { class: "muted" }, row.error_message) },
    { label: "Tried", right: true, cell: (row) => number(row.attempts) },
    { label: "First seen", right: true, cell: (row) => since(row.first_seen) },
    { label: "Status", cell: (row) => badge(row.status) },
  ], found, { caption: "Dead letters" });
}

function none(data, all) {
  if (all) return empty(`No ${data.status === "all" ? "" : data.status} dead letters here.`, "Another status or fewer filters may show some.");
  return empty("There are no dead letters.", "Every record that was read is in a table.");
}
