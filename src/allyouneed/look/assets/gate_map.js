// A map of numbers from 0 to 1: a row for each gate or unit, a column for each token.

import { h, paint, part, pointIn, ramp, s, short, visible } from "look/draw.js";

const LETTER = 7.3, LONGEST = 14;

/** The scale of the colours. */
export const scale = () => h("span", { class: "scale", "aria-hidden": "true" }, "0",
  paint(h("canvas"), Float32Array.from({ length: 64 }, (_, i) => i / 63), 1, 64), "1");

/** A colour of text that can be read on the colour of a value. */
function readable(value) {
  const [r, g, b] = ramp()[Math.round(255 * value)];
  return 0.3 * r + 0.6 * g + 0.1 * b > 128 ? "#10151d" : "#ffffff";
}

/** `rows` are names, `columns` tokens, `height` is that of a row and `width` that of all. A row that is `chosen` has a
 * frame; `choose(row)` hears of another one, `hover(row, column)` of the pointer (-1, -1: it has left). Where there is
 * room, the numbers are `written`. */
export class GateMap {
  constructor({ rows, columns, values, height, width, label, chosen = -1, choose, hover, written = false }) {
    Object.assign(this, { rows, columns, values, height, chosen, choose, hover });
    this.named = rows.some(Boolean);
    this.left = this.named ? 12 + LETTER * Math.max(...rows.map((row) => [...row].length)) : 8;
    this.cell = Math.max(2, Math.min(84, (width - this.left - 6) / columns.length));
    this.labelled = this.cell >= 12;
    this.written = written && this.cell >= 38;
    const longest = Math.max(...columns.map((token) => Math.min(LONGEST, [...visible(token)].length)));
    this.top = this.labelled ? 12 + LETTER * longest : 8;
    this.wide = this.cell * columns.length;
    this.high = height * rows.length;
    this.draw(label);
  }

  draw(label) {
    const { left, top, wide, high, rows, columns, choose } = this, width = left + wide + 4, height = top + high + 4;
    const raster = paint(h("canvas"), this.values, rows.length, columns.length);
    this.lines = rows.map((_, i) => this.line(i));
    this.light = s("g", { style: { "pointer-events": "none" } }); // the cell under the pointer
    this.svg = s("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: choose ? "group" : "img", "aria-label": label,
    },
    s("image", { href: raster.toDataURL(), x: left, y: top, width: wide, height: high, preserveAspectRatio: "none" }),
    this.lines,
    s("rect", { class: "frame", x: left, y: top, width: wide, height: high, style: { "pointer-events": "none" } }),
    this.chosen >= 0 && this.frame(this.chosen), this.labelled && columns.map((token, at) => this.tokenName(token, at)),
    this.light);
    this.listen();
  }

  y(row) { return this.top + this.height * row; }

  /** A row: its name, and its numbers. */
  line(i) {
    const { rows, columns, named, written } = this;
    const back = s("rect", {
      x: 0, y: this.y(i), width: this.left + this.wide, height: this.height, fill: "transparent",
    });
    const content = [back, ...(written ? columns.map((_, at) => this.number(i, at)) : [])];
    return s("g", this.choose && this.asButton(i), content, named && this.rowName(rows[i], i));
  }

  number(row, column) {
    const value = this.values[row * this.columns.length + column], x = this.left + this.cell * (column + 0.5);
    const style = { fill: readable(value), "font-size": "11px" };
    return s("text", { x, y: this.y(row + 0.5) + 4, "text-anchor": "middle", style }, part(value));
  }

  rowName(name, i) {
    const look = { "text-anchor": "end", class: i === this.chosen ? "pinned" : "" };
    return s("text", { x: this.left - 7, y: this.y(i + 0.5) + 4, ...look }, name);
  }

  tokenName(token, at) {
    const place = `translate(${this.left + this.cell * (at + 0.5) + 4} ${this.top - 6}) rotate(-90)`;
    return s("text", { transform: place }, short(visible(token), LONGEST));
  }

  frame(row) {
    return s("rect", { class: "here", x: this.left, y: this.y(row), width: this.wide, height: this.height });
  }

  asButton(i) {
    return {
      role: "button", tabindex: 0, class: "gate", "aria-label": this.rows[i], "aria-pressed": String(i === this.chosen),
      onclick: () => this.choose(i), onkeydown: (event) => this.key(event, i),
    };
  }

  /** The arrow keys go from row to row, Enter chooses one. */
  key(event, i) {
    const enters = event.key === "Enter" || event.key === " ";
    if (enters || event.key.startsWith("Arrow")) event.preventDefault();
    if (enters) this.choose(i);
    ({ ArrowDown: this.lines[i + 1], ArrowUp: this.lines[i - 1] })[event.key]?.focus();
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => {
      const point = pointIn(this.svg, event);
      this.point(Math.floor((point.y - this.top) / this.height), Math.floor((point.x - this.left) / this.cell));
    });
    this.svg.addEventListener("pointerleave", () => this.point(-1, -1));
  }

  point(row, column) {
    const inside = row >= 0 && row < this.rows.length && column >= 0 && column < this.columns.length;
    this.light.replaceChildren(inside ? s("rect", {
      class: "here", x: this.left + this.cell * column, y: this.y(row), width: this.cell, height: this.height,
    }) : "");
    this.hover(inside ? row : -1, column);
  }
}
