// How a text is written: the distribution from which each token was chosen, what temperature, top-k and top-p leave of
// it, and the tree of a beam search.

import { reading, tree } from "look/beams.js";
import { colour, count, h, isSpecial, percent, say, tool, visible } from "look/draw.js";
import { saveTools } from "look/save.js";
import { continuedStore } from "look/store.js";

export const name = "writing";
export const title = "Writing";
export const has = (shown) => Boolean(shown.writing);

const FINE = 2 ** 24, WHOLE = 2 ** 38; // as in decode/sample.py, whose integers these are
const KS = [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1000, 2000];
const ROWS = [12, 50, 200];
const ROUND = Math.fround;

/** What is left of a step. `logits` are the largest, sorted, of `vocab`; `others` gives, at each temperature, the log of
 * Σ exp(x) of those that are not stored and the mean of their x = (logit - best) / temperature. `now` is null where the
 * cut lies among these: then what is left cannot be known here. */
export function left({ logits, others, vocab }, temperatures, { temperature, k, p }) {
  const all = logits.length === vocab, best = logits[0];
  const softmax = (t) => {
    const x = Float64Array.from(logits, (logit) => (logit - best) / t), at = temperatures.indexOf(t);
    const beyond = all ? 0 : Math.exp(others[2 * at]), powers = x.map(Math.exp), sum = powers.reduce((a, b) => a + b, beyond);
    const mean = x.reduce((a, one, i) => a + (powers[i] ? one * powers[i] : 0), beyond ? beyond * others[2 * at + 1] : 0) / sum;
    return { parts: powers.map((one) => one / sum), beyond: beyond / sum, entropy: (Math.log(sum) - mean) / Math.LN2 };
  };
  const was = softmax(1), whole = temperature > 0 ? softmax(temperature) : null;
  if (!whole) return { was, now: was.parts.map((_, i) => +(i === 0)), beyond: 0, kept: 1, entropy: 0 };
  if (!k && p >= 1) return { was, now: whole.parts, beyond: whole.beyond, kept: vocab, entropy: whole.entropy };
  const weights = whole.parts.map((one, i) => (k && i >= k ? 0 : Math.floor(ROUND(one) * WHOLE)));
  const hidden = !k || k >= vocab ? Math.floor(whole.beyond * WHOLE) : 0; // of those that are not stored
  const total = weights.reduce((a, b) => a + b, hidden);
  const enough = Math.max(1, Number((BigInt(Math.floor(ROUND(p) * FINE)) * BigInt(total)) >> 24n));
  let passed = 0, kept = 0, sum = 0;
  for (const weight of weights) {
    if (passed >= enough || (k && kept >= k)) break;
    passed += weight;
    kept += 1;
    sum += weight;
  }
  if (kept === weights.length && !all && (!k || k > kept)) return { was, now: null, beyond: null, kept: Infinity, entropy: null };
  const now = weights.map((weight, i) => (i < kept ? weight / sum : 0));
  return { was, now, beyond: 0, kept, entropy: now.reduce((a, q) => a - (q > 0 ? q * Math.log2(q) : 0), 0) };
}

/** A slider over a list of values, with its name and its value in words. */
function slider(name, values, value, words, set) {
  const at = Math.max(0, values.indexOf(value)), shown = h("output", { class: "number" }, words(values[at]));
  const input = h("input", { type: "range", min: 0, max: values.length - 1, step: 1, value: at, "aria-label": name, "aria-valuetext": words(values[at]) });
  input.addEventListener("input", () => set(values[Number(input.value)]));
  return {
    box: h("label", { class: "slider" }, h("span", {}, name, " ", shown), input),
    show(now) {
      input.value = Math.max(0, values.indexOf(now));
      shown.textContent = words(now);
      input.setAttribute("aria-valuetext", words(now));
    },
  };
}

const sorted = (values) => [...new Set(values)].sort((a, b) => a - b);

