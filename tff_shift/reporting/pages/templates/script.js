"use strict";
for (const element of document.querySelectorAll("[data-needs-script]")) {
  element.hidden = false;
}

// Sorting: a button in the head of a column; what has no number stays last.
function valueOf(row, column) {
  const text = row.cells[column].dataset.sort;
  const number = Number(text);
  return text === "" || Number.isNaN(number) ? text : number;
}
function sortBy(button) {
  const head = button.closest("th");
  const table = head.closest("table");
  const column = head.cellIndex;
  const direction = head.ariaSort === "ascending" ? "descending" : "ascending";
  for (const other of table.querySelectorAll("th[aria-sort]")) {
    other.ariaSort = "none";
  }
  head.ariaSort = direction;
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => {
    const [a, b] = [valueOf(one, column), valueOf(other, column)];
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b));
  });
  table.tBodies[0].append(...rows);
}
for (const button of document.querySelectorAll("button.sort")) {
  // The whole cell is the target; clicks and keys of the button reach it too.
  button.closest("th").addEventListener("click", () => sortBy(button));
}

// Filtering: all words in a cell's method and column; its state.
const words = document.getElementById("filter-text");
const state = document.getElementById("filter-state");
function filter() {
  const wanted = words.value.toLowerCase().split(/\s+/);
  const shown = new Set();
  let count = 0;
  for (const row of document.querySelectorAll("#cells tbody tr")) {
    const fits =
      wanted.every((word) => row.dataset.text.toLowerCase().includes(word)) &&
      (state.value === "" || row.dataset.state === state.value);
    row.hidden = !fits;
    if (fits) {
      count += 1;
      shown.add(row.dataset.row);
    }
  }
  for (const row of document.querySelectorAll("#matrix tbody tr")) {
    row.hidden = !shown.has(row.dataset.row);
  }
  document.getElementById("filter-count").textContent =
    count === 1 ? "1 cell" : `${count} cells`;
}
if (words) {
  words.addEventListener("input", filter);
  state.addEventListener("change", filter);
  filter();
}

// Copying, also where the clipboard is not to be had otherwise.
async function copy(button) {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    document.execCommand("copy");
  }
  button.textContent = "Copied";
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", () => copy(button));
}

// The legend shows and hides a method in all figures.
for (const box of document.querySelectorAll(".legend input")) {
  box.addEventListener("change", () => {
    const same = `.legend input[value="${box.value}"]`;
    for (const each of document.querySelectorAll(same)) {
      each.checked = box.checked;
    }
    const lines = document.querySelectorAll(`g[data-row="${box.value}"]`);
    for (const line of lines) line.style.display = box.checked ? "" : "none";
  });
}

// Paper cannot be opened.
const closed = new Set();
addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details.open-in-print")) {
    if (!each.open) closed.add(each);
    each.open = true;
  }
});
addEventListener("afterprint", () => {
  for (const each of closed) each.open = false;
  closed.clear();
});
