// The answer with some heads switched off: live, any of them; in a saved page, the effect of each one alone.

import { h, percent, say, tool, visible } from "look/draw.js";
import { heat } from "look/heat.js";
import { saveTools } from "look/save.js";

export const name = "switches";
export const title = "Heads on and off";
export const has = (shown) => Boolean(shown.switches);

const PAUSE = 60; // milliseconds for which a head is pointed at before it is asked for
const NEW = 3; // words that become likely, at most
const GROUPS = [[/\.encoder\./, "encoder"], [/cross$/, "to source"], [/\.decoder\./, "decoder"]];
const BESIDE = ["tag", "pretrain"]; // tasks that predict something at a token; the others predict what is after it
const ANSWERS = { begin: "begins", end: "ends", inside: "is" }; // what a row says of the answer to a question

/** The names of the layers: "encoder 1". */
function layerNames(attentions) {
  const seen = new Map();
  return attentions.map(({ path }) => {
    const group = GROUPS.find(([pattern]) => pattern.test(path))?.[1] ?? "layer";
    seen.set(group, (seen.get(group) ?? 0) + 1);
    return `${group} ${seen.get(group)}`;
  });
}

/** A token or a word of the model. */
const word = (text) => h("span", { class: "number", dir: "auto" }, visible(text));

/** The name of a row on its button. */
const rowName = (task, token) => (task === "answer" ? ANSWERS[token] : visible(token));

/** Where a row is: "after The", "where the answer begins". */
function rowHeading(task, token) {
  if (task === "answer") return h("h3", {}, `where the answer ${ANSWERS[token]}`);
  return token && h("h3", {}, BESIDE.includes(task) ? "at " : "after ", word(token));
}

const bar = (value, kind, opacity) => h("span", { class: `meter ${kind}`, style: {
  display: "block", height: ".4rem", "margin-bottom": "1px", opacity, width: `${100 * Math.min(1, value)}%`,
} });

const leastOf = (likely) => Math.min(...likely.map(([, value]) => value));

/** The words of a row as [word, probability with all heads, probability now]; new words have no first one. */
function withNew(before, now) {
  const least = leastOf(before), known = new Set(before.map(([, , id]) => id));
  const added = (now?.likely ?? []).filter(([, , id]) => !known.has(id)).slice(0, NEW);
  return [
    ...before.map(([text, value], i) => [text, value, now?.p[i]]),
    ...added.filter(([, p]) => p > Math.max(least, 0.001)).map(([text, p]) => [text, null, p]),
  ];
}

/** Two bars for each word: with all heads, and without some. */
function compare(before, now) {
  const rows = withNew(before, now), most = Math.max(...rows.flatMap(([, value, p]) => [value ?? 0, p ?? 0]));
  const row = ([text, value, p]) => h("tr", {},
    h("td", { class: "text", dir: "auto" }, visible(text)),
    h("td", { class: "number" }, value === null ? `< ${percent(leastOf(before))}` : percent(value)),
    now && h("td", { class: "number", [value === null ? "data-new" : "data-now"]: "" }, percent(p)),
    h("td", {}, h("span", { class: "track", style: { display: "block" } },
      value !== null && bar(value / most, "", now ? 0.45 : 1), now && bar(p / most, "pinned", 1))));
  const heads = [h("th", {}, ""), h("th", {}, "with all"), now && h("th", {}, "now"), h("th", {})];
  return h("table", { class: "compare" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows.map(row)));
}

/** What the model says first without some heads. */
function verdict([[before]], [[text, p]]) {
  return h("p", { class: "reading" }, "Now it says ",
    h("b", { class: "number", dir: "auto", "data-top": "" }, visible(text)), ` with ${percent(p)}`,
    text === before ? ", as with all heads." : `, and not ${visible(before)}.`);
}

/** A change of a probability, in points of a hundred: "−1.2" without a head that helps. */
function points(loss) {
  if (!Number.isFinite(loss)) return "";
  const size = Math.abs(100 * loss).toFixed(1);
  return size === "0.0" ? size : `${loss > 0 ? "−" : "+"}${size}`;
}

