// The same text through the models that a training has kept along the way (train.keep).

import { chosen } from "look/attention.js";
import { count, h, percent, ranking, say, tool, visible } from "look/draw.js";
import { matrix } from "look/matrix.js";

export const name = "checkpoints";
export const title = "Checkpoints";
export const has = (shown) => Boolean(shown.checkpoints?.length);

const PLAY = 900; // ms for each model

const nameOf = ({ step }) => (step ? `step ${count(step)}` : "the model");

/** A text whose words that differ from those of `last` are marked. */
function compared(text, last) {
  const words = text.split(/(\s+)/), others = last.split(/(\s+)/);
  return words.map((word, i) => (word.trim() && word !== others[i] ? h("mark", { class: "differs" }, word) : word));
}

/** How sure a model is of its answer: its log-probability. Some tasks have none. */
const sure = (logprob) => (Number.isFinite(logprob) && logprob !== 0 ? logprob.toFixed(2).replace("-", "−") : "");

/** One map of the attention of a model: a head, or the mean or the largest of all heads. */
async function attentionOf(store, entry, said, layer, head) {
  const ref = entry.attention[layer], axes = said.attention[layer];
  if (!axes || !store.has(ref)) return null;
  const values = await store.numbers(ref), size = axes.rows.length * axes.columns.length,
    heads = values.length / size - 1;
  const map = (at) => values.subarray(at * size, (at + 1) * size);
  const largest = () => map(0).map((_, i) => Math.max(...Array.from({ length: heads },
    (__, at) => values[at * size + i])));
  return { rows: axes.rows, columns: axes.columns,
    values: head === "max" ? largest() : map(Number(head) < heads ? Number(head) : heads) };
}

const select = (label, options, value, change) => h("select",
  { class: "tool", "aria-label": label, onchange: (event) => change(event.target.value) },
  options.map(([key, text]) => h("option", { value: key, selected: String(key) === String(value) }, text)));

/** Which attention is shown: the choice of the view "Attention". */
function choices(shown, state, now) {
  const groups = { cross: "answer to source", encoder: "encoder", decoder: "decoder", self: "" };
  const layers = shown.attention.map((layer, at) => [at,
    [groups[layer.group], `layer ${layer.layer}`].filter(Boolean).join(", ")]);
  const heads = now.layer.heads.map((_, head) => [head, `head ${head + 1}`]);
  return h("div", { class: "tools" }, select("layer", layers, now.at, (layer) => state.set({ layer })),
    select("head", [...heads, ["mean", "mean of heads"], ["max", "max of heads"]],
      now.head === "rollout" ? "mean" : now.head, (head) => state.set({ layer: now.at, head })));
}

