// A beam search as a tree: a column for each step, the likeliest hypothesis at the top.

import { h, s, short, visible } from "look/draw.js";
import { saveTools } from "look/save.js";

const ROW = 54, HEIGHT = 36, ENDED = 48, GAP = 40, LETTER = 7.3, LONGEST = 12, TOP = 26, LEFT = 30;

const minus = (value, digits = 3) => value.toFixed(digits).replace("-", "−");

/** Nodes with their row and children; whether a finished answer lies behind them, or the winner. */
function grown({ nodes, winner }) {
  const all = nodes.map((node, i) => ({ ...node, i, below: [], leads: false, wins: false })), columns = [];
  const up = (node, mark) => { for (let at = node; at; at = all[at.parent]) at[mark] = true; };
  for (const node of all) {
    all[node.parent]?.below.push(node);
    (columns[node.step] ??= []).push(node);
    if (node.score !== null) up(node, "leads");
  }
  up(all[winner], "wins");
  for (const column of columns) {
    column.sort((a, b) => b.logprob - a.logprob || a.i - b.i);
    column.forEach((node, row) => { node.row = row; });
  }
  return { all, columns };
}

/** The nodes from the first step to node `i`. */
function branch(nodes, i) {
  const path = [];
  for (let at = i; at >= 0; at = nodes[at].parent) path.unshift(at);
  return path;
}

const label = (node) => short(visible(node.token), LONGEST);

function place(columns) {
  let x = LEFT;
  for (const column of columns) {
    const width = Math.max(50, 18 + LETTER * Math.max(...column.map((node) => [...label(node)].length)));
    for (const node of column) {
      Object.assign(node, { x, width, y: TOP + ROW * node.row, height: node.score === null ? HEIGHT : ENDED });
    }
    x += width + GAP;
  }
  return { width: x - GAP + 10, height: TOP + ROW * Math.max(...columns.map((column) => column.length)) + 4 };
}

const inWords = (node) => [
  `step ${node.step + 1}`, visible(node.token), `log-probability ${minus(node.logprob)}`,
  ...(node.score === null ? [] : ["finished", `score ${minus(node.score)}`]),
].join(", ");

function box(node, kind) {
  const ended = node.score !== null, x = node.x + node.width / 2;
  const line = (y, text, look) => s("text", { x, y: node.y + y, "text-anchor": "middle", ...look }, text);
  return s("g", {
    class: `node ${kind}${ended ? " ended" : ""}`, "data-node": node.i,
    role: "button", tabindex: -1, "aria-label": inWords(node),
  },
  s("rect", { x: node.x, y: node.y, width: node.width, height: node.height, rx: 6 }),
  line(15, label(node)),
  line(29, minus(node.logprob, 2), { class: "soft small" }),
  ended && line(42, `= ${minus(node.score, 2)}`, { class: "score small" }));
}

/** The arrow keys go from node to node, Enter chooses one. */
function walk(event, node, { all, columns }, choose) {
  const enters = event.key === "Enter" || event.key === " ", beside = columns[node.step];
  const best = node.below.reduce((a, b) => (a && a.row < b.row ? a : b), undefined);
  const next = {
    ArrowLeft: all[node.parent], ArrowRight: best, ArrowUp: beside[node.row - 1], ArrowDown: beside[node.row + 1],
  }[event.key];
  if (enters || next) event.preventDefault();
  if (enters) choose(node.i);
  next?.box.focus();
}

