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

function theme(document) {
  const root = document.documentElement;
  const stored = () => { try { return localStorage.getItem("look-theme"); } catch { return null; } };
  root.dataset.theme = stored() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  return tool("light / dark", false, () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("look-theme", root.dataset.theme); } catch { /* a page from disk may not store */ }
    dispatchEvent(new Event("theme"));
  }, { "aria-pressed": undefined });
}

class Panel {
  constructor(number, store, live) {
    this.number = number;
    this.live = live;
    this.root = h("section", { class: "panel" });
    this.state = new State(number, {});
    this.state.on((changes) => "view" in changes && this.show());
    addEventListener("theme", () => this.show());
    addEventListener("hashchange", () => { Object.assign(this.state.values, this.state.fromAddress()); this.show(); });
    this.take(store);
  }

  take(store) {
    this.store = store;
    this.following?.abort();
    this.following = new AbortController();
    if (this.live) learning.follow(this.number, store.shown, this.following.signal, async () => this.take(await liveStore(this.number, "")));
    const { run, text, notes = [], starts = [] } = store.shown;
    const facts = [run.task, run.model, run.parameters && `${count(run.parameters)} parameters`, run.step && `step ${run.step}`, run.precision, run.device];
    this.body = h("div", { role: "tabpanel" });
    this.tabs = h("nav", { class: "views", role: "tablist", "aria-label": "views" });
    this.root.replaceChildren(
      h("header", {}, h("h1", {}, run.name), h("p", { class: "facts" }, facts.filter(Boolean).map((fact) => h("span", {}, fact)))),
      this.live && run.asks ? this.ask(text, run.asks, starts) : text ? h("p", { class: "asked", dir: "auto" }, text) : "",
      ...notes.map((note) => h("p", { class: "note", dir: "auto" }, note)),
      this.tabs, this.body);
    this.show();
  }

  ask(text, asks, starts) {
    const typed = h("textarea", { "aria-label": asks, placeholder: asks, dir: "auto", rows: 1 }, text);
    const send = async (words) => {
      say("reading");
      this.root.setAttribute("aria-busy", "true");
      try {
        this.take(await liveStore(this.number, words));
        say("done");
      } catch (error) {
        this.root.querySelectorAll(".note").forEach((note) => note.remove());
        form.after(h("p", { class: "note", role: "alert", dir: "auto" }, error.message));
      }
      this.root.removeAttribute("aria-busy");
    };
    typed.addEventListener("keydown", (event) => { if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); send(typed.value); } });
    const file = h("input", { type: "file", accept: "image/*", "aria-label": "an image", onchange: () => file.files[0] && send(file.files[0]) });
    const form = this.store.shown.run.reads === "image"
      ? h("form", { class: "ask" }, file)
      : h("form", { class: "ask", onsubmit: (event) => { event.preventDefault(); send(typed.value); } }, typed, h("button", {}, "Look"));
    return h("div", {}, form, starts.length ? h("div", { class: "starts" }, starts.map((start) => h("button", { type: "button", class: "tool", dir: "auto", onclick: () => send(start) }, start))) : "");
  }

  show() {
    this.stop?.abort();
    this.stop = new AbortController();
    const views = VIEWS.filter((view) => view.has(this.store.shown));
    const chosen = views.find((view) => view.name === this.state.get("view")) ?? views[0];
    this.tabs.replaceChildren(...views.map((view) => h("button", {
      type: "button", role: "tab", "aria-selected": String(view === chosen), tabindex: view === chosen ? 0 : -1,
      onclick: () => this.state.set({ view: view.name }),
      onkeydown: (event) => this.step(event, views, view),
    }, view.title)));
    this.body.replaceChildren();
    this.body.setAttribute("aria-label", chosen.title);
    this.draw(chosen, { shown: this.store.shown, store: this.store, state: this.state, live: this.live, run: this.number, stop: this.stop.signal });
  }

  /** A view that fails says so, and leaves the others alone. */
  async draw(view, context) {
    try {
      await view.draw(this.body, context);
    } catch (error) {
      console.error(error);
      this.body.append(h("p", { class: "note", role: "alert" }, `This view cannot be shown: ${error.message}`));
    }
  }

  step(event, views, view) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.state.set({ view: views[(views.indexOf(view) + by + views.length) % views.length].name });
    this.tabs.querySelector("[aria-selected=true]").focus();
  }
}

export async function start(document) {
  const page = document.getElementById("page"), live = document.querySelector("script[data-live]");
  const bar = h("div", { class: "bar" }, h("b", {}, "allyouneed"), "a look inside", h("span", { class: "space" }), theme(document));
  try {
    const text = new URLSearchParams(location.hash.slice(1)).get("text") ?? "";
    const stores = live ? await Promise.all(Array.from({ length: Number(live.dataset.live) }, (_, run) => liveStore(run, text))) : savedStores(document);
    page.style.setProperty("--panels", stores.length);
    const panels = stores.map((store, number) => new Panel(number, store, Boolean(live)));
    page.replaceChildren(bar, panels.length > 1 ? learning.together(panels, panels[0].state) : "", ...panels.map((panel) => panel.root));
  } catch (error) {
    page.replaceChildren(bar, h("p", { class: "note", role: "alert" }, `This page cannot be shown: ${error.message}`));
  }
  page.removeAttribute("aria-busy");
}
