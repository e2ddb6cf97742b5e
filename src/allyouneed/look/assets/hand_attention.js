// Attention by hand: a query meets its keys; what comes of it, up to what is added to the token's vector.

import { chosen, GROUPS, strip } from "look/attention.js";
import { full, h, meter, rounded, short, tool, visible } from "look/draw.js";
import { gridImage } from "look/hand_image.js";
import { absent, cells, dot, everyNumber, formula, lines, num, products, row, step, sum, times, unitField } from "look/hand_parts.js";

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

// What queries, keys and values are made of.
const MADE = {
  Attention({ out, rotary }, group) {
    const b = out?.bias ? " + b" : "", y = group === "cross" ? "y" : "x", turn = rotary ? "R" : "";
    if (!out) return { q: "q = x", k: "k_j = x_j", v: "v_j = x_j" };
    return { q: `q = ${turn && "R_i ("}W^Q x_i${b}${turn && ")"}`, k: `k_j = ${turn && "R_j ("}W^K ${y}_j${b}${turn && ")"}`, v: `v_j = W^V ${y}_j${b}` };
  },
  ConvAttention: () => ({ q: "q = W h_i + b + g_i", k: "k_j = z_j", v: "v_j = (z_j + e_j) √½" }),
  Score: ({ score }) => ({ q: "q = s_{t−1}", k: { additive: "k_j = U h_j + b", general: "k_j = W h_j" }[score] ?? "k_j = h_j", v: "v_j = h_j" }),
};
const SAYS = { Attention: "", ConvAttention: " It comes from the decoder's convolution and the word before.", Score: " It is the state of the decoder before this word." };

/** The scores of a query with all keys: {products, scores}, and for the additive score what is inside. */
function score(layer, q, keys, extra) {
  if (layer.score === "additive") {
    const asked = times(extra.matrix, q), inside = keys.map((k) => Array.from(k, (value, i) => Math.tanh(value + asked[i])));
    const scores = inside.map((one) => dot(one, extra.v));
    return { products: scores, scores, asked, inside };
  }
  const found = keys.map((k) => dot(q, k));
  const by = { scaled_dot: () => Math.sqrt(q.length), cosine: (k) => Math.max(1e-12, Math.sqrt(dot(q, q))) * Math.max(1e-12, Math.sqrt(dot(k, k))) }[layer.score] ?? (() => 1);
  return { products: found, scores: found.map((value, j) => value / by(keys[j])) };
}

function softmax(scores, allowed) {
  const masked = scores.map((value, j) => (allowed(j) ? value : -Infinity)), top = Math.max(...masked);
  const less = top > 80 ? top : 0, exps = masked.map((value) => Math.exp(value - less)), total = exps.reduce((a, b) => a + b, 0);
  return { masked, exps, total, less, weights: exps.map((value) => value / total) };
}

/** All that is computed for a query: for every head, as the last step needs them all. */
function compute(layer, { queries, keys, values, query, v }, at) {
  const [heads, , wide] = layer.queries.shape, [groups, count, keyWide] = layer.keys.shape, valueWide = layer.values.shape[2];
  const part = (all, group, wide) => Array.from({ length: count }, (_, j) => row(all, group * count + j, wide));
  return Array.from({ length: heads }, (_, head) => {
    const group = Math.floor((head * groups) / heads), q = row(queries, head * layer.queries.shape[1] + at, wide);
    const k = part(keys, group, keyWide), vs = part(values, group, valueWide);
    const found = { q, k, v: vs, ...score(layer, q, k, { matrix: query, v }) };
    Object.assign(found, softmax(found.scores, (j) => !layer.causal || j <= at));
    found.z = Array.from({ length: valueWide }, (_, u) => found.weights.reduce((all, w, j) => all + (w && w * vs[j][u]), 0));
    return found;
  });
}

const word = (text) => h("bdi", { class: "number tokenname" }, short(visible(text), 18));

