// Attention: layers and heads at a glance, and one of them as a matrix, as arcs or over the image.

import { h, isSpecial, paint, part, say, short, tool, visible } from "look/draw.js";
import { arcs } from "look/arcs.js";
import { matrix } from "look/matrix.js";
import { overImage } from "look/over_image.js";
import { saveTools } from "look/save.js";

export const name = "attention";
export const title = "Attention";
export const has = (shown) => Boolean(shown.attention?.length);

const GROUPS = { self: "Self-attention", encoder: "Encoder", decoder: "Decoder", cross: "Answer to source" };
const ORDER = Object.keys(GROUPS);
const MEANS = { mean: "mean of heads", max: "max of heads", rollout: "rollout of layers" };

/** Which layer and head are chosen; the view of the checkpoints shows the same one. */
export function chosen(shown, state) {
  const layers = shown.attention, first = shown.attention.findIndex((one) => one.group === "cross");
  const at = state.index("layer", layers.length) < 0 ? (first < 0 ? 0 : layers.findLastIndex((one) => one.group === "cross")) : state.index("layer", layers.length);
  const layer = layers[at];
  let head = state.get("head", layer.heads.length > 1 && layer.group === "cross" ? "mean" : "0");
  if (head === "rollout" && !shown.rollout[layer.group]) head = "mean";
  if (!(head in MEANS) && !(Number(head) < layer.heads.length)) head = "0";
  const ref = head === "rollout" ? shown.rollout[layer.group] : head in MEANS ? layer[head] : layer.heads[head];
  const label = head in MEANS ? MEANS[head] : layer.heads.length > 1 ? `head ${Number(head) + 1}` : "one head";
  return { at, layer, head, ref, label: head === "rollout" ? `${GROUPS[layer.group]}, ${label}` : `${GROUPS[layer.group]}, layer ${layer.layer}, ${label}` };
}

/** Small pictures of all heads, by layer. */
function glance({ shown, store, state }) {
  const box = h("div", { class: "heads" }), buttons = [];
  let group = "";
  const ordered = shown.attention.map((layer, at) => ({ layer, at })).sort((a, b) => ORDER.indexOf(a.layer.group) - ORDER.indexOf(b.layer.group));
  ordered.forEach(({ layer, at }) => {
    if (layer.group !== group) box.append(h("h3", { style: { margin: ".3rem 0 0" } }, GROUPS[(group = layer.group)]));
    const row = h("div", { class: "row" });
    layer.heads.forEach((_, head) => {
      const canvas = h("canvas", { "aria-hidden": "true" });
      const button = h("button", { type: "button", class: "head", "aria-label": `${GROUPS[layer.group]}, layer ${layer.layer}, head ${head + 1}`, title: `layer ${layer.layer}, head ${head + 1}`, onclick: () => state.set({ layer: at, head }) }, canvas);
      buttons.push({ button, at, head });
      row.append(button);
      store.numbers(layer.thumbs).then((values) => {
        const [, rows, columns] = layer.thumbs.shape, size = rows * columns;
        paint(canvas, values.subarray(head * size, (head + 1) * size), rows, columns);
      });
    });
    box.append(h("div", { class: "layer" }, h("span", { class: "name" }, `layer ${layer.layer}`), row));
  });
  const most = Math.max(...shown.attention.map((layer) => layer.heads.length));
  box.style.setProperty("--thumb", `${most > 8 ? 18 : most > 4 ? 26 : 42}px`);
  const mark = () => {
    const now = chosen(shown, state);
    for (const { button, at, head } of buttons) button.setAttribute("aria-pressed", String(at === now.at && `${head}` === now.head));
  };
  return { box, mark };
}

/** The tokens of a sequence as buttons that pin one of them. */
function strip(sequence, pinned, hover, pin) {
  return h("div", { class: "tokens", role: "group", "aria-label": sequence.title, dir: "auto" }, sequence.tokens.map((token, i) => h("button", {
    type: "button", class: `token${isSpecial(token) ? " special" : ""}`, "aria-pressed": String(i === pinned), dir: "auto",
    onclick: () => pin(i === pinned ? "" : i), onmouseenter: () => hover(i), onmouseleave: () => hover(-1), onfocus: () => hover(i),
    onkeydown: (event) => {
      const next = { ArrowRight: event.currentTarget.nextSibling, ArrowLeft: event.currentTarget.previousSibling }[event.key];
      if (next) { event.preventDefault(); next.focus(); }
    },
  }, short(visible(token)))));
}

