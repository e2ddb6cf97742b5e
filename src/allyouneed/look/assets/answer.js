// The answer of the run, as its task gives it.

import { h, paintImage, percent, ranking, visible } from "look/draw.js";

export const name = "answer";
export const title = "Answer";
export const has = (shown) => Boolean(shown.answer);

const card = (heading, ...children) => h("section", { class: "card" }, h("h2", {}, heading), ...children);

/** A text with marked spans: [{start, end, name}], in characters. */
function marked(text, spans) {
  const found = [], letters = [...text];
  let at = 0;
  for (const { start, end, name } of [...spans].sort((a, b) => a.start - b.start)) {
    if (start < at) continue;
    found.push(letters.slice(at, start).join(""), h("mark", { class: "span" }, letters.slice(start, end).join(""), h("small", {}, name)));
    at = end;
  }
  return h("p", { class: "big", dir: "auto" }, found, letters.slice(at).join(""));
}

async function image(store, ref, label) {
  const canvas = paintImage(await store.numbers(ref), ref.shape);
  canvas.setAttribute("aria-label", label);
  return h("figure", { style: { margin: 0 } }, canvas, h("figcaption", { class: "tip" }, label));
}

const BY_TASK = {
  classify: ({ details }) => [ranking(Object.entries(details.probabilities).sort((a, b) => b[1] - a[1]).slice(0, 20), { heading: ["class", "probability"] })],
  recognize: (given) => BY_TASK.classify(given),
  tag: ({ details, text }, { shown }) => details.entities
    ? [marked(shown.text, details.entities.map((one) => ({ ...one, name: one.type })))]
    : [h("p", { class: "big", dir: "auto" }, details.words.map((word, i) => [h("span", { class: "span" }, word, h("small", {}, details.tags[i])), " "]))],
  answer: ({ details, text }, { shown }) => {
    const context = shown.text.includes("|||") ? shown.text.split("|||").slice(1).join("|||").trim() : shown.text.split("\t").slice(1).join("\t").trim();
    const first = details.answers[0];
    return [
      h("p", { class: "big", dir: "auto" }, text || "no answer in the text"),
      marked(context, first.end > first.start ? [{ ...first, name: percent(first.probability) }] : []),
      ranking(details.answers.map((one) => [one.answer || "(no answer)", one.probability]), { heading: ["answer", "probability"] }),
    ];
  },
  pretrain: ({ details, text }) => [
    details.masks && h("p", { class: "big", dir: "auto" }, text),
    (details.masks ?? []).map((words, i) => [h("h3", {}, `[MASK] ${i + 1}`), ranking(words.map((one) => [visible(one.word), one.probability]), { heading: ["word", "probability"] })]),
    details.follows !== undefined && [h("h3", {}, "does the second text follow the first?"), ranking([["it follows", details.follows], ["another text", 1 - details.follows]])],
  ],
  wordvectors: ({ details }) => [ranking(details.nearest.map((one) => [visible(one.word), one.cosine]), { heading: ["word", "cosine"], format: (v) => v.toFixed(3) })],
  embed: ({ details, shown }) => [details.cosine !== undefined ? ranking([["the two texts", details.cosine]], { heading: ["", "cosine"], format: (v) => v.toFixed(4) }) : h("p", { class: "number" }, shown)],
};

const TITLES = { lm: "It continues", translate: "It translates", classify: "Its class", recognize: "What it sees", tag: "What it marks", answer: "What it answers", pretrain: "What it fills in", wordvectors: "The nearest words", embed: "Vectors", draw: "What it draws", compress: "The copy, and its codes" };

export async function draw(root, { shown, store }) {
  const { answer, run, image: seen } = shown;
  const made = BY_TASK[run.task]?.(answer, { shown }) ?? [h("p", { class: "big", dir: "auto" }, run.task === "lm" ? [h("span", { class: "soft" }, shown.text), h("mark", { class: "span" }, answer.text)] : answer.image ? "" : answer.text)];
  const images = h("div", { class: "tools", style: { gap: "1rem" } });
  const box = card(TITLES[run.task] ?? "The answer", images, ...made.flat(2).filter(Boolean));
  if (answer.others.length) box.append(h("h3", {}, "other answers"), h("table", {}, answer.others.map((one) => h("tr", {}, h("td", { class: "number" }, one.score.toFixed(3)), h("td", { class: "text", dir: "auto" }, one.text)))));
  root.append(box);
  if (seen) images.append(await image(store, seen, "the image, as the model reads it"));
  if (answer.image) images.append(await image(store, answer.image, run.task === "compress" ? "the copy from its codes" : "the drawing"));
  if (answer.details.codes) box.append(codes(answer.details.codes.flat()));
}

/** The grid of codes of an image. */
function codes(list) {
  const side = Math.round(Math.sqrt(list.length));
  return h("div", {}, h("h3", {}, `${side} × ${side} codes`), h("div", { class: "scroll" }, h("table", { class: "number" }, Array.from({ length: side }, (_, row) => h("tr", {}, list.slice(row * side, (row + 1) * side).map((code) => h("td", { class: "number" }, `${code}`)))))));
}
