"""compress and draw: from images with captions to drawings, and what can go wrong on the way."""

from __future__ import annotations

import json
import shutil
import time
from functools import cache
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from allyouneed.data.builtin.scenes import (
    Shape,
    belongs,
    check,
    kinds,
    reach,
    read_caption,
    read_image,
    scene,
    scenes,
)
from allyouneed.data.builtin.shapes import COLOURS, FORMS, SIDE, SIZES, draw
from allyouneed.errors import UserError
from allyouneed.predict.draw import caption_ids
from allyouneed.predict.images import ImageTokenizer
from allyouneed.run import Run, load, train
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.tasks import draw as drawing
from commands import ayn, mistake, reseal
from conftest import RUNTIME

FEW = [*RUNTIME, "train.steps=6", "train.eval_every=3", "train.warmup=2", "data.limit=120", "train.test_limit=12"]
TINY_BOOK = [*FEW, "model.width=16", "model.patch=8", "model.digits=3", "model.levels=3"]
TINY_DRAW = [*FEW, "model.width=16", "model.heads=2", "model.layers=2", "train.batch_tokens=512"]
CAPTION = "a small red circle above a large blue square"


@cache
def made() -> dict[str, tuple[np.ndarray, list[str]]]:
    return scenes()


@pytest.fixture(scope="module")
def book(tmp_path_factory) -> Run:
    return train("compress/shapes", *TINY_BOOK, out=tmp_path_factory.mktemp("compress") / "run", quiet=True)


@pytest.fixture(scope="module")
def drawer(book, tmp_path_factory) -> Run:
    out = tmp_path_factory.mktemp("draw") / "run"
    return train("draw/shapes", *TINY_DRAW, f"task.image_tokenizer={book.folder.path}", out=out, quiet=True)


# What the rules draw and read.


@pytest.mark.slow
def test_the_checker_reads_every_scene():
    for split, (pixels, captions) in made().items():
        for image, told in zip(pixels[:300], captions):
            assert all(check(told, image).values()), (split, told)


def test_the_checker_sees_what_is_wrong():
    ring, square = Shape("ring", "blue", "large", 9, 9), Shape("square", "red", "small", 22, 24)
    image = draw([ring, square])
    for told, wrong in {
        "a large blue ring above a small red square": [],
        "a small red square below a large blue ring": [],
        "a large blue ring below a small red square": ["place"],
        "a large blue ring left of a small red square": ["place"],
        "a large green ring above a small red square": ["colour"],
        "a large blue cross above a small red square": ["form"],
        "a small blue ring above a small red square": ["size"],
        "a large blue ring": ["number"],
        "three large blue rings": ["number", "form", "colour", "size"],
        "a small grey cross": ["number", "form", "colour"],
    }.items():
        assert [name for name, right in check(told, image).items() if not right] == wrong, told
    white = np.full((32, 32, 3), 255, np.uint8)
    assert not any(check(CAPTION, white).values())
    assert not any(check("two small red circles", white).values())
    noise = np.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    assert not all(check(CAPTION, noise).values())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", SIZES)
def test_every_shape_is_read_in_every_colour_and_place(form, size):
    for number, colour in enumerate(COLOURS):
        shape = Shape(form, colour, size, 8.0 + number, 20.0 - number)
        (found,) = read_image(draw([shape]))
        assert found[:3] == (form, colour, size)
        assert abs(found.x - shape.x) <= 1
        assert abs(found.y - shape.y) <= 1


def test_a_drawing_of_another_size_is_read():
    image = Image.fromarray(draw([Shape("ring", "blue", "large", 10, 12)]))
    for size in (64, 128):
        larger = np.asarray(image.resize((size, size), Image.Resampling.NEAREST))
        assert all(check("a large blue ring", larger).values())
    grey = np.asarray(image.convert("L").resize((28, 28)))[..., None]
    assert check("a large blue ring", grey)["number"]


