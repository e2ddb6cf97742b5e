// The vocabulary: a map of all words of the run by their embeddings, and the nearest words of each.

import { count, h, percent, say, tool, visible } from "look/draw.js";
import { WordMap } from "look/word_map.js";

export const name = "vocabulary";
export const title = "Vocabulary";
export const has = (shown) => shown.vocabulary?.length > 0;

const FOUND = 8; // words that a search lists

/** The words that a typed text may mean: the same one, then those that begin with it, then those that contain it. */
export function search(words, typed) {
  const goal = typed.trim().toLowerCase(), found = [[], [], [], []];
  if (!goal) return [];
  words.forEach((word, i) => {
    const one = word.trim(), low = one.toLowerCase(), at = low.indexOf(goal);
    if (at >= 0) found[one === typed.trim() ? 0 : low === goal ? 1 : at === 0 ? 2 : 3].push(i);
  });
  return found.flat().slice(0, FOUND);
}

const plain = (label, name, click) => {
  return tool(label, false, click, { "aria-pressed": undefined, "aria-label": name, title: name });
};

/** One table of words. */
class Vocabulary {
  constructor(root, context, number) {
    Object.assign(this, context);
    Object.assign(this, { root, number, table: context.shown.vocabulary[number], turn: 0 });
    // When another table is shown, or another view, this one hears no more.
    this.ended = new AbortController();
    context.stop.addEventListener("abort", () => this.ended.abort());
  }

  async load() {
    const { words, at, share } = this.table;
    [this.words, this.at, this.share] = await Promise.all([words, at, share].map((ref) => this.store.numbers(ref)));
  }

  named(row) { return visible(this.words[row]); }

  get row() { return this.state.index("word", this.words.length); }

  draw() {
    const { words, at, table, ended: { signal } } = this;
    this.go = this.row >= 0 ? "still" : ""; // whether the map goes to the word: "still" at once, "move" in steps
    this.map = new WordMap({ at, words, text: table.text, choose: (row) => this.pick(row, ""), stop: signal });
    this.list = h("div", {});
    this.root.replaceChildren(h("div", { class: "two" },
      h("section", { class: "card" },
        h("h2", {}, "Nearest words"), this.tables(), table.text.length > 0 && this.inText(), this.list),
      this.mapCard()));
    this.state.on((changes) => "word" in changes && this.show(), signal);
    return this.show();
  }

  pick(row, go = "move") {
    this.go = go;
    this.state.set({ word: row });
  }

  /** The word vectors of a run, where it has several. */
  tables() {
    const { vocabulary } = this.shown, { root, state, shown, store, live, stop } = this;
    const choose = (vocabulary) => {
      this.ended.abort();
      state.set({ vocabulary, word: "" });
      draw(root, { shown, store, state, live, stop });
    };
    if (vocabulary.length < 2) return "";
    return h("div", { class: "tools" },
      vocabulary.map((other, i) => tool(other.title, i === this.number, () => choose(i))));
  }

  inText() {
    const word = (row) => h("button", {
      type: "button", class: "token", dir: "auto", onclick: () => this.pick(row),
    }, this.named(row));
    return [h("h3", {}, "in the text"), h("div", { class: "tokens" }, this.table.text.map(word))];
  }

  mapCard() {
    const { map, words, table: { all, text }, share } = this, beyond = all > words.length;
    const hits = h("div", { class: "starts", role: "group", "aria-label": "words found" });
    return h("section", { class: "card first" },
      h("h2", {}, `All ${count(words.length)} words`, beyond ? ` on the map, of ${count(all)}` : ""),
      h("div", { class: "tools" }, this.searchField(hits), plain("+", "zoom in", () => map.by(1.5)),
        plain("−", "zoom out", () => map.by(1 / 1.5)), plain("all", "show all words", () => map.all()),
        h("span", { class: "space" }), plain("PNG", "save the map as PNG", () => this.save())),
      hits, map.root,
      h("p", { class: "tip" },
        "Each point is a word. Across and up are the first two principal components of the embeddings (scaled to ",
        `length one); they hold ${percent(share[0])} and ${percent(share[1])} of the variance, so trust the list for `,
        "who is near. Drag, scroll or pinch; by keyboard + − 0 and the arrows.",
        text.length ? " Words of the text have an orange ring." : ""));
  }

