// The map of the vocabulary: all words of the run by their embeddings, and the nearest words of each.

import { count, css, h, percent, ramp, say, tool, visible } from "look/draw.js";

export const name = "vocabulary";
export const title = "Vocabulary";
export const has = (shown) => shown.vocabulary?.length > 0;

const LEVELS = 64; // colours of the density, per point
const DEEP = 12; // points on one pixel with the deepest colour
const FOUND = 8; // words that a search lists

/** Colours of the density, as pixels: from the card to the deepest blue. */
function shades() {
  const colours = ramp(), [r0, g0, b0] = colours[0], found = new Uint32Array(LEVELS * DEEP + 1);
  for (let i = 0; i < found.length; i++) {
    const amount = i / LEVELS,
      one = colours[Math.round(255 * (0.5 + 0.5 * (1 - Math.exp(-0.3 * Math.max(0, amount - 1)))))],
      part = Math.min(1, amount);
    const [r, g, b] = [r0, g0, b0].map((from, c) => Math.round(from + (one[c] - from) * part));
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

/** The words as points on a canvas that can be moved and zoomed. */
class WordMap {
  constructor({ at, words, text, choose, stop }) {
    Object.assign(this, { at, words, text, choose });
    this.size = words.length;
    this.canvas =
      h("canvas", { class: "map", tabindex: 0, role: "img",
      "aria-label": `a map of ${count(this.size)} words; + and - zoom, the arrow keys move, 0 shows all` });
    this.tip = h("span", { class: "maptip", hidden: true });
    this.root = h("div", { class: "mapbox" }, this.canvas, this.tip);
    this.pen = this.canvas.getContext("2d", { willReadFrequently: true });
    this.order = this.byImportance();
    this.labels = words.map(() => "");
    this.widths = new Float32Array(this.size);
    this.near = [];
    this.chosen = -1;
    this.colours = shades();
    this.radius = Math.max(0.9, 5.2 - 0.95 * Math.log10(this.size)); // fewer words are larger points
    this.bounds();
    const resize = new ResizeObserver(() => this.fit());
    resize.observe(this.root);
    stop.addEventListener("abort", () => { resize.disconnect(); cancelAnimationFrame(this.pending);
    cancelAnimationFrame(this.moving); });
    this.listen();
  }

  /** Words of letters first, each group as it is in the vocabulary. */
  byImportance() {
    const letters = [], rest = [];
    this.words.forEach((word, i) => (/\p{L}{2}/u.test(word) && !/^[[<]/.test(word) ? letters : rest).push(i));
    return Int32Array.from([...letters, ...rest]);
  }

  bounds() {
    let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
    for (let i = 0; i < this.size; i++) {
      const x = this.at[2 * i], y = this.at[2 * i + 1];
      if (x < left) left = x; if (x > right) right = x; if (y < top) top = y; if (y > bottom) bottom = y;
    }
    this.middle = [(left + right) / 2, (top + bottom) / 2];
    this.extent = [right - left || 1, bottom - top || 1];
  }

  fit() {
    const box = this.root.getBoundingClientRect(), dpr = Math.min(2, devicePixelRatio || 1);
    if (!box.width) return;
    this.dpr = dpr;
    this.canvas.width = Math.round(box.width * dpr);
    this.canvas.height = Math.round(box.height * dpr);
    const { width, height } = this.canvas, whole = 0.9 * Math.min(width / this.extent[0], height / this.extent[1]);
    if (!this.zoom || this.zoom === this.whole) Object.assign(this,
      { x: this.middle[0], y: this.middle[1], zoom: whole });
    this.whole = whole;
    this.image = new ImageData(width, height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.density = new Float32Array(width * height);
    if (this.waiting !== undefined) { const row = this.waiting; this.waiting = undefined; this.centre(row, true); }
    this.soon();
  }

  soon() {
    cancelAnimationFrame(this.pending);
    this.pending = requestAnimationFrame(() => this.draw());
  }

  draw() {
    if (!this.density) return; // it has no size yet
    const begin = performance.now(), { width, height } = this.canvas, { pixels, density, at, zoom, colours } = this;
    const left = width / 2 - this.x * zoom, top = height / 2 + this.y * zoom;
    const { reach, offsets, covers } = disc(Math.min(5, Math.max(0.8, this.radius * (zoom / this.whole) ** 0.4))
      * this.dpr, width), most = offsets.length;
    density.fill(0);
    for (let i = 0; i < this.size; i++) {
      const x = Math.round(left + at[2 * i] * zoom), y = Math.round(top - at[2 * i + 1] * zoom);
      if (x < reach || y < reach || x >= width - reach || y >= height - reach) continue;
      const from = y * width + x;
      for (let j = 0; j < most; j++) density[from + offsets[j]] += covers[j];
    }
    const last = colours.length - 1;
    for (let i = 0; i < pixels.length; i++) { const level = density[i] * LEVELS;
    pixels[i] = colours[level < last ? level | 0 : last]; }
    this.pen.putImageData(this.image, 0, 0);
    this.marks(left, top);
    this.canvas.dataset.ms = (performance.now() - begin).toFixed(2);
    this.canvas.dataset.frames = Number(this.canvas.dataset.frames ?? 0) + 1;
  }

  place(row, left, top) {
    return [left + this.at[2 * row] * this.zoom, top - this.at[2 * row + 1] * this.zoom];
  }

  /** Rings, lines to the nearest words, and labels that do not overlap. */
  marks(left, top) {
    const { pen, dpr } = this, { width, height } = this.canvas, pin = css("--pin"), ink = css("--ink"),
      accent = css("--accent"), card = css("--card");
    const inside = ([x, y]) => x > 0 && y > 0 && x < width && y < height;
    const ring = (row, colour, radius) => {
      const [x, y] = this.place(row, left, top);
      pen.beginPath();
      pen.arc(x, y, radius * dpr, 0, 7);
      pen.strokeStyle = card; pen.lineWidth = 4 * dpr; pen.stroke();
      pen.strokeStyle = colour; pen.lineWidth = 2 * dpr; pen.stroke();
    };
    if (this.chosen >= 0) {
      const from = this.place(this.chosen, left, top);
      pen.strokeStyle = pin; pen.globalAlpha = 0.45; pen.lineWidth = dpr;
      for (const row of this.near) { pen.beginPath(); pen.moveTo(...from); pen.lineTo(...this.place(row, left, top));
      pen.stroke(); }
      pen.globalAlpha = 1;
    }
    for (const row of this.near) ring(row, accent, 4);
    for (const row of this.text) ring(row, pin, 5);
    if (this.chosen >= 0) ring(this.chosen, pin, 7);
    const size = 12 * dpr, cell = 16 * dpr, columns = Math.ceil(width / cell) + 1, taken = new Set();
    const [plain, strong] = [`${size}px ${css("--mono")}`, `600 ${size}px ${css("--mono")}`];
    pen.textBaseline = "middle"; pen.lineJoin = "round"; pen.strokeStyle = card; pen.lineWidth = 3.5 * dpr;
    pen.font = plain;
    const most = Math.min(140, 36 + 26 * Math.log2(Math.max(1, this.zoom / this.whole))),
      marked = new Set([this.chosen, ...this.near, ...this.text]);
    let made = 0, tried = 0;
    const label = (row, colour, font) => {
      const spot = this.place(row, left, top);
      if (row < 0 || !inside(spot)) return;
      const text = (this.labels[row] ||= visible(this.words[row]).slice(0, 24));
      if (pen.font !== font) pen.font = font;
      const wide = (this.widths[row] ||= pen.measureText(text).width / dpr) * dpr * 1.08, right = spot[0] + 8 * dpr
        + wide < width, x = right ? spot[0] + 8 * dpr : spot[0] - 8 * dpr - wide;
      const row0 = Math.floor((spot[1] - size / 2) / cell), row1 = Math.floor((spot[1] + size / 2) / cell),
        from = Math.floor((x - 6 * dpr) / cell), to = Math.floor((x + wide) / cell);
      for (let r = row0; r <= row1; r++) for (let c = from; c <= to; c++) if (taken.has(r * columns + c)) return;
      for (let r = row0; r <= row1; r++) for (let c = from; c <= to; c++) taken.add(r * columns + c);
      pen.strokeText(text, x, spot[1]);
      pen.fillStyle = colour;
      pen.fillText(text, x, spot[1]);
      made++;
    };
    for (const row of [this.chosen, ...this.text]) label(row, pin, strong);
    for (const row of this.near) label(row, accent, strong);
    for (const row of this.order) {
      if (made >= most + marked.size || tried > 6000) break;
      if (marked.has(row)) continue;
      const x = left + this.at[2 * row] * this.zoom, y = top - this.at[2 * row + 1] * this.zoom;
      if (x < 0 || y < 0 || x > width || y > height) continue;
      tried++;
      label(row, ink, plain);
    }
    this.canvas.dataset.labels = made;
  }

  /** Zoom by a factor around a point of the canvas, in its own pixels. */
  by(factor, px = this.canvas.width / 2, py = this.canvas.height / 2) {
    const zoom = Math.min(4000 * this.whole, Math.max(0.5 * this.whole, this.zoom * factor));
    this.x += (px - this.canvas.width / 2) * (1 / this.zoom - 1 / zoom);
    this.y -= (py - this.canvas.height / 2) * (1 / this.zoom - 1 / zoom);
    this.zoom = zoom;
    this.soon();
  }

  shift(dx, dy) {
    this.x -= dx / this.zoom;
    this.y += dy / this.zoom;
    this.soon();
  }

  all() {
    Object.assign(this, { x: this.middle[0], y: this.middle[1], zoom: this.whole });
    this.soon();
  }

  /** Go to a word, near enough to see its neighbours. */
  centre(row, still = matchMedia("(prefers-reduced-motion: reduce)").matches) {
    if (!this.zoom) { this.waiting = row; return; }
    const [x, y] = [this.at[2 * row], this.at[2 * row + 1]], far = [];
    for (let i = 0; i < this.size; i++) far.push(Math.hypot(this.at[2 * i] - x, this.at[2 * i + 1] - y));
    const like = this.near.map((other) => far[other]).sort((a, b) => a - b)[this.near.length >> 1] ?? 0;
    // half of its nearest words are in sight
    const near = Math.max(like, far.sort((a, b) => a - b)[Math.min(24, this.size - 1)]) || 1e-6,
      goal = Math.max(this.whole, Math.min(0.38 * this.canvas.height / near, 4000 * this.whole));
    const [x0, y0, zoom0, start] = [this.x, this.y, this.zoom, performance.now()];
    cancelAnimationFrame(this.moving);
    const move = () => {
      const part = still ? 1 : Math.min(1, (performance.now() - start) / 450), eased = part * part * (3 - 2 * part),
        zoom = zoom0 * (goal / zoom0) ** eased;
      const along = Math.abs(goal - zoom0) < 1e-9 ? eased : (1 / zoom0 - 1 / zoom) / (1 / zoom0 - 1 / goal);
      // the word moves straight to the middle
      Object.assign(this, { x: x0 + (x - x0) * along, y: y0 + (y - y0) * along, zoom });
      this.draw();
      if (part < 1) this.moving = requestAnimationFrame(move);
    };
    move();
  }

  /** The word under a point of the canvas; -1 if there is none. */
  under(px, py) {
    const left = this.canvas.width / 2 - this.x * this.zoom, top = this.canvas.height / 2 + this.y * this.zoom;
    let best = -1, least = (14 * this.dpr) ** 2;
    for (let i = 0; i < this.size; i++) {
      const far = (left + this.at[2 * i] * this.zoom - px) ** 2 + (top - this.at[2 * i + 1] * this.zoom - py) ** 2;
      if (far < least) { least = far; best = i; }
    }
    return best;
  }

  listen() {
    const { canvas } = this, fingers = new Map();
    let moved = 0;
    const spot = (event) => { const box = canvas.getBoundingClientRect();
    return [(event.clientX - box.left) * this.dpr, (event.clientY - box.top) * this.dpr]; };
    canvas.addEventListener("pointerdown", (event) => { canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, spot(event)); moved = 0; this.tip.hidden = true; cancelAnimationFrame(this.moving); });
    canvas.addEventListener("pointermove", (event) => {
      const now = spot(event), before = fingers.get(event.pointerId);
      if (!before) return this.point(...now);
      const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
      moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
      fingers.set(event.pointerId, now);
      if (other) {
        this.by(Math.hypot(now[0] - other[0], now[1] - other[1]) / (Math.hypot(before[0] - other[0],
          before[1] - other[1]) || 1), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
        this.shift((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
      } else this.shift(now[0] - before[0], now[1] - before[1]);
    });
    const up = (event) => {
      if (fingers.delete(event.pointerId) && event.type === "pointerup" && moved < 5 * this.dpr
        && !fingers.size) { const row = this.under(...spot(event)); if (row >= 0) this.choose(row, false); }
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => { this.tip.hidden = true; });
    canvas.addEventListener("wheel", (event) => { event.preventDefault();
    this.by(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0018)), ...spot(event)); }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const step = 60 * this.dpr;
      const act = { "+": () => this.by(1.4), "=": () => this.by(1.4), "-": () => this.by(1 / 1.4), 0: () => this.all(),
        ArrowLeft: () => this.shift(step, 0), ArrowRight: () => this.shift(-step, 0),
        ArrowUp: () => this.shift(0, step), ArrowDown: () => this.shift(0, -step) }[event.key];
      if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
    });
  }

  point(px, py) {
    const row = this.under(px, py);
    this.tip.hidden = row < 0;
    this.canvas.style.cursor = row < 0 ? "grab" : "pointer";
    if (row < 0) return;
    this.tip.textContent = visible(this.words[row]);
    this.tip.style.left = `${px / this.dpr + 12}px`;
    this.tip.style.top = `${py / this.dpr - 30}px`;
  }
}

/** The words that a typed text may mean: the same one, then those that begin with it, then those that contain it. */
export function search(words, typed) {
  const goal = typed.trim().toLowerCase(), found = [[], [], [], []];
  if (!goal) return [];
  words.forEach((word, i) => {
    const one = word.trim(), low = one.toLowerCase(), at = low.indexOf(goal);
    if (at >= 0) found[one === typed.trim() ? 0 : low === goal ? 1 : at === 0 ? 2 : 3].push(i);
  });
  return found.flat().slice(0, FOUND);
}

export async function draw(root, { shown, store, state, stop, live }) {
  const number = Math.max(0, state.index("vocabulary", shown.vocabulary.length)), one = shown.vocabulary[number];
  const [words, at, share] = await Promise.all([one.words, one.at, one.share].map((ref) => store.numbers(ref)));
  if (stop.aborted) return;
  const list = h("div", {}), hits = h("div", { class: "starts", role: "group", "aria-label": "words found" });
  const named = (row) => visible(words[row]);
  let go = state.index("word", words.length) >= 0 ? "still" : "";
  const pick = (row, move = true) => { go = move ? "move" : ""; state.set({ word: row }); };
  const map = new WordMap({ at, words, text: one.text, choose: pick, stop });
  const typed = h("input", { type: "search", class: "tool", placeholder: "find a word", "aria-label": "find a word",
    dir: "auto", style: { width: "15rem", padding: ".35rem .7rem" } });
  const look = () => {
    const rows = search(words, typed.value);
    hits.replaceChildren(...(rows.length || !typed.value.trim()
      ? rows.map((row) => h("button", { type: "button", class: "tool", dir: "auto", onclick: () => pick(row) },
      named(row))) : [h("span", { class: "tip" }, "no such word in this vocabulary")]));
    return rows;
  };
  typed.addEventListener("input", look);
  typed.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault();
  const [row] = look(); if (row !== undefined) pick(row); } });
  let turn = 0;
  /** The nearest words of a word, as [row, cosine]; null if this page does not have them. */
  const nearest = async (row) => {
    const here = one.near ? one.near.indexOf(row) : row, most = one.nearest.shape[1];
    if (here >= 0 && store.has(one.nearest) && store.has(one.cosines)) {
      const [rows, cosines] = await Promise.all([store.numbers(one.nearest), store.numbers(one.cosines)]);
      return Array.from({ length: most }, (_, i) => [rows[here * most + i], cosines[here * most + i]]);
    }
    return live ? (await store.ask("near", { table: number, row })).shown.near : null;
  };
  const show = async () => {
    const row = state.index("word", words.length), mine = ++turn;
    map.chosen = row;
    map.near = [];
    if (row < 0) { list.replaceChildren(h("p", { class: "tip" },
      "Find a word, or click a point: its nearest words are listed here.")); return map.soon(); }
    const found = await nearest(row).catch((error) => error.message);
    if (mine !== turn || stop.aborted) return;
    map.near = Array.isArray(found) ? found.map(([other]) => other) : [];
    if (go) map.centre(row, go === "still" || undefined);
    go = "";
    map.soon();
    say([row, ...map.near.slice(0, 3)].map(named).join(", "));
    list.replaceChildren(h("h3", {}, "nearest to ",
      h("span", { class: "number", dir: "auto", style: { color: "var(--pin)" }, "data-word": "" }, named(row))),
      Array.isArray(found)
        ? h("table", { class: "near" },
          h("tbody", {},
          found.map(([other, cosine]) => h("tr", {},
          h("td", { class: "text" },
          h("button", { type: "button", class: "tool", dir: "auto", onclick: () => pick(other) }, named(other))),
          h("td", { class: "number" }, cosine.toFixed(3))))))
        : h("p", { class: "note" },
          found ?? "This page has the nearest words of the words of its text only: the vocabulary is large. "
            + "The live page has those of every word."),
      h("p", { class: "tip" }, `The cosine of their vectors, in all ${count(one.width)} dimensions.`));
  };
  const plain = (label, name, click) => tool(label, false, click, { "aria-pressed": undefined, "aria-label": name,
    title: name });
  const download = (blob) => {
    const link = h("a", { href: URL.createObjectURL(blob), download: `${shown.run.name}-vocabulary.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 5000);
  };
  root.append(h("div", { class: "two" },
    h("section", { class: "card" }, h("h2", {}, "Nearest words"),
      shown.vocabulary.length > 1 && h("div", { class: "tools" },
        shown.vocabulary.map((other, i) => tool(other.title, i === number,
        () => { state.set({ vocabulary: i, word: "" }); root.replaceChildren();
      draw(root, { shown, store, state, stop, live }); }))),
      one.text.length > 0 && [h("h3", {}, "in the text"),
        h("div", { class: "tokens" },
        one.text.map((row) => h("button", { type: "button", class: "token", dir: "auto", onclick: () => pick(row) },
        named(row))))],
      list),
    h("section", { class: "card first" },
      h("h2", {}, `All ${count(words.length)} words`,
        one.all > words.length ? ` on the map, of ${count(one.all)}` : ""),
      h("div", { class: "tools" }, typed, plain("+", "zoom in", () => map.by(1.5)),
        plain("−", "zoom out", () => map.by(1 / 1.5)), plain("all", "show all words", () => map.all()),
        h("span", { class: "space" }), plain("PNG", "save the map as PNG", () => map.canvas.toBlob(download))),
      hits, map.root,
      h("p", { class: "tip" },
        "Each point is a word. Across and up are the first two principal components of the embeddings (scaled to ",
        `length one); they hold ${percent(share[0])} and ${percent(share[1])} of the variance, so trust the list for `,
        "who is near. Drag, scroll or pinch; by keyboard + − 0 and the arrows.",
        one.text.length ? " Words of the text have an orange ring." : ""))));
  state.on((changes) => "word" in changes && show(), stop);
  return show();
}
