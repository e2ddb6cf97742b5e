// The same input through the models that a training has kept along the way (train.keep).

import { chosen } from "look/attention.js";
import { count, h, paintImage, percent, ranking, say, tool, visible } from "look/draw.js";
import { matrix } from "look/matrix.js";

export const name = "checkpoints";
export const title = "Checkpoints";
export const has = (shown) => Boolean(shown.checkpoints?.length);

const PLAY = 900; // ms for each model

const nameOf = ({ step }) => (step ? `step ${count(step)}` : "the model");

/** A text whose words that differ from those of `last` are marked. */
function compared(text, last) {
  const words = text.split(/(\s+)/), others = last.split(/(\s+)/);
  return words.map((word, i) => (word.trim() && word !== others[i] ? h("mark", { class: "differs" }, word) : word));
}

/** How sure a model is of its answer: its log-probability. Some tasks have none. */
const sure = (logprob) => (Number.isFinite(logprob) && logprob !== 0 ? logprob.toFixed(2).replace("-", "−") : "");

const withProbability = (logprob) => {
  const probability = logprob > -7 ? `, probability ${percent(Math.exp(logprob))}` : "";
  return sure(logprob) && `log-probability ${sure(logprob)}${probability}`;
};

/** An image that is named to those who hear the page. */
function named(bytes, { shape }, label) {
  const canvas = paintImage(bytes, shape);
  canvas.setAttribute("aria-label", label);
  return canvas;
}

/** An image with what it is below. */
const figure = (bytes, ref, label) => h("figure", {},
  named(bytes, ref, label), h("figcaption", { class: "tip" }, label));

// The attention of a model

/** One map of it: a head, or the mean or the largest of all heads. */
async function attentionOf(store, entry, said, layer, head) {
  const ref = entry.attention[layer], axes = said.attention[layer];
  if (!axes || !store.has(ref)) return null;
  const { rows, columns } = axes, values = await store.numbers(ref), size = rows.length * columns.length;
  const heads = values.length / size - 1, map = (at) => values.subarray(at * size, (at + 1) * size);
  if (head === "max") return { rows, columns, values: largest(Array.from({ length: heads }, (_, at) => map(at))) };
  return { rows, columns, values: map(Number(head) < heads ? Number(head) : heads) };
}

const largest = (maps) => maps[0].map((_, i) => Math.max(...maps.map((one) => one[i])));

const select = (label, options, value, change) => h("select",
  { class: "tool", "aria-label": label, onchange: (event) => change(event.target.value) },
  options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text)));

/** Which attention is shown: the choice of the view "Attention". */
function choices(shown, state, now) {
  const groups = { cross: "answer to source", encoder: "encoder", decoder: "decoder", self: "" };
  const layers = shown.attention.map((layer, at) => [at,
    [groups[layer.group], `layer ${layer.layer}`].filter(Boolean).join(", ")]);
  const heads = now.layer.heads.map((_, head) => [head, `head ${head + 1}`]);
  return h("div", { class: "tools" }, select("layer", layers, now.at, (layer) => state.set({ layer })),
    select("head", [...heads, ["mean", "mean of heads"], ["max", "max of heads"]],
      now.head === "rollout" ? "mean" : now.head, (head) => state.set({ layer: now.at, head })));
}

/** The map, with the weight that is pointed at. */
function attentionMap(seen) {
  const figure = matrix({ ...seen, pinned: -1, pin: () => {} });
  const read = h("p", { class: "reading", "data-reading": "" });
  figure.onhover((row, column) => {
    figure.light(row, column);
    const value = seen.values[row * seen.columns.length + column];
    const [from, to] = [visible(seen.rows[row] ?? ""), visible(seen.columns[column] ?? "")];
    read.textContent = row < 0 ? "" : `${from} attends to ${to}: ${value.toFixed(3)}`;
  });
  return [figure.svg, read];
}