/** Which layer, head and tokens this is about. */
async function choose({ shown, store, state }, now, at, head, columns, seen) {
  const rows = shown.sequences[now.layer.rows], several = shown.attention.length > 1;
  const layers = [...new Set(shown.attention.map((layer) => layer.group))].map((group) => h("div", { class: "pickers" }, h("span", { class: "label" }, GROUPS[group]),
    shown.attention.map((layer, i) => layer.group === group && tool(`layer ${layer.layer}`, i === now.at, () => state.set({ layer: i }), { "data-key": `layer-${i}` }))));
  const { heads } = now.layer;
  return h("section", { class: "card" }, h("h2", {}, `Attention of one token, number by number`),
    several && layers,
    heads.length > 1 && h("div", { class: "pickers" }, h("span", { class: "label" }, "Head"), heads.map((_, i) => tool(`${i + 1}`, i === head, () => state.set({ layer: now.at, head: i }), { "data-key": `head-${i}`, "aria-label": `head ${i + 1}` }))),
    shown.run.precision !== "fp32" && h("p", { class: "tip" }, `The model computes with ${shown.run.precision}; the page goes on from its queries, keys and values with more digits, so the last digits may differ.`),
    h("h3", {}, "The token that attends, with its query"), await picker(shown, store, rows, at, (token) => state.set({ token }), "query"),
    h("h3", {}, "One of the tokens that it attends to, with its key"), await picker(shown, store, columns, seen, (token) => state.set({ seen: token }), "key"));
}

/** Tokens to choose one of: on the image, if they are its patches; a field, if they are very many. */
async function picker(shown, store, sequence, at, pick, key) {
  const image = shown.image ?? shown.answer?.image, grid = shown.grid ?? shown.hand.codes?.grid;
  if (image && grid) {
    const words = sequence.tokens.length - grid * grid + (shown.run.task === "draw" ? 1 : 0);
    const before = strip({ ...sequence, tokens: sequence.tokens.slice(0, words) }, at, () => {}, (token) => pick(token === "" ? at : token));
    const most = (patch) => pick(Math.min(patch + words, sequence.tokens.length - 1));
    return h("div", { class: "figure tight" }, await gridImage(store, image, grid, at - words, most, at < words ? "the patches" : `patch ${sequence.tokens[at]}`, key), before);
  }
  if (sequence.tokens.length > STRIP) return h("p", {}, unitField("token", at, sequence.tokens.length, pick), word(sequence.tokens[at]));
  const found = strip(sequence, at, () => {}, (token) => pick(token === "" ? at : token));
  [...found.children].forEach((button, i) => { button.dataset.key = `${key}-${i}`; });
  return found;
}

