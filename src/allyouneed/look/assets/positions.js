// The positions: their table, and how alike any two of them are.

import { h, tool } from "look/draw.js";
import { heat } from "look/heat.js";
import { saveTools } from "look/save.js";

export const name = "positions";
export const title = "Positions";
export const has = (shown) => shown.positions?.length > 0;

const SAYS = {
  learned: "A learned vector for each position, which is added to the vector of the token.",
  sinusoidal: "Each position is a row of sines and cosines, from fast waves to slow ones, which is added to the vector "
    + "of the token.",
  rotary: "Rotary: queries and keys are turned by an angle that grows with the position. The left half are the cosines "
    + "of the angles, the right half their sines; a column is a plane.",
};

/** Rows (N x D) -> their cosines (N x N). */
export function cosines(table, rows, width) {
  const norms = Array.from({ length: rows }, (_, i) => Math.hypot(...table.subarray(i * width, (i + 1) * width))),
    found = new Float32Array(rows * rows);
  for (let i = 0; i < rows; i++) for (let j = 0; j <= i; j++) {
    let sum = 0;
    for (let d = 0; d < width; d++) sum += table[i * width + d] * table[j * width + d];
    found[i * rows + j] = found[j * rows + i] = sum / (norms[i] * norms[j] || 1);
  }
  return found;
}

/** The similarity of one patch with all others, over the grid of the image. */
function overGrid(similar, rows, grid, from, pick) {
  const values = similar.subarray(from * rows + 1, (from + 1) * rows),
    names = Array.from({ length: grid }, (_, i) => `${i + 1}`);
  return heat({ rows: names, columns: names, values, words: Array.from(values, (v) => v.toFixed(2)),
    label: "similarity of the positions of patches", cell: Math.min(46, 380 / grid),
    picked: [Math.floor((from - 1) / grid), (from - 1) % grid], pick: (row, column) => pick(1 + row * grid + column) });
}

export function draw(root, { shown, store, state, stop }) {
  const box = h("div", {});
  const show = async () => {
    const number = Math.max(0, state.index("table", shown.positions.length)), one = shown.positions[number],
      [rows, width] = one.table.shape;
    const choose = shown.positions.length > 1 && h("div", { class: "tools" },
      shown.positions.map((other, i) => tool(other.path, i === number, () => state.set({ table: i }))));
    if (!store.has(one.table)) return box.replaceChildren(h("section", { class: "card" }, choose,
      h("p", { class: "note" }, "The table of positions is too large for this page; the live page shows it.")));
    const table = await store.numbers(one.table);
    if (stop.aborted) return;
    const names = (count) => Array.from({ length: count }, (_, i) => `${i + 1}`), similar = cosines(table, rows, width),
      scale = table.reduce((most, v) => Math.max(most, Math.abs(v)), 1e-9);
    const status = h("p", { class: "reading", "data-reading": "" });
    const tell = (what, unit, value) => status.replaceChildren(`${what}: `,
      h("b", { class: "number" }, value.toFixed(3)), unit);
    const left = heat({ rows: names(rows), columns: names(width), values: table, scale, label: "the table of positions",
      cell: Math.max(2, Math.min(12, 500 / width)), tall: Math.max(2, Math.min(12, 420 / rows)),
      hover: (row, column) => row >= 0 && tell(`position ${row + 1}, dimension ${column + 1}`, "",
      table[row * width + column]) });
    const patch = one.grid ? Math.max(1, state.index("patch", rows)) : -1;
    const right = one.grid
      ? overGrid(similar, rows, one.grid, patch, (from) => state.set({ patch: from }))
      : heat({ rows: names(rows), columns: names(rows), values: similar, label: "cosines of the positions",
        cell: Math.max(2, Math.min(30, 420 / rows)), hover: (row, column) => row >= 0
        && tell(`positions ${row + 1} and ${column + 1}`, "", similar[row * rows + column]) });
    if (one.grid) right.addEventListener("mousemove", () => { const here = right.querySelector(".here");
    if (here) status.textContent =
      `similarity with the patch in row ${Math.ceil(patch / one.grid)}, column ${((patch - 1) % one.grid) + 1}`; });
    box.replaceChildren(h("div", { class: "pair" },
      h("section", { class: "card" }, h("h2", {}, "The table of positions"), choose,
        h("p", { class: "says" }, SAYS[one.kind], one.all > rows ? ` These are the first ${rows} of ${one.all}.` : "",
          " A row is a position; blue is above zero, orange below."),
        h("div", { class: "tools" }, h("span", { class: "space" }), saveTools(`${shown.run.name}-positions`, () => left,
          () => ({ values: table, rows: names(rows), columns: names(width) }))),
        h("div", { class: "scroll" }, left), status),
      h("section", { class: "card" }, h("h2", {}, one.grid ? "How alike a patch is to all others"
        : "How alike any two positions are"),
        h("p", { class: "says" },
          one.grid ? "The cosine of the position of one patch with those of all others, where they are. Choose another."
            : "The cosine of the vectors of two positions: 1 is the same direction."),
        h("div", { class: "tools" }, h("span", { class: "space" }), saveTools(`${shown.run.name}-positions-cosines`,
          () => right, () => ({ values: similar, rows: names(rows), columns: names(rows) }))),
        h("div", { class: "scroll" }, right))));
  };
  state.on((changes) => ("table" in changes || "patch" in changes) && show(), stop);
  root.append(box);
  return show();
}