class Checkpoints {
  constructor({ shown, store, state, stop }) {
    Object.assign(this, { shown, store, state, stop, entries: shown.checkpoints, last: shown.checkpoints.length - 1 });
    this.image = shown.answer.image;
    this.said = this.entries.map(() => null); // by each model, as far as it is known
    this.pixels = this.entries.map(() => null); // of the image that each makes
    this.read = null; // the pixels of the image that they read
    this.turn = this.timer = 0;
    this.playing = tool("▶ play", false, () => (this.timer ? this.pause() : this.play()));
    this.slider = h("input", { type: "range", min: 0, max: this.last, step: 1, "aria-label": "step of the training",
      oninput: (event) => this.choose(Number(event.target.value)) });
    this.where = h("b", { class: "number", "data-step": "" });
    this.answer = this.image ? h("div", { class: "figure", "data-answer": "" })
      : h("p", { class: "big", dir: "auto", "data-answer": "" });
    this.how = h("p", { class: "tip", "data-sure": "" });
    this.likely = h("section", { class: "card" });
    this.map = h("div", { class: "scroll" });
    this.rows = this.entries.map((entry, i) => this.makeRow(entry, i));
    stop.addEventListener("abort", () => clearInterval(this.timer));
  }

  /** The number of the model that is shown. */
  get at() {
    return this.state.index("at", this.entries.length, this.last);
  }

  go(to) {
    this.state.set({ at: Math.min(this.last, Math.max(0, to)) });
  }

  choose(to) {
    this.pause();
    this.go(to);
  }

  play() {
    this.markPlaying(true);
    this.go(this.at === this.last ? 0 : this.at);
    this.timer = setInterval(() => {
      if (this.at < this.last && this.said[this.at]) this.go(this.at + 1);
      if (this.at === this.last) this.pause();
    }, PLAY);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    this.markPlaying(false);
  }

  markPlaying(on) {
    this.playing.textContent = on ? "❚❚ pause" : "▶ play";
    this.playing.setAttribute("aria-pressed", String(on));
  }

  // The table of all models

  makeRow(entry, i) {
    const text = h("td", { class: "text", dir: "auto" }, "…"), number = h("td", { class: "number" });
    const button = h("button", { type: "button", class: "tool" }, nameOf(entry));
    const row = h("tr", { class: "pick", onclick: () => this.choose(i) },
      h("td", { class: "number" }, button), text, number);
    return { row, text, number };
  }

  table() {
    const last = sure(this.shown.answer.logprob) && "log-probability";
    const heads = ["", "answer", last].map((one) => h("th", { scope: "col" }, one));
    return h("section", { class: "card" }, h("h2", {}, this.image ? "What each made" : "What each wrote"),
      h("p", { class: "says" }, this.image ? "The last row is the run's own model."
        : "Marked words differ from those of the run's own model, the last row."),
      h("div", { class: "scroll" }, h("table", { class: "through" },
        h("thead", {}, h("tr", {}, heads)), h("tbody", {}, this.rows.map(({ row }) => row)))));
  }

  fillRow(i) {
    const { text, number } = this.rows[i], { error, text: answer, logprob } = this.said[i];
    if (error) return text.replaceChildren(error);
    if (this.image) text.replaceChildren(named(this.pixels[i], this.image, `the image of ${nameOf(this.entries[i])}`));
    else text.replaceChildren(...compared(answer, this.said[this.last].text ?? ""));
    number.textContent = sure(logprob);
  }

  /** Ask for what each model says: the last one first, which the others are compared with. */
  async load() {
    if (this.shown.image) this.read = await this.store.numbers(this.shown.image);
    for (let i = this.last; i >= 0; i--) {
      const { said, image } = this.entries[i], found = await this.store.numbers(said);
      if (image && !found.error) this.pixels[i] = await this.store.numbers(image);
      if (this.stop.aborted) return;
      this.said[i] = found;
      this.fillRow(i);
      if (i === this.at || i === this.last) this.show();
    }
  }

  // What one model says