/** The table of all keys, a row for each. */
function table(context, layer, one, tokens, seen) {
  const { state } = context, [, , by] = SCORES[layer.score] ?? SCORES.scaled_dot, all = tokens.length <= ROWS || state.get("rows") === "all";
  const order = tokens.map((_, j) => j), shownRows = new Set(all ? order : [...order].sort((a, b) => one.weights[b] - one.weights[a]).slice(0, FIRST).concat(seen));
  const extreme = (list) => list.reduce((most, values) => values.reduce((m, value) => Math.max(m, Math.abs(value)), most), 1e-12);
  const chosenKeys = order.filter((j) => shownRows.has(j)), mostK = extreme(chosenKeys.map((j) => one.k[j])), mostV = extreme(chosenKeys.map((j) => one.v[j]));
  const bar = Math.max(...one.weights);
  const heading = ["token", "k_j", layer.score === "additive" ? "v · tanh(…)" : "q · k_j", by, "mask", one.less ? "exp(s − max)" : "exp(s_j)", "weight w_j", "", "v_j"];
  const line = (j) => h("tr", { class: `${j === seen ? "pinned" : ""} ${one.masked[j] === -Infinity ? "masked" : ""}`, "data-seen": j },
    h("th", { scope: "row" }, h("button", { type: "button", class: "token", "data-key": `row-${j}`, "aria-pressed": String(j === seen), dir: "auto", onclick: () => state.set({ seen: j }) }, short(visible(tokens[j]), 14))),
    h("td", {}, cells(Array.from(one.k[j]), { name: `k of token ${j + 1}`, most: mostK, key: `k${j}`, size: 3 })),
    h("td", { class: "number" }, num(one.products[j], "dot")),
    by && h("td", { class: "number" }, num(one.scores[j], "score")),
    h("td", { class: "number soft" }, h("span", { class: "mask" }, one.masked[j] === -Infinity ? "−∞" : "0")),
    h("td", { class: "number" }, num(one.exps[j], "exp")),
    h("td", { class: "number" }, num(one.weights[j], "weight")),
    h("td", {}, meter(one.weights[j] / bar, j === seen ? "pinned" : "")),
    h("td", {}, cells(Array.from(one.v[j]), { name: `v of token ${j + 1}`, most: mostV, key: `v${j}`, size: 3 })));
  return h("div", {}, h("div", { class: "scroll" }, h("table", { class: "keys" },
    h("thead", {}, h("tr", {}, heading.map((name) => name !== undefined && h("th", { scope: "col" }, formula(name))))), h("tbody", {}, chosenKeys.map(line)),
    h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, tokens.length > chosenKeys.length ? `all ${tokens.length}` : "sum"), h("td", {}), h("td", {}), by && h("td", {}), h("td", {}),
      h("td", { class: "number" }, num(one.total, "total")), h("td", { class: "number" }, "1"), h("td", {}), h("td", {}))))),
    tokens.length > ROWS && h("div", { class: "tools" }, tool(all ? "only the largest weights" : `all ${tokens.length} tokens`, false, () => state.set({ rows: all ? "" : "all" }), { "aria-pressed": undefined, "data-key": "rows" })));
}

/** How the chosen key's score comes about. */
function oneScore(layer, one, seen, names) {
  const k = Array.from(one.k[seen]);
  if (layer.score !== "additive") {
    const after = layer.score === "scaled_dot" ? [" / √", `${one.q.length}`] : layer.score === "cosine" ? [" / (|q| |k|)", ""] : null;
    return [products(["q", Array.from(one.q)], [`k_{${seen + 1}}`, k], { result: `q · k_{${seen + 1}}`, kind: "dot" }),
      after && h("p", { class: "sum" }, formula(`s_{${seen + 1}} = `), num(one.products[seen]), after, " = ", h("b", {}, num(one.scores[seen], "score")))];
  }
  return [lines(["W q", cells(one.asked, { name: "W q" })], [`k_{${seen + 1}}`, cells(k, { name: `k of ${names[seen]}` })]),
    h("p", { class: "tip" }, "Their sum goes through tanh, number by number; the result is multiplied by v:"),
    products(["tanh(W q + k)", one.inside[seen]], ["v", one.weightsOf], { result: `s_{${seen + 1}}`, kind: "dot" })];
}

/** The matrix W^O: what each number of z becomes in the token's vector. */
function output(out, one, head, wide, unit, pick) {
  const from = head * one.z.length, slice = Array.from({ length: out.rows }, (_, u) => Array.from(out.matrix.subarray(u * wide + from, u * wide + from + one.z.length)));
  const adds = times(out.matrix, one.z, null, from, wide), at = Math.min(unit, adds.length - 1);
  return { adds, slice, at, content: [
    h("div", { class: "figure" },
      h("figure", {}, cells(slice.flat(), { name: "W^O", columns: one.z.length, size: Math.max(2, Math.min(6, 320 / out.rows)), label: (i) => `W^O [${Math.floor(i / one.z.length) + 1}, ${(i % one.z.length) + 1}]`, key: "wo" }),
        h("figcaption", { class: "tip" }, `${out.rows} × ${one.z.length} numbers of W`, h("sup", {}, "O"))),
      h("div", { class: "beside" }, lines(["W^O z", cells(adds, { name: "adds", marked: at, pick, key: "adds" }), unitField("number", at, adds.length, pick)]),
        products([`row ${at + 1} of W^O`, slice[at]], ["z", one.z], { result: `(W^O z)_{${at + 1}}`, kind: "adds", key: "wo-" }))),
  ] };
}

