// Small pictures of gallery items, fetched when they come into view.

import { blob, itemPath, isAbort } from "./api.js";
import { element } from "./elements.js";

// Few at once: the browser has few connections, and a question must not wait for pictures.
const AT_ONCE = 3;
const KEPT = 500;

// Pictures of so few pixels are shown as the squares that they are.
export const FEW_PIXELS = 64;

const kept = new Map();
const queue = [];
let running = 0;

const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    observer.unobserve(entry.target);
    load(entry.target);
  }
}, { rootMargin: "200px" });

// A frame that fills itself with the picture of an item.
export function thumbnail(identity, alt, hasPicture = true) {
  const frame = element("span", { class: "thumbnail", "data-identity": identity });
  if (hasPicture) {
    frame.dataset.alt = alt;
    observer.observe(frame);
  } else {
    none(frame);
  }
  return frame;
}

// The picture of an item as it was indexed or added.
export function original(identity) {
  return blob(`${itemPath(identity)}/picture?original=true`);
}

// The picture of an item, small.
function picture(identity) {
  if (!kept.has(identity)) {
    const fetched = inTurn(() => blob(`${itemPath(identity)}/picture`));
    fetched.catch(() => kept.delete(identity));
    kept.set(identity, fetched);
    if (kept.size > KEPT) kept.delete(kept.keys().next().value);
  }
  return kept.get(identity);
}

export function forget(identity) {
  kept.delete(identity);
}

// Shows a picture; its address is given back as soon as it is decoded.
export function show(image, contents) {
  const address = URL.createObjectURL(contents);
  return new Promise((resolve, reject) => {
    image.onload = () => {
      image.classList.toggle("small", image.naturalWidth <= FEW_PIXELS);
      URL.revokeObjectURL(address);
      resolve();
    };
    image.onerror = () => {
      URL.revokeObjectURL(address);
      reject(new Error("the picture does not decode"));
    };
    image.src = address;
  });
}

async function load(frame) {
  try {
    const contents = await picture(frame.dataset.identity);
    const image = element("img", { alt: frame.dataset.alt });
    await show(image, contents);
    frame.replaceChildren(image);
  } catch (error) {
    if (!isAbort(error)) none(frame);
  }
}

function none(frame) {
  frame.classList.add("none");
  frame.replaceChildren("no picture");
}

async function inTurn(work) {
  if (running >= AT_ONCE) await new Promise((resolve) => queue.push(resolve));
  running += 1;
  try {
    return await work();
  } finally {
    running -= 1;
    queue.shift()?.();
  }
}
