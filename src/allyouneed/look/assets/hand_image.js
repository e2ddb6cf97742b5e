// What "By hand" shows of an image: the image with its grid, and a patch of it.

import { h, paintImage, s } from "look/draw.js";

const SIDE = 240;

/** An image with its grid, of which one patch can be chosen. */
export async function gridImage(store, ref, grid, at, pick, label, key = "") {
  const cell = SIDE / grid, bytes = await store.numbers(ref);
  const svg = s("svg", {
    viewBox: `0 0 ${SIDE} ${SIDE}`, width: SIDE, height: SIDE, class: "gridimage", tabindex: 0, role: "img",
    "data-key": `${key}${label}`, "aria-label": `${label}, ${grid} by ${grid} patches; arrow keys choose one`,
  }, s("image", {
    width: SIDE, height: SIDE, preserveAspectRatio: "none", href: paintImage(bytes, ref.shape).toDataURL(),
  }));
  for (let i = 1; i < grid; i++) {
    svg.append(s("path", { class: "axis", d: `M${cell * i} 0V${SIDE}M0 ${cell * i}H${SIDE}` }));
  }
  if (at >= 0) {
    const x = cell * (at % grid), y = cell * Math.floor(at / grid);
    svg.append(s("rect", { class: "here", x, y, width: cell, height: cell }));
  }
  svg.addEventListener("click", (event) => pick(patchUnder(svg, event, grid)));
  svg.addEventListener("keydown", (event) => walk(event, Math.max(0, at), grid, pick));
  return h("figure", {}, svg, h("figcaption", { class: "tip" }, label));
}

function patchUnder(svg, { clientX, clientY }, grid) {
  const { left, top, width, height } = svg.getBoundingClientRect();
  const row = Math.min(grid - 1, Math.floor((grid * (clientY - top)) / height));
  return row * grid + Math.min(grid - 1, Math.floor((grid * (clientX - left)) / width));
}

/** The arrow keys go from patch to patch. */
function walk(event, at, grid, pick) {
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: grid, ArrowUp: -grid }[event.key], next = at + by;
  if (!by || next < 0 || next >= grid * grid) return;
  event.preventDefault();
  pick(next);
}

/** The bytes of a patch, (rows, columns, 4) as RGBA. */
export async function cut(store, ref, grid, at) {
  const bytes = await store.numbers(ref), [, width] = ref.shape, side = width / grid;
  const top = Math.floor(at / grid) * side, left = (at % grid) * side, found = new Uint8ClampedArray(4 * side * side);
  for (let y = 0; y < side; y++) {
    const from = 4 * ((top + y) * width + left);
    found.set(bytes.subarray(from, from + 4 * side), 4 * side * y);
  }
  return { bytes: found, side };
}

/** A patch, enlarged. */
export function large({ bytes, side }, label) {
  const canvas = paintImage(bytes, [side, side]);
  canvas.classList.add("patch");
  canvas.setAttribute("aria-label", label);
  return h("figure", {}, canvas, h("figcaption", { class: "tip" }, label));
}

/** How far the values of a colour are from their mean, squared. */
function contrast(bytes, colour) {
  const values = Array.from({ length: bytes.length / 4 }, (_, i) => bytes[4 * i + colour]);
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  return values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
}

/** The patch with the most contrast: there is something to see. */
export async function busiest(store, ref, grid) {
  const found = await Promise.all(Array.from({ length: grid * grid }, (_, at) => cut(store, ref, grid, at)));
  const spread = found.map(({ bytes }) => [0, 1, 2].reduce((all, colour) => all + contrast(bytes, colour), 0));
  return spread.indexOf(Math.max(...spread));
}

export const place = (at, grid) => `row ${Math.floor(at / grid) + 1}, column ${(at % grid) + 1}`;
