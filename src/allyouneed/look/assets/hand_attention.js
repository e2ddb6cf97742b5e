// Attention by hand: a query meets its keys; what comes of it, up to what is added to the token's vector.

import { chosen, GROUPS, strip } from "look/attention.js";
import { h, meter, rounded, short, tool, visible } from "look/draw.js";
import { gridImage } from "look/hand_image.js";
import {
  absent, cells, dot, everyNumber, fetched, formula, lines, num, products, row, step, sum, times, unitField,
} from "look/hand_parts.js";

const ROWS = 40, FIRST = 16; // of more keys than ROWS, only the FIRST with the largest weights are shown at first
const STRIP = 120; // tokens that are buttons above

// What each score is called, and what follows the product of a query and a key.
const SCORES = {
  scaled_dot: ["scaled dot product", "s_j = q · k_j / √d", "/ √d"],
  dot: ["dot product", "s_j = q · k_j"],
  general: ["general score (Luong)", "s_j = q · k_j"],
  cosine: ["cosine", "s_j = q · k_j / (|q| |k_j|)", "/ |q||k|"],
  additive: ["additive score (Bahdanau)", "s_j = v · tanh(W q + k_j)"],
};

// What queries, keys and values are made of, by the kind of module.
const MADE = {
  Attention({ out, rotary }, group) {
    if (!out) return { q: "q = x_i", k: "k_j = x_j", v: "v_j = x_j" };
    const b = out.bias ? " + b" : "", y = group === "cross" ? "y" : "x";
    const turned = (side, text) => (rotary ? `R_${side} (${text})` : text);
    return { q: `q = ${turned("i", `W^Q x_i${b}`)}`, k: `k_j = ${turned("j", `W^K ${y}_j${b}`)}`,
      v: `v_j = W^V ${y}_j${b}` };
  },
  ConvAttention: () => ({ q: "q = W h_i + b + g_i", k: "k_j = z_j", v: "v_j = (z_j + e_j) √½" }),
  Score({ score }) {
    const k = { additive: "k_j = U h_j + b", general: "k_j = W h_j" }[score] ?? "k_j = h_j";
    return { q: "q = s_{t−1}", k, v: "v_j = h_j" };
  },
};
const SAYS = {
  Attention: "",
  ConvAttention: " It comes from the decoder's convolution and the word before.",
  Score: " It is the state of the decoder before this word.",
};

const length = (values) => Math.max(1e-12, Math.sqrt(dot(values, values)));

/** The scores of a query with all keys: {products, scores}, and for the additive score what is inside. */
function score(layer, q, keys, { query, v }) {
  if (layer.score === "additive") {
    const asked = times(query, q), inside = keys.map((k) => Array.from(k, (value, i) => Math.tanh(value + asked[i])));
    const scores = inside.map((one) => dot(one, v));
    return { products: scores, scores, asked, inside };
  }
  const found = keys.map((k) => dot(q, k));
  const by = (k) => (layer.score === "cosine" ? length(q) * length(k) : layer.score === "scaled_dot"
    ? Math.sqrt(q.length) : 1);
  return { products: found, scores: found.map((value, j) => value / by(keys[j])) };
}

function softmax(scores, allowed) {
  const masked = scores.map((value, j) => (allowed(j) ? value : -Infinity)), top = Math.max(...masked);
  const less = top > 80 ? top : 0; // exp of more has no number
  const exps = masked.map((value) => Math.exp(value - less)), total = exps.reduce((a, b) => a + b, 0);
  return { masked, exps, total, less, weights: exps.map((value) => value / total) };
}

