// The modules of the model, with their shapes, parameters, formula and file.

import { count, h, tool } from "look/draw.js";

export const name = "architecture";
export const title = "Architecture";
export const has = (shown) => Boolean(shown.architecture);

function part(node, label, total, depth) {
  const share = total ? node.parameters / total : 0;
  const box = h("details", { class: `part${node.parts.length || node.weights.length || node.says ? "" : " leaf"}`, open: depth < 2 },
    h("summary", {}, h("span", { class: "kind" }, label ? `${label}: ${node.kind}` : node.kind),
      node.parameters ? h("span", { class: "shape" }, `${count(node.parameters)} parameters`) : "",
      node.parameters ? h("span", { class: "track", style: { width: "6rem" } }, h("span", { class: "meter", style: { width: `${100 * share}%` } })) : ""));
  if (node.says) box.append(h("p", { class: "says", style: { margin: ".2rem 0" } }, node.says));
  if (node.file) box.append(h("p", { class: "shape", style: { margin: ".1rem 0" } }, node.file));
  for (const weight of node.weights) box.append(h("div", { class: "shape" }, `${weight.name}  ${weight.shape.map(count).join(" × ")}${weight.shared ? "  (shared, counted above)" : ""}`));
  node.parts.forEach((inner) => box.append(part(inner, inner.path.split(".").at(-1), total, depth + 1)));
  return box;
}

export function draw(root, { shown }) {
  const tree = part(shown.architecture, "", shown.architecture.parameters, 0);
  const all = (open) => tree.querySelectorAll("details").forEach((one) => (one.open = open));
  root.append(h("section", { class: "card" }, h("h2", {}, "What it is made of"),
    h("p", { class: "says" }, "Every module of this run, with the shapes of its own weights. The bar is its part of all parameters."),
    h("div", { class: "tools" }, tool("open all", false, () => all(true), { "aria-pressed": undefined }), tool("close all", false, () => all(false), { "aria-pressed": undefined })), tree));
}
