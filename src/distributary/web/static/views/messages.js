// Messages of a pipeline's source: a few of one partition, decoded, by offset or time.

import { asked, get } from "../api.js";
import { address, h, link } from "../dom.js";
import { clock, counted, number, shellQuoted, spelled } from "../format.js";
import { code, command, empty, facts, heading, section, select, shownBytes } from "../parts.js";

const LIMIT = 20;

export const messages = {
  title: ([name]) => `Messages of ${name}`,
  // the newest messages change all the time: the page asks for them when the reader does
  still: true,
  load: ([name], query) => get("/api/messages", { pipeline: name, limit: LIMIT, ...query }),
  render: (data, page) => {
    const query = page.query;
    const go = (more) => page.go(`${address("messages", data.pipeline)}${asked({ ...query, ...more })}`);
    return h("div", { class: "page" },
      heading("messages of", data.pipeline, link(address("pipelines", data.pipeline), "the pipeline")),
      data.topic === null ? empty("The source has no partition yet.", "Messages appear here as soon as the topic exists.") : [
        choices(data, query, go),
        h("p", { class: "muted" }, `Offsets ${number(data.oldest)} to ${number(data.end)}. Reading messages here does not change the broker or the pipeline.`),
        section("Messages", counted(data.messages.length, "message"), data.messages.length
          ? data.messages.map((message) => one(message, data))
          : empty("There is no message at or after this position.", "Choose an earlier offset or time.")),
        turning(data, go),
        h("p", { class: "muted" }, "The same in a terminal: ", command(`distributary messages ${shellQuoted(`${data.topic}/${data.partition}`)} --offset ${data.start} --lake ${shellQuoted(data.lake)} --pipeline ${shellQuoted(data.pipeline)}`)),
      ]);
  },
};

function choices(data, query, go) {
  const places = data.partitions.map((each) => [`${each.topic}/${each.partition}`, `${each.topic}/${each.partition} (${number(each.end - each.oldest)})`]);
  const field = (id, label, value, more, change) => h("label", { class: "choice" }, h("span", {}, label),
    h("input", { id, value: value || "", autocomplete: "off", ...more, onchange: (event) => change(event.target.value.trim()) }));
  return h("div", { class: "filters" },
    select("partition", "Partition", `${data.topic}/${data.partition}`, places, (chosen) => {
      const cut = chosen.lastIndexOf("/");
      go({ topic: chosen.slice(0, cut), partition: chosen.slice(cut + 1), offset: "", at: "" });
    }),
    field("offset", "From offset", query.offset, { inputmode: "numeric", pattern: "[0-9]*", placeholder: "the newest" }, (value) => go({ offset: value, at: "" })),
    field("at", "or from time", query.at, { placeholder: "2026-11-19T09:00Z" }, (value) => go({ at: value, offset: "" })));
}

function turning(data, go) {
  const earlier = Math.max(data.start - LIMIT, data.oldest);
  return h("div", { class: "buttons" },
    h("button", { type: "button", disabled: data.start <= data.oldest, onclick: () => go({ offset: String(earlier), at: "" }) }, "Earlier"),
    h("button", { type: "button", disabled: data.next >= data.end, onclick: () => go({ offset: String(data.next), at: "" }) }, "Later"),
    h("button", { type: "button", onclick: () => go({ offset: "", at: "" }) }, "Newest"));
}

function one(message, data) {
  const place = `${data.topic}/${data.partition}/${message.offset}`;
  const [reason, ...words] = message.error.split(": ");
  return h("article", { class: "message" },
    h("div", { class: "who" }, h("h3", {}, number(message.offset)), h("span", { class: "claim" }, spelled(message.type) || "type unknown"),
      h("span", { class: "muted" }, message.timestamp ? clock(new Date(message.timestamp)) : null, " ", link(`/search?q=${encodeURIComponent(place)}`, "trace"))),
    message.error ? h("p", { class: "banner warn" }, code(reason), ` ${words.join(": ")}`) : null,
    facts([["schema", message.schema === "unknown" ? null : message.schema], ["key", shownBytes(message.key)],
      ...message.headers.map((header) => [`header ${header.key}`, header.value ? shownBytes(header.value) : "null"]),
      ["value", message.bytes === null ? "null" : counted(message.bytes, "byte")]]),
    message.decoded ? h("pre", { class: "decoded", tabindex: "0" }, message.decoded) : null,
    message.hex.length ? h("details", { open: !message.decoded }, h("summary", {}, "Bytes"),
      h("pre", { class: "hex", tabindex: "0" }, message.hex.map((line) => h("span", { class: /^ *\^\^/.test(line) ? "mark" : null }, `${line}\n`)))) : null);
}