/** All that is computed for a query: for every head, as the last step needs them all. */
function compute(layer, arrays, at) {
  const [heads, rows, wide] = layer.queries.shape, [groups, count] = layer.keys.shape;
  const vectors = (name, group) => {
    const wide = layer[name].shape[2];
    return Array.from({ length: count }, (_, j) => row(arrays[name], group * count + j, wide));
  };
  return Array.from({ length: heads }, (_, head) => {
    const group = Math.floor((head * groups) / heads), q = row(arrays.queries, head * rows + at, wide);
    const k = vectors("keys", group), v = vectors("values", group), found = { q, k, v, ...score(layer, q, k, arrays) };
    Object.assign(found, softmax(found.scores, (j) => !layer.causal || j <= at));
    found.z = Array.from(v[0], (_, u) => found.weights.reduce((all, w, j) => all + w * v[j][u], 0));
    return found;
  });
}

const word = (text) => h("bdi", { class: "number tokenname" }, short(visible(text), 18));
const numbered = (values) => Array.from(values, (_, i) => `${i + 1}`);

/** Which layer, head and tokens this is about. */
async function choose({ shown, store, state }, now, at, head, columns, seen) {
  const rows = shown.sequences[now.layer.rows], { heads } = now.layer;
  const pickers = (label, ...tools) => h("div", { class: "pickers" }, h("span", { class: "label" }, label), tools);
  const groups = [...new Set(shown.attention.map((layer) => layer.group))];
  const layer = (one, i) => tool(`layer ${one.layer}`, i === now.at, () => state.set({ layer: i }),
    { "data-key": `layer-${i}` });
  const each = (_, i) => tool(`${i + 1}`, i === head, () => state.set({ layer: now.at, head: i }),
    { "data-key": `head-${i}`, "aria-label": `head ${i + 1}` });
  return h("section", { class: "card" }, h("h2", {}, "Attention of one token, number by number"),
    shown.attention.length > 1 && groups.map((group) =>
      pickers(GROUPS[group], ...shown.attention.map((one, i) => one.group === group && layer(one, i)))),
    heads.length > 1 && pickers("Head", ...heads.map(each)),
    shown.run.precision !== "fp32" && h("p", { class: "tip" },
      `The model computes with ${shown.run.precision}. The page`
      + " goes on from its queries, keys and values with more digits, so the last digits may differ."),
    h("div", { class: "choices" },
      h("div", {}, h("h3", {}, "The token that attends, with its query"),
        await picker(shown, store, rows, at, (token) => state.set({ token }), "query")),
      h("div", {}, h("h3", {}, "A token that it attends to, with its key"),
        await picker(shown, store, columns, seen, (token) => state.set({ seen: token }), "key"))));
}

/** Tokens to choose one of: on the image, if they are its patches; a field, if they are very many. */
async function picker(shown, store, sequence, at, pick, key) {
  const image = shown.image ?? shown.answer?.image, grid = shown.grid ?? shown.hand.codes?.grid;
  if (image && grid) {
    const words = sequence.tokens.length - grid * grid + (shown.run.task === "draw" ? 1 : 0);
    const before = strip({ ...sequence, tokens: sequence.tokens.slice(0, words) }, at, () => {},
      (token) => pick(token === "" ? at : token));
    const most = (patch) => pick(Math.min(patch + words, sequence.tokens.length - 1));
    return h("div", { class: "figure tight" }, await gridImage(store, image, grid, at - words, most,
      at < words ? "the patches" : `patch ${sequence.tokens[at]}`, key), before);
  }
  if (sequence.tokens.length > STRIP) return h("p", {}, unitField("token", at, sequence.tokens.length, pick),
    word(sequence.tokens[at]));
  const found = strip(sequence, at, () => {}, (token) => pick(token === "" ? at : token));
  [...found.children].forEach((button, i) => { button.dataset.key = `${key}-${i}`; });
  return found;
}

/** The largest number of some vectors: their strips have the same colours. */
const largest = (vectors) => vectors.reduce((most, values) => values.reduce((m, v) => Math.max(m, Math.abs(v)), most),
  1e-12);

