// One head over the image: how much [CLS], or a chosen patch, attends to each patch.

import { h, paintImage, s } from "look/draw.js";

const SIDE = 420;

export function overImage({ values, pinned, pin, shown, store, columns }) {
  const grid = shown.grid, cell = SIDE / grid, skipped = columns.length - grid * grid, patches = s("g", {});
  const picture = s("image", { x: 0, y: 0, width: SIDE, height: SIDE }), frame = s("g", {});
  const svg = s("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, width: SIDE, height: SIDE, role: "img", "aria-label": "attention to each patch, over the image" }, picture, patches, frame);
  store.numbers(shown.image).then((bytes) => picture.setAttribute("href", paintImage(bytes, shown.image.shape).toDataURL()));
  function light(row, column = -1) {
    const from = Math.max(0, row), weights = values.subarray(from * columns.length, (from + 1) * columns.length).subarray(skipped);
    const most = Math.max(...weights, 1e-6);
    patches.replaceChildren(...Array.from(weights, (value, i) => s("rect", { x: cell * (i % grid), y: cell * Math.floor(i / grid), width: cell, height: cell, fill: "#000", "fill-opacity": (0.85 * (1 - value / most)).toFixed(3) })));
    frame.replaceChildren();
    for (const [index, kind] of [[from - skipped, "here"], [column - skipped, "here"]]) if (index >= 0) frame.append(s("rect", { class: kind, x: cell * (index % grid), y: cell * Math.floor(index / grid), width: cell, height: cell }));
  }
  const at = (event) => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()), x = Math.floor(point.x / cell), y = Math.floor(point.y / cell);
    return x >= 0 && x < grid && y >= 0 && y < grid ? y * grid + x + skipped : -1;
  };
  svg.addEventListener("click", (event) => { const row = at(event); if (row >= 0) pin(row === pinned ? "" : row); });
  return {
    svg,
    light,
    onhover(hover) {
      svg.addEventListener("mousemove", (event) => hover(Math.max(0, pinned), at(event)));
      svg.addEventListener("mouseleave", () => hover(-1, -1));
    },
  };
}
