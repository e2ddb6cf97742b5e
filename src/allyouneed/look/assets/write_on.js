// Answers that are written on from another token. The address says how, so that a link asks for the same one again: one
// way to write on after the other, each "step_token" or "step_token_temperature_k_p_seed"; token -1 is any.

const NUMBER = "-?\\d+(?:\\.\\d+)?(?:e-?\\d+)?", WAY = new RegExp(`^${NUMBER}(?:_${NUMBER})*$`);

/** These ways, and one more. */
export function oneMore(ways, step, token, settings) {
  const { temperature, k, p, seed } = settings ?? {};
  return [ways, [step, token, ...(settings ? [temperature, k, p, seed] : [])].join("_")].filter(Boolean).join("*");
}

/** What the server is asked. */
function question(way) {
  if (!WAY.test(way)) throw new Error("the address does not say how to write on");
  const [step, token, temperature, top_k, top_p, seed] = way.split("_").map(Number);
  return { step, token, ...(temperature === undefined ? {} : { temperature, top_k, top_p, seed }) };
}

/** The store of the answer that goes on one way from another one: it knows which token was chosen, at which step. */
async function follow(store, way) {
  const asked = question(way), { step, token } = asked, { prompt, names } = store.shown.writing;
  if (!store.ask) throw new Error("the address asks for an answer that was written on: only the live page can do that");
  const found = await store.ask("write on", asked);
  return Object.assign(found, { word: names[token] ?? "", step: step < prompt ? found.shown.writing.prompt : step });
}

/** The store of the answer that `ways` lead to. A store remembers the last one that was written on from it. */
export async function writtenOn(store, ways) {
  let at = store;
  for (const way of ways.split("*").filter(Boolean)) {
    if (at.next?.way !== way) at.next = { way, store: await follow(at, way) };
    at = at.next.store;
  }
  return at;
}
