"""The checks of the exercises: a student's functions beside those of the library."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from allyouneed.data.batches.masked import MASKED, REPLACED
from allyouneed.models.vit import ViTConfig, cut_patches
from allyouneed.nn.attention import attend
from allyouneed.nn.masks import Mask
from allyouneed.nn.positions import sinusoid


class WrongError(Exception):
    """What is not right, in words."""


def equal(found: Any, wanted: Tensor, what: str, hint: str = "") -> None:
    """Raise a WrongError if a tensor is not the one that is wanted."""
    if not isinstance(found, Tensor):
        raise WrongError(f"{what} should be a tensor, not {type(found).__name__}")
    if found.shape != wanted.shape:
        raise WrongError(f"{what} should have the shape {tuple(wanted.shape)}, not {tuple(found.shape)}")
    if found.dtype.is_floating_point != wanted.dtype.is_floating_point:
        raise WrongError(f"{what} should have the type {wanted.dtype}, not {found.dtype}")
    if found.isnan().any():
        raise WrongError(f"{what} should not be NaN{hint and f'; {hint}'}")
    if not torch.allclose(found.double(), wanted.double(), atol=1e-4, rtol=1e-4):
        apart = float((found.double() - wanted.double()).abs().max())
        raise WrongError(f"{what} is off by up to {apart:.3g}{hint and f'; {hint}'}")


def _attention(seed: int = 0) -> tuple[Tensor, ...]:
    """Queries, keys and values, and what the library makes of them."""
    chance = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(*size, generator=chance) for size in ((3, 16), (5, 16), (5, 4)))
    out, weights = attend(q[None, None], k[None, None], v[None, None], weights=True)
    return q, k, v, out[0, 0], weights[0, 0]


def attention_weights(own: Any) -> None:
    q, k, v, _, wanted = _attention()
    found = own.attend(q, k, v)[1]
    if isinstance(found, Tensor) and found.shape == wanted.shape:
        if torch.allclose(found.sum(0), torch.ones(5), atol=1e-4):
            raise WrongError("the weights of each key add up to 1, not those of each query: along which axis?")
        if torch.allclose(found, (q @ k.T).softmax(-1), atol=1e-4):
            raise WrongError("the scores are not divided by the root of d_k")
        if torch.allclose(found, (q @ k.T / 16).softmax(-1), atol=1e-4):
            raise WrongError("the scores are divided by d_k, not by its root")
    equal(found, wanted, "the table of weights")


def attention_output(own: Any) -> None:
    q, k, v, wanted, _ = _attention(1)
    equal(own.attend(q, k, v)[0], wanted, "the output")


def attention_heads(own: Any) -> None:
    x = torch.randn(6, 12, generator=torch.Generator().manual_seed(2))
    equal(own.split_heads(x, 3), torch.stack(x.split(4, dim=1)), "split_heads", "head 1 has the first 4 of 12 columns")
    equal(own.join_heads(torch.stack(x.split(4, dim=1))), x, "join_heads", "it should undo split_heads")


def mask_causal(own: Any) -> None:
    for tokens in (5, 1):
        wanted = Mask(causal=True).tensor(tokens, tokens, torch.device("cpu"))
        assert wanted is not None
        found = own.causal(tokens)
        if isinstance(found, Tensor) and tokens > 1 and not found.diagonal().any():
            raise WrongError("a token should see itself, too")
        equal(found, wanted[0, 0], f"causal({tokens})", "row i sees the columns 0 to i")


def mask_padding(own: Any) -> None:
    lengths = torch.tensor([3, 1, 4])
    wanted = Mask.padding(lengths, 4).allowed
    assert wanted is not None
    equal(own.padding(lengths, 4), wanted[:, 0, 0], "padding([3, 1, 4], 4)")


def mask_softmax(own: Any) -> None:
    scores = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    allowed = torch.ones(4, 4, dtype=torch.bool).tril()
    wanted = scores.masked_fill(~allowed, -torch.inf).softmax(-1)
    found = own.masked_softmax(scores, allowed)
    if isinstance(found, Tensor) and torch.allclose(found, scores.softmax(-1) * allowed, atol=1e-5):
        raise WrongError(
            "what is left should add up to 1: hide the scores before the softmax, not the weights after it"
        )
    equal(found, wanted, "masked_softmax", "a score of 0 still gets a weight, since e^0 is 1")


def mask_nothing(own: Any) -> None:
    allowed = torch.tensor([[True, False], [False, False]])
    wanted = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    equal(own.masked_softmax(torch.zeros(2, 2), allowed), wanted, "masked_softmax", "the second query sees nothing")


def positions_angles(own: Any) -> None:
    p = torch.arange(9)
    wanted = torch.tensor([[pos / 10000 ** (2 * i / 6) for i in range(3)] for pos in range(9)])
    equal(
        own.angles(p, 6), wanted, "angles", "the first angle of position 1 is 1, the last of width 6 is 1 / 10000^(4/6)"
    )


def positions_sinusoid(own: Any) -> None:
    p = torch.arange(20)
    found = own.sinusoid(p, 8)
    if (
        isinstance(found, Tensor)
        and found.shape == (20, 8)
        and torch.allclose(found, sinusoid(p, 8, "half"), atol=1e-4)
    ):
        raise WrongError("all sines come first, but they should take turns with the cosines")
    equal(found, sinusoid(p, 8), "sinusoid")


def positions_rotation(own: Any) -> None:
    p, step, width = torch.arange(20), 3, 8
    turn = step / 10000 ** (torch.arange(0, width, 2) / width)
    pairs = sinusoid(p, width).unflatten(-1, (-1, 2))
    wanted = sinusoid(p + step, width).unflatten(-1, (-1, 2))
    equal(own.rotate(pairs, turn), wanted, "rotate", "PE(p), turned by the angles of 3 positions, should be PE(p + 3)")


Step = Callable[[list[int]], list[float]]


def _steps(seed: int, words: int, longest: int) -> Step:
    """Log-probabilities that depend on all tokens before."""

    def step(tokens: list[int]) -> list[float]:
        if len(tokens) >= longest:
            raise WrongError(f"a hypothesis with {longest} tokens, which is the longest that is allowed, goes on")
        chance = torch.Generator().manual_seed(seed + sum((token + 1) * 31**i for i, token in enumerate(tokens)))
        return (2 * torch.randn(words, generator=chance)).log_softmax(0).tolist()

    return step


def _brute_force(step: Step, words: int, end: int, longest: int) -> tuple[list[int], float]:
    """The best of all hypotheses."""
    found = []
    for size in range(1, longest + 1):
        for tokens in map(list, itertools.product(range(words), repeat=size)):
            if end not in tokens[:-1] and (tokens[-1] == end or size == longest):
                found.append((tokens, sum(step(tokens[:at])[token] for at, token in enumerate(tokens))))
    return max(found, key=lambda one: one[1])


def _hypothesis(found: Any, wanted: tuple[list[int], float], what: str) -> None:
    if not (isinstance(found, tuple) and len(found) == 2):
        raise WrongError(f"{what} should be a pair of tokens and their log-probability, not {found!r}")
    if list(found[0]) != wanted[0]:
        raise WrongError(
            f"{what} found {list(found[0])} with {found[1]:.3f}, but should {wanted[0]} with {wanted[1]:.3f}"
        )
    if not math.isclose(found[1], wanted[1], abs_tol=1e-4):
        raise WrongError(f"{what} gives {wanted[0]} the log-probability {found[1]:.3f}, not {wanted[1]:.3f}")


def beam_extends(own: Any) -> None:
    found = own.extend([([4], -1.0), ([2, 0], -2.0)], lambda tokens: [-0.5, -0.25 * len(tokens)])
    wanted = [([4, 0], -1.5), ([4, 1], -1.25), ([2, 0, 0], -2.5), ([2, 0, 1], -2.5)]
    if not isinstance(found, list) or len(found) != len(wanted):
        raise WrongError("extend should give one hypothesis for each beginning and each next token")
    for one, other in zip(found, wanted):
        _hypothesis(one, other, "extend")


def beam_picks(own: Any) -> None:
    some = [([1], -3.0), ([2], -1.0), ([3], -2.0)]
    found = own.best(list(some), 2)
    if [tokens for tokens, _ in found] != [[2], [3]]:
        raise WrongError(f"best should give [2] and [3], in this order, not {found}")


def beam_of_one(own: Any) -> None:
    for seed in range(5):
        step, tokens, logprob = _steps(1000 * seed, 4, 5), list[int](), 0.0
        while len(tokens) < 5 and (not tokens or tokens[-1] != 0):
            values = step(tokens)
            tokens.append(values.index(max(values)))
            logprob += max(values)
        _hypothesis(own.beam_search(step, 1, 0, 5), (tokens, logprob), "a beam of 1, which is greedy search,")


def beam_of_all(own: Any) -> None:
    for seed in range(5):
        step = _steps(1000 * seed + 7, 3, 4)
        _hypothesis(own.beam_search(step, 81, 0, 4), _brute_force(step, 3, 0, 4), "a beam that keeps everything")


def masking_chooses(own: Any) -> None:
    chances = torch.rand(40, generator=torch.Generator().manual_seed(0))
    for part, count in ((0.15, 6), (0.5, 20), (0.01, 1)):
        wanted = chances <= chances.sort().values[count - 1]
        found = own.choose(chances, part)
        if isinstance(found, Tensor) and int(found.sum()) != count:
            raise WrongError(f"{100 * part:g} % of 40 tokens are {count} (at least one), not {int(found.sum())}")
        equal(found, wanted, "choose", "those with the smallest chances are chosen")


def masking_hides(own: Any) -> None:
    chance = torch.Generator().manual_seed(1)
    ids, others = torch.randint(10, 90, (1000,), generator=chance), torch.randint(100, 190, (1000,), generator=chance)
    chosen, chances = torch.rand(1000, generator=chance) < 0.3, torch.rand(1000, generator=chance)
    wanted = torch.where(chances < MASKED + REPLACED, others, ids)
    wanted = torch.where(chosen, torch.where(chances < MASKED, 3, wanted), ids)
    found = own.hide(ids.clone(), chosen, chances, others, 3)
    if isinstance(found, Tensor) and found.shape == ids.shape and bool((found != ids)[~chosen].any()):
        raise WrongError("tokens that were not chosen should stay as they are")
    equal(found, wanted, "hide", "80 % become the mask, 10 % another token, 10 % stay")


def masking_targets(own: Any) -> None:
    ids, chosen = torch.tensor([5, 6, 7, 8]), torch.tensor([True, False, False, True])
    equal(own.targets(ids, chosen), torch.tensor([5, -100, -100, 8]), "targets")


def patches_count(own: Any) -> None:
    for image, patch in ((224, 16), (32, 4)):
        wanted = ViTConfig(image=image, patch=patch).tokens
        if own.count(image, patch) != wanted:
            raise WrongError(f"{image} pixels in patches of {patch} are {wanted} tokens, not {own.count(image, patch)}")


def patches_cut(own: Any) -> None:
    image = torch.arange(3 * 8 * 12.0).view(3, 8, 12)
    wanted = cut_patches(image[None], 4)[0]
    found = own.cut(image, 4)
    hint = "patch 1 has the rows 0 to 3 and the columns 0 to 3 of each channel"
    if (
        isinstance(found, Tensor)
        and found.shape == wanted.shape
        and torch.equal(found.sort().values, wanted.sort().values)
    ):
        hint = "each patch has the right pixels, but in another order: the first channel comes first"
    equal(found, wanted, "cut", hint)


def patches_embed(own: Any) -> None:
    chance = torch.Generator().manual_seed(0)
    patches, matrix, cls, positions = (
        torch.randn(*size, generator=chance) for size in ((6, 48), (48, 8), (8,), (7, 8))
    )
    wanted = torch.cat([cls[None], patches @ matrix]) + positions
    equal(own.embed(patches, matrix, cls, positions), wanted, "embed", "[CLS] comes first, and has a position, too")


CHECKS: dict[str, dict[str, Callable[[Any], None]]] = {
    "attention": {
        "the weights of each query": attention_weights,
        "the output": attention_output,
        "heads, apart and together": attention_heads,
    },
    "mask": {
        "no token sees what comes after it": mask_causal,
        "padding is not seen": mask_padding,
        "the weights of what may be seen add up to 1": mask_softmax,
        "a query that may see nothing": mask_nothing,
    },
    "positions": {
        "the angles": positions_angles,
        "sines and cosines by turns": positions_sinusoid,
        "a step is a rotation": positions_rotation,
    },
    "beam-search": {
        "every next token": beam_extends,
        "the best of them": beam_picks,
        "a beam of 1 is greedy search": beam_of_one,
        "a beam that keeps everything finds the best of all": beam_of_all,
    },
    "masking": {
        "which tokens are chosen": masking_chooses,
        "what becomes of them": masking_hides,
        "what the model is asked for": masking_targets,
    },
    "patches": {
        "how many tokens": patches_count,
        "the patches": patches_cut,
        "with [CLS] and positions": patches_embed,
    },
}
