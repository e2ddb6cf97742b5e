"""How images are changed in training: each change does what it says, and depends on (key, example) alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from allyouneed.data.batches import augment
from allyouneed.data.batches.augment import (
    CHANGES,
    MOVES,
    Augment,
    Chance,
    ImagePreprocessor,
    change,
    normalise,
    rectangle,
)
from allyouneed.data.batches.images import ImageBatches

MEAN, STD = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3])
ALL = Augment(flip=0.5, shift=0.2, changes=2, strength=0.8, erase=0.5, mix=0.7)


def batches(**settings: object) -> ImageBatches:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 12, 10, 3), np.uint8)
    return ImageBatches(pixels, np.arange(40) % 4, 5, **{"learning": True, "mixed": True, **settings})  # type: ignore[arg-type]


def changed(how: Augment, numbers: list[int], key: int = 7, **settings: object) -> dict[str, torch.Tensor]:
    return dict(how(batches(**settings).collate(np.array(numbers), key).tensors, MEAN, STD))


def test_an_image_changes_the_same_way_in_every_batch():
    together = changed(ALL, list(range(40)))
    for numbers in ([3], [39, 0], [5, 17, 3, 8]):
        some = changed(ALL, numbers)
        for name in ("pixels", "targets", "weights", "other_targets", "other_weights"):
            assert torch.equal(some[name], together[name][numbers]), name
    other = changed(ALL, list(range(40)), key=8)
    assert not torch.equal(other["pixels"], together["pixels"])


def test_without_changes_an_image_is_only_normalised():
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
def test_changes_stay_images(name, channels):
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


def one(name: str, x: torch.Tensor, amount: float) -> torch.Tensor:
    return change(x, torch.tensor([CHANGES.index(name)]), torch.tensor([amount]))


def test_moves_move_a_point_to_where_they_say():
    dot = torch.zeros(1, 1, 33, 33)
    dot[0, 0, 8, 16] = 1.0  # above the middle
    down, across = torch.meshgrid(torch.arange(33.0) - 16, torch.arange(33.0) - 16, indexing="ij")

    def place(x: torch.Tensor) -> tuple[float, float]:
        """How far down and across from the middle."""
        return float((x[0, 0] * down).sum() / x.sum()), float((x[0, 0] * across).sum() / x.sum())

    for amount in (0.5, -0.5):
        angle = amount * math.pi / 6
        assert place(one("rotate", dot, amount)) == pytest.approx((-8 * math.cos(angle), -8 * math.sin(angle)), abs=0.5)
        assert place(one("shear across", dot, amount)) == pytest.approx((-8, 4.8 * amount), abs=0.5)
        assert place(one("shear down", dot.transpose(2, 3), amount)) == pytest.approx((4.8 * amount, -8), abs=0.5)
        assert place(one("zoom", dot, amount)) == pytest.approx((-8 / (1 + 0.4 * amount), 0), abs=0.5)


def test_colours_change_as_they_say():
    x = torch.rand(1, 3, 7, 7, generator=torch.Generator().manual_seed(2)) * 0.4 + 0.3
    grey = (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    blurred = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, 1)
    for name, other in {"brightness": 0 * x, "contrast": grey.mean(), "colour": grey, "sharpness": blurred}.items():
        for amount in (-1.0, -0.5, 0.5):
            expected = (other + (x - other) * (1 + 0.9 * amount)).clamp(0, 1)
            assert torch.allclose(one(name, x, amount), expected, atol=1e-5), name
    for amount in (-1.0, 1.0):
        assert torch.allclose(one("posterize", x, amount), (x * 255 / 16).floor() * 16 / 255, atol=1e-5)
        assert torch.allclose(one("solarize", x, amount), torch.where(x >= 0.5, 1 - x, x))
    flat = one("stretch", x, 0.3)
    assert torch.allclose(flat.amin((2, 3)), torch.zeros(1, 3))
    assert torch.allclose(flat.amax((2, 3)), torch.ones(1, 3))


def test_every_change_is_drawn_with_either_sign_up_to_the_strength(monkeypatch):
    seen = []
    monkeypatch.setattr(augment, "change", lambda x, chosen, amount: (seen.append((chosen, amount)), x)[1])
    changed(Augment(changes=10, strength=0.5), list(range(40)), mixed=False)
    chosen, amount = (torch.cat(parts) for parts in zip(*seen))
    assert set(chosen.tolist()) == set(range(len(CHANGES)))
    assert 0.45 < amount.abs().max() <= 0.5
    assert 0.3 < (amount < 0).float().mean() < 0.7


def test_images_that_are_mixed_are_changed_each_in_its_own_way(monkeypatch):
    tensors = batches().collate(np.arange(40), 7).tensors
    tensors["other"] = tensors["pixels"].clone()
    seen, real = [], Augment._changed
    monkeypatch.setattr(Augment, "_changed", lambda *given: (seen.append(real(*given)), seen[-1])[1])
    Augment(flip=0.5, mix=1.0)(tensors, MEAN, STD)
    assert 8 < sum(torch.equal(a, b) for a, b in zip(*seen[0].chunk(2))) < 32


def test_what_is_drawn_for_one_purpose_says_nothing_of_another():
    pixels = np.random.default_rng(0).integers(1, 255, (2000, 8, 8, 3)).astype(np.uint8)
    for how in (Augment(erase=1.0, mix=1.0), Augment(erase=1.0, flip=0.5)):
        data = ImageBatches(pixels, np.arange(2000), 5, learning=True, mixed=how.mix > 0)
        tensors = data.collate(np.arange(2000), 7).tensors
        found = how(tensors, MEAN, STD)
        blank = (found["pixels"] == 0).all(1)
        if how.mix:
            assert len(found["other_targets"].unique()) > 1000
            other = found["weights"]
        else:
            x = normalise(tensors["pixels"].float() / 255, MEAN, STD)
            rows = zip(found["pixels"], x, blank)
            other = torch.tensor([float(torch.allclose(p[:, ~b], q[:, ~b])) for p, q, b in rows])
        assert abs(np.corrcoef(blank.float().mean((1, 2)), other)[0, 1]) < 0.1


def test_mixed_images_keep_the_weight_of_their_label():
    weights = np.array([1.0, 2.0, 0.5, 0.25])
    found = changed(Augment(mix=1.0), list(range(40)), weights=weights)
    both = found["weights"] + found["other_weights"]
    assert torch.allclose(both, torch.tensor(weights[np.arange(40) % 4]).float())


def test_how_often_and_how_much_is_erased():
    half = changed(Augment(erase=0.5), list(range(40)), mixed=False)["pixels"]
    assert 8 < int((half == 0).all(1).flatten(1).any(1).sum()) < 32
    found = Augment(erase=1.0)._erased(torch.ones(4000, 1, 32, 32), Chance(torch.arange(4000)))
    blank = (found == 0).float().mean((1, 2, 3))
    assert 0.25 < blank.max() < 0.36
    assert 0.1 < blank.mean() < 0.18


def test_shifts_go_everywhere_and_repeat_the_edge():
    x = torch.arange(12.0 * 20).view(1, 1, 12, 20).repeat(200, 1, 1, 1)
    found, moves = augment._shifted(x, Chance(torch.arange(200)), 0.25), set()
    rows, columns = torch.arange(12), torch.arange(20)
    for moved in found[:, 0]:
        fits = [
            (down, across)
            for down in range(-3, 4)
            for across in range(-5, 6)
            if torch.equal(moved, x[0, 0][(rows - down).clamp(0, 11)][:, (columns - across).clamp(0, 19)])
        ]
        assert len(fits) == 1
        moves.add(fits[0])
    assert {down for down, _ in moves} == set(range(-3, 4))
    assert {across for _, across in moves} == set(range(-5, 6))


def test_only_training_changes_images():
    preprocess, tensors = (
        ImagePreprocessor(MEAN.tolist(), STD.tolist(), Augment(flip=1.0)),
        batches(mixed=False).collate(np.arange(4)).tensors,
    )
    x = normalise(tensors["pixels"].float() / 255, MEAN, STD)
    assert torch.allclose(preprocess.eval()(tensors)["pixels"], x)
    assert torch.allclose(preprocess.train()(tensors)["pixels"], x.flip(-1))


@pytest.mark.slow
def test_compiled_it_is_the_same():
    preprocess, tensors = (
        ImagePreprocessor(MEAN.tolist(), STD.tolist(), ALL),
        batches().collate(np.arange(16), 7).tensors,
    )
    small_kernels = {"realize_opcount_threshold": 4, "realize_reads_threshold": 1}  # or one of 360 KB
    eager = preprocess(tensors)
    compiled = torch.compile(preprocess, fullgraph=True, options=small_kernels)(tensors)
    for name, tensor in eager.items():
        assert torch.allclose(compiled[name].float(), tensor.float(), atol=1e-2), name
    assert (compiled["pixels"] - eager["pixels"]).abs().mean() < 1e-4


def test_chances_are_uniform():
    chance = Chance(torch.arange(20_000))
    first, second = chance(), chance()
    assert first.min() >= 0
    assert first.max() < 1
    assert first.mean().item() == pytest.approx(0.5, abs=0.01)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03
    assert (chance() < 0.2).float().mean().item() == pytest.approx(0.2, abs=0.01)
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
