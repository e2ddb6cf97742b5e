// How the run has learned: its losses and scores by step.

import { count, h, s, tool } from "look/draw.js";
import { saveTools } from "look/save.js";

export const name = "learning";
export const title = "Learning";
export const has = (shown) => shown.learning.length > 0;

const COLOURS = { train: "#0072b2", valid: "#e69f00" };
const WIDTH = 760, HEIGHT = 300, LEFT = 56, BOTTOM = 34, TOP = 14, RIGHT = 12;

/** Round numbers from low to high. */
function ticks(low, high, about = 5) {
  const rough = (high - low) / about || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9 * step; at += step) found.push(+at.toPrecision(12));
  return found;
}

function chart(curves) {
  const xs = curves.flatMap((c) => c.steps), ys = curves.flatMap((c) => c.values).filter(Number.isFinite);
  const [low, high] = [Math.min(...ys), Math.max(...ys)], last = Math.max(...xs, 1);
  const x = (step) => LEFT + ((WIDTH - LEFT - RIGHT) * step) / last;
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (high - low || 1));
  const figure = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": curves.map((c) => `${c.kind} ${c.name} from ${c.values[0]} to ${c.values.at(-1)}`).join("; "), style: { width: "100%" } });
  for (const value of ticks(low, high)) figure.append(s("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }), s("text", { class: "soft", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, `${value}`));
  for (const step of ticks(0, last)) figure.append(s("text", { class: "soft", x: x(step), y: HEIGHT - 12, "text-anchor": "middle" }, count(step)));
  for (const { kind, steps, values } of curves) {
    const points = steps.map((step, i) => [x(step), y(values[i])]).filter((point) => point.every(Number.isFinite));
    figure.append(s("polyline", { points: points.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" "), fill: "none", stroke: COLOURS[kind] ?? "#767676", "stroke-width": 1.8 }));
    if (kind === "valid") points.forEach(([cx, cy], i) => figure.append(s("circle", { cx, cy, r: 4, fill: COLOURS.valid }, s("title", {}, `step ${steps[i]}: ${values[i]}`))));
  }
  return figure;
}

export function draw(root, { shown, state, stop }) {
  const names = [...new Set(shown.learning.map((curve) => curve.name))].filter((one) => one !== "norm" && one !== "lr").concat(["lr", "norm"].filter((one) => shown.learning.some((c) => c.name === one)));
  const box = h("div", {});
  const show = () => {
    const chosen = names.includes(state.get("curve")) ? state.get("curve") : names[0];
    const curves = shown.learning.filter((curve) => curve.name === chosen), figure = chart(curves), valid = curves.find((c) => c.kind === "valid");
    const finite = (valid?.values ?? []).filter(Number.isFinite);
    const best = finite.length ? valid.values.indexOf((chosen.includes("loss") ? Math.min : Math.max)(...finite)) : -1;
    box.replaceChildren(
      h("div", { class: "tools" }, names.map((one) => tool(one, one === chosen, () => state.set({ curve: one }))), h("span", { class: "space" }), saveTools(`${shown.run.name}-${chosen}`, () => figure)),
      figure,
      h("p", { class: "reading" }, curves.map((c) => [h("span", { style: { color: COLOURS[c.kind] } }, "● "), { train: "training", valid: "validation" }[c.kind] ?? c.kind, "  "]), best >= 0 && `best validation ${chosen}: ${valid.values[best].toFixed(4)} at step ${count(valid.steps[best])}`));
  };
  state.on(show, stop);
  root.append(h("section", { class: "card" }, h("h2", {}, "How it has learned"), box));
  show();
}
