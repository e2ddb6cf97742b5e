// What the model thinks likely at each position.

import { colour, h, percent, ranking, visible } from "look/draw.js";

export const name = "likely";
export const title = "Likely";
export const has = (shown) => Boolean(shown.likely?.rows.length);

export function draw(root, { shown, state, stop }) {
  const { rows, title: heading } = shown.likely, cosine = heading.includes("cosine");
  const format = cosine ? (value) => value.toFixed(3) : percent, detail = h("div", {});
  const button = ({ token, likely: [best] }, i) => h("button", {
    type: "button", class: "token", dir: "auto", style: { "border-bottom": `4px solid ${colour(best?.[1] ?? 0)}` },
    title: best ? `${visible(best[0])} ${format(best[1])}` : "", onclick: () => state.set({ token: i }),
  }, visible(token));
  const buttons = rows.map(button);
  const show = () => {
    const chosen = state.index("token", rows.length), at = chosen < 0 ? rows.length - 1 : chosen;
    buttons.forEach((one, i) => one.setAttribute("aria-pressed", String(i === at)));
    const pairs = rows[at].likely.map(([word, value]) => [visible(word), value]);
    detail.replaceChildren(
      h("h3", {}, "at ", h("span", { class: "number" }, visible(rows[at].token))),
      ranking(pairs, { format, heading: ["", cosine ? "cosine" : "probability"] }));
  };
  state.on(show, stop);
  const tip = "Choose a position. The line under a token is darker where the model is surer. A dot · is a space.";
  root.append(h("section", { class: "card" },
    h("h2", {}, heading.replace(" (· is a space)", "")), h("p", { class: "says" }, tip),
    h("div", { class: "tokens", dir: "auto" }, buttons), detail));
  show();
}
