// How a text is written: its tokens, the distribution from which each was chosen, and the tree of a beam search. On a
// live page, the answer can be written on from another token.

import { drawBeams } from "look/beams.js";
import { drawing } from "look/codes.js";
import { Distribution, fine } from "look/distribution.js";
import { colour, count, h, isSpecial, say, tool, visible } from "look/draw.js";
import { Steps } from "look/sampling.js";
import { oneMore, writtenOn } from "look/write_on.js";

export const name = "writing";
export const title = "Writing";
export const has = (shown) => Boolean(shown.writing);

const LONG = 60; // tokens of a prompt that are all shown
const LAST = 30; // tokens that are shown of a longer one

/** Tokens that cannot be chosen. */
const fixed = (tokens, title) => tokens.map((token) => {
  return h("span", { class: "token special fixed", dir: "auto", title }, visible(token));
});

class Written {
  constructor(root, context) {
    Object.assign(this, context);
    Object.assign(this, { root, problem: "", unfolded: false });
  }

  /** Take the answer that the address asks for: that of the run, or one that was written on. */
  async load() {
    const asked = this.state.get("on");
    if (asked === this.asked) return;
    this.asked = asked;
    const found = await this.find(asked), steps = await Steps.load(found.now);
    steps.drawing = await drawing(found.now);
    if (asked === this.asked) Object.assign(this, found, { steps });
  }

  /** The store of the answer, and the ways to it; if there is none, the problem, and the answer of the run. */
  async find(ways) {
    try {
      return { ways, now: await writtenOn(this.store, ways), problem: "" };
    } catch (error) {
      return { ways: "", now: this.store, problem: error.message };
    }
  }

  get writing() { return this.steps.writing; }

  get at() {
    const { tokens, prompt, drawing: drawn } = this.writing, last = tokens.length - 1;
    return this.state.index("step", tokens.length, drawn ? last : Math.min(prompt, last));
  }

  draw() {
    const { state, store: { shown: { beams, run } }, live } = this;
    const goOn = (token, settings) => this.goOn(token, settings);
    this.distribution = new Distribution(this.steps, { state, live, run: run.name, goOn });
    this.root.append(this.textCard(), this.distribution.root);
    if (beams) this.root.append(this.beams = h("section", { class: "card" }));
    state.on((changes) => "view" in changes || ("node" in changes ? this.showBeams() : this.show()), this.stop);
    this.show();
    this.showBeams();
  }

  showBeams() {
    if (this.beams) drawBeams(this.beams, this.store.shown, this.state);
  }

  textCard() {
    const { writing: { translates, before }, steps } = this, { grid } = steps.drawing ?? {};
    const label = grid ? "the codes as they were drawn" : "the tokens as they were written";
    this.words = h("div", { class: grid ? "codes" : "tokens", role: "group", "aria-label": label, dir: "auto",
      style: { "--grid": grid } });
    this.picture = h("div", {});
    this.notes = h("div", {});
    const source = () => [
      h("h3", {}, grid ? "caption" : "source"), h("div", { class: "tokens", dir: "auto" }, fixed(before)),
      h("h3", {}, grid ? "drawing" : "answer"),
    ];
    const what = grid ? "drawing, code by code" : `${translates ? "translation" : "text"}, token by token`;
    return h("section", { class: "card" }, h("h2", {}, `The ${what}`),
      h("p", { class: "says" }, grid ? "Choose a code to see what the model thought at that step; the drawing is shown "
        + "up to it. The stronger the line under a code, the surer the model was of it."
        : "Choose a token to see what the model thought at that step. The stronger the line "
        + "under a token, the surer the model was of it. A dot · is a space."),
      translates && source(), grid ? h("div", { class: "figure" }, this.picture, this.words) : this.words, this.notes);
  }

  async show() {
    await this.load();
    if (this.stop.aborted) return;
    this.showText();
    this.showDrawing();
    this.showNotes();
    this.distribution.show(this.steps, this.at);
  }