export async function attention(context) {
  const { shown, store, state } = context, now = chosen(shown, state), layer = shown.hand.attention[now.at], made = MADE[layer.kind](layer, now.layer.group);
  const head = Number(now.head) < now.layer.heads.length ? Number(now.head) : 0;
  const rows = shown.sequences[now.layer.rows].tokens, columns = shown.sequences[now.layer.columns], names = columns.tokens;
  const at = state.index("token", rows.length) < 0 ? rows.length - 1 : state.index("token", rows.length);
  const needed = { queries: layer.queries, keys: layer.keys, values: layer.values, query: layer.query?.matrix, v: layer.v };
  const refs = Object.entries(needed).filter(([, ref]) => ref);
  if (!refs.every(([, ref]) => store.has(ref))) return [await choose(context, now, at, head, columns, 0), absent("The queries, keys and values of this text")];
  const arrays = Object.fromEntries(await Promise.all(refs.map(async ([key, ref]) => [key, await store.numbers(ref)])));
  const each = compute(layer, arrays, at), one = { ...each[head], weightsOf: arrays.v && Array.from(arrays.v) };
  const best = one.weights.indexOf(Math.max(...one.weights)), seen = state.index("seen", names.length) < 0 ? best : state.index("seen", names.length);
  const unit = Math.max(0, state.index("unit", 1e6)), to = Math.max(0, state.index("to", 1e6)), pick = (unit) => state.set({ unit }), u = Math.min(unit, one.z.length - 1);
  const [scoreName, scoreMath] = SCORES[layer.score] ?? SCORES.scaled_dot, group = layer.keys.shape[0] < each.length;
  const mask = layer.causal ? " A token may not look ahead: the scores of later tokens become −∞, so that their weight is 0." : "";
  const sections = [
    await choose(context, now, at, head, columns, seen),
    step({ name: "query", title: "The query", says: ["What ", word(rows[at]), ` asks for${each.length > 1 ? " in this head" : ""}: ${one.q.length} numbers.${SAYS[layer.kind]}${layer.rotary ? " R turns it by its position." : ""}`], math: made.q,
      copy: () => ({ rows: ["q"], columns: Array.from(one.q, (_, i) => `${i + 1}`), values: Array.from(one.q) }) },
      lines(["q", cells(Array.from(one.q), { name: "q" })]), everyNumber([["q", one.q]])),
    step({ name: "score", title: ["The score of one key: ", word(names[seen])], says: `How well this key fits the query; here as ${scoreName}. Choose another key above or in the table below.`, math: [made.k, scoreMath] },
      oneScore(layer, one, seen, names), group && h("p", { class: "tip" }, `Heads share keys and values here: ${each.length} heads of queries, ${layer.keys.shape[0]} of keys.`)),
    step({ name: "softmax", title: "All keys: scores become weights", says: `Softmax makes all scores positive, and their sum 1.${mask}`, math: [`w_j = exp(s_j) / Σ_i exp(s_i)`],
      copy: () => ({ rows: names, columns: ["product", "score", "masked", "exp", "weight"], values: names.flatMap((_, j) => [one.products[j], one.scores[j], one.masked[j], one.exps[j], one.weights[j]]) }) },
    table(context, layer, one, names, seen)),
    step({ name: "values", title: "The weighted sum of the values", says: `Each value counts as much as its weight says. Choose one of the ${one.z.length} numbers of z to see its sum.`, math: [made.v, "z = Σ_j w_j v_j"],
      copy: () => ({ rows: [...names.map((name) => `v ${name}`), "z"], columns: one.z.map((_, i) => `${i + 1}`), values: [...one.v.flatMap((v) => Array.from(v)), ...one.z] }) },
    lines(["z", cells(one.z, { name: "z", marked: u, pick }), unitField("number", u, one.z.length, pick)]), weighted(one, u), everyNumber([["z", one.z]])),
  ];
  return [...sections, ...(await after(context, layer, each, one, head, to, (to) => state.set({ to })))];
}

