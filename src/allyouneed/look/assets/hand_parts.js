// What the steps of "By hand" are made of: numbered steps, formulas, vectors as strips, products and their sum.

import { full, h, rounded, say, signed } from "look/draw.js";
import { copyTools } from "look/save.js";

/** "s_j = q · k_j / √d": what follows _ or ^ is small, low or high; {…} keeps several signs together. */
export function formula(text) {
  const found = h("span", { class: "equation" });
  for (const part of text.split(/([_^](?:\{[^}]*\}|.))/u)) {
    if (/^[_^]./u.test(part)) found.append(h(part[0] === "_" ? "sub" : "sup", {}, part.slice(1).replace(/[{}]/g, "")));
    else found.append(part);
  }
  return found;
}

/** A numbered step: what happens, its formula, its numbers. `copy` gives {values, rows, columns} to take away. */
export function step({ title, says, math, copy, name }, ...content) {
  return h("section", { class: "card step", "data-step": name },
    h("h2", {}, h("span", {}, title), copy && h("span", { class: "tools end" }, copyTools(copy))),
      says && h("p", { class: "says" }, says), math && h("p", { class: "math" }, [math].flat().map(formula)),
    content.flat(Infinity));
}

/** One line under the pointer, or under the number that has the focus. */
function tip() {
  let found = document.querySelector(".float");
  if (!found) document.body.append((found = h("div", { class: "float number", "aria-hidden": "true", hidden: true })));
  return found;
}

