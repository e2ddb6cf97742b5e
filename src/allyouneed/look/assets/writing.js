// How a text is written: the distribution from which each token was chosen, what temperature, top-k and top-p leave of
// it, and the tree of a beam search.

import { reading, tree } from "look/beams.js";
import { colour, count, h, isSpecial, percent, say, tool, visible } from "look/draw.js";
import { saveTools } from "look/save.js";

export const name = "writing";
export const title = "Writing";
export const has = (shown) => Boolean(shown.writing);

const FINE = 2 ** 24, WHOLE = 2 ** 38; // as in decode/sample.py, whose integers these are
const KS = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000, 2000];
const PS = Array.from({ length: 101 }, (_, i) => i / 100);
const ROWS = [12, 50, 200];
const SCALES = [0.05, 0.1, 0.2, 0.5, 1];

/** The softmax at one of the `temperatures`: `logits` are the largest, sorted, of `vocab`; `others` holds, for each
 * temperature, the log of Σ exp(x) and the mean x of all others, where x = (logit - best) / temperature. */
function softmax({ logits, others, vocab }, temperatures, temperature) {
  const at = 2 * temperatures.indexOf(temperature), rest = logits.length === vocab ? 0 : Math.exp(others[at]);
  const x = Float64Array.from(logits, (logit) => (logit - logits[0]) / temperature);
  const powers = x.map(Math.exp);
  const sum = powers.reduce((a, b) => a + b, rest);
  const whole = x.reduce((a, one, i) => a + (powers[i] ? one * powers[i] : 0), rest ? rest * others[at + 1] : 0);
  const entropy = (Math.log(sum) - whole / sum) / Math.LN2;
  return { parts: powers.map((one) => one / sum), rest: rest / sum, entropy, sum };
}

/** What temperature, top-k and top-p leave of a step, as decode/sample.py does it: `was` is the model's distribution,
 * `now` what is drawn from. Where the cut lies among tokens that are not stored, `now` is null, and at least `kept` are
 * left. */
export function cut(step, temperatures, { temperature, k, p }) {
  const { logits, vocab } = step, stored = logits.length, was = softmax(step, temperatures, 1);
  if (!temperature) return { was, now: was.parts.map((_, i) => +(i === 0)), rest: 0, kept: 1, entropy: 0 };
  const whole = softmax(step, temperatures, temperature);
  if (!k && p >= 1) return { was, now: whole.parts, rest: whole.rest, kept: vocab, entropy: whole.entropy };
  const weights = whole.parts.map((one, i) => (k && i >= k ? 0 : Math.floor(Math.fround(one) * WHOLE)));
  const sum = weights.reduce((a, b) => a + b, 0), rest = Math.floor(whole.rest * WHOLE);
  const share = Math.floor(Math.fround(p) * FINE);
  const keeps = (total) => {
    const enough = Math.max(1, Number((BigInt(share) * BigInt(total)) >> 24n)), most = k || stored;
    let kept = 0;
    for (let passed = 0; kept < Math.min(most, stored) && passed < enough; kept++) passed += weights[kept];
    return kept;
  };
  // Of tokens that are not stored all take part, or none, or, if top-k ends among them, an unknown part.
  const kept = keeps(k && k < vocab ? sum : sum + rest);
  const sure = stored === vocab || (k && k <= stored) || (kept < stored && kept === keeps(sum + rest));
  if (!sure) return { was, now: null, rest: null, kept, entropy: null };
  const left = weights.subarray(0, kept).reduce((a, b) => a + b, 0);
  const now = weights.map((one, i) => (i < kept ? one / left : 0));
  return { was, now, rest: 0, kept, entropy: now.reduce((a, q) => a - (q > 0 ? q * Math.log2(q) : 0), 0) };
}

/** A part of 1 as a percentage with two digits or more: 12.3 %, 0.058 %, < 0.0001 % */
function fine(value) {
  const hundredths = 100 * value;
  if (value === 0 || hundredths >= 9.95) return percent(value);
  if (hundredths >= 0.0995) return `${hundredths.toFixed(2)} %`;
  if (hundredths < 0.0001) return "< 0.0001 %";
  return `${hundredths.toFixed(hundredths >= 0.00995 ? 3 : hundredths >= 0.000995 ? 4 : 5)} %`;
}

const sorted = (values) => [...new Set(values)].sort((a, b) => a - b);
const button = (label, click) => tool(label, false, click, { "aria-pressed": undefined });

