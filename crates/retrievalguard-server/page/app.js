// Starts the page: asks the server about itself and joins the parts.

import { Refused, json, onRefusedToken, token } from "./api.js";
import { byId } from "./elements.js";
import { showFacts } from "./facts.js";
import { Gallery } from "./gallery.js";
import { Notice } from "./notice.js";
import { Perturbing } from "./perturb.js";
import { Query } from "./query.js";
import { Visible } from "./visible.js";

let known = null;
const about = () => known;
const notice = new Notice(byId("start-notice"));
const perturbing = new Perturbing({ about });
const visible = new Visible();
const query = new Query({
  about,
  answered: (question) => {
    perturbing.offer(question);
    visible.offer(question);
  },
});
const gallery = new Gallery({
  about,
  useAsQuery: (picture, name) => query.ask(picture, name),
  changed: async () => {
    query.outdated();
    await learn();
  },
});

async function learn() {
  known = await json("v1/about", { waiting: notice.busy(() => {}) });
  // What is said about noise shows only where there is noise.
  document.documentElement.dataset.guarantee = known.guarantee;
  showFacts(known, () => {
    token.forget();
    location.reload();
  });
  query.offer(known);
}

async function start() {
  notice.clear();
  try {
    await learn();
  } catch (error) {
    if (error instanceof Refused && error.status === 401) wantToken();
    else notice.failed(error, start);
    return;
  }
  if (known.auth === "required" && !known.may_read) {
    wantToken();
    return;
  }
  byId("token").hidden = true;
  byId("main").inert = false;
  await gallery.load();
}

function wantToken() {
  byId("token").hidden = false;
  byId("main").inert = true;
  if (token.get()) {
    byId("token-note").textContent = "The server does not know this token. Another one?";
    byId("token-note").classList.add("bad");
    token.forget();
  }
  byId("token-value").focus();
}

onRefusedToken(wantToken);
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(byId("token-value").value.trim());
  byId("token-value").value = "";
  start();
});

start();
