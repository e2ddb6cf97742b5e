// word2vec by hand: a word's vector meets the vectors of all others; then cosines.

import { h, meter, short, visible } from "look/draw.js";
import { absent, cells, dot, everyNumber, formula, lines, num, products, row, step } from "look/hand_parts.js";

const NEGATIVE = " This model has learned with negative samples, that is with σ(v · u): it was not trained on these"
  + " probabilities, but their order is the same.";

const largest = (list) => list.reduce((most, values) => values.reduce((m, value) => Math.max(m, Math.abs(value)), most),
  1e-12);

/** A table of words: a strip and some numbers for each; `choose` is called with a row. */
function table(names, vectors, heading, numbers, at, choose, key) {
  const most = largest(vectors), size = Math.min(3, 96 / vectors[0].length);
  return h("div", { class: "scroll" }, h("table", { class: "keys" },
    h("thead", {}, h("tr", {}, ["word", ...heading, "", "vector"].map((name) =>
    h("th", { scope: "col" }, formula(name))))),
    h("tbody", {}, names.map((name, i) => h("tr", { class: i === at ? "pinned" : "", "data-row": i },
      h("th", { scope: "row" }, h("button", { type: "button", class: "token", dir: "auto", "data-key": `${key}-${i}`,
        "aria-pressed": String(i === at), onclick: () => choose(i) }, short(visible(name), 16))),
      numbers[i].values.map(([kind, value]) => h("td", { class: "number" }, num(value, kind))),
        h("td", {}, meter(numbers[i].part, i === at ? "pinned" : "")),
      h("td", {}, cells(vectors[i], { name: `vector of ${visible(name)}`, most, size, key: `${key}v${i}` })))))));
}

export async function words({ shown, store, state }) {
  const { terms, nearest, words: known, loss } = shown.hand.words;
  const which = Math.max(0, state.index("token", terms.length)), term = terms[which];
  const head = h("section", { class: "card" }, h("h2", {}, "The vector of a word, and what it says"),
    h("div", { class: "tokens" }, terms.map((one, i) => h("button",
      { type: "button", class: "token", dir: "auto", "data-key": `term-${i}`, "aria-pressed": String(i === which),
      onclick: () => state.set({ token: i }) }, `${one.sign < 0 ? "− " : i ? "+ " : ""}${visible(one.word)}`))));
  const refs = [...terms.map((one) => one.vector), term.scores, term.outputs, nearest.vectors];
  if (!refs.every((ref) => store.has(ref))) return [head, absent("The vectors of the words")];
  const arrays = await Promise.all(refs.map((ref) => store.numbers(ref)));
  const [scores, outputs, near] = arrays.slice(terms.length);
  const vectors = arrays.slice(0, terms.length).map((values) => Array.from(values)), v = vectors[which];
  const wide = v.length;
  const u = term.names.map((_, i) => Array.from(row(outputs, i, wide))), name = visible(term.word);
  const heading = ["dot", "exp", "probability"];
  const top = scores.reduce((a, b) => Math.max(a, b), -Infinity), less = top > 80 ? top : 0;
  const total = scores.reduce((all, value) => all + Math.exp(value - less), 0);
  const found = u.map((one) => { const value = dot(v, one), exp = Math.exp(value - less);
  return { dot: value, exp, p: exp / total }; });
  const at = Math.max(0, state.index("seen", u.length)), most = found.reduce((m, one) => Math.max(m, one.p), 0);
  const steps = [
    step({ name: "vector", title: ["The vector of ", h("bdi", { class: "number tokenname" }, name)],
      says: `${wide} numbers, all that the model knows of this word as a neighbour.`, math: `v = inputs[${name}]`,
      copy: () => ({ rows: [term.word], columns: v.map((_, i) => `${i + 1}`), values: v }) },
      lines(["v", cells(v, { name: "v" })]), everyNumber([["v", v]])),
    step({ name: "dot", title: ["It meets the word ", h("bdi", { class: "number tokenname" }, visible(term.names[at]))],
      says: "Every word has a second vector u, for being predicted. Its product with v says how near the two stand.",
      math: "v · u" },
      products(["v", v], ["u", u[at]], { result: "v · u", kind: "dot" })),
    step({ name: "softmax", title: "Products become probabilities",
      says: [`Softmax over all ${known.toLocaleString("en")} words of the training text. `,
        `These are the ${u.length} likeliest; choose one.`, loss === "negative" && NEGATIVE],
      math: "p_w = exp(v · u_w) / Σ_i exp(v · u_i)", copy: () =>
        ({ rows: term.names, columns: heading, values: found.flatMap((one) => [one.dot, one.exp, one.p]) }) },
    table(term.names, u, ["v · u_w", less ? "exp(v · u − max)" : "exp(v · u_w)", "p_w"],
      found.map((one) => ({ values: [["dot", one.dot], ["exp", one.exp], ["p", one.p]], part: one.p / most })), at,
      (seen) => state.set({ seen }), "word"),
    h("p", { class: "sum" }, formula("Σ_i exp(v · u_i) = "), h("b", {}, num(total, "total"))),
    everyNumber([["v · u", found.map((one) => one.dot)], ["exp", found.map((one) => one.exp)],
      ["p", found.map((one) => one.p)]])),
  ];
  return [head, ...steps, cosines(terms, vectors, nearest, near, state)];
}

const length = (values) => Math.sqrt(dot(values, values));

/** The nearest words: cosines with the word, or with the sum of words. */
function cosines(terms, vectors, nearest, near, state) {
  const wide = vectors[0].length, units = vectors.map((values) => values.map((value) => value / length(values)));
  const goal = units[0].map((_, i) => units.reduce((all, values, j) => all + terms[j].sign * values[i], 0));
  const single = terms.length === 1;
  const others = nearest.names.map((_, i) => Array.from(row(near, i, wide))), a = single ? vectors[0] : goal;
  const found = others.map((one) => ({ dot: dot(a, one), length: length(one),
    cosine: dot(a, one) / (length(a) * length(one)) }));
  const at = Math.max(0, state.index("near", others.length)), name = single ? "v" : "g";
  const sum = terms.map((one, i) =>
    `${one.sign < 0 ? " − " : i ? " + " : ""}${visible(one.word)}/|${visible(one.word)}|`).join("");
  return step({ name: "cosine", title: "The nearest words",
    says: single ? "The cosine of two vectors v: their product, divided by both lengths."
    : "The vectors of the sum are made one long, then added; the cosine compares the result with other words.",
    math: single ? "cos(v, v′) = v · v′ / (|v| |v′|)"
      : [`g = ${sum}`, "cos(g, v′) = g · v′ / (|g| |v′|)"],
      copy: () => ({ rows: nearest.names, columns: ["product", "length", "cosine"],
      values: found.flatMap((one) => [one.dot, one.length, one.cosine]) }) },
  lines([name, cells(a, { name, key: "goal" }), `|${name}| = ${length(a).toPrecision(4)}`],
    [`v′ ${visible(nearest.names[at])}`, cells(others[at], { name: "v′", key: "other" }),
    `|v′| = ${found[at].length.toPrecision(4)}`]),
  h("p", { class: "sum" }, formula("cos = "), num(found[at].dot), " / (", num(length(a)), " · ", num(found[at].length),
    ") = ", h("b", {}, num(found[at].cosine, "cosine"))),
  table(nearest.names, others, [`${name} · v′`, "|v′|", "cosine"],
    found.map((one) => ({ values: [["dot", one.dot], ["length", one.length], ["cosine", one.cosine]],
    part: Math.max(0, one.cosine) })), at, (i) => state.set({ near: i }), "near"));
}
