// Reads a stream of server-sent events that came as the answer to a `fetch`.

import { whole } from "./api.js";

// Takes text in pieces that may end anywhere, gives the events that are complete.
export class EventParser {
  #rest = "";
  #name = "";
  #lines = [];

  push(text) {
    this.#rest += text;
    const complete = [];
    for (;;) {
      const end = this.#rest.search(/[\r\n]/);
      if (end < 0) break;
      // A carriage return at the end of a piece may be the first half of a line end.
      if (this.#rest[end] === "\r" && end + 1 === this.#rest.length) break;
      const width = this.#rest[end] === "\r" && this.#rest[end + 1] === "\n" ? 2 : 1;
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(end + width);
      const event = this.#line(line);
      if (event) complete.push(event);
    }
    return complete;
  }

  #line(line) {
    if (line === "") {
      const event = this.#lines.length ? { name: this.#name || "message", text: this.#lines.join("\n") } : null;
      this.#name = "";
      this.#lines = [];
      return event;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.#name = value;
    if (field === "data") this.#lines.push(value);
    return null;
  }
}

// All events of an answer, with their JSON read.
export async function* events(response) {
  const reader = response.body.getReader();
  // The decoder keeps the bytes of a character that is not complete yet.
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { value, done } = await whole(reader.read());
      const text = done ? decoder.decode() : decoder.decode(value, { stream: true });
      for (const event of parser.push(text)) yield { name: event.name, value: JSON.parse(event.text) };
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
