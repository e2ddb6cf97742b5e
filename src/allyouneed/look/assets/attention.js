// Attention: layers and heads at a glance, and one of them as a matrix, as arcs or over the image.

import { arcs } from "look/arcs.js";
import { h, isSpecial, meter, paint, part, say, short, strongest, tool, visible } from "look/draw.js";
import { matrix } from "look/matrix.js";
import { overImage } from "look/over_image.js";
import { saveTools } from "look/save.js";

export const name = "attention";
export const title = "Attention";
export const has = (shown) => Boolean(shown.attention?.length);

export const GROUPS = { self: "Self-attention", encoder: "Encoder", decoder: "Decoder", cross: "Answer to source" };
const ORDER = Object.keys(GROUPS);
const SUMS = { mean: "mean of heads", max: "max of heads", rollout: "rollout" };
const TIP = "One line per layer, one small image per head. A row is a token that attends, a column one that is " +
  "attended to; each image is scaled to its own strongest weights.";
const FIGURES = { matrix, arcs, image: overImage };
const STRIP = 200; // tokens that stand above the figure; of more, the figure alone is there to point at

/** Which layer and head to show first: where an answer meets its source, or what an image gives to [CLS]. */
function firstChoice(shown) {
  const layers = shown.attention, cross = layers.findLastIndex((layer) => layer.group === "cross");
  if (cross >= 0) return { at: cross, head: layers[cross].heads.length > 1 ? "mean" : "0" };
  return { at: layers.length - 1, head: shown.grid && shown.rollout.self ? "rollout" : "0" };
}

/** Which layer and head are chosen: {at, layer, head, ref, label}. */
export function chosen(shown, state) {
  const first = firstChoice(shown), at = state.index("layer", shown.attention.length);
  const layer = shown.attention[at < 0 ? first.at : at];
  const sums = { mean: layer.mean, max: layer.max, rollout: shown.rollout[layer.group] };
  let head = state.get("head", at < 0 ? first.head : "0");
  if (!(sums[head] ?? layer.heads[head])) head = "0";
  const single = layer.heads.length > 1 ? `head ${Number(head) + 1}` : "one head";
  const of = head === "rollout" ? "all layers" : `layer ${layer.layer}`;
  const label = `${GROUPS[layer.group]}, ${of}, ${SUMS[head] ?? single}`;
  return { at: at < 0 ? first.at : at, layer, head, ref: sums[head] ?? layer.heads[head], label };
}

/** Small images of all heads, by layer. */
function glance({ shown, store, state }) {
  const box = h("div", { class: "heads" }), buttons = [];
  const ordered = shown.attention.map((layer, at) => ({ layer, at }))
    .sort((a, b) => ORDER.indexOf(a.layer.group) - ORDER.indexOf(b.layer.group) || a.at - b.at);
  let group = "";
  for (const { layer, at } of ordered) {
    if (layer.group !== group) box.append(h("h3", {}, GROUPS[(group = layer.group)]));
    const row = h("div", { class: "row" });
    layer.heads.forEach((_, head) => {
      const canvas = h("canvas", { "aria-hidden": "true" }), where = `layer ${layer.layer}, head ${head + 1}`;
      const button = h("button", {
        type: "button", class: "head", title: where, "aria-label": `${GROUPS[layer.group]}, ${where}`,
        onclick: () => state.set({ layer: at, head }),
      }, canvas);
      buttons.push({ at, head, button });
      row.append(button);
      store.numbers(layer.thumbs).then((values) => {
        const [, rows, columns] = layer.thumbs.shape, size = rows * columns;
        const own = values.subarray(head * size, (head + 1) * size);
        paint(canvas, own, rows, columns, strongest(own));
      });
    });
    box.append(h("div", { class: "layer" }, h("span", { class: "name" }, `${layer.layer}`), row));
  }
  const most = Math.max(...shown.attention.map((layer) => layer.heads.length));
  box.style.setProperty("--thumb", `${most > 8 ? 16 : most > 4 ? 26 : 42}px`);
  const mark = (now) => {
    for (const { button, at, head } of buttons) {
      button.setAttribute("aria-pressed", String(at === now.at && `${head}` === `${now.head}`));
    }
  };
  return { box, mark };
}

/** The number of the token that the second of two texts begins with; none: -1. */
function secondText(tokens) {
  const end = tokens.findIndex((token) => ["[SEP]", "</s>"].includes(token.trim()));
  const rest = tokens.slice(end + 1).some((token) => !isSpecial(token));
  return end > 0 && rest ? end + 1 : -1;
}

