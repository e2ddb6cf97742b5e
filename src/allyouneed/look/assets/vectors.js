// Vectors: how alike the tokens of a text are in each layer, and how a token changes from layer to layer.

import { h, isSpecial, s, say, tool, visible } from "look/draw.js";
import { heat } from "look/heat.js";
import { saveTools } from "look/save.js";

export const name = "vectors";
export const title = "Vectors";
export const has = (shown) => shown.vectors?.length > 0;

const WIDTH = 460, HEIGHT = 206, LEFT = 40, BOTTOM = 24;
const ALONE = ["translate", "recognize", "draw"]; // tasks whose inputs are not compared as sentences

/** The two tokens to start with: the longest word that is there twice, if possible in two texts; else the first two. */
function firstPair({ tokens, of }) {
  const plain = tokens.map((token) => (isSpecial(token) ? "" : token.trim().toLowerCase()));
  let best = null, most = 1;
  for (let i = 0; i < tokens.length; i++) for (let j = i + 1; j < tokens.length; j++) {
    const score = plain[i] && plain[i] === plain[j] ? plain[i].length + (of[i] === of[j] ? 0 : 100) : 0;
    if (score > most) { best = [i, j]; most = score; }
  }
  if (best) return best;
  const words = tokens.map((_, i) => i).filter((i) => !isSpecial(tokens[i])), first = words[0] ?? 0;
  return [first, words.find((i) => of[i] > of[first]) ?? words[1] ?? tokens.length - 1];
}

/** A layer as a label in a figure. */
const shortLayer = (layer) => layer.replace("embeddings", "start").replace("layer ", "");

/** The cosine of two tokens in each layer, as a line. */
function curve(layers, values, name) {
  const low = Math.min(0, ...values);
  const x = (i) => LEFT + 14 + ((WIDTH - LEFT - 40) * i) / Math.max(1, layers.length - 1);
  const y = (v) => 24 + ((HEIGHT - BOTTOM - 30) * (1 - v)) / (1 - low);
  const line = values.map((v, i) => `${x(i)},${y(v)}`).join(" "), every = Math.ceil(layers.length / 8);
  const isNamed = (i) => i % every === 0 || i === values.length - 1;
  return s("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, style: { "max-width": "100%", height: "auto" },
    role: "img", "aria-label": `${name}: ${values.map((v, i) => `${layers[i]} ${v.toFixed(3)}`).join(", ")}`,
  },
    [...(low < 0 ? [low] : []), 0, 0.5, 1].flatMap((v) => axis(v, y(v))),
    s("polyline", { points: line, fill: "none", class: "link", "stroke-width": 2 }),
    values.flatMap((v, i) => point(layers[i], v, x(i), y(v), isNamed(i))));
}

