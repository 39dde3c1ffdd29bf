// Notifications of changes: by server-sent events, or by polling if these do not work.

import { base } from "./base.js";

const ASK_SECONDS = 5;
const AGAIN_SECONDS = 20;

export function listen({ changed, state }) {
  let source = null;
  let asking = 0;
  let again = 0;

  function poll() {
    if (asking) return;
    state("polling");
    asking = setInterval(() => changed(["lake", "jobs"]), ASK_SECONDS * 1000);
    again = setTimeout(connect, AGAIN_SECONDS * 1000);
  }

  function connect() {
    clearTimeout(again);
    source?.close();
    source = new EventSource(`${base}/api/events`);
    const heard = (event) => {
      clearInterval(asking);
      asking = 0;
      state("live");
      return JSON.parse(event.data);
    };
    source.addEventListener("hello", (event) => changed(heard(event)));
    source.addEventListener("changed", (event) => changed(heard(event)));
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) poll();
      else state("reconnecting");
    });
  }

  connect();
}
