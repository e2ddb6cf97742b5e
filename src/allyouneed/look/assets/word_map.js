// A map of words: their density, rings around some, lines to near words, and labels.

import { count, css, h, ramp, visible } from "look/draw.js";
import { PanZoom } from "look/pan_zoom.js";

const LEVELS = 64; // colours of the density, per point
const DEEP = 12; // points on one pixel with the deepest colour
const TRIED = 6000; // words that may get a label

/** Colours of the density, as pixels: from the card to the deepest blue. */
function shades() {
  const colours = ramp(), [lightest] = colours, found = new Uint32Array(LEVELS * DEEP + 1);
  for (let i = 0; i < found.length; i++) {
    const amount = i / LEVELS, part = Math.min(1, amount), deep = 1 - Math.exp(-0.3 * Math.max(0, amount - 1));
    const full = colours[Math.round(255 * (0.5 + 0.5 * deep))];
    const [r, g, b] = lightest.map((from, c) => Math.round(from + (full[c] - from) * part));
    found[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return found;
}

/** A disc with a soft edge: the offsets of its pixels in a raster so wide, and how much each is covered. */
function disc(radius, width) {
  const reach = Math.ceil(radius), offsets = [], covers = [];
  for (let y = -reach; y <= reach; y++) for (let x = -reach; x <= reach; x++) {
    const cover = Math.min(1, Math.max(0, radius + 0.5 - Math.hypot(x, y)));
    if (cover > 0) { offsets.push(y * width + x); covers.push(cover); }
  }
  return { reach, offsets: Int32Array.from(offsets), covers: Float32Array.from(covers) };
}

/** Words of letters first, each group as it is in the vocabulary. */
function byImportance(words) {
  const letters = [], rest = [];
  words.forEach((word, i) => (/\p{L}{2}/u.test(word) && !/^[[<]/.test(word) ? letters : rest).push(i));
  return Int32Array.from([...letters, ...rest]);
}

/** The labels of one drawing: one that would overlap another is left out. */
class Labels {
  constructor(map) {
    const size = 12 * map.dpr, cell = 16 * map.dpr;
    Object.assign(this, { map, size, cell, taken: new Set(), made: 0 });
    this.columns = Math.ceil(map.canvas.width / cell) + 1;
    this.plain = `${size}px ${css("--mono")}`;
    this.strong = `600 ${this.plain}`;
    const { pen } = map;
    Object.assign(pen, { textBaseline: "middle", lineJoin: "round", strokeStyle: css("--card"), font: this.plain });
    pen.lineWidth = 3.5 * map.dpr;
  }

  write(row, colour, font) {
    const { pen } = this.map, [pointX, y] = this.map.place(row);
    if (!this.map.inside(pointX, y)) return;
    if (pen.font !== font) pen.font = font;
    const text = this.map.label(row), wide = this.map.labelWidth(row), gap = 8 * this.map.dpr;
    const x = pointX + gap + wide < this.map.canvas.width ? pointX + gap : pointX - gap - wide;
    if (!this.take(x, y, wide)) return;
    pen.strokeText(text, x, y);
    pen.fillStyle = colour;
    pen.fillText(text, x, y);
    this.made++;
  }

  /** Whether a label fits here; if it does, its place is taken. */
  take(x, y, wide) {
    const row = (value) => Math.floor(value / this.cell), column = row, found = [];
    const last = row(y + this.size / 2), end = column(x + wide);
    for (let r = row(y - this.size / 2); r <= last; r++) {
      for (let c = column(x - 6 * this.map.dpr); c <= end; c++) found.push(r * this.columns + c);
    }
    if (found.some((cell) => this.taken.has(cell))) return false;
    for (const cell of found) this.taken.add(cell);
    return true;
  }
}

/** `at` are the points, x and y in turn; `text` the rows of words with a ring; `choose(row)` hears of a click. */
export class WordMap extends PanZoom {
  constructor({ at, words, text, choose, stop }) {
    const label = `a map of ${count(words.length)} words; + and - zoom, the arrow keys move, 0 shows all`;
    super(h("canvas", { class: "map", tabindex: 0, role: "img", "aria-label": label }), at, stop);
    Object.assign(this, { words, text, choose, near: [], chosen: -1, size: words.length });
    this.tip = h("span", { class: "maptip", hidden: true });
    this.root = h("div", { class: "mapbox" }, this.canvas, this.tip);
    this.pen = this.canvas.getContext("2d", { willReadFrequently: true });
    this.order = byImportance(words);
    this.labels = words.map(() => "");
    this.widths = new Float32Array(this.size);
    this.colours = shades();
    this.radius = Math.max(0.9, 5.2 - 0.95 * Math.log10(this.size)); // fewer words are larger points
    this.canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    const resized = new ResizeObserver(() => this.fit());
    resized.observe(this.root);
    stop.addEventListener("abort", () => resized.disconnect());
  }

  fit() {
    const box = this.root.getBoundingClientRect();
    if (!box.width) return;
    this.resize(box);
    const { width, height } = this.canvas;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.density = new Float32Array(width * height);
    if (this.waiting !== undefined) this.centre(this.waiting, true);
    this.waiting = undefined;
    this.soon();
  }

  label(row) {
    return (this.labels[row] ||= visible(this.words[row]).slice(0, 24));
  }

  labelWidth(row) {
    return (this.widths[row] ||= this.pen.measureText(this.label(row)).width / this.dpr) * this.dpr * 1.08;
  }

  draw() {
    if (!this.density) return; // it has no size yet
    const begin = performance.now(), { dataset } = this.canvas;
    this.drawPoints();
    this.drawLines();
    this.drawRings();
    this.drawLabels();
    dataset.ms = (performance.now() - begin).toFixed(2);
    dataset.frames = Number(dataset.frames ?? 0) + 1;
  }

  /** The density of the points, as colours. */
  drawPoints() {
    const { pixels, density, at, zoom, colours, left, top } = this, { width, height } = this.canvas;
    const radius = Math.min(5, Math.max(0.8, this.radius * (zoom / this.whole) ** 0.4));
    const { reach, offsets, covers } = disc(radius * this.dpr, width), most = offsets.length;
    density.fill(0);
    for (let i = 0; i < this.size; i++) {
      const x = Math.round(left + at[2 * i] * zoom), y = Math.round(top - at[2 * i + 1] * zoom);
      if (x < reach || y < reach || x >= width - reach || y >= height - reach) continue;
      const from = y * width + x;
      for (let j = 0; j < most; j++) density[from + offsets[j]] += covers[j];
    }
    const last = colours.length - 1;
    for (let i = 0; i < pixels.length; i++) {
      const level = density[i] * LEVELS;
      pixels[i] = colours[level < last ? level | 0 : last];
    }
    this.pen.putImageData(this.image, 0, 0);
  }

  /** From the chosen word to the words near it. */
  drawLines() {
    const { pen } = this;
    if (this.chosen < 0) return;
    Object.assign(pen, { strokeStyle: css("--pin"), globalAlpha: 0.45, lineWidth: this.dpr });
    for (const row of this.near) {
      pen.beginPath();
      pen.moveTo(...this.place(this.chosen));
      pen.lineTo(...this.place(row));
      pen.stroke();
    }
    pen.globalAlpha = 1;
  }

  drawRings() {
    const pin = css("--pin"), accent = css("--accent"), card = css("--card");
    for (const row of this.near) this.ring(row, accent, card, 4);
    for (const row of this.text) this.ring(row, pin, card, 5);
    if (this.chosen >= 0) this.ring(this.chosen, pin, card, 7);
  }

  ring(row, colour, around, radius) {
    const { pen, dpr } = this;
    pen.beginPath();
    pen.arc(...this.place(row), radius * dpr, 0, 7);
    Object.assign(pen, { strokeStyle: around, lineWidth: 4 * dpr }).stroke();
    Object.assign(pen, { strokeStyle: colour, lineWidth: 2 * dpr }).stroke();
  }

  /** Words with a ring first; then others, more of them the closer one looks. */
  drawLabels() {
    const labels = new Labels(this), ink = css("--ink"), pin = css("--pin"), accent = css("--accent");
    const chosen = this.chosen < 0 ? [] : [this.chosen], marked = new Set([...chosen, ...this.near, ...this.text]);
    const most = marked.size + Math.min(140, 36 + 26 * Math.log2(Math.max(1, this.zoom / this.whole)));
    for (const row of [...chosen, ...this.text]) labels.write(row, pin, labels.strong);
    for (const row of this.near) labels.write(row, accent, labels.strong);
    let tried = 0;
    for (const row of this.order) {
      if (labels.made >= most || tried > TRIED) break;
      if (marked.has(row) || !this.inside(...this.place(row))) continue;
      tried++;
      labels.write(row, ink, labels.plain);
    }
    this.canvas.dataset.labels = labels.made;
  }

  /** Go to a word, close enough to see its neighbours; at once if `still`. */
  centre(row, still = matchMedia("(prefers-reduced-motion: reduce)").matches) {
    if (this.zoom) this.fly(row, this.closeUp(row), still);
    else this.waiting = row;
  }

  /** The zoom that shows half of the near words of a word, and some of those around it. */
  closeUp(row) {
    const { at, near, size } = this, far = new Float64Array(size);
    for (let i = 0; i < size; i++) far[i] = Math.hypot(at[2 * i] - at[2 * row], at[2 * i + 1] - at[2 * row + 1]);
    const half = near.map((other) => far[other]).sort((a, b) => a - b)[near.length >> 1] ?? 0;
    const around = far.sort()[Math.min(24, size - 1)];
    return this.limited(0.38 * this.canvas.height / (Math.max(half, around) || 1e-6), 1);
  }

  press(event) {
    super.press(event);
    this.tip.hidden = true;
  }

  click(px, py) {
    const row = this.under(px, py);
    if (row >= 0) this.choose(row);
  }

  /** Name the word under the pointer. */
  hover(px, py) {
    const row = this.under(px, py);
    this.tip.hidden = row < 0;
    this.canvas.style.cursor = row < 0 ? "grab" : "pointer";
    if (row < 0) return;
    this.tip.textContent = visible(this.words[row]);
    this.tip.style.left = `${px / this.dpr + 12}px`;
    this.tip.style.top = `${py / this.dpr - 30}px`;
  }
}
