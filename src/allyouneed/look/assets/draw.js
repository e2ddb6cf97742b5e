// Elements, colours and rasters that every view draws with. Texts become text nodes: nothing a user wrote is run.

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.entries(value).forEach(([name, one]) => element.style.setProperty(name, one));
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

/** h("p", {class: "note"}, "text") */
export const h = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);

/** The same for SVG. */
export const s = (name, attributes, ...children) => {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
};

// Controls, and signs that turn the direction of a text.
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** A token as a label: spaces and controls become visible. */
export function visible(token) {
  if (token === "") return "∅";
  if (/^\d+, \d+$/.test(token)) return token; // row and column of a patch
  return token.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/ /g, "·").replace(HIDDEN, "�");
}

export function short(text, most = 16) {
  const letters = [...text];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
}

/** A part of 1 with three digits: 0.123 */
export const part = (value) => value.toFixed(3);
export const percent = (value) => `${(100 * value).toFixed(1)} %`;
export const count = (value) => value.toLocaleString("en");

export const isSpecial = (token) => /^(\[[A-Z]+\]|<[^<>\s]+>|<\|.*\|>)$/.test(token.trim());

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Equal steps of lightness from white to navy, and from the dark card to a pale blue: twice as far is twice the weight.
const LIGHT = ["#ffffff", "#cae5fe", "#9acaf7", "#70aee9", "#4d92d6", "#3277bc", "#225c9c", "#1d4278", "#1a2b50"];
const DARK = ["#1a2029", "#1f3350", "#244878", "#2a5ea0", "#3577c4", "#5492de", "#7fb0ef", "#aecffa", "#e2f0ff"];
const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

export const isDark = () => document.documentElement.dataset.theme === "dark";

// The same steps towards orange, for numbers below zero.
const BELOW_LIGHT = ["#ffffff", "#fde3c8", "#f9c48f", "#f0a257", "#df8030", "#bf6216", "#974a10", "#6d350e", "#45220c"];
const BELOW_DARK = ["#1a2029", "#3b2a1a", "#5b3a18", "#7f4d17", "#a86318", "#cf7d24", "#ec9d4b", "#fac286", "#ffe6cb"];

const ramps = new Map();

/** 256 colours from nothing to all, for the present theme. */
export function ramp(below = false) {
  const key = `${isDark()} ${below}`;
  if (!ramps.has(key)) {
    const stops = (isDark() ? (below ? BELOW_DARK : DARK) : below ? BELOW_LIGHT : LIGHT).map(rgb);
    const colours = Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
      return stops[low].map((value, c) => Math.round(value + (stops[low + 1][c] - value) * (at - low)));
    });
    ramps.set(key, colours);
  }
  return ramps.get(key);
}

/** The colour [r, g, b] of a number from -1 to 1: blue above zero, orange below; what is no number is grey. */
export const signed = (value) => {
  return Number.isFinite(value) ? ramp(value < 0)[Math.round(255 * Math.min(1, Math.abs(value)))] : [128, 128, 128];
};

/** A number with four digits that count: −0.1234, 12.35, −∞ */
export function rounded(value) {
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
  const whole = Number.isInteger(value) && Math.abs(value) < 1e4;
  return (whole ? `${value}` : value.toPrecision(4)).replace("e+", "e").replaceAll("-", "−");
}

/** All digits that a number of the model has. */
export const full = (value) => {
  return Number.isFinite(value) ? `${Number(value.toPrecision(9))}`.replaceAll("-", "−") : rounded(value);
};

/** The colour of a part of 1, as a CSS colour. */
export const colour = (value) => `rgb(${ramp()[Math.round(255 * Math.min(1, Math.max(0, value)))]})`;

/** Black or white, whichever can be read on a colour [r, g, b]. */
export const inkOn = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#10151c" : "#ffffff");

/** Paint values (rows x columns), each a part of `most`, one pixel each. */
export function paint(canvas, values, rows, columns, most = 1) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
  const colours = Uint32Array.from(ramp(), ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
  for (let i = 0; i < pixels.length; i++) {
    pixels[i] = colours[Math.round(255 * Math.min(1, Math.max(0, values[i] / most)))];
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** The weight that has the full colour: 1 for few tokens, where most weights are small, that of the strongest 1 %. */
export function strongest(values) {
  const often = new Uint32Array(1001); // of each number of thousandths
  for (const value of values) often[Math.round(1000 * value)]++;
  let left = (values.length - often[0]) / 100, high = 1000;
  while (high > 1 && (left -= often[high]) > 0) high--;
  return high > 300 ? 1 : high / 1000;
}

/** RGBA bytes as a canvas. */
export function paintImage(bytes, [rows, columns]) {
  const canvas = h("canvas", { width: columns, height: rows, class: "pixels", role: "img" });
  canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(bytes), columns, rows), 0, 0);
  return canvas;
}

/** A button that is on or off. */
export const tool = (name, on, click, more = {}) => h("button", {
  type: "button", class: "tool", "aria-pressed": String(Boolean(on)), onclick: click, ...more,
}, name);

/** A bar as long as a part of 1. */
export function meter(value, kind = "") {
  const width = `${(100 * Math.min(1, Math.max(0, value))).toFixed(1)}%`;
  return h("span", { class: "track" }, h("span", { class: `meter ${kind}`, style: { width } }));
}

/** Where an event is, in the units of a figure. */
export const pointIn = (svg, { clientX, clientY }) => {
  return new DOMPoint(clientX, clientY).matrixTransform(svg.getScreenCTM().inverse());
};

/** Say something to those who hear the page. */
export function say(text) {
  const said = document.getElementById("said");
  if (said) said.textContent = text;
}

/** A table of names with parts of 1, the largest first. */
export function ranking(pairs, { heading = ["", ""], format = percent, kind = "", most = 1 } = {}) {
  const head = h("tr", {}, heading.map((text) => h("th", { scope: "col" }, text)), h("th", {}));
  const row = ([name, value]) => h("tr", {},
    h("td", { class: "text", dir: "auto" }, name), h("td", { class: "number" }, format(value)),
    h("td", {}, meter(value / most, kind)));
  return h("table", {}, h("thead", {}, head), h("tbody", {}, pairs.map(row)));
}
