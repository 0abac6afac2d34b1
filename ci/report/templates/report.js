"use strict";
const table = document.getElementById("case-table");
const body = table.tBodies[0];
const rows = [...body.rows];

function valueOf(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  const number = Number.parseFloat(text);
  return { text, number: Number.isNaN(number) ? -Infinity : number };
}

function sortBy(column, ascending) {
  const numeric = table.tHead.rows[0].cells[column].classList.contains("n");
  const ordered = rows
    .map((row) => ({ row, key: valueOf(row, column) }))
    .sort((a, b) =>
      numeric ? a.key.number - b.key.number : a.key.text.localeCompare(b.key.text, "en", { numeric: true }),
    );
  if (!ascending) ordered.reverse();
  body.append(...ordered.map(({ row }) => row));
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

const filter = document.getElementById("filter");
filter.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const text = [0, 1, 2, 3].map((i) => row.cells[i].textContent).join(" ").toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    shown += row.hidden ? 0 : 1;
  }
  document.getElementById("shown").textContent = words.length ? `${shown} of ${rows.length} shown` : "";
});
