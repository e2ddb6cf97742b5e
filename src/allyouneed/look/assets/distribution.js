// The distribution of one step as a table, with sliders for temperature, top-k and top-p.

import { count, h, percent, tool, visible } from "look/draw.js";

const KS = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000, 2000];
const PS = Array.from({ length: 101 }, (_, i) => i / 100);
const ROWS = [12, 50, 200];
const SCALES = [0.05, 0.1, 0.2, 0.5, 1];

/** A part of 1 as a percentage with two digits or more: 12.3 %, 0.058 %, < 0.0001 % */
export function fine(value) {
  const hundredths = 100 * value;
  if (value === 0 || hundredths >= 9.95) return percent(value);
  if (hundredths >= 0.0995) return `${hundredths.toFixed(2)} %`;
  if (hundredths < 0.0001) return "< 0.0001 %";
  return `${hundredths.toFixed(hundredths >= 0.00995 ? 3 : hundredths >= 0.000995 ? 4 : 5)} %`;
}

const sorted = (values) => [...new Set(values)].sort((a, b) => a - b);

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

/** The card of one step. On a live page, `goOn(token, settings)` is called with a token of the table (-1: any). */
export class Distribution {
  constructor(steps, { state, live, run, goOn }) {
    Object.assign(this, { steps, state, live, run, goOn });
    this.makeSliders();
    this.heading = h("h2", {});
    this.facts = h("p", { class: "reading" });
    this.presets = h("div", { class: "tools" });
    this.summary = h("p", { class: "reading", "aria-live": "polite" });
    this.bars = h("tbody", {});
    this.scale = h("th", { scope: "col" });
    this.more = h("div", { class: "tools" });
    this.root = this.card();
  }

  get writing() { return this.steps.writing; }

  makeSliders() {
    const { state, steps, writing: { decode, temperatures } } = this, now = this.settings();
    const ks = sorted([...KS.filter((k) => k <= steps.stored), decode.top_k, now.k]).slice(1);
    const ps = sorted([...PS, decode.top_p, now.p]), set = (key) => (value) => state.set({ [key]: value });
    this.sliders = {
      temperature: slider("temperature", temperatures, (t) => (t ? `${t}` : "0 (greedy)"), set("temperature")),
      k: slider("top-k", [...ks, 0], (k) => (k ? count(k) : "all"), set("k")),
      p: slider("top-p", ps, (p) => (p < 1 ? `${+p.toFixed(4)}` : "all"), set("p")),
    };
  }

  card() {
    const names = ["rank", "token", "before", "after"].map((one) => h("th", { scope: "col" }, one));
    return h("section", { class: "card" }, this.heading, this.facts,
      h("div", { class: "sliders" }, Object.values(this.sliders).map((one) => one.box)), this.presets, this.summary,
      h("table", { class: "dist" }, h("thead", {}, h("tr", {}, names, this.scale)), this.bars), this.more,
      this.live ? this.writeOn() : h("p", { class: "tip", "data-live-only": "" }, "The live page, ayn look "
        + `${this.run}, can write on: from another token of this list, or with other settings.`));
  }

  writeOn() {
    const seed = h("input", { type: "number", min: 0, step: 1, value: this.settings().seed, class: "seed" });
    seed.addEventListener("change", () => this.state.set({ seed: seed.value }));
    const go = tool("write on with these settings", false, () => this.choose(-1), { "aria-pressed": undefined });
    return h("div", {},
      h("p", { class: "tip" }, "Choose a token of the list, and the model writes on from it. Or let it draw this step "
        + "and all later ones anew:"),
      h("div", { class: "tools" }, go, h("label", {}, "seed ", seed)));
  }

