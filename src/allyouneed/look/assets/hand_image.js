// Images by hand: the pixels of a patch become a vector; the scores of a patch become a code.

import { h, paintImage, rounded, s, tool } from "look/draw.js";
import {
  absent, cells, everyNumber, formula, lines, num, products, row, step, times, unitField,
} from "look/hand_parts.js";

const SIDE = 240;

/** An image with its grid, of which one patch can be chosen. */
export async function gridImage(store, ref, grid, at, pick, label, key = "") {
  const cell = SIDE / grid, bytes = await store.numbers(ref);
  const svg = s("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, width: SIDE, height: SIDE, class: "gridimage", tabindex: 0,
    role: "img", "data-key": `${key}${label}`,
    "aria-label": `${label}, ${grid} by ${grid} patches; arrow keys choose one` },
    s("image", { width: SIDE, height: SIDE, preserveAspectRatio: "none",
      href: paintImage(bytes, ref.shape).toDataURL() }));
  for (let i = 1; i < grid; i++) svg.append(s("path", { class: "axis",
    d: `M${cell * i} 0V${SIDE}M0 ${cell * i}H${SIDE}` }));
  if (at >= 0) svg.append(s("rect", { class: "here", x: cell * (at % grid), y: cell * Math.floor(at / grid),
    width: cell, height: cell }));
  svg.addEventListener("click", (event) => {
    const { left, top, width, height } = svg.getBoundingClientRect();
    pick(Math.min(grid - 1, Math.floor((grid * (event.clientY - top)) / height)) * grid
      + Math.min(grid - 1, Math.floor((grid * (event.clientX - left)) / width)));
  });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid, ArrowUp: -grid }[event.key];
    const next = Math.max(0, at) + (by ?? 0);
    if (by && next >= 0 && next < grid * grid) { event.preventDefault(); pick(next); }
  });
  return h("figure", {}, svg, h("figcaption", { class: "tip" }, label));
}

/** The bytes of a patch, (rows, columns, 4) as RGBA. */
async function cut(store, ref, grid, at) {
  const bytes = await store.numbers(ref), [, width] = ref.shape, side = width / grid;
  const top = Math.floor(at / grid) * side, left = (at % grid) * side;
  const found = new Uint8ClampedArray(4 * side * side);
  for (let y = 0; y < side; y++) found.set(bytes.subarray(4 * ((top + y) * width + left),
    4 * ((top + y) * width + left + side)), 4 * side * y);
  return { bytes: found, side };
}

function large({ bytes, side }, label) {
  const canvas = paintImage(bytes, [side, side]);
  canvas.classList.add("patch");
  canvas.setAttribute("aria-label", label);
  return h("figure", {}, canvas, h("figcaption", { class: "tip" }, label));
}

/** The patch with the most contrast: there is something to see. */
async function busiest(store, ref, grid) {
  const found = await Promise.all(Array.from({ length: grid * grid }, (_, at) => cut(store, ref, grid, at)));
  const spread = found.map(({ bytes }) => [0, 1, 2].reduce((all, c) => {
    const values = Array.from({ length: bytes.length / 4 }, (_, i) => bytes[4 * i + c]);
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    return all + values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  }, 0));
  return spread.indexOf(Math.max(...spread));
}

const place = (at, grid) => `row ${Math.floor(at / grid) + 1}, column ${(at % grid) + 1}`;
const CHANNELS = { 1: [[0, "grey"]], 2: [[0, "grey"], [3, "alpha"]], 3: [[0, "red"], [1, "green"], [2, "blue"]],
  4: [[0, "red"], [1, "green"], [2, "blue"], [3, "alpha"]] };