def test_what_is_held_out_is_never_in_train():
    draws, seen = Random(3), {part: set() for part in ("train", "held", "novel")}
    for part, found in seen.items():
        for _ in range(1500):
            shapes, told = scene(draws, part)
            named, how = read_caption(told)
            assert sorted(named) == sorted(shape[:3] for shape in shapes)
            assert bool(how) == (" of " in told or "above" in told or "below" in told)
            found.add(frozenset(named) if how else (named[0], len(named)))
    train, held, novel = seen.values()
    assert not train & held
    alone = [{one for one in part if isinstance(one, tuple)} for part in (train, held, novel)]
    known, combined, new = ({kind for kind, _ in part} for part in alone)
    assert known == combined == set(kinds(False))
    assert new == set(kinds(True))
    assert len(new) == 24
    for kind in new:  # any two of its words are together in train
        for missing in range(3):
            assert any(
                other[:missing] + other[missing + 1 :] == kind[:missing] + kind[missing + 1 :] for other in known
            )
    for wrong in ("a red circle", "a small pink circle", "four small red circles", ""):
        with pytest.raises(ValueError):  # noqa: PT011
            read_caption(wrong)


def test_a_torn_shape_has_no_form():
    for n in (3, 5):
        image = np.full((SIDE, SIDE, 3), 255, np.uint8)
        image[10 : 10 + 2 * n, 10 : 10 + 2 * n][np.tril(np.ones((2 * n, 2 * n), bool))] = COLOURS["green"]
        (shape,) = read_image(image)
        assert (shape.form, shape.colour) == ("", "green")


# compress.


@pytest.mark.slow
def test_an_image_becomes_codes_and_an_image_again(book, tmp_path):
    names = [score.name for score in book.test(say=lambda line: None)]
    assert names == ["PSNR", "codes used", "code perplexity"]
    with Image.open(book.folder.path / "copies.png") as drawn:
        assert min(drawn.size) > 100
    pixels = made()["test"][0][:5]
    (answer,) = book.answers([pixels[0]])
    assert len(answer.tokens) == 16
    assert all(0 <= code < 27 for code in answer.tokens)
    copy = book.predict(pixels[0])
    assert isinstance(copy, Image.Image)
    assert copy.size == (32, 32)
    path = tmp_path / "image.png"
    Image.fromarray(pixels[0]).save(path)
    done = ayn("use", book.folder.path, path)
    assert [int(code) for code in done.out.split()] == answer.tokens
    assert json.loads(ayn("use", book.folder.path, path, "--json").out)["codes"] == answer.tokens
    assert ayn("use", book.folder.path, path, path, "--out", tmp_path / "copy.png").code == 0
    assert (tmp_path / "copy.png").stat().st_size > 1000


def test_its_scores_are_those_of_the_formulas(book):
    pixels = np.asarray(book.task.pixels("test"))
    codes = ImageTokenizer(book.model).encode(pixels)
    copies = ImageTokenizer(book.model).decode(codes)
    scores = {score.name: score.value for score in book.test(say=lambda line: None)}
    error = np.square(pixels / 255 - copies / 255).mean()
    assert scores["PSNR"] == pytest.approx(-10 * np.log10(error), abs=1e-4)
    counts = np.bincount(codes.ravel(), minlength=27)
    assert scores["codes used"] == pytest.approx(100 * (counts > 0).mean())
    part = counts[counts > 0] / counts.sum()
    assert scores["code perplexity"] == pytest.approx(np.exp(-(part * np.log(part)).sum()))


@pytest.mark.slow
def test_codes_that_are_drawn(tmp_path):
    run = train("compress/shapes", *TINY_BOOK, "model.codebook=gumbel", out=tmp_path / "run", quiet=True)
    assert run.model.codebook.weight.shape == (27, 3)
    assert len(run.answers([made()["test"][0][0]])[0].tokens) == 16


# draw.


def test_a_caption_becomes_images(drawer, tmp_path):
    image = drawer.predict(CAPTION)
    assert isinstance(image, Image.Image)
    assert image.size == (32, 32)
    (answer,) = drawer.answers([CAPTION], n_best=4, seed=7)
    every = [answer, *answer.others]
    assert sorted(one.details["seed"] for one in every) == [7, 8, 9, 10]
    assert [one.score for one in every] == sorted((one.score for one in every), reverse=True)
    (again,) = drawer.answers([CAPTION], n_best=1, seed=9)
    assert again.tokens == next(one.tokens for one in every if one.details["seed"] == 9)
    out = tmp_path / "a.png"
    done = ayn("use", drawer.folder.path, CAPTION, "--out", out, "--set", "n_best=16", "--set", "guidance=2")
    assert done.code == 0, done.err
    assert f"the image is in {out}" in done.out
    with Image.open(out) as sheet:
        assert min(sheet.size) > 200
    assert ayn("use", drawer.folder.path, CAPTION, "two small red rings", "--out", tmp_path / "b.svg").code == 0
    found = json.loads(ayn("use", drawer.folder.path, CAPTION, "--json").out)
    assert len(found["codes"]) == 16