/** The figure; `onpoint` hears which node is pointed at or has the focus, or else is chosen. */
function tree(beams, chosen, choose, onpoint) {
  const { all, columns } = grown(beams), { width, height } = place(columns);
  const middle = (node) => node.y + HEIGHT / 2, start = { x: 6, width: 8, y: TOP };
  for (const node of all) {
    const kind = node.wins ? "wins" : node.leads ? "" : "pruned", from = all[node.parent] ?? start;
    const x = from.x + from.width, half = (x + node.x) / 2;
    const curve = `M${x} ${middle(from)} C${half} ${middle(from)} ${half} ${middle(node)} ${node.x} ${middle(node)}`;
    node.link = s("path", { class: `branch ${kind}`, d: curve });
    node.box = box(node, kind);
  }
  const light = (at) => {
    const shown = at < 0 ? chosen : at, path = new Set(branch(all, shown));
    for (const node of all) {
      node.box.classList.toggle("lit", path.has(node.i));
      node.link.classList.toggle("lit", path.has(node.i));
      node.box.setAttribute("tabindex", node.i === shown ? 0 : -1);
    }
    onpoint(shown);
  };
  for (const node of all) {
    node.box.addEventListener("click", () => choose(node.i));
    node.box.addEventListener("mouseenter", () => light(node.i));
    node.box.addEventListener("focus", () => light(node.i));
    node.box.addEventListener("keydown", (event) => walk(event, node, { all, columns }, choose));
  }
  const behind = all.filter((node) => !node.wins), before = all.filter((node) => node.wins);
  const svg = s("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, class: "beams", role: "group",
    "aria-label": `beam search: ${columns.length} steps, ${all.length} hypotheses`,
  },
  columns.map(([first], step) => s("text", { class: "soft small", x: first.x, y: 14 }, `${step + 1}`)),
  s("circle", { class: "root", cx: 10, cy: TOP + HEIGHT / 2, r: 4 }),
  [...behind, ...before].map((node) => node.link), all.map((node) => node.box));
  svg.addEventListener("mouseleave", () => light(-1));
  light(-1);
  return svg;
}

function fate({ nodes, winner }, at) {
  const node = nodes[at];
  if (at === winner) return "the answer";
  if (node.score !== null) return node.end ? "finished" : "finished at the largest length";
  return nodes.some((one) => one.parent === at) ? "goes on" : "goes no further";
}

/** The text of a branch, and how its score follows. */
function reading(beams, at) {
  const { nodes, alpha, penalty } = beams, node = nodes[at], path = branch(nodes, at), n = path.length;
  const divisor = penalty === "gnmt" ? ((5 + n) / 6) ** alpha : n ** alpha;
  const number = (value, key) => h("span", { class: "number", [`data-${key}`]: "" }, minus(value, 4));
  const text = path.map((i) => nodes[i].token).join("").replace(/\n/g, "↵ ");
  return [
    h("span", { class: "branch-text", dir: "auto" }, text), " ", h("b", {}, fate(beams, at)),
    "; log-probability ", number(node.logprob, "logprob"),
    ...(node.score === null ? [] : [
      `; score ${minus(node.logprob, 4)} / ${divisor.toFixed(3)} = `, number(node.score, "score"),
    ]),
  ];
}

/** Fill the card of a beam search; a node that has the focus keeps it. */
export function drawBeams(card, { beams, run }, state) {
  const asked = state.index("node", beams.nodes.length), chosen = asked < 0 ? beams.winner : asked;
  const read = h("p", { class: "reading branch-read" }), choose = (node) => state.set({ node });
  const scrolled = card.querySelector(".scroll")?.scrollLeft ?? 0;
  const focused = card.contains(document.activeElement) && document.activeElement.dataset.node;
  const figure = tree(beams, chosen, choose, (at) => read.replaceChildren(...reading(beams, at)));
  const divisor = beams.penalty === "gnmt" ? `((5 + n) / 6)^${beams.alpha}` : `n^${beams.alpha}`;
  const kinds = Object.entries({ wins: "the answer", ended: "finished", pruned: "dropped" });
  const legend = kinds.map(([kind, words]) => h("span", { class: `legend ${kind}` }, words));
  card.replaceChildren(
    h("h2", {}, `Beam search, ${beams.beam} hypotheses at a time`),
    h("p", { class: "says" }, "Each column is a step, the likeliest hypothesis at the top, with the log-probability "
      + "of all its tokens. A finished one has a score, its log-probability divided by "
      + `${divisor} for n tokens: the best score is the answer.`),
    h("div", { class: "tools" }, legend, h("span", { class: "space" }), saveTools(`${run.name}-beams`, () => figure)),
    read, h("div", { class: "scroll" }, figure));
  card.querySelector(".scroll").scrollLeft = scrolled;
  if (focused) figure.querySelector(`[data-node="${focused}"]`)?.focus();
}