export async function patches({ shown, store, state }) {
  const part = shown.hand.patches, { grid, image } = shown, count = grid * grid + part.skipped;
  const pinned = state.index("token", count);
  const token = pinned >= 0 ? pinned : (await busiest(store, image, grid)) + part.skipped, at = token - part.skipped;
  const pick = (patch) => state.set({ token: patch + part.skipped }), unit = Math.max(0, state.index("unit", 1e6));
  const choose = (unit) => state.set({ unit });
  const head = h("section", { class: "card" }, h("h2", {}, "A patch becomes a vector"),
    h("p", { class: "says" }, "An image is read as a text whose words are its patches. Choose one."),
    h("div", { class: "figure" }, await gridImage(store, image, grid, at, pick, "the image, as the model reads it"),
      at >= 0 ? large(await cut(store, image, grid, at), `patch ${place(at, grid)}`) : ""),
    part.skipped ? h("div", { class: "tools" },
      tool("[CLS]", at < 0, () => state.set({ token: 0 }), { "data-key": "cls" }),
      h("span", { class: "tip" }, "stands before the patches and sees no pixels")) : "");
  const refs = [part.matrix, part.bias, part.positions, part.first];
  if (!refs.every((ref) => !ref || store.has(ref))) return [head, absent("The matrices of this model")];
  const [matrix, bias, positions, first] = await Promise.all(refs.map((ref) => ref && store.numbers(ref)));
  const wide = part.matrix.shape[0], u = Math.min(unit, wide - 1);
  const position = positions && Array.from(row(positions, token, wide));
  const total = (values) => values.map((value, i) => value + (position ? position[i] : 0));
  if (at < 0) {
    const own = Array.from(first), given = total(own);
    return [head, step({ name: "vector", title: "The vector of [CLS]",
      says: "It is learned, like the vector of a word.", math: "x = cls + position" },
      lines(["cls", cells(own, { name: "cls" })], position && ["position", cells(position, { name: "position" })],
      ["x", cells(given, { name: "x", marked: u, pick: choose })]), everyNumber([["x", given]]))];
  }
  const patch = await cut(store, image, grid, at), { side } = patch, area = side * side;
  const channels = CHANNELS[part.channels];
  const bytes = channels.flatMap(([c]) => Array.from({ length: area }, (_, i) => patch.bytes[4 * i + c]));
  const channel = (i) => Math.floor(i / area);
  const pixels = bytes.map((value, i) => (value / 255 - part.mean[channel(i)]) / part.std[channel(i)]);
  const product = times(matrix, pixels, bias), given = total(product);
  const weights = Array.from(row(matrix, u, pixels.length));
  const small = (values, name, most) => h("div", { class: "figure tight" }, channels.map(([, colour], c) => {
    const label = (i) => `${name}, ${colour} [${Math.floor(i / side) + 1}, ${(i % side) + 1}]`;
    const how = { name: `${name}, ${colour}`, columns: side, size: Math.max(6, Math.min(22, 120 / side)), most, label };
    return h("figure", {}, cells(values.slice(c * area, (c + 1) * area), { ...how, key: `${name}${c}` }),
      h("figcaption", { class: "tip" }, colour));
  }));
  const most = (values) => values.reduce((m, value) => Math.max(m, Math.abs(value)), 1e-12);
  const plain = part.mean.every((value) => value === 0) && part.std.every((value) => value === 1);
  const each = pixels.map((value, i) => value * weights[i]);
  const sumOf = each.reduce((a, b) => a + b, 0) + (bias ? bias[u] : 0);
  return [head,
    step({ name: "pixels", title: "Its pixels",
      says: [`${side} × ${side} pixels with ${channels.length} ${channels.length > 1 ? "values" : "value"} each are`,
        ` ${pixels.length} numbers, one colour after the other. Each byte is divided by 255`,
        plain ? "." : "; the mean of the training images is taken off, the rest divided by their standard deviation."],
      math: plain ? "x = byte / 255" : "x = (byte / 255 − mean) / std",
      copy: () => ({ rows: channels.map(([, name]) => name),
        columns: Array.from({ length: area }, (_, i) => `${i + 1}`), values: pixels }) },
    small(pixels, "pixel", most(pixels)), h("div", { class: "scroll" },
      cells(pixels, { name: "x", key: "flat", label: (i) => `x [${i + 1}], byte ${bytes[i]}` })),
    everyNumber([["byte", bytes], ["x", pixels]])),
    step({ name: "unit", title: `Number ${u + 1} of the vector`,
      says: "A row of the matrix has a number for each pixel, so it is a small image itself. All products are added.",
      math: `(W x + b)_{${u + 1}} = Σ_i W_{${u + 1},i} x_i + b_{${u + 1}}`,
      copy: () => ({ rows: ["weight", "pixel", "product"], columns: pixels.map((_, i) => `${i + 1}`),
        values: [...weights, ...pixels, ...each] }) },
    h("p", {}, unitField("number", u, wide, choose)), small(weights, `row ${u + 1} of W`, most(weights)),
    products([`row ${u + 1} of W`, weights], ["x", pixels],
      { result: `(W x + b)_{${u + 1}}`, more: bias ? [[`b_{${u + 1}} =`, bias[u]]] : [], kind: "product",
      key: "unit" }),
    position ? h("p", { class: "sum" }, formula(`x_{${u + 1}} = `), num(sumOf), " + ",
      h("span", { class: "term" }, "position ", num(position[u])), " = ", h("b", {}, num(given[u], "value"))) : ""),
    step({ name: "vector", title: "The whole vector", says: position
      ? "With the vector of its position, so that the model knows where the patch was." : "What the first layer reads.",
      math: position ? "W x + b + position" : "W x + b",
      copy: () => ({ rows: ["W x + b", ...(position ? ["position"] : []), "sum"],
        columns: given.map((_, i) => `${i + 1}`), values: [...product, ...(position ?? []), ...given] }) },
    lines(["W x + b", cells(product, { name: "W x + b", marked: u, pick: choose })],
      position && ["position", cells(position, { name: "position", marked: u, pick: choose })],
      ["sum", cells(given, { name: "vector", marked: u, pick: choose })]),
    everyNumber([["W x + b", product], ...(position ? [["position", position]] : []), ["sum", given]])),
  ];
}