/** The tokens of a sequence as buttons that pin one of them. */
export function strip(sequence, pinned, hover, pin) {
  const second = secondText(sequence.tokens);
  const kind = (token, i) => `token${isSpecial(token) ? " special" : ""}${second >= 0 && i >= second ? " second" : ""}`;
  return h("div", { class: "tokens", role: "group", "aria-label": sequence.title, dir: "auto" },
    sequence.tokens.map((token, i) => h("button", {
      type: "button", class: kind(token, i), "aria-pressed": String(i === pinned), dir: "auto",
      onclick: () => pin(i === pinned ? "" : i), onmouseenter: () => hover(i), onmouseleave: () => hover(-1),
      onfocus: () => hover(i),
      onkeydown: (event) => {
        const { nextSibling, previousSibling } = event.currentTarget;
        const next = { ArrowRight: nextSibling, ArrowLeft: previousSibling }[event.key];
        if (next) { event.preventDefault(); next.focus(); }
      },
    }, short(visible(token)))));
}

/** In words and numbers: what a token attends to most. */
function reading(rows, columns, values, row) {
  const pairs = columns.map((token, i) => [token, values[row * columns.length + i], i]);
  pairs.sort((a, b) => b[1] - a[1]);
  const line = ([token, value, i]) => h("tr", {},
    h("td", { class: "number text", dir: "auto" }, short(visible(token), 18)), h("td", { class: "shape" }, `${i + 1}`),
    h("td", { class: "number weight" }, part(value)),
    h("td", {}, meter(value / Math.max(pairs[0][1], 1e-6))));
  return h("table", { class: "read" },
    h("caption", {}, h("span", { class: "number" }, visible(rows[row])), ` ${row + 1} attends to`),
    h("tbody", {}, pairs.slice(0, 8).map(line)));
}

/** How to show a head: over the image if there is one that it reads. */
function modes(shown, layer, state) {
  const over = shown.image && shown.grid && layer.group === "self" && !shown.answer?.image;
  const found = over ? ["image", "matrix", "arcs"] : ["matrix", "arcs"];
  return { found, mode: found.includes(state.get("as")) ? state.get("as") : found[0] };
}

export function draw(root, context) {
  const { shown, store, state, stop } = context;
  const { box, mark } = glance(context), main = h("section", { class: "card", "aria-busy": "true" });
  root.append(h("div", { class: "two" },
    h("section", { class: "card" }, h("h2", {}, "Layers and heads"), box,
      h("p", { class: "tip" }, TIP)),
    main));
  let turn = 0;
  const show = async () => {
    const now = chosen(shown, state), mine = ++turn;
    mark(now);
    const values = await store.numbers(now.ref);
    if (mine !== turn || stop.aborted) return;
    const sequence = shown.sequences[now.layer.rows];
    const rows = sequence.tokens, columns = shown.sequences[now.layer.columns].tokens;
    const pinned = state.index("token", rows.length), pin = (token) => state.set({ token });
    const { found, mode } = modes(shown, now.layer, state);
    const figure = FIGURES[mode]({ rows, columns, values, pinned, shown, store, pin });
    const read = h("div", { class: "beside" }), status = h("p", { class: "reading" });
    const hover = (row, column = -1) => {
      const at = row < 0 ? pinned : row;
      figure.light(at, column);
      status.replaceChildren();
      if (at >= 0 && column >= 0) {
        const token = (text) => h("span", { class: "number" }, visible(text));
        const weight = h("b", { class: "number", "data-weight": "" }, part(values[at * columns.length + column]));
        status.append(token(rows[at]), " attends to ", token(columns[column]), ": ", weight);
      }
      const tip = h("p", { class: "tip" }, "Point at a token to see what it attends to; click to keep it.");
      read.replaceChildren(at >= 0 ? reading(rows, columns, values, at) : tip);
    };
    figure.onhover(hover);
    const pick = (head) => tool(SUMS[head], now.head === head, () => state.set({ layer: now.at, head }));
    const name = `${shown.run.name}-${now.label.replace(/[ ,]+/g, "-")}`;
    main.replaceChildren(
      h("h2", {}, now.label),
      h("div", { class: "tools" },
        found.map((one) => tool(one, one === mode, () => state.set({ as: one }))), h("span", {}, " "),
        now.layer.heads.length > 1 && [pick("mean"), pick("max")], shown.rollout[now.layer.group] && pick("rollout"),
        h("span", { class: "space" }), saveTools(name, () => figure.svg, async () => ({ values, rows, columns }))),
      mode === "image" || rows.length > STRIP ? "" : strip(sequence, pinned, hover, pin),
      h("div", { class: "figure" }, h("div", { class: "scroll" }, figure.svg, status), read));
    main.removeAttribute("aria-busy");
    hover(-1);
    say(now.label);
  };
  state.on((changes) => "view" in changes || show(), stop);
  show();
}
