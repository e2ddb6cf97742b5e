// Gates: how far each gate of a recurrent layer, or of a convolution, is open at each token.

import { h, paint, part, ramp, s, say, short, tool, visible } from "look/draw.js";
import { saveTools } from "look/save.js";

export const name = "gates";
export const title = "Gates";
export const has = (shown) => Boolean(shown.gates?.length);

const SAYS = {
  reset: "reset: how much of the past the new value sees",
  update: "update: how much of the past stays",
  input: "input: how much of the new value enters the cell",
  forget: "forget: how much of the cell stays",
  output: "output: how much of the cell is shown",
  gate: "gate: how much of the convolution passes",
};
const GROUPS = { encoder: "Encoder", decoder: "Decoder" };
const OPEN = 0.9, SHUT = 0.1;

/** A colour of text that can be read on the colour of a value. */
function readable(value) {
  const [r, g, b] = ramp()[Math.round(255 * value)];
  return 0.3 * r + 0.6 * g + 0.1 * b > 128 ? "#10151d" : "#ffffff";
}

/** The scale of the colours. */
const scale = () => h("span", { class: "scale", "aria-hidden": "true" }, "0",
  paint(h("canvas"), Float32Array.from({ length: 64 }, (_, i) => i / 63), 1, 64), "1");

/** A heat map with a row for each gate or unit and a column for each token; a chosen row has a frame. */
function heat({ rows, columns, values, height, width, chosen = -1, choose, written = false, label }) {
  const named = rows.some(Boolean), longest = Math.max(...rows.map((row) => [...row].length));
  const left = named ? 12 + 7.3 * longest : 8;
  const cell = Math.max(2, Math.min(84, (width - left - 6) / columns.length)), labels = cell >= 12;
  const top = labels ? 12 + 7.3 * Math.max(...columns.map((token) => Math.min(14, [...visible(token)].length))) : 8;
  const light = s("g", { style: { "pointer-events": "none" } }), cells = [];
  const wide = cell * columns.length, high = height * rows.length,
    raster = paint(h("canvas"), values, rows.length, columns.length);
  rows.forEach((row, i) => {
    const line = [s("rect", { x: 0, y: top + height * i, width: left + wide, height, fill: "transparent" })];
    if (written && cell >= 38) {
      line.push(...columns.map((_, at) => {
        const value = values[i * columns.length + at];
        return s("text", { x: left + cell * (at + 0.5), y: top + height * (i + 0.5) + 4, "text-anchor": "middle",
          style: { fill: readable(value), "font-size": "11px" } }, part(value));
      }));
    }
    if (named) line.push(s("text", { x: left - 7, y: top + height * (i + 0.5) + 4, "text-anchor": "end",
      class: i === chosen ? "pinned" : "" }, row));
    cells.push(s("g", choose && {
      role: "button", tabindex: 0, class: "gate", "aria-label": row, "aria-pressed": String(i === chosen),
        onclick: () => choose(i),
      onkeydown: (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(i); }
        ({ ArrowDown: cells[i + 1], ArrowUp: cells[i - 1] })[event.key]?.focus();
        if (event.key.startsWith("Arrow")) event.preventDefault();
      },
    }, line));
  });
  const svg = s("svg", { viewBox: `0 0 ${left + wide + 4} ${top + high + 4}`, width: left + wide + 4,
    height: top + high + 4, role: choose ? "group" : "img", "aria-label": label },
    s("image", { href: raster.toDataURL(), x: left, y: top, width: wide, height: high, preserveAspectRatio: "none" }),
      cells,
    s("rect", { class: "frame", x: left, y: top, width: wide, height: high, style: { "pointer-events": "none" } }));
  if (chosen >= 0) svg.append(s("rect", { class: "here", x: left, y: top + height * chosen, width: wide, height }));
  columns.forEach((token, at) => {
    const place = `translate(${left + cell * (at + 0.5) + 4} ${top - 6}) rotate(-90)`;
    if (labels) svg.append(s("text", { transform: place }, short(visible(token), 14)));
  });
  svg.append(light);
  const hovers = [];
  svg.addEventListener("pointermove", (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const row = Math.floor((point.y - top) / height), column = Math.floor((point.x - left) / cell);
    const inside = row >= 0 && row < rows.length && column >= 0 && column < columns.length;
    light.replaceChildren(inside ? s("rect", { class: "here", x: left + cell * column, y: top + height * row,
      width: cell, height }) : "");
    hovers.forEach((hover) => hover(inside ? row : -1, column));
  });
  svg.addEventListener("pointerleave", () => { light.replaceChildren(); hovers.forEach((hover) => hover(-1, -1)); });
  return { svg, onhover: (hover) => hovers.push(hover) };
}

