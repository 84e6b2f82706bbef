// "Try to change its mind": perturbations of the query, and what both retrievers make of them.

import { Refused, ServerGone, api, blob, isAbort, json } from "./api.js";
import { byId, element, pill } from "./elements.js";
import { events } from "./events.js";
import { Notice } from "./notice.js";
import { grouped, niceStep, plural, radiusText, roundDown } from "./numbers.js";
import { show, thumbnail } from "./thumbnails.js";

// Milliseconds without another move of the slider before the server is asked.
const REST = 120;

const PLAIN = {
  own: "Searches clean embeddings of the same pictures.",
  stored: "Searches the stored vectors, without noise on the query: index again for clean ones.",
};

export class Perturbing {
  #about;
  #question = null;
  // By kind and what it was searched against, so that going back does not search again.
  #found = new Map();
  #current = null;
  #making = null;
  #viewing = null;
  #timer = 0;
  #size = 0;
  #notice = new Notice(byId("perturb-notice"));

  constructor({ about }) {
    this.#about = about;
    for (const choice of document.querySelectorAll('input[name="kind"], input[name="against"]')) {
      choice.addEventListener("change", () => this.#chosen());
    }
    byId("perturb-make").addEventListener("click", () => this.#make());
    byId("perturb-cancel").addEventListener("click", () => this.#making?.abort());
    byId("size-slider").addEventListener("input", (event) => this.#resize(Number(event.target.value), event.target));
    byId("size-number").addEventListener("input", (event) => {
      if (event.target.value !== "" && Number.isFinite(event.target.valueAsNumber)) this.#resize(event.target.valueAsNumber, event.target);
    });
    byId("size-number").addEventListener("change", () => {
      if (this.#current) this.#write(null);
    });
    byId("jump-inside").addEventListener("click", () => this.#resize(this.#justInside()));
    byId("jump-broken").addEventListener("click", () => this.#resize(this.#justBroken()));
  }

  // A question with its answer, or `null` while there is none.
  offer(question) {
    this.#making?.abort();
    this.#viewing?.abort();
    clearTimeout(this.#timer);
    this.#question = question;
    this.#found.clear();
    this.#current = null;
    this.#notice.clear();
    byId("perturb-empty").hidden = question !== null;
    byId("perturb-body").hidden = question === null;
    byId("perturb-result").hidden = true;
    for (const choice of document.querySelectorAll('input[name="kind"]')) choice.checked = false;
    this.#controls();
  }

  // Whether the retriever without noise is the one whose answers are certified.
  #always() {
    return this.#about()?.guarantee === "always";
  }

  #choice() {
    const kind = document.querySelector('input[name="kind"]:checked')?.value ?? null;
    const chosen = this.#always() ? "plain" : document.querySelector('input[name="against"]:checked').value;
    const against = kind === "adversarial" ? chosen : null;
    return { kind, against, key: `${kind} ${against}` };
  }

  #chosen() {
    this.#making?.abort();
    this.#notice.clear();
    const { kind, key } = this.#choice();
    this.#current = null;
    byId("perturb-result").hidden = true;
    this.#controls();
    if (this.#found.has(key)) this.#use(this.#found.get(key));
    else if (kind === "noise") this.#make();
  }

  #controls() {
    const { kind, key } = this.#choice();
    const making = this.#making !== null;
    const make = byId("perturb-make");
    byId("against").hidden = kind !== "adversarial";
    make.hidden = kind === null || making;
    const draw = this.#always() ? ["Draw a direction", "Draw another"] : ["Draw noise", "Draw other noise"];
    const words = kind === "noise" ? draw : ["Search for one", "Search again"];
    make.textContent = words[this.#found.has(key) ? 1 : 0];
    make.classList.toggle("primary", !this.#found.has(key));
    byId("perturb-cancel").hidden = !making;
    byId("perturb-progress").hidden = !making || kind !== "adversarial";
    byId("perturb-progress-words").hidden = !making || kind !== "adversarial";
  }

  async #make() {
    this.#making?.abort();
    this.#viewing?.abort();
    const controller = new AbortController();
    const question = this.#question;
    const { kind, against, key } = this.#choice();
    const parameters = new URLSearchParams({ kind });
    if (against) parameters.set("against", against);
    // Far enough to find a break even of an answer that is certified far.
    const certified = Number.isFinite(question.radius) ? question.radius : 0;
    const size = Math.max(4 * (this.#about().sigma ?? 0), 4 * certified);
    if (size > 0) parameters.set("size", size);
    const label = question.answer.label ?? question.answer.candidate_label;
    if (label !== null) parameters.set("label", label);
    const progress = byId("perturb-progress");
    progress.removeAttribute("value");
    byId("perturb-progress-words").textContent = "";
    this.#notice.clear();
    this.#making = controller;
    const focused = document.activeElement === byId("perturb-make");
    this.#controls();
    if (focused) byId("perturb-cancel").focus();
    try {
      const response = await api(`v1/perturbations?${parameters}`, {
        method: "POST",
        accept: "text/event-stream",
        body: question.picture,
        signal: controller.signal,
        waiting: this.#notice.busy(() => controller.abort()),
      });
      const found = await finished(response, ({ passes, expected, seconds, most_seconds: most }) => {
        if (controller !== this.#making) return;
        // Whichever ends the search first: all passes, or the time.
        progress.max = 1;
        progress.value = Math.min(Math.max(passes / Math.max(expected, 1), seconds / Math.max(most, 1)), 1);
        const words = `${grouped(passes)} passes, ${seconds.toFixed(0)} of at most ${most.toFixed(0)} s`;
        progress.setAttribute("aria-valuetext", words);
        byId("perturb-progress-words").textContent = words;
      });
      if (controller !== this.#making) return;
      this.#made();
      this.#found.set(key, found);
      this.#controls();
      this.#use(found);
    } catch (error) {
      if (controller !== this.#making) return;
      this.#made();
      if (!isAbort(error)) this.#notice.failed(error, () => this.#make());
    }
  }

  #made() {
    const focused = document.activeElement === byId("perturb-cancel");
    this.#making = null;
    this.#controls();
    if (focused) byId("perturb-make").focus();
  }

  #use(found) {
    this.#current = { ...found, differsAtZero: false };
    const { radius } = this.#question;
    const finite = Number.isFinite(radius) && radius > 0;
    const wanted = Math.max(finite ? 2.5 * radius : 0, found.broken_at === null ? 0 : 1.3 * found.broken_at) || found.size;
    const step = niceStep(wanted / 200);
    // A whole number of steps, or the last size could not be reached by keys.
    const maximum = Number((Math.ceil(wanted / step - 1e-9) * step).toPrecision(12));
    const slider = byId("size-slider");
    slider.max = maximum;
    slider.step = step;
    byId("size-number").max = maximum;
    const result = byId("perturb-result");
    result.dataset.kind = found.kind;
    result.dataset.brokenAt = found.broken_at ?? "";
    result.dataset.radius = radius;
    result.dataset.maximum = maximum;
    this.#marks(maximum);
    const nothing = found.kind === "adversarial" && found.broken_at === null;
    result.dataset.nothing = String(nothing);
    byId("perturb-found").className = nothing ? "notice warn" : "small muted";
    byId("perturb-found").textContent = this.#foundWords();
    const plain = this.#about()?.plain;
    const unproved = nothing ? " That nothing was found for it is no proof." : "";
    if (!this.#always()) byId("plain-note").textContent = `${PLAIN[plain] ?? ""}${found.against === "plain" ? unproved : ""}`;
    byId("verdicts").dataset.size = "";
    byId("doubt").hidden = true;
    result.hidden = false;
    this.#resize(0);
  }

  #foundWords() {
    const { kind, against, broken_at: broken, statement } = this.#current;
    if (kind === "noise") return `${this.#always() ? "A" : "Noise in a"} random direction. Move the slider to make it larger.`;
    const whom = this.#always() ? "" : `${against} `;
    const way = this.#about()?.search === "black-box" ? "by asking only" : "with the encoder’s gradients";
    return broken === null
      ? `${statement} Below is the direction that came closest.`
      : `Found ${way}: along this direction the ${whom}retriever was seen to change at the size ${broken.toFixed(4)}.`;
  }

  #marks(maximum) {
    const { radius } = this.#question;
    const broken = this.#current.broken_at;
    const track = byId("size-slider").parentElement;
    const share = radius === Infinity ? 1 : Math.min(radius / maximum, 1);
    // Without a radius nothing of the track is certified, not even half a thumb.
    track.style.setProperty("--certified", radius > 0 ? share : -1);
    place(byId("mark-radius"), radius > 0 && Number.isFinite(radius) ? share : null, `certified ${radiusText(radius)}`);
    place(byId("mark-broken"), broken === null ? null : broken / maximum, `${this.#always() ? "" : `${this.#current.against} `}changes ${broken?.toFixed(4)}`);
    const inside = byId("jump-inside");
    inside.hidden = !(radius > 0 && Number.isFinite(radius));
    inside.textContent = `Just inside the radius: ${this.#justInside().toFixed(4)}`;
    const beyond = byId("jump-broken");
    beyond.hidden = broken === null;
    beyond.textContent = broken === null ? "" : `Where the ${this.#always() ? "answer" : `${this.#current.against} one`} changes: ${this.#justBroken().toFixed(4)}`;
  }

  #justInside() {
    return Number(roundDown(0.99 * this.#question.radius));
  }

  #justBroken() {
    return Number((Math.ceil(this.#current.broken_at * 1.02 * 1e4) / 1e4).toFixed(4));
  }

  #resize(size, from = null) {
    const maximum = Number(byId("size-slider").max);
    this.#size = Math.min(Math.max(size, 0), maximum);
    this.#write(from);
    clearTimeout(this.#timer);
    this.#viewing?.abort();
    this.#timer = setTimeout(() => this.#view(), from ? REST : 0);
  }

  // Both fields show the size, but for the one that is being used.
  #write(from) {
    const slider = byId("size-slider");
    const exact = byId("size-number");
    if (from !== slider) slider.value = this.#size;
    if (from !== exact) exact.value = Number(this.#size.toFixed(6));
    const { radius } = this.#question;
    const inside = this.#size < radius;
    const where = radius > 0 ? `${inside ? "inside" : "outside"} the certified radius` : "no radius is certified";
    slider.setAttribute("aria-valuetext", `${this.#size.toFixed(4)}, ${where}`);
    const promise = byId("promise");
    promise.dataset.inside = String(inside);
    const alpha = this.#question.answer.alpha;
    let words;
    if (radius <= 0) words = ["Nothing is certified for this query, ", "so nothing is promised at any size."];
    else if (this.#always()) {
      words = inside
        ? ["Inside the certified radius: ", "a change of the answer is excluded by proof, always."]
        : ["Outside the certified radius: ", "nothing is promised. The answer may hold or change."];
    } else if (inside) words = ["Inside the certified radius: ", `a change of the smoothed retriever’s answer is excluded by proof, except with probability at most ${alpha}.`];
    else words = ["Outside the certified radius: ", "nothing is promised. The smoothed retriever may hold or change."];
    if (promise.textContent !== words.join("")) promise.replaceChildren(element("strong", {}, words[0]), words[1]);
  }

  async #view() {
    const perturbation = this.#current;
    const size = this.#size;
    const controller = new AbortController();
    this.#viewing?.abort();
    this.#viewing = controller;
    const verdicts = byId("verdicts");
    verdicts.setAttribute("aria-busy", "true");
    const path = `v1/perturbations/${encodeURIComponent(perturbation.id)}`;
    const options = { signal: controller.signal, waiting: this.#notice.busy(() => controller.abort()) };
    try {
      const [seen, picture] = await Promise.all([
        json(`${path}?size=${size}`, options),
        blob(`${path}/picture?size=${size}`, { signal: controller.signal }),
      ]);
      if (controller !== this.#viewing || perturbation !== this.#current) return;
      this.#notice.clear();
      await show(byId("perturbed-picture"), picture);
      if (controller !== this.#viewing || perturbation !== this.#current) return;
      this.#verdicts(seen, size);
      verdicts.setAttribute("aria-busy", "false");
    } catch (error) {
      if (controller !== this.#viewing || isAbort(error)) return;
      verdicts.setAttribute("aria-busy", "false");
      if (error instanceof Refused && error.status === 404) {
        this.#found.clear();
        this.#controls();
        this.#notice.say("warn", "The server keeps perturbations for some minutes only, and has forgotten this one.", { name: "Make it again", run: () => this.#make() });
      } else {
        this.#notice.failed(error, () => this.#view());
      }
    }
  }

  #verdicts(seen, size) {
    if (size === 0) this.#current.differsAtZero = seen.plain.changed;
    const { plain, smoothed } = seen;
    if (smoothed === null) {
      this.#onlyVerdict(seen, size);
      return;
    }
    const fromTheStart = this.#current.differsAtZero && plain.changed;
    this.#verdict("plain", plain, fromTheStart ? "differs, also without a change" : null);
    this.#verdict("smoothed", smoothed, null);
    // Nothing is proved about the plain retriever, whatever was tried on it.
    if (!plain.changed) pill(byId("plain-pill"), "calm", "open", "not changed by this");
    byId("smoothed").dataset.verdict = smoothed.verdict;
    byId("smoothed-note").textContent = smoothed.verdict === "certified"
      ? `Around this changed picture itself, ${plural(smoothed.samples, "sample")} certify the radius ${radiusText(smoothed.radius ?? Infinity)}.`
      : `Around this changed picture itself, ${plural(smoothed.samples, "sample")} certify nothing.`;
    this.#caption(seen);
    this.#doubt(seen, size < this.#question.radius && smoothed.changed
      ? `Inside the radius, and yet this estimate differs. The proof is about all noise; ${plural(smoothed.samples, "sample")} only estimate it, and near a tie an estimate can fall on the wrong side. The certificate itself is wrong with probability at most ${this.#question.answer.alpha}.`
      : "");
    const inWords = ({ changed, label }, otherwise) => `${changed ? "changed its mind" : otherwise}, ${label}`;
    byId("perturb-announce").textContent = `Size ${size.toFixed(4)}. Plain: ${inWords(plain, "not changed by this")}. Smoothed: ${inWords(smoothed, "holds")}.`;
    byId("verdicts").dataset.size = size;
  }

  // The retriever without noise, where it is the one whose answers are certified.
  #onlyVerdict(seen, size) {
    const { plain } = seen;
    const inside = size < this.#question.radius;
    this.#verdict("plain", plain, null);
    if (!plain.changed && !inside) pill(byId("plain-pill"), "calm", "open", "not changed by this");
    byId("plain-note").textContent = plain.verdict === "certified"
      ? `Around this changed picture itself, the radius ${radiusText(plain.radius ?? Infinity)} is certified.`
      : "Around this changed picture itself, nothing is certified.";
    this.#caption(seen);
    this.#doubt(seen, inside && plain.changed
      ? "Inside the radius, and yet the answer differs. That contradicts the proof: it is a fault of this program or of the machine it runs on."
      : "");
    const words = plain.changed ? "changed its mind" : inside ? "holds" : "not changed by this";
    byId("perturb-announce").textContent = `Size ${size.toFixed(4)}. The retriever: ${words}, ${plain.label}.`;
    byId("verdicts").dataset.size = size;
  }

  #caption({ norm }) {
    const input = this.#about()?.input;
    byId("perturbed-caption").textContent = `As the encoder gets it${input ? `, ${input.height} × ${input.width}` : ""}; l2 change ${norm.toFixed(4)}`;
  }

  // Why what is seen need not agree with what was certified; `words` if the gallery is still the same.
  #doubt({ gallery }, words) {
    const other = gallery !== this.#question.answer.hashes.gallery;
    const doubt = byId("doubt");
    doubt.hidden = !other && words === "";
    doubt.textContent = other
      ? "The gallery has changed since the radius was certified; the proof holds for the gallery before that. Ask again."
      : words;
  }

  #verdict(id, { label, nearest, changed }, otherwise) {
    const card = byId(id);
    card.dataset.changed = String(changed);
    card.dataset.label = label;
    if (changed) pill(byId(`${id}-pill`), "bad", "changed", otherwise ?? "changed its mind");
    else pill(byId(`${id}-pill`), "good", "holds", "holds");
    const frame = byId(`${id}-picture`);
    if (frame.dataset.identity !== nearest.identity) {
      frame.dataset.identity = nearest.identity;
      frame.replaceChildren(thumbnail(nearest.identity, `${nearest.label}, ${nearest.identity}`, nearest.picture));
    }
    byId(`${id}-label`).textContent = label;
    const view = nearest.view ? `, view: ${nearest.view}` : "";
    byId(`${id}-nearest`).textContent = `${nearest.identity}${view}, distance ${nearest.distance.toFixed(4)}`;
  }
}

// Reads a search to its end.
async function finished(response, progress) {
  for await (const { name, value } of events(response)) {
    if (name === "progress") progress(value);
    if (name === "error") throw new Refused(0, value.error);
    if (name === "done") return value;
  }
  throw new ServerGone("the search broke off");
}

// A mark below the track, at a share of it; words near an end of the track grow towards its middle.
function place(mark, share, words) {
  mark.hidden = share === null;
  if (share === null) return;
  mark.style.setProperty("--at", share);
  mark.dataset.side = share > 0.5 ? "left" : "right";
  mark.replaceChildren(element("span", {}, words));
}