/** A part of 1 as a percentage with two digits or more: 12.3 %, 0.058 %, < 0.0001 % */
function fine(value) {
  const hundredths = 100 * value;
  if (value === 0 || hundredths >= 9.95) return percent(value);
  if (hundredths >= 0.0995) return `${hundredths.toFixed(2)} %`;
  return hundredths < 0.0001 ? "< 0.0001 %" : `${hundredths.toFixed(hundredths >= 0.00995 ? 3 : hundredths >= 0.000995 ? 4 : 5)} %`;
}

class Written {
  constructor(root, context) {
    Object.assign(this, context);
    this.root = root;
    this.first = this.store;
  }

  /** The store that is shown: of the answer of the run, or of one that was continued. */
  get now() { return this.first.branch ?? this.first; }

  async load() {
    const { writing } = this.now.shown, numbers = await Promise.all(["ids", "logits", "others"].map((one) => this.now.numbers(writing[one])));
    [this.ids, this.logits, this.others] = numbers;
    this.writing = writing;
  }

  step(at) {
    const [, size] = this.writing.ids.shape, wide = 2 * this.writing.temperatures.length;
    return { ids: this.ids.subarray(at * size, (at + 1) * size), logits: this.logits.subarray(at * size, (at + 1) * size), others: this.others.subarray(at * wide, (at + 1) * wide), vocab: this.writing.vocab };
  }

  word(id) { return this.writing.names[id]; }

  /** What the sliders say; untouched, what the run says, but of a greedy run the model's own distribution. */
  settings() {
    const { decode, temperatures } = this.writing, own = decode.method === "sample" ? decode : { temperature: 1, top_k: 0, top_p: 1 };
    const given = (key, otherwise) => { const text = this.state.get(key), value = Number(text); return text === "" || !Number.isFinite(value) || value < 0 ? otherwise : value; };
    const temperature = given("temperature", own.temperature);
    return {
      temperature: temperatures.includes(temperature) ? temperature : own.temperature,
      k: Math.round(given("k", own.top_k)), p: Math.min(1, given("p", own.top_p)), seed: Math.round(given("seed", decode.seed)),
    };
  }

  get moved() { return ["temperature", "k", "p"].some((key) => this.state.get(key) !== ""); }

  get at() {
    const { tokens, prompt } = this.writing, at = this.state.index("step", tokens.length);
    return at < 0 ? Math.min(prompt, tokens.length - 1) : at;
  }

  draw() {
    const { temperatures, ids, decode } = this.writing, [, stored] = ids.shape, set = (changes) => this.state.set(changes), now = this.settings();
    const ks = sorted([...KS.filter((k) => k <= stored), decode.top_k, now.k]).sort((a, b) => (a || Infinity) - (b || Infinity));
    const ps = sorted([...Array.from({ length: 101 }, (_, i) => i / 100), decode.top_p, now.p]);
    this.sliders = [
      [slider("temperature", temperatures, now.temperature, (t) => (t ? `${t}` : "0 (greedy)"), (temperature) => set({ temperature })), "temperature"],
      [slider("top-k", ks, now.k, (k) => (k ? `${k}` : "all"), (k) => set({ k })), "k"],
      [slider("top-p", ps, now.p, (p) => (p < 1 ? `${+p.toFixed(4)}` : "all"), (p) => set({ p })), "p"],
    ];
    this.words = h("div", { class: "tokens", role: "group", "aria-label": "the tokens as they were written", dir: "auto" });
    this.notes = h("div", {});
    this.facts = h("p", { class: "reading", "data-facts": "" });
    this.summary = h("p", { class: "reading", "data-kept": "", "aria-live": "polite" });
    this.bars = h("tbody", {});
    this.more = h("div", { class: "tools" });
    this.seed = h("input", { type: "number", min: 0, step: 1, value: now.seed, "aria-label": "seed", class: "seed", onchange: () => set({ seed: this.seed.value }) });
    this.presets = h("div", { class: "tools" });
    this.source = this.writing.translates && h("div", { class: "source" }, h("h3", {}, "source"), h("div", { class: "tokens", dir: "auto" }, this.writing.before.map((token) => h("span", { class: "token special fixed", dir: "auto" }, visible(token)))), h("h3", {}, "answer"));
    this.root.append(
      h("section", { class: "card" }, h("h2", {}, this.writing.translates ? "The translation, token by token" : "The text, token by token"),
        h("p", { class: "says" }, "Choose a token to see what the model thought at that step. The stronger the line under a token, the surer the model was of it. A dot · is a space."),
        this.source || "", this.words, this.notes),
      h("section", { class: "card" }, this.heading = h("h2", {}), this.facts,
        h("div", { class: "sliders" }, this.sliders.map(([one]) => one.box)), this.presets, this.summary,
        h("div", { class: "scroll" }, h("table", { class: "dist" },
          h("thead", {}, h("tr", {}, ["rank", "token", "before", "after"].map((one) => h("th", { scope: "col" }, one)), this.scale = h("th", { scope: "col" }))), this.bars)),
        this.more, this.live ? this.writeOn() : h("p", { class: "tip", "data-live-only": "" }, "On the live page (ayn look ", this.first.shown.run.name, ") a token of this list can be chosen instead, and the model writes on from it.")));
    if (this.first.shown.beams) this.root.append(this.beams = h("section", { class: "card" }));
    this.state.on((changes) => "view" in changes || this.show(), this.stop);
    this.show();
  }