/** The table of all keys, a row for each. */
function table({ state }, layer, one, tokens, seen) {
  const by = SCORES[layer.score][2], all = tokens.length <= ROWS || state.get("rows") === "all",
    order = tokens.map((_, j) => j);
  const first = [...order].sort((a, b) => one.weights[b] - one.weights[a]).slice(0, FIRST);
  const rows = all ? order : order.filter((j) => j === seen || first.includes(j));
  const mostK = largest(rows.map((j) => one.k[j])), mostV = largest(rows.map((j) => one.v[j])),
    bar = Math.max(...one.weights);
  const names = ["token", "k_j", layer.score === "additive" ? "v · tanh(…)" : "q · k_j", by, "mask",
    one.less ? "exp(s − max)" : "exp(s_j)", "weight w_j", "", "v_j"];
  const cell = (...content) => h("td", { class: "number" }, content);
  const vector = (name, values, most, j) => {
    const size = Math.min(3, 96 / values.length), key = `${name}${j}`;
    return h("td", {}, cells(Array.from(values), { name: `${name} of token ${j + 1}`, most, size, key }));
  };
  const line = (j) => {
    const blocked = one.masked[j] === -Infinity;
    return h("tr", { class: `${j === seen ? "pinned" : ""}${blocked ? " masked" : ""}`, "data-seen": j },
      h("th", { scope: "row" }, h("button", {
        type: "button", class: "token", "data-key": `row-${j}`, "aria-pressed": String(j === seen), dir: "auto",
        onclick: () => state.set({ seen: j }),
      }, short(visible(tokens[j]), 14))),
      vector("k", one.k[j], mostK, j),
      cell(num(one.products[j], "dot")), by && cell(num(one.scores[j], "score")),
      cell(h("span", { class: "mask" }, blocked ? "−∞" : "0")), cell(num(one.exps[j], "exp")),
        cell(num(one.weights[j], "weight")),
      h("td", {}, meter(one.weights[j] / bar, j === seen ? "pinned" : "")),
      vector("v", one.v[j], mostV, j));
  };
  const more = () => tool(all ? "only the largest weights" : `all ${tokens.length} tokens`, false,
    () => state.set({ rows: all ? "" : "all" }), { "aria-pressed": undefined, "data-key": "rows" });
  return h("div", {}, h("div", { class: "scroll" }, h("table", { class: "keys" },
    h("thead", {}, h("tr", {}, names.map((name) => name !== undefined && h("th", { scope: "col" }, formula(name))))),
    h("tbody", {}, rows.map(line)),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row", colspan: by ? 5 : 4 },
      `sum of ${tokens.length > rows.length ? "all " : ""}${tokens.length}`),
      cell(num(one.total, "total")), cell("1"), h("td", {}), h("td", {}))))),
    tokens.length > ROWS && h("div", { class: "tools" }, more()));
}

/** How the chosen key's score comes about. */
function oneScore(layer, one, seen, v) {
  const k = Array.from(one.k[seen]), name = `k_{${seen + 1}}`, s = `s_{${seen + 1}}`;
  if (layer.score === "additive") {
    return [
      lines(["W q", cells(one.asked, { name: "W q" })], [name, cells(k, { name: "k" })]),
      h("p", { class: "tip" }, "Their sum goes through tanh, number by number; the result is multiplied by v:"),
      products(["tanh(W q + k)", one.inside[seen]], ["v", Array.from(v)], { result: s, kind: "dot" }),
    ];
  }
  const after = { scaled_dot: ` / √${k.length}`, cosine: " / (|q| |k|)" }[layer.score];
  return [
    products(["q", Array.from(one.q)], [name, k], { result: `q · ${name}`, kind: "dot" }),
    after && h("p", { class: "sum" }, formula(`${s} = `), num(one.products[seen]), after, " = ",
      h("b", {}, num(one.scores[seen], "score"))),
  ];
}

/** z_u as a sum over the tokens, the largest parts first. */
function weighted(one, u) {
  const size = (j) => Math.abs(one.weights[j] * one.v[j][u]),
    order = one.weights.map((_, j) => j).sort((a, b) => size(b) - size(a));
  const weights = order.map((j) => one.weights[j]), values = order.map((j) => one.v[j][u]);
  return sum(weights, values, { result: `z_{${u + 1}} = Σ_j w_j v_{j,${u + 1}}`, kind: "z", most: 4 });
}