/** z_u as a sum over the tokens, the largest parts first. */
function weighted(one, u) {
  const order = one.weights.map((_, j) => j).sort((a, b) => Math.abs(one.weights[b] * one.v[b][u]) - Math.abs(one.weights[a] * one.v[a][u]));
  const weights = order.map((j) => one.weights[j]), values = order.map((j) => one.v[j][u]);
  return sum(weights, values, { result: `z_{${u + 1}} = Σ_j w_j v_{j,${u + 1}}`, kind: "z", most: 4 });
}

/** What becomes of z: through W^O, and with the other heads. */
async function after({ shown, store, state }, layer, each, one, head, unit, pick) {
  if (!layer.out) {
    const says = each.length > 1 ? "This attention has no matrix behind it: the heads are put side by side." : "This is the context c: the decoder reads it beside the word before.";
    return [step({ name: "out", title: "What the attention gives", says, math: each.length > 1 ? "[z_1; z_2; …]" : "c_t = z" }, lines([each.length > 1 ? "all heads" : "c", cells(each.flatMap((found) => found.z), { name: "given", key: "given" })]))];
  }
  if (!store.has(layer.out.matrix)) return [absent("The matrices of this model")];
  const matrix = await store.numbers(layer.out.matrix), bias = layer.out.bias && (await store.numbers(layer.out.bias)), [count, wide] = layer.out.matrix.shape;
  const { adds, slice, content, at } = output({ matrix, rows: count }, one, head, wide, unit, pick);
  const all = each.map((found, i) => (i === head ? adds : times(matrix, found.z, null, i * found.z.length, wide)));
  const total = Array.from({ length: count }, (_, u) => all.reduce((sum, values) => sum + values[u], bias ? bias[u] : 0));
  const most = [...all, total].flat().reduce((m, value) => Math.max(m, Math.abs(value)), 1e-12), strips = (name, values, key) => [name, cells(values, { name, most, marked: at, pick, key }), rounded(values[at])];
  const names = all.map((_, i) => `head ${i + 1}`);
  return [
    step({ name: "out", title: ["What this head adds to ", "the vector of the token"], says: each.length > 1 ? [formula("W^O"), ` has ${wide} columns; this head owns ${one.z.length} of them.`] : "The matrix behind the attention makes a vector of the model's width of z.", math: "W^O_h z",
      copy: () => ({ rows: slice.map((_, i) => `${i + 1}`), columns: one.z.map((_, i) => `${i + 1}`), values: slice.flat() }) }, content),
    step({ name: "sum", title: each.length > 1 ? "All heads together" : "With the bias", says: ["What the attention gives for this token; it is added to the token's vector. At the right: number ", `${at + 1} of each.`], math: each.length > 1 ? "Attention(x) = Σ_h W^O_h z_h + b" : "W^O z + b",
      copy: () => ({ rows: [...names, ...(bias ? ["bias"] : []), "sum"], columns: total.map((_, i) => `${i + 1}`), values: [...all.flat(), ...(bias ?? []), ...total] }) },
    lines(...all.map((values, i) => strips(names[i], values, `head${i}`)), bias && strips("bias b", Array.from(bias), "bias"), strips("sum", total, "total")),
    h("p", { class: "sum", "data-full": full(total[at]) }, formula(`Attention(x)_{${at + 1}} = `), h("b", {}, num(total[at], "given"))), everyNumber([...all.map((values, i) => [names[i], values]), ...(bias ? [["b", bias]] : []), ["sum", total]])),
  ];
}