class Switches {
  constructor({ shown, store, state, stop, live }) {
    Object.assign(this, { store, state, stop, live, run: shown.run, ...shown.switches });
    this.names = layerNames(this.attentions);
    this.most = Math.max(...this.attentions.map((one) => one.heads));
    this.off = new Set(state.get("off").split(",").filter(Boolean)); // heads that are off: "layer.head"
    this.now = null; // the rows without these heads
    this.turn = 0;
    this.known = new Map(); // what was asked: heads that are off -> Promise of the rows
    this.tried = null; // of a live page: what the best word of each row keeps without each head, as far as it is known
    this.buttons = new Map(); // of the heads
    this.answer = h("section", { class: "card" });
    this.effects = h("div", {});
    this.status = h("p", { class: "reading", role: "status" });
  }

  /** The number of the row that is shown. */
  get at() {
    return this.state.index("said", this.rows.length, 0);
  }

  // What the model says

  showAnswer() {
    const { off, rows, at, run } = this, { token, likely } = rows[at], now = off.size ? this.now?.[at] : null;
    this.markButtons();
    this.answer.replaceChildren(...[
      h("h2", {}, "What it says"),
      run.task === "translate" && h("p", { class: "says" },
        "Each word, after the words of the answer that was written with all heads."),
      rows.length > 1 && this.rowButtons(),
      rowHeading(run.task, token), compare(likely, now), now && verdict(likely, now.likely),
    ].filter(Boolean));
  }

  rowButtons() {
    const button = ({ token }, i) => h("button", {
      type: "button", class: "token", dir: "auto", "aria-pressed": String(i === this.at),
      onclick: () => this.state.set({ said: i }),
    }, rowName(this.run.task, token));
    return h("div", { class: "tokens", role: "group", "aria-label": "positions" }, this.rows.map(button));
  }

  // The switches of a live page

  headsCard() {
    const every = (label, on) => tool(label, false, () => this.switchAll(on), { "aria-pressed": undefined });
    return h("section", { class: "card" }, h("h2", {}, "Heads"),
      h("p", { class: "says" },
        "A head that is switched off gives zeros to its layer. Click one, and see the answer change."),
      h("div", { class: "heads" }, this.attentions.map((_, layer) => this.layerButtons(layer))),
      h("div", { class: "tools", style: { "margin-top": ".7rem" } }, every("all on", true), every("all off", false)),
      this.status);
  }

  layerButtons(layer) {
    const buttons = Array.from({ length: this.attentions[layer].heads }, (_, head) => this.headButton(layer, head));
    return h("div", { class: "layer" },
      h("span", { class: "name", style: { width: "6.6rem" } }, this.names[layer]), h("div", { class: "row" }, buttons));
  }

  headButton(layer, head) {
    const key = `${layer}.${head}`, label = `${this.names[layer]}, head ${head + 1}`;
    const button = tool(`${head + 1}`, true, () => this.switchOne(key),
      { "aria-label": label, style: { "min-width": "2.1rem" } });
    for (const event of ["pointerenter", "focus"]) button.addEventListener(event, () => this.foresee(key));
    this.buttons.set(key, button);
    return button;
  }

  /** The heads that are off if this one is switched. */
  switched(key) {
    const off = new Set(this.off);
    if (!off.delete(key)) off.add(key);
    return off;
  }

  /** Ask for a head as soon as it is pointed at, if nothing else is asked for. */
  foresee(key) {
    clearTimeout(this.pointed);
    const off = this.switched(key);
    if (off.size) this.pointed = setTimeout(() => this.busy || this.ask(off).catch(() => {}), PAUSE);
  }

  markButtons() {
    this.buttons.forEach((button, key) => {
      button.setAttribute("aria-pressed", String(!this.off.has(key)));
      button.style.setProperty("text-decoration", this.off.has(key) ? "line-through" : "none");
    });
  }

  switchOne(key) {
    clearTimeout(this.pointed);
    this.off = this.switched(key);
    this.change();
  }

  switchAll(on) {
    this.off = new Set(on ? [] : this.buttons.keys());
    this.change();
  }

  /** Show the answer without the heads that are off now. */
  async change() {
    const mine = ++this.turn, begin = performance.now(), several = this.off.size;
    this.state.set({ off: [...this.off].join(",") });
    try {
      const now = several ? await this.ask(this.off) : null;
      if (mine !== this.turn || this.stop.aborted) return;
      this.now = now;
      const heads = `${several} ${several > 1 ? "heads" : "head"} off`;
      this.status.textContent = several ? `${heads}; shown after ${Math.round(performance.now() - begin)} ms`
        : "all heads are on";
      say(this.status.textContent);
    } catch (error) {
      this.status.textContent = error.message;
    }
    this.showAnswer();
  }

