// Codes by hand: the scores of a patch become a code, and the code a patch.

import { h, rounded, s } from "look/draw.js";
import { busiest, cut, gridImage, large, place } from "look/hand_image.js";
import { absent, cells, everyNumber, lines, num, row, step, times } from "look/hand_parts.js";

/** The digits of a code, the lowest first. */
const digitsOf = (code, { digits, levels }) => {
  return Array.from({ length: digits }, (_, i) => Math.floor(code / levels ** i) % levels);
};

class Codes {
  constructor({ shown, store, state }) {
    const { image, answer, run, hand: { codes: part, patches } } = shown, draws = run.task === "draw";
    Object.assign(this, { image, store, state, part, grid: part.grid, copy: answer?.image });
    this.compress = Boolean(part.scores); // the model also reads images
    this.even = part.codebook === "grid"; // a code is several digits, each of them rounded
    this.key = draws ? "square" : "token";
    this.shift = draws ? 0 : patches?.skipped ?? 0;
  }

  async sections() {
    const { part, store } = this;
    await this.choose();
    const head = await this.head();
    const refs = [part.scores, part.vectors, part.unfold.matrix, part.unfold.bias].filter(Boolean);
    if (!refs.every((ref) => store.has(ref))) return [head, absent("The scores of these codes")];
    const found = [head];
    if (this.compress) found.push(await this.scoreStep());
    if (this.even) found.push(this.codeStep());
    return [...found, await this.patchStep()];
  }

  /** The code that is shown, and where it is in the image. */
  async choose() {
    const { state, grid, part, shift } = this, chosen = state.index(this.key, grid * grid + shift);
    this.at = chosen < 0 ? await busiest(this.store, this.image ?? this.copy, grid) : chosen - shift;
    this.code = part.codes[this.at];
    this.digits = digitsOf(this.code, part);
  }

  async head() {
    const { store, grid, at, compress, part: { levels, digits } } = this;
    const pick = (patch) => this.state.set({ [this.key]: patch + this.shift });
    const whole = (ref, label) => ref && gridImage(store, ref, grid, at, pick, label);
    const images = [await whole(this.image, "the image, as the model reads it"),
      await whole(this.copy, compress ? "the copy, made from the codes" : "the drawing")];
    const heading = compress ? "A patch becomes a code, and the code a patch" : "A code becomes a patch";
    return h("section", { class: "card" }, h("h2", {}, heading), h("p", { class: "says" },
      `The image is ${grid} × ${grid} codes, each one of ${(levels ** digits).toLocaleString("en")}. Choose one.`),
    h("div", { class: "figure" }, images.filter(Boolean)));
  }

  async scoreStep() {
    const { part, at, grid } = this, all = await this.store.numbers(part.scores);
    const scores = Array.from(row(all, at, part.scores.shape[1]));
    return this.even ? byRounding(scores, this.digits, part, at) : byLargest(scores, this.code, at, grid);
  }

  codeStep() {
    const { code, digits, part: { levels } } = this;
    const term = (digit, i) => [
      i ? " + " : "", h("span", { class: "term" }, num(digit, "digit"), " · ", `${levels ** i}`),
    ];
    return step({
      name: "code", title: `The code ${code}`,
      says: `The digits are one number, written in base ${levels} with the lowest digit first.`,
      math: `code = Σ_i digit_i · ${levels}^{i−1}`,
    }, h("p", { class: "sum" }, digits.flatMap(term), " = ", h("b", {}, num(code, "code"))));
  }

  /** The numbers that the code stands for. */
  async vector() {
    const { part, digits, at, store } = this;
    if (this.even) return digits.map((digit) => (2 * digit) / (part.levels - 1) - 1);
    return Array.from(row(await store.numbers(part.vectors), at, digits.length));
  }

