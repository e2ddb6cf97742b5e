// One head as a matrix: a row for each token that attends, a column for each that is attended to.

import { colour, h, paint, part, pointIn, s, short, strongest, visible } from "look/draw.js";

const NAMED = 64; // tokens that have a label; of more, pointing names them
const SIDE = 560, LARGEST = 42, LETTERS = 14;

/** Which colour is which weight. */
function legend(x, y, scale) {
  const step = (_, i) => s("rect", { x: x + 34 + 4 * i, y, width: 4.3, height: 9, fill: colour((i + 0.5) / 20) });
  const text = (at, words) => s("text", { class: "soft small", x: at, y: y + 9 }, words);
  const most = scale < 1 ? `${part(scale)} and more` : "1.000";
  return [text(x, "0.000"), ...Array.from({ length: 20 }, step), text(x + 118, most)];
}

/** The room for labels, in pixels. */
function room(tokens, size) {
  return 10 + 0.62 * size * Math.max(...tokens.map((token) => Math.min(LETTERS, visible(token).length)));
}

export function matrix({ rows, columns, values, pinned, pin }) {
  const most = Math.max(rows.length, columns.length), named = most <= NAMED;
  const cell = Math.max(1.2, Math.min(LARGEST, SIDE / most)), size = Math.min(13, Math.max(8, cell));
  const left = named ? room(rows, size) : 8, top = named ? room(columns, size) : 8;
  const width = cell * columns.length, height = cell * rows.length, scale = strongest(values);
  const right = Math.max(left + width + 4, left + 220), bottom = top + height + 30;
  const href = paint(h("canvas"), values, rows.length, columns.length, scale).toDataURL();
  const light = s("g", {});
  const svg = s("svg", {
    viewBox: `0 0 ${right} ${bottom}`, width: right, height: bottom, role: "img",
    "aria-label": `attention weights, ${rows.length} by ${columns.length}`,
  },
    s("image", { href, x: left, y: top, width, height, preserveAspectRatio: "none" }),
    s("rect", { class: "frame", x: left, y: top, width, height }), light,
    legend(left, top + height + 12, scale));
  const style = { "font-size": `${size}px` };
  const rowName = (token, i) => s("text", {
    x: left - 6, y: top + cell * (i + 0.5) + size / 3, "text-anchor": "end", style, class: i === pinned ? "pinned" : "",
  }, short(visible(token), LETTERS));
  const columnName = (token, i) => s("text", {
    transform: `translate(${left + cell * (i + 0.5) + size / 3} ${top - 6}) rotate(-90)`, style,
  }, short(visible(token), LETTERS));
  if (named) svg.append(...rows.map(rowName), ...columns.map(columnName));

  const where = (event) => {
    const { x, y } = pointIn(svg, event), row = Math.floor((y - top) / cell), column = Math.floor((x - left) / cell);
    return row >= 0 && row < rows.length && column >= 0 && column < columns.length ? [row, column] : [-1, -1];
  };
  svg.addEventListener("click", (event) => {
    const [row] = where(event);
    if (row >= 0) pin(row === pinned ? "" : row);
  });
  return {
    svg,
    light(row, column) {
      const x = left + cell * column, y = top + cell * row;
      light.replaceChildren();
      if (row >= 0) light.append(s("rect", { class: "cross", x: left, y, width, height: cell }));
      if (column < 0) return;
      light.append(s("rect", { class: "cross", x, y: top, width: cell, height }));
      light.append(s("rect", { class: "here", x, y, width: cell, height: cell }));
    },
    onhover(hover) {
      svg.addEventListener("mousemove", (event) => hover(...where(event)));
      svg.addEventListener("mouseleave", () => hover(-1, -1));
    },
  };
}