def test_drawings_are_ranked_by_the_caption_or_by_their_codes(drawer):
    found = {}
    for rank in ("caption", "codes"):
        (answer,) = drawer.answers([CAPTION], n_best=16, rank=rank)
        found[rank] = [one.logprob for one in (answer, *answer.others)]
    assert found["codes"] == sorted(found["caption"], reverse=True)
    assert found["codes"] != found["caption"]


@pytest.mark.slow
def test_drawings_are_scored_by_rules(drawer):
    scores = {score.name: score for score in drawer.test(say=lambda line: None)}
    assert list(scores) == ["attributes", "all right", "code perplexity", "caption perplexity"]
    assert 0 <= scores["all right"].value <= scores["attributes"].value <= 100
    assert "best of:1|seed:1" in scores["attributes"].signature
    assert (drawer.folder.path / "drawings.png").is_file()
    best, *_ = drawer.test(say=lambda line: None, n_best=2, rank="codes")
    assert "best of:2 by codes|seed:1" in best.signature


def test_the_book_is_a_part_of_the_run(book, drawer, tmp_path):
    """The run that made the codes may go."""
    moved = tmp_path / "run"
    shutil.copytree(drawer.folder.path, moved)
    run = load(moved)
    assert run.task.image_tokenizer.fingerprint == ImageTokenizer(book.model).fingerprint
    assert {"image_tokenizer.json", "image_tokenizer.safetensors", "tokenizer.json"} <= set(run.config["parts"])
    pixels = made()["test"][0][:3]
    assert np.array_equal(run.task.image_tokenizer.encode(pixels), ImageTokenizer(book.model).encode(pixels))
    assert run.answers([CAPTION])[0].tokens == drawer.answers([CAPTION])[0].tokens


@pytest.mark.slow
def test_the_codes_are_stored_like_tokens(drawer, monkeypatch):
    task = drawer.task.on(drawer.recipe)
    first = np.asarray(task.codes("test"))
    monkeypatch.setattr(ImageTokenizer, "encode", lambda *_: pytest.fail("the codes are in the cache"))
    again = drawer.task.on(drawer.recipe)
    assert np.array_equal(first, again.codes("test"))


def test_both_losses_are_logged_and_weighted(drawer):
    rows = [json.loads(line) for line in drawer.folder.metrics.read_text().splitlines()]
    found = next(row for row in rows if row["kind"] == "valid")
    assert found["loss"] == pytest.approx(0.125 * found["captions loss"] + found["codes loss"], rel=1e-4)


def test_where_it_looks_and_what_it_expects(drawer, tmp_path):
    found = drawer.attention(CAPTION)
    assert list(found) == ["body.stack.blocks.0.attention", "body.stack.blocks.1.attention"]
    assert found["body.stack.blocks.0.attention"].weights.shape == (2, 1 + 11 + 15, 1 + 11 + 15)
    assert ayn("use", drawer.folder.path, CAPTION, "--heads", tmp_path / "heads.png").code == 0
    table = drawer.table("a small red")
    assert [guess.token for guess in table] == ["a", " small", " red"]
    assert sum(p for _, p in drawer.table("a small red", most=1000)[0].likely) == pytest.approx(1, abs=1e-4)


def test_a_word_is_known_wherever_it_stands_and_whatever_its_letters(drawer):
    tokenizer = drawer.task.tokenizer
    ids = dict(zip(("a", " small", " red", " circle", " above"), tokenizer.encode("a small red circle above")))
    assert tokenizer.unk in tokenizer.encode("small red circle")
    assert caption_ids("small red circle", tokenizer) == [ids[" small"], ids[" red"], ids[" circle"]]
    assert caption_ids("  A  small\tRED circle ", tokenizer) == tokenizer.encode("a small red circle")
    first = tokenizer.encode("two small red circles")
    assert tokenizer.unk not in first
    assert caption_ids("a small red circle above two", tokenizer)[-1] == first[0]


