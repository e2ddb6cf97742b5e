// Gates: how far each gate of a recurrent layer, or of a convolution, is open at each token.

import { h, part, say, tool, visible } from "look/draw.js";
import { GateMap, scale } from "look/gate_map.js";
import { saveTools } from "look/save.js";

export const name = "gates";
export const title = "Gates";
export const has = (shown) => Boolean(shown.gates?.length);

const SAYS = {
  reset: "reset: how much of the past the new value sees",
  update: "update: how much of the past stays",
  input: "input: how much of the new value enters the cell",
  forget: "forget: how much of the cell stays",
  output: "output: how much of the cell is shown",
  gate: "gate: how much of the convolution passes",
};
const GROUPS = { encoder: "Encoder", decoder: "Decoder" };
const OPEN = 0.9, SHUT = 0.1;

/** Each gate of each direction of each layer. */
function gatesOf(shown) {
  const layers = {}, both = shown.gates.some((one) => one.backward);
  const found = shown.gates.flatMap((layer) => {
    const key = `${layer.group}${layer.path.split(".").slice(0, 2)}`, number = layers[key] = (layers[key] ?? 0) + 1;
    return gatesOfLayer(layer, both).map((one) => ({ ...one, key, number }));
  });
  return found.map((one) => ({ ...one, label: labelOf(one, layers[one.key] > 1) }));
}

function gatesOfLayer(layer, both) {
  const reader = layer.path.startsWith("reader.");
  return Array.from({ length: layer.directions }, (_, direction) => {
    const arrow = layer.backward || direction ? "←" : layer.directions > 1 || both ? "→" : "";
    return layer.gates.map((gate, g) => ({ layer, direction, g, gate, arrow, reader }));
  }).flat();
}

function labelOf({ layer, number, gate, arrow }, several) {
  const kind = layer.gates.length > 1 ? "layer" : "block";
  return [several && `${kind} ${number}`, gate, arrow].filter(Boolean).join(" ");
}

/** The numbers of gates by map: those that read the same tokens in the same part of the model stand in one. */
function mapsOf(gates) {
  const indices = gates.map((_, i) => i), maps = new Map();
  for (const key of new Set(gates.map((one) => one.key))) {
    const rows = indices.filter((i) => gates[i].key === key), { layer, reader } = gates[rows[0]];
    const map = `${layer.group} ${layer.sequence} ${reader}`;
    maps.set(map, [...(maps.get(map) ?? []), ...rows]);
  }
  return [...maps.values()];
}

/** The values of one gate in one direction: the mean of its units by token, or units x tokens. */
function slice({ layer, direction, g }, values, units) {
  const tokens = values.length / layer.directions / layer.gates.length / units;
  const found = new Float32Array(tokens * units);
  for (let token = 0; token < tokens; token++) {
    const from = ((token * layer.directions + direction) * layer.gates.length + g) * units;
    for (let unit = 0; unit < units; unit++) found[unit * tokens + token] = values[from + unit];
  }
  return found;
}

const average = (values, from, count) => values.subarray(from, from + count).reduce((a, b) => a + b, 0) / count;

const count = (values, kept) => values.filter(kept).length;
const isOpen = (value) => value > OPEN, isShut = (value) => value < SHUT;
const number = (text, more) => h("b", { class: "number", ...more }, text);

class Gates {
  constructor(root, { shown, store, state, stop }) {
    Object.assign(this, { shown, store, state, stop, turn: 0, gates: gatesOf(shown) });
    this.overview = h("section", { class: "card" });
    this.detail = h("section", { class: "card" });
    const longest = Math.max(...this.gates.map((one) => this.tokens(one).length));
    root.append(h("div", { class: longest <= 12 ? "pair" : "" }, this.overview, this.detail));
  }

  async load() {
    const mean = async (one) => slice(one, await this.store.numbers(one.layer.mean), 1);
    this.means = await Promise.all(this.gates.map(mean));
  }

  tokens({ layer }) { return this.shown.sequences[layer.sequence].tokens; }

  get chosen() { return Math.max(0, this.state.index("gate", this.gates.length)); }

  get width() { return Math.max(220, this.overview.clientWidth - 36); }

  async draw() {
    this.state.on((changes) => "view" in changes || this.change(), this.stop);
    this.drawOverview();
    await this.drawUnits();
  }

  change() {
    const focused = this.overview.contains(document.activeElement);
    this.drawOverview();
    this.drawUnits();
    if (focused) this.overview.querySelector(".gate[aria-pressed=true]")?.focus();
    say(this.gates[this.chosen].label);
  }

  /** All gates. */
  drawOverview() {
    const read = h("p", { class: "reading", "data-reading": "" });
    const kinds = [...new Set(this.gates.map((one) => one.gate))];
    const directions = this.gates.some((one) => one.arrow) ? " → reads from the start, ← from the end." : "";
    this.overview.replaceChildren(h("h2", {}, "How far each gate is open"),
      h("p", { class: "says" },
        "The mean of all units, from 0 (shut) to 1 (open); ", kinds.map((kind) => SAYS[kind] ?? kind).join("; "), ".",
        directions, " Choose a gate to see each of its units."),
      ...mapsOf(this.gates).flatMap((rows, n) => this.map(rows, n === 0, read)), read);
  }

