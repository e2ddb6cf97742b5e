// A beam search as a tree: a column for each step, the likeliest hypothesis at the top.

import { h, s, short, visible } from "look/draw.js";

const ROW = 54, HEIGHT = 36, ENDED = 48, GAP = 40, LETTER = 7.3, LONGEST = 12, TOP = 26, LEFT = 30;

export const minus = (value, digits = 3) => value.toFixed(digits).replace("-", "−");

/** Nodes with their column, row and children; whether a finished answer lies behind them, or the winner. */
function grown({ nodes, winner }) {
  const all = nodes.map((node, i) => ({ ...node, i, below: [], leads: false, wins: false }));
  all.forEach((node) => node.parent >= 0 && all[node.parent].below.push(node));
  const up = (node, mark) => { for (let at = node; at; at = all[at.parent]) at[mark] = true; };
  all.forEach((node) => node.score !== null && up(node, "leads"));
  up(all[winner], "wins");
  const columns = [];
  all.forEach((node) => (columns[node.step] ??= []).push(node));
  columns.forEach((column) => column.sort((a, b) => b.logprob - a.logprob || a.i - b.i).forEach((node, row) => { node.row = row; }));
  return { all, columns };
}

export const branch = (nodes, i) => (i < 0 ? [] : [...branch(nodes, nodes[i].parent), i]);

/** The figure; `onpoint` hears which node is pointed at or has the focus, -1 for none. */
export function tree(beams, chosen, choose, onpoint) {
  const { all, columns } = grown(beams), label = (node) => short(visible(node.token), LONGEST);
  let x = LEFT;
  columns.forEach((column) => {
    const width = Math.max(50, 18 + LETTER * Math.max(...column.map((node) => [...label(node)].length)));
    column.forEach((node) => Object.assign(node, { x, width, height: node.score === null ? HEIGHT : ENDED, y: TOP + ROW * node.row }));
    x += width + GAP;
  });
  const width = x - GAP + 10, height = TOP + ROW * Math.max(...columns.map((column) => column.length)) + 4, middle = (node) => node.y + HEIGHT / 2;
  const links = s("g", {}), boxes = s("g", {}), svg = s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, class: "beams", role: "group", "aria-label": `beam search: ${columns.length} steps, ${all.length} hypotheses` });
  columns.forEach((column, step) => svg.append(s("text", { class: "soft", x: column[0].x, y: 14, style: { "font-size": "11px" } }, `${step + 1}`)));
  svg.append(s("circle", { class: "root", cx: 10, cy: TOP + HEIGHT / 2, r: 4 }), links, boxes);
  for (const node of all) {
    const from = all[node.parent] ?? { x: 6, width: 8, y: TOP }, start = from.x + from.width, half = (start + node.x) / 2;
    const kind = node.wins ? "wins" : node.leads ? "" : "pruned";
    node.link = s("path", { class: `branch ${kind}`, d: `M${start} ${middle(from)} C${half} ${middle(from)} ${half} ${middle(node)} ${node.x} ${middle(node)}` });
    node.box = s("g", { class: `node ${kind}${node.score === null ? "" : " ended"}`, role: "button", tabindex: -1, "data-node": node.i, "aria-label": `step ${node.step + 1}, ${visible(node.token)}, log-probability ${minus(node.logprob)}${node.score === null ? "" : `, finished, score ${minus(node.score)}`}${node.wins && !node.below.length ? ", the answer" : ""}` },
      s("rect", { x: node.x, y: node.y, width: node.width, height: node.height, rx: 6 }),
      s("text", { x: node.x + node.width / 2, y: node.y + 15, "text-anchor": "middle", class: "word" }, label(node)),
      s("text", { x: node.x + node.width / 2, y: node.y + 29, "text-anchor": "middle", class: "soft", style: { "font-size": "10.5px" } }, minus(node.logprob, 2)),
      node.score === null ? null : s("text", { x: node.x + node.width / 2, y: node.y + 42, "text-anchor": "middle", class: "score", style: { "font-size": "10.5px" } }, `= ${minus(node.score, 2)}`));
    links.append(node.link);
    boxes.append(node.box);
    node.box.addEventListener("click", () => choose(node.i));
    node.box.addEventListener("mouseenter", () => light(node.i));
    node.box.addEventListener("focus", () => light(node.i));
    node.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(node.i); return; }
      const beside = columns[node.step];
      const next = { ArrowLeft: all[node.parent], ArrowRight: node.below.toSorted((a, b) => a.row - b.row)[0], ArrowUp: beside[node.row - 1], ArrowDown: beside[node.row + 1] }[event.key];
      if (next) { event.preventDefault(); next.box.focus(); }
    });
  }
  svg.addEventListener("mouseleave", () => light(-1));
  links.append(...all.filter((node) => node.wins).map((node) => node.link)); // on top of the others
  function light(at) {
    const shown = at < 0 ? chosen : at, path = new Set(branch(all, shown));
    all.forEach((node) => {
      node.box.classList.toggle("lit", path.has(node.i));
      node.link.classList.toggle("lit", path.has(node.i));
      node.box.setAttribute("tabindex", node.i === shown ? 0 : -1);
    });
    onpoint(shown);
  }
  light(-1);
  return svg;
}

/** The text of a branch, and how its score follows. */
export function reading(beams, at) {
  const { nodes, alpha, penalty, winner } = beams, node = nodes[at], path = branch(nodes, at), n = path.length;
  const divisor = penalty === "gnmt" ? ((5 + n) / 6) ** alpha : n ** alpha;
  const kind = at === winner ? "the answer" : node.score !== null ? (node.end ? "finished" : "finished, at the largest length") : nodes.some((one) => one.parent === at) ? "goes on" : "goes no further";
  return [
    h("span", { class: "branch-text", dir: "auto" }, path.map((i) => nodes[i].token).join("")), " ",
    h("b", {}, kind), `; log-probability `, h("span", { class: "number", "data-logprob": "" }, minus(node.logprob, 4)),
    node.score === null ? "" : [`; score ${minus(node.logprob, 4)} / ${divisor.toFixed(3)} = `, h("span", { class: "number", "data-score": "" }, minus(node.score, 4))],
  ].flat();
}