/** A slider over a list of values, with its name and its value in words. */
function slider(label, values, words, set) {
  const shown = h("output", { class: "number" });
  const input = h("input", { type: "range", min: 0, max: values.length - 1, step: 1, "aria-label": label });
  input.addEventListener("input", () => set(values[Number(input.value)]));
  const show = (value) => {
    input.value = Math.max(0, values.indexOf(value));
    shown.textContent = words(value);
    input.setAttribute("aria-valuetext", words(value));
  };
  return { box: h("label", { class: "slider" }, h("span", {}, label, " ", shown), input), show };
}

class Written {
  constructor(root, context) {
    Object.assign(this, context);
    this.root = root;
    this.problem = "";
  }

  /** The store that is shown: of the answer of the run, or of one that was written on. */
  get now() { return this.store.other ?? this.store; }

  async load() {
    const { writing } = this.now.shown;
    const numbers = await Promise.all(["ids", "logits", "others"].map((one) => this.now.numbers(writing[one])));
    [this.ids, this.logits, this.others] = numbers;
    this.writing = writing;
    this.steps = writing.tokens.map((_, i) => this.step(i));
    this.own = this.steps.map((_, i) => this.probability(i, 1));
  }

  step(at) {
    const { vocab, temperatures, ids: { shape: [, size] } } = this.writing, wide = 2 * temperatures.length;
    const row = (values, width) => values.subarray(at * width, (at + 1) * width);
    return { ids: row(this.ids, size), logits: row(this.logits, size), others: row(this.others, wide), vocab };
  }

  word(id) { return this.writing.names[id]; }

  /** The probability of the token of a step, at a temperature. */
  probability(at, temperature) {
    const step = this.steps[at], { sum } = softmax(step, this.writing.temperatures, temperature);
    return Math.exp((this.writing.own[at] - step.logits[0]) / temperature) / sum;
  }

  /** What the sliders say; untouched, how the run samples or, if it does not, the model's own distribution. */
  settings() {
    const { decode, temperatures } = this.writing;
    const own = decode.method === "sample" ? decode : { temperature: 1, top_k: 0, top_p: 1 };
    const given = (key, otherwise) => {
      const text = this.state.get(key), value = Number(text);
      return text === "" || !Number.isFinite(value) || value < 0 ? otherwise : value;
    };
    const temperature = given("temperature", own.temperature);
    return {
      temperature: temperatures.includes(temperature) ? temperature : own.temperature,
      k: Math.round(given("k", own.top_k)),
      p: Math.min(1, given("p", own.top_p)),
      seed: Math.round(given("seed", decode.seed)),
    };
  }

  get moved() { return ["temperature", "k", "p"].some((key) => this.state.get(key) !== ""); }

  get at() {
    const { tokens, prompt } = this.writing, at = this.state.index("step", tokens.length);
    return at < 0 ? Math.min(prompt, tokens.length - 1) : at;
  }

  draw() {
    const { writing, state } = this;
    const label = "the tokens as they were written";
    this.words = h("div", { class: "tokens", role: "group", "aria-label": label, dir: "auto" });
    this.notes = h("div", {});
    this.root.append(
      h("section", { class: "card" },
        h("h2", {}, writing.translates ? "The translation, token by token" : "The text, token by token"),
        h("p", { class: "says" }, "Choose a token to see what the model thought at that step. The stronger the line "
          + "under a token, the surer the model was of it. A dot · is a space."),
        writing.translates && [h("h3", {}, "source"), this.fixed(writing.before), h("h3", {}, "answer")],
        this.words, this.notes),
      this.distribution());
    if (this.store.shown.beams) this.root.append(this.beams = h("section", { class: "card" }));
    state.on((changes) => "view" in changes || ("node" in changes ? this.showBeams() : this.show()), this.stop);
    this.show();
    if (this.beams) this.showBeams();
  }

