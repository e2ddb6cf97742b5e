// The answer with some heads switched off: live, any of them; in a saved page, the effect of each one alone.

import { h, percent, say, tool, visible } from "look/draw.js";
import { heat } from "look/heat.js";
import { saveTools } from "look/save.js";

export const name = "switches";
export const title = "Heads on and off";
export const has = (shown) => Boolean(shown.switches);

const GROUPS = [[/\.encoder\./, "encoder"], [/cross$/, "to source"], [/\.decoder\./, "decoder"]];
const group = (path) => GROUPS.find(([pattern]) => pattern.test(path))?.[1] ?? "";

/** The names of the layers: "encoder 1". */
function layers(attentions) {
  const seen = new Map();
  return attentions.map(({ path }) => {
    const of = group(path), number = (seen.get(of) ?? 0) + 1;
    seen.set(of, number);
    return `${of || "layer"} ${number}`;
  });
}

const NEW = 3; // words that become likely, at most

const bar = (value, kind, opacity) => h("span", { class: `meter ${kind}`, style: {
  display: "block", height: ".4rem", "margin-bottom": "1px", opacity, width: `${100 * Math.min(1, value)}%` } });

/** Two bars for each word: with all heads, and without some. */
function compare(before, now) {
  const least = Math.min(...before.map(([, value]) => value)), known = new Set(before.map(([, , id]) => id));
  const added = (now?.likely ?? []).filter(([, , id]) => !known.has(id)).slice(0, NEW);
  const rows = before.map(([word, value], i) => [word, value, now?.p[i]]);
  rows.push(...added.filter(([, p]) => p > Math.max(least, 0.001)).map(([word, p]) => [word, null, p]));
  const most = Math.max(...rows.flatMap(([, value, p]) => [value ?? 0, p ?? 0]));
  const row = ([word, value, p]) => h("tr", {},
    h("td", { class: "text", dir: "auto" }, visible(word)),
    h("td", { class: "number" }, value === null ? `< ${percent(least)}` : percent(value)),
    now && h("td", { class: "number", [value === null ? "data-new" : "data-now"]: "" }, percent(p)),
    h("td", {}, h("span", { class: "track", style: { display: "block" } },
      value !== null && bar(value / most, "", now ? 0.45 : 1), now && bar(p / most, "pinned", 1))));
  return h("table", { class: "compare" },
    h("thead", {}, h("tr", {}, h("th", {}, ""), h("th", {}, "with all"), now && h("th", {}, "now"), h("th", {}))),
    h("tbody", {}, rows.map(row)));
}

