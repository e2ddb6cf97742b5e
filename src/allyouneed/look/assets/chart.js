// Curves by step: hovering, or the arrow keys, read their values; a click chooses a step.

import { count, h, isDark, s } from "look/draw.js";

const HEIGHT = 300, LEFT = 56, BOTTOM = 30, TOP = 14;

// Okabe and Ito: distinct for every kind of colour vision. On a dark card, two have a lighter one.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#767676"];
const DARK = { "#0072b2": "#56b4e9", "#56b4e9": "#f0e442", "#767676": "#c8c8c8" };
export const pick = (at) => (isDark() ? DARK[COLOURS[at % 7]] : undefined) ?? COLOURS[at % 7];
export const kindColour = (kind) => ({ train: pick(0), valid: pick(4) })[kind] ?? pick(6);

/** Round numbers from low to high; for a logarithmic scale, 1, 2, 5, 10, … or powers of ten. */
function ticks(low, high, about = 5, log = false) {
  const found = [];
  if (log) {
    const decades = Math.log10(high / low), steps = decades > 3 ? [1] : [1, 2, 5];
    for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
      found.push(...steps.map((one) => one * power).filter((one) => one >= low && one <= high));
    }
    return found;
  }
  const rough = (high - low) / about || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough * 0.999);
  for (let at = Math.ceil(low / step) * step; at <= high + 1e-9 * step; at += step) found.push(+at.toPrecision(12));
  return found;
}

/** A number with four digits after the point or, if it is small, with four digits that count. */
export function number(value) {
  if (!Number.isFinite(value)) return "not finite";
  const size = Math.abs(value);
  if (size >= 0.1 || size === 0) return value.toFixed(size >= 1000 ? 1 : 4);
  return size < 0.0001 ? value.toExponential(3) : value.toPrecision(4);
}

