// Time series as SVG: axes, a crosshair that follows pointer or arrow keys, and text for screen readers.
// A click, or Enter, opens the batch of a point.

import { h, s } from "./dom.js";
import { clock, compact } from "./format.js";

const MARGIN = { left: 46, right: 10, top: 8, bottom: 20 };
const STEPS = [1, 2, 2.5, 5, 10];

// series: [{name, points: [[milliseconds, value or null, address], ...]}]; `tell` has the unit that
// the axis leaves out; `from` and `to` are where the axis begins and ends, whatever there is to draw
export function chart({ title, note = "", series, format = compact, tell = format, height = 150, bars = false, least = 0, from = null, to = null }) {
  const drawn = series.filter((each) => each.points.some(([, value]) => value !== null));
  const figure = h("figure", { class: "chart" },
    h("figcaption", {}, h("b", {}, title), note ? h("span", {}, note) : null, legend(drawn)));
  if (!drawn.length) {
    figure.append(h("p", { class: "empty" }, "There is no data for this period."));
    return figure;
  }
  const plot = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": words(title, drawn, tell) });
  const tip = h("div", { class: "tip", hidden: true });
  plot.append(tip);
  figure.append(plot);
  let at = -1;
  const draw = () => {
    const width = Math.max(plot.clientWidth, 160);
    const scale = scales(drawn, width, height, bars, least, from, to);
    plot.querySelector("svg")?.remove();
    plot.prepend(picture(drawn, scale, width, height, format, bars));
    return scale;
  };
  let scale = null;
  new ResizeObserver(() => { scale = draw(); point(-1); }).observe(plot);
  const known = drawn.flatMap((each) => each.points.filter(([, value]) => value !== null));
  const times = [...new Set(known.map(([t]) => t))].sort((a, b) => a - b);
  const places = new Map(known.filter(([, , place]) => place).map(([t, , place]) => [t, place]));

  function point(index) {
    at = index;
    const svg = plot.querySelector("svg");
    svg?.querySelector(".cross")?.remove();
    tip.hidden = index < 0 || !scale;
    if (tip.hidden) return;
    const time = times[index];
    const x = scale.x(time);
    const cross = s("g", { class: "cross" },
      s("line", { x1: x, x2: x, y1: MARGIN.top, y2: height - MARGIN.bottom }));
    const rows = [];
    drawn.forEach((each, n) => {
      const found = each.points.find(([t]) => t === time);
      if (!found || found[1] === null) return;
      cross.append(s("circle", { cx: x, cy: scale.y(found[1]), r: 3.5, class: `dot s${n % 6}` }));
      rows.push(h("div", {}, drawn.length > 1 ? h("i", { class: `key s${n % 6}` }) : null,
        drawn.length > 1 ? `${each.name} ` : null, h("b", {}, tell(found[1]))));
    });
    svg.append(cross);
    const place = places.get(time);
    if (place) rows.push(h("div", { class: "muted" }, `click: batch #${place.split("/").pop()}`));
    tip.replaceChildren(h("span", {}, clock(new Date(time))), ...rows);
    plot.classList.toggle("leads", Boolean(place));
    const room = plot.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(4, Math.min(x + 10, room))}px`;
  }
  plot.addEventListener("pointermove", (event) => {
    if (!scale) return;
    const x = event.clientX - plot.getBoundingClientRect().left;
    point(nearest(times, scale.time(x)));
  });
  function open() {
    const place = at < 0 ? null : places.get(times[at]);
    if (!place) return;
    // like a link, so that the page's own navigation handles it
    const way = h("a", { href: place, hidden: true });
    figure.append(way);
    way.click();
    way.remove();
  }
  plot.addEventListener("click", open);
  plot.addEventListener("pointerleave", () => point(-1));
  plot.addEventListener("blur", () => point(-1));
  plot.addEventListener("keydown", (event) => {
    if (event.key === "Enter") open();
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    point(at < 0 ? times.length - 1 : Math.max(0, Math.min(times.length - 1, at + step)));
  });
  return figure;
}

function scales(series, width, height, bars, least, from, to) {
  const every = series.flatMap((each) => each.points).filter(([, value]) => value !== null);
  const times = every.map(([t]) => t);
  let [first, last] = [Math.min(from ?? Infinity, ...times), Math.max(to ?? -Infinity, ...times)];
  if (first === last) [first, last] = [first - 30_000, last + 30_000];
  const top = ceiling(Math.max(...every.map(([, value]) => value), least));
  // room for half a bar at both ends
  const left = MARGIN.left + (bars ? 8 : 0);
  const inner = width - left - MARGIN.right - (bars ? 8 : 0);
  const x = (t) => left + ((t - first) / (last - first)) * inner;
  const y = (v) => height - MARGIN.bottom - (v / top) * (height - MARGIN.top - MARGIN.bottom);
  const time = (px) => first + ((px - left) / inner) * (last - first);
  return { x, y, time, top, first, last };
}

function picture(series, scale, width, height, format, bars) {
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" });
  const base = height - MARGIN.bottom;
  for (const share of [0, 0.5, 1]) {
    const y = scale.y(scale.top * share);
    svg.append(s("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
      s("text", { x: MARGIN.left - 6, y: y + 3.5, "text-anchor": "end" }, format(scale.top * share)));
  }
  const marks = Math.max(2, Math.min(6, Math.floor(width / 130)));
  for (let n = 0; n < marks; n += 1) {
    const t = scale.first + ((scale.last - scale.first) * n) / (marks - 1);
    const anchor = n === 0 ? "start" : n === marks - 1 ? "end" : "middle";
    svg.append(s("text", { x: scale.x(t), y: height - 5, "text-anchor": anchor }, short(t, scale.last - scale.first)));
  }
  series.forEach((each, n) => {
    if (bars) svg.append(columns(each, scale, base, width));
    else svg.append(...lines(each, scale, base, n, series.length === 1));
  });
  return svg;
}

function lines(series, scale, base, n, area) {
  const parts = [];
  for (const run of runs(series.points)) {
    const path = run.map(([t, v]) => `${fixed(scale.x(t))},${fixed(scale.y(v))}`);
    const [from, to] = [fixed(scale.x(run[0][0])), fixed(scale.x(run[run.length - 1][0]))];
    if (run.length === 1) {
      parts.push(s("circle", { class: `dot s${n % 6}`, cx: from, cy: fixed(scale.y(run[0][1])), r: 3 }));
      continue;
    }
    if (area) parts.push(s("polygon", { class: `area s${n % 6}`, points: `${from},${base} ${path.join(" ")} ${to},${base}` }));
    parts.push(s("polyline", { class: `line s${n % 6}`, points: path.join(" ") }));
  }
  return parts;
}

function columns(series, scale, base, width) {
  const wide = Math.max(1, Math.min(14, (width - MARGIN.left - MARGIN.right) / series.points.length - 1.5));
  const group = s("g", { class: "columns" });
  for (const [t, v] of series.points) {
    if (v === null) continue;
    const y = scale.y(v);
    group.append(s("rect", { x: fixed(scale.x(t) - wide / 2), y: fixed(y), width: fixed(wide), height: fixed(Math.max(base - y, 0.5)), rx: Math.min(1.5, wide / 3) }));
  }
  return group;
}

// segments between nulls: a line across missing measurements would be wrong
function runs(points) {
  const found = [[]];
  for (const point of points) {
    if (point[1] === null) found.push([]);
    else found[found.length - 1].push(point);
  }
  return found.filter((run) => run.length);
}

function legend(series) {
  if (series.length < 2) return null;
  return h("span", { class: "legend" }, series.map((each, n) => h("span", {}, h("i", { class: `key s${n % 6}` }), each.name)));
}

function words(title, series, format) {
  const parts = series.map((each) => {
    const values = each.points.map(([, value]) => value).filter((value) => value !== null);
    const last = format(values[values.length - 1]);
    return `${each.name || "value"}: last ${last}, lowest ${format(Math.min(...values))}, highest ${format(Math.max(...values))}`;
  });
  return `${title}. ${parts.join("; ")}. Use the arrow keys to read single values, Enter to open a batch.`;
}

function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return STEPS.map((step) => step * power).find((step) => step >= value * 0.999);
}

function nearest(times, wanted) {
  let [low, high] = [0, times.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (times[middle] < wanted) low = middle;
    else high = middle;
  }
  return wanted - times[low] < times[high] - wanted ? low : high;
}

function short(time, span) {
  const two = (value) => String(value).padStart(2, "0");
  const moment = new Date(time);
  const hours = `${two(moment.getHours())}:${two(moment.getMinutes())}`;
  if (span < 600_000) return `${hours}:${two(moment.getSeconds())}`;
  if (span < 86_400_000) return hours;
  return `${two(moment.getDate())}.${two(moment.getMonth() + 1)}. ${hours}`;
}

function fixed(value) {
  return Math.round(value * 10) / 10;
}