/** The digits of a code, the lowest first. */
const digitsOf = (code, { digits, levels }) => Array.from({ length: digits },
  (_, i) => Math.floor(code / levels ** i) % levels);

export async function codes({ shown, store, state }) {
  const part = shown.hand.codes, { grid, levels, digits } = part, compress = Boolean(part.scores);
  const copy = shown.answer?.image, count = grid * grid;
  const shift = shown.run.task === "draw" ? 0 : shown.hand.patches?.skipped ?? 0;
  const key = shown.run.task === "draw" ? "square" : "token";
  const at = state.index(key, count + shift) < 0 ? await busiest(store, shown.image ?? copy, grid)
    : state.index(key, count + shift) - shift;
  const pick = (patch) => state.set({ [key]: patch + shift }), code = part.codes[at], own = digitsOf(code, part);
  const even = part.codebook === "grid";
  const whole = (ref, label) => ref && gridImage(store, ref, grid, at, pick, label);
  const images = [await whole(shown.image, "the image, as the model reads it"),
    await whole(copy, compress ? "the copy, made from the codes" : "the drawing")];
  const heading = compress ? "A patch becomes a code, and the code a patch" : "A code becomes a patch";
  const head = h("section", { class: "card" }, h("h2", {}, heading), h("p", { class: "says" },
    `The image is ${grid} × ${grid} codes, each one of ${(levels ** digits).toLocaleString("en")}. Choose one.`),
  h("div", { class: "figure" }, images.filter(Boolean)));
  const refs = [part.scores, part.vectors, part.unfold.matrix, part.unfold.bias].filter(Boolean);
  if (!refs.every((ref) => store.has(ref))) return [head, absent("The scores of these codes")];
  const scores = compress && Array.from(row(await store.numbers(part.scores), at, part.scores.shape[1]));
  const sections = [head];
  if (compress) sections.push(even ? byRounding(scores, own, part, at) : byLargest(scores, code, at, grid));
  if (even) {
    sections.push(step({ name: "code", title: `The code ${code}`,
      says: `The digits are one number, written in base ${levels} with the lowest digit first.`,
      math: `code = Σ_i digit_i · ${levels}^{i−1}` },
      h("p", { class: "sum" }, own.map((digit, i) => [i ? " + " : "",
        h("span", { class: "term" }, num(digit, "digit"), " · ", `${levels ** i}`)]).flat(), " = ",
        h("b", {}, num(own.reduce((all, digit, i) => all + digit * levels ** i, 0), "code")))));
  }
  const vector = even ? own.map((digit) => (2 * digit) / (levels - 1) - 1)
    : Array.from(row(await store.numbers(part.vectors), at, digits));
  const matrix = await store.numbers(part.unfold.matrix);
  const bias = part.unfold.bias && (await store.numbers(part.unfold.bias)), given = times(matrix, vector, bias);
  const pair = [shown.image && large(await cut(store, shown.image, grid, at), "the patch"),
    copy && large(await cut(store, copy, grid, at), compress ? "its copy" : "what is drawn there")];
  sections.push(step({ name: "decode", title: "The code becomes a patch",
    says: ["A code stands for a few numbers", even ? ` between −1 and 1. ` : ". ",
    "A matrix makes a vector of them; the decoder reads it with its neighbours, and gives pixels."],
    math: even ? [`a_i = 2 · digit_i / ${levels - 1} − 1`, "x = W a + b"] : ["a = codebook[code]", "x = W a + b"],
    copy: () => ({ rows: ["x"], columns: given.map((_, i) => `${i + 1}`), values: given }) },
  lines(["a", cells(vector, { name: "a", most: even ? 1 : undefined }), vector.map(rounded).slice(0, 8).join("   ")]),
    lines(["x", cells(given, { name: "x", key: "unfold" })]), everyNumber([["x", given]], "all numbers of x"),
    h("div", { class: "figure" }, pair.filter(Boolean))));
  return sections;
}

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
