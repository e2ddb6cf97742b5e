"""A step that is compiled: the same tokens as without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import allyouneed as ayn
from allyouneed.decode import Request
from allyouneed.errors import UserError
from allyouneed.models.dalle import DALLE, DALLEConfig
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.transformer import Transformer, TransformerConfig
from allyouneed.nn.block import Stack
from allyouneed.predict.processor import compile_step
from allyouneed.predict.writer import Writer

SIZES: dict[str, Any] = {"layers": 2, "heads": 2, "width": 32}


def given(kind: str) -> tuple[Any, list[Any]]:
    """A model, and inputs of several lengths."""
    torch.manual_seed(1)
    model: Any
    if kind == "transformer":
        model = Transformer(TransformerConfig(**SIZES, vocab=50, target_vocab=50))
    elif kind == "dalle":
        model = DALLE(DALLEConfig(**SIZES, vocab=40, caption=6, codes=50, grid=4, dropout=0.0))
    else:
        model = GPT(GPTConfig(**SIZES, kv_heads=1, vocab=50, positions="rotary", dropout=0.0))
    for p in model.eval().parameters():
        torch.nn.init.normal_(p, std=0.3)
    inputs = [[3 + i] * (1 + 2 * i) for i in range(3)]
    return model, [model.prompt(some) for some in inputs] if kind == "dalle" else inputs


def written(model: Any, requests: Sequence[Request]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    with Writer(model).session(4) as session:
        for request in requests:
            session.add(request)
        while session.open:
            for event in session.wait():
                some = [h.tokens for h in event.hypotheses] if event.hypotheses else event.token
                found.setdefault(event.id, []).append(some)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt", "transformer", "dalle"])
def test_a_compiled_step_gives_the_same_tokens(kind: str) -> None:
    model, inputs = given(kind)
    guided = {"guidance": 1.5, "free": model.prompt([])} if kind == "dalle" else {}
    requests = [Request(some, 12, seed=i, **guided) for i, some in enumerate(inputs)]
    requests += [Request(some, 12, 0.8, top_k=9, top_p=0.9, seed=i, **guided) for i, some in enumerate(inputs)]
    if kind != "dalle":
        requests += [Request(some, 12, beam=2) for some in inputs]
    plain = written(model, requests)
    compile_step(model, "cpu")
    assert model.compiled
    calls = []
    for stack in (module for module in model.modules() if isinstance(module, Stack)):
        run = stack.step
        stack.step = lambda *block, run=run, **given: calls.append(1) or run(*block, **given)
    assert written(model, requests) == plain
    assert len(calls) >= 2 * 11  # blocks, tokens after the first


def test_compile_is_refused_where_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = "train.steps=1", "train.device=cpu"
    for recipe, words in (("lm/lstm", "made of blocks, such as gpt"), ("classify/conv", "this run does not write")):
        ayn.train(recipe, *tiny, out=tmp_path / recipe)
        with pytest.raises(UserError, match=words):
            ayn.load(tmp_path / recipe, "cpu", engine="compiled")
    ayn.train("lm/gpt", *tiny, out=tmp_path / "gpt")
    with pytest.raises(UserError, match="there is no engine 'compile'; did you mean 'compiled'"):
        ayn.load(tmp_path / "gpt", "cpu", engine="compile")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match="cannot be compiled here: there is no C\\+\\+ compiler"):
        ayn.load(tmp_path / "gpt", "cpu", engine="compiled")
    monkeypatch.undo()
    run = ayn.load(tmp_path / "gpt", "cpu", engine="compiled")
    assert run.model.compiled
    assert run.info()["loaded"] == {"device": "cpu", "precision": "fp32", "engine": "compiled"}
