"use strict";
const table = document.getElementById("case-table");
const rows = [...table.tBodies[0].rows];
const marked = [...document.querySelectorAll("[data-i]")];
const groups = [...document.querySelectorAll(".group")];
const filter = document.getElementById("filter");
const buttons = [...document.querySelectorAll("button[data-status]")];
const texts = rows.map(textOf);
// A page can have a table per model: those with the same columns are filtered together.
const heads = table.tHead.textContent;
const further = [...document.querySelectorAll("table.cards")].filter((one) => one !== table && one.tHead?.textContent === heads);
const furtherRows = further.flatMap((one) => [...one.tBodies[0].rows]);

function textOf(row) {
  return [row.cells[0].title, row.cells[1].textContent, row.cells[2].textContent, row.dataset.status].join(" ").toLowerCase();
}

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = Number.parseFloat(text);
  return { row, text, number: Number.isNaN(number) ? -Infinity : number };
}

function sortBy(column, ascending) {
  const numeric = table.tHead.rows[0].cells[column].classList.contains("n");
  const order = new Intl.Collator("en", { numeric: true });
  const ordered = rows
    .map((row) => valueOf(row, column))
    .sort((a, b) => (numeric ? a.number - b.number : order.compare(a.text, b.text)));
  if (!ascending) ordered.reverse();
  table.tBodies[0].append(...ordered.map(({ row }) => row));
}

function applyFilter() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const statuses = buttons.filter((one) => one.ariaPressed === "true").map((one) => one.dataset.status);
  const found = new Set();
  rows.forEach((row, i) => {
    const wanted = !statuses.length || statuses.includes(row.dataset.status);
    if (wanted && words.every((word) => texts[i].includes(word))) found.add(row.dataset.i);
  });
  for (const row of furtherRows) row.classList.toggle("out", !words.every((word) => textOf(row).includes(word)));
  for (const one of marked) one.classList.toggle("out", !found.has(one.dataset.i));
  for (const one of groups) {
    const own = [...one.querySelectorAll("[data-i]")];
    one.hidden = own.length > 0 && own.every((item) => item.classList.contains("out"));
  }
  const shown = found.size + furtherRows.filter((row) => !row.classList.contains("out")).length;
  const all = rows.length + furtherRows.length;
  document.getElementById("shown").textContent = shown < all ? `${shown} of ${all} shown` : "";
}

// With scripts on, a browser keeps <noscript> as text: a thousand cases cost nothing until one is opened.
function fill(details) {
  const content = details.querySelector(":scope > div > noscript");
  if (content) content.parentElement.innerHTML = content.textContent;
}

function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  const details = target?.closest("details");
  if (!details) return;
  fill(details);
  details.open = true;
  details.scrollIntoView();
}

[...table.tHead.rows[0].cells].forEach((head, column) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    sortBy(column, ascending);
  });
});
for (const button of buttons)
  button.addEventListener("click", () => {
    button.ariaPressed = String(button.ariaPressed !== "true");
    applyFilter();
  });
document.addEventListener("toggle", (event) => fill(event.target), true);
document.querySelector(".tools").hidden = false;
filter.addEventListener("input", applyFilter);
addEventListener("hashchange", openTarget);
openTarget();
