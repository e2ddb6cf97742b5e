"""Images in: every kind of file, decoded once, and every kind of bad file told by its name."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from allyouneed.config import DataConfig
from allyouneed.data import images as module
from allyouneed.data.builtin.shapes import COLOURS, FORMS, SIDE, Shape, caption, draw, held_out, shapes
from allyouneed.data.formats.arrays import read_array
from allyouneed.data.formats.pixels import BadImageError, as_bytes, decode, decode_all, decode_frames, to_image
from allyouneed.data.images import ImageSplit
from allyouneed.data.opening import open_data
from allyouneed.data.store import TokenKey
from allyouneed.errors import UserError

RED, GREEN = (200, 30, 20), (10, 180, 60)


def flat(colour: tuple[int, ...], size: tuple[int, int] = (20, 20), mode: str = "RGB") -> Image.Image:
    return Image.new(mode, size, colour if len(colour) > 1 else colour[0])


def pixel(path: Path, channels: int = 3, side: int = 8) -> tuple[int, ...]:
    """The pixel in the middle."""
    data = np.frombuffer(decode(path, side, channels), np.uint8).reshape(side, side, channels)
    return tuple(int(value) for value in data[side // 2, side // 2])


def folder(root: Path, count: int = 12, names: tuple[str, ...] = ("red", "green")) -> Path:
    """Class folders of slightly different images."""
    for number, name in enumerate(names):
        (root / name).mkdir(parents=True)
        for i in range(count):
            colour = (200 - i, 30 + i, 20) if number == 0 else (10 + i, 180 - i, 60 + number)
            flat(colour, (16 + i, 20)).save(root / name / f"{i}.png")
    return root


def opened(path: Path | str, **settings: object) -> module.Dataset:
    return open_data(DataConfig(path=(str(path),), **settings), "images")  # type: ignore[arg-type]


def stored(split: object, side: int = 8, channels: int = 3, **settings: object) -> np.ndarray:
    assert isinstance(split, ImageSplit)
    key = TokenKey("test", "train", str(sorted(settings.items())))
    return split.stored(key, side, channels, DataConfig(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["png", "jpg", "bmp", "gif", "webp", "tiff", "ppm"])
def test_usual_formats(kind, tmp_path):
    path = tmp_path / f"a.{kind}"
    flat(RED).save(path)
    assert pixel(path) == pytest.approx(RED, abs=6)


def test_every_mode_becomes_the_wanted_channels(tmp_path):
    grey = round(0.299 * 200 + 0.587 * 30 + 0.114 * 20)
    made = {
        "rgb.png": flat(RED),
        "palette.png": flat(RED).convert("P", palette=Image.Palette.ADAPTIVE),
        "rgba.png": flat((*RED, 255), mode="RGBA"),
        "cmyk.tiff": flat(RED).convert("CMYK"),
        "ycc.jpg": flat(RED).convert("YCbCr"),
    }
    for name, image in made.items():
        image.save(tmp_path / name)
        assert pixel(tmp_path / name) == pytest.approx(RED, abs=4), name
        assert pixel(tmp_path / name, 1) == pytest.approx((grey,), abs=4), name
        assert pixel(tmp_path / name, 4) == pytest.approx((*RED, 255), abs=4), name
        assert pixel(tmp_path / name, 2) == pytest.approx((grey, 255), abs=4), name
    flat((77,), mode="L").save(tmp_path / "grey.png")
    assert pixel(tmp_path / "grey.png") == (77, 77, 77)
    flat((1,), mode="1").save(tmp_path / "bits.png")
    assert pixel(tmp_path / "bits.png") == (255, 255, 255)


def test_white_shines_through(tmp_path):
    flat((200, 30, 20, 0), mode="RGBA").save(tmp_path / "clear.png")
    assert pixel(tmp_path / "clear.png") == (255, 255, 255)
    assert pixel(tmp_path / "clear.png", 4)[3] == 0
    half = flat((0, 0, 0, 128), mode="RGBA")
    half.save(tmp_path / "half.png")
    assert pixel(tmp_path / "half.png") == pytest.approx((127, 127, 127), abs=1)
    grey = Image.new("L", (20, 20), 9)
    grey.save(tmp_path / "keyed.png", transparency=9)
    assert pixel(tmp_path / "keyed.png") == (255, 255, 255)


def test_sixteen_bits(tmp_path):
    Image.fromarray(np.full((20, 20), 0x8080, np.uint16)).save(tmp_path / "deep.png")
    assert pixel(tmp_path / "deep.png", 1) == (128,)
    Image.fromarray(np.full((20, 20), 200, np.uint16)).save(tmp_path / "dark.png")
    assert pixel(tmp_path / "dark.png", 1) == (1,)
    Image.fromarray(np.full((20, 20), 0.5, np.float32)).save(tmp_path / "float.tiff")
    assert pixel(tmp_path / "float.tiff", 1) == (128,)


def test_exif_turns_the_image(tmp_path):
    image = Image.new("RGB", (20, 20), RED)
    image.paste(GREEN, (0, 10, 20, 20))  # the lower half
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    image.save(tmp_path / "turned.png", exif=exif)
    data = np.frombuffer(decode(tmp_path / "turned.png", 20, 3), np.uint8).reshape(20, 20, 3)
    assert tuple(data[2, 2]) == GREEN
    assert tuple(data[17, 2]) == RED


def test_a_wide_image_is_cut_to_its_middle(tmp_path):
    image = Image.new("RGB", (60, 20), RED)
    image.paste(GREEN, (20, 0, 40, 20))
    image.save(tmp_path / "wide.png")
    data = np.frombuffer(decode(tmp_path / "wide.png", 20, 3), np.uint8).reshape(20, 20, 3)
    assert (data == GREEN).all()


def test_only_what_moves_is_a_clip(tmp_path):
    frames = [flat(RED), flat(GREEN), flat((1, 2, 3))]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "a.tiff", save_all=True, append_images=frames[1:])
    frames[0].save(tmp_path / "a.mpo", save_all=True, append_images=frames[1:])
    counts = {kind: len(decode_frames(tmp_path / f"a.{kind}", 8, 3, 64)) for kind in ("gif", "tiff", "mpo")}
    assert counts == {"gif": 3, "tiff": 1, "mpo": 1}
    assert len(decode_frames(tmp_path / "a.gif", 8, 3, 2)) == 2
    assert len(decode_frames(tmp_path / "a.gif", 8, 3, 1)) == 1


def chunk(kind: bytes, data: bytes) -> bytes:
    import zlib

    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(path: Path, width: int, height: int) -> Path:
    """A PNG of a few bytes that says it is huge."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", b"x") + chunk(b"IEND", b""))
    return path


