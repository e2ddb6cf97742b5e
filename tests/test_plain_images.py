"""Images alone, from files; images in memory, with captions or alone."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from PIL import Image

from allyouneed.config import DataConfig
from allyouneed.data.images import ImageSplit
from allyouneed.data.in_memory import store_examples
from allyouneed.data.opening import open_data
from allyouneed.data.report import describe
from allyouneed.data.sources import fingerprint
from allyouneed.data.store import TokenKey
from allyouneed.errors import UserError
from allyouneed.recipe import read_recipe
from allyouneed.training.starting import with_data
from test_captions import WHOLE, counted, drawings, labels, opened, sentences, write_table
from test_images import folder, write_idx


def test_a_folder_that_holds_images(tmp_path: Path) -> None:
    drawings(tmp_path / "set", 30)
    drawings(tmp_path / "set" / "more" / "deep", 40)
    drawings(tmp_path / "set" / ".hidden", 3)
    (tmp_path / "set" / "empty").mkdir()
    (tmp_path / "set" / "more" / "notes.txt").write_text("x")
    data = opened(tmp_path / "set", "plain", valid_part=0.2, test_part=0.2)
    assert sum(counted(data).values()) == 70
    assert counted(data).keys() == {"train", "valid", "test"}
    assert {label for name in data.splits for label in labels(data, name)} == {""}
    assert "set: 70 images; left out as no images, by their names: 1" in data.understood
    assert (
        "split by a hash of the image, so that none is in two splits: 20 % for valid, 20 % for test" in data.understood
    )
    contents = [{image.content for image in split} for split in data.splits.values()]  # 30 of them are there twice
    assert sum(map(len, contents)) == len(set().union(*contents)) == 40
    assert describe(data, {}).parts[0].duplicates > 0
    split = data.splits["train"]
    assert isinstance(split, ImageSplit)
    assert split.stored(TokenKey("test", "train", "plain"), 8, 3, DataConfig()).shape == (split.examples, 8, 8, 3)


def test_folders_of_plain_splits(tmp_path: Path) -> None:
    for name, count in {"train": 12, "val": 4, "test": 3}.items():
        drawings(tmp_path / "set" / name, count)
    assert counted(opened(tmp_path / "set", "plain")) == {"train": 12, "valid": 4, "test": 3}
    classes = folder(tmp_path / "classes", 20)
    assert sum(counted(opened(classes, "plain", valid_part=0.2, test_part=0.2)).values()) == 40


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_a_table_of_plain_images(form: str, tmp_path: Path) -> None:
    paths = drawings(tmp_path / "set", 20)
    blank = [(f"set/{path.name}", "" if i % 2 else "a caption") for i, path in enumerate(paths)]
    data = opened(write_table(tmp_path / f"a.{form}", ("path", "caption"), blank), "plain", **WHOLE)
    assert (data.splits["train"].examples, data.splits["train"].empty) == (20, 0)
    assert set(labels(data)) == {""}
    alone = write_table(tmp_path / f"b.{form}", ("path",), [(path,) for path, _ in blank])
    assert counted(opened(alone, "plain", **WHOLE)) == {"train": 20}
    if form != "jsonl":
        bare = write_table(tmp_path / f"c.{form}", None, [(path,) for path, _ in blank])
        assert counted(opened(bare, "plain", **WHOLE)) == {"train": 20}


def test_arrays_of_plain_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3), np.uint8)
    np.savez(tmp_path / "set.npz", images=pixels)
    assert counted(opened(tmp_path / "set.npz", "plain", **WHOLE)) == {"train": 20}
    np.savez(tmp_path / "set.npz", x_train=pixels, y_train=np.array([None] * 3), x_test=pixels[:4])
    assert counted(opened(tmp_path / "set.npz", "plain", **WHOLE)) == {"train": 20, "test": 4}
    np.save(tmp_path / "set.npy", pixels)
    assert counted(opened(tmp_path / "set.npy", "plain", **WHOLE)) == {"train": 20}
    for array, told in (
        (pixels[0, 0], r"an array of shape \(6, 3\) for the images"),
        (pixels[..., :0], r"the shape \(6, 6, 0\) is not that of an image"),
    ):
        np.save(tmp_path / "set.npy", array)
        with pytest.raises(UserError, match=told):
            opened(tmp_path / "set.npy", "plain")
    np.savez(tmp_path / "set.npz", a=pixels)
    with pytest.raises(UserError, match="has the arrays a: name them images"):
        opened(tmp_path / "set.npz", "plain")
    with pytest.raises(UserError, match=r"set\.npy does not look like captioned images: give a CSV"):
        opened(tmp_path / "set.npy")


def test_one_idx_file_is_enough_for_plain_images(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 5, 5))
    (tmp_path / "set").mkdir()
    images = write_idx(tmp_path / "set" / "train-images-idx3-ubyte.gz", pixels)
    numbers = write_idx(tmp_path / "numbers", np.arange(20) % 10)
    assert counted(opened(images, "plain", **WHOLE)) == {"train": 20}
    assert counted(opened([images, numbers], "plain", **WHOLE)) == {"train": 20}
    write_idx(tmp_path / "set" / "t10k-images-idx3-ubyte.gz", pixels[:3])
    write_idx(tmp_path / "set" / "train-labels-idx1-ubyte.gz", np.arange(3))  # too few, which does not matter
    data = opened(tmp_path / "set", "plain", **WHOLE)
    assert counted(data) == {"train": 20, "test": 3}
    assert set(labels(data)) == {""}
    with pytest.raises(UserError, match=r"do not go with labels of shape \(3,\); give one label for each image"):
        opened(tmp_path / "set", "captions")
    with pytest.raises(
        UserError, match=r"numbers has an array of shape \(20,\) for the images; they are \(count, height, width\)"
    ):
        opened(numbers, "plain")
    images.write_bytes(gzip.compress(b"\0\0\x08\x03short"))
    with pytest.raises(UserError, match="is damaged"):
        opened(images, "plain")


def test_image_files_one_by_one(tmp_path: Path) -> None:
    assert counted(opened(drawings(tmp_path / "set", 12), "plain", **WHOLE)) == {"train": 12}
    with pytest.raises(UserError, match="images come from one folder or one file"):
        opened([tmp_path / "set", tmp_path / "set"], "plain")
    with pytest.raises(UserError, match="images come from one folder or one file"):
        opened(sorted((tmp_path / "set").iterdir()), "captions")


# In memory


def in_memory(tmp_path: Path) -> dict[str, Any]:
    """The same twelve images with captions, in every form."""
    paths, captions = drawings(tmp_path / "set", 12), sentences(12)
    arrays = [np.asarray(Image.open(path)) for path in paths]
    return {
        "paths": [*zip(paths, captions)],
        "images": [(Image.open(path), caption) for path, caption in zip(paths, captions)],
        "arrays": [[*row] for row in zip(arrays, captions)],
        "dicts": [{"image": array, "text": caption} for array, caption in zip(arrays, captions)],
        "columns": {"images": np.stack(arrays), "captions": captions},
        "two": (np.stack(arrays), captions),
        "pandas": pandas.DataFrame({"file_name": map(str, paths), "caption": captions}),
        "polars": polars.DataFrame({"image_path": [str(path) for path in paths], "prompt": captions}),
    }


@pytest.mark.parametrize("form", ["paths", "images", "arrays", "dicts", "columns", "two", "pandas", "polars"])
def test_captions_in_memory(form: str, tmp_path: Path) -> None:
    given = in_memory(tmp_path)[form]
    for shape, expected in (("captions", sentences(12)), ("plain", [""] * 12)):
        data = opened(store_examples(given, shape), shape, **WHOLE)
        assert labels(data) == expected
        split = data.splits["train"]
        assert isinstance(split, ImageSplit)
        pixels = split.stored(TokenKey(fingerprint(form, shape), "train", "x"), 10, 3, DataConfig())
        assert [tuple(image[5, 5]) for image in pixels] == [(i, 0, 100) for i in range(12)]


def test_plain_images_in_memory(tmp_path: Path) -> None:
    paths = drawings(tmp_path / "set", 12)
    arrays = [np.asarray(Image.open(path)) for path in paths]
    kept = store_examples(np.stack(arrays), "plain")
    for same in (arrays, tuple(arrays), iter(arrays), {"images": arrays}, [{"pixels": one} for one in arrays]):
        assert store_examples(same, "plain") == kept
    assert counted(opened(kept, "plain", **WHOLE)) == {"train": 12}
    assert store_examples(tuple(arrays[:2]), "plain") == store_examples(
        arrays[:2], "plain"
    )  # not images and their labels
    assert counted(opened(store_examples(np.stack(arrays)[..., 0], "plain"), "plain", **WHOLE)) == {"train": 12}  # grey
    assert counted(opened(store_examples({"path": paths}, "plain"), "plain", **WHOLE)) == {"train": 12}


def test_a_user_names_the_columns_in_memory(tmp_path: Path) -> None:
    frame = pandas.DataFrame(
        {"photo": map(str, drawings(tmp_path / "set", 12)), "label": range(12), "said": sentences(12)}
    )
    assert labels(opened(store_examples(frame, "captions", "photo", "said"), **WHOLE)) == sentences(12)
    assert labels(opened(store_examples(frame, "images", "photo", "said"), "images", **WHOLE)) == sentences(12)
    recipe = read_recipe("recognize/vit", ["data.source=photo", "data.target=label"])
    config = with_data(recipe, frame).data  # the file that is written has columns of its own
    assert labels(
        open_data(DataConfig(path=config.path, source=config.source, target=config.target, **WHOLE), "images")
    )


@pytest.mark.parametrize(
    ("make", "shape", "told"),
    [
        (lambda a: [(a, "one"), (a, None)], "captions", r"row 2 of data: 'caption' is missing \(None\)"),
        (lambda a: pandas.DataFrame({"image": [a, a], "label": ["x", float("nan")]}), "images", "'label' is miss"),
        (lambda a: [(a, "one"), (a, ["two", "three"])], "captions", "row 2 .* a caption of shape .2,.: give one"),
        (lambda a: [(a, "one"), (a, ["two", "three"])], "images", "row 2 .* a label of shape .2,.: give one"),
        (lambda a: {"images": [a, a], "captions": ["one"]}, "captions", "lengths: 'images' has 2, 'captions' has"),
        (lambda a: (np.stack([a, a]), ["one"]), "captions", "different lengths: 'image' has 2, 'caption' has 1"),
        (lambda a: {"images": [a]}, "captions", "no column for the captions; it has images: name one 'caption'"),
        (lambda a: {"captions": ["one"]}, "captions", "data has no column for the images"),
        (lambda a: [a], "captions", r"\(image, caption\) is expected, or a dict"),
        (lambda a: [(a, "one"), ("a.png", "two")], "captions", "some images in data are paths and others are not"),
        (lambda a: [a, a[:3]], "plain", "different sizes or channels"),
        (lambda a: [3, 4], "plain", r"row 1 of data: the shape \(\) is not that of an image"),
        (lambda a: a[:, :, 0], "plain", r"data has the shape \(5, 5\): give several images"),
        (lambda a: [], "plain", "data is empty"),
        (lambda a: {"images": []}, "plain", "data has no rows"),
        (lambda a: 3, "plain", "data is int; give a path"),
        (lambda a: pandas.DataFrame({"a": [1]}), "plain", "data has no column for the images; it has a"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_memory(make: Callable[[np.ndarray], Any], shape: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        store_examples(make(np.zeros((5, 5, 3), np.uint8)), shape)
