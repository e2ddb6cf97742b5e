// What is chosen on a page. It is kept in the address, so that a link shows the same view.

export class State {
  constructor(number) {
    this.prefix = number ? `${number + 1}.` : "";
    this.listeners = new Set();
    this.readAddress();
  }

  /** Choose what the address says, and nothing else. */
  readAddress() {
    this.values = {};
    for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
      const own = this.prefix ? key.startsWith(this.prefix) : !/^\d+\./.test(key);
      if (own) this.values[key.slice(this.prefix.length)] = value;
    }
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