function showTip(text, x, y) {
  const found = tip();
  found.textContent = text;
  found.hidden = false;
  found.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - found.offsetWidth - 8))}px`;
  found.style.top = `${y + 16 + found.offsetHeight > innerHeight ? y - 12 - found.offsetHeight : y + 16}px`;
}

export const hideTip = () => { tip().hidden = true; };

const largest = (values) => values.reduce((most, value) =>
  (Number.isFinite(value) ? Math.max(most, Math.abs(value)) : most), 1e-12);

/**
 * Numbers as coloured cells, `columns` in a row (all of them, unless told). Pointing at a cell, or going to it with the
 * arrow keys, reads it; `pick` is called with its index. `label(i)` names a cell.
 */
export function cells(values, { name, columns = values.length, most = largest(values), marked = -1, pick, size, label,
  key }) {
  const rows = Math.ceil(values.length / columns), canvas = h("canvas", {
    class: `cells${pick ? " pick" : ""}`, width: columns, height: rows, tabindex: 0, role: "img",
      "data-key": key ?? name,
    "aria-label": `${name}: ${values.length} numbers; arrow keys read them${pick ? ", Enter chooses" : ""}`,
  });
  canvas.values = values;
  const image = new ImageData(columns, rows);
  values.forEach((value, i) => image.data.set([...signed(value / most), 255], 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
  const side = size ?? (columns <= 20 ? 24 : columns <= 40 ? 16 : columns <= 80 ? 9 : columns <= 160 ? 5 : 3);
  canvas.style.setProperty("--wide", `${side * columns}px`);
  canvas.style.setProperty("--high", rows > 1 ? `${side * rows}px` : "22px");
  const box = h("span", { class: "holder" }, canvas), mark = h("span", { class: "mark", hidden: true });
  box.append(mark);
  const put = (i) => {
    mark.hidden = i < 0;
    const [left, top] = [i % columns, Math.floor(i / columns)];
    const places = { left: left / columns, top: top / rows, width: 1 / columns, height: 1 / rows };
    for (const [side, part] of Object.entries(places)) mark.style[side] = `${100 * part}%`;
  };
  put(marked);
  let at = Math.max(0, marked);
  const text = (i) => `${label ? label(i) : `${name} [${i + 1}]`} = ${full(values[i])}`;
  const cell = (event) => {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const x = Math.floor((columns * (event.clientX - left)) / width);
    const y = Math.floor((rows * (event.clientY - top)) / height);
    return Math.max(0, Math.min(values.length - 1, y * columns + x));
  };
  const focus = () => {
    const { left, top, width, height } = canvas.getBoundingClientRect();
    put(at);
    showTip(text(at), left + (width * ((at % columns) + 0.5)) / columns,
      top + (height * (Math.floor(at / columns) + 0.5)) / rows);
    say(text(at));
  };
  canvas.addEventListener("mousemove", (event) => showTip(text(cell(event)), event.clientX, event.clientY));
  canvas.addEventListener("mouseleave", hideTip);
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && focus());
  canvas.addEventListener("blur", () => { put(marked); hideTip(); });
  canvas.addEventListener("click", (event) => { at = cell(event); if (pick) pick(at); else focus(); });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at,
      End: values.length - 1 - at }[event.key];
    if (event.key === "Enter" && pick) pick(at);
    if (by === undefined || !(at + by >= 0 && at + by < values.length)) return;
    event.preventDefault();
    at += by;
    focus();
  });
  return box;
}

/** Lines of a name and a strip, all with the same columns. */
export const lines = (...pairs) => h("div", { class: "lines" }, pairs.filter(Boolean).map(([name, strip, note]) =>
  [h("span", { class: "label" }, formula(name)), h("div", { class: "scroll" }, strip),
    h("span", { class: "soft number" }, note ?? "")]).flat());

export const num = (value, kind = "") => h("span", { class: `number ${kind}`, title: full(value) }, rounded(value));

/** A factor that is not the first: one below zero is in parentheses. */
export const factor = (value) => (value < 0 ? h("span", {}, "(", num(value), ")") : num(value));

/** a_1 b_1 + a_2 b_2 + … as numbers, and the sum. `more` are further terms: [[name, value]]. */
export function sum(a, b, { result, more = [], most = 3, kind = "" }) {
  const total = dot(a, b) + more.reduce((all, [, value]) => all + value, 0), found = [];
  for (let i = 0; i < Math.min(most, a.length); i++) found.push(i ? " + " : "",
    h("span", { class: "term" }, num(a[i]), " · ", factor(b[i])));
  if (a.length > most) found.push(` + … (${a.length} products)`);
  for (const [name, value] of more) found.push(" + ", h("span", { class: "term" }, formula(`${name} `), num(value)));
  return h("p", { class: "sum" }, formula(`${result} = `), found, " = ", h("b", {}, num(total, kind)));
}

/** Two vectors, their products one by one, and the sum of these. */
export function products([nameA, a], [nameB, b], { result, more, kind, columns, size, key = "" }) {
  const each = Array.from(a, (value, i) => value * b[i]), shape = columns ? { columns, size } : {};
  return h("div", { class: "products" },
    lines([nameA, cells(Array.from(a), { name: nameA, key: `${key}a`, ...shape })],
      [nameB, cells(Array.from(b), { name: nameB, key: `${key}b`, ...shape })],
      ["products", cells(each, { name: "product", key: `${key}p`, ...shape })]),
    sum(a, b, { result, more, kind }));
}

const opened = new Set(); // tables that stay open when something else is chosen

/** Every number of some vectors, in a table that is made when it is opened. */
export function everyNumber(columns, name = "all numbers") {
  const key = columns.map(([title]) => title).join(), box = h("details", { class: "every", open: opened.has(key) },
    h("summary", { "data-key": key }, name));
  box.addEventListener("toggle", () => {
    opened[box.open ? "add" : "delete"](key);
    if (!box.open || box.children.length > 1) return;
    const [[, first]] = columns;
    box.append(h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", {}), columns.map(([title]) => h("th", { scope: "col" }, formula(title))))),
      h("tbody", {}, Array.from(first, (_, i) => h("tr", {}, h("th", { scope: "row" }, `${i + 1}`),
        columns.map(([, values]) => h("td", { class: "number" }, full(values[i])))))))));
  });
  return box;
}

/** A field for one of `count` units. */
export function unitField(name, at, count, pick) {
  const field = h("input", { type: "number", min: 1, max: count, value: at + 1, "data-key": "unit-field",
    "aria-label": `${name}, from 1 to ${count}` });
  field.addEventListener("change", () => pick(Math.max(0,
    Math.min(count - 1, Math.round(Number(field.value) || 1) - 1))));
  return h("label", { class: "field" }, `${name} `, field, ` of ${count}`);
}

/** The arrays behind some references, by name; null if the page does not have them all. */
export async function fetched(store, refs) {
  const found = Object.entries(refs).filter(([, ref]) => ref);
  if (!found.every(([, ref]) => store.has(ref))) return null;
  return Object.fromEntries(await Promise.all(found.map(async ([name, ref]) => [name, await store.numbers(ref)])));
}

/** What a saved page may leave out. */
export const absent = (what) => h("p", { class: "note" },
  `${what} would make this page too large, so they are not in it. `,
    "The live page shows them: start it without a text.");

export function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}

/** W x + b, with W (rows, x.length) one row after the other; `from` and `wide` choose columns of wider rows. */
export function times(matrix, x, bias, from = 0, wide = x.length) {
  return Array.from({ length: matrix.length / wide }, (_, row) => {
    let total = bias ? bias[row] : 0;
    for (let i = 0; i < x.length; i++) total += matrix[row * wide + from + i] * x[i];
    return total;
  });
}

export const row = (matrix, at, wide) => matrix.subarray(at * wide, (at + 1) * wide);
