// Requests to the server, and its errors.

import { base } from "./base.js";

export class Refused extends Error {
  constructor(error, status) {
    super(error.what || "the dashboard did not answer");
    this.error = error;
    this.status = status;
  }
}

let csrf = "";

export async function session() {
  const found = await ask("/api/session");
  csrf = found.csrf;
  return found;
}

// parameters as the query of an address, without empty ones
export function asked(query) {
  const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
}

export function get(path, query = {}) {
  return ask(path + asked(query));
}

export async function post(path, body) {
  const headers = { "content-type": "application/json", "x-csrf-token": csrf };
  const found = await ask(path, { method: "POST", headers, body: JSON.stringify(body) });
  if (found.csrf) csrf = found.csrf;
  return found;
}

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(base + path, { credentials: "same-origin", ...options });
  } catch {
    throw new Refused(
      {
        code: "",
        what: "The dashboard does not answer.",
        next_step: "Is it still running? Start it again: distributary ui",
      },
      0,
    );
  }
  let document = {};
  try {
    document = await answer.json();
  } catch {
    document = { error: { code: "", what: `The dashboard answered with ${answer.status}.` } };
  }
  if (!answer.ok) throw new Refused(document.error || {}, answer.status);
  return document;
}
