// A figure as SVG or PNG, a matrix as CSV or NumPy text.

import { h, say, tool } from "look/draw.js";

function download(name, blob) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 5000);
}

const STYLED = [
  "fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-linecap", "font-family", "font-size",
  "font-weight", "text-anchor", "image-rendering", "opacity", "direction",
];

/** The figure with its styles inside, so that it looks the same anywhere. */
export function svgText(figure) {
  const copy = figure.cloneNode(true), to = [copy, ...copy.querySelectorAll("*")];
  [figure, ...figure.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(element);
    for (const name of STYLED) to[i].style.setProperty(name, style.getPropertyValue(name));
  });
  const { width, height } = figure.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  copy.style.background = getComputedStyle(document.documentElement).getPropertyValue("--card");
  return new XMLSerializer().serializeToString(copy);
}

const svgFile = (figure) => new Blob([svgText(figure)], { type: "image/svg+xml" });

async function png(figure) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(figure))}`;
  await image.decode();
  const { width, height } = figure.viewBox.baseVal, canvas = h("canvas", { width: 2 * width, height: 2 * height });
  const pen = canvas.getContext("2d");
  pen.scale(2, 2);
  pen.drawImage(image, 0, 0, width, height);
  return new Promise((found) => canvas.toBlob(found, "image/png"));
}

const cell = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);

const digits = (value) => +value.toFixed(6);

/** The numbers of a row of a matrix. */
const row = ({ values, columns, write = digits }, i) => {
  return Array.from(values.slice(i * columns.length, (i + 1) * columns.length), (value) => write(value));
};

/** A matrix with the names of its rows and columns. */
export function csvText(found) {
  const lines = found.rows.map((name, i) => [cell(name), ...row(found, i)].join(","));
  return `${[["", ...found.columns].map(cell).join(","), ...lines].join("\n")}\n`;
}

export function numpyText(found) {
  const lines = found.rows.map((_, i) => `    [${row(found, i).join(", ")}],`);
  return `np.array([\n${lines.join("\n")}\n])`;
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea", {}, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  say(`${what} copied`);
}

const plain = (label, title, click) => tool(label, false, click, { title, "aria-pressed": undefined });
const exact = (none) => (value) => (Number.isFinite(value) ? +value.toPrecision(9) : `${value < 0 ? "-" : ""}${none}`);

/** Buttons that copy a matrix, with all digits. */
export const copyTools = (matrix) => [
  plain("CSV", "copy the numbers as CSV", () => copy(csvText({ ...matrix(), write: exact("inf") }), "CSV")),
  plain("NumPy", "copy the numbers for NumPy", () => {
    return copy(numpyText({ ...matrix(), write: exact("np.inf") }), "NumPy text");
  }),
];

/** Buttons that save the figure that `figure()` gives, and copy the matrix that `matrix()` gives. */
export function saveTools(name, figure, matrix) {
  return [
    plain("SVG", "save the figure as SVG", () => download(`${name}.svg`, svgFile(figure()))),
    plain("PNG", "save the figure as PNG", async () => download(`${name}.png`, await png(figure()))),
    matrix && plain("CSV", "copy the numbers as CSV", async () => copy(csvText(await matrix()), "CSV")),
    matrix && plain("NumPy", "copy the numbers for NumPy", async () => copy(numpyText(await matrix()), "NumPy text")),
  ];
}
