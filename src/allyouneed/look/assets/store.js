// The data of a page: what is shown, and arrays that are unpacked (saved page) or fetched (live page) when needed.

const fromBase64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Thousandths: low bytes, then high bytes. */
function parts(bytes) {
  const count = bytes.length / 2;
  const packed = new Float32Array(count);
  for (let i = 0; i < count; i++) packed[i] = (bytes[i] + 256 * bytes[count + i]) / 1000;
  return packed;
}

/** The matrix (rows x columns) behind the thousandths that are not above its diagonal. */
function lower(bytes, [rows, columns]) {
  const packed = parts(bytes);
  const whole = new Float32Array(rows * columns);
  for (let row = 0, at = 0; row < rows; row++) {
    whole.set(packed.subarray(at, at + row + 1), row * columns);
    at += row + 1;
  }
  return whole;
}

const READ = {
  parts,
  lower,
  float32: (bytes) => new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4),
  int32: (bytes) => new Int32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4),
  uint8: (bytes) => bytes,
  json: (bytes) => JSON.parse(new TextDecoder().decode(bytes)),
};

class Store {
  constructor(shown, bytes) {
    this.shown = shown;
    this.bytes = bytes; // name -> Promise of bytes
    this.known = new Map();
  }

  has(ref) {
    return Boolean(ref) && !(this.shown.missing ?? []).includes(ref.piece);
  }

  /** The numbers behind a reference of the view. */
  numbers(ref) {
    if (!this.known.has(ref.piece)) {
      if (this.known.size > 400) this.known.delete(this.known.keys().next().value);
      this.known.set(ref.piece, this.bytes(ref.piece).then((bytes) => READ[ref.type](bytes, ref.shape)));
    }
    return this.known.get(ref.piece);
  }
}

/** The stores of a saved page, one per run. */
export function savedStores(document) {
  const texts = new Map();
  for (const element of document.querySelectorAll("script[data-piece]")) {
    texts.set(element.dataset.piece, element);
  }
  const stores = [];
  for (let run = 0; texts.has(`${run}`); run++) {
    const shown = JSON.parse(texts.get(`${run}`).textContent);
    stores.push(new Store(shown, (name) => inflate(fromBase64(texts.get(`${run}/${name}`).textContent))));
  }
  return stores;
}

/** The store of a run of a live page, for a text or a file; an Error with the server's words if it cannot be read. Its
 * `ask` gives the store of the answer to a question about what is shown. */
export const liveStore = (run, given) => (typeof given === "string"
  ? fetched(run, `look/${run}?text=${encodeURIComponent(given)}`)
  : fetched(run, `look/${run}`, { method: "POST", body: given }));

async function fetched(run, address, options = {}) {
  const answer = await fetch(address, options);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error?.message ?? "the server could not answer");
  const store = new Store(found.shown, async (name) => {
    const piece = await fetch(`look/${run}/${found.key}/${encodeURIComponent(name)}`);
    if (!piece.ok) throw new Error("the numbers are no longer there: ask for the text again");
    return new Uint8Array(await piece.arrayBuffer());
  });
  store.ask = (question, asked) => fetched(run, `look/${run}/${found.key}/${encodeURIComponent(question)}`,
    { method: "POST", body: JSON.stringify(asked) });
  return store;
}
