// A recurrent cell by hand: what it reads, its gates, its candidate and its new state, for one token.

import { strip } from "look/attention.js";
import { h, short, tool, visible } from "look/draw.js";
import {
  absent, cells, everyNumber, factor, fetched, formula, lines, num, products, row, step, times, unitField,
} from "look/hand_parts.js";

const sigmoid = (value) => 1 / (1 + Math.exp(-value));

// The blocks of rows of the matrices, in their order: sign, name, what it goes through, what it says.
const BLOCKS = {
  rnn: [["h", "the new state", Math.tanh, ""]],
  gru: [["r", "reset gate", sigmoid, "how much of the past the candidate uses"],
    ["z", "update gate", sigmoid, "how much of the old state stays"],
    ["n", "candidate", Math.tanh, "what the state could become"]],
  lstm: [["i", "input gate", sigmoid, "how much of the candidate is written"],
    ["f", "forget gate", sigmoid, "how much of the old cell state stays"],
    ["g", "candidate", Math.tanh, "what could be written"],
    ["o", "output gate", sigmoid, "how much of the cell state is shown"]],
};
const through = (run) => (run === Math.tanh ? "tanh" : "σ");

/** One step: what each block gives for every unit, and the new state. */
export function compute(kind, x, h, c, weights) {
  const fromX = times(weights.x, x, weights.bias_x), fromH = times(weights.h, h, weights.bias_h), wide = h.length;
  const found = {};
  BLOCKS[kind].forEach(([sign, , run], i) => {
    const ofX = fromX.slice(i * wide, (i + 1) * wide), ofH = fromH.slice(i * wide, (i + 1) * wide);
    const reset = kind === "gru" && sign === "n" ? found.r.values : undefined;
    const inside = ofX.map((value, u) => value + (reset ? reset[u] : 1) * ofH[u]);
    found[sign] = { inside, values: inside.map(run), x: ofX, h: ofH };
  });
  return { ...found, ...renewed(kind, found, h, c) };
}

/** The new state, and of an LSTM its new cell state. */
function renewed(kind, found, h, c) {
  const { i, f, g, o, z, n } = found, units = Array.from(h, (_, u) => u);
  if (kind === "rnn") return { new: found.h.values };
  if (kind === "gru") return { new: units.map((u) => (1 - z.values[u]) * n.values[u] + z.values[u] * h[u]) };
  const memory = units.map((u) => f.values[u] * c[u] + i.values[u] * g.values[u]);
  return { memory, new: units.map((u) => o.values[u] * Math.tanh(memory[u])) };
}

const word = (text) => h("bdi", { class: "number tokenname" }, short(visible(text), 18));

function title({ path, layer, backward, directions }) {
  const side = directions > 1 || path.includes("_layers.") ? (backward ? ", backward" : ", forward") : "";
  const name = path.includes("encoder") ? "encoder, " : path.includes("decoder") ? "decoder, "
    : path.startsWith("reader") ? "reader, " : "";
  const depth = /_layers\.(\d+)$/.exec(path);
  return `${name}layer ${depth ? Number(depth[1]) + 1 : layer}${side}`;
}

/** A unit's value of one block, from what it reads and from the state before. */
function unitLine(kind, [sign, , run], found, u) {
  const { x, h: own, inside, values } = found[sign], reset = kind === "gru" && sign === "n";
  return h("p", { class: "sum" }, formula(`${sign}_{${u + 1}} = ${through(run)}(`), num(x[u]), " + ",
    reset && num(found.r.values[u]), reset && " · ", reset ? factor(own[u]) : num(own[u]), `) = ${through(run)}(`,
    num(inside[u]), ") = ", h("b", {}, num(values[u], `block-${sign}`)));
}

const MATH = {
  rnn: { h: "h_t = tanh(W_{xh} x_t + W_{hh} h_{t−1} + b)" },
  gru: { r: "r = σ(W_{xr} x_t + W_{hr} h_{t−1} + b_r)", z: "z = σ(W_{xz} x_t + W_{hz} h_{t−1} + b_z)",
    n: "n = tanh(W_{xn} x_t + b_{xn} + r ⊙ (W_{hn} h_{t−1} + b_{hn}))",
    new: "h_t = (1 − z) ⊙ n + z ⊙ h_{t−1}" },
  lstm: { i: "i = σ(W_{xi} x_t + W_{hi} h_{t−1} + b_i)", f: "f = σ(W_{xf} x_t + W_{hf} h_{t−1} + b_f)",
    g: "g = tanh(W_{xg} x_t + W_{hg} h_{t−1} + b_g)", o: "o = σ(W_{xo} x_t + W_{ho} h_{t−1} + b_o)",
    memory: "c_t = f ⊙ c_{t−1} + i ⊙ g", new: "h_t = o ⊙ tanh(c_t)" },
};

