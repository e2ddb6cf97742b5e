// A canvas of points that can be moved and zoomed: by dragging, with two fingers, with the wheel and with keys.

const FARTHEST = 0.5, CLOSEST = 4000; // zooms, in parts of the one that shows all points
const STEP = 60; // pixels that an arrow key moves
const SLIP = 5; // pixels that a finger may move and still click

const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);

/** The middle and the size of all points. */
function bounds(at) {
  let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
  for (let i = 0; i < at.length; i += 2) {
    left = Math.min(left, at[i]); right = Math.max(right, at[i]);
    top = Math.min(top, at[i + 1]); bottom = Math.max(bottom, at[i + 1]);
  }
  return { middle: [(left + right) / 2, (top + bottom) / 2], extent: [right - left || 1, bottom - top || 1] };
}

/** `at` are the points, x and y in turn. Who extends this has `draw()`, `click(px, py)` and `hover(px, py)`. All places
 * on the canvas are in its own pixels. */
export class PanZoom {
  constructor(canvas, at, stop) {
    Object.assign(this, { canvas, at }, bounds(at));
    this.fingers = new Map(); // where each one is
    this.listen();
    stop.addEventListener("abort", () => {
      cancelAnimationFrame(this.pending);
      cancelAnimationFrame(this.moving);
    });
  }

  /** Fill a box; as long as all points are shown, they stay so. */
  resize({ width, height }) {
    const { canvas, extent } = this;
    this.dpr = Math.min(2, devicePixelRatio || 1);
    canvas.width = Math.round(width * this.dpr);
    canvas.height = Math.round(height * this.dpr);
    const whole = 0.9 * Math.min(canvas.width / extent[0], canvas.height / extent[1]);
    if (!this.zoom || this.zoom === this.whole) this.look(...this.middle, whole);
    this.whole = whole;
  }

  /** Set the point in the middle, and how many pixels one unit has. */
  look(x, y, zoom) {
    Object.assign(this, { x, y, zoom });
  }

  // A point is at left + x · zoom, top - y · zoom.

  get left() { return this.canvas.width / 2 - this.x * this.zoom; }

  get top() { return this.canvas.height / 2 + this.y * this.zoom; }

  place(row) {
    return [this.left + this.at[2 * row] * this.zoom, this.top - this.at[2 * row + 1] * this.zoom];
  }

  inside(px, py) { return px > 0 && py > 0 && px < this.canvas.width && py < this.canvas.height; }

  /** The point near a place; -1 if there is none. */
  under(px, py) {
    const { left, top, at, zoom } = this;
    let best = -1, least = (14 * this.dpr) ** 2;
    for (let i = 0; 2 * i < at.length; i++) {
      const far = (left + at[2 * i] * zoom - px) ** 2 + (top - at[2 * i + 1] * zoom - py) ** 2;
      if (far < least) { least = far; best = i; }
    }
    return best;
  }

  soon() {
    cancelAnimationFrame(this.pending);
    this.pending = requestAnimationFrame(() => this.draw());
  }

  limited(zoom, farthest = FARTHEST) {
    return Math.min(CLOSEST * this.whole, Math.max(farthest * this.whole, zoom));
  }

  /** Zoom by a factor around a place. */
  by(factor, px = this.canvas.width / 2, py = this.canvas.height / 2) {
    const zoom = this.limited(this.zoom * factor);
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
    this.look(...this.middle, this.whole);
    this.soon();
  }

  /** Go to a point; at once if `still`. */
  fly(row, zoom, still) {
    const from = { x: this.x, y: this.y, zoom: this.zoom }, to = { x: this.at[2 * row], y: this.at[2 * row + 1], zoom };
    const start = performance.now();
    cancelAnimationFrame(this.moving);
    const move = () => {
      const part = still ? 1 : Math.min(1, (performance.now() - start) / 450);
      this.between(from, to, part * part * (3 - 2 * part));
      this.draw();
      if (part < 1) this.moving = requestAnimationFrame(move);
    };
    move();
  }

  /** A part of the way from one place to another: the goal moves straight to the middle. */
  between(from, to, part) {
    const zoom = from.zoom * (to.zoom / from.zoom) ** part, same = Math.abs(to.zoom - from.zoom) < 1e-9;
    const along = same ? part : (1 / from.zoom - 1 / zoom) / (1 / from.zoom - 1 / to.zoom);
    this.look(from.x + (to.x - from.x) * along, from.y + (to.y - from.y) * along, zoom);
  }

  listen() {
    const on = (type, act, options) => this.canvas.addEventListener(type, act, options);
    on("pointerdown", (event) => this.press(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", (event) => this.release(event));
    on("pointercancel", (event) => this.fingers.delete(event.pointerId));
    on("wheel", (event) => this.wheel(event), { passive: false });
    on("keydown", (event) => this.key(event));
  }

  /** Where an event is on the canvas. */
  spot({ clientX, clientY }) {
    const box = this.canvas.getBoundingClientRect();
    return [(clientX - box.left) * this.dpr, (clientY - box.top) * this.dpr];
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.fingers.set(event.pointerId, this.spot(event));
    this.moved = 0; // pixels since the last finger came down
    cancelAnimationFrame(this.moving);
  }

  move(event) {
    const now = this.spot(event), before = this.fingers.get(event.pointerId);
    if (!before) return this.hover(...now);
    const other = [...this.fingers].find(([id]) => id !== event.pointerId)?.[1];
    this.fingers.set(event.pointerId, now);
    this.moved += distance(now, before);
    if (other) this.pinch(before, now, other);
    else this.shift(now[0] - before[0], now[1] - before[1]);
  }

  /** One finger moves, another one stays: their middle moves half as far. */
  pinch(before, now, other) {
    const factor = distance(now, other) / (distance(before, other) || 1);
    this.by(factor, (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    this.shift((now[0] - before[0]) / 2, (now[1] - before[1]) / 2);
  }

  /** A finger that did not move clicks. */
  release(event) {
    const pressed = this.fingers.delete(event.pointerId);
    if (pressed && !this.fingers.size && this.moved < SLIP * this.dpr) this.click(...this.spot(event));
  }

  wheel(event) {
    event.preventDefault();
    this.by(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0018)), ...this.spot(event));
  }

  key(event) {
    const step = STEP * this.dpr;
    const act = {
      "+": () => this.by(1.4), "=": () => this.by(1.4), "-": () => this.by(1 / 1.4), 0: () => this.all(),
      ArrowLeft: () => this.shift(step, 0), ArrowRight: () => this.shift(-step, 0),
      ArrowUp: () => this.shift(0, step), ArrowDown: () => this.shift(0, -step),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    act();
  }
}