/** In words and numbers: what a token attends to. */
function reading(rows, columns, values, row) {
  const pairs = columns.tokens.map((token, i) => [token, values[row * columns.tokens.length + i], i]).sort((a, b) => b[1] - a[1]).slice(0, 8);
  return h("table", { class: "read" }, h("caption", { style: { "text-align": "start" } }, h("span", { class: "number", style: { color: "var(--pin)" } }, visible(rows.tokens[row])), ` (${row + 1}) attends to`),
    h("tbody", {}, pairs.map(([token, value, i]) => h("tr", {}, h("td", { class: "number text", dir: "auto" }, visible(token)), h("td", { class: "shape" }, `${i + 1}`), h("td", { class: "number weight" }, part(value)), h("td", {}, h("span", { class: "track" }, h("span", { class: "meter", style: { width: `${100 * value}%` } })))))));
}

export function draw(root, context) {
  const { shown, store, state, stop } = context;
  const { box, mark } = glance(context), main = h("section", { class: "card", "aria-busy": "true" });
  root.append(h("div", { class: "two" }, h("section", { class: "card" }, h("h2", {}, "Layers and heads"), box, h("p", { class: "tip" }, "A row is a token that looks, a column one that is looked at; the darker, the more.")), main));
  let turn = 0;
  const show = async () => {
    mark();
    const now = chosen(shown, state), mine = ++turn;
    const values = await store.numbers(now.ref);
    if (mine !== turn || stop.aborted) return;
    const rows = shown.sequences[now.layer.rows], columns = shown.sequences[now.layer.columns];
    const pinned = state.index("token", rows.tokens.length);
    const modes = ["matrix", "arcs", ...(shown.image && shown.grid ? ["image"] : [])], mode = modes.includes(state.get("as")) ? state.get("as") : shown.image && shown.grid ? "image" : "matrix";
    const given = { rows: rows.tokens, columns: columns.tokens, values, pinned, shown, store, pin: (token) => state.set({ token }) };
    const figure = { matrix, arcs, image: overImage }[mode](given);
    const read = h("div", {}), status = h("p", { class: "reading", "data-reading": "" });
    const hover = (row, column = -1) => {
      figure.light(row < 0 ? pinned : row, column);
      if (row >= 0 && column >= 0) status.replaceChildren(h("span", { class: "number" }, visible(rows.tokens[row])), " attends to ", h("span", { class: "number" }, visible(columns.tokens[column])), ": ", h("b", { class: "number", "data-weight": "" }, part(values[row * columns.tokens.length + column])));
      else status.textContent = "";
      const shownRow = row < 0 ? pinned : row;
      read.replaceChildren(shownRow < 0 ? "" : reading(rows, columns, values, shownRow));
    };
    figure.onhover(hover);
    const several = now.layer.heads.length > 1;
    main.replaceChildren(
      h("h2", {}, now.label),
      h("div", { class: "tools" }, modes.map((one) => tool(one, one === mode, () => state.set({ as: one }))),
        h("span", {}, " "),
        several && [tool("mean", now.head === "mean", () => state.set({ layer: now.at, head: "mean" })), tool("max", now.head === "max", () => state.set({ layer: now.at, head: "max" }))],
        shown.rollout[now.layer.group] && tool("rollout", now.head === "rollout", () => state.set({ layer: now.at, head: "rollout" })),
        h("span", { class: "space" }), saveTools(`${shown.run.name}-${now.label.replace(/[ ,]+/g, "-")}`, () => figure.svg, async () => ({ values, rows: rows.tokens, columns: columns.tokens }))),
      strip(rows, pinned, hover, (token) => state.set({ token })),
      h("div", { class: "scroll", style: { "margin-top": ".7rem" } }, figure.svg), status, read);
    main.removeAttribute("aria-busy");
    hover(-1);
    say(now.label);
  };
  state.on((changes) => "view" in changes || show(), stop);
  show();
}
