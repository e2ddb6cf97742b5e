// The answer with some heads switched off: live, any of them; in a saved page, the effect of each one alone.

import { h, percent, say, tool, visible } from "look/draw.js";
import { heat } from "look/heat.js";
import { saveTools } from "look/save.js";

export const name = "switches";
export const title = "Heads on and off";
export const has = (shown) => Boolean(shown.switches);

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
    this.buttons.set(key, button);
    return button;
  }

  markButtons() {
    this.buttons.forEach((button, key) => {
      button.setAttribute("aria-pressed", String(!this.off.has(key)));
      button.style.setProperty("text-decoration", this.off.has(key) ? "line-through" : "none");
    });
  }

  switchOne(key) {
    if (!this.off.delete(key)) this.off.add(key);
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
      const now = several ? await this.ask() : null;
      if (mine !== this.turn || this.stop.aborted) return;
      this.now = now;
      const heads = `${several} ${several > 1 ? "heads" : "head"} off`;
      this.status.textContent = several ? `${heads}; it took ${Math.round(performance.now() - begin)} ms`
        : "all heads are on";
      say(this.status.textContent);
    } catch (error) {
      this.status.textContent = error.message;
    }
    this.showAnswer();
  }

  /** The rows without the heads that are off. */
  async ask() {
    const off = {}, ids = this.rows.map(({ likely }) => likely.map(([, , id]) => id));
    for (const key of this.off) {
      const [layer, head] = key.split(".").map(Number);
      (off[this.attentions[layer].path] ??= []).push(head);
    }
    return (await this.store.ask("off", { off, ids })).shown.rows;
  }

  // How much each head matters

  async showEffects() {
    if (!this.each) return this.effects.replaceChildren(this.untried());
    const p = await this.store.numbers(this.each);
    if (!this.stop.aborted) this.effects.replaceChildren(this.effectsCard(this.losses(p)));
  }

  untried() {
    return h("p", { class: "note" }, "Each head alone is not tried here: there are many, or the text is long.",
      this.live ? "" : " On the live page any of them can be switched off.");
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
