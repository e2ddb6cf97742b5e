// What the model thinks likely at each position.

import { colour, h, percent, ranking, visible } from "look/draw.js";

export const name = "likely";
export const title = "Likely";
export const has = (shown) => Boolean(shown.likely?.rows.length);

export function draw(root, { shown, state, stop }) {
  const { rows, title: heading } = shown.likely;
  const cosine = heading.includes("cosine");
  const format = cosine ? (value) => value.toFixed(3) : percent;
  const detail = h("div", {});
  const buttons = rows.map(({ token, likely }, i) => h("button", {
    type: "button", class: "token", dir: "auto", style: { "border-bottom": `4px solid ${colour(likely[0]?.[1] ?? 0)}` },
    title: likely[0] ? `${visible(likely[0][0])} ${format(likely[0][1])}` : "",
    onclick: () => state.set({ token: i }),
  }, visible(token)));
  const show = () => {
    const at = Math.max(0, state.index("token", rows.length) < 0 ? rows.length - 1 : state.index("token", rows.length));
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === at)));
    detail.replaceChildren(h("h3", {}, "at ", h("span", { class: "number" }, visible(rows[at].token))), ranking(rows[at].likely.map(([word, value]) => [visible(word), value]), { format, heading: ["", cosine ? "cosine" : "probability"] }));
  };
  state.on(show, stop);
  root.append(h("section", { class: "card" }, h("h2", {}, heading.replace(" (· is a space)", "")),
    h("p", { class: "says" }, "Choose a position. The bar under a token is darker where the model is surer. A dot · is a space."),
    h("div", { class: "tokens", dir: "auto" }, buttons), detail));
  show();
}