  writeOn() {
    return h("div", {}, h("p", { class: "tip" }, "Choose a token of the list: the model writes on from it."),
      h("div", { class: "tools" }, tool("write on from this step", false, () => this.goOn(-1, true), { "aria-pressed": undefined }), h("label", {}, "seed ", this.seed)));
  }

  /** Ask the server to write from the chosen step on, beginning with `token`; with the settings of the sliders. */
  async goOn(token, sampled) {
    const { temperature, k, p, seed } = this.settings(), at = this.at;
    const query = { step: at, token, ...(sampled || this.moved ? { temperature, top_k: k, top_p: p, seed } : {}) };
    say("writing");
    this.root.setAttribute("aria-busy", "true");
    try {
      this.first.branch = await continuedStore(this.run, this.now.key, query);
      this.first.branch.at = Math.min(at, this.first.branch.shown.writing.prompt + at);
      this.first.branch.word = token >= 0 ? this.word(token) : "";
      await this.load();
      this.problem = "";
    } catch (error) {
      this.problem = error.message;
    }
    this.root.removeAttribute("aria-busy");
    say(this.problem || "written");
    if (!this.stop.aborted) this.show();
  }

  async goBack() {
    this.first.branch = undefined;
    this.problem = "";
    await this.load();
    this.show();
  }

  show() {
    const settings = this.settings(), at = this.at;
    this.sliders.forEach(([one, key]) => one.show(settings[key]));
    const sampled = this.writing.decode.method === "sample", greedy = this.writing.decode.method === "greedy";
    this.presets.replaceChildren(
      sampled || greedy ? tool("as the run writes", sampled ? !this.moved : settings.temperature === 0, () => this.state.set({ temperature: sampled ? "" : 0, k: "", p: "" })) : "",
      tool("the model's own", settings.temperature === 1 && !settings.k && settings.p >= 1, () => this.state.set({ temperature: 1, k: 0, p: 1 })),
      h("span", { class: "soft-text" }, `the run writes ${this.how()}`));
    this.showText(at);
    this.showStep(at, left(this.step(at), this.writing.temperatures, settings), settings);
    if (this.beams) this.showBeams();
  }

  how() {
    const { method, temperature, top_k, top_p } = this.writing.decode;
    if (method !== "sample") return method === "beam" ? "with a beam search" : "greedily: always the most likely token";
    return `with temperature ${temperature}${top_k ? `, top-k ${top_k}` : ""}${top_p < 1 ? `, top-p ${+top_p.toFixed(4)}` : ""}`;
  }

