// An image and its codes: the grid fills in, code by code, in the order in which they are written.

import { h, paintImage, say, tool } from "look/draw.js";

const SIDE = 256;

/** A canvas on which an image appears, patch by patch. */
function growing(bytes, shape, grid) {
  const whole = paintImage(bytes, shape);
  const canvas = h("canvas", { width: SIDE, height: SIDE, class: "pixels", role: "img" });
  const pen = canvas.getContext("2d"), cell = SIDE / grid;
  pen.imageSmoothingEnabled = false;
  return {
    canvas,
    show(count, marked) {
      pen.clearRect(0, 0, SIDE, SIDE);
      pen.drawImage(whole, 0, 0, SIDE, SIDE);
      for (let at = count; at < grid * grid; at++) {
        pen.clearRect(cell * (at % grid), cell * Math.floor(at / grid), cell, cell);
      }
      if (marked < 0) return;
      pen.strokeStyle = "#d9730d";
      pen.lineWidth = 2;
      pen.strokeRect(cell * (marked % grid) + 1, cell * Math.floor(marked / grid) + 1, cell - 2, cell - 2);
    },
  };
}

/** The drawing that a store has written, as it fills in, and the patch of each code; nothing if it is a text. */
export async function drawing(store) {
  const { drawing: found, names } = store.shown.writing;
  if (!found) return null;
  const { grid, image, patches } = found, each = [image, patches].map((ref) => store.numbers(ref));
  const [whole, all] = await Promise.all(each);
  const side = patches.shape[1], size = 4 * side * side, ids = Object.keys(names);
  const patch = (id) => {
    const from = size * ids.indexOf(`${id}`);
    return paintImage(all.subarray(from, from + size), [side, side]);
  };
  const { canvas, show } = growing(whole, image.shape, grid);
  canvas.setAttribute("aria-label", "the drawing, up to the chosen code");
  return { canvas, show, grid, patch };
}

export async function codes({ answer, image, run }, store, state, stop) {
  const list = answer.details.codes.flat(), grid = Math.round(Math.sqrt(list.length));
  const after = growing(await store.numbers(answer.image), answer.image.shape, grid);
  const before = image && growing(await store.numbers(image), image.shape, grid);
  const cell = (code, i) => h("button", {
    type: "button", class: "code", "aria-label": `code ${i + 1}: ${code}`,
  }, `${code}`);
  const cells = list.map(cell);
  const slider = h("input", {
    type: "range", min: 0, max: list.length, value: list.length, "aria-label": "codes that are written",
  });
  const said = h("p", { class: "reading" });
  const show = (marked = -1) => {
    const count = Number(slider.value);
    after.show(count, marked);
    before?.show(list.length, marked);
    cells.forEach((cell, i) => cell.classList.toggle("later", i >= count));
    const place = `row ${Math.floor(marked / grid) + 1}, column ${(marked % grid) + 1}`;
    said.textContent = marked >= 0 ? `code ${list[marked]} at ${place}` : `${count} of ${list.length} codes`;
  };
  cells.forEach((cell, i) => {
    for (const event of ["mouseenter", "focus"]) cell.addEventListener(event, () => show(i));
    for (const event of ["mouseleave", "blur"]) cell.addEventListener(event, () => show());
  });
  slider.addEventListener("input", () => show());
  const play = () => {
    slider.value = 0;
    say("playing");
    const timer = setInterval(() => {
      slider.value = Number(slider.value) + 1;
      show();
      if (Number(slider.value) >= list.length) clearInterval(timer);
    }, Math.max(20, 2500 / list.length));
    stop.addEventListener("abort", () => clearInterval(timer));
  };
  after.canvas.setAttribute("aria-label", run.task === "draw" ? "the drawing" : "the copy, made from the codes");
  before?.canvas.setAttribute("aria-label", "the image, as the model reads it");
  show();
  const table = h("div", { class: "codes", style: { "--grid": grid } }, cells);
  const figure = (canvas, label) => h("figure", {}, canvas, h("figcaption", { class: "tip" }, label));
  return h("div", {},
    h("div", { class: "figure" },
      before && figure(before.canvas, "the image, as the model reads it"),
      figure(after.canvas, run.task === "draw" ? "the drawing" : "the copy, made from the codes"),
      h("figure", {}, table, h("figcaption", { class: "tip" }, `${grid} × ${grid} codes`))),
    h("div", { class: "tools" }, tool("play", false, play, { "aria-pressed": undefined }), slider), said);
}
