// By hand: one step of the model, with all its numbers: attention, a recurrent cell, word vectors, patches and codes.

import { h, tool } from "look/draw.js";
import { attention } from "look/hand_attention.js";
import { codes } from "look/hand_codes.js";
import { hideTip } from "look/hand_parts.js";
import { patches } from "look/hand_patches.js";
import { cell } from "look/hand_recurrent.js";
import { words } from "look/hand_words.js";

export const name = "hand";
export const title = "By hand";
export const has = (shown) => Boolean(shown.hand);

const PARTS = {
  attention: ["attention", attention], cells: ["recurrent cell", cell], words: ["word vectors", words],
  patches: ["from pixels to a vector", patches], codes: ["codes of the image", codes],
};

/** Each part is a list of sections, made anew when something else is chosen; what had the focus has it again. */
export function draw(root, context) {
  const { shown, state, stop } = context, found = Object.keys(PARTS).filter((part) => shown.hand[part]);
  const box = h("div", { class: "hand" });
  let turn = 0;
  const show = async () => {
    const part = found.includes(state.get("step")) ? state.get("step") : found[0], mine = ++turn;
    const sections = await PARTS[part][1](context);
    if (mine !== turn || stop.aborted) return;
    const focused = box.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    hideTip();
    box.replaceChildren(
      found.length > 1 ? h("div", { class: "tools", role: "group", "aria-label": "what is computed" },
        found.map((one) =>
        tool(PARTS[one][0], one === part, () => state.set({ step: one }), { "data-key": `part-${one}` }))) : "",
      ...sections);
    if (focused) box.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  };
  stop.addEventListener("abort", hideTip);
  state.on((changes) => "view" in changes || show(), stop);
  root.append(box);
  return show();
}