  showText(at) {
    const { writing } = this, focused = this.words.contains(document.activeElement);
    const fixed = writing.translates ? [] : writing.before.map((token) => h("span", { class: "token special fixed", dir: "auto", title: "the first tokens are not predicted" }, visible(token)));
    const buttons = writing.tokens.map((id, i) => {
      const p = this.probability(i), word = this.word(id);
      return h("button", {
        type: "button", class: `token${i < writing.prompt ? " given" : ""}${isSpecial(word) ? " special" : ""}`, dir: "auto", "aria-pressed": String(i === at), tabindex: i === at ? 0 : -1,
        style: { "border-bottom": `4px solid ${colour(p)}` }, title: `${fine(p)}`, "aria-label": `${visible(word)}, probability ${fine(p)}${i < writing.prompt ? ", given" : ""}`,
        onclick: () => this.state.set({ step: i }),
        onkeydown: (event) => {
          const next = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: writing.tokens.length - 1 }[event.key];
          if (next >= 0 && next < writing.tokens.length) { event.preventDefault(); this.state.set({ step: next }); }
        },
      }, visible(word));
    });
    this.words.replaceChildren(...fixed, ...buttons);
    if (focused) buttons[at].focus();
    const { branch: other } = this.first;
    this.notes.replaceChildren(...[
      other && h("p", { class: "note" }, other.word ? ["written on from “", h("span", { class: "number", dir: "auto" }, visible(other.word)), `” at step ${other.at + 1} `] : `written anew from step ${other.at + 1} `, tool("back to the run's answer", false, () => this.goBack(), { "aria-pressed": undefined })),
      this.problem && h("p", { class: "note", role: "alert", dir: "auto" }, this.problem),
      writing.left_out && h("p", { class: "tip" }, `${count(writing.left_out)} more tokens follow, which are not shown here.`),
      writing.reason === "length" && h("p", { class: "tip" }, "It ended at the largest length, not with an end token."),
    ].filter(Boolean));
  }

  /** The model's own probability of the token at a step. */
  probability(i) {
    const { logits, others, vocab } = this.step(i), best = logits[0], at = this.writing.temperatures.indexOf(1);
    const beyond = logits.length === vocab ? 0 : Math.exp(others[2 * at]);
    return Math.exp(this.writing.own[i] - best) / logits.reduce((sum, one) => sum + Math.exp(one - best), beyond);
  }

  showStep(at, found, settings) {
    const { tokens, ranks, vocab, prompt } = this.writing, { ids } = this.step(at), { was, now, kept } = found, chosen = tokens[at];
    const stored = ids.length, given = at < prompt, most = this.state.index("rows", stored + 1) > 0 ? this.state.index("rows", stored + 1) : ROWS[0];
    this.heading.replaceChildren(`Step ${at + 1} of ${tokens.length}: `, h("span", { class: "number chosen", dir: "auto" }, visible(this.word(chosen))), given ? h("small", {}, " given, not written") : "");
    const fact = (name, value, key) => h("span", { class: "fact" }, `${name} `, h("b", { class: "number", [`data-${key}`]: "" }, value));
    this.facts.replaceChildren(fact("probability", fine(this.probability(at)), "probability"), fact("rank", `${count(ranks[at] + 1)} of ${count(vocab)}`, "rank"), fact("entropy", `${was.entropy.toFixed(3)} bits`, "entropy"));
    const share = was.parts.reduce((sum, one, i) => sum + (i < kept ? one : 0), kept === vocab ? was.beyond : 0);
    this.summary.replaceChildren(...(kept === Infinity
      ? [h("b", { "data-count": "" }, `more than ${stored}`), ` of ${count(vocab)} tokens are kept: the cut lies beyond the ${stored} that this page has, so the new probabilities are not known here`]
      : [h("b", { "data-count": "" }, kept === vocab ? `all ${count(vocab)}` : count(kept)), kept === vocab ? " tokens are kept" : ` of ${count(vocab)} tokens ${kept === 1 ? "is" : "are"} kept, to which the model gives ${percent(share)}`,
        "; entropy of what is kept: ", h("span", { class: "number", "data-left-entropy": "" }, `${found.entropy.toFixed(3)} bits`)]));
    this.most = [0.05, 0.1, 0.2, 0.5, 1].find((one) => one >= Math.max(was.parts[0], now?.[0] ?? 0)) ?? 1;
    this.scale.textContent = `bars from 0 to ${Math.round(100 * this.most)} %`;
    const shownRows = Array.from({ length: Math.min(most, stored) }, (_, i) => i);
    if (ranks[at] >= shownRows.length && ranks[at] < stored) shownRows.push(ranks[at]);
    const rows = shownRows.map((i) => this.row(ids[i], i, was.parts[i], now && now[i], i < kept, ids[i] === chosen));
    if (ranks[at] >= stored) rows.push(this.row(chosen, ranks[at], this.probability(at), now && kept === vocab ? this.probabilityAt(at, settings) : now && 0, kept === vocab || kept === Infinity, true));
    const seen = new Set(shownRows), sum = (parts, beyond) => parts.reduce((a, one, i) => a + (seen.has(i) ? 0 : one), beyond);
    if (shownRows.length < vocab) rows.push(h("tr", { class: "rest" }, h("td", {}), h("td", { class: "text" }, `${count(vocab - shownRows.length)} others`), h("td", { class: "number" }, fine(sum(was.parts, was.beyond))), h("td", { class: "number" }, now ? fine(sum(now, found.beyond)) : "—"), h("td", {})));
    this.bars.replaceChildren(...rows);
    const sizes = sorted([...ROWS.filter((one) => one < stored), Math.min(stored, 200)]);
    this.more.replaceChildren(...(sizes.length > 1 ? ["show the first", ...sizes.map((one) => tool(`${one}`, one === most, () => this.state.set({ rows: one })))] : []));
  }

  /** The new probability of a token that is not among the stored ones, where nothing is cut. */
  probabilityAt(i, { temperature }) {
    const { logits, others } = this.step(i), best = logits[0], at = this.writing.temperatures.indexOf(temperature);
    const power = (one) => Math.exp((one - best) / temperature);
    return power(this.writing.own[i]) / logits.reduce((sum, one) => sum + power(one), Math.exp(others[2 * at]));
  }

  row(id, rank, was, now, kept, chosen) {
    const word = visible(this.word(id)), token = this.live
      ? h("button", { type: "button", class: "token", dir: "auto", "data-id": id, title: "write on from this token", onclick: () => this.goOn(id, false) }, word)
      : h("span", { class: "word", dir: "auto" }, word);
    const bar = (value, kind) => h("span", { class: `bar-${kind}`, style: { width: `${(100 * value / this.most).toFixed(2)}%` } });
    return h("tr", { class: `${kept ? "kept" : "cut"}${chosen ? " chosen" : ""}` }, h("td", { class: "number" }, count(rank + 1)),
      h("td", { class: "text" }, token, chosen && h("small", { class: "mark" }, "chosen")), h("td", { class: "number", "data-was": "" }, fine(was)),
      h("td", { class: "number", "data-now": "" }, now === null ? "—" : kept ? fine(now) : "cut"), h("td", { class: "both" }, bar(was, "was"), bar(now ?? 0, "now")));
  }

  showBeams() {
    const { beams } = this.first.shown, chosen = this.state.index("node", beams.nodes.length) < 0 ? beams.winner : this.state.index("node", beams.nodes.length);
    const read = h("p", { class: "reading", "data-branch": "" }), focused = this.beams.contains(document.activeElement) && document.activeElement.dataset?.node;
    const figure = tree(beams, chosen, (node) => this.state.set({ node }), (at) => read.replaceChildren(...reading(beams, at)));
    const scrolled = this.beams.querySelector(".scroll")?.scrollLeft ?? 0;
    const penalty = beams.penalty === "gnmt" ? `((5 + n) / 6)^${beams.alpha}` : `n^${beams.alpha}`;
    this.beams.replaceChildren(h("h2", {}, `Beam search, ${beams.beam} hypotheses at a time`),
      h("p", { class: "says" }, `Each column is a step, the likeliest hypothesis at the top, with the log-probability of all its tokens. A finished one has a score, its log-probability divided by ${penalty} for n tokens: the best score is the answer. Faded branches were dropped.`),
      h("div", { class: "tools" }, h("span", { class: "legend wins" }, "the answer"), h("span", { class: "legend ended" }, "finished"), h("span", { class: "legend pruned" }, "dropped"), h("span", { class: "space" }), saveTools(`${this.first.shown.run.name}-beams`, () => figure)),
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
