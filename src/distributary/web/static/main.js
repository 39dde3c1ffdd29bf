// The shell: selects the view of an address, and reloads it when something changes.

import { post, Refused, session } from "./api.js";
import { base, own, place } from "./base.js";
import { h, swap } from "./dom.js";
import { ago } from "./format.js";
import { showTray } from "./jobs.js";
import { listen } from "./live.js";
import { problem } from "./parts.js";
import { batch, batches } from "./views/batches.js";
import { error, errors } from "./views/errors.js";
import { letter, letters } from "./views/letters.js";
import { lineage } from "./views/lineage.js";
import { login } from "./views/login.js";
import { messages } from "./views/messages.js";
import { overview } from "./views/overview.js";
import { pipeline } from "./views/pipeline.js";
import { query } from "./views/query.js";
import { schema, schemas } from "./views/schemas.js";
import { search } from "./views/search.js";
import { table } from "./views/table.js";
import { tables } from "./views/tables.js";

// a view: title(params), load(params, query) from the server, render(data, page)
const ROUTES = [
  [/^\/$/, overview],
  [/^\/login$/, login],
  [/^\/search$/, search],
  [/^\/tables$/, tables],
  [/^\/tables\/(.+)$/, table],
  [/^\/pipelines\/(.+)$/, pipeline],
  [/^\/batches$/, batches],
  [/^\/batches\/(.+)\/(\d+)$/, batch],
  [/^\/dead-letters$/, letters],
  [/^\/dead-letters\/([^/]+)$/, letter],
  [/^\/schemas$/, schemas],
  [/^\/schemas\/(.+)$/, schema],
  [/^\/query$/, query],
  [/^\/messages\/(.+)$/, messages],
  [/^\/lineage$/, lineage],
  [/^\/errors$/, errors],
  [/^\/errors\/([^/]+)$/, error],
];

const LOADING_MILLISECONDS = 150;
const main = document.getElementById("main");
const tray = document.getElementById("tray");
let page = null;
let turn = 0;

function find() {
  for (const [pattern, view] of ROUTES) {
    const found = pattern.exec(place());
    if (found) return { view, params: found.slice(1).map(decode) };
  }
  return null;
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// a new address, or (`replace`) another form of the same one: then the user can keep typing
function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", base + address);
  show({ moved: !replace });
}

async function show({ moved = false } = {}) {
  const mine = ++turn;
  const found = find();
  markPlace();
  if (!found) {
    document.title = "Not found · Distributary";
    main.replaceChildren(problem({ what: "This page does not exist.", evidence: decode(place()), next_step: "Go to the overview." }),
      h("p", {}, h("a", { href: "/" }, "Overview")));
    return;
  }
  const query = Object.fromEntries(new URLSearchParams(location.search));
  page = { ...found, query, go, again: () => show(), text: "" };
  document.title = `${found.view.title(found.params)} · Distributary`;
  const waiting = moved ? setTimeout(() => main.replaceChildren(skeleton()), LOADING_MILLISECONDS) : 0;
  try {
    const data = await found.view.load(found.params, query);
    clearTimeout(waiting);
    if (mine !== turn) return;
    page.text = settled(data);
    swap(main, found.view.render(data, page));
  } catch (failure) {
    clearTimeout(waiting);
    if (mine !== turn) return;
    fail(failure);
  }
  if (moved) {
    scrollTo(0, 0);
    main.querySelector("h1")?.focus({ preventScroll: true });
  }
}

// the data of the page is loaded again; unchanged parts stay
async function refresh() {
  if (!page || page.view.still) return;
  // a plot that is being read stays: the next change comes within seconds
  if (main.querySelector(".plot:hover, .plot:focus-visible")) return;
  const mine = turn;
  const { view, params } = page;
  try {
    const data = await view.load(params, page.query);
    if (mine !== turn) return;
    const text = settled(data);
    if (text === page.text) return;
    page.text = text;
    swap(main, view.render(data, page));
  } catch (failure) {
    if (mine === turn) fail(failure);
  }
}

function settled(data) {
  return JSON.stringify(data, (key, value) => (key === "now" ? undefined : value));
}