const NAMES = { rnn: "RNN", gru: "GRU", lstm: "LSTM" };

const capital = (text) => `${text[0].toUpperCase()}${text.slice(1)}`;
const names = (values) => values.map((_, i) => `${i + 1}`);
const sumLine = (...content) => h("p", { class: "sum" }, ...content);

/** One cell at one token. */
class Cell {
  constructor({ shown, store, state }) {
    const list = shown.hand.cells, which = Math.max(0, state.index("cell", list.length)), part = list[which];
    Object.assign(this, { list, which, part, store, state, kind: part.cell, math: MATH[part.cell] });
    this.sequence = shown.sequences[part.tokens];
    this.tokens = this.sequence.tokens;
    const chosen = state.index("token", this.tokens.length);
    this.at = chosen < 0 ? this.tokens.length - 1 : chosen;
    this.wide = part.h.shape[1];
    this.unit = Math.min(Math.max(0, state.index("unit", 1e6)), this.wide - 1);
    this.pick = (unit) => state.set({ unit });
  }

  async sections() {
    const head = this.head();
    if (!await this.load()) return [head, absent("The weights of this cell")];
    const blocks = BLOCKS[this.kind].map((block, i) => this.blockStep(block, i));
    return [head, this.readStep(), ...blocks, ...(this.kind === "lstm" ? [this.memoryStep()] : []),
      ...(this.kind === "rnn" ? [] : [this.stateStep()])];
  }

  head() {
    const { kind, list, which, state, unit, wide } = this;
    const tools = list.map((each, i) => {
      return tool(title(each), i === which, () => state.set({ cell: i }), { "data-key": `cell-${i}` });
    });
    return h("section", { class: "card" },
      h("h2", {}, `One step of ${kind === "gru" ? "a" : "an"} ${NAMES[kind]}`),
      list.length > 1 && h("div", { class: "pickers" }, tools),
      h("h3", {}, "The token that is read"), this.choice(),
      h("p", {}, unitField("unit", unit, wide, this.pick), h("span", { class: "tip" },
        "  Its sums are written out below; click a cell of a strip to choose another.")));
  }

  /** The tokens, of which one is chosen. */
  choice() {
    const { sequence, at, state } = this;
    const found = strip(sequence, at, () => {}, (token) => state.set({ token: token === "" ? at : token }));
    [...found.children].forEach((button, i) => { button.dataset.key = `token-${i}`; });
    return found;
  }

  /** What the cell reads, its weights, and what it computes; false if the page does not have them. */
  async load() {
    const { part, at, wide, store, kind } = this;
    const arrays = await fetched(store, { x: part.x, h: part.h, c: part.c });
    const weights = await fetched(store, part.weights);
    if (!arrays || !weights) return false;
    this.weights = weights;
    this.x = Array.from(row(arrays.x, at, part.x.shape[1]));
    this.before = Array.from(row(arrays.h, at, wide));
    this.c = arrays.c && Array.from(row(arrays.c, at, wide));
    this.found = compute(kind, this.x, this.before, this.c, weights);
    return true;
  }

  /** A strip of one number per unit. */
  strip(name, values, more = {}) {
    return cells(values, { name, marked: this.unit, pick: this.pick, key: name, ...more });
  }

  /** The number of the chosen unit in a block. */
  value(sign) { return this.found[sign].values[this.unit]; }

  readStep() {
    const { x, before, c, wide } = this, state = [["h_{t−1}", before], ...(c ? [["c_{t−1}", c]] : [])];
    return step({
      name: "reads", title: "What the cell reads", says: this.reads(),
      copy: () => ({ rows: ["x"], columns: names(x), values: x }),
    },
    lines(["x_t", cells(x, { name: "x", key: "x" }), `${x.length} numbers`],
      ["h_{t−1}", this.strip("h before", before), `${wide} numbers`],
      c && ["c_{t−1}", this.strip("c before", c), `${wide} numbers`]),
    everyNumber([["x_t", x]], "all numbers of x"), everyNumber(state, "all numbers of the state"));
  }