  /** The rows without the heads that are off; they are asked for once. */
  ask(several) {
    const key = [...several].sort().join(",");
    if (!this.known.has(key)) this.known.set(key, this.fetch(several));
    return this.known.get(key);
  }

  async fetch(several) {
    const off = {}, ids = this.rows.map(({ likely }) => likely.map(([, , id]) => id));
    for (const key of several) {
      const [layer, head] = key.split(".").map(Number);
      (off[this.attentions[layer].path] ??= []).push(head);
    }
    this.busy = true;
    try {
      return (await this.store.ask("off", { off, ids })).shown.rows;
    } catch (error) {
      this.known.delete([...several].sort().join(","));
      throw error;
    } finally {
      this.busy = false;
    }
  }

  // How much each head matters

  async showEffects() {
    const p = this.each ? await this.store.numbers(this.each) : this.tried;
    if (!this.stop.aborted) this.effects.replaceChildren(p ? this.effectsCard(this.losses(p)) : this.untried());
  }

  untried() {
    return h("div", {},
      h("p", { class: "note" }, "Each head alone is not tried here: there are many, or the text is long.",
        this.live ? "" : " On the live page any of them can be switched off."),
      this.live && tool("try each head alone", false, () => this.tryEach(), { "aria-pressed": undefined }));
  }

  /** Switch off one head after the other, from the last layer down, where it takes least, and fill in the figure. */
  async tryEach() {
    const { rows, buttons } = this;
    this.tried = new Float32Array(buttons.size * rows.length).fill(NaN);
    const keys = [...buttons.keys()].map((key, head) => ({ key, head })).reverse();
    for (const { key, head } of keys) {
      const now = await this.ask(new Set([key])).catch((error) => say(error.message));
      if (this.stop.aborted || !now) return;
      now.forEach(({ p: [best] }, row) => { this.tried[head * rows.length + row] = best; });
      this.showEffects();
    }
    say("each head was tried");
  }

  /** Of each head, what the best word loses without it: one row per layer, NaN where a layer has no such head. */
  losses(p) {
    const { attentions, rows, at, most } = this, [[, full]] = rows[at].likely;
    const values = new Float32Array(attentions.length * most).fill(NaN);
    let head = 0;
    attentions.forEach(({ heads }, layer) => {
      for (let i = 0; i < heads; i++) values[layer * most + i] = full - p[head++ * rows.length + at];
    });
    return values;
  }

  effectsCard(values) {
    const [[best, full]] = this.rows[this.at].likely, tell = h("p", { class: "reading" });
    const columns = Array.from({ length: this.most }, (_, i) => (this.most > 8 ? `${i + 1}` : `head ${i + 1}`));
    const figure = this.effectsFigure(values, columns, full, tell);
    return h("section", { class: "card" }, h("h2", {}, "How much each head matters here"),
      h("p", { class: "says" }, "How the probability of ", word(best),
        ` (${percent(full)}) changes, in points of a hundred, when one head is switched off. `,
        "Blue: it helps this answer; orange: it holds it down."),
      h("div", { class: "tools" }, h("span", { class: "space" }),
        saveTools(`${this.run.name}-heads`, () => figure, () => ({ values, rows: this.names, columns }))),
      h("div", { class: "scroll" }, figure), tell);
  }

  effectsFigure(values, columns, full, tell) {
    const scale = Math.max(0.01, ...[...values].filter(Number.isFinite).map(Math.abs));
    const hover = (layer, i) => {
      const loss = values[layer * this.most + i];
      if (layer < 0 || !Number.isFinite(loss)) return;
      tell.replaceChildren(`without ${this.names[layer]}, head ${i + 1}: `,
        h("b", { class: "number", "data-without": "" }, percent(full - loss)), ` instead of ${percent(full)}`);
    };
    return heat({
      rows: this.names, columns, values, scale, words: Array.from(values, points), hover, tall: 30,
      label: "how much each head matters here", cell: Math.max(34, Math.min(68, 420 / this.most)),
    });
  }
}

export function draw(root, context) {
  const { state, stop, live } = context, switches = new Switches(context), { answer, effects } = switches;
  if (live) root.append(h("div", { class: "two" }, switches.headsCard(), answer), effects);
  else root.append(h("div", { class: "pair" }, answer, effects));
  state.on((changes) => {
    if (!("said" in changes)) return;
    switches.showAnswer();
    switches.showEffects();
  }, stop);
  switches.showAnswer();
  if (live && switches.off.size) switches.change();
  return switches.showEffects();
}