export async function attention(context) {
  const { shown, store, state } = context, now = chosen(shown, state), layer = shown.hand.attention[now.at];
  const head = Number(now.head) < now.layer.heads.length ? Number(now.head) : 0;
  const rows = shown.sequences[now.layer.rows].tokens, columns = shown.sequences[now.layer.columns],
    names = columns.tokens;
  const pinned = state.index("token", rows.length), at = pinned >= 0 ? pinned : layer.causal ? rows.length - 1 : 0;
  const { queries, keys, values, query, v } = layer, arrays = await fetched(store,
    { queries, keys, values, query: query?.matrix, v });
  if (!arrays) return [await choose(context, now, at, head, columns, 0),
    absent("The queries, keys and values of this text")];
  const each = compute(layer, arrays, at), one = each[head], best = one.weights.indexOf(Math.max(...one.weights));
  const seen = state.index("seen", names.length) < 0 ? best : state.index("seen", names.length);
  const made = MADE[layer.kind](layer, now.layer.group), [scoreName, scoreMath] = SCORES[layer.score];
  const shared = layer.keys.shape[0] < each.length, several = each.length > 1;
  const u = Math.min(Math.max(0, state.index("unit", 1e6)), one.z.length - 1), pick = (unit) => state.set({ unit });
  const score = (j) => [one.products[j], one.scores[j], one.masked[j], one.exps[j], one.weights[j]];
  return [
    await choose(context, now, at, head, columns, seen),
    step({
      name: "query", title: "The query", math: made.q,
      says: ["What ", word(rows[at]), ` asks for${several ? " in this head" : ""}: ${one.q.length} numbers.`,
        SAYS[layer.kind],
        layer.rotary && " R turns it by its position."],
      copy: () => ({ rows: ["q"], columns: numbered(one.q), values: Array.from(one.q) }),
    }, lines(["q", cells(Array.from(one.q), { name: "q" })]), everyNumber([["q", one.q]])),
    step({
      name: "score", title: ["The score of one key: ", word(names[seen])], math: [made.k, scoreMath],
      says: `How well this key fits the query; here as ${scoreName}. Choose another key above or in the table below.`,
    }, oneScore(layer, one, seen, arrays.v),
    shared && h("p", { class: "tip" },
      `${each.length} heads of queries share ${layer.keys.shape[0]} of keys and values.`)),
    step({
      name: "softmax", title: "All keys: scores become weights", math: "w_j = exp(s_j) / Σ_i exp(s_i)",
      says: ["Softmax makes all scores positive, and their sum 1.",
        layer.causal
          && " A token may not look ahead: the scores of later tokens become −∞, so that their weight is 0."],
      copy: () => ({ rows: names, columns: ["product", "score", "masked", "exp", "weight"],
        values: names.flatMap((_, j) => score(j)) }),
    }, table(context, layer, one, names, seen),
    everyNumber([["product", one.products], ["s", one.scores], ["masked", one.masked], ["exp", one.exps],
      ["w", one.weights]])),
    step({
      name: "values", title: "The weighted sum of the values", math: [made.v, "z = Σ_j w_j v_j"],
      says: `Each value counts as much as its weight says. Choose one of the ${one.z.length} numbers of z.`,
      copy: () => ({
        rows: [...names.map((name) => `v ${name}`), "z"], columns: numbered(one.z),
        values: [...one.v.flatMap((v) => Array.from(v)), ...one.z],
      }),
    }, lines(["z", cells(one.z, { name: "z", marked: u, pick }), unitField("number", u, one.z.length, pick)]),
    weighted(one, u), everyNumber([["z", one.z]])),
    ...(await after(context, layer, each, head)),
  ];
}