  /** One map of gates, with its tools; `read` says what is under the pointer. */
  map(rows, first, read) {
    const one = this.gates[rows[0]], columns = this.tokens(one), names = rows.map((i) => this.gates[i].label);
    const values = Float32Array.from(rows.flatMap((i) => [...this.means[i]]));
    const { svg } = new GateMap({
      rows: names, columns, values, height: 28, width: this.width, written: true, chosen: rows.indexOf(this.chosen),
      choose: (row) => this.state.set({ gate: rows[row] }),
      label: `mean of the units of each gate, ${columns.length} tokens`,
      hover: (row, column) => read.replaceChildren(...(row < 0 ? [] : [
        `${names[row]} at `, h("span", { class: "number" }, visible(columns[column])), ": ",
        number(part(values[row * columns.length + column]), { "data-gate": "" }), " open, as the mean of its units",
      ])),
    });
    const heading = one.reader ? "The reader of all layers" : GROUPS[one.layer.group] ?? "";
    const file = [this.shown.run.name, "gates", one.layer.group, one.reader && "letters"].filter(Boolean).join("-");
    return [
      h("div", { class: "tools" }, heading && h("h3", { style: { margin: 0 } }, heading), first && scale(),
        h("span", { class: "space" }), saveTools(file, () => svg, () => ({ values, rows: names, columns }))),
      h("div", { class: "scroll" }, svg),
    ];
  }

  /** All units of the chosen gate. */
  async drawUnits() {
    const mine = ++this.turn, one = this.gates[this.chosen], { units, each, group } = one.layer;
    const heading = h("h2", {}, `All ${units} units: ${[GROUPS[group], one.label].filter(Boolean).join(", ")}`);
    if (!this.store.has(each)) {
      return this.detail.replaceChildren(heading, h("p", { class: "says" },
        "The units are left out of this page, which would become too large. A live page has them."));
    }
    const values = slice(one, await this.store.numbers(each), units);
    if (mine === this.turn && !this.stop.aborted) this.detail.replaceChildren(heading, ...this.units(one, values));
  }

  /** The units in their order: that of their means, or as they are stored. */
  order(values, units, sorted) {
    const wide = values.length / units, order = Array.from({ length: units }, (_, i) => i);
    const means = order.map((unit) => average(values, unit * wide, wide));
    return sorted ? order.sort((a, b) => means[b] - means[a]) : order;
  }

  units(one, values) {
    const { units } = one.layer, columns = this.tokens(one), wide = columns.length;
    const sorted = this.state.get("units", "sorted") === "sorted", order = this.order(values, units, sorted);
    const ordered = Float32Array.from(order.flatMap((unit) => [...values.subarray(unit * wide, (unit + 1) * wide)]));
    const read = h("p", { class: "reading" }, inAll(ordered)), unit = (row) => `${order[row] + 1}`;
    const { svg } = new GateMap({
      rows: order.map(() => ""), columns, values: ordered, height: Math.max(2, Math.min(9, 460 / units)),
      width: this.width, label: `each of ${units} units by token`,
      hover: (row, column) => read.replaceChildren(
        ...(row < 0 ? [inAll(ordered)] : inCell(ordered, columns, row, column, unit(row)))),
    });
    return [
      h("div", { class: "tools" }, tool("sorted by their mean", sorted, () => this.state.set({ units: "" })),
        tool("as stored", !sorted, () => this.state.set({ units: "stored" })), h("span", { class: "space" }),
        saveTools(`${this.shown.run.name}-units`, () => svg,
          () => ({ values: ordered, rows: order.map((_, row) => unit(row)), columns }))),
      h("div", { class: "scroll" }, svg), read,
    ];
  }
}

/** How many of all values are open, and how many shut. */
function inAll(values) {
  const [most, least] = [isOpen, isShut].map((kept) => Math.round(100 * (count(values, kept) / values.length)));
  return `${most} % of all cells are more than ${OPEN} open, ${least} % less than ${SHUT}.`;
}

/** The value of a unit at a token, and how many of all units are open and shut there. */
function inCell(values, columns, row, column, unit) {
  const here = values.filter((_, i) => i % columns.length === column), value = values[row * columns.length + column];
  return [
    `unit ${unit} at `, h("span", { class: "number" }, visible(columns[column])), ": ",
    number(part(value), { "data-unit": unit }),
    `; here ${count(here, isOpen)} of ${here.length} units are more than ${OPEN} open, `,
    `${count(here, isShut)} less than ${SHUT}`,
  ];
}

export async function draw(root, context) {
  const gates = new Gates(root, context);
  await gates.load();
  if (!context.stop.aborted) await gates.draw();
}
