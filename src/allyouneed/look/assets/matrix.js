// One head as a matrix: a row for each token that looks, a column for each that is looked at.

import { colour, h, paint, part, s, short, strongest, visible } from "look/draw.js";

const LABELS = 64; // tokens that have a label; of more, hovering names them

/** Which colour is which weight. */
function legend(x, y, scale) {
  const steps = Array.from({ length: 20 }, (_, i) => s("rect", { x: x + 34 + 4 * i, y, width: 4.3, height: 9, fill: colour((i + 0.5) / 20) }));
  const text = (at, words) => s("text", { class: "soft", x: at, y: y + 9, style: { "font-size": "11px" } }, words);
  return [text(x, "0.000"), ...steps, text(x + 118, scale < 1 ? `${part(scale)} and more` : "1.000")];
}

export function matrix({ rows, columns, values, pinned, pin }) {
  const most = Math.max(rows.length, columns.length), cell = Math.max(1.2, Math.min(42, 560 / most));
  const named = most <= LABELS, size = Math.min(13, Math.max(8, cell));
  const long = (tokens) => (named ? 10 + 0.62 * size * Math.max(...tokens.map((token) => Math.min(14, visible(token).length))) : 8);
  const left = long(rows), top = long(columns), width = cell * columns.length, height = cell * rows.length;
  const scale = strongest(values), raster = paint(h("canvas"), values, rows.length, columns.length, scale);
  const light = s("g", {}), right = Math.max(left + width + 4, left + 170), bottom = top + height + 30;
  const svg = s("svg", { viewBox: `0 0 ${right} ${bottom}`, width: right, height: bottom, role: "img", "aria-label": `attention weights, ${rows.length} by ${columns.length}` },
    s("image", { href: raster.toDataURL(), x: left, y: top, width, height, preserveAspectRatio: "none" }),
    s("rect", { class: "frame", x: left, y: top, width, height }), light);
  svg.append(...legend(left, top + height + 12, scale));
  if (named) {
    rows.forEach((token, i) => svg.append(s("text", { x: left - 6, y: top + cell * (i + 0.5) + size / 3, "text-anchor": "end", style: { "font-size": `${size}px` }, class: i === pinned ? "pinned" : "" }, short(visible(token), 14))));
    columns.forEach((token, i) => svg.append(s("text", { transform: `translate(${left + cell * (i + 0.5) + size / 3} ${top - 6}) rotate(-90)`, style: { "font-size": `${size}px` } }, short(visible(token), 14))));
  }
  const where = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const row = Math.floor((point.y - top) / cell), column = Math.floor((point.x - left) / cell);
    return row >= 0 && row < rows.length && column >= 0 && column < columns.length ? [row, column] : [-1, -1];
  };
  svg.addEventListener("click", (event) => { const [row] = where(event); if (row >= 0) pin(row === pinned ? "" : row); });
  return {
    svg,
    light(row, column) {
      light.replaceChildren();
      if (row >= 0) light.append(s("rect", { class: "cross", x: left, y: top + cell * row, width, height: cell }));
      if (column >= 0) light.append(s("rect", { class: "cross", x: left + cell * column, y: top, width: cell, height }), s("rect", { class: "here", x: left + cell * column, y: top + cell * row, width: cell, height: cell }));
    },
    onhover(hover) {
      svg.addEventListener("mousemove", (event) => hover(...where(event)));
      svg.addEventListener("mouseleave", () => hover(-1, -1));
    },
  };
}
