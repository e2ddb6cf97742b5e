// A matrix as coloured cells, with numbers in them where there is room. A cell can be pointed at, clicked, or reached
// with the arrow keys.

import { h, inkOn, s, short, signed } from "look/draw.js";

const APART = 10; // between two labels, at least; where cells are smaller, only some are named

/** `rows` and `columns` are names; `words`: what is written into each cell; `scale`: the value with the full colour;
 * `hover` and `pick` get a row and a column. */
export function heat({ rows, columns, values, words, scale = 1, label, cell, tall, hover, pick, picked = [-1, -1],
  strong }) {
  const wide = cell ?? Math.max(2, Math.min(46, 560 / Math.max(rows.length, columns.length))), high = tall ?? wide;
  const size = Math.min(13, Math.max(9, Math.min(wide, high)));
  const long = (names) => 0.64 * size * names.reduce((most, name) => Math.max(most, Math.min(14, [...name].length)), 1);
  const flat = long(columns) <= wide, left = 10 + long(rows), top = flat ? 24 : 10 + long(columns);
  const width = wide * columns.length, height = high * rows.length,
    colours = Array.from(values, (value) => signed(value / scale));
  const raster = h("canvas", { width: columns.length, height: rows.length }),
    image = new ImageData(columns.length, rows.length);
  colours.forEach(([r, g, b], i) => image.data.set([r, g, b, 255], 4 * i));
  raster.getContext("2d").putImageData(image, 0, 0);
  const light = s("g", {}),
    svg = s("svg", { viewBox: `0 0 ${left + width + 4} ${top + height + 4}`, width: left + width + 4,
    height: top + height + 4, role: "img", tabindex: 0, "aria-label": `${label}; the arrow keys go from cell to cell` },
    s("image", { href: raster.toDataURL(), x: left, y: top, width, height, preserveAspectRatio: "none" }),
      s("rect", { class: "frame", x: left, y: top, width, height }));
  const style = { "font-size": `${size}px` };
  const named = (i, step) => i % Math.ceil(APART / step) === 0;
  rows.forEach((name, i) => named(i, high)
    && svg.append(s("text", { x: left - 6, y: top + high * (i + 0.5) + size / 3, "text-anchor": "end", style },
    short(name, 14))));
  columns.forEach((name, i) => named(i, wide) && svg.append(flat
    ? s("text", { x: left + wide * (i + 0.5), y: top - 8, "text-anchor": "middle", style }, short(name, 14))
    : s("text", { transform: `translate(${left + wide * (i + 0.5) + size / 3} ${top - 6}) rotate(-90)`, style },
      short(name, 14))));
  if (words && wide >= 30) colours.forEach((rgb, i) => {
    const row = Math.floor(i / columns.length), column = i % columns.length;
    svg.append(s("text", { x: left + wide * (column + 0.5), y: top + high * (row + 0.5) + 4, "text-anchor": "middle",
      style: { fill: inkOn(rgb), "font-size": wide > 60 ? "12px" : "10.5px", "font-weight": strong?.(row, column) ? 700
      : 400, "pointer-events": "none" } }, words[i]));
  });
  svg.append(light);
  let at = picked;
  const mark = (row, column) =>
    light.replaceChildren(...(row < 0 || column < 0 ? []
    : [s("rect", { class: "here", x: left + wide * column, y: top + high * row, width: wide, height: high })]));
  const go = (place) => { at = place; mark(...place); hover?.(...place); };
  const where = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const row = Math.floor((point.y - top) / high), column = Math.floor((point.x - left) / wide);
    return row >= 0 && row < rows.length && column >= 0 && column < columns.length ? [row, column] : [-1, -1];
  };
  svg.addEventListener("mousemove", (event) => go(where(event)));
  svg.addEventListener("mouseleave", () => go(picked));
  svg.addEventListener("click", (event) => { const place = where(event); if (place[0] >= 0) { picked = place; go(place);
  pick?.(...place); } });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (by) go([Math.min(rows.length - 1, Math.max(0, at[0] + by[0])),
      Math.min(columns.length - 1, Math.max(0, at[1] + by[1]))]);
    else if (event.key === "Enter" && at[0] >= 0) { picked = at; pick?.(...at); }
    else return;
    event.preventDefault();
  });
  mark(...picked);
  return svg;
}
