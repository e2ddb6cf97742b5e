// One head over the image: how much [CLS], or a chosen patch, attends to each patch.

import { h, paintImage, pointIn, s } from "look/draw.js";

const SIDE = 420;

/** Black where little weight is, clear where much is: a pixel per patch. */
function shade(weights, grid) {
  const canvas = h("canvas", { width: grid, height: grid }), image = new ImageData(grid, grid);
  const most = Math.max(...weights, 1e-6);
  weights.forEach((value, i) => { image.data[4 * i + 3] = Math.round(225 * (1 - value / most)); });
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas.toDataURL();
}

export function overImage({ values, pinned, pin, shown, store, columns }) {
  const grid = shown.grid, cell = SIDE / grid, skipped = columns.length - grid * grid;
  const whole = { x: 0, y: 0, width: SIDE, height: SIDE, preserveAspectRatio: "none" };
  const image = s("image", whole), dark = s("image", whole), frame = s("g", {});
  const svg = s("svg", {
    viewBox: `0 0 ${SIDE} ${SIDE}`, width: SIDE, height: SIDE, role: "img",
    "aria-label": "attention to each patch, over the image",
  }, image, dark, frame);
  store.numbers(shown.image).then((bytes) => {
    image.setAttribute("href", paintImage(bytes, shown.image.shape).toDataURL());
  });
  const box = (at) => s("rect", {
    class: "here", x: cell * (at % grid), y: cell * Math.floor(at / grid), width: cell, height: cell,
  });
  function light(row, column = -1) {
    const from = Math.max(0, row), start = from * columns.length + skipped;
    dark.setAttribute("href", shade(values.slice(start, start + grid * grid), grid));
    frame.replaceChildren(...[from - skipped, column - skipped].filter((at) => at >= 0).map(box));
  }
  const at = (event) => {
    const point = pointIn(svg, event), x = Math.floor(point.x / cell), y = Math.floor(point.y / cell);
    return x >= 0 && x < grid && y >= 0 && y < grid ? y * grid + x + skipped : -1;
  };
  svg.addEventListener("click", (event) => {
    const row = at(event);
    if (row >= 0) pin(row === pinned ? "" : row);
  });
  return {
    svg,
    light,
    onhover(hover) {
      svg.addEventListener("mousemove", (event) => hover(Math.max(0, pinned), at(event)));
      svg.addEventListener("mouseleave", () => hover(-1, -1));
    },
  };
}