  /** What it reads, in words. */
  reads() {
    const { at, tokens, part: { backward, path } } = this, decoder = path === "body.decoder";
    const first = backward ? at === tokens.length - 1 : at === 0;
    const start = `; before the first token the state ${decoder ? "comes from the encoder" : "is zero"}.`;
    const later = `, and the state after the token ${backward ? "behind" : "before"} it.`;
    return ["The vector of ", word(tokens[at]), decoder && " with the context behind it", first ? start : later];
  }

  blockStep(block, i) {
    const { kind, math, found, unit } = this, [sign, name, run, says] = block, { values, inside } = found[sign];
    const gate = run === sigmoid, all = { most: gate ? 1 : undefined };
    return step({
      name: `block-${sign}`, title: capital(name), math: math[sign],
      says: says && `${capital(says)}${gate ? ": 0 is nothing, 1 is all." : "."}`,
      copy: () => ({ rows: [sign, "inside"], columns: names(values), values: [...values, ...inside] }),
    },
    lines([`${sign}${kind === "rnn" ? "_t" : ""}`, this.strip(sign, values, all)]),
    unitLine(kind, block, found, unit), this.sums(sign, i), everyNumber([[sign, values]]));
  }

  /** The sums of one unit in block `i`, over what is read and over the state before. */
  sums(sign, i) {
    const { state, unit, x, before, weights, wide } = this, n = unit + 1, at = i * wide + unit;
    const toggle = () => state.set({ sums: state.get("sums") === sign ? "" : sign });
    return h("details", { class: "every", open: state.get("sums") === sign },
      h("summary", { "data-key": `sums-${sign}`, onclick: () => queueMicrotask(toggle) }, `the two sums of unit ${n}`),
      products([`W_{x${sign}}, row ${n}`, Array.from(row(weights.x, at, x.length))], ["x_t", x],
        { result: `(W_{x${sign}} x_t + b)_{${n}}`, more: [["b_x", weights.bias_x[at]]], key: `x${sign}` }),
      products([`W_{h${sign}}, row ${n}`, Array.from(row(weights.h, at, wide))], ["h_{t−1}", before],
        { result: `(W_{h${sign}} h_{t−1} + b)_{${n}}`, more: [["b_h", weights.bias_h[at]]], key: `h${sign}` }));
  }

  memoryStep() {
    const { found: { memory }, unit, c, math } = this;
    return step({
      name: "memory", title: "The new cell state", says: "The memory of the cell: what stays, and what is written.",
      math: math.memory, copy: () => ({ rows: ["c"], columns: names(memory), values: memory }),
    },
    lines(["c_t", this.strip("c", memory)]),
    sumLine(formula(`c_{${unit + 1}} = `), num(this.value("f")), " · ", factor(c[unit]), " + ", num(this.value("i")),
      " · ", factor(this.value("g")), " = ", h("b", {}, num(memory[unit], "memory"))),
    everyNumber([["c_t", memory]]));
  }

  stateStep() {
    const { found, kind, math } = this;
    return step({
      name: "state", title: "The new state", says: "What the cell gives to the layer above, and to its next step.",
      math: math.new, copy: () => ({ rows: ["h"], columns: names(found.new), values: found.new }),
    },
    lines(["h_t", this.strip("h", found.new)]), kind === "gru" ? this.mixLine() : this.outputLine(),
    everyNumber([["h_t", found.new]]));
  }

  /** The new state of a unit of a GRU. */
  mixLine() {
    const { found, unit, before } = this;
    return sumLine(formula(`h_{${unit + 1}} = (1 − `), num(this.value("z")), ") · ", factor(this.value("n")), " + ",
      num(this.value("z")), " · ", factor(before[unit]), " = ", h("b", {}, num(found.new[unit], "state")));
  }

  /** The new state of a unit of an LSTM. */
  outputLine() {
    const { found, unit } = this;
    return sumLine(formula(`h_{${unit + 1}} = `), num(this.value("o")), " · tanh(", num(found.memory[unit]), ") = ",
      h("b", {}, num(found.new[unit], "state")));
  }
}

export const cell = (context) => new Cell(context).sections();
