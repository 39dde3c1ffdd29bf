// Search by name, code or id; or by topic/partition/offset, to trace a record.

import { get } from "../api.js";
import { address, h, link } from "../dom.js";
import { clock } from "../format.js";
import { badge, batchLink, code, empty, facts, grid, heading, section, tableLink } from "../parts.js";

const GOOD = { written: "ok", parked: "bad", dead_letter: "warn" };

export const search = {
  title: () => "Search",
  load: (params, query) => get("/api/search", { q: query.q }),
  render: (data) => h("div", { class: "page" },
    heading("search", data.q || "Search"),
    data.trace ? story(data.trace) : null,
    data.hits.length ? section("Found", null, h("ul", { class: "hits" }, data.hits.map((hit) => h("li", {},
      h("span", { class: "kind" }, hit.kind), link(hit.href, hit.label), h("span", { class: "muted" }, hit.detail))))) : null,
    data.trace || data.hits.length ? null : empty(data.q ? "No results." : "Type a search above.",
      ["Tables and types, pipelines, error codes, ids of dead letters; and ", h("code", {}, "topic/partition/offset"), " traces a record."])),
};

function story(trace) {
  return h("section", {},
    h("p", { class: `banner ${GOOD[trace.verdict] || ""}` }, trace.sentence),
    trace.batches.map((batch) => h("p", {}, "Read in batch ", batchLink(batch.pipeline, batch.batch), " of ", link(address("pipelines", batch.pipeline), batch.pipeline), `, finished ${clock(new Date(batch.finished_at))}.`)),
    trace.dead_letters.map((letter) => h("p", {}, "Dead letter ", link(address("dead-letters", letter.id), letter.id), " ", code(letter.error_code), " ", badge(letter.status), " ", h("span", { class: "muted" }, letter.error_message))),
    trace.places.map((place) => section(tableLink(place.table), place.parked ? badge("parked") : h("span", { class: "muted" }, place.role.replace("_", " ")),
      facts([["file", place.file || "unknown"], ["row", place.row === null ? null : String(place.row)]]),
      grid([
        { label: "Column", cell: ([name]) => h("span", { class: "name" }, name) },
        { label: "Value", wide: true, cell: ([, value]) => value },
      ], Object.entries(place.values), { caption: `The row in ${place.table}` }))));
}
