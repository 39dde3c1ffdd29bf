// Elements built by hand. Text is only ever inserted as text, never as markup.

import { base } from "./base.js";

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function s(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "href") element.setAttribute("href", inside(value));
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

// replaces the content; null is left out, as with `h`
export function put(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

// only addresses of this page: a name from a record can never become `javascript:`
function inside(address) {
  const text = String(address);
  if (/^\/(?![/\\])/.test(text)) return base + text;
  return text.startsWith("#") ? text : "#";
}

export function address(...parts) {
  return "/" + parts.map((part) => encodeURIComponent(String(part))).join("/");
}

export function link(path, ...children) {
  return h("a", { href: path }, ...children);
}

// Replaces content without disturbing the part that the user is working with.
export function swap(container, fresh) {
  const active = document.activeElement;
  const held = active && active.id && container.contains(active) ? active : null;
  const typed = held && "value" in held ? held.value : null;
  const caret = held && held.tagName === "INPUT" ? [held.selectionStart, held.selectionEnd] : null;
  const open = new Map();
  for (const each of container.querySelectorAll("details[data-key]")) {
    open.set(each.dataset.key, each.open);
  }
  const scrolled = new Map();
  for (const each of container.querySelectorAll("[data-scroll]")) {
    scrolled.set(each.dataset.scroll, [each.scrollLeft, each.scrollTop]);
  }
  container.replaceChildren(fresh);
  for (const each of container.querySelectorAll("details[data-key]")) {
    if (open.has(each.dataset.key)) each.open = open.get(each.dataset.key);
  }
  for (const each of container.querySelectorAll("[data-scroll]")) {
    const place = scrolled.get(each.dataset.scroll);
    if (place) [each.scrollLeft, each.scrollTop] = place;
  }
  const again = held ? document.getElementById(held.id) : null;
  if (again) {
    if (typed !== null) again.value = typed;
    again.focus({ preventScroll: true });
    if (caret && caret[0] !== null) again.setSelectionRange(...caret);
  }
}
