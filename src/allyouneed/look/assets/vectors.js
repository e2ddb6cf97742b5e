// Vectors: how alike the tokens of a text are in each layer, and how a token changes from layer to layer.

import { h, isSpecial, s, say, tool, visible } from "look/draw.js";
import { heat } from "look/heat.js";
import { saveTools } from "look/save.js";

export const name = "vectors";
export const title = "Vectors";
export const has = (shown) => shown.vectors?.length > 0;

const WIDTH = 460, HEIGHT = 206, LEFT = 40, BOTTOM = 24;

/** The longest word that is there twice, if possible in two texts; else the first two tokens. */
function pair(tokens, of) {
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

/** The cosine of two tokens in each layer, as a line. */
function curve(layers, values, name) {
  const low = Math.min(0, ...values), x = (i) => LEFT + 14 + ((WIDTH - LEFT - 40) * i) / Math.max(1, layers.length - 1),
    y = (v) => 24 + ((HEIGHT - BOTTOM - 30) * (1 - v)) / (1 - low);
  const figure = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT,
    style: { "max-width": "100%", height: "auto" }, role: "img",
    "aria-label": `${name}: ${values.map((v, i) => `${layers[i]} ${v.toFixed(3)}`).join(", ")}` });
  for (const v of [...(low < 0 ? [low] : []), 0, 0.5, 1]) figure.append(s("line",
    { class: "axis", x1: LEFT, x2: WIDTH - 8, y1: y(v), y2: y(v) }),
    s("text", { class: "soft", x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, v.toFixed(1)));
  figure.append(s("polyline", { points: values.map((v, i) => `${x(i)},${y(v)}`).join(" "), fill: "none", class: "link",
    "stroke-width": 2 }));
  const every = Math.ceil(layers.length / 8);
  values.forEach((v, i) => {
    figure.append(s("circle", { cx: x(i), cy: y(v), r: 3.5, style: { fill: "var(--accent)" } },
      s("title", {}, `${layers[i]}: ${v.toFixed(3)}`)));
    if (i % every === 0 || i === values.length - 1) figure.append(s("text", { class: "soft", x: x(i), y: HEIGHT - 6,
      "text-anchor": "middle", style: { "font-size": "11px" } },
      layers[i].replace("embeddings", "start").replace("layer ", "")),
      s("text", { x: x(i), y: y(v) - 9, "text-anchor": "middle", style: { "font-size": "11px" }, "data-cosine": "" },
      v.toFixed(3)));
  });
  return figure;
}

