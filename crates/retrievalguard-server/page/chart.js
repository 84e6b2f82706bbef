// Certified radius against samples, as a curve of steps.

import { svg } from "./elements.js";
import { grouped, niceStep, radiusText } from "./numbers.js";

const HEIGHT = 190;
const EDGE = { left: 44, right: 14, top: 12, bottom: 30 };

export class Chart {
  #place;
  #shown = { looks: [], cap: 1, target: null };

  constructor(place) {
    this.#place = place;
    new ResizeObserver(() => this.#draw()).observe(place);
  }

  // `looks` are pairs of samples and radius, in order.
  show(looks, cap, target) {
    this.#shown = { looks: [...looks], cap, target };
    this.#draw();
  }

  #draw() {
    const { looks, cap, target } = this.#shown;
    const width = Math.max(this.#place.clientWidth, 200);
    const [samples, radius] = looks.at(-1) ?? [0, 0];
    const top = Math.max(radius * 1.2, (target ?? 0) * 1.1) || 0.1;
    const end = Math.max(cap, samples);
    const x = (value) => EDGE.left + (value / end) * (width - EDGE.left - EDGE.right);
    const y = (value) => HEIGHT - EDGE.bottom - (value / top) * (HEIGHT - EDGE.top - EDGE.bottom);
    const words = `Certified radius against samples: ${radius > 0 ? radiusText(radius) : "none"} after ${grouped(samples)} of ${grouped(cap)} samples`;
    const parts = [];
    const step = niceStep(top / 4);
    const digits = Math.max(0, -Math.floor(Math.log10(step)));
    for (let tick = 0; tick * step <= top; tick += 1) {
      const at = y(tick * step);
      parts.push(svg("line", { class: tick === 0 ? "axis" : "grid", x1: EDGE.left, x2: width - EDGE.right, y1: at, y2: at }));
      parts.push(svg("text", { x: EDGE.left - 8, y: at + 4, "text-anchor": "end" }, (tick * step).toFixed(digits)));
    }
    const across = niceStep(end / (width > 380 ? 5 : 2));
    for (let tick = 0; tick * across <= end; tick += 1) {
      const anchor = tick === 0 ? "start" : x(tick * across) > width - 30 ? "end" : "middle";
      const at = anchor === "end" ? width - EDGE.right : x(tick * across);
      parts.push(svg("text", { x: at, y: HEIGHT - EDGE.bottom + 18, "text-anchor": anchor }, grouped(tick * across)));
    }
    if (target) {
      parts.push(svg("line", { class: "target", x1: EDGE.left, x2: width - EDGE.right, y1: y(target), y2: y(target) }));
      parts.push(svg("text", { class: "target-name", x: width - EDGE.right, y: y(target) - 5, "text-anchor": "end" }, "target"));
    }
    if (looks.length) {
      let line = `M${x(0)} ${y(0)}`;
      for (const [at, height] of looks) line += `H${x(at)}V${y(height)}`;
      parts.push(svg("path", { class: "area", d: `${line}V${y(0)}Z` }));
      parts.push(svg("path", { class: "line", d: line }));
      parts.push(svg("circle", { class: "now", cx: x(samples), cy: y(radius), r: 3.5 }));
    }
    this.#place.replaceChildren(
      svg("svg", { role: "img", "aria-label": words, width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` }, ...parts),
    );
  }
}
