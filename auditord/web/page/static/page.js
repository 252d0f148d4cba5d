// What the page does beyond links and forms. Everything is also there without it.
"use strict";

/**
 * Let a button of the legend hide and show its series.
 * @param {HTMLButtonElement} button
 */
function toggleSeries(button) {
  const shown = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", String(shown));
  for (const series of document.querySelectorAll(".chart .series")) {
    if (series.getAttribute("data-series") === button.dataset.toggle) {
      series.classList.toggle("off", !shown);
    }
  }
}

/**
 * Copy a command to the clipboard and say so.
 * @param {HTMLButtonElement} button
 * @returns {Promise<void>}
 */
async function copyLine(button) {
  await navigator.clipboard.writeText(button.dataset.copy ?? "");
  button.textContent = button.dataset.done ?? "";
}

/**
 * The value by which a cell is sorted: a number where it is one.
 * @param {HTMLTableRowElement} row
 * @param {number} column
 * @returns {number | string}
 */
function sortValue(row, column) {
  const text = row.cells[column]?.textContent?.trim() ?? "";
  const number = Number(text.replaceAll(",", ""));
  return text === "" || text === "–" ? -Infinity : Number.isNaN(number) ? text : number;
}

/**
 * Sort a table by a column; once more, the other way round.
 * @param {HTMLTableElement} table
 * @param {HTMLTableCellElement} heading
 */
function sortTable(table, heading) {
  const descending = heading.getAttribute("aria-sort") !== "descending";
  for (const other of table.querySelectorAll("th[aria-sort]")) {
    other.removeAttribute("aria-sort");
  }
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const column = heading.cellIndex;
  const rows = Array.from(body.rows).sort((one, other) => {
    const [first, second] = [sortValue(one, column), sortValue(other, column)];
    const order = typeof first === "number" && typeof second === "number"
      ? first - second : String(first).localeCompare(String(second));
    return descending ? -order : order;
  });
  body.append(...rows);
}

for (const button of /** @type {NodeListOf<HTMLButtonElement>} */ (document.querySelectorAll("[data-toggle]"))) {
  button.addEventListener("click", () => toggleSeries(button));
}
for (const button of /** @type {NodeListOf<HTMLButtonElement>} */ (document.querySelectorAll("[data-copy]"))) {
  if (navigator.clipboard) {
    button.hidden = false;
    button.addEventListener("click", () => void copyLine(button));
  }
}
for (const table of /** @type {NodeListOf<HTMLTableElement>} */ (document.querySelectorAll("table.sortable"))) {
  for (const heading of table.tHead?.rows[0].cells ?? []) {
    const sorter = document.createElement("button");
    sorter.type = "button";
    sorter.className = "sorter";
    sorter.append(...heading.childNodes);
    heading.append(sorter);
    sorter.addEventListener("click", () => sortTable(table, heading));
  }
}
for (const select of /** @type {NodeListOf<HTMLSelectElement>} */ (document.querySelectorAll("form.controls select"))) {
  select.addEventListener("change", () => {
    if (select.name === "period" && select.value) {
      for (const name of ["from", "to"]) {
        const field = select.form?.elements.namedItem(name);
        if (field instanceof HTMLInputElement) field.value = "";
      }
    }
    select.form?.requestSubmit();
  });
}
