// Browsing, adding to and removing from the gallery.

import { isAbort, itemPath, json } from "./api.js";
import { byId, element, icon } from "./elements.js";
import { Notice } from "./notice.js";
import { bytesText, grouped } from "./numbers.js";
import { forget, original, thumbnail } from "./thumbnails.js";

const PAGE = 50;

export class Gallery {
  #about;
  #useAsQuery;
  #changed;
  #offset = 0;
  #loading = null;
  #notice = new Notice(byId("gallery-notice"));

  // `useAsQuery(picture, name)` asks with a picture, `changed()` is called after the gallery was written to.
  constructor({ about, useAsQuery, changed }) {
    this.#about = about;
    this.#useAsQuery = useAsQuery;
    this.#changed = changed;
    byId("gallery-label").addEventListener("change", () => this.#goTo(0));
    byId("gallery-previous").addEventListener("click", () => this.#goTo(this.#offset - PAGE));
    byId("gallery-next").addEventListener("click", () => this.#goTo(this.#offset + PAGE));
    byId("gallery-add-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#add();
    });
    byId("remove-no").addEventListener("click", () => byId("remove-dialog").close());
  }

  // Everything anew.
  async load() {
    byId("gallery-add").hidden = !this.#about().may_write;
    byId("gallery-read-only").hidden = !this.#about().gallery.read_only;
    try {
      this.#offerLabels((await json("v1/labels")).labels);
    } catch (error) {
      this.#notice.failed(error, () => this.load());
      return;
    }
    await this.#goTo(this.#offset);
  }

  #offerLabels(labels) {
    const select = byId("gallery-label");
    const chosen = select.value;
    const options = labels.map(({ label, items }) => element("option", { value: label }, `${label} (${grouped(items)})`));
    select.replaceChildren(element("option", { value: "" }, "all labels"), ...options);
    select.value = labels.some(({ label }) => label === chosen) ? chosen : "";
    byId("known-labels").replaceChildren(...labels.map(({ label }) => element("option", { value: label })));
  }

  async #goTo(offset) {
    this.#loading?.abort();
    const controller = new AbortController();
    this.#loading = controller;
    const parameters = new URLSearchParams({ offset: Math.max(offset, 0), limit: PAGE });
    const label = byId("gallery-label").value;
    if (label) parameters.set("label", label);
    try {
      const page = await json(`v1/items?${parameters}`, { signal: controller.signal, waiting: this.#notice.busy(() => controller.abort()) });
      // The last item of the last page may have been removed.
      if (!page.items.length && page.offset > 0) {
        await this.#goTo(page.offset - PAGE);
        return;
      }
      this.#show(page);
    } catch (error) {
      if (!isAbort(error)) this.#notice.failed(error, () => this.#goTo(offset));
    }
  }

  #show({ total, offset, items }) {
    if (byId("gallery-notice").dataset.tone === "bad") this.#notice.clear();
    this.#offset = offset;
    const end = offset + items.length;
    const previous = byId("gallery-previous");
    const next = byId("gallery-next");
    const focused = document.activeElement;
    previous.disabled = offset === 0;
    next.disabled = end >= total;
    // A button that has just become useless must not swallow the focus.
    if (focused === previous && previous.disabled) next.focus();
    if (focused === next && next.disabled) previous.focus();
    const place = byId("gallery-place");
    place.dataset.total = total;
    place.dataset.offset = offset;
    place.textContent = total === 0 ? "no items" : `${grouped(offset + 1)}–${grouped(end)} of ${grouped(total)}`;
    byId("gallery-items").replaceChildren(...items.map((item) => this.#item(item)));
  }

  #item(item) {
    const { identity, label } = item;
    const actions = element("span", { class: "item-actions" });
    if (item.picture) {
      const use = element("button", { type: "button", class: "link", "data-use": identity, "aria-label": `use as query: ${identity}` }, "use as query");
      use.addEventListener("click", () => this.#use(identity));
      actions.append(use);
    }
    if (this.#about().may_write) {
      const remove = element("button", { type: "button", class: "link remove", "data-remove": identity, "aria-label": `remove ${identity}`, title: "remove" }, icon("remove"));
      remove.addEventListener("click", () => this.#confirm(item));
      actions.append(remove);
    }
    return element("li", { "data-identity": identity, "data-label": label },
      thumbnail(identity, `${label}, ${identity}`, item.picture),
      element("span", { class: "item-label", title: label }, label),
      element("span", { class: "item-identity", title: identity }, identity),
      actions);
  }

  async #use(identity) {
    try {
      const found = await original(identity);
      byId("main").scrollIntoView();
      byId("query-file").focus({ preventScroll: true });
      this.#useAsQuery(found, identity);
    } catch (error) {
      this.#notice.failed(error, () => this.#use(identity));
    }
  }

  #confirm({ identity, label }) {
    const dialog = byId("remove-dialog");
    byId("remove-text").replaceChildren("The item ", element("strong", {}, identity), ` with the label “${label}” leaves the gallery. Earlier certificates hold for the gallery with it.`);
    byId("remove-yes").onclick = () => {
      dialog.close();
      this.#remove(identity);
    };
    dialog.showModal();
  }

  async #remove(identity) {
    try {
      await json(itemPath(identity), { method: "DELETE", waiting: this.#notice.busy(() => {}) });
      forget(identity);
      this.#notice.say("calm", `Removed ${identity}.`);
      await this.#written();
    } catch (error) {
      this.#notice.failed(error, () => this.#remove(identity));
    }
  }

  async #add() {
    const [file] = byId("add-file").files;
    const label = byId("add-label").value.trim();
    const identity = byId("add-identity").value.trim();
    const limit = this.#about().limits.body_bytes;
    if (file.size > limit) {
      this.#notice.say("bad", `The picture has ${bytesText(file.size)}, the server takes at most ${bytesText(limit)}.`);
      return;
    }
    const parameters = new URLSearchParams({ label });
    if (identity) parameters.set("identity", identity);
    const controller = new AbortController();
    byId("add-send").disabled = true;
    try {
      const made = await json(`v1/items?${parameters}`, {
        method: "POST",
        body: file,
        signal: controller.signal,
        waiting: this.#notice.busy(() => controller.abort()),
      });
      forget(made.identity);
      byId("gallery-add-form").reset();
      this.#notice.say("calm", `Added ${made.identity} with the label “${made.label}”.`);
      await this.#written();
    } catch (error) {
      if (!isAbort(error)) this.#notice.failed(error, () => this.#add());
    } finally {
      byId("add-send").disabled = false;
    }
  }

  async #written() {
    await this.#changed();
    await this.load();
  }
}
