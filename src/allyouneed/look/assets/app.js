// The page: a bar, and a panel for each run with its views.

import * as answer from "look/answer.js";
import * as attention from "look/attention.js";
import * as inside from "look/inside.js";
import * as hand from "look/hand.js";
import * as likely from "look/likely.js";
import * as writing from "look/writing.js";
import * as gates from "look/gates.js";
import * as checkpoints from "look/checkpoints.js";
import * as learning from "look/learning.js";
import * as architecture from "look/architecture.js";
import * as vocabulary from "look/vocabulary.js";
import { count, h, say, tool } from "look/draw.js";
import { State } from "look/state.js";
import { liveStore, savedStores } from "look/store.js";

const VIEWS = [
  answer, writing, attention, hand, gates, inside, likely, vocabulary, checkpoints, learning, architecture,
];

/** What this browser remembers, if it may. */
function remembered(theme) {
  try {
    if (theme) localStorage.setItem("look-theme", theme);
    return localStorage.getItem("look-theme");
  } catch {
    return null; // a page from disk, or a frame, may have no memory
  }
}

/** The button that changes between light and dark. */
function theme() {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = remembered() ?? (dark ? "dark" : "light");
  return tool("light / dark", false, () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    remembered(root.dataset.theme);
    dispatchEvent(new Event("theme"));
  }, { "aria-pressed": undefined });
}

/** What a run is, in a line. */
function facts({ task, model, parameters, step, precision, device }) {
  const size = parameters && `${count(parameters)} parameters`;
  const found = [task, model, size, step && `step ${step}`, precision, device];
  return h("p", { class: "facts" }, found.filter(Boolean).map((fact) => h("span", {}, fact)));
}

class Panel {
  constructor(number, state, store, live) {
    Object.assign(this, { number, state, live });
    this.root = h("section", { class: "panel" });
    state.on((changes) => "view" in changes && this.show());
    addEventListener("theme", () => this.show());
    addEventListener("hashchange", () => this.goToAddress());
    this.take(store);
  }

  /** Show what is in a store. */
  take(store) {
    this.store = store;
    this.following?.abort();
    this.following = new AbortController();
    const { run, text, notes = [] } = store.shown;
    if (this.live) {
      const again = async () => this.take(await liveStore(this.number, ""));
      learning.follow(this.number, store.shown, this.following.signal, again);
    }
    this.body = h("div", { role: "tabpanel" });
    this.tabs = h("nav", { class: "views", role: "tablist", "aria-label": "views" });
    const asked = text ? h("p", { class: "asked", dir: "auto" }, text) : "";
    this.root.replaceChildren(
      h("header", {}, h("h1", {}, run.name), facts(run)),
      this.live && run.asks ? this.ask(store.shown) : asked,
      ...notes.map((note) => h("p", { class: "note", dir: "auto" }, note)),
      this.tabs, this.body);
    this.show();
  }

  /** Where a text is typed, or a file is chosen, and what can be asked to start with. */
  ask({ text, run, starts = [] }) {
    const form = run.reads === "image" ? this.fileForm() : this.textForm(text, run.asks);
    const start = (given) => h("button", {
      type: "button", class: "tool", dir: "auto", onclick: () => this.send(given),
    }, given);
    return h("div", {}, form, starts.length ? h("div", { class: "starts" }, starts.map(start)) : "");
  }

  fileForm() {
    const file = h("input", { type: "file", accept: "image/*", "aria-label": "an image" });
    file.addEventListener("change", () => file.files[0] && this.send(file.files[0]));
    return h("form", { class: "ask" }, file);
  }

  textForm(text, asks) {
    const typed = h("textarea", { "aria-label": asks, placeholder: asks, dir: "auto", rows: 1 }, text);
    const submit = (event) => {
      event.preventDefault();
      this.send(typed.value);
    };
    typed.addEventListener("keydown", (event) => event.key === "Enter" && !event.shiftKey && submit(event));
    return h("form", { class: "ask", onsubmit: submit }, typed, h("button", {}, "Look"));
  }

