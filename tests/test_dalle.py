"""dVAE and DALL-E: codes and back, captions and codes in one sequence, sampling with a cache, guidance."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from allyouneed.batch import IGNORE
from allyouneed.config import DecodeConfig
from allyouneed.data.batches.images import CaptionedCodes, PlainImages
from allyouneed.data.store import Ragged
from allyouneed.decode import Request
from allyouneed.errors import UserError
from allyouneed.models.dalle import DALLE, DALLEConfig
from allyouneed.models.dvae import DVAE, DVAEConfig, join_patches
from allyouneed.models.vit import cut_patches
from allyouneed.nn.trace import Trace
from allyouneed.predict.draw import draw_codes, likelihood
from allyouneed.predict.writer import Writer

SMALL = {"width": 16, "heads": 2, "layers": 2, "dropout": 0.0}


def dvae(**changes) -> DVAE:
    torch.manual_seed(1)
    return DVAE(
        DVAEConfig(**{"width": 16, "layers": 2, "image": 8, "patch": 2, "digits": 3, "levels": 3, **changes})
    ).eval()


def dalle(**changes) -> DALLE:
    torch.manual_seed(1)
    model = DALLE(DALLEConfig(**{**SMALL, "vocab": 9, "caption": 4, "codes": 11, "grid": 3, **changes})).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)  # so that every choice is clear
    return model


CAPTIONS = [[3, 1, 4], [], [5, 8, 7, 2]]


@pytest.mark.parametrize("patch", [1, 2, 4])
def test_patches_are_joined_as_they_were_cut(patch):
    pixels = torch.rand(3, 2, 8, 8)
    assert torch.equal(join_patches(cut_patches(pixels, patch), 2, patch), pixels)


@pytest.mark.parametrize("codebook", ["grid", "gumbel"])
def test_every_code_is_decoded_and_codes_are_in_the_book(codebook):
    model = dvae(codebook=codebook)
    codes = model.encode(torch.rand(5, 3, 8, 8))
    assert codes.shape == (5, 16)
    assert 0 <= int(codes.min()) <= int(codes.max()) < model.config.codes == 27
    every = torch.arange(27).repeat(16)[: 27 * 16].view(27, 16)
    assert model.decode(every).shape == (27, 3, 8, 8)
    first, second = (
        model.decode(torch.zeros(1, 16, dtype=torch.long)),
        model.decode(torch.ones(1, 16, dtype=torch.long)),
    )
    assert not torch.allclose(first, second)


@pytest.mark.parametrize("levels", [2, 3, 4, 5, 8])
def test_digits_are_rounded_to_the_nearest_level(levels):
    """Codes are those of the rounded digits, of which every level is possible."""
    model = dvae(levels=levels, digits=2)
    wanted = torch.cartesian_prod(torch.arange(levels), torch.arange(levels))  # (levels², 2)
    exact = (wanted * 2 / (levels - 1) - 1).clamp(-0.9999, 0.9999)
    model._scores = lambda pixels, trace: torch.atanh(exact)[None]
    assert model.encode(torch.zeros(1)).tolist() == [(wanted[:, 0] + levels * wanted[:, 1]).tolist()]


@pytest.mark.parametrize("codebook", ["grid", "gumbel"])
def test_the_loss_of_an_evaluation_is_that_of_the_copy(codebook):
    model, pixels = dvae(codebook=codebook), torch.rand(2, 3, 8, 8)
    with torch.no_grad():
        copy = model.decode(model.encode(pixels))
        assert float(model.loss(pixels)) == pytest.approx(float((copy - pixels).square().sum()), rel=1e-5)


@pytest.mark.parametrize("codebook", ["grid", "gumbel"])
def test_the_encoder_learns_through_its_codes(codebook):
    model = dvae(codebook=codebook).train()
    model.loss(torch.rand(2, 3, 8, 8), torch.tensor(1.0)).backward()
    assert all(p.grad is not None and float(p.grad.abs().sum()) > 0 for p in model.parameters())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"patch": 3}, "does not divide model.image"),
        ({"digits": 12, "levels": 16}, "codes; at most"),
    ],
)
def test_impossible_sizes_are_refused(settings, told):
    with pytest.raises(UserError, match=told):
        dvae(**settings)


def test_each_token_sees_only_what_is_before_it():
    model = dalle()
    words, codes = torch.randint(0, 10, (1, 5)), torch.randint(0, 11, (1, 9))
    before = [x.clone() for x in model(words, codes)]
    other = words.clone()
    other[0, 3] = (words[0, 3] + 1) % 10
    logits, drawn = model(other, codes)
    assert torch.equal(logits[0, :3], before[0][0, :3])
    assert not torch.equal(logits[0, 3], before[0][0, 3])
    assert not torch.equal(drawn[0, 0], before[1][0, 0])
    changed = codes.clone()
    changed[0, 4] = (codes[0, 4] + 1) % 11
    logits, drawn = model(words, changed)
    assert torch.equal(logits, before[0])
    assert torch.equal(drawn[0, :5], before[1][0, :5])
    assert not torch.equal(drawn[0, 5], before[1][0, 5])


def test_codes_know_their_row_and_their_column():
    body = dalle().body
    same = torch.full((1, 9), 4)
    x = body.embed_codes(same, torch.arange(9))[0].view(3, 3, -1)
    assert torch.allclose(x[0, 1] - x[0, 0], x[2, 1] - x[2, 0], atol=1e-6)
    assert torch.allclose(x[1, 0] - x[0, 0], x[1, 2] - x[0, 2], atol=1e-6)
    assert not torch.allclose(x[0, 1], x[1, 0], atol=1e-3)


def test_a_step_gives_what_the_whole_sequence_gives():
    model = dalle()
    prompts = [model.prompt(ids) for ids in CAPTIONS]
    codes = torch.randint(0, 11, (3, 9))
    _, whole = model(torch.tensor(prompts), codes)
    logits, state = model.start(prompts, model.limit)
    for place in range(9):
        assert torch.allclose(logits, whole[:, place], atol=1e-4)
        logits = model.step(codes[:, place], state) if place < 8 else logits


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_a_drawing_does_not_depend_on_its_batch(guidance):
    model = dalle()
    prompts = [model.prompt(ids) for ids in CAPTIONS]
    settings = DecodeConfig(method="sample", n_best=3, guidance=guidance, seed=5, batch=2)
    together = draw_codes(Writer(model), prompts, 9, settings)
    assert together.shape == (9, 9)
    alone = [
        draw_codes(Writer(model), [prompt], 9, DecodeConfig(**{**vars(settings), "batch": 9})) for prompt in prompts
    ]
    assert np.array_equal(together, np.concatenate(alone))
    assert len(np.unique(together, axis=0)) > 3  # seeds differ


def test_guidance_is_the_formula_step_by_step():
    model = dalle()
    prompt, free = model.prompt([3, 1, 4]), model.prompt([])
    (found,) = draw_codes(Writer(model), [prompt], 9, DecodeConfig(guidance=2.5))
    codes: list[int] = []
    for _ in range(9):
        rows = torch.tensor([[*codes, 0]] * 2)
        _, logits = model(torch.tensor([prompt, free]), rows)
        asked, unasked = logits[:, -1]
        assert (asked - unasked).abs().max().item() > 0.1
        codes.append(int((unasked + 2.5 * (asked - unasked)).argmax()))
    assert found.tolist() == codes


def test_guidance_of_one_changes_nothing():
    model = dalle()
    prompts = [model.prompt(ids) for ids in CAPTIONS]
    found = []
    for guided in ({"guidance": 1.0, "free": model.prompt([])}, {}):
        with Writer(model).session(2) as session:
            codes = {session.add(Request(prompt, 9, **guided)): [] for prompt in prompts}
            while events := session.wait():
                for event in events:
                    codes[event.id].append(event.token)
        found.append(list(codes.values()))
    assert found[0] == found[1]
    assert [len(made) for made in found[0]] == [9, 9, 9]


def test_the_likelihood_of_a_drawing_is_the_sum_of_its_codes():
    model = dalle()
    prompt = model.prompt([3, 1])
    codes = np.random.default_rng(1).integers(0, 11, (2, 9))
    found = likelihood(model, np.array([prompt, prompt]), codes)
    _, logits = model(torch.tensor([prompt, prompt]), torch.from_numpy(codes))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(codes).flatten(), reduction="none")
    assert found == pytest.approx(-loss.view(2, 9).sum(1).detach().numpy(), abs=1e-4)


def test_a_caption_is_padded_and_ends_once():
    captions, codes = Ragged.of([[3, 1], [5, 8, 7, 2, 6], [4]]), np.arange(27).reshape(3, 9)
    batch = CaptionedCodes(captions, codes, most=4, blank=9).collate(np.arange(3))
    assert batch.tensors["ids"].tolist() == [[9, 3, 1, 9, 9], [9, 5, 8, 7, 2], [9, 4, 9, 9, 9]]
    no = IGNORE
    assert batch.tensors["targets"].tolist() == [[3, 1, 9, no], [5, 8, 7, 2], [4, 9, no, no]]
    assert batch.size.counts == {"captions": 3 + 4 + 2, "codes": 27}


def test_hidden_captions_are_a_function_of_key_and_example():
    captions = Ragged.of([[number % 9] for number in range(4000)])
    made = CaptionedCodes(captions, np.zeros((4000, 9), np.int64), most=2, blank=9, hidden=0.1)
    batch = made.collate(np.arange(4000), key=7)
    blank = (batch.tensors["ids"] == 9).all(1)
    assert 0.08 < float(blank.float().mean()) < 0.12
    assert batch.size.counts["captions"] == int((batch.tensors["targets"] != IGNORE).sum())
    some = np.array([5, 17, 1234])
    assert torch.equal(made.collate(some, key=7).tensors["ids"], batch.tensors["ids"][some])
    again = made.collate(np.arange(4000), key=8).tensors["ids"]
    assert not torch.equal(again, batch.tensors["ids"])


def test_batches_of_images_have_one_size():
    images = PlainImages(np.zeros((10, 8, 8, 3), np.uint8), 16)
    assert [len(numbers) for numbers in images.plan(1, 0, 64)] == [4, 4]
    assert sum(len(numbers) for numbers in images.cover(64)) == 10
    assert images.collate(np.arange(3)).size.counts == {"pixels": 48}


def test_its_attention_can_be_traced():
    model, trace = dalle(), Trace("weights")
    model(torch.zeros(1, 5, dtype=torch.long), torch.zeros(1, 9, dtype=torch.long), trace=trace)
    assert len(list(trace)) == 2
    weights = trace[next(iter(trace))]
    assert weights.shape == (1, 2, 13, 13)
    assert float(weights[0, 0].triu(1).abs().sum()) == 0
