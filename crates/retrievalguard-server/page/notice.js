// The line of a section that tells what went wrong or what is being waited for.

import { Refused, ServerGone } from "./api.js";
import { element } from "./elements.js";

export class Notice {
  #place;

  constructor(place) {
    this.#place = place;
  }

  clear() {
    this.#place.hidden = true;
    this.#place.replaceChildren();
  }

  // `tone` is `bad`, `warn` or `calm`; an action is `{ name, run }`.
  say(tone, words, action = null) {
    this.#place.className = `notice ${tone}`;
    this.#place.dataset.tone = tone;
    const parts = [element("span", {}, words)];
    if (action) {
      const button = element("button", { type: "button", class: "quiet" }, action.name);
      button.addEventListener("click", action.run);
      parts.push(button);
    }
    this.#place.replaceChildren(...parts);
    this.#place.hidden = false;
  }

  // For `waiting` of the API.
  busy(cancel) {
    return (seconds, attempt, attempts) => {
      if (seconds === 0) this.clear();
      // Only the number changes, so that the button keeps its focus.
      else if (this.#place.dataset.tone === "calm" && !this.#place.hidden && this.#place.querySelector(".seconds")) {
        this.#place.querySelector(".seconds").textContent = `${seconds} s`;
      } else {
        const words = element("span", {}, "The server is busy, trying again in ", element("span", { class: "seconds" }, `${seconds} s`), ` (${attempt} of ${attempts}).`);
        this.say("calm", words, { name: "Cancel", run: cancel });
      }
    };
  }

  // What came of a request that failed.
  failed(error, again) {
    if (error instanceof ServerGone) {
      this.say("bad", "The server does not answer. Perhaps it was stopped, or the network is down.", { name: "Try again", run: again });
    } else if (error instanceof Refused) {
      const busy = error.status === 429 || error.status === 503;
      const words = element("span", {}, busy ? `The server is still busy: ${error.message}` : error.message);
      if (error.requestId) words.append(" ", element("small", { class: "muted" }, `(request ${error.requestId})`));
      // Errors without a status came after the answer had begun, such as the end of the time for it.
      this.say("bad", words, busy || error.status === 0 ? { name: "Try again", run: again } : null);
    } else {
      this.say("bad", `The page failed: ${error.message}`, { name: "Try again", run: again });
      console.error(error);
    }
  }
}
