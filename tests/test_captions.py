"""Images with captions: read from every kind of file, split by their captions, and refused."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allyouneed.config import DataConfig
from allyouneed.data import layouts, registry
from allyouneed.data.facts import gather
from allyouneed.data.images import ImageSplit
from allyouneed.data.opening import open_data
from allyouneed.data.report import describe
from allyouneed.data.sources import Dataset, caption_key, part_of
from allyouneed.errors import UserError
from test_images import flat, folder, write_idx

WHOLE = {"valid_part": 0.0, "test_part": 0.0}
EMOJI = registry.SETS["emoji"]


def opened(path: Path | str | list[Path], shape: str = "captions", **settings: Any) -> Dataset:
    paths = tuple(map(str, path)) if isinstance(path, list) else (str(path),)
    return open_data(DataConfig(path=paths, **settings), shape)


def counted(data: Dataset) -> dict[str, int]:
    return {name: split.examples for name, split in data.splits.items()}


def labels(data: Dataset, split: str = "train") -> list[str]:
    return [image.label for image in data.splits[split]]


def drawings(root: Path, count: int) -> list[Path]:
    """Different images in one folder."""
    root.mkdir(parents=True, exist_ok=True)
    paths = [root / f"{i}.png" for i in range(count)]
    for i, path in enumerate(paths):
        flat((i % 256, i // 256, 100), (12, 10)).save(path)
    return paths


def sentences(count: int) -> list[str]:
    """All different, of one to seven words."""
    words = ["a", "large", "red", "circle,", "left", "of", "two"]
    return [" ".join([*words[: i % 7], f"thing{i}"]) for i in range(count)]


def write_table(path: Path, names: tuple[str, ...] | None, rows: list[tuple[Any, ...]]) -> Path:
    """In the form that the ending says; JSONL needs names."""
    if path.suffix == ".jsonl":
        assert names is not None
        path.write_text("".join(json.dumps(dict(zip(names, row))) + "\n" for row in rows))
        return path
    mark = "," if path.suffix == ".csv" else "\t"
    quoted = (lambda cell: f'"{cell}"' if "," in str(cell) else str(cell)) if mark == "," else str
    lines = [*([names] if names else []), *rows]
    path.write_text("".join(mark.join(map(quoted, line)) + "\n" for line in lines))
    return path


# Captions


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("name", ["caption", "text", "description", "prompt", "label", "raw_caption", "Title"])
def test_a_table_of_paths_and_captions(form: str, name: str, tmp_path: Path) -> None:
    captions = sentences(60)
    rows = [
        (f"set/{path.name}", i, caption)
        for i, (path, caption) in enumerate(zip(drawings(tmp_path / "set", 60), captions))
    ]
    table = write_table(tmp_path / f"table.{form}", ("file_name", "width", name), rows)
    data = opened(table, **WHOLE)
    assert data.shape == "captions"
    assert labels(data) == captions
    assert f"caption is {'key' if form == 'jsonl' else 'column'} {name}" in data.understood[0]


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_a_table_without_a_header(form: str, tmp_path: Path) -> None:
    """One word above whole texts looks like a header; the image beside it tells that it is none."""
    captions = ["caterpillar", *(f"a long sentence about {one}" for one in sentences(40))]
    paths = drawings(tmp_path / "set", 41)
    for order in (lambda path, caption: (path, caption), lambda path, caption: (caption, path)):
        rows = [order(f"set/{path.name}", caption) for path, caption in zip(paths, captions)]
        data = opened(write_table(tmp_path / f"table.{form}", None, rows), **WHOLE)
        assert labels(data) == captions
        assert "caption guessed from the cells" in data.understood[0]
    rows = [(f"set/{path.name}", f"of the kind number {i % 2}" if i else "kind") for i, path in enumerate(paths)]
    assert counted(opened(write_table(tmp_path / f"kinds.{form}", None, rows), "images", **WHOLE)) == {"train": 41}


def test_the_user_names_the_columns(tmp_path: Path) -> None:
    rows = [
        (f"set/{path.name}", f"ein Bild {i}", f"a small image {i}")
        for i, path in enumerate(drawings(tmp_path / "set", 30))
    ]
    table = write_table(tmp_path / "table.csv", ("photo", "de", "en"), rows)
    assert labels(opened(table, target="en", **WHOLE))[3] == "a small image 3"
    assert labels(opened(table, target="de", source="photo", **WHOLE))[3] == "ein Bild 3"
    assert labels(opened(table, target="3", **WHOLE))[3] == "a small image 3"
    assert "caption is column en of 3; image and caption guessed" in opened(table, **WHOLE).understood[0]
    for settings, told in (
        ({"target": "fr"}, "has no column 'fr'"),
        ({"target": "photo"}, "has no column for the image; it has photo, de, en"),
        ({"header": "false"}, r"row 1: there is no image .*photo"),
    ):
        with pytest.raises(UserError, match=told):
            opened(table, **WHOLE, **settings)
    bare = write_table(tmp_path / "bare.csv", None, rows)
    with pytest.raises(UserError, match="has no column 'photo'"):  # its first row has an image: it is no header
        opened(bare, source="photo")


def test_the_same_caption_is_never_in_two_splits(tmp_path: Path) -> None:
    """In whatever spelling; and the same image may be, with another caption."""
    paths = drawings(tmp_path / "set", 90)
    rows = [(f"set/{path.name}", f"{['Thing', 'thing', ' THING '][i % 3]}  {i // 3}") for i, path in enumerate(paths)]
    rows += [("set/0.png", f"the first one again {i}") for i in range(40)]
    data = opened(write_table(tmp_path / "table.tsv", ("path", "caption"), rows), valid_part=0.2, test_part=0.2)
    keys = {name: {caption_key(label) for label in labels(data, name)} for name in data.splits}
    assert sum(map(len, keys.values())) == 70
    assert len(set().union(*keys.values())) == 70
    assert all(part_of(key, 0.2, 0.2) == name for name, found in keys.items() for key in found)
    first = {name for name, split in data.splits.items() if any("0.png" in image.where[-6:] for image in split)}
    assert first == {"train", "valid", "test"}
    assert (
        "split by a hash of the caption, so that none is in two splits: 20 % for valid, 20 % for test"
        in data.understood
    )


def test_a_blank_caption_or_path_is_dropped_and_counted(tmp_path: Path) -> None:
    rows = [(f"set/{path.name}", caption) for path, caption in zip(drawings(tmp_path / "set", 30), sentences(30))]
    rows[4], rows[7], rows[9] = (rows[4][0], " "), (rows[7][0], ""), ("", "a caption without an image")
    for form in ("csv", "tsv", "jsonl"):
        data = opened(write_table(tmp_path / f"table.{form}", ("path", "caption"), rows), **WHOLE)
        assert (data.splits["train"].examples, data.splits["train"].empty) == (27, 3)
        assert all(label.strip() for label in labels(data))
    rows = [(path, "ab"[i % 2] if caption.strip() else caption) for i, (path, caption) in enumerate(rows)]
    data = opened(write_table(tmp_path / "labels.csv", ("path", "label"), rows), "images", **WHOLE)
    assert (data.splits["train"].examples, data.splits["train"].empty) == (27, 3)


def test_only_blank_captions_are_refused(tmp_path: Path) -> None:
    rows = [(f"set/{path.name}", "") for path in drawings(tmp_path / "set", 12)]
    table = write_table(tmp_path / "table.csv", ("path", "caption"), rows)
    with pytest.raises(UserError, match="has no column for the caption; it has path, caption"):
        opened(table, **WHOLE)
    with pytest.raises(UserError, match="no caption of it is in the train split"):
        opened(table, target="caption", **WHOLE)


def test_class_folders_have_their_names_as_captions(tmp_path: Path) -> None:
    names = tuple(f"a small thing {i}" for i in range(40))
    data = opened(folder(tmp_path / "set", 2, names))
    found = {name: set(labels(data, name)) for name in data.splits}
    assert found.keys() == {"train", "valid", "test"}
    assert set().union(*found.values()) == set(names)
    assert sum(map(len, found.values())) == 40
    assert "the name of a folder is the caption of its images" in data.understood[0]


def test_few_captions_cannot_be_split(tmp_path: Path) -> None:
    folder(tmp_path / "set", 20)
    with pytest.raises(
        UserError, match=r"no caption of it is in the \w+ split, and all images with the same caption are"
    ):
        opened(tmp_path / "set")
    assert counted(opened(tmp_path / "set", **WHOLE)) == {"train": 40}
    with pytest.raises(
        UserError, match=r"in the train split.*; give more captions, other parts \(data\.valid_part, data\.test_part"
    ):
        opened(tmp_path / "set", valid_part=0.5, test_part=0.5)


@pytest.mark.parametrize("name", ["captions", "caption", "texts", "labels", "prompts"])
def test_an_npz_with_captions(name: str, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 6, 6, 3), np.uint8)
    np.savez(tmp_path / "set.npz", images=pixels, **{name: np.array(sentences(30))})
    assert labels(opened(tmp_path / "set.npz", **WHOLE)) == sentences(30)
    np.savez(tmp_path / "set.npz", images=pixels, captions=np.array(sentences(30)).astype(bytes))
    assert labels(opened(tmp_path / "set.npz", **WHOLE)) == sentences(30)
    np.savez(tmp_path / "set.npz", images=pixels, labels=np.array([b"cat", b"dog"] * 15))
    assert set(labels(opened(tmp_path / "set.npz", "images", **WHOLE))) == {"cat", "dog"}
    np.savez(tmp_path / "set.npz", images=pixels, captions=np.array(sentences(29)))
    with pytest.raises(UserError, match=r"do not go with captions of shape \(29,\); give one caption for each image"):
        opened(tmp_path / "set.npz")
    np.savez(tmp_path / "set.npz", images=pixels)
    with pytest.raises(UserError, match="has the arrays images: name them images and captions"):
        opened(tmp_path / "set.npz")
    np.savez(tmp_path / "set.npz", images=pixels, captions=np.array(sentences(30), dtype=object))
    with pytest.raises(UserError, match="no npz file of plain arrays"):
        opened(tmp_path / "set.npz")


def test_idx_files_have_numbers_as_captions(tmp_path: Path) -> None:
    images = write_idx(tmp_path / "images", np.random.default_rng(0).integers(0, 256, (20, 5, 5)))
    numbers = write_idx(tmp_path / "numbers", np.arange(20) % 10)
    assert set(labels(opened([images, numbers], **WHOLE))) == {str(i) for i in range(10)}


def test_captions_of_their_own_splits(tmp_path: Path) -> None:
    rows = [(f"set/{path.name}", caption) for path, caption in zip(drawings(tmp_path / "set", 30), sentences(30))]
    tables = [write_table(tmp_path / f"{name}.tsv", ("path", "caption"), rows) for name in ("train", "valid")]
    data = opened(tables[0], valid_path=(str(tables[1]),), test_part=0.0)
    assert counted(data) == {"train": 30, "valid": 30}
    report = describe(data, {})
    assert [part.in_train for part in report.parts] == [None, 30]
    rows = [(path, caption.upper() + " ") for path, caption in rows[:5]] + [("set/1.png", "something else")]
    write_table(tables[1], ("path", "caption"), rows)
    report = describe(opened(tables[0], valid_path=(str(tables[1]),), test_part=0.0), {})
    assert report.parts[1].in_train == 5  # by their captions: the sixth has an image of train
    assert report.things == "images"
    assert "split  images" in "\n".join(report.to_lines())


def test_facts_have_the_words_of_captions_and_the_size_of_images(tmp_path: Path) -> None:
    rows = [(f"set/{path.name}", f"a red thing, number {i}") for i, path in enumerate(drawings(tmp_path / "set", 30))]
    table = write_table(tmp_path / "table.tsv", ("path", "caption"), rows)
    facts = gather(opened(table, **WHOLE))
    assert (facts.examples, facts.words, facts.side, facts.channels) == (30, 30 * 6, 10, 3)
    assert facts.different == pytest.approx((5 + 30) / 180)
    assert gather(opened(table, "images", **WHOLE)).words == 0  # labels are no text
    facts = gather(opened(table, "plain", **WHOLE))
    assert (facts.examples, facts.words, facts.side, facts.channels) == (30, 0, 10, 3)


# Data sets with a name


@pytest.mark.slow
def test_a_named_set_fits_what_it_can_be_read_as() -> None:
    shapes, scenes = (open_data(DataConfig(name=name), "plain") for name in ("shapes", "scenes"))
    for data in (shapes, scenes):
        assert data.shape == "plain"
        assert {label for name in data.splits for label in labels(data, name)} == {""}
        assert data.checker is None
    assert counted(shapes) == {"train": 6000, "valid": 500, "test": 1000}
    assert shapes.fingerprint == open_data(DataConfig(name="shapes"), "images").fingerprint
    assert open_data(DataConfig(name="shapes", limit=7), "plain").splits["train"].examples == 7
    with pytest.raises(
        UserError, match=r"'shapes' is labelled images, but this task needs captioned .*fit: scenes, emo"
    ):
        open_data(DataConfig(name="shapes"), "captions")
    with pytest.raises(UserError, match=r"'scenes' is captioned images, but this task needs labelled images") as raised:
        open_data(DataConfig(name="scenes"), "images")
    assert "emoji" not in str(raised.value)
    with pytest.raises(
        UserError, match=r"needs images, with or without labels; these fit: shapes, scenes, mnist, fash"
    ):
        open_data(DataConfig(name="corpus"), "plain")
    with pytest.raises(UserError, match=r"data.target goes with your own files"):
        open_data(DataConfig(name="scenes", target="caption"), "captions")


@pytest.mark.slow
def test_scenes_have_captions_and_rules() -> None:
    data = open_data(DataConfig(name="scenes"), "captions")
    assert data.shape == "captions"
    assert data.checker is not None
    for name, split in data.splits.items():
        assert isinstance(split, ImageSplit)
        assert split.array is not None
        assert split.array.shape[1:] == (32, 32, 3)
        assert all(image.label.strip() for image in split), name
        for image in list(split)[:20]:
            assert all(data.checker(image.label, split.array[image.number]).values()), image
    assert open_data(DataConfig(name="shapes"), "images").checker is None


# What is refused


def test_a_table_without_captions(tmp_path: Path) -> None:
    rows = [(f"set/{path.name}", i, 2 * i) for i, path in enumerate(drawings(tmp_path / "set", 12))]
    for form in ("csv", "tsv", "jsonl"):
        table = write_table(tmp_path / f"a.{form}", ("path", "width", "height"), rows)
        with pytest.raises(
            UserError, match=r"has no column for the caption; it has path, width, height: name one 'capt"
        ):
            opened(table)
        table = write_table(tmp_path / f"b.{form}", ("path",), [row[:1] for row in rows])
        with pytest.raises(UserError, match="has no column for the caption; it has path: name one"):
            opened(table)
        table = write_table(tmp_path / f"c.{form}", ("when", "caption"), [(row[1], "what it shows") for row in rows])
        for shape in ("captions", "plain", "images"):
            with pytest.raises(
                UserError, match="no column for the image; it has when, caption: name one 'path', or choose"
            ):
                opened(table, shape)


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    rows = [(f"set/{path.name}", caption) for path, caption in zip(drawings(tmp_path / "set", 12), sentences(12))]
    for name in ("set/none.png", "x" * 300 + ".png", "set"):
        table = write_table(tmp_path / "table.csv", ("path", "caption"), [*rows[:3], (name, "nothing"), *rows[3:]])
        for shape in ("captions", "plain", "images"):
            with pytest.raises(UserError, match=r"row 5: there is no image|cannot be opened: File name too long"):
                opened(table, shape)


def test_folders_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty" / "deep").mkdir(parents=True)
    (tmp_path / "empty" / "deep" / "a.txt").write_text("x")
    with pytest.raises(UserError, match="empty has no image in it, at any depth"):
        opened(tmp_path / "empty", "plain")
    drawings(tmp_path / "set" / "train", 3)
    (tmp_path / "set" / "test").mkdir()
    with pytest.raises(UserError, match=r"the folder .*test has no image in it"):
        opened(tmp_path / "set", "plain")
    drawings(tmp_path / "loose", 3)
    with pytest.raises(UserError, match="has 3 images without a caption: give a CSV, TSV or JSONL file with paths and"):
        opened(tmp_path / "loose")
    for shape, told in (
        ("captions", "captioned images: give a CSV"),
        ("plain", "images: give a folder of images"),
    ):
        (tmp_path / "a.bin").write_bytes(b"\1\2\3\4")
        with pytest.raises(UserError, match=f"does not look like {told}"):
            opened(tmp_path / "a.bin", shape)
    with pytest.raises(
        UserError, match=r"no image of it is in the valid split; give more images, other parts \(data\.valid_part"
    ):
        opened(tmp_path / "loose" / "1.png", "plain")


def write_emoji(root: Path, array: np.ndarray, lines: list[str]) -> list[Path]:
    root.mkdir(exist_ok=True)
    with lzma.open(root / "images_u8.npy.xz", "wb") as file:
        np.save(file, array)
    (root / "captions.tsv").write_text("".join(f"{line}\n" for line in lines))
    return [root / "images_u8.npy.xz", root / "captions.tsv"]


def test_captions_of_emoji_are_in_small_letters_and_those_of_a_caption_in_one_split(tmp_path: Path) -> None:
    pixels, lines = np.zeros((40, 32, 32, 3), np.uint8), [f"noto\tThing {i // 2}" for i in range(40)]
    found = registry.image_lists(EMOJI, layouts.emoji({"train": write_emoji(tmp_path, pixels, lines)}))
    captions = [{image.label for image in listed.images} for listed in found.values()]
    assert set().union(*captions) == {f"thing {i}" for i in range(20)}
    assert sum(map(len, captions)) == 20
    with pytest.raises(UserError, match="emoji has 39 images, but 40 captions: give one for each image"):
        registry.image_lists(EMOJI, layouts.emoji({"train": write_emoji(tmp_path, pixels[:39], lines)}))


def test_an_emoji_file_with_another_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_emoji(tmp_path / "emoji", np.zeros((1, 32, 32, 3), np.uint8), ["noto\ta"])
    with pytest.raises(UserError, match=r"images_u8\.npy\.xz has the wrong checksum"):
        open_data(DataConfig(name="emoji", mirror=str(tmp_path)), "captions")
    monkeypatch.delenv("ALLYOUNEED_MIRROR", raising=False)
    shutil.rmtree(tmp_path / "emoji")
    with pytest.raises(UserError, match=r"emoji/images_u8\.npy\.xz has no public address"):
        open_data(DataConfig(name="emoji"), "captions")


def test_emoji(mirror: Path) -> None:
    data = open_data(DataConfig(name="emoji", mirror=str(mirror)), "captions")
    assert data.shape == "captions"
    assert sum(counted(data).values()) == 12_262
    captions = {name: set(labels(data, name)) for name in data.splits}
    assert sum(map(len, captions.values())) == len(set().union(*captions.values())) == 4_712
    for name in ("valid", "test"):
        assert 0.04 < len(captions[name]) / 4_712 < 0.06
        assert 0.03 < data.splits[name].examples / 12_262 < 0.07
    assert all(caption == caption.lower() == caption.strip() for caption in captions["train"])
    assert any("the same caption is never in two splits" in line for line in data.understood)
    assert data.splits["train"].look() == (32, 3)
    plain = open_data(DataConfig(name="emoji", mirror=str(mirror)), "plain")
    assert counted(plain) == counted(data)
    assert set(labels(plain)) == {""}
    row = next(row for row in registry.listing() if row.name == "emoji")
    assert (row.shape, row.licence) == ("captions", "Apache-2.0, CC BY 4.0, CC BY-SA 4.0, MIT")
    assert row.origin == "Noto, Twemoji, OpenMoji, Fluent, EmojiOne; from a mirror only"


@pytest.mark.slow
def test_built_in_images_are_generated_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path))
    first = open_data(DataConfig(name="shapes"), "images")
    monkeypatch.setattr("allyouneed.data.builtin.shapes.shapes", lambda: pytest.fail("they are in the cache"))
    again = open_data(DataConfig(name="shapes"), "images")
    assert again.fingerprint == first.fingerprint
    for name, split in first.splits.items():
        assert list(again.splits[name]) == list(split)
        assert np.array_equal(again.splits[name].array, split.array)
