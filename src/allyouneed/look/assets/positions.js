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
  const norms = Array.from({ length: rows }, (_, i) => Math.hypot(...table.subarray(i * width, (i + 1) * width)));
  const found = new Float32Array(rows * rows);
  for (let i = 0; i < rows; i++) for (let j = 0; j <= i; j++) {
    let sum = 0;
    for (let d = 0; d < width; d++) sum += table[i * width + d] * table[j * width + d];
    found[i * rows + j] = found[j * rows + i] = sum / (norms[i] * norms[j] || 1);
  }
  return found;
}

const numbered = (count) => Array.from({ length: count }, (_, i) => `${i + 1}`);

/** A figure in a card, with what it says. */
const card = (heading, before, says, file, figure, matrix, ...after) => h("section", { class: "card" },
  h("h2", {}, heading), before, h("p", { class: "says" }, says),
  h("div", { class: "tools" }, h("span", { class: "space" }), saveTools(file, () => figure, matrix)),
  h("div", { class: "scroll" }, figure), after);

class Positions {
  constructor({ shown, store, state, stop }) {
    Object.assign(this, { store, state, stop, all: shown.positions, file: `${shown.run.name}-positions` });
    this.box = h("div", {});
    this.status = h("p", { class: "reading", "data-reading": "" });
  }

  async show() {
    const number = this.state.index("table", this.all.length, 0), one = this.all[number];
    const choice = this.tableChoice(number), [rows, width] = one.table.shape;
    if (!this.store.has(one.table)) return this.box.replaceChildren(tooLarge(choice));
    const table = await this.store.numbers(one.table);
    if (this.stop.aborted) return;
    const similar = cosines(table, rows, width);
    this.status.replaceChildren();
    this.box.replaceChildren(h("div", { class: "pair" }, this.tableCard(one, table, choice),
      one.grid ? this.patchesCard(one, similar) : this.cosinesCard(one, similar)));
  }

  tableChoice(number) {
    const choose = (other, i) => tool(other.path, i === number, () => this.state.set({ table: i }));
    return this.all.length > 1 && h("div", { class: "tools" }, this.all.map(choose));
  }

  /** Say the value of a cell. */
  tell(what, value) {
    this.status.replaceChildren(`${what}: `, h("b", { class: "number" }, value.toFixed(3)));
  }

  tableCard(one, table, choice) {
    const [rows, width] = one.table.shape, names = { rows: numbered(rows), columns: numbered(width) };
    const figure = heat({
      ...names, values: table, scale: table.reduce((most, v) => Math.max(most, Math.abs(v)), 1e-9),
      label: "the table of positions",
      cell: Math.max(2, Math.min(12, 500 / width)), tall: Math.max(2, Math.min(12, 420 / rows)),
      hover: (row, column) => row >= 0
        && this.tell(`position ${row + 1}, dimension ${column + 1}`, table[row * width + column]),
    });
    const says = [SAYS[one.kind], one.all > rows && ` These are the first ${rows} of ${one.all}.`,
      " A row is a position; blue is above zero, orange below."].filter(Boolean);
    return card("The table of positions", choice, says, this.file, figure, () => ({ values: table, ...names }),
      this.status);
  }

  cosinesCard(one, similar) {
    const [rows] = one.table.shape, names = { rows: numbered(rows), columns: numbered(rows) };
    const figure = heat({
      ...names, values: similar, label: "cosines of the positions", cell: Math.max(2, Math.min(30, 420 / rows)),
      hover: (row, column) => row >= 0
        && this.tell(`positions ${row + 1} and ${column + 1}`, similar[row * rows + column]),
    });
    return card("How alike any two positions are", null,
      "The cosine of the vectors of two positions: 1 is the same direction.",
      `${this.file}-cosines`, figure, () => ({ values: similar, ...names }));
  }

  /** The similarity of one patch with all others, over the grid of the image. Row 0 of the table is [CLS]. */
  patchesCard({ grid, table }, similar) {
    const [rows] = table.shape, from = Math.max(1, this.state.index("patch", rows));
    const picked = [Math.floor((from - 1) / grid), (from - 1) % grid];
    const where = `row ${picked[0] + 1}, column ${picked[1] + 1}`;
    const values = similar.subarray(from * rows + 1, (from + 1) * rows);
    const figure = heat({
      rows: numbered(grid), columns: numbered(grid), values, words: Array.from(values, (v) => v.toFixed(2)),
      label: "similarity of the positions of patches", cell: Math.min(46, 380 / grid), picked,
      hover: (row) => row >= 0 && this.status.replaceChildren(`similarity with the patch in ${where}`),
      pick: (row, column) => this.state.set({ patch: 1 + row * grid + column }),
    });
    return card("How alike a patch is to all others", null,
      "The cosine of the position of one patch with those of all others, where they are. Choose another.",
      `${this.file}-cosines`, figure,
      () => ({ values: similar, rows: numbered(rows), columns: numbered(rows) }));
  }
}

const tooLarge = (choice) => h("section", { class: "card" }, choice,
  h("p", { class: "note" }, "The table of positions is too large for this page; the live page shows it."));

export function draw(root, context) {
  const { state, stop } = context, positions = new Positions(context);
  state.on((changes) => ("table" in changes || "patch" in changes) && positions.show(), stop);
  root.append(positions.box);
  return positions.show();
}