/** The index of the last of some steps that is not after `step`; -1 if all are. */
export function lastBefore(steps, step) {
  let low = 0, high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Labels at the ends of curves, moved apart so that none covers another. */
function apart(wanted, gap, low, high) {
  const order = wanted.map((_, i) => i).sort((a, b) => wanted[a] - wanted[b]), found = [...wanted];
  order.forEach((i, n) => { if (n) found[i] = Math.max(found[i], found[order[n - 1]] + gap); });
  let limit = high;
  for (const i of order.reverse()) {
    found[i] = Math.max(low, Math.min(found[i], limit));
    limit = found[i] - gap;
  }
  return found;
}

/** `series`: [{name, colour, steps, values, pale, marks, best, dash, end}]; `end` is a label at the end of the curve.
    `chosen` is a step or undefined; `hover(step)` and `choose(step)` are called. */
export function chart({ series, width, height = HEIGHT, log = false, label, chosen, hover, choose }) {
  const all = [...new Set(series.flatMap((one) => one.steps))].sort((a, b) => a - b);
  const steps = log ? all.filter((step) => step > 0) : all;
  const ys = series.flatMap((one) => one.values).filter(Number.isFinite);
  const low = Math.min(...ys), high = Math.max(...ys), first = log ? steps[0] : 0,
    last = Math.max(steps.at(-1), first + 1);
  const names = series.map((one) => one.end ?? ""), longest = Math.max(...names.map((name) => [...name].length));
  const right = width - (longest ? Math.min(0.3 * width, 16 + 7.3 * longest) : 14);
  const place = log ? (step) => Math.log(step / first) / Math.log(last / first) : (step) => step / last;
  const x = (step) => LEFT + (right - LEFT) * place(step);
  const y = (value) => TOP + (height - TOP - BOTTOM) * (1 - (value - low) / (high - low || 1));
  const cursor = s("g", { style: { "pointer-events": "none" } });
  const svg = s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "slider", tabindex: 0,
    "aria-label": label, "aria-valuemin": steps[0], "aria-valuemax": last });
  for (const value of ticks(low, high)) svg.append(s("line",
    { class: "axis", x1: LEFT, x2: right, y1: y(value), y2: y(value) }),
    s("text", { class: "soft", x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, `${+value.toPrecision(6)}`));
  ticks(first, last, Math.max(2, Math.min(8, (right - LEFT) / 90)), log).forEach((step, i) => {
    const words = i ? count(step) : `step ${count(step)}`, half = 3.7 * words.length;
    svg.append(s("text", { class: "soft", x: Math.min(x(step), width - half - 1), y: height - 9,
      "text-anchor": "middle" }, words));
  });
  series.forEach((one) => {
    const points = one.steps.map((step, i) => [x(step),
      y(one.values[i])]).filter((point) => point.every(Number.isFinite));
    svg.append(s("polyline",
      { class: "curve", "data-name": one.name,
      points: points.map((point) => point.map((v) => v.toFixed(1)).join(",")).join(" "), fill: "none",
      stroke: one.colour, "stroke-width": one.pale ? 1 : 2, "stroke-opacity": one.pale ? 0.35 : 1,
      "stroke-linejoin": "round", "stroke-dasharray": one.dash }));
    if (one.marks || points.length === 1) svg.append(...points.map(([cx, cy]) => s("circle",
      { cx, cy, r: 3, fill: one.colour })));
    if (one.best >= 0) svg.append(s("circle", { cx: x(one.steps[one.best]), cy: y(one.values[one.best]), r: 7,
      fill: "none", stroke: "currentColor", "stroke-width": 1.5 }));
  });
  const labelled = series.filter((one) => one.end && one.values.some(Number.isFinite));
  const heights = apart(labelled.map((one) => y(one.values.findLast(Number.isFinite)) + 4), 15, TOP + 6,
    height - BOTTOM + 4);
  labelled.forEach((one, i) => {
    const letters = [...one.end], most = Math.max(4, Math.floor((width - right - 12) / 7.3));
    svg.append(s("text", { x: right + 8, y: heights[i], style: { fill: one.colour, "font-weight": 600 } },
      letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : one.end));
  });
  svg.append(cursor);
  const light = (step) => {
    cursor.replaceChildren();
    if (step === undefined) return;
    cursor.append(s("line", { x1: x(step), x2: x(step), y1: TOP, y2: height - BOTTOM, class: "cursor" }));
    for (const one of series) {
      const at = lastBefore(one.steps, step), value = one.values[at];
      if (!one.pale && Number.isFinite(value) && (!log || one.steps[at] > 0)) cursor.append(s("circle",
        { cx: x(one.steps[at]), cy: y(value), r: 4.5, fill: one.colour, class: "ring" }));
    }
    svg.setAttribute("aria-valuenow", step);
  };
  const show = (step) => { light(step ?? chosen); hover(step ?? chosen); };
  const nearest = (event) => {
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
    return steps.reduce((best, step) => (Math.abs(x(step) - at) < Math.abs(x(best) - at) ? step : best), steps[0]);
  };
  svg.addEventListener("pointermove", (event) => show(nearest(event)));
  svg.addEventListener("pointerleave", () => show());
  svg.addEventListener("click", (event) => choose(nearest(event)));
  svg.addEventListener("keydown", (event) => {
    const from = Math.max(0, lastBefore(steps, chosen ?? -1)), jump = Math.max(1, Math.round(steps.length / 10));
    const to = { ArrowRight: from + 1, ArrowUp: from + 1, ArrowLeft: from - 1, ArrowDown: from - 1,
      PageUp: from + jump, PageDown: from - jump, Home: 0, End: steps.length - 1 }[event.key];
    if (event.key === "Escape") choose("");
    if (to === undefined) return;
    event.preventDefault();
    choose(steps[Math.min(steps.length - 1, Math.max(0, to))]);
  });
  return { svg, show, says: (text) => svg.setAttribute("aria-valuetext", text) };
}

/** Draw now, and again when the width of the box changes. */
export function fitting(box, draw, stop) {
  let width = 0;
  const fit = () => {
    const now = Math.round(box.clientWidth);
    if (now && now !== width) draw((width = now));
  };
  const watch = new ResizeObserver(() => requestAnimationFrame(fit));
  watch.observe(box);
  stop?.addEventListener("abort", () => watch.disconnect());
  return () => { width = 0; fit(); };
}

/** The mean of the values around each one, over a twentieth of the curve; the window is smaller near its ends. */
export function smooth(values) {
  const sums = [0], known = [0];
  values.forEach((value, i) => {
    const fine = Number.isFinite(value);
    sums.push(sums[i] + (fine ? value : 0));
    known.push(known[i] + (fine ? 1 : 0));
  });
  return values.map((value, i) => {
    const reach = Math.min(i, Math.floor(values.length / 40)), end = Math.min(values.length, i + reach + 1);
    return Number.isFinite(value) ? (sums[end] - sums[i - reach]) / (known[end] - known[i - reach]) : NaN;
  });
}

/** A coloured name of a curve. */
export const legend = (name, colour) => h("span", { class: "legend" },
  h("span", { class: "swatch", style: { background: colour } }), name);