function fail(failure) {
  if (!(failure instanceof Refused)) {
    console.error(failure);
    main.replaceChildren(problem({ what: "The page has failed.", evidence: String(failure), next_step: "Reload it." }, () => location.reload()));
    return;
  }
  if (failure.status === 401) {
    const back = location.pathname + location.search;
    go(`/login?to=${encodeURIComponent(back)}`, { replace: true });
    return;
  }
  page.text = "";
  main.replaceChildren(problem(failure.error, () => show()));
}

function skeleton() {
  return h("div", {}, h("div", { class: "skeleton", "aria-hidden": "true" }, h("i"), h("i"), h("i")), h("p", { class: "unseen", role: "status" }, "Loading"));
}

function markPlace() {
  for (const each of document.querySelectorAll(".nav a")) {
    const path = own(each.getAttribute("href"));
    const here = path === "/" ? ["/", "/pipelines", "/messages"].some((each) => (each === "/" ? place() === "/" : place().startsWith(each))) : place().startsWith(path);
    if (here) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
}

function wire() {
  // the frame of the page is one file for all lakes
  for (const each of document.querySelectorAll('.bar a[href^="/"], .foot a[href^="/"]')) {
    each.setAttribute("href", base + each.getAttribute("href"));
  }
  document.addEventListener("click", (event) => {
    const anchor = event.target.closest?.("a[href]");
    if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
    const address = anchor.getAttribute("href");
    const target = address.startsWith("/") ? own(address) : null;
    if (!target || target.startsWith("/api/")) return;
    event.preventDefault();
    go(target);
  });
  addEventListener("popstate", () => show({ moved: true }));
  const box = document.getElementById("q");
  document.getElementById("find").addEventListener("submit", (event) => {
    event.preventDefault();
    if (box.value.trim()) go(`/search?q=${encodeURIComponent(box.value.trim())}`);
  });
  addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName || "");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      box.focus();
    }
  });
  wireTheme();
  setInterval(() => {
    for (const each of document.querySelectorAll("time[data-ago]")) each.textContent = ago(new Date(each.dataset.ago));
  }, 1000);
}

function wireTheme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const tell = () => {
    const chosen = root.dataset.theme || "system";
    button.textContent = { light: "☀", dark: "☾", system: "◐" }[chosen];
    button.setAttribute("aria-label", `Colours: ${chosen}`);
  };
  button.addEventListener("click", () => {
    const next = { light: "dark", dark: "", "": "light" }[root.dataset.theme || ""];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    try {
      localStorage.setItem("theme", next);
    } catch {
      // the choice lasts until the page is closed
    }
    tell();
  });
  tell();
}

function wireLive() {
  const sign = document.getElementById("live");
  const words = { live: "live", polling: "every 5 s", reconnecting: "reconnecting" };
  let last = 0;
  let waiting = 0;
  listen({
    state: (state) => {
      sign.textContent = words[state];
      sign.dataset.state = state;
    },
    changed: (what) => {
      if (what.includes("jobs")) showTray(tray);
      if (!what.includes("lake")) return;
      // many batches a second cause one update a second
      clearTimeout(waiting);
      waiting = setTimeout(() => { last = Date.now(); refresh(); }, Math.max(0, 1000 - (Date.now() - last)));
    },
  });
}

async function begin() {
  wire();
  const asked = session();
  // only a login needs the page's own token first
  const shown = place() === "/login" ? asked.then(() => show()) : show();
  try {
    const known = await asked;
    await shown;
    // the first refusal has sent a client without a login to the login page
    if (!known.logged_in) return;
    wireAccount(known);
    wireLakes(known.lakes);
    wireLive();
  } catch (failure) {
    fail(failure);
  }
}

function wireLakes(lakes) {
  if (lakes.length < 2) return;
  const box = document.getElementById("lakes");
  box.replaceChildren(...lakes.map((each) => {
    const choice = h("option", { value: each.address }, each.name);
    choice.selected = each.address === `${base}/`;
    return choice;
  }));
  box.hidden = false;
  box.addEventListener("change", () => location.assign(box.value));
}

function wireAccount(known) {
  const button = document.getElementById("logout");
  button.hidden = !known.token_required;
  button.addEventListener("click", async () => {
    await post("/api/logout", {});
    location.assign(`${base}/login`);
  });
}

begin();
