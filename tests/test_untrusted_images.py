"""Images that nobody should trust: files that start programs, and names that are no text."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from allyouneed.config import DataConfig
from allyouneed.data.formats.images import file_images
from allyouneed.data.formats.pixels import ENDINGS, FORMATS, BadImageError, decode, decode_frames
from allyouneed.data.images import ImageSplit
from allyouneed.data.in_memory import store_examples
from allyouneed.data.opening import open_data
from allyouneed.errors import UserError
from allyouneed.run import Run, train
from commands import ayn, mistake
from conftest import RUNTIME
from test_images import RED, flat, folder, pixel, stored

TINY = [
    *RUNTIME, "model.width=16", "model.heads=2", "model.layers=1", "model.image=16", "model.patch=8", "train.steps=2",
    "train.batch_tokens=64",
]  # fmt: skip
POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 20\n%%EndComments\n0 0 20 20 rectfill\nshowpage\n%%EOF\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("small") / "run"
    return train("recognize/vit", *TINY, "model.image=32", "data.limit=100", out=out, quiet=True)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that is there as soon as `gs` has been started; at the end it must not be there."""
    marker, tools = tmp_path / "gs was started", tmp_path / "tools"
    tools.mkdir()
    (tools / "gs").write_text(f"#!/bin/sh\ntouch '{marker}'\nexit 1\n")
    (tools / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    yield marker
    assert not marker.exists()


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    path = tmp_path / "cat.png"
    path.write_bytes(POSTSCRIPT)
    return path


# Programs


def test_pillow_itself_would_start_ghostscript(started: Path, cat: Path) -> None:
    """So the other tests of this file test something."""
    with pytest.raises(Exception, match="gs"), Image.open(cat) as image:
        image.load()
    assert started.exists()
    started.unlink()


@pytest.mark.parametrize("workers", [1, 2])
def test_postscript_among_training_data(workers: int, started: Path, cat: Path, tmp_path: Path) -> None:
    root = folder(tmp_path / "set", 110)
    cat.rename(root / "red" / "cat.png")
    told = "cat.png: it is no image, or of a kind that is not read here; these are: PNG, JPEG, GIF"
    said = mistake(
        "train", "recognize/vit", "--data", root, "--out", tmp_path / "run", *TINY, f"data.workers={workers}"
    )
    assert told in said
    split = open_data(DataConfig(path=(str(root),), valid_part=0.0, test_part=0.0), "images").splits["train"]
    assert len(stored(split, skip_bad=True, workers=workers, name="postscript")) == 220  # the others


@pytest.mark.parametrize("beside", ["label", "caption"])
def test_postscript_in_a_table(beside: str, started: Path, cat: Path, tmp_path: Path) -> None:
    root = folder(tmp_path / "set", 20)
    rows = [(path, f"{path.parent.name} {i % 7}") for i, path in enumerate([*sorted(root.rglob("*.png")), cat])]
    with (tmp_path / "table.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("path", beside), *rows])
    shape = "captions" if beside == "caption" else "images"
    config = DataConfig(path=(str(tmp_path / "table.csv"),), valid_part=0.0, test_part=0.0)
    split = open_data(config, shape).splits["train"]
    assert isinstance(split, ImageSplit)
    only = file_images([(cat, beside)], "")
    assert (len(only.images), only.side, only.channels) == (1, 0, 3)  # it tells nothing
    with pytest.raises(UserError, match=r"cat\.png: it is no image"):
        stored(split, skip_bad=False, name=beside)


@pytest.mark.slow
def test_postscript_is_not_answered(small: Run, started: Path, cat: Path, tmp_path: Path) -> None:
    assert "cat.png: it is no image, or of a kind that is not read here" in mistake("use", small.folder.path, cat)
    (tmp_path / "clip").mkdir()
    cat.rename(tmp_path / "clip" / "cat.png")
    done = ayn("use", small.folder.path, tmp_path / "clip")
    assert done.code == 2
    assert "cat.png: it is no image" in done.err
    assert "no answer for all together, since 1 cannot be read" in done.err


def test_an_image_that_the_user_opened_is_read_only_if_its_kind_is(small: Run, started: Path, cat: Path) -> None:
    told = "it is of the kind EPS, which is not read here: give a copy of it, image.copy()"
    with Image.open(cat) as lazy:
        with pytest.raises(UserError, match=f"the image: {told.replace('(', '.').replace(')', '.')}"):
            small.predict(lazy)
        for shape in ("images", "captions", "plain"):
            with pytest.raises(UserError, match="the image in row 2 of data: it is of the kind EPS"):
                store_examples([(Image.new("RGB", (20, 20)), "a"), (lazy, "b")], shape)


def test_a_lazy_image_that_is_damaged_or_huge(small: Run, tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (99, 99), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:-3000])
    with Image.open(path) as cut, pytest.raises(UserError, match=r"the image: it is damaged: .*truncated"):
        small.predict(cut)
    with Image.open(path) as cut, pytest.raises(UserError, match="the image in row 1 of data: it is damaged"):
        store_examples([(cut, "a")], "images")
    Image.new("1", (9000, 9000)).save(path)
    with Image.open(path) as wide, pytest.raises(UserError, match="the image: it has 9,000 x 9,000 pixels; at most"):
        small.predict(wide)


def test_an_image_in_memory_needs_no_format(small: Run) -> None:
    class Own(Image.Image):
        """Of another module than Pillow's."""

    image = Image.new("RGB", (40, 40), RED)
    mine = Own()
    mine.__setstate__(image.__getstate__())
    assert small.predict(image) == small.predict(mine) == small.predict(np.asarray(image))


@pytest.mark.parametrize("kind", FORMATS)
def test_every_listed_kind_is_read(kind: str, tmp_path: Path) -> None:
    """Under each of its names, and under a wrong one: the content counts."""
    Image.init()
    if kind not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {kind}")
    for ending in (*FORMATS[kind], ".png"):
        flat(RED, (32, 32)).save(tmp_path / f"a{ending}", format=kind)
        assert pixel(tmp_path / f"a{ending}") == pytest.approx(RED, abs=6)
        assert ending in ENDINGS


def test_no_other_kind_is_read(started: Path) -> None:
    """The first bytes of every kind that Pillow knows; and whole files of those that it writes."""
    Image.init()
    heads = (POSTSCRIPT, b"\xd7\xcd\xc6\x9a\0\0" + bytes(99), b"\1\0\0\0" + bytes(36) + b" EMF" + bytes(99))
    for head in heads:
        with pytest.raises(BadImageError, match="it is no image"):
            decode(head, 8, 3)
    tried = []
    for kind in sorted(set(Image.SAVE) & set(Image.OPEN) - set(FORMATS) - {"MPO"}):
        for mode in ("RGB", "L", "1", "P", "F"):
            made = io.BytesIO()
            try:
                Image.new(mode, (16, 16)).save(made, format=kind)
                with Image.open(io.BytesIO(made.getvalue())) as image:
                    found = image.format
            except Exception:  # this mode cannot be written
                continue
            if found not in FORMATS:  # a PNG in a box of another name is a PNG
                tried.append(kind)
                with pytest.raises(BadImageError, match=r"it is no image|it is damaged"):
                    decode(made.getvalue(), 8, 3)
                break
    assert {"EPS", "PCX", "SGI"} <= set(tried), tried


def test_an_image_of_a_frame_larger_than_the_first(tmp_path: Path) -> None:
    """A GIF whose second frame makes the image grow."""
    frames = [flat((9,), mode="L"), flat((200,), mode="L")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    data = bytearray((tmp_path / "a.gif").read_bytes())
    at = data.rindex(b",")
    data[at + 5 : at + 9] = (60_000).to_bytes(2, "little") + (1_000).to_bytes(2, "little")
    with pytest.raises(BadImageError, match="it has 60,000 x 1,000 pixels"):
        decode_frames(bytes(data), 8, 3, 4)


# Names that are not UTF-8

CAFE = os.fsdecode(b"caf\xe9")


def renamed(root: Path) -> Path:
    """A class folder and an image whose names are not UTF-8."""
    folder(root, 20, ("red", "green"))
    (root / "red" / "3.png").rename(root / "red" / f"{CAFE}.png")
    (root / "red").rename(root / CAFE)
    return root


def test_a_class_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    root, run = renamed(tmp_path / "set"), tmp_path / "run"
    done = ayn("train", "recognize/vit", "--data", root, "--out", run, *TINY)
    assert done.code == 0, done.err
    assert r"names of folders that are not UTF-8 are written as caf\xe9" in done.out
    assert json.loads((run / "labels.json").read_text(encoding="utf-8"))["labels"] == [r"caf\xe9", "green"]
    used = ayn("use", run, root / CAFE / f"{CAFE}.png", "--json")
    assert used.code == 0, used.err
    assert set(json.loads(used.out)["probabilities"]) == {r"caf\xe9", "green"}
    answered = ayn("use", run, root)
    assert answered.code == 0, answered.err
    assert len(answered.out.splitlines()) == 41
    tested = ayn("test", run, "--data", root, "--out", tmp_path / f"{CAFE}.jsonl")
    assert tested.code == 0, tested.err
    written = [json.loads(line) for line in (tmp_path / f"{CAFE}.jsonl").read_bytes().splitlines()]
    assert str(root / CAFE / f"{CAFE}.png") in {row["image"] for row in written}  # it leads to the image


def test_captions_of_folders_whose_names_are_not_utf_8(tmp_path: Path) -> None:
    root = renamed(tmp_path / "set")
    data = open_data(DataConfig(path=(str(root),), valid_part=0.0, test_part=0.0), "captions")
    assert {image.label for image in data.splits["train"]} == {r"caf\xe9", "green"}


def test_names_that_cannot_be_stored_are_told(small: Run, tmp_path: Path) -> None:
    root = folder(tmp_path / CAFE, 2)
    given = ["train", "recognize/vit", *TINY, "--out"]
    assert r"caf\udce9 is not valid UTF-8: rename it" in mistake(*given, tmp_path / "run", "--data", root)
    assert "has a name that is not UTF-8" in mistake(*given, tmp_path / f"run {CAFE}", "--data", "shapes")
    with pytest.raises(UserError, match=r"caf\\udce9/red/0.png is not valid UTF-8: rename it"):
        store_examples([(root / "red" / "0.png", "a")], "images")
    moved = shutil.copytree(small.folder.path, tmp_path / f"moved {CAFE}")
    for command in ("use", "info", "test"):
        said = mistake(command, moved, *([tmp_path / "a.png"] if command == "use" else []))
        assert "has a name that is not UTF-8, or has a zero byte: rename it" in said