export function draw(root, context) {
  const { shown, state, stop, live } = context, box = h("div", {});
  let { store } = context, sides = shown.vectors;
  let turn = 0;
  const show = async () => {
    const mine = ++turn, at = Math.max(0, state.index("side", sides.length)), side = sides[at], { tokens, layers } =
      side, size = tokens.length;
    const layer = state.index("depth", layers.length) < 0 ? layers.length - 1 : state.index("depth", layers.length),
      [first, second] = pair(tokens, side.of);
    const a = state.index("a", size) < 0 ? first : state.index("a", size), b = state.index("b", size) < 0 ? second
      : state.index("b", size);
    if (!side.cosines.every((ref) => store.has(ref))) return box.replaceChildren(h("section",
      { class: "card" },
      h("p", { class: "note" }, "The cosines of this text are too many for this page; the live page shows them.")));
    const [all, own] = await Promise.all([Promise.all(side.cosines.map((ref) => store.numbers(ref))),
      store.numbers(side.own)]);
    if (mine !== turn || stop.aborted) return;
    const label = (i) => `${visible(tokens[i])}${side.of.some((one) => one) ? ` (text ${side.of[i] + 1})` : ""}`,
      values = all[layer], status = h("p", { class: "reading", "data-reading": "" });
    const tell = (row, column) => {
      if (row < 0) [row, column] = [a, b];
      status.replaceChildren(h("span", { class: "number", dir: "auto" }, label(row)), " and ",
        h("span", { class: "number", dir: "auto" }, label(column)), `, ${layers[layer]}: cosine `,
        h("b", { class: "number", "data-value": "" }, values[row * size + column].toFixed(3)));
    };
    const named = tokens.map(visible);
    const figure = heat({ rows: named, columns: named, values, words: Array.from(values, (v) => v.toFixed(2)),
      label: `cosines of the tokens, ${layers[layer]}`, cell: Math.max(2.4, Math.min(46, 620 / size)), picked: [a, b],
      hover: tell, pick: (row, column) => state.set({ a: row, b: column }) });
    const line = curve(layers, all.map((one) => one[a * size + b]), `${label(a)} and ${label(b)}`),
      short = layers.map((one) => one.replace("embeddings", "start").replace("layer ", ""));
    const mineOwn = own.subarray(a * layers.length ** 2, (a + 1) * layers.length ** 2);
    const change =
      heat({ rows: short, columns: short, values: mineOwn,
      words: Array.from(mineOwn, (v) => (Number.isFinite(v) ? v.toFixed(2) : "")),
      label: `cosines of ${label(a)} with itself in other layers`,
      cell: Math.max(16, Math.min(46, 380 / layers.length)) });
    const choose = (key, chosen) => h("select", { class: "tool", "aria-label": key === "a" ? "one token"
      : "another token", onchange: (event) => state.set({ [key]: Number(event.target.value) }) },
      tokens.map((_, i) => h("option", { value: i, selected: i === chosen }, `${i + 1} ${label(i)}`)));
    box.replaceChildren(
      h("section", { class: "card" }, h("h2", {}, "Two tokens, layer by layer"),
        h("p", { class: "says" },
          "The cosine of the vectors of two tokens in each layer: 1 is the same direction, 0 no relation. ",
          "The same word begins alike, and grows apart where its neighbours differ."),
        h("div", { class: "tools" }, sides.length > 1
          && sides.map((one, i) => tool(one.title, i === at, () => state.set({ side: i, a: "", b: "" }))),
          choose("a", a), h("span", {}, "and"), choose("b", b), h("span", { class: "space" }),
          saveTools(`${shown.run.name}-two-tokens`, () => line,
          () => ({ values: Float32Array.from(all, (one) => one[a * size + b]), rows: ["cosine"], columns: layers }))),
        h("div", { class: "beside" }, h("div", {}, line),
          h("div", { class: "scroll" }, h("h3", { style: { margin: "0 0 .3rem" } },
            h("span", { class: "number", dir: "auto" }, label(a)), " with itself in other layers"), change))),
      h("section", { class: "card" }, h("h2", {}, "All tokens, in one layer"),
        side.cut ? h("p", { class: "note" }, `The text is long: these are its first ${size} tokens.`) : "",
        h("div", { class: "tools" }, layers.map((one, i) => tool(one, i === layer, () => state.set({ depth: i }))),
          h("span", { class: "space" }), saveTools(`${shown.run.name}-cosines`, () => figure,
          () => ({ values, rows: tokens, columns: tokens }))),
        h("div", { class: "scroll" }, figure), status));
    tell(-1, -1);
  };
  if (live && shown.run.task !== "translate" && shown.run.task !== "recognize"
    && shown.run.task !== "draw") root.append(compare(context, (found) => { store = found; sides = found.shown.vectors;
  state.set({ a: "", b: "", side: "" }); }));
  root.append(box);
  state.on((changes) => ["side", "depth", "a", "b"].some((key) => key in changes) && show(), stop);
  return show();
}

/** Two or three sentences, each read by itself. */
function compare({ shown, store }, use) {
  const typed = h("textarea", { rows: 2, "aria-label": "sentences to compare, one per line",
    placeholder: "one sentence per line", style: { height: "4.4rem" }, dir: "auto" },
    shown.text.split("|||").map((one) => one.trim()).join("\n")), status = h("p", { class: "tip", role: "status" });
  const send = async (event) => {
    event.preventDefault();
    try {
      const text = typed.value.split("\n").map((one) => one.trim()).filter(Boolean).join(" ||| "),
        found = await store.ask("vectors", { text }), { vectors } = found.shown;
      if (!vectors.length) throw new Error("this run cannot read these sentences one by one");
      status.textContent = `${new Set(vectors[0].of).size} sentences`;
      say(status.textContent);
      use(found);
    } catch (error) { status.textContent = error.message; }
  };
  return h("section", { class: "card" }, h("h2", {}, "Compare sentences"),
    h("p", { class: "says" },
    "Each line is read by itself. Then choose one word in each: is it the same word to the model?"),
    h("form", { class: "ask", onsubmit: send }, typed, h("button", {}, "Compare")), status);
}
