"use strict";
(() => {
  const table = document.getElementById("query-table");
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const original = [...body.rows];
  const words = new Intl.Collator("en", { numeric: true });
  headings.forEach((heading, column) => {
    const button = heading.querySelector("button");
    const value = (row) => row.cells[column].dataset.sort;
    const compare = heading.dataset.kind === "number"
      ? (one, other) => Number(value(one)) - Number(value(other))
      : (one, other) => words.compare(value(one), value(other));
    button.disabled = false;
    button.addEventListener("click", () => {
      // Numbers are wanted largest first, words from the beginning of the alphabet.
      const first = heading.dataset.kind === "number" ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = heading.getAttribute("aria-sort") === first ? other : first;
      headings.forEach((each) => each.setAttribute("aria-sort", each === heading ? order : "none"));
      const sign = order === "ascending" ? 1 : -1;
      body.append(...[...original].sort((one, two) => sign * compare(one, two)));
    });
  });
})();
