"""Small runs with random weights, for the tests of exports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from allyouneed.run import Run

SMALL = {"width": 16, "heads": 4, "layers": 2, "hidden": 24, "context": 40}
LM_TEXTS, PAIR_TEXTS = ["o", "on", "one"], ["one", "two six", "four one five three"]


def other(run: Run, seed: int = 0, **model: Any) -> Run:
    """The run with another model, of which all weights are random and large."""
    torch.manual_seed(seed)
    recipe = run.recipe.with_(model=replace(run.recipe.model, **model))
    processor = type(run.processor)(recipe)
    processor.read_parts(run.processor.parts())
    made, inside = processor.build_model().eval(), 0.8 if recipe.model.prenorm else 0.3
    for name, p in made.named_parameters():
        spread = 0.2 if "tokens" in name else inside  # a token that is small is not always the next one, too
        p.data.copy_(spread * torch.randn_like(p) if p.dim() > 1 else p.data + 0.1 * torch.randn_like(p))
    return Run(run.folder, type(run.predictor)(processor, made), run.config)


def varied(run: Run, texts: list[str], **model: Any) -> tuple[Run, list[list[int]]]:
    """One whose greedy answers are not always the same token, and these answers."""
    for seed in range(100):
        made = other(run, seed, **model)
        answers = [answer.tokens for answer in made.answers(texts, method="greedy", max_new=20, stop=())]
        if len({token for answer in answers for token in answer}) > 2 and all(answers):
            return made, answers
    raise AssertionError(f"no such model was found: {model}")