def test_bad_files(tmp_path):
    good = tmp_path / "good.png"
    flat(RED).save(good)
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:-30])
    flat(RED, (300, 300)).save(tmp_path / "whole.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "whole.jpg").read_bytes()[:400])
    told = {
        "empty.png": "it is empty",
        "text.png": "it is no image",
        "cut.png": "it is damaged",
        "cut.jpg": "it is damaged",
        "missing.png": "it cannot be read: No such file",
    }
    for name, words in told.items():
        with pytest.raises(BadImageError, match=words):
            decode(tmp_path / name, 8, 3)
    with pytest.raises(BadImageError, match="50,000 x 10 pixels; at most 16,384 on a side"):
        decode(bomb(tmp_path / "wide.png", 50_000, 10), 8, 3)
    with pytest.raises(BadImageError, match="9,000 x 9,000 pixels"):
        decode(bomb(tmp_path / "large.png", 9_000, 9_000), 8, 3)
    with pytest.raises(BadImageError, match="too many pixels; at most 67,108,864"):
        decode(bomb(tmp_path / "large.png", 16_000, 16_000), 8, 3)


def test_damage_anywhere_never_crashes(tmp_path):
    rng, files = np.random.default_rng(1), []
    for kind in ("png", "jpg", "gif", "bmp", "tiff", "webp"):
        flat(RED, (40, 30)).save(tmp_path / f"a.{kind}")
        files.append((tmp_path / f"a.{kind}").read_bytes())
    refused = 0
    for number in range(300):
        data = bytearray(files[number % len(files)])
        for _ in range(int(rng.integers(1, 6))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        data = data[: int(rng.integers(1, len(data) + 1))] if number % 3 == 0 else data
        try:
            assert len(decode(bytes(data), 8, 3)) == 8 * 8 * 3
        except BadImageError:
            refused += 1
    assert 50 < refused < 300


def test_one_thread_and_four_give_the_same_store(tmp_path):
    folder(tmp_path / "set", 150)
    paths = [str(path) for path in sorted((tmp_path / "set").rglob("*.png"))]
    bad = tmp_path / "set" / "red" / "bad.png"
    bad.write_text("no image")
    paths.insert(77, str(bad))
    one, four = (list(decode_all(paths, 8, 3, workers)) for workers in (1, 4))
    assert [str(x) if isinstance(x, BadImageError) else x for x in one] == [
        str(x) if isinstance(x, BadImageError) else x for x in four
    ]
    assert isinstance(four[77], BadImageError)


def test_class_folders(tmp_path):
    data = opened(folder(tmp_path / "set", 40))
    assert {name: split.examples for name, split in data.splits.items()}.keys() == {"train", "valid", "test"}
    assert sum(split.examples for split in data.splits.values()) == 80
    assert {image.label for image in data.splits["train"]} == {"red", "green"}
    assert "80 images in 2 class folders" in data.understood[0]
    again = opened(tmp_path / "set")
    assert again.fingerprint == data.fingerprint
    flat((1, 2, 3)).save(tmp_path / "set" / "red" / "new.png")
    assert opened(tmp_path / "set").fingerprint != data.fingerprint


def test_folders_of_splits(tmp_path):
    folder(tmp_path / "set" / "train")
    folder(tmp_path / "set" / "val", 3)
    folder(tmp_path / "set" / "test", 2)
    data = opened(tmp_path / "set")
    assert {name: split.examples for name, split in data.splits.items()} == {"train": 24, "valid": 6, "test": 4}


def test_files_that_are_no_images_are_told(tmp_path):
    folder(tmp_path / "set", 30)
    (tmp_path / "set" / "red" / "notes.txt").write_text("x")
    (tmp_path / "set" / "red" / ".hidden").write_text("x")
    (tmp_path / "set" / "red" / ".cache").mkdir()
    flat(RED).save(tmp_path / "set" / "red" / ".cache" / "a.png")
    told = opened(tmp_path / "set").understood[0]
    assert "60 images in 2 class folders; left out as no images, by their names: 1" in told


def test_a_copy_is_in_no_other_split(tmp_path):
    folder(tmp_path / "set", 100)
    for path in list((tmp_path / "set" / "red").iterdir()):
        (path.parent / f"copy-{path.name}").write_bytes(path.read_bytes())
    data = opened(tmp_path / "set", valid_part=0.2, test_part=0.2)
    contents = [{image.content for image in split} for split in data.splits.values()]
    assert len(set().union(*contents)) == sum(map(len, contents))


@pytest.mark.parametrize("form", ["csv", "jsonl", "tsv"])
def test_a_table_of_paths(form, tmp_path):
    folder(tmp_path / "set", 30)
    rows = [(f"set/{path.parent.name}/{path.name}", path.parent.name) for path in sorted(tmp_path.rglob("*.png"))]
    table = tmp_path / f"table.{form}"
    if form == "jsonl":
        table.write_text("".join(json.dumps({"image": a, "class": len(b)}) + "\n" for a, b in rows))
    else:
        mark = "," if form == "csv" else "\t"
        table.write_text(f"path{mark}label\n" + "".join(f"{a}{mark}{b}\n" for a, b in rows))
    data = opened(table, valid_part=0.1, test_part=0.1)
    assert sum(split.examples for split in data.splits.values()) == 60
    rows[3] = ("set/red/nothing.png", "red")
    table = tmp_path / "wrong.csv"
    table.write_text("path,label\n" + "".join(f"{a},{b}\n" for a, b in rows))
    with pytest.raises(UserError, match=r"row 5: there is no image .*nothing\.png"):
        opened(table)


def write_idx(path: Path, array: np.ndarray) -> Path:
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    data = head + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def test_idx_files(tmp_path):
    pixels, labels = np.random.default_rng(0).integers(0, 256, (50, 9, 7)), np.arange(50) % 5
    images = write_idx(tmp_path / "train-images-idx3-ubyte.gz", pixels)
    numbers = write_idx(tmp_path / "train-labels-idx1-ubyte", labels)
    assert (read_array(images) == pixels).all()
    data = open_data(DataConfig(path=(str(images), str(numbers))), "images")
    assert sum(split.examples for split in data.splits.values()) == 50
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", pixels[:10])
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", labels[:10])
    whole = opened(tmp_path)
    assert whole.splits["test"].examples == 10
    with pytest.raises(UserError, match="give the file of the images first"):
        open_data(DataConfig(path=(str(numbers), str(images))), "images")
    raw = gzip.decompress(images.read_bytes())
    for broken in (raw[:-3], raw + b"x", raw[:6], b"\0\0\x08\x03" + b"\xff" * 12):
        images.write_bytes(broken)
        with pytest.raises(UserError, match="damaged"):
            read_array(images)
    write_idx(images, pixels)
    with pytest.raises(UserError, match=r"images of shape \(50, 9, 7\) do not go with labels of shape \(10,\)"):
        open_data(DataConfig(path=(str(images), str(tmp_path / "t10k-labels-idx1-ubyte.gz"))), "images")


def test_npz_files(tmp_path):
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (40, 6, 6, 3), np.uint8), np.array(["a", "b"])[np.arange(40) % 2]
    path = tmp_path / "set.npz"
    np.savez(path, x_train=pixels, y_train=labels, x_test=pixels[:4] / 255.0, y_test=labels[:4, None])
    data = opened(path, valid_part=0.2)
    assert data.splits["test"].examples == 4
    assert (stored(data.splits["test"], 6) == pixels[:4]).all()  # parts of 1 are parts of 255
    np.savez(path, images=pixels, labels=labels)
    assert sum(split.examples for split in opened(path, valid_part=0.2, test_part=0.2).splits.values()) == 40
    for arrays, told in (
        ({"a": pixels}, "has the arrays a: name them images and labels"),
        ({"images": pixels, "labels": labels[:3]}, "do not go with labels of shape"),
        ({"images": pixels.astype(float) - 300, "labels": labels}, "negative or not finite"),
        (
            {"images": rng.integers(0, 9, (4, 6, 6, 5)), "labels": labels[:4]},
            r"the shape \(6, 6, 5\) is not that of an image",
        ),
        ({"images": np.array([object()]), "labels": labels}, "no npz file of plain arrays"),
        ({"images": pixels, "labels": np.eye(2)[np.arange(40) % 2]}, "give one label for each image"),
        ({"images": pixels, "labels": np.array(3)}, "give one label for each image"),
        ({"images": pixels / 255 * 1.01, "labels": labels}, "its values go up to 1.01: give parts of 1, or numbers"),
    ):
        np.savez(path, **arrays)
        with pytest.raises(UserError, match=told):
            opened(path)
    path.write_text("no zip")
    with pytest.raises(UserError, match="no npz file"):
        opened(path)
    np.save(tmp_path / "one.npy", pixels)
    (tmp_path / "one.npy").rename(path)
    with pytest.raises(UserError, match="it is a single array"):
        opened(path)


def test_an_array_of_another_shape_is_another_image(tmp_path):
    """The same bytes in other rows: nothing that was prepared for one may serve for the other."""
    pixels, labels = np.random.default_rng(0).integers(0, 256, (20, 8, 6), np.uint8), np.arange(20) % 2
    prints = set()
    for shape in ((20, 8, 6), (20, 6, 8), (20, 4, 4, 3)):
        np.savez(tmp_path / "set.npz", images=pixels.reshape(shape), labels=labels)
        prints.add(opened(tmp_path / "set.npz", valid_part=0.0, test_part=0.0).fingerprint)
    assert len(prints) == 3


def test_what_is_no_set_of_images(tmp_path):
    (tmp_path / "empty").mkdir()
    folder(tmp_path / "set", 3)
    (tmp_path / "set" / "blue").mkdir()
    flat(RED).save(tmp_path / "one.png")
    (tmp_path / "loose").mkdir()
    flat(RED).save(tmp_path / "loose" / "a.png")
    for path, told in {
        "empty": "no folders in it: put the images of each class into a folder",
        "set": "the class folder .*blue has no image",
        "one.png": "does not look like labelled images",
        "loose": "has 1 images without a class",
        "nowhere": "there is no",
    }.items():
        with pytest.raises(UserError, match=told):
            opened(tmp_path / path)


def test_a_damaged_file_stops_or_is_left_out(tmp_path):
    bad = folder(tmp_path / "set", 20) / "red" / "bad.png"
    bad.write_bytes(b"")
    split = opened(tmp_path / "set", valid_part=0.0, test_part=0.0).splits["train"]
    with pytest.raises(UserError, match=r"bad\.png: it is empty; remove it, or leave out such files with data\.skip_b"):
        stored(split)
    gone = opened(tmp_path / "set", valid_part=0.0, test_part=0.0).splits["train"]
    (tmp_path / "set" / "red" / "3.png").rename(tmp_path / "3.png")
    with pytest.raises(UserError, match=r"3\.png: it cannot be read"):  # the next try may succeed: it is not left out
        stored(gone, skip_bad=True)
    (tmp_path / "3.png").rename(tmp_path / "set" / "red" / "3.png")
    for _ in range(2):  # decoded, and from the cache
        split = opened(tmp_path / "set", valid_part=0.0, test_part=0.0).splits["train"]
        found = stored(split, skip_bad=True)
        assert found.shape == (40, 8, 8, 3)
        assert (split.examples, split.empty) == (40, 1)
        assert all("bad" not in image.where for image in split)


def test_the_store_is_what_the_files_show(tmp_path):
    split = opened(folder(tmp_path / "set", 5), valid_part=0.0, test_part=0.0).splits["train"]
    pixels = stored(split)
    for image, row in zip(split, pixels):
        assert decode(image.where, 8, 3) == row.tobytes()
    assert split.look() == (18, 3)


def test_numbers_of_any_type_as_bytes():
    assert as_bytes(np.array([True, False])).tolist() == [255, 0]
    assert as_bytes(np.array([0.0, 0.5, 1.0])).tolist() == [0, 128, 255]
    assert as_bytes(np.array([0.0, 100.0, 255.0])).tolist() == [0, 100, 255]
    assert as_bytes(np.array([0, 65535])).tolist() == [0, 255]
    assert as_bytes(np.array([0, 257], np.uint16)).tolist() == [0, 1]  # 16 bits, however dark
    with pytest.raises(BadImageError, match="not finite"):
        as_bytes(np.array([np.nan]))
    with pytest.raises(BadImageError, match="is not that of an image"):
        to_image(np.zeros((2, 3, 4, 5)))


def test_shapes_are_drawn_by_rules():
    made = shapes()
    assert {split: pixels.shape for split, (pixels, _, _) in made.items()} == {
        "train": (6000, SIDE, SIDE, 3),
        "valid": (500, SIDE, SIDE, 3),
        "test": (1000, SIDE, SIDE, 3),
    }
    kinds = {split: {tuple(text.split()[-2:]) for text in captions} for split, (_, _, captions) in made.items()}
    assert not {(c, f.rstrip("s").removesuffix("e")) for c, f in kinds["train"]} & {
        (c, f.rstrip("s").removesuffix("e")) for c, f in kinds["test"]
    } - {("x", "x")}
    assert set(made["train"][1]) == set(made["test"][1]) == set(FORMS)
    assert sum(held_out(c, f) for c in COLOURS for f in FORMS) == len(COLOURS) * len(FORMS) // 4
    two = [Shape("cross", "red", "small", 8, 8), Shape("cross", "red", "small", 20, 20)]
    assert caption(two) == "two small red crosses"
    assert caption(two[:1]) == "a small red cross"
    image = draw([Shape("ring", "blue", "large", 16.0, 16.0)])
    assert tuple(image[16, 16]) == (255, 255, 255)  # the hole
    assert tuple(image[16, 20]) == COLOURS["blue"]
    assert tuple(image[2, 2]) == (255, 255, 255)
