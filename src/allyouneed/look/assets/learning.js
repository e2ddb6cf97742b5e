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
const LAST = ["lr", "norm"];

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

/** A card with a chart of the curves that `series(name)` gives for a name; `more(name)` is a sentence below. */
function card(heading, context, names, series, more) {
  const { state, stop, file } = context, box = h("div", { class: "plot" }), tools = h("div", { class: "tools" });
  const read = h("p", { class: "reading", "data-reading": "" }), below = h("p", { class: "tip" });
  let figure;
  const show = () => fit();
  const draw = (width) => {
    const all = names(), log = state.get("x") === "log",
      chosen = all.includes(state.get("curve")) ? state.get("curve") : all[0];
    if (!all.length) {
      read.textContent = "There is no curve yet: the first line of metrics is written after a few steps.";
      return;
    }
    const lines = series(chosen), step = state.get("step") === "" ? undefined : Number(state.get("step"));
    const focused = box.contains(document.activeElement);
    const hover = (at) => {
      const found = at === undefined ? [] : readings(lines, at);
      const words = found.map((one) => `${one.name} ${number(one.value)}`).join(", ");
      figure?.says(at === undefined ? "" : `step ${at}: ${words}`);
      read.replaceChildren(...(at === undefined ? lines.filter((one) => !one.pale).map((one) => legend(one.name,
        one.colour)) : [
        h("span", { class: "legend" }, "step ", h("b", { class: "number", "data-step": at }, count(at))),
        ...found.map((one) => h("span", { class: "legend" },
          h("span", { class: "swatch", style: { background: one.colour } }), `${one.name} `,
          h("b", { class: "number", "data-value": one.name }, number(one.value)), one.step !== at &&
            h("span", { class: "shape" }, ` (step ${count(one.step)})`))),
      ]));
    };
    figure = chart({ series: lines, width, log, chosen: Number.isFinite(step) ? step : undefined, hover,
      label: `${NAMES[chosen] ?? chosen} by step`, choose: (at) => { state.set({ step: at }); say(read.textContent);
      } });
    box.replaceChildren(figure.svg);
    if (focused) figure.svg.focus();
    tools.replaceChildren(
      ...all.map((one) => tool(NAMES[one] ?? one, one === chosen, () => state.set({ curve: one }))), h("span", {}, " "),
      tool("logarithmic steps", log, () => state.set({ x: log ? "" : "log" })), h("span", { class: "space" }),
      ...saveTools(`${file}-${chosen}`, () => figure.svg,
        () => asMatrix(lines.filter((one) => !one.smooth))).filter(Boolean));
    below.replaceChildren(...[more(chosen)].flat());
    figure.show();
  };
  const fit = fitting(box, draw, stop);
  state.on((changes) => "view" in changes || show(), stop);
  for (const event of ["learned", "theme", "hashchange"]) addEventListener(event, show, { signal: stop });
  return h("section", { class: "card" }, h("h2", {}, heading), tools, box, read, below);
}

export function draw(root, { shown, state, stop }) {
  const named = (chosen) => shown.learning.filter((one) => one.name === chosen);
  const series = (chosen) => named(chosen).flatMap(({ kind, name, steps, values }) => {
    const line = { name: KINDS[kind] ?? kind, colour: kindColour(kind), steps, values };
    if (kind === "valid") return [{ ...line, marks: steps.length <= 60, best: bestOf({ name, values }) }];
    if (values.length < 80 || chosen === "lr") return [line];
    const mean = { ...line, name: "training, running mean", values: smooth(values), smooth: true };
    return [{ ...line, name: "training", pale: true }, mean];
  });
  const more = (chosen) => {
    const valid = named(chosen).find((one) => one.kind === "valid"), at = valid ? bestOf(valid) : -1;
    const best = at >= 0 && `${valid.values[at].toFixed(4)} at step ${count(valid.steps[at])}`;
    const now = shown.training ? [h("span", { class: "live" }, "training now"), "  "] : [];
    return [...now, best ? `The ring is the best validation ${chosen}: ${best}. ` : "",
      "Point at a step, or choose one with a click or the arrow keys."];
  };
  const box = card("How it has learned", { state, stop, file: shown.run.name }, () => namesOf(shown.learning), series,
    more);
  root.append(box);
}

/** The validation curves of several runs over each other. */
export function together(panels, state) {
  const named = panels.map((panel) => panel.store.shown.run.name);
  const unique = (at) => (named.filter((one) => one === named[at]).length > 1 ? `${named[at]} (${at + 1})` : named[at]);
  const curves = () => panels.map((panel) => panel.store.shown.learning.filter((curve) => curve.kind === "valid"));
  const shows = panels.filter((panel, run) => curves()[run].length || panel.store.shown.training);
  if (shows.length < 2) return "";
  const dash = (run) => ["", "6 3", "2 3"][Math.floor(run / 7) % 3];
  const line = (run, { steps, values }) => ({
    name: unique(run), end: unique(run), colour: pick(run), dash: dash(run), steps, values, marks: steps.length <= 60,
  });
  const series = (chosen) => curves().flatMap(
    (each, run) => each.filter((one) => one.name === chosen).map((one) => line(run, one)));
  const more = (chosen) => {
    const there = series(chosen).map((one) => one.name);
    const without = named.map((_, run) => unique(run)).filter((one) => !there.includes(one));
    return [without.length ? `${without.join(", ")}: no ${chosen} of a validation. ` : "",
      chosen.includes("loss") ?
        "A loss counts per token: compare it between runs with the same tokens and the same data only." : ""];
  };
  return h("div", { class: "together" }, card("Validation of all runs", { state, file: "runs" },
    () => namesOf(curves().flat()), series, more));
}

/** Ask for the curves of a live run while it trains and the page is visible. `weights()` is called when it has some. */
export async function follow(run, shown, stop, weights) {
  let size = -1;
  const seen = () => new Promise((go) => {
    document.addEventListener("visibilitychange", go, { once: true, signal: stop });
  });
  while (!stop.aborted) {
    if (document.visibilityState !== "visible") { await seen(); continue; }
    let found;
    try {
      const answer = await fetch(`learning/${run}?seen=${size}`, { signal: stop });
      found = await answer.json();
      if (!answer.ok) throw new Error(found.error);
    } catch { // the server has been stopped, or the run is gone
      found = { training: false, size };
    }
    if (stop.aborted) return;
    const grown = size >= 0 && found.size !== size, changed = found.learning &&
      JSON.stringify(found.learning) !== JSON.stringify(shown.learning);
    const began = Boolean(shown.training) !== found.training;
    if (changed) shown.learning = found.learning;
    Object.assign(shown, { training: found.training });
    size = found.size;
    if (changed || began) dispatchEvent(new Event("learned"));
    if (found.weights && shown.weights === false) return weights();
    await (found.training || grown ? new Promise((go) => { setTimeout(go, EVERY); }) : seen());
  }
}
