// One head as arcs: tokens that attend on the left, those that are attended to on the right.

import { part, pointIn, s, short, visible } from "look/draw.js";

const STEP = 22, LEFT = 130, MIDDLE = 195, RIGHT = 260, WIDTH = 390;
const FAINT = 0.02; // a weaker link is drawn only for a chosen token
const FAINTEST = 0.0005;
const ALL = 96; // tokens of which all links are drawn

const y = (i) => STEP * i + STEP / 2 + 4;

function link(row, column, value) {
  const d = `M${LEFT} ${y(row)} C${MIDDLE} ${y(row)} ${MIDDLE} ${y(column)} ${RIGHT} ${y(column)}`;
  const width = (0.8 + 3.2 * value).toFixed(2), opacity = Math.max(0.04, value).toFixed(3);
  const strength = { "stroke-opacity": opacity, "stroke-width": width };
  return s("path", { class: "link", d, ...strength }, s("title", {}, part(value)));
}

export function arcs({ rows, columns, values, pinned, pin }) {
  const height = STEP * Math.max(rows.length, columns.length) + 8, links = s("g", {});
  const name = (x, anchor) => (token, i) => {
    return s("text", { x, y: y(i) + 4, "text-anchor": anchor }, short(visible(token), 15));
  };
  const lefts = rows.map(name(LEFT - 8, "end")), rights = columns.map(name(RIGHT + 8, "start"));
  const svg = s("svg", {
    viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height, role: "img",
    "aria-label": `links from ${rows.length} tokens to ${columns.length}`,
  }, links, lefts, rights);
  const weight = (row, column) => values[row * columns.length + column];

  /** The links of one token, or of all. */
  function* found(row) {
    const from = row >= 0 ? [row] : rows.length > ALL ? [] : rows.keys();
    for (const i of from) {
      for (const j of columns.keys()) {
        if (weight(i, j) > (row >= 0 ? FAINTEST : FAINT)) yield link(i, j, weight(i, j));
      }
    }
  }
  const at = (event) => {
    const point = pointIn(svg, event), row = Math.floor((point.y - 4) / STEP);
    return point.x < LEFT + 20 && row >= 0 && row < rows.length ? row : -1;
  };
  svg.addEventListener("click", (event) => {
    const row = at(event);
    if (row >= 0) pin(row === pinned ? "" : row);
  });
  return {
    svg,
    light(row) {
      links.replaceChildren(...found(row));
      lefts.forEach((text, i) => text.setAttribute("class", i === row ? "pinned" : row >= 0 ? "soft" : ""));
      const opacity = (j) => (row < 0 ? 1 : Math.max(0.25, Math.min(1, 3 * weight(row, j))));
      rights.forEach((text, j) => { text.style.opacity = opacity(j); });
    },
    onhover(hover) {
      svg.addEventListener("mousemove", (event) => hover(at(event), -1));
      svg.addEventListener("mouseleave", () => hover(-1, -1));
    },
  };
}
