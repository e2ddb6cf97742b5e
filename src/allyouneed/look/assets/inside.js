// Inside: what each layer would say, its vectors, the answer without some heads, and the positions.

import * as lens from "look/lens.js";
import * as positions from "look/positions.js";
import * as switches from "look/switches.js";
import * as vectors from "look/vectors.js";
import { h, tool } from "look/draw.js";

export const name = "inside";
export const title = "Inside";

const PARTS = [lens, vectors, switches, positions];

export const has = (shown) => PARTS.some((part) => part.has(shown));

export function draw(root, context) {
  const parts = PARTS.filter((part) => part.has(context.shown)), { state, stop } = context;
  const tools = h("div", { class: "tools", role: "group", "aria-label": "what is shown" }), box = h("div", {});
  let own = new AbortController();
  stop.addEventListener("abort", () => own.abort());
  const show = () => {
    own.abort();
    own = new AbortController();
    const chosen = parts.find((part) => part.name === state.get("part")) ?? parts[0];
    tools.replaceChildren(...parts.map((part) => tool(part.title, part === chosen,
      () => state.set({ part: part.name }))));
    box.replaceChildren();
    return chosen.draw(box, { ...context, stop: own.signal });
  };
  state.on((changes) => "part" in changes && show(), stop);
  root.append(...(parts.length > 1 ? [tools] : []), box);
  return show();
}