  async show() {
    const mine = ++this.turn, now = this.at, entry = this.entries[now], found = this.said[now];
    this.slider.value = now;
    this.slider.setAttribute("aria-valuetext", nameOf(entry));
    const one = this.shown.attention?.length ? chosen(this.shown, this.state) : null;
    const seen = one && found && !found.error && await attentionOf(this.store, entry, found, one.at, one.head);
    if (mine !== this.turn || this.stop.aborted) return;
    this.where.textContent = nameOf(entry);
    this.rows.forEach(({ row }, i) => row.classList.toggle("here", i === now));
    if (!found || found.error) return this.showNothing(found?.error ?? "…");
    this.showAnswer(now, found);
    this.showLikely(found.likely);
    if (one) this.showMap(one, seen);
    if (!this.timer) say(this.image ? nameOf(entry) : `${nameOf(entry)}: ${found.text}`);
  }

  showNothing(why) {
    this.answer.textContent = why;
    for (const box of [this.how, this.likely, this.map]) box.replaceChildren();
  }

  showAnswer(now, { text, logprob }) {
    const before = this.shown.run.task === "lm" ? h("span", { class: "soft" }, this.shown.text) : "";
    this.answer.replaceChildren(
      ...(this.image ? this.figures(now) : [before, ...compared(text, this.said[this.last]?.text ?? text)]));
    this.how.textContent = withProbability(logprob);
  }

  /** The image that a model makes, beside the one that it reads. */
  figures(now) {
    const { shown, image, read } = this, made = shown.run.task === "draw" ? "the drawing"
      : "the copy, made from the codes";
    return [
      ...(read ? [figure(read, shown.image, "the image, as the model reads it")] : []),
      figure(this.pixels[now], image, made),
    ];
  }

  showLikely(all) {
    const { shown, state } = this, at = state.index("position", all.length, all.length - 1);
    const [token, pairs] = all[at] ?? [];
    const title = shown.likely?.title.replace(" (· is a space)", "") ?? (shown.writing ? "likely next" : "classes");
    const cosine = title.includes("cosine");
    const words = () => ranking(pairs.map(([word, value]) => [visible(word), value]),
      { format: cosine ? (value) => value.toFixed(3) : percent, heading: ["", cosine ? "cosine" : "probability"] });
    this.likely.replaceChildren(h("h2", {}, `${title[0].toUpperCase()}${title.slice(1)}`),
      all.length > 1 ? this.positions(all, at) : "",
      token === undefined ? h("p", { class: "says" }, "This task has no likely answers to list.") : words());
  }

  /** The tokens at which a model says what is likely. */
  positions(all, at) {
    const button = ([token], i) => h("button", {
      type: "button", class: "token", "aria-pressed": String(i === at), dir: "auto",
      onclick: () => this.state.set({ position: i === all.length - 1 ? "" : i }),
    }, visible(token));
    return h("div", { class: "tokens", dir: "auto" }, all.map(button));
  }

  showMap(now, seen) {
    const missing = h("p", { class: "says" },
      "The attention of this step is left out of the page, which would become too large.");
    this.map.replaceChildren(h("h2", {}, "Attention"), choices(this.shown, this.state, now),
      ...(seen ? attentionMap(seen) : [missing]));
  }
}

export function draw(root, context) {
  const { shown, state, stop } = context, view = new Checkpoints(context), reads = shown.run.reads === "image";
  const lists = shown.likely || !shown.answer.image;
  root.append(
    h("section", { class: "card" }, h("h2", {}, `The same ${reads ? "image" : "text"} along the training`),
      h("div", { class: "tools slide" }, view.playing, view.slider, view.where), view.answer, view.how),
    h("div", { class: "pair" }, view.table(),
      h("div", {}, lists && view.likely, shown.attention?.length > 0 && h("section", { class: "card" }, view.map))));
  state.on((changes) => "view" in changes || view.show(), stop);
  view.show();
  return view.load();
}