export function draw(root, { shown, store, state, stop, live }) {
  const { attentions, rows, each } = shown.switches, names = layers(attentions),
    most = Math.max(...attentions.map((one) => one.heads));
  const off = new Set(state.get("off").split(",").filter(Boolean)), buttons = new Map(),
    status = h("p", { class: "reading", role: "status" });
  const right = h("section", { class: "card" }), grid = h("div", { class: "heads" }), matters = h("div", {});
  const row = () => Math.max(0, state.index("said", rows.length));
  let turn = 0, after = null;
  const show = () => {
    const at = row(), now = after?.[at];
    buttons.forEach((button, key) => {
      button.setAttribute("aria-pressed", String(!off.has(key)));
      button.style.setProperty("text-decoration", off.has(key) ? "line-through" : "none");
    });
    const where = rows.length > 1 && h("div", { class: "tokens", role: "group", "aria-label": "positions" },
      rows.map(({ token }, i) => h("button", { type: "button", class: "token", dir: "auto",
      "aria-pressed": String(i === at), onclick: () => state.set({ said: i }) }, visible(token))));
    const top = now?.likely[0];
    right.replaceChildren(h("h2", {}, "What it says"), shown.run.task === "translate"
      ? h("p", { class: "says" }, "Each word, after the words of the answer that was written with all heads.") : "",
      where || "", rows[at].token
      ? h("h3", {}, shown.run.task === "tag" || shown.run.task === "pretrain" ? "at " : "after ",
      h("span", { class: "number", dir: "auto" }, visible(rows[at].token))) : "",
      compare(rows[at].likely, off.size && now ? now : null),
      off.size && top ? h("p", { class: "reading" }, "Now it says ",
        h("b", { class: "number", dir: "auto", "data-top": "" }, visible(top[0])), ` with ${percent(top[1])}`,
        top[0] === rows[at].likely[0][0] ? ", as with all heads." : `, and not ${visible(rows[at].likely[0][0])}.`)
        : "");
  };
  const change = async () => {
    const mine = ++turn, begin = performance.now();
    state.set({ off: [...off].join(",") });
    if (!off.size) { after = null; status.textContent = "all heads are on"; return show(); }
    try {
      const asked = { off: {}, ids: rows.map((one) => one.likely.map(([, , id]) => id)) };
      for (const key of off) {
        const [layer, head] = key.split(".").map(Number);
        (asked.off[attentions[layer].path] ??= []).push(head);
      }
      const found = await store.ask("off", asked);
      if (mine !== turn || stop.aborted) return;
      after = found.shown.rows;
      status.textContent =
        `${off.size} ${off.size > 1 ? "heads" : "head"} off; it took ${Math.round(performance.now() - begin)} ms`;
      say(status.textContent);
    } catch (error) { status.textContent = error.message; }
    show();
  };
  attentions.forEach(({ heads }, layer) =>
    grid.append(h("div", { class: "layer" }, h("span", { class: "name", style: { width: "6.6rem" } }, names[layer]),
    h("div", { class: "row" }, Array.from({ length: heads }, (_, head) => {
    const key = `${layer}.${head}`,
      button = tool(`${head + 1}`, true, () => { off.has(key) ? off.delete(key) : off.add(key); change(); },
      { "aria-label": `${names[layer]}, head ${head + 1}`, style: { "min-width": "2.1rem" } });
    buttons.set(key, button);
    return button;
  })))));
  const all = (on) => { off.clear(); if (!on) buttons.forEach((_, key) => off.add(key)); change(); };
  const drawEach = async () => {
    if (!each) return matters.replaceChildren(h("p", { class: "note" },
      "Each head alone is not tried here: there are many, or the text is long.",
      live ? "" : " On the live page any of them can be switched off."));
    const p = await store.numbers(each);
    if (stop.aborted) return;
    const at = row(), values = new Float32Array(attentions.length * most).fill(NaN), [word, full] = rows[at].likely[0];
    let head = 0;
    attentions.forEach(({ heads }, layer) => {
      for (let i = 0; i < heads; i++) values[layer * most + i] = full - p[head++ * rows.length + at];
    });
    const scale = Math.max(0.01, ...[...values].filter(Number.isFinite).map(Math.abs)),
      columns = Array.from({ length: most }, (_, i) => (most > 8 ? `${i + 1}` : `head ${i + 1}`)),
      points = (v) => {
        const size = Math.abs(100 * v).toFixed(1);
        return Number.isFinite(v) ? `${size === "0.0" ? "" : v > 0 ? "−" : "+"}${size}` : "";
      };
    const tell = h("p", { class: "reading" });
    const figure = heat({ rows: names, columns, values, scale, words: Array.from(values, points),
      label: "how much each head matters here", cell: Math.max(34, Math.min(68, 420 / most)), tall: 30,
      hover: (layer, i) => { if (layer >= 0 && Number.isFinite(values[layer * most + i])) tell.replaceChildren(
        `without ${names[layer]}, head ${i + 1}: `, h("b", { class: "number", "data-without": "" },
        percent(full - values[layer * most + i])), ` instead of ${percent(full)}`); } });
    matters.replaceChildren(h("section", { class: "card" }, h("h2", {}, "How much each head matters here"),
      h("p", { class: "says" }, "How the probability of ", h("span", { class: "number", dir: "auto" }, visible(word)),
        ` (${percent(full)}) changes, in points of a hundred, when one head is switched off. `,
        "Blue: it helps this answer; orange: it holds it down."),
      h("div", { class: "tools" }, h("span", { class: "space" }), saveTools(`${shown.run.name}-heads`, () => figure,
        () => ({ values, rows: names, columns }))), h("div", { class: "scroll" }, figure), tell));
  };
  if (!live) root.append(h("div", { class: "pair" }, right, matters));
  else root.append(
    h("div", { class: "two" }, h("section", { class: "card" }, h("h2", {}, "Heads"),
      h("p", { class: "says" },
      "A head that is switched off gives zeros to its layer. Click one, and see the answer change."), grid,
      h("div", { class: "tools", style: { "margin-top": ".7rem" } },
        tool("all on", false, () => all(true), { "aria-pressed": undefined }), tool("all off", false, () => all(false),
        { "aria-pressed": undefined })), status), right), matters);
  state.on((changes) => { if ("said" in changes) { show(); drawEach(); } }, stop);
  show();
  if (live && off.size) change();
  return drawEach();
}
