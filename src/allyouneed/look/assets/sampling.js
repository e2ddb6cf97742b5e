// The steps of an answer: the distribution of each, and what temperature, top-k and top-p leave of it.

const FINE = 2 ** 24, WHOLE = 2 ** 38; // as in decode/sample.py, whose integers these are

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

/** The steps of the answer of a store. */
export class Steps {
  static async load(store) {
    const { ids, logits, others } = store.shown.writing;
    return new Steps(store.shown.writing, ...await Promise.all([ids, logits, others].map((ref) => store.numbers(ref))));
  }

  constructor(writing, ids, logits, others) {
    const { vocab, temperatures, tokens, ids: { shape: [, stored] } } = writing, wide = 2 * temperatures.length;
    const row = (values, at, width) => values.subarray(at * width, (at + 1) * width);
    Object.assign(this, { writing, stored });
    this.each = tokens.map((_, at) => {
      return { ids: row(ids, at, stored), logits: row(logits, at, stored), others: row(others, at, wide), vocab };
    });
    this.own = tokens.map((_, at) => this.probability(at, 1));
  }

  word(id) { return this.writing.names[id]; }

  /** The probability of the token of a step, at a temperature. */
  probability(at, temperature) {
    const step = this.each[at], { sum } = softmax(step, this.writing.temperatures, temperature);
    return Math.exp((this.writing.own[at] - step.logits[0]) / temperature) / sum;
  }

  cut(at, settings) { return cut(this.each[at], this.writing.temperatures, settings); }
}
