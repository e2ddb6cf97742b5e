// What is chosen on a page. It is kept in the address, so that a link shows the same view.

export class State {
  constructor(number, defaults) {
    this.prefix = number ? `${number + 1}.` : "";
    this.values = { ...defaults, ...this.fromAddress() };
    this.listeners = new Set();
  }

  fromAddress() {
    const found = {};
    for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
      if (this.prefix ? key.startsWith(this.prefix) : !/^\d+\./.test(key)) found[key.slice(this.prefix.length)] = value;
    }
    return found;
  }

  get(key, otherwise = "") {
    return this.values[key] ?? otherwise;
  }

  /** A whole number from 0 to below `limit`; else what is `usual`. */
  index(key, limit, usual = -1) {
    const text = `${this.values[key] ?? ""}`;
    return /^\d+$/.test(text) && Number(text) < limit ? Number(text) : usual;
  }

  set(changes) {
    Object.assign(this.values, changes);
    const all = new URLSearchParams(location.hash.slice(1));
    for (const [key, value] of Object.entries(this.values)) {
      if (value === "" || value === undefined || value === null) all.delete(this.prefix + key);
      else all.set(this.prefix + key, value);
    }
    try {
      history.replaceState(null, "", `#${all}`);
    } catch {
      // a frame in a notebook has no address
    }
    for (const listener of [...this.listeners]) listener(changes);
  }

  /** Call `listener` with what has changed, until `signal` says stop. */
  on(listener, signal) {
    this.listeners.add(listener);
    signal?.addEventListener("abort", () => this.listeners.delete(listener));
  }
}
