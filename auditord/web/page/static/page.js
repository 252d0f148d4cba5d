// Optional enhancements of the page, which works without this script.
"use strict";

/**
 * Toggle a series with its button in the legend.
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
 * Download one of our pictures as PNG, for programs that cannot read SVG; twice as large, for print.
 * @param {HTMLButtonElement} button
 * @returns {Promise<void>}
 */
async function savePicture(button) {
  const image = new Image();
  image.src = button.dataset.picture ?? "";
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * image.naturalWidth, 2 * image.naturalHeight];
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((content) => {
    if (content === null) return;
    const link = document.createElement("a");
    [link.href, link.download] = [URL.createObjectURL(content), "usage.png"];
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  });
}

/**
 * Return the value by which a cell is sorted: a number if it is one.
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
 * Sort a table by a column, descending at first; each further call reverses the order. The sum of other rows stays last.
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
  body.append(...rows.filter((row) => !("rest" in row.dataset)), ...rows.filter((row) => "rest" in row.dataset));
}

/**
 * Let visitors select a range of a chart's bins with a mouse or a pen, and open the view of its days.
 * @param {SVGSVGElement} chart
 */
function chooseRange(chart) {
  const days = (chart.dataset.days ?? "").split(" ");
  const [left, width, top, height] = (chart.dataset.plot ?? "").split(" ").map(Number);
  const choice = document.createElementNS(chart.namespaceURI ?? "", "rect");
  choice.setAttribute("class", "choice");
  let begun = -1;
  let moved = false;

  /** @param {PointerEvent} event @returns {number} */
  const binAt = (event) => {
    const box = chart.getBoundingClientRect();
    const x = (event.clientX - box.left) / box.width * chart.viewBox.baseVal.width;
    return Math.min(Math.max(Math.floor((x - left) / width * (days.length - 1)), 0), days.length - 2);
  };
  /** @param {number} one @param {number} other */
  const show = (one, other) => {
    const wide = width / (days.length - 1);
    choice.setAttribute("x", String(left + Math.min(one, other) * wide));
    choice.setAttribute("width", String((Math.abs(one - other) + 1) * wide));
    choice.setAttribute("y", String(top));
    choice.setAttribute("height", String(height));
    chart.append(choice);
  };
  chart.addEventListener("dragstart", (event) => event.preventDefault());
  chart.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.pointerType !== "touch") [begun, moved] = [binAt(event), false];
  });
  chart.addEventListener("pointermove", (event) => {
    if (begun < 0 || (!moved && binAt(event) === begun)) return;
    moved = true;
    show(begun, binAt(event));
  });
  chart.addEventListener("click", (event) => { if (moved) event.preventDefault(); }, true);
  document.addEventListener("pointerup", (event) => {
    if (begun < 0) return;
    const [first, last] = [begun, binAt(event)].sort((one, other) => one - other);
    begun = -1;
    choice.remove();
    if (!moved) return;
    const url = new URL(location.href);
    const end = new Date(Date.parse(days[last + 1]) - 86_400_000);
    for (const name of ["period", "bin"]) url.searchParams.delete(name);
    url.searchParams.set("from", days[first]);
    url.searchParams.set("to", end.toISOString().slice(0, 10));
    location.assign(url);
  });
}

/** Fill in the token of a login link, and remove it from the address and the history. The person submits the form. */
function fillInToken() {
  const field = /** @type {HTMLInputElement | null} */ (document.querySelector("input[name=token]"));
  const token = /^#token=([\w.-]+)$/.exec(location.hash)?.[1];
  if (field === null || token === undefined) return;
  field.value = token;
  history.replaceState(null, "", location.pathname + location.search);
}

addEventListener("hashchange", fillInToken);
fillInToken();

/**
 * Suggest the values of a label that contain the text of a field.
 * @param {HTMLInputElement} field
 * @returns {Promise<void>}
 */
async function suggestValues(field) {
  const named = field.form?.elements.namedItem("label_key");
  const label = field.dataset.label ?? (named instanceof HTMLInputElement ? named.value : "");
  const text = field.value;
  if (!label) return;
  const asked = new URLSearchParams(text ? { label, text } : { label });
  const answer = await fetch(`${field.dataset.suggest}?${asked}`);
  if (!answer.ok || field.value !== text) return;
  /** @type {string[]} */
  const values = await answer.json();
  field.list?.replaceChildren(...values.map((value) => Object.assign(document.createElement("option"), { value })));
}

for (const field of /** @type {NodeListOf<HTMLInputElement>} */ (document.querySelectorAll("[data-suggest]"))) {
  let timer = 0;
  for (const event of ["input", "focus"]) {
    field.addEventListener(event, () => {
      clearTimeout(timer);
      timer = setTimeout(() => void suggestValues(field), 200);
    });
  }
}
for (const chart of /** @type {NodeListOf<SVGSVGElement>} */ (document.querySelectorAll(".chart[data-days]"))) {
  chooseRange(chart);
}
for (const hint of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-needs-script]"))) {
  hint.hidden = matchMedia("(hover: none)").matches;
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
for (const button of /** @type {NodeListOf<HTMLButtonElement>} */ (document.querySelectorAll("[data-picture]"))) {
  button.hidden = false;
  button.addEventListener("click", () => void savePicture(button));
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
for (const select of /** @type {NodeListOf<HTMLSelectElement>} */ (document.querySelectorAll("form.controls select:not([data-waits])"))) {
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
