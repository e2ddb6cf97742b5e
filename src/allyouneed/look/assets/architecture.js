// The model as boxes, from its input at the bottom to its output at the top, with the shapes of this run.

import { count, h } from "look/draw.js";

export const name = "architecture";
export const title = "Architecture";
export const has = (shown) => Boolean(shown.architecture);

const LISTS = ["ModuleList", "Sequential"];

/** Two modules of one build have one key. */
const key = (node) => `${node.kind} ${node.weights.map((weight) => weight.shape)} ${node.parts.map(key)}`;

/** Modules in their order; those of one build that follow each other are one group. */
function groups(parts) {
  const found = [];
  for (const part of parts) {
    if (found.length && key(found.at(-1)[0]) === key(part)) found.at(-1).push(part);
    else found.push([part]);
  }
  return found;
}

const said = (node) => (/^\d*$/.test(label(node)) || !node.path ? node.kind : `${label(node)} · ${node.kind}`);

const label = (node) => node.path.split(".").at(-1) || node.kind;
const shape = (weight) => weight.shape.map(count).join(" × ");

/** The weights of a module and of its parts, by their path inside it. */
const inside = (node, at = "") => [
  ...node.weights.map((weight) => ({ ...weight, name: at + weight.name })),
  ...node.parts.flatMap((part) => inside(part, `${at}${label(part)}.`)),
];

/** A box with the boxes of its parts inside. */
function box(group, total, choose) {
  const [node] = group, times = group.length;
  const parts = node.parts.filter((part) => part.kind !== "Identity");
  const inner = parts.flatMap((part) => (LISTS.includes(part.kind) ? groups(part.parts) : [[part]]));
  const all = group.reduce((sum, one) => sum + one.parameters, 0);
  const share = h("span", { class: "meter", style: { width: `${(100 * all) / Math.max(1, total)}%` } });
  const button = h("button", { type: "button", class: "part", "data-path": node.path, onclick: () => choose(group) },
    h("b", {}, said(node), node.weights.length ? h("span", { class: "shape" }, `  ${shape(node.weights[0])}`) : ""),
    times > 1 && h("span", { class: "times" }, `× ${times}`),
    all > 0 && h("span", { class: "shape" }, count(all)), all > 0 && h("span", { class: "track" }, share));
  return h("div", { class: `box${inner.length ? "" : " leaf"}` }, button,
    inner.length ? h("div", { class: "inside" }, inner.map((one) => box(one, total, choose))) : "");
}

const digits = (value) => (value === null || value === undefined ? "" : value.toPrecision(4));

/** The numbers of the weights of a module. */
function weights(found) {
  const row = (weight) => h("tr", {},
    h("td", { class: "number text" }, weight.name),
    h("td", { class: "number text" }, shape(weight), weight.shared ? h("span", { class: "shape" }, " shared") : ""),
    ...["mean", "std", "min", "max"].map((fact) => h("td", { class: "number" }, digits(weight[fact]))));
  const heads = ["weight", "shape", "mean", "std", "min", "max"].map((text) => h("th", { scope: "col" }, text));
  const table = h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, found.map(row)));
  return h("div", { class: "scroll" }, table);
}

/** What is known of a module: its formula, its weights, its code. */
function details(group, code) {
  const [node] = group, known = code[node.kind];
  const more = group.length > 1 ? ` and ${group.length - 1} more of the same build` : "";
  return [
    h("h2", {}, said(node)), h("p", { class: "shape" }, `${node.path || "the whole model"}${more}`),
    known && h("p", { class: "formula" }, known.says),
    node.options && h("p", { class: "shape" }, node.options),
    h("p", { class: "says" }, `${count(node.parameters)} parameters`),
    inside(node).length ? weights(inside(node)) : "",
    known && h("details", {}, h("summary", {}, known.file), h("pre", { tabindex: 0 }, known.lines)),
  ].filter(Boolean);
}

/** The group of a path, wherever in the tree. */
function find(group, path) {
  if (group.some((node) => node.path === path)) return group;
  for (const node of group) {
    for (const inner of groups(node.parts)) {
      const found = find(inner, path);
      if (found) return found;
    }
  }
  return undefined;
}

export async function draw(root, { shown, store, state, stop }) {
  const { tree, code } = await store.numbers(shown.architecture), side = h("section", { class: "card" });
  if (stop.aborted) return;
  const boxes = box([tree], tree.parameters, ([node]) => state.set({ module: node.path }));
  const show = () => {
    const group = find([tree], state.get("module")) ?? [tree];
    for (const button of boxes.querySelectorAll("button.part")) {
      button.setAttribute("aria-pressed", String(button.dataset.path === group[0].path));
    }
    side.replaceChildren(...details(group, code));
  };
  state.on(show, stop);
  root.append(h("div", { class: "two wide" },
    h("section", { class: "card" }, h("h2", {}, "What it is made of"),
      h("p", { class: "tip" }, "The input is at the bottom. Numbers count parameters; a bar is their part of all."),
      h("div", { class: "boxes" }, boxes)), side));
  show();
}