  /** The card of one step. */
  distribution() {
    const { writing: { decode, temperatures, ids }, state } = this, now = this.settings();
    const ks = sorted([...KS.filter((k) => k <= ids.shape[1]), decode.top_k, now.k]).slice(1);
    const ps = sorted([...PS, decode.top_p, now.p]), set = (key) => (value) => state.set({ [key]: value });
    this.sliders = {
      temperature: slider("temperature", temperatures, (t) => (t ? `${t}` : "0 (greedy)"), set("temperature")),
      k: slider("top-k", [...ks, 0], (k) => (k ? count(k) : "all"), set("k")),
      p: slider("top-p", ps, (p) => (p < 1 ? `${+p.toFixed(4)}` : "all"), set("p")),
    };
    this.heading = h("h2", {});
    this.facts = h("p", { class: "reading" });
    this.presets = h("div", { class: "tools" });
    this.summary = h("p", { class: "reading", "aria-live": "polite" });
    this.bars = h("tbody", {});
    this.scale = h("th", { scope: "col" });
    this.more = h("div", { class: "tools" });
    const names = ["rank", "token", "before", "after"].map((one) => h("th", { scope: "col" }, one));
    return h("section", { class: "card" }, this.heading, this.facts,
      h("div", { class: "sliders" }, Object.values(this.sliders).map((one) => one.box)), this.presets, this.summary,
      h("table", { class: "dist" }, h("thead", {}, h("tr", {}, names, this.scale)), this.bars), this.more,
      this.live ? this.writeOn() : h("p", { class: "tip", "data-live-only": "" }, "The live page, ayn look "
        + `${this.store.shown.run.name}, can write on: from another token of this list, or with other settings.`));
  }

  writeOn() {
    const set = () => this.state.set({ seed: seed.value });
    const value = this.settings().seed, go = button("write on with these settings", () => this.goOn(-1));
    const seed = h("input", { type: "number", min: 0, step: 1, value, class: "seed", onchange: set });
    return h("div", {},
      h("p", { class: "tip" }, "Choose a token of the list, and the model writes on from it. Or let it draw this step "
        + "and all later ones anew:"),
      h("div", { class: "tools" }, go, h("label", {}, "seed ", seed)));
  }

  /** Ask the server to write from the chosen step on, beginning with `token` (-1: any). Where no slider was moved, what
   * follows a token is written as the run writes. */
  async goOn(token) {
    const { temperature, k, p, seed } = this.settings(), { at, writing } = this;
    const word = token < 0 ? "" : this.word(token), chosen = { temperature, top_k: k, top_p: p, seed };
    const query = { step: at, token, ...(token < 0 || this.moved ? chosen : {}) };
    say("writing");
    this.root.setAttribute("aria-busy", "true");
    let step = at;
    try {
      const other = await this.now.ask("write on", query);
      step = at < writing.prompt ? other.shown.writing.prompt : at;
      this.store.other = Object.assign(other, { word, step });
      this.problem = "";
      await this.load();
    } catch (error) {
      this.problem = error.message;
    }
    this.root.removeAttribute("aria-busy");
    say(this.problem || "written");
    if (!this.stop.aborted) this.state.set({ step });
  }

  async goBack() {
    this.store.other = undefined;
    this.problem = "";
    await this.load();
    this.show();
  }

  show() {
    const settings = this.settings(), { sliders, at } = this;
    for (const [key, one] of Object.entries(sliders)) one.show(settings[key]);
    this.showPresets(settings);
    this.showText(at);
    this.showStep(at, cut(this.steps[at], this.writing.temperatures, settings), settings);
  }

  showPresets({ temperature, k, p }) {
    const { method, ...own } = this.writing.decode, sampled = method === "sample";
    const cuts = `${own.top_k ? `, top-k ${own.top_k}` : ""}${own.top_p < 1 ? `, top-p ${+own.top_p.toFixed(4)}` : ""}`;
    const how = {
      sample: `with temperature ${own.temperature}${cuts}`,
      beam: "with a beam search",
      greedy: "the most likely token each time",
    }[method];
    const preset = (label, on, changes) => tool(label, on, () => this.state.set(changes));
    const asRun = { temperature: sampled ? "" : 0, k: "", p: "" };
    this.presets.replaceChildren(
      method === "beam" ? "" : preset("as the run writes", sampled ? !this.moved : !temperature, asRun),
      preset("the model's own", temperature === 1 && !k && p >= 1, { temperature: 1, k: 0, p: 1 }),
      h("span", { class: "soft-text" }, `the run writes ${how}`));
  }

  fixed(tokens, title) {
    const one = (token) => h("span", { class: "token special fixed", dir: "auto", title }, visible(token));
    return h("div", { class: "tokens", dir: "auto" }, tokens.map(one));
  }