@pytest.mark.slow
def test_what_it_cannot_draw(drawer, book, tmp_path):
    use = ["use", drawer.folder.path]
    out = ["--out", tmp_path / "a.png"]
    assert "the caption has words that this model does not know: 'pink'" in mistake(*use, "a small pink circle", *out)
    assert "does not know: 'xyzzy', 'frob'; use others" in mistake(*use, "xyzzy frob xyzzy", *out)
    long = "a small red circle above a large blue square above a small red circle"
    assert "the caption has 14 tokens, and this model reads at most 11" in mistake(*use, long, *out)
    assert "the caption is empty" in mistake(*use, " ", *out)
    assert "a.txt is not a PNG or SVG file" in mistake(*use, CAPTION, "--out", tmp_path / "a.txt")
    assert "give what to draw" in mistake(*use, *out)
    assert "--out FILE.png" in mistake(*use, CAPTION)
    assert "decode.method = beam: a drawing is sampled" in mistake(*use, CAPTION, *out, "--set", "method=beam")
    assert not list(tmp_path.glob("a.*"))
    assert "--out is for images: a run of the task 'recognize' answers with text" in mistake(
        "use", recognizer(tmp_path), "x.png", *out
    )


def recognizer(tmp_path: Path) -> Path:
    settings = [*FEW, "model.width=16", "model.heads=2", "model.layers=1", "model.patch=8", "train.steps=1"]
    return train("recognize/vit", *settings, out=tmp_path / "recognizer", quiet=True).folder.path


@pytest.mark.slow
def test_books_that_do_not_fit(book, drawer, tmp_path):
    given = ["train", "draw/shapes", "--out", tmp_path / "run", *TINY_DRAW]
    assert "with `ayn train compress/shapes`" in mistake(*given, f"task.image_tokenizer={tmp_path}/nowhere")
    said = mistake(*given, f"task.image_tokenizer={tmp_path}/compress-emoji")
    assert "task.image_tokenizer: there is no run in" in said
    assert "train one on the same images, with `ayn train compress/emoji`" in said
    assert "task.image_tokenizer is empty" in mistake(*given, "task.image_tokenizer=")
    said = mistake(*given, f"task.image_tokenizer={drawer.folder.path}")
    assert "is a run of the task 'draw'; the codes of images come from a run of the task compress" in said
    own = f"task.image_tokenizer={book.folder.path}"
    assert "model.codes = 99, but the codebook has 27" in mistake(*given, own, "model.codes=99")
    assert "model.grid = 3, but the codebook has 4" in mistake(*given, own, "model.grid=3")
    other = train("compress/shapes", *TINY_BOOK, "train.seed=2", out=tmp_path / "other", quiet=True)
    said = mistake(*given, f"task.image_tokenizer={other.folder.path}", "--init", drawer.folder.path)
    assert "is not the one that the run in train.init draws with" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_it_starts_from_another_run_and_draws_with_its_book(drawer, tmp_path):
    done = ayn(
        "train", "draw/shapes", "--out", tmp_path / "run", *FEW, "--init", drawer.folder.path, "task.image_tokenizer="
    )
    assert done.code == 0, done.err
    run = load(tmp_path / "run")
    assert run.task.image_tokenizer.fingerprint == drawer.task.image_tokenizer.fingerprint


@pytest.mark.parametrize("name", ["image_tokenizer.json", "image_tokenizer.safetensors"])
def test_a_damaged_book(drawer, name, tmp_path):
    shutil.copytree(drawer.folder.path, tmp_path / "run")
    path = tmp_path / "run" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert f"{name} is damaged, or belongs to another run" in mistake("use", tmp_path / "run", CAPTION)
    reseal(tmp_path / "run")
    assert name in mistake("use", tmp_path / "run", CAPTION)
    if name == "image_tokenizer.json":
        huge = {**json.loads(whole), "width": 10**6, "layers": 1000}
        path.write_text(json.dumps(huge))
        reseal(tmp_path / "run")
        assert "does not fit the codebook that image_tokenizer.json describes" in mistake(
            "use", tmp_path / "run", CAPTION
        )


