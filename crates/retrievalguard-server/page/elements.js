// Making elements: text only ever becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  holds: "M3 8.5 6.5 12 13 4.5",
  changed: "M4 4 12 12 M12 4 4 12",
  open: "M3.5 8H12.5",
  growing: "M3 12.5 8 7.5 10.5 10 13.5 4.5",
  copy: "M5.5 5.5V2.5H13.5V10.5H10.5 M2.5 5.5H10.5V13.5H2.5Z",
  remove: "M2.5 4.5H13.5 M6 4.5V2.5H10V4.5 M4 4.5 4.7 13.5H11.3L12 4.5",
};

export const byId = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  set(made, attributes);
  made.append(...children);
  return made;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  set(made, attributes);
  made.append(...children);
  return made;
}

function set(made, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
}

// A small drawing that says nothing by itself: words stand beside it.
export function icon(name) {
  return svg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, svg("path", { d: ICONS[name] }));
}

// Words with an icon, in one of the tones `good`, `bad` and `calm`.
export function pill(place, tone, iconName, words) {
  place.className = `pill ${tone}`;
  place.replaceChildren(icon(iconName), words);
}
