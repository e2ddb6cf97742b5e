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

/** Small images of all heads, by group and layer: buttons that choose one of them. */
class Glance {
  constructor({ shown, store, state }) {
    Object.assign(this, { store, state, buttons: [] });
    this.box = h("div", { class: "heads" });
    let group = "";
    for (const { layer, at } of inOrder(shown.attention)) {
      if (layer.group !== group) this.box.append(h("h3", {}, GROUPS[(group = layer.group)]));
      this.box.append(this.layerRow(layer, at));
    }
    const most = Math.max(...shown.attention.map((layer) => layer.heads.length));
    this.box.style.setProperty("--thumb", `${most > 8 ? 16 : most > 4 ? 26 : 42}px`);
  }

  layerRow(layer, at) {
    const heads = layer.heads.map((_, head) => this.headButton(layer, at, head));
    return h("div", { class: "layer" }, h("span", { class: "name" }, `${layer.layer}`),
      h("div", { class: "row" }, heads));
  }

  headButton(layer, at, head) {
    const canvas = h("canvas", { "aria-hidden": "true" }), where = `layer ${layer.layer}, head ${head + 1}`;
    const button = h("button", {
      type: "button", class: "head", title: where, "aria-label": `${GROUPS[layer.group]}, ${where}`,
      onclick: () => this.state.set({ layer: at, head }),
    }, canvas);
    this.buttons.push({ at, head, button });
    this.paintHead(canvas, layer.thumbs, head);
    return button;
  }

  async paintHead(canvas, ref, head) {
    const [, rows, columns] = ref.shape, size = rows * columns, values = await this.store.numbers(ref);
    const own = values.subarray(head * size, (head + 1) * size);
    paint(canvas, own, rows, columns, strongest(own));
  }

  /** Mark the head that is chosen. */
  mark(now) {
    for (const { button, at, head } of this.buttons) {
      button.setAttribute("aria-pressed", String(at === now.at && `${head}` === `${now.head}`));
    }
  }
}

/** The layers by group, each with its number. */
const inOrder = (layers) => layers.map((layer, at) => ({ layer, at }))
  .sort((a, b) => ORDER.indexOf(a.layer.group) - ORDER.indexOf(b.layer.group) || a.at - b.at);

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

/** One head, large: a figure, and what is read from it. */
class Head {
  constructor({ shown, store, state, stop }) {
    Object.assign(this, { shown, store, state, stop, turn: 0 });
    this.main = h("section", { class: "card", "aria-busy": "true" });
  }

  /** Show a head as `chosen` gives it. */
  async show(now) {
    const mine = ++this.turn, values = await this.store.numbers(now.ref);
    if (mine !== this.turn || this.stop.aborted) return;
    this.take(now, values);
    this.draw();
    this.main.removeAttribute("aria-busy");
    this.point(-1);
    say(now.label);
  }

  take(now, values) {
    const { shown, store, state } = this;
    this.sequence = shown.sequences[now.layer.rows];
    const rows = this.sequence.tokens, columns = shown.sequences[now.layer.columns].tokens;
    const pinned = state.index("token", rows.length), { found, mode } = modes(shown, now.layer, state);
    Object.assign(this, { now, values, rows, columns, pinned, found, mode });
    this.figure = FIGURES[mode]({ rows, columns, values, pinned, shown, store, pin: (token) => state.set({ token }) });
    this.figure.onhover((row, column) => this.point(row, column));
    this.read = h("div", { class: "beside" });
    this.status = h("p", { class: "reading" });
  }

  draw() {
    const { now, sequence, rows, pinned, figure, state, mode } = this;
    const isStrip = mode !== "image" && rows.length <= STRIP;
    this.main.replaceChildren(
      h("h2", {}, now.label), this.tools(),
      isStrip ? strip(sequence, pinned, (row) => this.point(row), (token) => state.set({ token })) : "",
      h("div", { class: "figure" }, h("div", { class: "scroll" }, figure.svg, this.status), this.read));
  }

  tools() {
    const { now, shown, state, found, mode, figure, values, rows, columns } = this;
    const pick = (head) => tool(SUMS[head], now.head === head, () => state.set({ layer: now.at, head }));
    const file = `${shown.run.name}-${now.label.replace(/[ ,]+/g, "-")}`;
    return h("div", { class: "tools" },
      found.map((one) => tool(one, one === mode, () => state.set({ as: one }))), h("span", {}, " "),
      now.layer.heads.length > 1 && [pick("mean"), pick("max")], shown.rollout[now.layer.group] && pick("rollout"),
      h("span", { class: "space" }), saveTools(file, () => figure.svg, () => ({ values, rows, columns })));
  }

  /** Show what a token attends to; without one, what the pinned one does. */
  point(row, column = -1) {
    const { rows, columns, values } = this, at = row < 0 ? this.pinned : row;
    this.figure.light(at, column);
    this.status.replaceChildren(...(at >= 0 && column >= 0 ? this.weight(at, column) : []));
    this.read.replaceChildren(at >= 0 ? reading(rows, columns, values, at)
      : h("p", { class: "tip" }, "Point at a token to see what it attends to; click to keep it."));
  }

  /** One weight, in words. */
  weight(row, column) {
    const { rows, columns, values } = this, token = (text) => h("span", { class: "number" }, visible(text));
    const value = h("b", { class: "number", "data-weight": "" }, part(values[row * columns.length + column]));
    return [token(rows[row]), " attends to ", token(columns[column]), ": ", value];
  }
}

export function draw(root, context) {
  const { shown, state, stop } = context, glance = new Glance(context), head = new Head(context);
  root.append(h("div", { class: "two" },
    h("section", { class: "card" }, h("h2", {}, "Layers and heads"), glance.box, h("p", { class: "tip" }, TIP)),
    head.main));
  const show = () => {
    const now = chosen(shown, state);
    glance.mark(now);
    return head.show(now);
  };
  state.on((changes) => "view" in changes || show(), stop);
  return show();
}
