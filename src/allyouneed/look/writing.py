"""Writing: the distribution from which each token of an answer was chosen, and the tree of a beam search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig, build
from allyouneed.errors import UserError
from allyouneed.look.view import View
from allyouneed.predict.answers import Prompt
from allyouneed.predict.base import Writing
from allyouneed.predict.images import ImageTokenizer

STORED = 200  # logits of each step, the largest; of a small vocabulary all
SMALL = 2000  # tokens of a vocabulary of which all logits are stored
PROMPT, ANSWER = 100, 400  # steps that are shown: the last ones of a prompt, the first ones of an answer
TEMPERATURES = (0.0, *(n / 10 for n in range(1, 16)), 1.75, 2.0, 2.5, 3.0, 5.0)
SETTINGS = ("temperature", "top_k", "top_p", "seed")
BEAM, MOST_BEAM = 4, 16  # of the search that a translator shows by default; of any that is shown


def show_writing(
    view: View, predictor: Writing, given: Any, tokens: list[int], reason: str, decode: DecodeConfig
) -> None:
    """view.shown["writing"]: every step of an answer, of a language model those of its prompt, too. `tokens` are those
    of the answer with its end, of a drawing its codes; `reason` is why it ended."""
    lead, prompt, drawing = given, list[int](), predictor.makes_image
    reads = predictor.model.prompted and not drawing
    if reads:
        first = max(1, len(given.ids) - PROMPT)
        lead, prompt = replace(given, ids=given.ids[:first]), given.ids[first:]
    steps = [*prompt, *tokens[:ANSWER]]
    if not steps:
        return
    named = predictor.tokenizer if reads else predictor.processor.tokenizers["tokenizer.json"]
    shown = view.shown["writing"] = {
        "before": [named.token(id) for id in lead.ids],  # a source, a caption, or the first tokens of a text
        "translates": not reads,
        "prompt": len(prompt),
        "left_out": len(tokens[ANSWER:]),
        "reason": reason,
        "decode": {name: getattr(decode, name) for name in ("method", *SETTINGS, *["guidance"] * drawing)},
        **_steps(view, predictor, predictor.steps(lead, steps), steps, decode),
    }
    if drawing:
        shown["drawing"] = show_drawing(view, predictor, tokens, map(int, shown["names"]))

    def write_on(step: int, token: int = -1, **settings: Any) -> View:
        """The answer that goes on otherwise from a step: with this token, or with one that these settings choose."""
        if not 0 <= step < len(steps) or not -1 <= token < shown["vocab"]:
            raise UserError(f"there is no step {step}, or no token {token}: ask for the text again")
        if settings.keys() - set(SETTINGS):
            raise LookupError(settings)
        own = {**vars(decode), "n_best": 1}
        chosen = build(DecodeConfig, {**own, **settings, "method": "sample"} if settings else own, "decode")
        prefix = given if step >= len(prompt) else replace(given, ids=[*lead.ids, *prompt[:step]])
        begun = [*tokens[: max(0, step - len(prompt))], *([token] if token >= 0 else [])]
        other = View()
        show_writing(other, predictor, prefix, *predictor.write_on(prefix, begun, chosen), decode)
        return other

    view.questions["write on"] = write_on


def show_drawing(view: View, predictor: Any, codes: list[int], named: Iterable[int]) -> dict[str, Any]:
    """The image of these codes and, of each code that has a name, the patch that it makes among codes like it."""
    tokenizer: ImageTokenizer = predictor.processor.image_tokenizer
    grid, (image,) = tokenizer.config.grid, tokenizer.decode(np.array([codes]))
    alone = tokenizer.decode(np.repeat(np.array([*named])[:, None], grid**2, axis=1))
    at, size = grid // 2 * (side := len(image) // grid), (len(alone) * side, side, image.shape[-1])
    patches = alone[:, at : at + side, at : at + side].reshape(size)
    return {
        "grid": grid,
        "image": view.put("writing.image", image, "uint8"),
        "patches": view.put("writing.patches", patches, "uint8"),
    }


def _steps(view: View, predictor: Writing, logits: Tensor, steps: list[int], decode: DecodeConfig) -> dict[str, Any]:
    """The largest logits of each step, in the order of `decode`; of all others, what a softmax and an entropy need."""
    vocab = logits.shape[1]
    stored, temperatures = vocab if vocab <= SMALL else STORED, sorted({*TEMPERATURES, decode.temperature})
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    ranks = (order == torch.tensor(steps)[:, None]).int().argmax(1)
    ids, rest = order[:, :stored].clone(), logits.gather(1, order[:, stored:])
    top = logits.gather(1, ids)
    names = range(vocab) if stored == vocab else sorted({*ids.flatten().tolist(), *steps})
    others = torch.stack([_others(row, best, temperatures) for row, best in zip(rest, top[:, 0].double())])
    return {
        "tokens": steps,
        "ranks": ranks.tolist(),
        "own": logits.gather(1, torch.tensor(steps)[:, None])[:, 0].tolist(),
        "vocab": vocab,
        "names": {str(id): str(id) if predictor.makes_image else predictor.tokenizer.token(id) for id in names},
        "temperatures": temperatures,
        "ids": view.put("writing.ids", ids.numpy(), "int32"),
        "logits": view.put("writing.logits", top),
        "others": view.put("writing.others", others),
    }


def _others(row: Tensor, best: Tensor, temperatures: Sequence[float]) -> Tensor:
    """(temperatures, 2): of the logits that are not stored, log Σ exp(x) and the mean of x under their own softmax,
    where x = (logit - best) / temperature."""
    if not len(row):
        return torch.tensor([[-torch.inf, 0.0]] * len(temperatures), dtype=torch.double)
    x = (row.double() - best) / torch.tensor([max(t, 1e-6) for t in temperatures], dtype=torch.double)[:, None]
    mean = (x.softmax(-1) * x.nan_to_num(neginf=0.0)).sum(-1)
    return torch.stack([x.logsumexp(-1), mean], dim=1)


def show_beams(view: View, predictor: Writing, given: Prompt, decode: DecodeConfig) -> None:
    """view.shown["beams"]: the hypotheses of a beam search, each with the one that it continues. A translator has one
    even if it writes otherwise."""
    if decode.method != "beam":
        if predictor.model.prompted:
            return
        decode = replace(decode, method="beam", beam=BEAM, n_best=1)
    if decode.beam > MOST_BEAM:
        view.shown["notes"].append(f"a tree of more than {MOST_BEAM} beams is too wide to be shown")
        return
    found = predictor.trace(given, decode, ("beams",))
    nodes = list(_nodes({name.removeprefix("beams."): one.value.tolist() for name, one in found.items()}))
    ends = [i for i, node in enumerate(nodes) if node["score"] is not None]
    for node in nodes:
        node |= {"end": node["token"] == predictor.tokenizer.eos, "token": predictor.tokenizer.token(node["token"])}
    facts = {"beam": decode.beam, "alpha": decode.alpha, "penalty": decode.length_penalty}
    view.shown["beams"] = {"nodes": nodes, "winner": max(ends, key=lambda i: nodes[i]["score"]), **facts}


def _nodes(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each hypothesis of each step: those that go on, and those that compete for the answer, which have a score."""
    above, count = {0: -1}, 0
    for step, parents in enumerate(found["parents"]):
        here = dict[tuple[int, int], dict[str, Any]]()
        live = zip(parents, found["tokens"][step], found["logprobs"][step])
        tried = zip(*(found[f"found.{name}"][step] for name in ("parents", "tokens", "logprobs", "score")))
        below = dict[int, int]()
        for slot, (parent, token, logprob) in enumerate(live):
            if logprob > float("-inf"):
                below[slot] = count + len(here)
                here[parent, token] = {"parent": above[parent], "logprob": logprob, "score": None}
        for parent, token, logprob, score in tried:
            if score > float("-inf"):
                here.setdefault((parent, token), {"parent": above[parent], "logprob": logprob})["score"] = score
        for (_, token), node in here.items():
            yield {"step": step, "token": token, **node}
        above, count = below, count + len(here)