/** What becomes of z: through W^O, and with the other heads. */
async function after({ store, state }, layer, each, head) {
  if (!layer.out) return [withoutMatrix(each)];
  const found = await fetched(store, layer.out), [count, wide] = layer.out.matrix.shape, { z } = each[head],
    from = head * z.length;
  if (!found) return [absent("The matrices of this model")];
  const at = Math.min(Math.max(0, state.index("to", 1e6)), count - 1), pick = (to) => state.set({ to });
  const { matrix, bias } = found, adds = each.map((one, i) => times(matrix, one.z, null, i * z.length, wide));
  const slice = numbered({ length: count }).map((_, u) =>
    Array.from(row(matrix, u, wide).subarray(from, from + z.length)));
  return [
    step({
      name: "out", title: each.length > 1 ? "What this head adds to the vector of the token" : "A matrix behind it",
      math: each.length > 1 ? "W^O_h z" : "W^O z",
      says: each.length > 1 ? [formula("W^O"), ` has ${wide} columns; this head owns ${z.length} of them.`]
        : `It makes of z a vector as wide as the model: ${count} numbers.`,
      copy: () => ({ rows: numbered(slice), columns: numbered(z), values: slice.flat() }),
    }, outputs(slice, z, adds[head], at, pick)),
    together(adds, bias && Array.from(bias), at, pick),
  ];
}

function withoutMatrix(each) {
  const z = each.flatMap((one) => one.z), several = each.length > 1;
  return step({
    name: "out", title: "What the attention gives", math: several ? "[z_1; z_2; …]" : "c_t = z",
    says: several ? "No matrix stands behind this attention: the heads are put side by side."
      : "This is the context c: the decoder reads it beside the word before.",
  }, lines([several ? "all heads" : "c", cells(z, { name: "given", key: "given" })]));
}

/** The matrix W^O: what the numbers of z become in the token's vector. */
function outputs(slice, z, adds, at, pick) {
  const label = (i) => `W^O [${Math.floor(i / z.length) + 1}, ${(i % z.length) + 1}]`,
    size = Math.max(2, Math.min(6, 320 / slice.length));
  return h("div", { class: "figure" },
    h("figure", {}, cells(slice.flat(), { name: "W^O", columns: z.length, size, label, key: "wo" }),
      h("figcaption", { class: "tip" }, `${slice.length} × ${z.length} numbers of W`, h("sup", {}, "O"))),
    h("div", { class: "beside" },
      lines(["W^O z", cells(adds, { name: "adds", marked: at, pick }), unitField("number", at, adds.length, pick)]),
      products([`row ${at + 1} of W^O`, slice[at]], ["z", z],
        { result: `(W^O z)_{${at + 1}}`, kind: "adds", key: "wo-" })));
}

/** The sum over the heads. */
function together(adds, bias, at, pick) {
  const total = adds[0].map((_, u) => adds.reduce((sum, values) => sum + values[u], bias ? bias[u] : 0)),
    several = adds.length > 1;
  const heads = adds.map((values, i) => [several ? `head ${i + 1}` : "W^O z", values]);
  const all = [...heads, ...(bias ? [["bias b", bias]] : []),
    ["sum", total]];
  const most = largest(all.map(([, values]) => values)), b = bias ? " + b" : "";
  const strips = all.map(([name, values]) => [name, cells(values, { name, most, marked: at, pick }),
    rounded(values[at])]);
  return step({
    name: "sum", title: several ? "All heads together" : "What the attention gives",
    math: several ? `Attention(x) = Σ_h W^O_h z_h${b}` : `W^O z${b}`,
    says: `The attention gives this vector for the token. At the right stands number ${at + 1} of each.`,
    copy: () => ({ rows: all.map(([name]) => name), columns: numbered(total),
      values: all.flatMap(([, values]) => values) }),
  }, lines(...strips), h("p", { class: "sum" }, formula(`Attention(x)_{${at + 1}} = `),
    h("b", {}, num(total[at], "given"))), everyNumber(all));
}
