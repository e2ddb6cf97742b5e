"""torch.compile, block by block: few graphs over a real epoch, the same numbers, and no trace of it on disk."""

from __future__ import annotations

import pytest
import torch

from allyouneed.runtime import can_compile
from allyouneed.tensorfile import read_tensors
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose
from conftest import TINY_LM, TINY_TRANSLATE

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(can_compile("cpu")), reason=can_compile("cpu"))]


@pytest.fixture(autouse=True)
def _deterministic_again():
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(("recipe", "most"), [("lm/gpt", 2), ("translate/transformer", 8)])
def test_a_real_epoch_needs_few_graphs_and_gives_the_eager_weights(recipe, most, story, pairs, tmp_path):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    lm = recipe == "lm/gpt"
    settings = [*(TINY_LM if lm else TINY_TRANSLATE), "model.dropout=0", "train.optimizer=sgd", "train.lr=0.1"]
    settings += ["model.layers=2", "train.steps=30"]
    found = {}
    for mode in ("off", "on"):
        chosen = choose(recipe, [*settings, f"train.compile={mode}"], str(story if lm else pairs))
        fit(chosen, tmp_path / mode, quiet=True)
        found[mode] = read_tensors(tmp_path / mode / "model.safetensors")
    assert found["on"].keys() == found["off"].keys()
    for name, tensor in found["on"].items():
        torch.testing.assert_close(tensor, found["off"][name], atol=1e-4, rtol=1e-3)
    graphs = counters["stats"]["unique_graphs"]
    assert 0 < graphs <= most, graphs
