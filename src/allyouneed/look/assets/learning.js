// How the run has learned: its losses and scores by step. On a live page they grow while the run trains.

import { chart, fitting, kindColour, lastBefore, legend, number, pick, smooth } from "look/chart.js";
import { count, h, say, tool } from "look/draw.js";
import { saveTools } from "look/save.js";

export const name = "learning";
export const title = "Learning";
export const has = (shown) => shown.learning.length > 0 || Boolean(shown.training);

const EVERY = 2500; // ms between the questions of a live page
const KINDS = { train: "training", valid: "validation" };
const NAMES = { lr: "learning rate", norm: "gradient norm" };
const LAST = ["lr", "norm"]; // in a list of names
const FEW = 60; // points of a curve that are marked, at most
const LONG = 80; // points of a curve that is shown with its mean, at least
const DASHES = ["", "6 3", "2 3"]; // for each round of the colours of runs

/** The names of some curves, in the order in which they are listed. */
const namesOf = (curves) => {
  const found = [...new Set(curves.map((curve) => curve.name))];
  return [...found.filter((one) => !LAST.includes(one)), ...LAST.filter((one) => found.includes(one))];
};

/** The index of the lowest loss, or of the highest score. */
function bestOf({ name, values }) {
  const finite = values.filter(Number.isFinite);
  return finite.length ? values.indexOf((name.includes("loss") ? Math.min : Math.max)(...finite)) : -1;
}

/** The curves as numbers by step, for CSV. */
function asMatrix(series) {
  const steps = [...new Set(series.flatMap((one) => one.steps))].sort((a, b) => a - b);
  const at = series.map((one) => new Map(one.steps.map((step, i) => [step, one.values[i]])));
  const values = steps.flatMap((step) => at.map((one) => one.get(step) ?? NaN));
  return { values, rows: steps.map(String), columns: series.map((one) => one.name) };
}

/** What the curves are at a step, or before it. */
function readings(series, step) {
  return series.filter((one) => !one.pale).map((one) => {
    const at = lastBefore(one.steps, step);
    return { ...one, value: at < 0 ? undefined : one.values[at] ?? NaN, step: one.steps[at] };
  }).filter((one) => one.value !== undefined);
}

/** A card with a chart. `names()` are the names of the curves, `series(name)` the curves of a name, `more(name)` is
 * what is said below. */
class Card {
  constructor(heading, { state, stop, file }, { names, series, more }) {
    Object.assign(this, { state, file, names, series, more });
    this.box = h("div", { class: "plot" });
    this.tools = h("div", { class: "tools" });
    this.read = h("p", { class: "reading", "data-reading": "" });
    this.below = h("p", { class: "tip" });
    this.root = h("section", { class: "card" }, h("h2", {}, heading), this.tools, this.box, this.read, this.below);
    const show = fitting(this.box, (width) => this.draw(width), stop);
    state.on((changes) => "view" in changes || show(), stop);
    for (const event of ["learned", "theme", "hashchange"]) addEventListener(event, show, { signal: stop });
  }

  draw(width) {
    const all = this.names();
    if (!all.length) {
      this.read.textContent = "There is no curve yet: the first line of metrics is written after a few steps.";
      return;
    }
    const chosen = all.includes(this.state.get("curve")) ? this.state.get("curve") : all[0];
    this.lines = this.series(chosen);
    this.drawChart(width, chosen);
    this.showTools(all, chosen);
    this.below.replaceChildren(...this.more(chosen));
    this.figure.show();
  }

  get isLogarithmic() {
    return this.state.get("x") === "log";
  }

  drawChart(width, chosen) {
    const step = this.state.get("step") === "" ? undefined : Number(this.state.get("step"));
    const focused = this.box.contains(document.activeElement);
    this.figure = chart({
      series: this.lines, width, log: this.isLogarithmic, chosen: Number.isFinite(step) ? step : undefined,
      label: `${NAMES[chosen] ?? chosen} by step`, hover: (at) => this.tell(at), choose: (at) => this.choose(at),
    });
    this.box.replaceChildren(this.figure.svg);
    if (focused) this.figure.svg.focus();
  }

  showTools(all, chosen) {
    const { state, file, isLogarithmic } = this, lines = this.lines.filter((one) => !one.smooth);
    this.tools.replaceChildren(
      ...all.map((one) => tool(NAMES[one] ?? one, one === chosen, () => state.set({ curve: one }))), h("span", {}, " "),
      tool("logarithmic steps", isLogarithmic, () => state.set({ x: isLogarithmic ? "" : "log" })),
      h("span", { class: "space" }),
      ...saveTools(`${file}-${chosen}`, () => this.figure.svg, () => asMatrix(lines)));
  }

  choose(step) {
    this.state.set({ step });
    say(this.read.textContent);
  }

  /** Say what the curves are at a step; without one, which curves there are. */
  tell(step) {
    if (step === undefined) {
      this.figure.says("");
      const named = this.lines.filter((one) => !one.pale);
      return this.read.replaceChildren(...named.map((one) => legend(one.name, one.colour)));
    }
    const found = readings(this.lines, step);
    this.figure.says(`step ${step}: ${found.map((one) => `${one.name} ${number(one.value)}`).join(", ")}`);
    this.read.replaceChildren(
      h("span", { class: "legend" }, "step ", h("b", { class: "number", "data-step": step }, count(step))),
      ...found.map((one) => reading(one, step)));
  }
}