export async function draw(root, { shown, store, state, stop }) {
  const entries = shown.checkpoints, said = entries.map(() => null), last = entries.length - 1;
  const at = () => (state.index("at", entries.length) < 0 ? last : state.index("at", entries.length));
  const go = (to) => state.set({ at: Math.min(last, Math.max(0, to)) });
  const before = shown.run.task === "lm" ? h("span", { class: "soft" }, shown.text) : "";
  let timer = 0;
  const pause = () => { clearInterval(timer); timer = 0; play.textContent = "▶ play";
    play.setAttribute("aria-pressed", "false"); };
  const play = tool("▶ play", false, () => {
    if (timer) return pause();
    play.textContent = "❚❚ pause";
    play.setAttribute("aria-pressed", "true");
    go(at() === last ? 0 : at());
    timer = setInterval(() => { if (at() < last && said[at()]) go(at() + 1); if (at() === last) pause(); }, PLAY);
  });
  stop.addEventListener("abort", () => clearInterval(timer));
  const slider = h("input", { type: "range", min: 0, max: last, step: 1, "aria-label": "step of the training",
    oninput: (event) => { pause(); go(Number(event.target.value)); } });
  const where = h("b", { class: "number", "data-step": "" }),
    answer = h("p", { class: "big", dir: "auto", "data-answer": "" });
  const how = h("p", { class: "tip", "data-sure": "" }), body = h("tbody", {}), likely = h("div", {}),
    map = h("div", { class: "scroll" });
  const rows = entries.map((entry, i) => {
    const cells = { text: h("td", { class: "text", dir: "auto" }, "…"), sure: h("td", { class: "number" }) };
    const row = h("tr", { class: "pick", onclick: () => { pause(); go(i); } },
      h("td", { class: "number" }, h("button", { type: "button", class: "tool" }, nameOf(entry))), cells.text,
      cells.sure);
    body.append(row);
    return { row, ...cells };
  });
  root.append(
    h("section", { class: "card" }, h("h2", {}, "The same text along the training"),
      h("div", { class: "tools slide" }, play, slider, where), answer, how),
    h("div", { class: "pair" },
      h("section", { class: "card" }, h("h2", {}, "What each wrote"),
        h("p", { class: "says" },
        "Marked words differ from those of the run's own model, the last row."),
        h("div", { class: "scroll" },
          h("table", { class: "through" },
          h("thead", {}, h("tr", {}, ["", "answer", "log-probability"].map((one) => h("th", { scope: "col" }, one)))),
          body))),
      h("div", {}, h("section", { class: "card" }, likely),
        shown.attention?.length ? h("section", { class: "card" }, map) : "")));

  let turn = 0;
  const show = async () => {
    const mine = ++turn, now = at(), entry = entries[now], found = said[now];
    slider.value = now;
    slider.setAttribute("aria-valuetext", nameOf(entry));
    const one = shown.attention?.length ? chosen(shown, state) : null;
    const seen = one && found && !found.error ? await attentionOf(store, entry, found, one.at, one.head) : null;
    if (mine !== turn || stop.aborted) return;
    where.textContent = nameOf(entry);
    rows.forEach(({ row }, i) => row.classList.toggle("here", i === now));
    if (!found || found.error) {
      answer.textContent = found?.error ?? "…";
      for (const box of [how, likely, map]) box.replaceChildren();
      return;
    }
    answer.replaceChildren(before, ...compared(found.text, said[last]?.text ?? found.text));
    const probability = found.logprob > -7 ? `, probability ${percent(Math.exp(found.logprob))}` : "";
    how.textContent = sure(found.logprob) && `log-probability ${sure(found.logprob)}${probability}`;
    const asked = state.index("position", found.likely.length), position = asked < 0 ? found.likely.length - 1 : asked;
    const [token, pairs] = found.likely[position] ?? [];
    const heading = shown.likely?.title.replace(" (· is a space)", "") ?? (shown.writing ? "likely next" : "classes"),
      cosine = heading.includes("cosine");
    likely.replaceChildren(h("h2", {}, `${heading[0].toUpperCase()}${heading.slice(1)}`),
      found.likely.length > 1 ? h("div", { class: "tokens", dir: "auto" },
        found.likely.map(([name], i) => h("button", { type: "button", class: "token",
        "aria-pressed": String(i === position), dir: "auto",
        onclick: () => state.set({ position: i === found.likely.length - 1 ? "" : i }) }, visible(name)))) : "",
      token === undefined ? h("p", { class: "says" },
        "This task has no likely answers to list.") : ranking(pairs.map(([word, value]) => [visible(word), value]),
        { format: cosine ? (value) => value.toFixed(3) : percent, heading: ["", cosine ? "cosine" : "probability"] }));
    if (one) {
      const figure = seen && matrix({ ...seen, pinned: -1, pin: () => {} }),
        read = h("p", { class: "reading", "data-reading": "" });
      figure?.onhover((row, column) => {
        figure.light(row, column);
        const value = seen.values[row * seen.columns.length + column];
        const [from, to] = [visible(seen.rows[row] ?? ""), visible(seen.columns[column] ?? "")];
        read.textContent = row < 0 ? "" : `${from} attends to ${to}: ${value.toFixed(3)}`;
      });
      map.replaceChildren(h("h2", {}, "Attention"), choices(shown, state, one),
        ...(figure ? [figure.svg,
        read] : [h("p", { class: "says" },
        "The attention of this step is left out of the page, which would become too large.")]));
    }
    if (!timer) say(`${nameOf(entry)}: ${found.text}`);
  };
  state.on((changes) => "view" in changes || show(), stop);
  show();
  for (const [i, entry] of [...entries.entries()].reverse()) {
    // the last first: it is what the others are compared with
    said[i] = await store.numbers(entry.said);
    if (stop.aborted) return;
    const { text, sure: cell } = rows[i];
    text.replaceChildren(...(said[i].error ? [said[i].error] : compared(said[i].text, said[last].text ?? "")));
    cell.textContent = said[i].error ? "" : sure(said[i].logprob);
    if (i === at() || i === last) show();
  }
}
