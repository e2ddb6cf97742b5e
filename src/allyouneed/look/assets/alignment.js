// A translation and its source: a word of one lights up those of the other that it attends to.

import { colour, h, isDark, part, visible } from "look/draw.js";

export async function alignment({ alignment: found }, store) {
  const { source, target } = found, weights = await store.numbers(found.weights);
  const word = (text) => h("button", { type: "button", class: "word", dir: "auto" }, visible(text));
  const below = source.map(word), above = target.map(word), said = h("p", { class: "reading" });
  const weight = (row, column) => weights[row * source.length + column];
  const paint = (buttons, values) => buttons.forEach((button, i) => {
    button.style.background = values ? colour(values[i]) : "";
    button.style.color = values && values[i] > 0.45 ? (isDark() ? "#10141a" : "#ffffff") : "";
  });
  const light = (row, column) => {
    paint(below, row >= 0 && source.map((_, i) => weight(row, i)));
    paint(above, column >= 0 && target.map((_, i) => weight(i, column)));
    if (row < 0 && column < 0) {
      said.textContent = "Point at a word, or move to it with the Tab key.";
      return;
    }
    const word = row >= 0 ? `${visible(target[row])} attends to` : `${visible(source[column])} is attended to by`;
    const value = (i) => (row >= 0 ? weight(row, i) : weight(i, column));
    const others = (row >= 0 ? source : target).map((name, i) => [name, value(i)]).sort((a, b) => b[1] - a[1]);
    said.textContent = `${word} ${others.slice(0, 4).map(([name, one]) => `${visible(name)} ${part(one)}`).join(", ")}`;
  };
  const listen = (button, row, column) => {
    for (const event of ["mouseenter", "focus", "click"]) button.addEventListener(event, () => light(row, column));
    for (const event of ["mouseleave", "blur"]) button.addEventListener(event, () => light(-1, -1));
  };
  above.forEach((button, i) => listen(button, i, -1));
  below.forEach((button, i) => listen(button, -1, i));
  light(-1, -1);
  return h("div", { class: "aligned" },
    h("p", { class: "words", dir: "auto", "aria-label": "the answer" }, above),
    h("p", { class: "words soft", dir: "auto", "aria-label": "the source" }, below),
    said, h("p", { class: "tip" }, found.shown && `Shown: ${found.shown}.`));
}