/** What one curve is at a step; of an earlier step, this one is named. */
const reading = ({ name, colour, value, step: at }, step) => h("span", { class: "legend" },
  h("span", { class: "swatch", style: { background: colour } }), `${name} `,
  h("b", { class: "number", "data-value": name }, number(value)),
  at !== step && h("span", { class: "shape" }, ` (step ${count(at)})`));

/** A curve of a run as lines of a chart: a long one of the training is pale, with its running mean. */
function linesOf({ kind, name, steps, values }) {
  const line = { name: KINDS[kind] ?? kind, colour: kindColour(kind), steps, values };
  if (kind === "valid") return [{ ...line, marks: steps.length <= FEW, best: bestOf({ name, values }) }];
  if (values.length < LONG || name === "lr") return [line];
  const mean = { ...line, name: "training, running mean", values: smooth(values), smooth: true };
  return [{ ...line, name: "training", pale: true }, mean];
}

/** What is said below the curves of a run. */
function aboutCurves(curves, name, training) {
  const valid = curves.find((one) => one.kind === "valid"), at = valid ? bestOf(valid) : -1;
  const best = at >= 0 && `${valid.values[at].toFixed(4)} at step ${count(valid.steps[at])}`;
  const now = training ? [h("span", { class: "live" }, "training now"), "  "] : [];
  return [...now, best ? `The ring is the best validation ${name}: ${best}. ` : "",
    "Point at a step, or choose one with a click or the arrow keys."];
}

export function draw(root, { shown, state, stop }) {
  const named = (name) => shown.learning.filter((one) => one.name === name);
  root.append(new Card("How it has learned", { state, stop, file: shown.run.name }, {
    names: () => namesOf(shown.learning),
    series: (name) => named(name).flatMap(linesOf),
    more: (name) => aboutCurves(named(name), name, shown.training),
  }).root);
}

/** The names of runs, each with its number if several have this name. */
const apart = (names) => names.map((name, run) => {
  return names.filter((one) => one === name).length > 1 ? `${name} (${run + 1})` : name;
});

/** The validation curves of several runs over each other. */
export function together(panels, state) {
  const runs = apart(panels.map((panel) => panel.store.shown.run.name));
  const curves = () => panels.map((panel) => panel.store.shown.learning.filter((curve) => curve.kind === "valid"));
  const shows = panels.filter((panel, run) => curves()[run].length || panel.store.shown.training);
  if (shows.length < 2) return "";
  const series = (name) => curves().flatMap(
    (own, run) => own.filter((one) => one.name === name).map((one) => lineOfRun(runs[run], run, one)));
  const card = new Card("Validation of all runs", { state, file: "runs" }, {
    names: () => namesOf(curves().flat()), series, more: (name) => aboutRuns(runs, series(name), name),
  });
  return h("div", { class: "together" }, card.root);
}

const lineOfRun = (name, run, { steps, values }) => ({
  name, end: name, colour: pick(run), dash: DASHES[Math.floor(run / 7) % DASHES.length], steps, values,
  marks: steps.length <= FEW,
});

/** What is said below the curves of several runs. */
function aboutRuns(runs, lines, name) {
  const without = runs.filter((run) => !lines.some((one) => one.name === run));
  return [without.length ? `${without.join(", ")}: no ${name} of a validation. ` : "",
    name.includes("loss")
      ? "A loss counts per token: compare it between runs with the same tokens and the same data only." : ""];
}

/** When the page is shown or hidden. */
const visibilityChange = (stop) => new Promise((go) => {
  document.addEventListener("visibilitychange", go, { once: true, signal: stop });
});

const pause = () => new Promise((go) => { setTimeout(go, EVERY); });

/** How far a live run is; the curves only if its metrics are no longer `size` bytes long. */
async function progress(run, size, stop) {
  try {
    const answer = await fetch(`learning/${run}?seen=${size}`, { signal: stop });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error.message);
    return found;
  } catch { // the server has been stopped, or the run is gone
    return { training: false, size };
  }
}

/** Put what is new into what is shown, and tell the cards. */
function update(shown, { learning, training }) {
  const grown = learning && JSON.stringify(learning) !== JSON.stringify(shown.learning);
  const changed = grown || Boolean(shown.training) !== training;
  if (grown) shown.learning = learning;
  shown.training = training;
  if (changed) dispatchEvent(new Event("learned"));
}

/** Ask for the curves of a live run while it trains and the page is visible. `weights()` is called when it has some. */
export async function follow(run, shown, stop, weights) {
  let size = -1;
  while (!stop.aborted) {
    if (document.visibilityState !== "visible") { await visibilityChange(stop); continue; }
    const found = await progress(run, size, stop), grown = size >= 0 && found.size !== size;
    if (stop.aborted) return;
    size = found.size;
    update(shown, found);
    if (found.weights && shown.weights === false) return weights();
    await (found.training || grown ? pause() : visibilityChange(stop));
  }
}
