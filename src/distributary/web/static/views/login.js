// The token is sent once; afterwards there is a cookie that no script can read.

import { post, Refused } from "../api.js";
import { base } from "../base.js";
import { h } from "../dom.js";
import { problem } from "../parts.js";

export const login = {
  title: () => "Log in",
  still: true,
  load: async () => {
    // a link that works once; the part after the number sign was never sent to the server
    const once = new URLSearchParams(location.hash.slice(1)).get("once");
    if (!once) return { refused: null };
    history.replaceState(null, "", location.pathname + location.search);
    try {
      await post("/api/login", { once });
    } catch (error) {
      if (error instanceof Refused) return { refused: error.error };
      throw error;
    }
    leave();
    return { refused: null };
  },
  render: ({ refused }) => {
    const answer = h("div", { "aria-live": "polite" }, refused ? problem(refused) : null);
    const token = h("input", { id: "token", type: "password", autocomplete: "current-password", required: true, maxlength: "500" });
    const form = h("form", { class: "login" },
      h("h1", { tabindex: "-1" }, "Log in"),
      h("label", { for: "token" }, "The token that this dashboard was started with"), token,
      h("button", { type: "submit", class: "primary" }, "Log in"), answer);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      try {
        await post("/api/login", { token: token.value });
        leave();
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        token.value = "";
        answer.replaceChildren(problem(error.error));
        token.focus();
      }
    });
    return form;
  },
};

function leave() {
  const to = new URLSearchParams(location.search).get("to") || `${base}/`;
  // only addresses of this page
  location.assign(/^\/(?![/\\])/.test(to) && !to.startsWith(`${base}/login`) ? to : `${base}/`);
}