@pytest.mark.slow
def test_resumed_is_as_never_stopped(book, tmp_path):
    """Also if the run that made the codes is gone."""
    shutil.copytree(book.folder.path, tmp_path / "book")
    given = [*TINY_DRAW, f"task.image_tokenizer={tmp_path}/book", "train.schedule=constant", "train.eval_every=2"]
    whole = train("draw/shapes", *given, "train.steps=4", out=tmp_path / "whole", quiet=True)
    assert ayn("train", "draw/shapes", "--out", tmp_path / "part", *given, "train.steps=2").code == 0
    shutil.rmtree(tmp_path / "book")
    assert ayn("train", "draw/shapes", "--out", tmp_path / "part", "--resume", "train.steps=4").code == 0
    one, other = (
        read_tensors(path / "checkpoints/step-000004/model.safetensors")
        for path in (whole.folder.path, tmp_path / "part")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_own_images_with_captions(tmp_path):
    pixels, captions = (part[:150] for part in made()["train"])
    few = [*RUNTIME, "train.steps=2", "model.width=16", "model.layers=1", "train.eval_every=2"]
    codes = train("compress/shapes", *few, data=pixels, out=tmp_path / "codes", quiet=True)
    assert codes.recipe.model.image == 32
    rows = [(tmp_path / f"{i}.png", told) for i, told in enumerate(captions)]
    for (path, _), image in zip(rows, pixels):
        Image.fromarray(image).save(path)
    (tmp_path / "set.csv").write_text("path,caption\n" + "".join(f"{path.name},{told}\n" for path, told in rows))
    done = ayn(
        "train", "draw/shapes", "--data", tmp_path / "set.csv", "--out", tmp_path / "run", *few, "model.heads=2",
        f"task.image_tokenizer={codes.folder.path}",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "captions: model.caption=32" in done.out
    run = load(tmp_path / "run")
    names = [score.name for score in run.test(say=lambda line: None)]
    assert names == ["retrieval", "code perplexity", "caption perplexity"]
    assert run.predict("a small red circle").size == (32, 32)


def test_memory_goes_to_both(tmp_path):
    with pytest.raises(UserError, match="image"):
        train("compress/shapes", *RUNTIME, data=[1, 2, 3], out=tmp_path / "run", quiet=True)


def test_retrieval_compares_an_image_with_its_own_caption_and_others(monkeypatch):
    told, asked = ["a", "b", "a", "c"], []
    task = SimpleNamespace(
        captions=lambda split: [np.array([ord(caption)]) for caption in told],
        codes=lambda split: np.arange(4)[:, None],
    )
    model = SimpleNamespace(config=SimpleNamespace(caption=3), prompt=lambda row: [0, *row])

    def likelihood(model, words, codes):
        asked.append(("".join(map(chr, words[:, 1])), set(codes[:, 0].tolist())))
        return np.where(words[:, 1] == ord("a"), 0.0, -1.0)

    monkeypatch.setattr(drawing, "likelihood", likelihood)
    assert drawing.Draw._chosen(task, model, "test", [0, 1, 2]) == [(True, 3), (False, 3), (True, 3)]
    assert [(words[0], sorted(words[1:]), codes) for words, codes in asked] == [
        ("a", ["b", "c"], {0}),
        ("b", ["a", "c"], {1}),
        ("a", ["b", "c"], {2}),
    ]


def test_an_image_full_of_specks_is_checked_soon():
    image = np.full((SIDE, SIDE, 3), 255, np.uint8)
    for y in range(0, SIDE, 4):
        for x in range(0, SIDE, 4):
            image[y : y + 2, x : x + 2] = COLOURS["red"]
    began = time.process_time()
    assert len(read_image(image)) == 64
    found = check("three small red circles", image)
    assert time.process_time() - began < 2
    assert not found["number"]
    assert found["colour"]


def test_scenes_have_every_number_and_every_place():
    draws, told, spots = Random(5), set(), set()
    for _ in range(3000):
        shapes, caption = scene(draws, "train")
        words = caption.split()
        told.add(words[0] if len(words) == 4 else "pair")
        spots |= {(shape.size, at) for shape in shapes for at in (shape.x, shape.y)}
        for i, one in enumerate(shapes):
            for other in shapes[:i]:
                apart = max(abs(one.x - other.x), abs(one.y - other.y))
                assert apart >= reach(one.size) + reach(other.size) + 2
        if len(words) > 4:
            near, far = sorted((abs(shapes[0].x - shapes[1].x), abs(shapes[0].y - shapes[1].y)))
            assert far >= 1.5 * near
    assert told == {"a", "two", "three", "pair"}
    assert {at for size, at in spots if size == "small"} == set(range(4, 29, 2))
    assert {at for size, at in spots if size == "large"} == set(range(6, 27, 2))
    for kind in kinds(False):  # two of its numbers are in train, one is held out
        assert sorted(belongs(kind, number) for number in (1, 2, 3)) == ["held", "train", "train"]