  /** Ask about a text that was typed, or a file that was chosen. */
  send(given) {
    const text = typeof given === "string" ? given : "";
    return this.load(given, { text, on: "" }); // an answer that was written on is one of the text before
  }

  /** Show what another address says. */
  goToAddress() {
    const before = this.state.get("text");
    this.state.readAddress();
    const text = this.state.get("text");
    if (this.live && text !== before) this.load(text);
    else this.show();
  }

  /** Ask the server about a text or a file, and choose something else with it. */
  async load(given, changes = {}) {
    say("reading");
    this.root.setAttribute("aria-busy", "true");
    try {
      const store = await liveStore(this.number, given);
      this.stop.abort(); // what is shown is of the text before
      this.state.set(changes);
      this.take(store);
      say("done");
    } catch (error) {
      this.root.querySelectorAll(".note").forEach((note) => note.remove());
      this.tabs.before(h("p", { class: "note", role: "alert", dir: "auto" }, error.message));
    }
    this.root.removeAttribute("aria-busy");
  }

  show() {
    this.stop?.abort();
    this.stop = new AbortController();
    const { shown } = this.store, views = VIEWS.filter((view) => view.has(shown));
    const chosen = views.find((view) => view.name === this.state.get("view")) ?? views[0];
    const tab = (view) => h("button", {
      type: "button", role: "tab", "aria-selected": String(view === chosen), tabindex: view === chosen ? 0 : -1,
      onclick: () => this.state.set({ view: view.name }), onkeydown: (event) => this.step(event, views, view),
    }, view.title);
    this.tabs.replaceChildren(...views.map(tab));
    this.body.replaceChildren();
    this.body.setAttribute("aria-label", chosen.title);
    const { store, state, live, number: run } = this;
    this.draw(chosen, { shown, store, state, live, run, stop: this.stop.signal });
  }

  /** A view that fails says so, and leaves the others alone. */
  async draw(view, context) {
    this.body.setAttribute("aria-busy", "true");
    try {
      await view.draw(this.body, context);
    } catch (error) {
      console.error(error);
      this.body.append(h("p", { class: "note", role: "alert" }, `This view cannot be shown: ${error.message}`));
    }
    if (!context.stop.aborted) this.body.removeAttribute("aria-busy");
  }

  /** The arrow keys go from tab to tab. */
  step(event, views, view) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.state.set({ view: views[(views.indexOf(view) + by + views.length) % views.length].name });
    this.tabs.querySelector("[aria-selected=true]").focus();
  }
}

/** The stores of a live page: each for the text in its address, if it can be read. */
function liveStores(states) {
  const one = async (state, run) => {
    try {
      return await liveStore(run, state.get("text"));
    } catch {
      return liveStore(run, "");
    }
  };
  return Promise.all(states.map(one));
}

export async function start(document) {
  const page = document.getElementById("page"), live = document.querySelector("script[data-live]");
  const space = h("span", { class: "space" });
  const bar = h("div", { class: "bar" }, h("b", {}, "allyouneed"), "a look inside", space, theme());
  try {
    const saved = live ? [] : savedStores(document), several = live ? Number(live.dataset.live) : saved.length;
    const states = Array.from({ length: several }, (_, run) => new State(run));
    const stores = live ? await liveStores(states) : saved;
    page.style.setProperty("--panels", several);
    const panels = stores.map((store, run) => new Panel(run, states[run], store, Boolean(live)));
    const together = several > 1 ? learning.together(panels, states[0]) : "";
    page.replaceChildren(bar, together, ...panels.map((panel) => panel.root));
  } catch (error) {
    page.replaceChildren(bar, h("p", { class: "note", role: "alert" }, `This page cannot be shown: ${error.message}`));
  }
  page.removeAttribute("aria-busy");
}
