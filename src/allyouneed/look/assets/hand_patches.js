// Patches by hand: the pixels of a patch become a vector.

import { h, tool } from "look/draw.js";
import { busiest, cut, gridImage, large, place } from "look/hand_image.js";
import {
  absent, cells, everyNumber, formula, lines, num, products, row, step, times, unitField,
} from "look/hand_parts.js";

// By how many values a pixel has: which of its bytes they are.
const CHANNELS = {
  1: [[0, "grey"]], 2: [[0, "grey"], [3, "alpha"]], 3: [[0, "red"], [1, "green"], [2, "blue"]],
  4: [[0, "red"], [1, "green"], [2, "blue"], [3, "alpha"]],
};

const names = (values) => values.map((_, i) => `${i + 1}`);
const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-12);
const sum = (values) => values.reduce((a, b) => a + b, 0);

class Patches {
  constructor({ shown, store, state }) {
    const { hand: { patches: part }, grid, image } = shown;
    Object.assign(this, { part, grid, image, store, state, wide: part.matrix.shape[0] });
    this.unit = Math.min(Math.max(0, state.index("unit", 1e6)), this.wide - 1);
    this.pick = (unit) => state.set({ unit });
  }

  async sections() {
    await this.choose();
    const head = await this.head();
    if (!await this.load()) return [head, absent("The matrices of this model")];
    if (this.at < 0) return [head, this.clsStep()];
    await this.compute();
    return [head, this.pixelStep(), this.unitStep(), this.vectorStep()];
  }

  /** The token that is shown, and its patch; [CLS] has none. */
  async choose() {
    const { part: { skipped }, grid, image, store, state } = this;
    const token = state.index("token", grid * grid + skipped);
    this.token = token >= 0 ? token : skipped + await busiest(store, image, grid);
    this.at = this.token - skipped;
  }

  async head() {
    const { part: { skipped }, grid, image, store, state, at } = this;
    const pick = (patch) => state.set({ token: patch + skipped });
    const whole = await gridImage(store, image, grid, at, pick, "the image, as the model reads it");
    return h("section", { class: "card" }, h("h2", {}, "A patch becomes a vector"),
      h("p", { class: "says" }, "An image is read as a text whose words are its patches. Choose one."),
      h("div", { class: "figure" }, whole,
        at >= 0 ? large(await cut(store, image, grid, at), `patch ${place(at, grid)}`) : ""),
      skipped ? h("div", { class: "tools" },
        tool("[CLS]", at < 0, () => state.set({ token: 0 }), { "data-key": "cls" }),
        h("span", { class: "tip" }, "stands before the patches and sees no pixels")) : "");
  }

  /** The weights; false if the page does not have them. */
  async load() {
    const { part, store, wide } = this, refs = [part.matrix, part.bias, part.positions, part.first];
    if (!refs.every((ref) => !ref || store.has(ref))) return false;
    const [matrix, bias, positions, first] = await Promise.all(refs.map((ref) => ref && store.numbers(ref)));
    Object.assign(this, { matrix, bias, first, position: positions && Array.from(row(positions, this.token, wide)) });
    return true;
  }

  withPosition(values) {
    return values.map((value, i) => value + (this.position ? this.position[i] : 0));
  }

  /** A strip of the vector, in which one of its numbers is marked. */
  strip(values, name) {
    return cells(values, { name, marked: this.unit, pick: this.pick });
  }

  clsStep() {
    const { position } = this, own = Array.from(this.first), given = this.withPosition(own);
    return step({
      name: "vector", title: "The vector of [CLS]", says: "It is learned, like the vector of a word.",
      math: "x = cls + position",
    },
    lines(["cls", cells(own, { name: "cls" })], position && ["position", cells(position, { name: "position" })],
      ["x", this.strip(given, "x")]),
    everyNumber([["x", given]]));
  }

  /** The pixels of the patch, what a row of the matrix makes of them, and the vector. */
  async compute() {
    const { part, store, image, grid, at, matrix, bias, unit } = this, patch = await cut(store, image, grid, at);
    this.channels = CHANNELS[part.channels];
    this.side = patch.side;
    this.area = patch.side ** 2;
    const channel = (i) => Math.floor(i / this.area), pixel = (c) => (_, i) => patch.bytes[4 * i + c];
    this.bytes = this.channels.flatMap(([c]) => Array.from({ length: this.area }, pixel(c)));
    this.pixels = this.bytes.map((value, i) => (value / 255 - part.mean[channel(i)]) / part.std[channel(i)]);
    this.weights = Array.from(row(matrix, unit, this.pixels.length));
    this.product = times(matrix, this.pixels, bias);
    this.vector = this.withPosition(this.product);
  }

