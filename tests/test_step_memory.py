"""What a step of training takes: measured with a few examples, and compared with the whole batch."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from allyouneed import catalog
from allyouneed.data.batches.base import Batch
from allyouneed.predict.processor import freeze_body
from allyouneed.recipe import read_recipe
from allyouneed.training.memory import estimate, lasting, measure_activations, micro_batches
from families import FAMILIES, made


def learner(name: str) -> tuple[Any, Any, Any]:
    """A task, a model that learns, and its loss."""
    run = made(name)
    task, model = run.task, deepcopy(run.model).requires_grad_().train()

    def loss(batch: Batch) -> Tensor:
        return sum(task.losses(model, batch).values())

    return task, model, loss


QUICK = ("classify-rnn", "convseq2seq", "gpt")
LEARNERS = sorted(FAMILIES.keys() - {"word2vec"})  # which learns in place, block by block


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in LEARNERS]
)
def test_a_few_examples_tell_what_a_batch_takes(name: str) -> None:
    task, model, loss = learner(name)
    train = replace(task.recipe.train, batch_tokens=4096, accumulate=1)
    examples = task.examples("train")
    batch = examples.collate(examples.plan(train.seed, 0, train.batch_tokens)[0])
    whole = measure_activations(model, partial(loss, batch))
    found = estimate(train, task, model, loss)
    assert whole / 2 < found.activations < 2 * whole
    assert (found.weights, found.optimizer) == lasting(model, adam=train.optimizer == "adamw")
    assert found.available > 1 << 28


def test_what_is_measured_leaves_everything_as_it_was() -> None:
    task, model, loss = learner("transformer")
    before, state = deepcopy(model.state_dict()), torch.random.get_rng_state()
    assert estimate(task.recipe.train, task, model, loss).activations > 0
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_the_layers_that_do_not_learn_take_less() -> None:
    taken = []
    for what in ("", "1", "body"):
        task, model, loss = learner("classify-bert")
        freeze_body(model.body, what)
        taken.append(estimate(task.recipe.train, task, model, loss).activations)
    assert taken[0] > taken[1] > taken[2]


def test_what_does_not_fit_is_cut_into_micro_batches() -> None:
    task, model, loss = learner("gpt")
    train = replace(task.recipe.train, accumulate=2)
    need = estimate(train, task, model, loss)
    assert micro_batches(train, need) == (2, [f"memory: {need}"])
    lasts = need.weights + need.optimizer
    pieces, lines = micro_batches(train, replace(need, available=lasts + need.activations // 3))
    assert pieces == 8
    assert lines[1].startswith("this exceeds the available memory: 8 micro-batches per step, about ")


def test_every_model_is_measured() -> None:
    assert {read_recipe(recipe).model_kind for recipe, _, _ in FAMILIES.values()} == catalog.MODELS.keys()
