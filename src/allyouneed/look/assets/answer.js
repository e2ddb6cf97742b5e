// The answer of the run, as its task gives it.

import { alignment } from "look/alignment.js";
import { codes } from "look/codes.js";
import { count, h, paintImage, percent, ranking, say, visible } from "look/draw.js";

export const name = "answer";
export const title = "Answer";
export const has = (shown) => Boolean(shown.answer);

/** A text with marked spans: [{start, end, name}], in characters. */
function marked(text, spans) {
  const found = [], letters = [...text];
  let at = 0;
  for (const { start, end, name } of [...spans].sort((a, b) => a.start - b.start)) {
    if (start < at) continue;
    const inside = letters.slice(start, end).join("");
    found.push(letters.slice(at, start).join(""), h("mark", { class: "span" }, inside, h("small", {}, name)));
    at = end;
  }
  return h("p", { class: "big", dir: "auto" }, found, letters.slice(at).join(""));
}

const chances = (pairs, what = "") => ranking(pairs, { heading: [what, "probability"] });
const cosines = (pairs, what = "") => {
  return ranking(pairs, { heading: [what, "cosine"], format: (value) => value.toFixed(4) });
};
const big = (text) => h("p", { class: "big", dir: "auto" }, text);

function classes({ details }) {
  const pairs = Object.entries(details.probabilities).sort((a, b) => b[1] - a[1]);
  return [chances(pairs.slice(0, 20), "class")];
}

function tags({ details }, shown) {
  if (details.entities) return [marked(shown.text, details.entities.map((one) => ({ ...one, name: one.type })))];
  const word = (text, i) => [h("mark", { class: "span" }, text, h("small", {}, details.tags[i])), " "];
  return [h("p", { class: "big", dir: "auto" }, details.words.map(word))];
}

function answers({ details, text }, shown) {
  const context = shown.text.split(shown.text.includes("|||") ? "|||" : "\t").slice(1).join(" ").trim();
  const [first] = details.answers;
  return [
    big(text || "There is no answer in the text."),
    marked(context, first.end > first.start ? [{ ...first, name: percent(first.probability) }] : []),
    chances(details.answers.map((one) => [one.answer || "no answer", one.probability]), "answer"),
  ];
}

function filled({ details, text }) {
  const words = (likely, i) => [
    h("h3", {}, details.masks.length > 1 ? `[MASK] ${i + 1}` : "[MASK]"),
    chances(likely.map((one) => [visible(one.word), one.probability]), "word"),
  ];
  const follows = details.follows;
  return [
    details.masks && big(text),
    ...(details.masks ?? []).flatMap(words),
    follows !== undefined && h("h3", {}, "Does the second text follow the first?"),
    follows !== undefined && chances([["it follows", follows], ["it is another text", 1 - follows]]),
  ];
}

const nearest = ({ details }) => [
  cosines(details.nearest.map((one) => [visible(one.word), one.cosine]), "word"),
];

function vectors({ details, shown: text }) {
  if (details.cosine === undefined) return [h("p", { class: "tip" }, `Its vector: ${text}`)];
  return [cosines([["of the two texts", details.cosine]])];
}

/** Lines by their cosine with the text; on a live page, any lines. */
function nearestLines(found, store, live) {
  const list = (pairs) => (pairs.length ? cosines(pairs, "line") : h("p", { class: "tip" }, "There are no lines yet."));
  const table = h("div", {}, list(found));
  const card = h("section", { class: "card" }, h("h2", {}, "The nearest of some lines"), table);
  if (!live) return card;
  const typed = h("textarea", { rows: 4, "aria-label": "lines to search", placeholder: "one line each", dir: "auto" });
  const status = h("p", { class: "tip", role: "status" });
  const send = async (event) => {
    event.preventDefault();
    const lines = typed.value.split("\n").map((line) => line.trim()).filter(Boolean);
    try {
      const { shown } = await store.ask("nearest", { lines });
      table.replaceChildren(list(shown.nearest));
      status.textContent = `${count(lines.length)} lines searched`;
    } catch (error) {
      status.textContent = error.message;
    }
    say(status.textContent);
  };
  card.append(h("form", { class: "ask", onsubmit: send }, typed, h("button", {}, "Search")), status);
  return card;
}

function continued({ text }, shown) {
  return [h("p", { class: "big", dir: "auto" }, shown.text, h("mark", { class: "span" }, text))];
}

// What each task calls its answer, and how it is shown.
const TASKS = {
  lm: ["It continues", continued],
  translate: ["It translates", ({ text }, shown) => (shown.alignment ? [] : [big(text)])],
  classify: ["Its class", classes],
  recognize: ["What it sees", classes],
  tag: ["What it marks", tags],
  answer: ["What it answers", answers],
  pretrain: ["What it fills in", filled],
  wordvectors: ["The nearest words", nearest],
  embed: ["What it makes of the text", vectors],
  draw: ["What it draws", () => []],
  compress: ["The copy, from its codes", () => []],
};

const WRITTEN = ["lm", "translate"]; // tasks whose other answers are not among the details

async function image(store, ref, label) {
  const canvas = paintImage(await store.numbers(ref), ref.shape);
  canvas.setAttribute("aria-label", label);
  return h("figure", {}, canvas, h("figcaption", { class: "tip" }, label));
}

function others(answer) {
  const line = ({ score, text }) => h("tr", {},
    h("td", { class: "number" }, score.toFixed(3)), h("td", { class: "text", dir: "auto" }, text));
  const table = h("table", {}, h("tbody", {}, answer.others.map(line)));
  return [h("h3", {}, "Other answers, with their log-probability"), table];
}

export async function draw(root, { shown, store, state, stop, live }) {
  const { answer, run } = shown, [heading, made] = TASKS[run.task] ?? ["The answer", ({ text }) => [big(text)]];
  const box = h("section", { class: "card" }, h("h2", {}, heading), made(answer, shown).filter(Boolean));
  root.append(box);
  if (shown.alignment) box.append(await alignment(shown, store));
  if (answer.image) box.append(await codes(shown, store, state, stop));
  else if (shown.image) box.append(await image(store, shown.image, "the image, as the model reads it"));
  if (shown.nearest) root.append(nearestLines(shown.nearest, store, live));
  if (answer.others.length && WRITTEN.includes(run.task)) box.append(...others(answer));
}