/** The rows of a page: each gate of each direction of each layer. */
function gatesOf(shown) {
  const layers = {}, found = [];
  const both = shown.gates.some((one) => one.backward);
  shown.gates.forEach((layer, at) => {
    const key = `${layer.group}${layer.path.split(".").slice(0, 2)}`;
    layers[key] = (layers[key] ?? 0) + 1;
    const reader = layer.path.startsWith("reader.");
    for (let direction = 0; direction < layer.directions; direction++) {
      const arrow = layer.backward || direction ? "←" : layer.directions > 1 || both ? "→" : "";
      layer.gates.forEach((gate, g) => found.push({ layer, at, direction, g, gate, arrow, number: layers[key], key,
        reader }));
    }
  });
  for (const one of found) {
    const several = layers[one.key] > 1;
    one.label = [several && `${one.layer.gates.length > 1 ? "layer" : "block"} ${one.number}`, one.gate,
      one.arrow].filter(Boolean).join(" ");
  }
  return found;
}

/** The values of one gate in one direction: the mean of its units by token, or units x tokens. */
function slice({ layer, direction, g }, values, units) {
  const tokens = values.length / layer.directions / layer.gates.length / units;
  const found = new Float32Array(tokens * units);
  for (let token = 0; token < tokens; token++) {
    const from = ((token * layer.directions + direction) * layer.gates.length + g) * units;
    for (let unit = 0; unit < units; unit++) found[unit * tokens + token] = values[from + unit];
  }
  return found;
}

const average = (values, from, count) => values.subarray(from, from + count).reduce((a, b) => a + b, 0) / count;

