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
    const from = (u) => i * wide + u;
    const inside = Array.from(h, (_, u) => fromX[from(u)]
      + (kind === "gru" && sign === "n" ? found.r.values[u] : 1) * fromH[from(u)]);
    found[sign] = { inside, values: inside.map(run), x: Array.from(h, (_, u) => fromX[from(u)]),
      h: Array.from(h, (_, u) => fromH[from(u)]) };
  });
  const at = (sign, u) => found[sign].values[u], units = Array.from(h, (_, u) => u);
  if (kind === "gru") found.new = units.map((u) => (1 - at("z", u)) * at("n", u) + at("z", u) * h[u]);
  if (kind === "lstm") found.memory = units.map((u) => at("f", u) * c[u] + at("i", u) * at("g", u));
  if (kind === "lstm") found.new = units.map((u) => at("o", u) * Math.tanh(found.memory[u]));
  if (kind === "rnn") found.new = found.h.values;
  return found;
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

export async function cell(context) {
  const { shown, store, state } = context, list = shown.hand.cells;
  const which = Math.max(0, state.index("cell", list.length)), one = list[which], kind = one.cell;
  const sequence = shown.sequences[one.tokens], tokens = sequence.tokens;
  const at = state.index("token", tokens.length) < 0 ? tokens.length - 1 : state.index("token", tokens.length);
  const wide = one.h.shape[1], u = Math.min(Math.max(0, state.index("unit", 1e6)), wide - 1);
  const pick = (unit) => state.set({ unit });
  const choice = strip(sequence, at, () => {}, (token) => state.set({ token: token === "" ? at : token }));
  [...choice.children].forEach((button, i) => { button.dataset.key = `token-${i}`; });
  const head = h("section", { class: "card" }, h("h2", {}, `One step of ${kind === "gru" ? "a" : "an"} ${NAMES[kind]}`),
    list.length > 1 && h("div", { class: "pickers" }, list.map((each, i) =>
      tool(title(each), i === which, () => state.set({ cell: i }), { "data-key": `cell-${i}` }))),
    h("h3", {}, "The token that is read"), choice,
    h("p", {}, unitField("unit", u, wide, pick), h("span", { class: "tip" },
      "  Its sums are written out below; click a cell of a strip to choose another.")));
  const arrays = await fetched(store, { x: one.x, h: one.h, c: one.c }), weights = await fetched(store, one.weights);
  if (!arrays || !weights) return [head, absent("The weights of this cell")];
  const x = Array.from(row(arrays.x, at, one.x.shape[1])), before = Array.from(row(arrays.h, at, wide));
  const c = arrays.c && Array.from(row(arrays.c, at, wide));
  const found = compute(kind, x, before, c, weights), math = MATH[kind], units = before.map((_, i) => `${i + 1}`);
  const first = one.backward ? at === tokens.length - 1 : at === 0, decoder = one.path === "body.decoder";
  const start = `; before the first token the state ${decoder ? "comes from the encoder" : "is zero"}.`;
  const later = `, and the state after the token ${one.backward ? "behind" : "before"} it.`;
  const own = (name, values, more = {}) => cells(values, { name, marked: u, pick, key: name, ...more });
  const steps = [
    step({ name: "reads", title: "What the cell reads",
      says: ["The vector of ", word(tokens[at]), decoder && " with the context behind it", first ? start : later],
      copy: () => ({ rows: ["x"], columns: x.map((_, i) => `${i + 1}`), values: x }) },
    lines(["x_t", cells(x, { name: "x", key: "x" }), `${x.length} numbers`],
      ["h_{t−1}", own("h before", before), `${wide} numbers`],
      c && ["c_{t−1}", own("c before", c), `${wide} numbers`]),
    everyNumber([["x_t", x]], "all numbers of x"),
    everyNumber([["h_{t−1}", before], ...(c ? [["c_{t−1}", c]] : [])], "all numbers of the state")),
  ];
  const toggle = (sign) => state.set({ sums: state.get("sums") === sign ? "" : sign });
  BLOCKS[kind].forEach((block, i) => {
    const [sign, name, run, says] = block, mine = found[sign];
    const rowX = Array.from(row(weights.x, i * wide + u, x.length));
    const rowH = Array.from(row(weights.h, i * wide + u, wide));
    const most = run === sigmoid ? 1 : undefined;
    steps.push(step({ name: `block-${sign}`, title: name[0].toUpperCase() + name.slice(1),
      says: says && `${says[0].toUpperCase()}${says.slice(1)}${run === sigmoid ? ": 0 is nothing, 1 is all." : "."}`,
      math: math[sign],
      copy: () => ({ rows: [sign, "inside"], columns: units, values: [...mine.values, ...mine.inside] }) },
    lines([`${sign}${kind === "rnn" ? "_t" : ""}`, own(sign, mine.values, { most })]), unitLine(kind, block, found, u),
    h("details", { class: "every", open: state.get("sums") === sign },
      h("summary", { "data-key": `sums-${sign}`, onclick: () => queueMicrotask(() => toggle(sign)) },
        `the two sums of unit ${u + 1}`),
      products([`W_{x${sign}}, row ${u + 1}`, rowX], ["x_t", x],
        { result: `(W_{x${sign}} x_t + b)_{${u + 1}}`, more: [["b_x", weights.bias_x[i * wide + u]]],
        key: `x${sign}` }),
      products([`W_{h${sign}}, row ${u + 1}`, rowH], ["h_{t−1}", before],
        { result: `(W_{h${sign}} h_{t−1} + b)_{${u + 1}}`, more: [["b_h", weights.bias_h[i * wide + u]]],
        key: `h${sign}` })),
    everyNumber([[sign, mine.values]])));
  });
  const value = (sign) => num(found[sign].values[u]), line = (...content) => h("p", { class: "sum" }, ...content);
  if (kind === "lstm") {
    steps.push(step({ name: "memory", title: "The new cell state",
      says: "The memory of the cell: what stays, and what is written.", math: math.memory,
      copy: () => ({ rows: ["c"], columns: units, values: found.memory }) },
      lines(["c_t", own("c", found.memory)]), line(formula(`c_{${u + 1}} = `), value("f"), " · ", factor(c[u]), " + ",
        value("i"), " · ", factor(found.g.values[u]), " = ", h("b", {}, num(found.memory[u], "memory"))),
        everyNumber([["c_t", found.memory]])));
  }
  if (kind !== "rnn") {
    steps.push(step({ name: "state", title: "The new state",
      says: "What the cell gives to the layer above, and to its next step.", math: math.new,
      copy: () => ({ rows: ["h"], columns: units, values: found.new }) },
      lines(["h_t", own("h", found.new)]),
      kind === "gru" ? line(formula(`h_{${u + 1}} = (1 − `), value("z"), ") · ", factor(found.n.values[u]), " + ",
        value("z"), " · ", factor(before[u]), " = ", h("b", {}, num(found.new[u], "state")))
        : line(formula(`h_{${u + 1}} = `), value("o"), " · tanh(", num(found.memory[u]), ") = ",
          h("b", {}, num(found.new[u], "state"))), everyNumber([["h_t", found.new]])));
  }
  return [head, ...steps];
}
