// What each layer would say: the head of the run reads the output of every layer.

import { h, ranking, say, short, visible } from "look/draw.js";
import { heat } from "look/heat.js";
import { saveTools } from "look/save.js";

export const name = "lens";
export const title = "What each layer would say";
export const has = (shown) => Boolean(shown.lens);

const LETTERS = 10; // of a word in a cell, at most

/** The words of each layer at each token; a row is a layer, the last layer first. */
class Lens {
  constructor({ shown: { lens, run }, state }, p, words) {
    Object.assign(this, { lens, state, p, words, file: `${run.name}-lens` });
    [this.layers, this.size, this.most] = lens.p.shape;
    this.names = [...lens.layers].reverse();
    this.values = this.best(p);
    this.read = h("div", { "aria-live": "polite" });
    this.figure = this.drawFigure();
  }

  /** Where the words of a cell begin. */
  at(row, column) {
    return this.most * ((this.layers - 1 - row) * this.size + column);
  }

  /** The first of the list of each cell, row by row. */
  best(list) {
    return Array.from({ length: this.layers * this.size },
      (_, cell) => list[this.at(Math.floor(cell / this.size), cell % this.size)]);
  }

  /** The cell that is chosen: first the one at [MASK], else at the last token. */
  get chosen() {
    const masked = this.lens.tokens.indexOf("[MASK]"), usual = masked < 0 ? this.size - 1 : masked;
    return [this.state.index("row", this.layers, 0), this.state.index("column", this.size, usual)];
  }

  drawFigure() {
    const { lens, names, values, words } = this;
    const said = this.best(words).map((word) => short(visible(word), LETTERS));
    return heat({
      rows: names, columns: lens.tokens.map((token) => short(visible(token), LETTERS)), values, words: said,
      cell: 92, tall: 30, label: "the likely word of each layer at each token", picked: this.chosen,
      hover: (row, column) => this.tell(row, column),
      pick: (row, column) => {
        this.state.set({ row, column });
        say(`${names[row]}: ${said[row * this.size + column]}`);
      },
      strong: (row, column) => words[this.at(row, column)] === words[this.at(0, column)],
    });
  }

  /** List the words of a cell; without one, of the chosen cell. */
  tell(row, column) {
    if (row < 0) [row, column] = this.chosen;
    const { lens, p, words } = this, from = this.at(row, column);
    const pairs = Array.from({ length: this.most }, (_, i) => [visible(words[from + i]), p[from + i]]);
    this.read.replaceChildren(
      h("h3", {}, this.names[row], row === 0 && ", which is the answer of the model,", lens.next ? " after " : " at ",
        h("span", { class: "number", dir: "auto" }, visible(lens.tokens[column])), ` (${lens.start + column + 1})`),
      ranking(pairs, { heading: ["word", "probability"] }));
  }

  says() {
    return h("p", { class: "says" },
      "The head of this run, with its last norm, reads the output of every layer as if it were the last one. ",
      "A column is a token; in the cell is the likeliest ", this.lens.next ? "next word" : "word in its place",
      ", stronger in colour where it is surer, and bold where it is already what the last layer says.",
      this.lens.recurrent && " This output is a state, read with the context of the source and the word before."
        + (this.layers > 1 ? "" : " The decoder of this run has one layer, which says what the model says."));
  }

  /** Show the card, with the chosen token in the middle. */
  show(root) {
    const { lens, figure, values, names, size } = this, grid = h("div", { class: "scroll" }, figure);
    const matrix = () => ({ values, rows: names, columns: lens.tokens });
    root.append(h("section", { class: "card" }, h("h2", {}, title), this.says(),
      lens.start > 0 && h("p", { class: "note" }, `The text is long: these are its last ${size} tokens.`),
      h("div", { class: "tools" }, h("span", { class: "space" }), saveTools(this.file, () => figure, matrix)),
      h("div", { class: "beside" }, grid, this.read)));
    grid.scrollLeft = (grid.scrollWidth * (this.chosen[1] + 0.5)) / size - grid.clientWidth / 2;
    this.tell(-1, -1);
  }
}

export async function draw(root, context) {
  const { shown: { lens }, store, stop } = context;
  const [p, words] = await Promise.all([store.numbers(lens.p), store.numbers(lens.words)]);
  if (!stop.aborted) new Lens(context, p, words).show(root);
}
