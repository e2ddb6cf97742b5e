"""How pictures are changed in training: each change does what it says, and depends on (key, example) alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from allyouneed.data.augment import CHANGES, MOVES, Augment, Chance, PictureBatches, change, normalise, rectangle

MEAN, STD = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3])
ALL = Augment(flip=0.5, shift=0.2, changes=2, strength=0.8, erase=0.5, mix=0.7)


def batches(**settings: object) -> PictureBatches:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 12, 10, 3), np.uint8)
    return PictureBatches(pixels, np.arange(40) % 4, 5, **{"learning": True, "mixed": True, **settings})  # type: ignore[arg-type]


def changed(how: Augment, numbers: list[int], key: int = 7, **settings: object) -> dict[str, torch.Tensor]:
    return dict(how(batches(**settings).collate(np.array(numbers), key).tensors, MEAN, STD))


def test_a_picture_changes_the_same_way_in_every_batch():
    together = changed(ALL, list(range(40)))
    for numbers in ([3], [39, 0], [5, 17, 3, 8]):
        some = changed(ALL, numbers)
        for name in ("pixels", "targets", "weights", "other_targets", "other_weights"):
            assert torch.equal(some[name], together[name][numbers]), name
    other = changed(ALL, list(range(40)), key=8)
    assert not torch.equal(other["pixels"], together["pixels"])


def test_without_changes_a_picture_is_only_normalised():
    plain = changed(Augment(), [1, 2], mixed=False)
    own = batches().collate(np.array([1, 2])).tensors["pixels"].float() / 255
    assert torch.allclose(plain["pixels"], normalise(own, MEAN, STD))
    assert torch.allclose(normalise(own, MEAN, STD)[0, 1], (own[0, 1] - 0.4) / 0.25)


def test_flips_and_shifts():
    own = batches().collate(np.arange(40)).tensors["pixels"].float() / 255
    flipped = changed(Augment(flip=1.0), list(range(40)), mixed=False)["pixels"]
    assert torch.allclose(flipped, normalise(own.flip(-1), MEAN, STD))
    half = changed(Augment(flip=0.5), list(range(40)), mixed=False)["pixels"]
    same = [torch.allclose(a, b) for a, b in zip(half, normalise(own, MEAN, STD))]
    assert 8 < sum(same) < 32
    shifted = changed(Augment(shift=0.25), list(range(40)), mixed=False)["pixels"]
    x = normalise(own, MEAN, STD)
    moves = set()
    for i in range(40):
        for down in range(-3, 4):
            for across in range(-3, 4):
                inner = x[i, :, 3 - down : 9 - down, 3 - across : 7 - across]
                if torch.allclose(shifted[i, :, 3:9, 3:7], inner):
                    moves.add((down, across))
    assert len(moves) > 10


def test_mixing_keeps_the_weight_of_an_example():
    found = changed(Augment(mix=1.0), list(range(40)))
    assert torch.allclose(found["weights"] + found["other_weights"], torch.ones(40))
    assert 0.3 < found["weights"].mean() < 0.7
    never = changed(Augment(mix=0.0), list(range(40)))
    assert torch.equal(never["weights"], torch.ones(40))
    tensors = batches().collate(np.arange(40), 7).tensors
    x, other = (normalise(tensors[name].float() / 255, MEAN, STD) for name in ("pixels", "other"))
    cut = blended = 0
    for i in range(40):
        part = float(found["weights"][i])
        if torch.allclose(found["pixels"][i], part * x[i] + (1 - part) * other[i], atol=1e-4):
            blended += 1
            continue
        own, theirs = ((found["pixels"][i] - side[i]).abs().amax(0) < 1e-5 for side in (x, other))
        assert (own | theirs).all()  # each point is of one of them
        assert own.float().mean() == pytest.approx(part, abs=0.02)
        cut += 1
    assert cut > 10
    assert blended > 10


def test_erasing_blanks_a_rectangle():
    found = changed(Augment(erase=1.0), list(range(40)), mixed=False)["pixels"]
    blank = (found == 0).all(1)
    assert (blank.float().mean((1, 2)) <= 0.4).all()
    assert blank.any(2).any(1).sum() > 30
    rows = blank.any(2)
    for row in rows:  # one stretch of rows
        at = row.nonzero()[:, 0]
        assert len(at) == 0 or len(at) == at[-1] - at[0] + 1


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_stay_pictures(name, channels):
    x = 0.1 + 0.7 * torch.rand(6, channels, 9, 9, generator=torch.Generator().manual_seed(1))
    amount = torch.tensor([-1.0, -0.5, 0.0, 0.3, 0.7, 1.0])
    found = change(x, torch.full((6,), CHANGES.index(name)), amount)
    assert found.shape == x.shape
    assert found.min() >= -1e-5
    assert found.max() <= 1 + 1e-5
    if name != "stretch":
        assert torch.allclose(found[2], x[2], atol=1 / 255)  # an amount of 0 changes nothing
    if name != "nothing" and not (name == "colour" and channels < 3):
        assert not torch.allclose(found[5], x[5], atol=1e-2)
    if channels in (2, 4) and name not in MOVES:
        assert torch.equal(found[:, -1], x[:, -1])  # what is transparent


def test_chances_are_uniform():
    chance = Chance(torch.arange(20_000))
    first, second = chance(), chance()
    assert first.min() >= 0
    assert first.max() < 1
    assert first.mean().item() == pytest.approx(0.5, abs=0.01)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert chance.happens(0.2).float().mean().item() == pytest.approx(0.2, abs=0.01)
    assert set(chance.sign().tolist()) == {-1.0, 1.0}
    inside = rectangle(4, 4, torch.tensor([0.5]), torch.tensor([0.25]), torch.tensor([0.5]), torch.tensor([0.5]))
    assert inside[0, 0].int().tolist() == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]


def test_batches_have_one_size_and_lose_nobody_for_long():
    plans = [batches().plan(1, epoch, 5 * 12) for epoch in range(4)]
    assert {len(numbers) for plan in plans for numbers in plan} == {12}
    assert {int(n) for plan in plans for numbers in plan for n in numbers} == set(range(40))
    assert sorted(int(n) for numbers in batches().cover(60) for n in numbers) == list(range(40))
    weights = np.array([1.0, 2.0, 0.5, 0.5])
    size = batches(weights=weights).size(np.array([0, 1, 2]), 0)
    assert (size.counts["labels"], size.units) == (3.5, 3)
