// What the server says of itself: parameters, hashes and limits.

import { byId, element, icon } from "./elements.js";
import { grouped, plural, roundDown, roundUp } from "./numbers.js";

const SEARCHES = {
  "white-box": "white-box: with the encoder’s gradients",
  "black-box": "black-box: by asking only",
};

export function showFacts(about, forgetToken) {
  const { gallery, input } = about;
  byId("gallery-name").textContent = gallery.name;
  document.title = `${gallery.name} · RetrievalGuard`;
  byId("lead").textContent = `${plural(gallery.items, "picture")} of ${plural(gallery.labels, "label")}. Every answer says how far the picture may be changed before the answer could change.`;
  const always = about.guarantee === "always";
  if (always) {
    fill("constant", roundUp(about.lipschitz.constant));
  } else {
    fill("sigma", `the standard deviation σ = ${about.sigma}`);
    fill("alpha", `α = ${about.alpha}`);
  }
  fill("input", ` (here ${input.height} × ${input.width} pixels, ${plural(input.channels, "channel")})`);
  const views = gallery.views ? ` with ${plural(gallery.views.length, "view")} each (${gallery.views.join(", ")})` : "";
  const behind = gallery.samples === null ? "" : `, ${plural(gallery.samples, "noisy copy", "noisy copies")} behind each`;
  const rows = [
    ...(always ? boundRows(about) : noiseRows(about)),
    ["gallery", `${plural(gallery.items, "item")}${views}${behind}${gallery.read_only ? ", read-only" : ""}`],
    ["embedding", `${plural(gallery.dimension, "dimension")}, ${gallery.metric} distance`],
    ["adversarial search", `${SEARCHES[about.search] ?? about.search}, at most ${about.limits.search_seconds.toFixed(0)} s`],
    ["engine", about.engine],
    ["tool", `retrievalguard ${about.version}`],
    ["SHA-256 of the model", hash(about.hashes.model)],
    ["SHA-256 of the model config", hash(about.hashes.contract)],
    ["SHA-256 of the gallery", hash(about.hashes.gallery)],
  ];
  byId("facts-list").replaceChildren(...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  links(about, forgetToken);
}

function noiseRows(about) {
  return [
    ["noise σ", `${about.sigma} (pixels in [0, 1])`],
    ["retriever", about.retriever],
    ["failure probability α", `${about.alpha} per answer`],
    ["samples", `at most ${grouped(about.defaults.samples)} by default, after a pilot of ${grouped(about.pilot)}`],
    ["largest radius", about.largest_radius === null ? "not limited by the samples" : `${roundDown(about.largest_radius)}: no query can get more with the default samples`],
  ];
}

function boundRows({ retriever, lipschitz: { constant, layers, forward_error: error } }) {
  return [
    ["guarantee", "always: no noise, and no failure probability"],
    ["retriever", `${retriever}: one pass in double precision`],
    ["Lipschitz constant", `at most ${roundUp(constant)}, verified from the encoder’s weights (${plural(layers, "operator")})`],
    ["rounding", error === null ? "bounded for every answer, and taken off twice" : `at most ${error.toExponential(1)} in an embedding, taken off twice`],
  ];
}

function fill(name, words) {
  for (const place of document.querySelectorAll(`[data-fact="${name}"]`)) place.textContent = words;
}

function links(about, forgetToken) {
  const parts = [element("a", { href: "openapi.json" }, "API description (openapi.json)")];
  if (about.auth === "required") {
    // A link cannot carry the token.
    parts.push(element("span", { class: "muted" }, "Metrics at ", element("code", {}, "/metrics"), ", with the token"));
    const button = element("button", { type: "button", class: "quiet", id: "token-forget" }, "Forget the token");
    button.addEventListener("click", forgetToken);
    parts.push(button);
  } else {
    parts.push(element("a", { href: "metrics" }, "Metrics (Prometheus)"));
  }
  byId("facts-links").replaceChildren(...parts);
}

function hash(full) {
  const code = element("code", { title: full }, full.slice(0, 12));
  const words = element("span", { role: "status", class: "muted small" });
  const button = element("button", { type: "button", class: "link", "aria-label": `copy the whole hash ${full.slice(0, 12)}…` }, icon("copy"));
  button.addEventListener("click", async () => {
    words.textContent = (await copied(full, code)) ? "copied" : "select it to copy";
    setTimeout(() => { words.textContent = ""; }, 3000);
  });
  return element("span", { class: "hash" }, code, button, words);
}

async function copied(text, code) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without a secure origin there is no clipboard: show everything, selected.
    code.textContent = text;
    getSelection().selectAllChildren(code);
    return false;
  }
}