/** A line across the figure at a value, with its number. */
const axis = (value, y) => [
  s("line", { class: "axis", x1: LEFT, x2: WIDTH - 8, y1: y, y2: y }),
  s("text", { class: "soft", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, value.toFixed(1)),
];

/** A layer on the curve: a dot and, if it is named, its name and its value. */
function point(layer, value, x, y, named) {
  const dot = s("circle", { cx: x, cy: y, r: 3.5, style: { fill: "var(--accent)" } },
    s("title", {}, `${layer}: ${value.toFixed(3)}`));
  if (!named) return [dot];
  const text = (at, more, words) => s("text", { x, y: at, "text-anchor": "middle", style: { "font-size": "11px" },
    ...more }, words);
  return [dot, text(HEIGHT - 6, { class: "soft" }, shortLayer(layer)),
    text(y - 9, { "data-cosine": "" }, value.toFixed(3))];
}

class Vectors {
  constructor({ shown, store, state, stop }) {
    Object.assign(this, { store, state, stop, name: shown.run.name, sides: shown.vectors });
    this.box = h("div", {});
    this.turn = 0;
  }

  /** Show the sentences of another store. */
  use(store) {
    this.store = store;
    this.sides = store.shown.vectors;
    this.state.set({ a: "", b: "", side: "" });
  }

  /** What is chosen: a text, a layer of it, and two of its tokens. */
  choose() {
    const { state, sides } = this;
    this.at = state.index("side", sides.length, 0);
    this.side = sides[this.at];
    const { tokens, layers } = this.side, [first, second] = firstPair(this.side);
    this.layer = state.index("depth", layers.length, layers.length - 1);
    this.a = state.index("a", tokens.length, first);
    this.b = state.index("b", tokens.length, second);
  }

  async show() {
    const mine = ++this.turn;
    this.choose();
    const { cosines, own } = this.side;
    if (!cosines.every((ref) => this.store.has(ref))) return this.box.replaceChildren(tooMany());
    const [each, ownEach] = await Promise.all([
      Promise.all(cosines.map((ref) => this.store.numbers(ref))), this.store.numbers(own),
    ]);
    if (mine !== this.turn || this.stop.aborted) return;
    this.box.replaceChildren(this.pairCard(each, ownEach), this.allCard(each[this.layer]));
  }

  /** A token, and its text if there are several. */
  label(i) {
    const { tokens, of } = this.side, text = of.some((one) => one) ? ` (text ${of[i] + 1})` : "";
    return `${visible(tokens[i])}${text}`;
  }

  // Two tokens in all layers

  pairCard(each, own) {
    const { a, b, side: { tokens, layers } } = this, values = each.map((one) => one[a * tokens.length + b]);
    const line = curve(layers, values, `${this.label(a)} and ${this.label(b)}`);
    const matrix = () => ({ values: Float32Array.from(values), rows: ["cosine"], columns: layers });
    return h("section", { class: "card" }, h("h2", {}, "Two tokens, layer by layer"),
      h("p", { class: "says" },
        "The cosine of the vectors of two tokens in each layer: 1 is the same direction, 0 no relation. ",
        "The same word begins alike, and grows apart where its neighbours differ."),
      h("div", { class: "tools" }, this.sideTools(),
        this.tokenChoice("a", "one token"), h("span", {}, "and"), this.tokenChoice("b", "another token"),
        h("span", { class: "space" }), saveTools(`${this.name}-two-tokens`, () => line, matrix)),
      h("div", { class: "beside" }, h("div", {}, line), this.ownFigure(own)));
  }

  sideTools() {
    const choose = (side) => this.state.set({ side, a: "", b: "" });
    return this.sides.length > 1 && this.sides.map((one, i) => tool(one.title, i === this.at, () => choose(i)));
  }

  tokenChoice(key, name) {
    const option = (_, i) => h("option", { value: i, selected: i === this[key] }, `${i + 1} ${this.label(i)}`);
    return h("select", {
      class: "tool", "aria-label": name, onchange: (event) => this.state.set({ [key]: Number(event.target.value) }),
    }, this.side.tokens.map(option));
  }

  /** The first token, compared with itself in other layers. */
  ownFigure(own) {
    const { a, side: { layers } } = this, label = this.label(a), names = layers.map(shortLayer);
    const values = own.subarray(a * layers.length ** 2, (a + 1) * layers.length ** 2);
    const figure = heat({
      rows: names, columns: names, values, words: Array.from(values, (v) => (Number.isFinite(v) ? v.toFixed(2) : "")),
      label: `cosines of ${label} with itself in other layers`, cell: Math.max(16, Math.min(46, 380 / layers.length)),
    });
    const heading = h("h3", { style: { margin: "0 0 .3rem" } },
      h("span", { class: "number", dir: "auto" }, label), " with itself in other layers");
    return h("div", { class: "scroll" }, heading, figure);
  }

  // All tokens in one layer

  allCard(values) {
    const { state, layer, side: { tokens, layers, cut } } = this;
    const status = h("p", { class: "reading", "data-reading": "" }), figure = this.allFigure(values, status);
    return h("section", { class: "card" }, h("h2", {}, "All tokens, in one layer"),
      cut && h("p", { class: "note" }, `The text is long: these are its first ${tokens.length} tokens.`),
      h("div", { class: "tools" }, layers.map((one, i) => tool(one, i === layer, () => state.set({ depth: i }))),
        h("span", { class: "space" }),
        saveTools(`${this.name}-cosines`, () => figure, () => ({ values, rows: tokens, columns: tokens }))),
      h("div", { class: "scroll" }, figure), status);
  }

  allFigure(values, status) {
    const { state, a, b, layer, side: { tokens, layers } } = this, names = tokens.map(visible), size = tokens.length;
    const name = (i) => h("span", { class: "number", dir: "auto" }, this.label(i));
    const tell = (row, column) => {
      if (row < 0) [row, column] = [a, b];
      status.replaceChildren(name(row), " and ", name(column), `, ${layers[layer]}: cosine `,
        h("b", { class: "number", "data-value": "" }, values[row * size + column].toFixed(3)));
    };
    tell(a, b);
    return heat({
      rows: names, columns: names, values, words: Array.from(values, (v) => v.toFixed(2)),
      label: `cosines of the tokens, ${layers[layer]}`, cell: Math.max(2.4, Math.min(46, 620 / size)),
      picked: [a, b], hover: tell, pick: (row, column) => state.set({ a: row, b: column }),
    });
  }
}

const tooMany = () => h("section", { class: "card" }, h("p", { class: "note" },
  "The cosines of this text are too many for this page; the live page shows them."));

/** A form for two or three sentences, each read by itself; `use` gets the store of their vectors. */
function compare({ shown, store }, use) {
  const lines = shown.text.split("|||").map((one) => one.trim()), status = h("p", { class: "tip", role: "status" });
  const typed = h("textarea", {
    rows: 2, "aria-label": "sentences to compare, one per line", placeholder: "one sentence per line",
    style: { height: "4.4rem" }, dir: "auto",
  }, lines.join("\n"));
  const send = async (event) => {
    event.preventDefault();
    try {
      const text = typed.value.split("\n").map((one) => one.trim()).filter(Boolean).join(" ||| ");
      const found = await store.ask("vectors", { text }), { vectors } = found.shown;
      if (!vectors.length) throw new Error("this run cannot read these sentences one by one");
      status.textContent = `${new Set(vectors[0].of).size} sentences`;
      say(status.textContent);
      use(found);
    } catch (error) {
      status.textContent = error.message;
    }
  };
  return h("section", { class: "card" }, h("h2", {}, "Compare sentences"),
    h("p", { class: "says" },
      "Each line is read by itself. Then choose one word in each: is it the same word to the model?"),
    h("form", { class: "ask", onsubmit: send }, typed, h("button", {}, "Compare")), status);
}

export function draw(root, context) {
  const { shown, state, stop, live } = context, vectors = new Vectors(context);
  if (live && !ALONE.includes(shown.run.task)) root.append(compare(context, (store) => vectors.use(store)));
  root.append(vectors.box);
  state.on((changes) => ["side", "depth", "a", "b"].some((key) => key in changes) && vectors.show(), stop);
  return vectors.show();
}
