// A radius one can see: the picture, the same changed by its certified radius, and the change enlarged.

import { isAbort, json } from "./api.js";
import { byId } from "./elements.js";
import { radiusText } from "./numbers.js";
import { FEW_PIXELS } from "./thumbnails.js";

const PICTURES = ["original", "changed", "change"];

export class Visible {
  #asking = null;

  // A question with its answer, or `null` while there is none.
  async offer(question) {
    this.#asking?.abort();
    const place = byId("visible");
    place.hidden = true;
    place.dataset.radius = "";
    if (!question || !(question.radius > 0) || question.radius === Infinity) return;
    const controller = new AbortController();
    this.#asking = controller;
    try {
      const seen = await json(`v1/visible-radius?radius=${question.radius}`, {
        method: "POST",
        body: question.picture,
        signal: controller.signal,
      });
      if (controller !== this.#asking) return;
      await Promise.all(PICTURES.map((name) => this.#draw(byId(`visible-${name}`), seen[name])));
      if (controller !== this.#asking) return;
      byId("visible-words").textContent = seen.words;
      byId("visible-changed-caption").textContent = `changed by the radius, ‖δ‖₂ = ${radiusText(seen.radius)}`;
      byId("visible-change-caption").textContent = `the change alone, enlarged ${seen.times} times`;
      place.dataset.radius = seen.radius;
      place.hidden = false;
    } catch (error) {
      // The answer stands without its pictures.
      if (!isAbort(error)) place.hidden = true;
    }
  }

  #draw(image, address) {
    return new Promise((resolve, reject) => {
      image.onload = () => {
        image.classList.toggle("small", image.naturalWidth <= FEW_PIXELS);
        resolve();
      };
      image.onerror = () => reject(new Error("the picture does not decode"));
      image.src = address;
    });
  }
}