export async function draw(root, { shown, store, state, stop }) {
  const all = gatesOf(shown), kinds = [...new Set(all.map((one) => one.gate))];
  const means = await Promise.all(all.map(async (one) => slice(one, await store.numbers(one.layer.mean), 1)));
  if (stop.aborted) return;
  const indices = all.map((_, i) => i), keys = [...new Set(all.map((one) => one.key))];
  const groups = keys.map((key) => indices.filter((i) => all[i].key === key));
  const merged = new Map(); // the parts that read the same tokens in the same part of the model stand in one map
  for (const group of groups) {
    const { layer, reader } = all[group[0]], key = `${layer.group} ${layer.sequence} ${reader}`;
    merged.set(key, [...(merged.get(key) ?? []), ...group]);
  }
  const overview = h("section", { class: "card" }), detail = h("section", { class: "card" });
  const tokensOf = (one) => shown.sequences[one.layer.sequence].tokens;
  root.append(h("div", { class: Math.max(...all.map((one) => tokensOf(one).length)) <= 12 ? "pair" : "" }, overview,
    detail));
  const chosenOf = () => Math.max(0, state.index("gate", all.length));
  const width = () => Math.max(220, overview.clientWidth - 36);

  const drawAll = () => {
    const chosen = chosenOf(), read = h("p", { class: "reading", "data-reading": "" });
    const maps = [...merged.values()].map((rows, n) => {
      const one = all[rows[0]], columns = tokensOf(one), values = Float32Array.from(rows.flatMap((i) => [...means[i]]));
      const heading = one.reader ? "The reader of all layers" : GROUPS[one.layer.group] ?? "";
      const figure = heat({ rows: rows.map((i) => all[i].label), columns, values, height: 28, width: width(),
        written: true, chosen: rows.indexOf(chosen), choose: (row) => state.set({ gate: rows[row] }),
        label: `mean of the units of each gate, ${columns.length} tokens` });
      figure.onhover((row, column) => {
        if (row < 0) return read.replaceChildren();
        read.replaceChildren(`${all[rows[row]].label} at `, h("span", { class: "number" }, visible(columns[column])),
          ": ", h("b", { class: "number", "data-gate": "" }, part(values[row * columns.length + column])),
          " open, as the mean of its units");
      });
      const file = [shown.run.name, "gates", one.layer.group, one.reader && "letters"].filter(Boolean).join("-");
      return [h("div", { class: "tools" }, heading && h("h3", { style: { margin: 0 } }, heading), n === 0 && scale(),
        h("span", { class: "space" }),
        saveTools(file, () => figure.svg, () => ({ values, rows: rows.map((i) => all[i].label), columns }))),
        h("div", { class: "scroll" }, figure.svg)];
    });
    const directions = all.some((one) => one.arrow) ? " → reads from the start, ← from the end." : "";
    overview.replaceChildren(h("h2", {}, "How far each gate is open"),
      h("p", { class: "says" },
        "The mean of all units, from 0 (shut) to 1 (open); ", kinds.map((kind) => SAYS[kind] ?? kind).join("; "), ".",
        directions, " Choose a gate to see each of its units."), ...maps.flat(), read);
  };

  let turn = 0;
  const drawOne = async () => {
    const mine = ++turn, one = all[chosenOf()], columns = tokensOf(one), { units } = one.layer;
    const heading = h("h2", {},
      `All ${units} units: ${[GROUPS[one.layer.group], one.label].filter(Boolean).join(", ")}`);
    if (!store.has(one.layer.each)) {
      detail.replaceChildren(heading,
        h("p", { class: "says" },
        "The units are left out of this page, which would become too large. A live page has them."));
      return;
    }
    const values = slice(one, await store.numbers(one.layer.each), units);
    if (mine !== turn || stop.aborted) return;
    const sorted = state.get("units", "sorted") === "sorted", count = columns.length,
      order = Array.from({ length: units }, (_, i) => i);
    if (sorted) {
      const by = order.map((unit) => average(values, unit * count, count));
      order.sort((a, b) => by[b] - by[a]);
    }
    const ordered = Float32Array.from(order.flatMap((unit) => [...values.subarray(unit * count, (unit + 1) * count)]));
    const figure = heat({ rows: order.map(() => ""), columns, values: ordered,
      height: Math.max(2, Math.min(9, 460 / units)), width: width(), label: `each of ${units} units by token` });
    const read = h("p", { class: "reading" });
    const all_ = (column) => order.map((_, row) => ordered[row * count + column]);
    const idle = () => {
      const open = ordered.filter((value) => value > OPEN).length / ordered.length,
        shut = ordered.filter((value) => value < SHUT).length / ordered.length;
      const [most, least] = [open, shut].map((value) => Math.round(100 * value));
      read.textContent = `${most} % of all cells are more than ${OPEN} open, ${least} % less than ${SHUT}.`;
    };
    figure.onhover((row, column) => {
      if (row < 0) return idle();
      const here = all_(column);
      read.replaceChildren(`unit ${order[row] + 1} at `, h("span", { class: "number" }, visible(columns[column])),
        ": ", h("b", { class: "number", "data-unit": order[row] + 1 }, part(ordered[row * count + column])),
        `; here ${here.filter((value) => value > OPEN).length} of ${units} units are more than ${OPEN} open, `,
        `${here.filter((value) => value < SHUT).length} less than ${SHUT}`);
    });
    idle();
    detail.replaceChildren(heading,
      h("div", { class: "tools" }, tool("sorted by their mean", sorted, () => state.set({ units: "" })),
        tool("as stored", !sorted, () => state.set({ units: "stored" })), h("span", { class: "space" }),
        saveTools(`${shown.run.name}-units`, () => figure.svg,
          () => ({ values: ordered, rows: order.map((unit) => `${unit + 1}`), columns }))),
      h("div", { class: "scroll" }, figure.svg), read);
  };
  state.on((changes) => {
    if ("view" in changes) return;
    const focused = overview.contains(document.activeElement);
    drawAll();
    drawOne();
    if (focused) overview.querySelector(".gate[aria-pressed=true]")?.focus();
    say(all[chosenOf()].label);
  }, stop);
  drawAll();
  await drawOne();
}