  /** Numbers as a small image for each colour. */
  images(values, name) {
    const { area, side } = this, most = largest(values), size = Math.max(6, Math.min(22, 120 / side));
    const one = ([, colour], c) => {
      const label = (i) => `${name}, ${colour} [${Math.floor(i / side) + 1}, ${(i % side) + 1}]`;
      const how = { name: `${name}, ${colour}`, columns: side, size, most, label, key: `${name}${c}` };
      return h("figure", {}, cells(values.slice(c * area, (c + 1) * area), how),
        h("figcaption", { class: "tip" }, colour));
    };
    return h("div", { class: "figure tight" }, this.channels.map(one));
  }

  pixelStep() {
    const { side, channels, pixels, bytes, area, part: { mean, std } } = this;
    const plain = mean.every((value) => value === 0) && std.every((value) => value === 1);
    const normal = plain ? "." : "; the mean of the training images is taken off, the rest divided by their standard "
      + "deviation.";
    return step({
      name: "pixels", title: "Its pixels",
      says: [`${side} × ${side} pixels with ${channels.length} ${channels.length > 1 ? "values" : "value"} each are`,
        ` ${pixels.length} numbers, one colour after the other. Each byte is divided by 255`, normal],
      math: plain ? "x = byte / 255" : "x = (byte / 255 − mean) / std",
      copy: () => ({ rows: channels.map(([, name]) => name), columns: names(pixels.slice(0, area)), values: pixels }),
    },
    this.images(pixels, "pixel"),
    h("div", { class: "scroll" },
      cells(pixels, { name: "x", key: "flat", label: (i) => `x [${i + 1}], byte ${bytes[i]}` })),
    everyNumber([["byte", bytes], ["x", pixels]]));
  }

  /** One number of the vector, as a sum over all pixels. */
  unitStep() {
    const { unit, pixels, weights, bias, wide } = this, n = unit + 1;
    const each = pixels.map((value, i) => value * weights[i]);
    const more = bias ? [[`b_{${n}} =`, bias[unit]]] : [];
    return step({
      name: "unit", title: `Number ${n} of the vector`,
      says: "A row of the matrix has a number for each pixel, so it is a small image itself. All products are added.",
      math: `(W x + b)_{${n}} = Σ_i W_{${n},i} x_i + b_{${n}}`,
      copy: () => ({
        rows: ["weight", "pixel", "product"], columns: names(pixels), values: [...weights, ...pixels, ...each],
      }),
    },
    h("p", {}, unitField("number", unit, wide, this.pick)), this.images(weights, `row ${n} of W`),
    products([`row ${n} of W`, weights], ["x", pixels],
      { result: `(W x + b)_{${n}}`, more, kind: "product", key: "unit" }),
    this.position ? this.positionSum(sum(each) + (bias ? bias[unit] : 0)) : "");
  }

  positionSum(product) {
    const { unit, position, vector } = this;
    return h("p", { class: "sum" }, formula(`x_{${unit + 1}} = `), num(product), " + ",
      h("span", { class: "term" }, "position ", num(position[unit])), " = ", h("b", {}, num(vector[unit], "value")));
  }

  vectorStep() {
    const { position, product, vector } = this, also = position ? [["position", position]] : [];
    const columns = [["W x + b", product], ...also, ["sum", vector]];
    return step({
      name: "vector", title: "The whole vector",
      says: position
        ? "With the vector of its position, so that the model knows where the patch was."
        : "What the first layer reads.",
      math: position ? "W x + b + position" : "W x + b",
      copy: () => ({
        rows: columns.map(([name]) => name), columns: names(vector), values: columns.flatMap(([, values]) => values),
      }),
    },
    lines(["W x + b", this.strip(product, "W x + b")], position && ["position", this.strip(position, "position")],
      ["sum", this.strip(vector, "vector")]),
    everyNumber(columns));
  }
}

export const patches = (context) => new Patches(context).sections();
