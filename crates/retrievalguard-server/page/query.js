// A question: a picture in, neighbours at once, then a certified radius that grows.

import { Refused, ServerGone, api, isAbort } from "./api.js";
import { Chart } from "./chart.js";
import { byId, element, pill } from "./elements.js";
import { events } from "./events.js";
import { Notice } from "./notice.js";
import { bytesText, grouped, plural, radiusText, roundDown, timeText } from "./numbers.js";
import { show, thumbnail } from "./thumbnails.js";

// Seconds between two announcements to a screen reader while the radius grows.
const QUIET = 4;

const DECISIONS = {
  reached: "The target radius is proved.",
  capped: "All samples are drawn, and the target radius is not proved.",
  hopeless: "Stopped early: the target radius is out of reach.",
};

export class Query {
  #about;
  #answered;
  #asked = null;
  #chart = new Chart(byId("answer-chart"));
  #notice = new Notice(byId("query-notice"));
  #announced = 0;

  // `about()` gives what the server says of itself. `answered(question)` is called with the picture and its answer when a
  // question is finished or stopped, and with `null` when another one begins.
  constructor({ about, answered }) {
    this.#about = about;
    this.#answered = answered;
    byId("query-stop").addEventListener("click", () => this.stop());
    byId("query-again").addEventListener("click", () => this.again());
    byId("query-options-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.again();
    });
    this.#takePictures();
  }

  // Defaults and limits, as far as nothing was chosen yet.
  offer({ defaults, limits }) {
    const samples = byId("option-samples");
    const top = byId("option-top");
    top.max = limits.top_k;
    if (limits.samples !== null) {
      samples.max = limits.samples;
      samples.value ||= defaults.samples;
    }
    top.value ||= defaults.top_k;
  }

  // The gallery is another one than that of the answer.
  outdated() {
    if (this.#asked?.answer) {
      this.#notice.say("warn", "The gallery has changed since this answer was given; its certificate holds for the gallery before that.", {
        name: "Ask again",
        run: () => this.again(),
      });
    }
  }

  again() {
    if (this.#asked) this.ask(this.#asked.picture, this.#asked.name);
  }

  stop() {
    const asked = this.#asked;
    if (!asked || asked.finished) return;
    asked.controller.abort();
  }

  async ask(picture, name) {
    const parameters = this.#parameters();
    if (!parameters) return;
    this.#asked?.controller.abort();
    const asked = {
      picture,
      name,
      controller: new AbortController(),
      cap: Number(parameters.get("samples")) || this.#about()?.defaults.samples || 1000,
      target: Number(parameters.get("target_radius")) || null,
      looks: [],
      answer: null,
      finished: false,
      began: performance.now(),
    };
    this.#asked = asked;
    this.#answered(null);
    this.#begin(asked);
    try {
      const response = await api(`v1/query?${parameters}`, {
        method: "POST",
        accept: "text/event-stream",
        body: picture,
        signal: asked.controller.signal,
        waiting: this.#notice.busy(() => this.stop()),
      });
      await this.#read(asked, response);
    } catch (error) {
      if (asked !== this.#asked) return;
      if (isAbort(error)) this.#stopped(asked);
      else this.#broke(asked, error);
    }
  }

  async #read(asked, response) {
    for await (const { name, value } of events(response)) {
      if (asked !== this.#asked) return;
      if (name === "first") this.#first(asked, value);
      if (name === "radius") this.#look(asked, value);
      if (name === "error") throw new Refused(0, value.error);
      if (name === "done") {
        this.#done(asked, value);
        return;
      }
    }
    throw new ServerGone("the answer broke off");
  }

  #parameters() {
    const form = byId("query-options-form");
    if (!form.checkValidity()) {
      byId("query-options").open = true;
      form.reportValidity();
      return null;
    }
    const parameters = new URLSearchParams();
    const noise = [["samples", "option-samples"], ["target_radius", "option-target"]];
    for (const [name, id] of [...(this.#always() ? [] : noise), ["top_k", "option-top"]]) {
      const value = byId(id).value.trim();
      if (value !== "" && !(name === "target_radius" && Number(value) === 0)) parameters.set(name, value);
    }
    return parameters;
  }

  // Whether answers rest on a bound on the encoder: one pass, and no samples.
  #always() {
    return this.#about()?.guarantee === "always";
  }

  #begin(asked) {
    this.#notice.clear();
    byId("query-empty").hidden = true;
    byId("answer").hidden = true;
    byId("query-waiting").hidden = false;
    byId("query-stop").hidden = false;
    byId("query-again").hidden = true;
    byId("drop-zone").dataset.state = "asking";
    byId("query-file-label").textContent = "Choose another";
    byId("query-name").textContent = asked.name;
    this.#state("waiting");
    const image = byId("query-picture");
    image.alt = `The query: ${asked.name}`;
    show(image, asked.picture).then(
      () => { image.hidden = false; },
      () => { image.hidden = true; },
    );
    this.#announce("Asking.", true);
  }

  #first(asked, answer) {
    asked.answer = answer;
    this.#neighbours(answer.items);
    this.#unveil();
    this.#state("growing");
    this.#radius(asked, answer);
    this.#announce(`Nearest: ${answer.candidate_label}. Nothing is proved yet.`, true);
  }

  #look(asked, look) {
    const radius = radiusOf(look);
    const { verdict, label, unbounded, statement, samples } = look;
    asked.answer = { ...asked.answer, verdict, label, radius: look.radius, file_radius: look.file_radius, unbounded, statement, samples };
    if (Number.isFinite(radius)) asked.looks.push([samples, radius]);
    this.#radius(asked, look);
    if (radius > 0) this.#announce(`Certified radius ${radiusText(radius)} after ${grouped(samples)} samples, still growing.`);
  }

  #done(asked, answer) {
    asked.answer = answer;
    const radius = radiusOf(answer);
    const [samples, seen] = asked.looks.at(-1) ?? [0, 0];
    if (Number.isFinite(radius) && (answer.samples > samples || radius > seen)) asked.looks.push([answer.samples, radius]);
    this.#neighbours(answer.items);
    this.#unveil();
    this.#end(asked, "finished");
    this.#radius(asked, answer);
    const remark = DECISIONS[answer.decision] ?? "";
    const abstained = answer.verdict === "abstained" && !this.#always() ? " Abstaining is an answer, not an error: these samples prove no radius. More of them may, in a new attempt." : "";
    this.#remark(remark + abstained);
    this.#announce(
      answer.verdict === "certified"
        ? `Finished. ${answer.label}, certified radius ${radiusText(radius)}${this.#always() ? ", always" : ""}.`
        : `Finished. Abstained: ${answer.candidate_label} is retrieved, but no radius is proved.`,
      true,
    );
    this.#answered({ picture: asked.picture, answer, radius });
  }

  #stopped(asked) {
    this.#notice.clear();
    this.#end(asked, "stopped");
    if (asked.answer) {
      this.#radius(asked, { ...asked.answer, milliseconds: performance.now() - asked.began });
      const proved = radiusOf(asked.answer) > 0;
      this.#remark(proved ? "Stopped. The radius proved until then holds." : "Stopped before anything was proved.");
      this.#announce("Stopped.", true);
      this.#answered({ picture: asked.picture, answer: asked.answer, radius: radiusOf(asked.answer) });
    } else {
      this.#notice.say("calm", "Stopped before the first answer.");
    }
  }

  #broke(asked, error) {
    this.#end(asked, "failed");
    if (error instanceof ServerGone && asked.answer) {
      const proved = radiusOf(asked.answer) > 0;
      this.#notice.say(
        "bad",
        `The connection ended before the answer was finished.${proved ? " The radius proved until then holds." : ""}`,
        { name: "Ask again", run: () => this.again() },
      );
      this.#radius(asked, { ...asked.answer, milliseconds: performance.now() - asked.began });
    } else {
      this.#notice.failed(error, () => this.again());
    }
  }

  #unveil() {
    byId("query-waiting").hidden = true;
    byId("answer").hidden = false;
  }

  #end(asked, state) {
    asked.finished = true;
    byId("query-waiting").hidden = true;
    const had = document.activeElement === byId("query-stop");
    byId("query-stop").hidden = true;
    byId("query-again").hidden = false;
    byId("drop-zone").dataset.state = "asked";
    if (had) byId("query-again").focus();
    this.#state(state);
  }

  #state(state) {
    byId("answer").dataset.state = state;
    byId("answer").setAttribute("aria-busy", String(state === "growing" || state === "waiting"));
    if (state === "waiting") this.#remark("");
  }

  #remark(words) {
    byId("answer-remark").textContent = words.trim();
    byId("answer-remark").hidden = !words.trim();
  }

  #radius(asked, { verdict, label, statement, samples, milliseconds }) {
    const place = byId("answer");
    const growing = !asked.finished;
    const radius = radiusOf(asked.answer);
    const certified = verdict === "certified";
    place.dataset.verdict = verdict;
    place.dataset.radius = radius;
    place.dataset.label = label ?? "";
    const proved = this.#always() ? "certified, always" : "certified";
    if (certified) pill(byId("answer-verdict"), "good", growing ? "growing" : "holds", growing ? "certified, still growing" : proved);
    else if (growing) pill(byId("answer-verdict"), "calm", "growing", "nothing proved yet");
    else pill(byId("answer-verdict"), "calm", "open", asked.finished && place.dataset.state === "finished" ? "abstained" : "nothing proved");
    byId("answer-label-name").textContent = certified ? "retrieved label" : "retrieved label, without a proof";
    byId("answer-label").textContent = label ?? asked.answer.candidate_label;
    const big = byId("answer-radius");
    big.textContent = certified ? radiusText(radius) : growing ? "0.0000" : "no radius";
    big.classList.toggle("none", !certified);
    big.classList.toggle("word", certified ? radius === Infinity : !growing);
    byId("answer-unit").textContent = "certified l2 radius, pixels in [0, 1]";
    byId("answer-scale").textContent = scale(certified, radius, asked.answer.sigma);
    byId("answer-file").textContent = fileRadius(certified, radius, asked.answer.file_radius);
    // An answer also tells how much of its time was waiting.
    const time = timeText(milliseconds.total ?? milliseconds);
    const drawn = growing
      ? `${grouped(samples)} of at most ${plural(asked.cap, "sample")}`
      : `${plural(samples, "sample")} after a pilot of ${grouped(asked.answer.pilot)}`;
    byId("answer-progress").textContent = `${this.#always() ? "one pass of the encoder" : drawn}, ${time}`;
    if (!this.#always()) this.#plain(asked.answer);
    byId("answer-statement").textContent = statement;
    byId("answer-again").textContent = asked.answer.asking_again ?? "";
    if (!this.#always()) this.#chart.show(asked.looks, asked.cap, asked.target);
  }

  // What the encoder without noise says, beside what is proved.
  #plain({ plain, label, candidate_label: candidate }) {
    const place = byId("answer-plain");
    place.dataset.label = plain?.label ?? "";
    if (!plain) {
      place.textContent = "The encoder without noise: unknown, the gallery has no clean embeddings. Index again.";
      return;
    }
    const same = plain.label === (label ?? candidate) ? "the same label" : "another label";
    place.replaceChildren(
      "The encoder without noise retrieves ", element("strong", {}, plain.label), ` (${plain.identity}), ${same}; nothing is proved about that.`,
    );
  }

  #neighbours(items) {
    const list = byId("neighbours");
    const key = JSON.stringify(items);
    if (list.dataset.key === key) return;
    list.dataset.key = key;
    list.replaceChildren(
      ...items.map((item) =>
        element("li", { "data-identity": item.identity, "data-label": item.label },
          thumbnail(item.identity, `${item.label}, ${item.identity}`, item.picture),
          element("span", { class: "item-label" }, item.label),
          element("span", { class: "item-identity", title: item.identity }, item.identity),
          // Which of the item's stored views was nearest.
          ...(item.view ? [element("span", { class: "item-view" }, "view: ", item.view)] : []),
          element("span", { class: "item-distance" }, "distance ", item.distance.toFixed(4)))),
    );
  }

  #announce(words, always = false) {
    const now = performance.now();
    if (!always && now - this.#announced < QUIET * 1000) return;
    this.#announced = now;
    byId("announce").textContent = words;
  }

  #takePictures() {
    const zone = byId("drop-zone");
    const chosen = byId("query-file");
    chosen.addEventListener("change", () => {
      const [file] = chosen.files;
      if (file) this.#given(file);
      // The same file may be chosen once more.
      chosen.value = "";
    });
    // A file that misses the zone must not replace the page; fields for files take theirs themselves.
    const own = (event) => event.target instanceof HTMLInputElement && event.target.type === "file" && event.target !== chosen;
    const carriesFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    document.addEventListener("dragover", (event) => {
      if (own(event) || !carriesFile(event)) return;
      event.preventDefault();
      zone.classList.add("over");
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) zone.classList.remove("over");
    });
    document.addEventListener("drop", (event) => {
      zone.classList.remove("over");
      if (own(event) || !carriesFile(event)) return;
      event.preventDefault();
      this.#given(event.dataTransfer.files[0]);
    });
    document.addEventListener("paste", (event) => {
      if (event.clipboardData?.files.length) {
        event.preventDefault();
        this.#given(event.clipboardData.files[0]);
      }
    });
  }

  async #given(file) {
    if (!file) return;
    const name = file.name || "pasted picture";
    const limit = this.#about()?.limits.body_bytes ?? Infinity;
    if (file.size > limit) {
      this.#notice.say("bad", `The picture ${name} has ${bytesText(file.size)}, the server takes at most ${bytesText(limit)}.`);
      return;
    }
    try {
      // A copy, so that asking again does not depend on the file.
      this.ask(new Blob([await file.arrayBuffer()], { type: file.type }), name);
    } catch {
      this.#notice.say("bad", `The file ${name} cannot be read.`);
    }
  }
}

// What a radius is in sigmas, if there is noise; what it is in grey levels stands below the pictures of it.
function scale(certified, radius, sigma) {
  if (!certified) return "";
  if (radius === Infinity) return "no change of any size changes the answer";
  return sigma === null || sigma === undefined ? "" : `= ${roundDown(radius / sigma, 2)} σ`;
}

// The same radius in the pixels of the file, before resizing.
function fileRadius(certified, radius, file) {
  if (!certified || radius === Infinity || file === undefined) return "";
  if (file === null) return "in the pixels of the file: none, rounding while the picture is resized may use it up";
  return `in the pixels of the file, before resizing: ${radiusText(file)}`;
}

// The proved radius: zero without one, infinite without limit.
function radiusOf(answer) {
  if (answer.verdict !== "certified") return 0;
  return answer.unbounded ? Infinity : answer.radius ?? 0;
}
