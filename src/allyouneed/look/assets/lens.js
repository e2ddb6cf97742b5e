// What each layer would say: the head of the run reads the output of every layer.

import { h, ranking, say, short, visible } from "look/draw.js";
import { heat } from "look/heat.js";
import { saveTools } from "look/save.js";

export const name = "lens";
export const title = "What each layer would say";
export const has = (shown) => Boolean(shown.lens);

export async function draw(root, { shown, store, state, stop }) {
  const { lens } = shown, [layers, tokens, most] = lens.p.shape, top = layers - 1;
  const [p, words] = await Promise.all([store.numbers(lens.p), store.numbers(lens.words)]);
  if (stop.aborted) return;
  const at = (row, column) => most * ((top - row) * tokens + column); // the last layer is the first row
  const values = [], said = [];
  for (let cell = 0; cell < layers * tokens; cell++) {
    const from = at(Math.floor(cell / tokens), cell % tokens);
    values.push(p[from]);
    said.push(short(visible(words[from]), 10));
  }
  const names = [...lens.layers].reverse(), read = h("div", { "aria-live": "polite" });
  const masked = lens.tokens.indexOf("[MASK]"), usual = masked < 0 ? tokens - 1 : masked;
  const chosen = () => [Math.max(0, state.index("row", layers)),
    state.index("column", tokens) < 0 ? usual : state.index("column", tokens)];
  const tell = (row, column) => {
    if (row < 0) [row, column] = chosen();
    const from = at(row, column);
    read.replaceChildren(
      h("h3", {}, names[row], row === 0 ? ", which is the answer of the model," : "", lens.next ? " after " : " at ",
        h("span", { class: "number", dir: "auto" }, visible(lens.tokens[column])), ` (${lens.start + column + 1})`),
      ranking(Array.from({ length: most }, (_, i) => [visible(words[from + i]), p[from + i]]),
        { heading: ["word", "probability"] }));
  };
  const figure = heat({
    rows: names, columns: lens.tokens.map((token) => short(visible(token), 10)), values, words: said, cell: 92,
      tall: 30, label: "the likely word of each layer at each token", picked: chosen(), hover: tell,
    pick: (row, column) => { state.set({ row, column }); say(`${names[row]}: ${said[row * tokens + column]}`); },
    strong: (row, column) => words[at(row, column)] === words[at(0, column)],
  });
  const grid = h("div", { class: "scroll" }, figure);
  root.append(h("section", { class: "card" }, h("h2", {}, title),
    h("p", { class: "says" },
      "The head of this run, with its last norm, reads the output of every layer as if it were the last one. ",
      "A column is a token; in the cell is the likeliest ", lens.next ? "next word" : "word in its place",
      ", stronger in colour where it is surer, and bold where it is already what the last layer says."),
    lens.start ? h("p", { class: "note" }, `The text is long: these are its last ${tokens} tokens.`) : "",
    h("div", { class: "tools" }, h("span", { class: "space" }), saveTools(`${shown.run.name}-lens`, () => figure,
      () => ({ values, rows: names, columns: lens.tokens }))),
    h("div", { class: "beside" }, grid, read)));
  grid.scrollLeft = (grid.scrollWidth * (chosen()[1] + 0.5)) / tokens - grid.clientWidth / 2;
  tell(-1, -1);
}