  async patchStep() {
    const { even, store, part: { levels, unfold } } = this, vector = await this.vector();
    const matrix = await store.numbers(unfold.matrix), bias = unfold.bias && await store.numbers(unfold.bias);
    const given = times(matrix, vector, bias);
    return step({
      name: "decode", title: "The code becomes a patch",
      says: ["A code stands for a few numbers", even ? ` between −1 and 1. ` : ". ",
        "A matrix makes a vector of them; the decoder reads it with its neighbours, and gives pixels."],
      math: [even ? `a_i = 2 · digit_i / ${levels - 1} − 1` : "a = codebook[code]", "x = W a + b"],
      copy: () => ({ rows: ["x"], columns: given.map((_, i) => `${i + 1}`), values: given }),
    },
    lines(["a", cells(vector, { name: "a", most: even ? 1 : undefined }), vector.map(rounded).slice(0, 8).join("   ")]),
    lines(["x", cells(given, { name: "x", key: "unfold" })]), everyNumber([["x", given]], "all numbers of x"),
    h("div", { class: "figure" }, await this.pair()));
  }

  /** The patch, and what the code makes of it. */
  async pair() {
    const { store, image, copy, grid, at } = this, one = async (ref, label) => {
      return ref && large(await cut(store, ref, grid, at), label);
    };
    const found = [await one(image, "the patch"), await one(copy, this.compress ? "its copy" : "what is drawn there")];
    return found.filter(Boolean);
  }
}

export const codes = (context) => new Codes(context).sections();

/** Each score is pressed between 0 and the highest level, and rounded. */
function byRounding(scores, own, { levels, grid }, at) {
  const line = (score, i) => {
    const pressed = Math.tanh(score), level = ((pressed + 1) / 2) * (levels - 1);
    const cell = (value, kind) => h("td", { class: "number" }, num(value, kind));
    return h("tr", {}, h("th", { scope: "row" }, `digit ${i + 1}`), cell(score, "score"), cell(pressed, "tanh"),
      cell(level, "level"), cell(own[i], "digit"), h("td", {}, scale(level, own[i], levels)));
  };
  const names = ["", "score s", "tanh(s)", "level", "digit", ""];
  return step({ name: "digits", title: "Scores become digits",
    says: [`The encoder gives ${scores.length} numbers for the patch in ${place(at, grid)}. `,
      `Each is pressed between 0 and ${levels - 1} and rounded: ${levels} levels.`],
    math: `digit = round((tanh(s) + 1) / 2 · ${levels - 1})`,
    copy: () => ({ rows: scores.map((_, i) => `digit ${i + 1}`), columns: ["score", "digit"],
      values: scores.flatMap((score, i) => [score, own[i]]) }) },
  h("div", { class: "scroll" }, h("table", { class: "keys" },
    h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, scores.map(line)))));
}

/** Where a number falls between the levels. */
function scale(value, digit, levels) {
  const x = (level) => 8 + (144 * level) / (levels - 1);
  return s("svg", { viewBox: "0 0 160 24", width: 160, height: 24, role: "img",
    "aria-label": `level ${rounded(value)}, rounded to ${digit}` }, s("path", { class: "axis", d: "M8 12H152" }),
    Array.from({ length: Math.min(levels, 33) }, (_, level) =>
      s("circle", { cx: x(level), cy: 12, r: level === digit ? 5 : 2.5,
      class: level === digit ? "level on" : "level" })), s("path", { class: "needle", d: `M${x(value)} 4V20` }));
}

/** Of all codes, the one with the largest score. */
function byLargest(scores, code, at, grid) {
  const order = scores.map((_, i) => i).sort((a, b) => scores[b] - scores[a]).slice(0, 10);
  const line = (i) => h("tr", { class: i === code ? "pinned" : "" },
    h("th", { scope: "row" }, h("span", { class: "number" }, `${i}`)),
    h("td", { class: "number" }, num(scores[i], "score")));
  return step({ name: "digits", title: "The code with the largest score",
    says: [`The encoder gives the patch in ${place(at, grid)} a score for each of the `,
      `${scores.length.toLocaleString("en")} codes.`],
    math: "code = argmax_k s_k",
    copy: () => ({ rows: ["score"], columns: scores.map((_, i) => `${i}`), values: scores }) },
  h("table", { class: "keys" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "code"), h("th", { scope: "col" }, "score"))),
    h("tbody", {}, order.map(line))));
}