  showText(at) {
    const { writing } = this, last = writing.tokens.length - 1;
    const focused = this.words.contains(document.activeElement);
    const buttons = writing.tokens.map((id, i) => {
      const word = this.word(id), given = i < writing.prompt, probability = fine(this.own[i]);
      return h("button", {
        type: "button", class: `token${given ? " given" : ""}${isSpecial(word) ? " special" : ""}`, dir: "auto",
        title: probability, style: { "border-bottom": `4px solid ${colour(this.own[i])}` },
        "aria-label": `${visible(word)}, probability ${probability}${given ? ", given" : ""}`,
        "aria-pressed": String(i === at), tabindex: i === at ? 0 : -1,
        onclick: () => this.state.set({ step: i }),
        onkeydown: (event) => {
          const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: last }[event.key];
          if (next === undefined) return;
          event.preventDefault();
          this.state.set({ step: Math.min(last, Math.max(0, next)) });
        },
      }, visible(word));
    });
    const read = writing.translates ? [] : this.fixed(writing.before, "read, but not predicted").childNodes;
    this.words.replaceChildren(...read, ...buttons);
    if (focused) buttons[at].focus();
    this.showNotes();
  }

  showNotes() {
    const { writing, problem, store: { other } } = this, notes = [], tip = (text) => h("p", { class: "tip" }, text);
    if (other) {
      const word = other.word && h("b", { class: "number", dir: "auto" }, visible(other.word), " ");
      const how = [`written ${word ? "on from " : "anew"} `, word, `at step ${other.step + 1} `];
      notes.push(h("p", { class: "note" }, how, button("back to the run's answer", () => this.goBack())));
    }
    if (problem) notes.push(h("p", { class: "note", role: "alert", dir: "auto" }, problem));
    if (writing.left_out) notes.push(tip(`${count(writing.left_out)} more tokens follow, which are not shown here.`));
    if (writing.reason === "length") notes.push(tip("It ended at the largest length, not with an end token."));
    this.notes.replaceChildren(...notes);
  }

  showStep(at, found, { temperature }) {
    const { was, now, kept } = found, { tokens, prompt, vocab, ranks, ids } = this.writing, rank = ranks[at];
    const given = at < prompt ? h("small", {}, " given, not written") : "";
    const word = h("span", { class: "number chosen", dir: "auto" }, visible(this.word(tokens[at])));
    this.heading.replaceChildren(`Step ${at + 1} of ${tokens.length}: `, word, given);
    const fact = (label, value) => {
      return h("span", { class: "fact" }, `${label} `, h("b", { class: "number", [`data-${label}`]: "" }, value));
    };
    this.facts.replaceChildren(fact("probability", fine(this.own[at])),
      fact("rank", `${count(rank + 1)} of ${count(vocab)}`), fact("entropy", `${was.entropy.toFixed(3)} bits`));
    this.summary.replaceChildren(...this.inWords(found));
    this.most = SCALES.find((one) => one >= Math.max(was.parts[0], now?.[0] ?? 0)) ?? 1;
    this.scale.textContent = `bars from 0 to ${Math.round(100 * this.most)} %`;
    const stored = ids.shape[1], asked = this.state.index("rows", stored + 1);
    const most = Math.min(asked > 0 ? asked : ROWS[0], stored);
    // The chosen token has a row, too; its logit is known even if it is not among the stored ones.
    const left = kept === vocab ? this.probability(at, temperature) : now?.[rank] ?? 0;
    const chosen = { id: tokens[at], rank, was: this.own[at], now: now && left };
    const rows = Array.from(this.steps[at].ids.subarray(0, most), (id, i) => {
      return { id, rank: i, was: was.parts[i], now: now && now[i] };
    });
    if (rank >= most) rows.push(chosen);
    const shown = rows.map((row) => this.row(row, row.rank < kept || !now, row.rank === rank));
    this.bars.replaceChildren(...shown, this.remainder(rows, found));
    const sizes = sorted([...ROWS.filter((one) => one < stored), Math.min(stored, ROWS.at(-1))]);
    const size = (one) => tool(`${one}`, one === most, () => this.state.set({ rows: one }));
    this.more.replaceChildren(...(sizes.length > 1 ? ["show the first", ...sizes.map(size)] : []));
  }

  /** What the tokens have together that have no row. */
  remainder(rows, { was, now, rest }) {
    const left = this.writing.vocab - rows.length, shown = (key) => rows.reduce((sum, row) => sum + row[key], 0);
    const sum = (parts, beyond, key) => {
      const rest = parts.reduce((a, b) => a + b, beyond) - shown(key);
      return h("td", { class: "number" }, fine(rest < 1e-12 ? 0 : rest));
    };
    if (!left) return "";
    return h("tr", { class: "rest" },
      h("td", {}), h("td", { class: "text" }, `${count(left)} ${left === 1 ? "other" : "others"}`),
      sum(was.parts, was.rest, "was"), now ? sum(now, rest, "now") : h("td", { class: "number" }, "—"), h("td", {}));
  }

  /** How many tokens are kept. */
  inWords({ was, now, kept, entropy }) {
    const { vocab, ids: { shape: [, stored] } } = this.writing, number = (text) => h("b", { "data-count": "" }, text);
    const of = ` of ${count(vocab)} tokens ${kept === 1 ? "is" : "are"} kept`;
    if (!now) {
      return [number(kept < stored ? `at least ${count(kept)}` : `more than ${count(stored)}`), of,
        `: the cut lies beyond the ${count(stored)} that this page has, so the new probabilities are not known here`];
    }
    const share = was.parts.reduce((sum, one, i) => sum + (i < kept ? one : 0), 0);
    const some = [number(count(kept)), of, ", to which the model gives ", percent(share)];
    const all = kept === vocab ? [number(`all ${count(vocab)}`), " tokens are kept"] : some;
    const bits = h("span", { class: "number", "data-left-entropy": "" }, `${entropy.toFixed(3)} bits`);
    return [...all, "; entropy of what is kept: ", bits];
  }

  row({ id, rank, was, now }, kept, chosen) {
    const bar = (value, kind) => {
      return h("span", { class: `bar-${kind}`, style: { width: `${(100 * value / this.most).toFixed(2)}%` } });
    };
    const given = { "data-id": id, title: "write on from this token", onclick: () => this.goOn(id) };
    const word = visible(this.word(id)), token = this.live
      ? h("button", { type: "button", class: "token", dir: "auto", ...given }, word)
      : h("span", { class: "word", dir: "auto" }, word);
    return h("tr", { class: `${kept ? "kept" : "cut"}${chosen ? " chosen" : ""}` },
      h("td", { class: "number" }, count(rank + 1)),
      h("td", { class: "text" }, token, chosen && h("small", { class: "mark" }, "chosen")),
      h("td", { class: "number", "data-was": "" }, fine(was)),
      h("td", { class: "number", "data-now": "" }, now === null ? "—" : kept ? fine(now) : "cut"),
      h("td", { class: "both" }, bar(was, "was"), bar(now ?? 0, "now")));
  }

  showBeams() {
    const { beams, run } = this.store.shown, asked = this.state.index("node", beams.nodes.length);
    const chosen = asked < 0 ? beams.winner : asked, choose = (node) => this.state.set({ node });
    const read = h("p", { class: "reading branch-read" });
    const scrolled = this.beams.querySelector(".scroll")?.scrollLeft ?? 0;
    const focused = this.beams.contains(document.activeElement) && document.activeElement.dataset.node;
    const figure = tree(beams, chosen, choose, (at) => read.replaceChildren(...reading(beams, at)));
    const divisor = beams.penalty === "gnmt" ? `((5 + n) / 6)^${beams.alpha}` : `n^${beams.alpha}`;
    const kinds = Object.entries({ wins: "the answer", ended: "finished", pruned: "dropped" });
    const legend = kinds.map(([kind, words]) => h("span", { class: `legend ${kind}` }, words));
    this.beams.replaceChildren(
      h("h2", {}, `Beam search, ${beams.beam} hypotheses at a time`),
      h("p", { class: "says" }, "Each column is a step, the likeliest hypothesis at the top, with the log-probability "
        + "of all its tokens. A finished one has a score, its log-probability divided by "
        + `${divisor} for n tokens: the best score is the answer.`),
      h("div", { class: "tools" }, legend, h("span", { class: "space" }), saveTools(`${run.name}-beams`, () => figure)),
      read, h("div", { class: "scroll" }, figure));
    this.beams.querySelector(".scroll").scrollLeft = scrolled;
    if (focused) figure.querySelector(`[data-node="${focused}"]`)?.focus();
  }
}

export async function draw(root, context) {
  const written = new Written(root, context);
  await written.load();
  if (!context.stop.aborted) written.draw();
}