  /** Where no slider was moved, what follows a token is written as the run writes. */
  choose(token) {
    this.goOn(token, token < 0 || this.moved ? this.settings() : undefined);
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

  /** Show a step of an answer. */
  show(steps, at) {
    this.steps = steps;
    const settings = this.settings(), found = steps.cut(at, settings);
    for (const [key, one] of Object.entries(this.sliders)) one.show(settings[key]);
    this.showPresets(settings);
    this.showFacts(at, found);
    this.summary.replaceChildren(...this.inWords(found));
    this.showTable(at, found, settings);
  }

  showPresets({ temperature, k, p }) {
    const { method, ...own } = this.writing.decode, sampled = method === "sample";
    const cuts = `${own.top_k ? `, top-k ${own.top_k}` : ""}${own.top_p < 1 ? `, top-p ${+own.top_p.toFixed(4)}` : ""}`;
    const how = {
      sample: `with temperature ${own.temperature}${cuts}`,
      beam: "with a beam search",
      greedy: "the most likely token each time",
    }[method] + (own.guidance > 1 ? `, guidance ${own.guidance}` : "");
    const preset = (label, on, changes) => tool(label, on, () => this.state.set(changes));
    const asRun = { temperature: sampled ? "" : 0, k: "", p: "" };
    this.presets.replaceChildren(
      method === "beam" ? "" : preset("as the run writes", sampled ? !this.moved : !temperature, asRun),
      preset("the model's own", temperature === 1 && !k && p >= 1, { temperature: 1, k: 0, p: 1 }),
      h("span", { class: "soft-text" }, `the run writes ${how}`));
  }

  /** Which step it is, and how sure the model was of its token. */
  showFacts(at, { was }) {
    const { tokens, prompt, vocab, ranks } = this.writing;
    const given = at < prompt ? h("small", {}, " given, not written") : "";
    const word = h("span", { class: "number chosen", dir: "auto" }, visible(this.steps.word(tokens[at])));
    this.heading.replaceChildren(`Step ${at + 1} of ${tokens.length}: `, word, given);
    const fact = (label, value) => {
      return h("span", { class: "fact" }, `${label} `, h("b", { class: "number", [`data-${label}`]: "" }, value));
    };
    this.facts.replaceChildren(fact("probability", fine(this.steps.own[at])),
      fact("rank", `${count(ranks[at] + 1)} of ${count(vocab)}`), fact("entropy", `${was.entropy.toFixed(3)} bits`));
  }

  /** How many tokens are kept. */
  inWords({ was, now, kept, entropy }) {
    const { vocab } = this.writing, { stored } = this.steps, number = (text) => h("b", { "data-count": "" }, text);
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

  showTable(at, found, settings) {
    const { was, now, kept } = found, { stored } = this.steps, rank = this.writing.ranks[at];
    this.most = SCALES.find((one) => one >= Math.max(was.parts[0], now?.[0] ?? 0)) ?? 1;
    this.scale.textContent = `bars from 0 to ${Math.round(100 * this.most)} %`;
    const asked = this.state.index("rows", stored + 1), most = Math.min(asked > 0 ? asked : ROWS[0], stored);
    const rows = this.rows(at, most, found, settings);
    const shown = rows.map((row) => this.row(row, row.rank < kept || !now, row.rank === rank));
    this.bars.replaceChildren(...shown, this.remainder(rows, found));
    this.showSizes(most);
  }

  /** How many rows the table may have. */
  showSizes(most) {
    const { stored } = this.steps;
    const sizes = sorted([...ROWS.filter((one) => one < stored), Math.min(stored, ROWS.at(-1))]);
    const size = (one) => tool(`${one}`, one === most, () => this.state.set({ rows: one }));
    this.more.replaceChildren(...(sizes.length > 1 ? ["show the first", ...sizes.map(size)] : []));
  }

  /** The first tokens, and the chosen one, whose logit is known even if it is not among the stored ones. */
  rows(at, most, { was, now, kept }, { temperature }) {
    const { tokens, ranks, vocab } = this.writing, rank = ranks[at];
    const rows = Array.from(this.steps.each[at].ids.subarray(0, most), (id, i) => {
      return { id, rank: i, was: was.parts[i], now: now && now[i] };
    });
    if (rank < most) return rows;
    const left = kept === vocab ? this.steps.probability(at, temperature) : now?.[rank] ?? 0;
    return [...rows, { id: tokens[at], rank, was: this.steps.own[at], now: now && left }];
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

  row({ id, rank, was, now }, kept, chosen) {
    const bar = (value, kind) => {
      return h("span", { class: `bar-${kind}`, style: { width: `${(100 * value / this.most).toFixed(2)}%` } });
    };
    const given = { "data-id": id, title: "write on from this token", onclick: () => this.choose(id) };
    const word = visible(this.steps.word(id)), token = this.live
      ? h("button", { type: "button", class: "token", dir: "auto", ...given }, word)
      : h("span", { class: "word", dir: "auto" }, word);
    return h("tr", { class: `${kept ? "kept" : "cut"}${chosen ? " chosen" : ""}` },
      h("td", { class: "number" }, count(rank + 1)),
      h("td", { class: "text" }, this.steps.drawing?.patch(id), token,
        chosen && h("small", { class: "mark" }, "chosen")),
      h("td", { class: "number", "data-was": "" }, fine(was)),
      h("td", { class: "number", "data-now": "" }, now === null ? "—" : kept ? fine(now) : "cut"),
      h("td", { class: "both" }, bar(was, "was"), bar(now ?? 0, "now")));
  }
}