  showText() {
    const { writing, at } = this, focused = this.words.contains(document.activeElement);
    const read = writing.translates ? [] : fixed(writing.before, "read, but not predicted");
    const written = writing.tokens.map((id, i) => this.token(id, i, i === at)), all = [...read, ...written];
    const folded = this.folded(read.length);
    this.words.replaceChildren(...(folded ? [this.foldButton(folded)] : []), ...all.slice(folded));
    if (focused) written[at].focus();
  }

  showDrawing() {
    const { drawing: found } = this.steps;
    if (!found) return;
    found.show(this.at + 1, this.at);
    this.picture.replaceChildren(found.canvas);
  }

  token(id, i, chosen) {
    const { writing: { prompt }, steps } = this, word = steps.word(id), probability = fine(steps.own[i]);
    const given = i < prompt, kind = `${given ? " given" : ""}${isSpecial(word) ? " special" : ""}`;
    return h("button", {
      type: "button", class: this.steps.drawing ? "code" : `token${kind}`, dir: "auto",
      title: probability, style: { "border-bottom": `4px solid ${colour(steps.own[i])}` },
      "aria-label": `${visible(word)}, probability ${probability}${given ? ", given" : ""}`,
      "aria-pressed": String(chosen), tabindex: chosen ? 0 : -1,
      onclick: () => this.state.set({ step: i }),
      onkeydown: (event) => this.walk(event, i),
    }, visible(word));
  }

  /** The arrow keys go from token to token. */
  walk(event, i) {
    const last = this.writing.tokens.length - 1;
    const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.state.set({ step: Math.min(last, Math.max(0, next)) });
  }

  /** How many tokens of the prompt are not shown, of which `read` have no step. Who chooses one of them sees all. */
  folded(read) {
    const given = this.writing.translates ? 0 : read + this.writing.prompt, hidden = given > LONG ? given - LAST : 0;
    this.unfolded ||= read + this.at < hidden;
    return this.unfolded ? 0 : hidden;
  }

  foldButton(hidden) {
    const unfold = ({ target }) => {
      target.blur(); // or the page would scroll to the chosen token, below all others
      this.unfolded = true;
      this.showText();
      this.words.querySelector("[aria-pressed=true]").focus({ preventScroll: true });
    };
    const more = { "aria-pressed": undefined, "aria-expanded": "false", "data-folded": hidden };
    return tool(`… ${count(hidden)} tokens before`, false, unfold, more);
  }

  showNotes() {
    const { writing, problem, now, ways } = this, notes = [], tip = (text) => h("p", { class: "tip" }, text);
    if (ways) notes.push(this.otherNote(now));
    if (problem) notes.push(h("p", { class: "note", role: "alert", dir: "auto" }, problem));
    if (writing.left_out) notes.push(tip(`${count(writing.left_out)} more tokens follow, which are not shown here.`));
    if (writing.reason === "length" && !writing.drawing) {
      notes.push(tip("It ended at the largest length, not with an end token."));
    }
    this.notes.replaceChildren(...notes);
  }

  otherNote({ word, step }) {
    const token = word && h("b", { class: "number", dir: "auto" }, visible(word), " ");
    const goBack = () => this.state.set({ on: "" });
    const back = tool("back to the run's answer", false, goBack, { "aria-pressed": undefined });
    return h("p", { class: "note" }, `written ${word ? "on from " : "anew"} `, token, `at step ${step + 1} `, back);
  }

  /** Ask the server to write from the chosen step on, beginning with `token` (-1: any), with these settings, or as the
   * run writes. */
  async goOn(token, settings) {
    const on = oneMore(this.ways, this.at, token, settings);
    say("writing");
    this.root.setAttribute("aria-busy", "true");
    try {
      const { step } = await writtenOn(this.store, on);
      this.problem = "";
      if (!this.stop.aborted) this.state.set({ on, step });
    } catch (error) {
      this.problem = error.message;
      this.showNotes();
    }
    if (!this.stop.aborted) this.root.removeAttribute("aria-busy");
    say(this.problem || "written");
  }
}

export async function draw(root, context) {
  const written = new Written(root, context);
  await written.load();
  if (!context.stop.aborted) written.draw();
}
