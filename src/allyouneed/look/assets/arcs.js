// One head as arcs: tokens that look on the left, those that are looked at on the right.

import { part, s, short, visible } from "look/draw.js";

const STEP = 22, LEFT = 130, RIGHT = 260, WIDTH = 390;
const FAINT = 0.02; // a weaker link is drawn only for a chosen token
const ALL = 96; // tokens of which all links are drawn

export function arcs({ rows, columns, values, pinned, pin }) {
  const height = STEP * Math.max(rows.length, columns.length) + 8, links = s("g", {});
  const y = (i) => STEP * i + STEP / 2 + 4;
  const svg = s("svg", { viewBox: `0 0 ${WIDTH} ${height}`, width: WIDTH, height, role: "img", "aria-label": `links from ${rows.length} tokens to ${columns.length}` }, links);
  const label = (token, i, x, anchor) => s("text", { x, y: y(i) + 4, "text-anchor": anchor }, short(visible(token), 15));
  const lefts = rows.map((token, i) => label(token, i, LEFT - 8, "end")), rights = columns.map((token, i) => label(token, i, RIGHT + 8, "start"));
  svg.append(...lefts, ...rights);
  const link = (row, column, value) => s("path", { class: "link", d: `M${LEFT} ${y(row)} C${(LEFT + RIGHT) / 2} ${y(row)} ${(LEFT + RIGHT) / 2} ${y(column)} ${RIGHT} ${y(column)}`, "stroke-opacity": Math.max(0.04, value).toFixed(3), "stroke-width": (0.8 + 3.2 * value).toFixed(2) }, s("title", {}, part(value)));
  function light(row) {
    const found = [];
    rows.forEach((_, i) => {
      if (row >= 0 ? i !== row : rows.length > ALL) return;
      columns.forEach((_, j) => { const value = values[i * columns.length + j]; if (value > (row >= 0 ? 0.0005 : FAINT)) found.push(link(i, j, value)); });
    });
    links.replaceChildren(...found);
    lefts.forEach((text, i) => text.setAttribute("class", i === row ? "pinned" : row >= 0 ? "soft" : ""));
    rights.forEach((text, j) => { text.style.opacity = row < 0 ? 1 : Math.max(0.25, Math.min(1, 3 * values[row * columns.length + j])); });
  }
  const at = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()), row = Math.floor((point.y - 4) / STEP);
    return point.x < LEFT + 20 && row >= 0 && row < rows.length ? row : -1;
  };
  svg.addEventListener("click", (event) => { const row = at(event); if (row >= 0) pin(row === pinned ? "" : row); });
  return {
    svg,
    light,
    onhover(hover) {
      svg.addEventListener("mousemove", (event) => hover(at(event), -1));
      svg.addEventListener("mouseleave", () => hover(-1, -1));
    },
  };
}