  /** A field; `hits` lists the words that are found. */
  searchField(hits) {
    const typed = h("input", {
      type: "search", class: "tool", placeholder: "find a word", "aria-label": "find a word", dir: "auto",
      style: { width: "15rem", padding: ".35rem .7rem" },
    });
    typed.addEventListener("input", () => this.showHits(hits, typed.value));
    typed.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      const [row] = this.showHits(hits, typed.value);
      if (row !== undefined) this.pick(row);
    });
    return typed;
  }

  showHits(hits, typed) {
    const rows = search(this.words, typed), none = typed.trim() && !rows.length;
    hits.replaceChildren(...rows.map((row) => this.wordButton(row)),
      none ? h("span", { class: "tip" }, "no such word in this vocabulary") : "");
    return rows;
  }

  wordButton(row) {
    return h("button", { type: "button", class: "tool", dir: "auto", onclick: () => this.pick(row) }, this.named(row));
  }

  save() {
    this.map.canvas.toBlob((blob) => {
      const href = URL.createObjectURL(blob);
      h("a", { href, download: `${this.shown.run.name}-vocabulary.png` }).click();
      setTimeout(() => URL.revokeObjectURL(href), 5000);
    });
  }

  /** The nearest words of a word, as [row, cosine]; null if this page does not have them. */
  async nearest(row) {
    const { near, nearest, cosines } = this.table, here = near ? near.indexOf(row) : row, most = nearest.shape[1];
    if (here >= 0 && this.store.has(nearest) && this.store.has(cosines)) {
      const [rows, values] = await Promise.all([this.store.numbers(nearest), this.store.numbers(cosines)]);
      return Array.from({ length: most }, (_, i) => [rows[here * most + i], values[here * most + i]]);
    }
    return this.live ? (await this.store.ask("near", { table: this.number, row })).shown.near : null;
  }

  /** Show the chosen word. */
  async show() {
    const { row, map, list } = this, mine = ++this.turn;
    Object.assign(map, { chosen: row, near: [] });
    if (row < 0) {
      list.replaceChildren(h("p", { class: "tip" },
        "Find a word, or click a point: its nearest words are listed here."));
      return map.soon();
    }
    const found = await this.nearest(row).catch((error) => error.message);
    if (mine !== this.turn || this.ended.signal.aborted) return;
    map.near = Array.isArray(found) ? found.map(([other]) => other) : [];
    if (this.go) map.centre(row, this.go === "still" || undefined);
    this.go = "";
    map.soon();
    say([row, ...map.near.slice(0, 3)].map((one) => this.named(one)).join(", "));
    this.showNearest(row, found);
  }

  /** `found` are the nearest words, or why there are none. */
  showNearest(row, found) {
    const line = ([other, cosine]) => h("tr", {},
      h("td", { class: "text" }, this.wordButton(other)), h("td", { class: "number" }, cosine.toFixed(3)));
    const word = { class: "number", dir: "auto", style: { color: "var(--pin)" }, "data-word": "" };
    const none = "This page has the nearest words of the words of its text only: the vocabulary is large. "
      + "The live page has those of every word.";
    this.list.replaceChildren(
      h("h3", {}, "nearest to ", h("span", word, this.named(row))),
      Array.isArray(found)
        ? h("table", { class: "near" }, h("tbody", {}, found.map(line)))
        : h("p", { class: "note" }, found ?? none),
      h("p", { class: "tip" }, `The cosine of their vectors, in all ${count(this.table.width)} dimensions.`));
  }
}

export async function draw(root, context) {
  const number = Math.max(0, context.state.index("vocabulary", context.shown.vocabulary.length));
  const vocabulary = new Vocabulary(root, context, number);
  await vocabulary.load();
  if (!context.stop.aborted) await vocabulary.draw();
}
