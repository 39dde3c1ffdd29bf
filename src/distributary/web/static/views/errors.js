// The meaning of error codes.

import { get } from "../api.js";
import { address, h, link } from "../dom.js";
import { counted, number } from "../format.js";
import { code, empty, grid, heading, problem, prose, retrying, section, since } from "../parts.js";

export const errors = {
  title: () => "Glossary and error codes",
  load: () => get("/api/errors"),
  render: (data) => h("div", { class: "page" }, heading("", "Glossary and error codes", `${counted(data.words.length, "word")}, ${counted(data.errors.length, "error code")}`),
    section("Words", null, grid([
      { label: "Word", cell: (row) => row.word },
      { label: "Meaning", wide: true, cell: (row) => prose(row.meaning) },
    ], data.words, { caption: "Words" })),
    section("Error codes", null, grid([
      { label: "Code", cell: (row) => code(row.code) },
      { label: "Meaning", wide: true, cell: (row) => prose(row.meaning) },
      { label: "What to do", wide: true, cell: (row) => prose(row.next_step) },
    ], data.errors, { caption: "Error codes" }))),
};

export const error = {
  title: ([code]) => code,
  load: ([code]) => get(address("api", "errors", code)),
  render: (data) => h("div", { class: "page" },
    heading("error code", data.code, link("/errors", "all codes")),
    h("p", { class: "verdict" }, data.meaning ? prose(data.meaning) : "The documentation does not describe this code."),
    data.next_step ? h("p", {}, h("b", {}, "What to do: "), prose(data.next_step)) : null,
    data.failures.map((failure) => (failure.attempts === undefined
      ? section(`Pipeline ${failure.pipeline} ended with it`, since(failure.at), problem(failure))
      : section(`Pipeline ${failure.pipeline} is retrying because of it`, link(address("pipelines", failure.pipeline), failure.pipeline), retrying(failure)))),
    section("Dead letters with this reason", null, data.letters.length ? grid([
      { label: "Pipeline", cell: (row) => link(address("pipelines", row.pipeline), row.pipeline) },
      { label: "Open", right: true, cell: (row) => number(row.count) },
      { label: "Last seen", right: true, cell: (row) => since(row.last_seen) },
      { label: "", cell: (row) => link(`/dead-letters?${new URLSearchParams({ reason: data.code, pipeline: row.pipeline })}`, "show them") },
    ], data.letters, { caption: "Dead letters" }) : empty("No dead letter has this reason.", ""))),
};
