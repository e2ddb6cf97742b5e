"""A model may have more rows than its tokenizer has tokens; nobody can mean these rows, and they are never chosen."""

from __future__ import annotations

import re
import shutil

import pytest
import torch

from allyouneed.errors import UserError
from allyouneed.run import load, train
from commands import accept_recipe
from conftest import TINY_LM, TINY_TRANSLATE


@pytest.mark.slow
@pytest.mark.parametrize("method", ["greedy", "sample", "beam"])
@pytest.mark.parametrize("recipe", ["lm/gpt", "lm/lstm", "translate/transformer"])
def test_rows_beyond_the_tokenizer_are_never_chosen(recipe, method, story, pairs, tmp_path):
    lm = recipe.startswith("lm")
    tiny = [s for s in (TINY_LM if lm else TINY_TRANSLATE) if recipe != "lm/lstm" or "heads" not in s]
    more = ["model.vocab=500", *([] if lm else ["model.target_vocab=500"]), "model.tie=false", "train.steps=2"]
    run = train(recipe, *tiny, *more, data=story if lm else pairs, out=tmp_path / "run", quiet=True)
    tokens = len(run.task.tokenizer)
    assert tokens < 500 == run.model.head.out.out_features
    with torch.no_grad():
        run.model.head.out.weight[tokens:] = 100 * run.model.head.out.weight[:1]  # by far the most likely
    (answer,) = run.answers(["one two three"], method=method, max_new=8)
    assert all(token < tokens for token in answer.tokens)
    likely = run.table("one two three", most=tokens)[0].likely
    assert len(likely) == tokens
    assert sum(p for _, p in likely) == pytest.approx(1, abs=1e-4)


def test_fewer_rows_than_tokens_are_refused(story, tmp_path):
    with pytest.raises(UserError, match=r"model\.vocab = 3 is less than the \d+ tokens of the tokenizer"):
        train("lm/gpt", *TINY_LM, "model.vocab=3", data=story, out=tmp_path / "run", quiet=True)


def test_a_run_that_was_not_trained_here_can_be_used(lm, tmp_path):
    """Only what a run consists of: no metrics, no checkpoints, no scores, no images, no settings of a training."""
    parts = ("recipe.toml", "config.json", "tokenizer.json", "model.safetensors")
    (tmp_path / "bare").mkdir()
    for name in parts:
        shutil.copy(lm / name, tmp_path / "bare" / name)
    recipe = (lm / "recipe.toml").read_text()
    (tmp_path / "bare" / "recipe.toml").write_text(re.sub(r"\[train\]\n(.+\n)*", "", recipe))
    accept_recipe(tmp_path / "bare")
    assert "[train]" not in (tmp_path / "bare" / "recipe.toml").read_text()
    bare, whole = load(tmp_path / "bare"), load(lm)
    assert bare.predict("one two", max_new=5) == whole.predict("one two", max_new=5)
    assert bare.info()["parameters"] == whole.info()["parameters"]
    assert bare.scores() == {}
    assert bare.test(say=lambda line: None)[0].value == pytest.approx(whole.test(say=lambda line: None)[0].value)
