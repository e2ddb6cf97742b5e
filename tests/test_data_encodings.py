"""Files in other encodings, and files in archives: read, or refused with one sentence that tells the cure."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from allyouneed.config import DataConfig
from allyouneed.data.formats import textfile
from allyouneed.data.formats.compressed import plain_name
from allyouneed.data.formats.textfile import TextFile
from allyouneed.data.opening import open_data
from allyouneed.errors import UserError
from allyouneed.training.starting import choose
from test_data_files import ROWS, complaint, joined, pairs, put, text, tsv, whole


def archive(path: Path, **files: str | bytes) -> str:
    """A zip archive; a dot in a name is written as __, a slash as ___."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as into:
        for name, content in files.items():
            into.writestr(name.replace("___", "/").replace("__", "."), content)
    return put(path, made.getvalue())


@pytest.mark.parametrize("code", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_with_its_mark_is_read(tmp_path: Path, code: str) -> None:
    rows = [("Città 😀", "perché"), *ROWS]
    mark = "" if code == "utf-16" else "\ufeff"
    path = put(tmp_path / "a.tsv", (mark + tsv(rows).replace("\n", "\r\n")).encode(code))
    assert whole(path) == rows
    assert ", UTF-16;" in pairs(path).understood[0]
    data = text(path, valid_part=0.2, test_part=0.0)
    assert "".join(joined(data, split) for split in data.splits) == tsv(rows)
    assert "UTF-16 text" in data.understood[0]


@pytest.mark.parametrize("size", [3, 4, 5])
def test_utf_16_is_read_whatever_the_size_of_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(textfile, "CHUNK", size)
    path = Path(put(tmp_path / "a.txt", "aè😀\nb\n😀".encode("utf-16")))
    assert "".join(TextFile(path).text()) == "aè😀\nb\n😀"


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_utf_16_that_is_broken_or_has_no_mark(tmp_path: Path, shape: str) -> None:
    path = put(tmp_path / "a.tsv", "a\tb\n".encode("utf-16")[:-1])
    assert complaint(path, shape=shape) == (
        f"{path} begins with the mark of UTF-16, but is not UTF-16 text: save it as UTF-8"
    )
    path = put(tmp_path / "b.tsv", "a\tb\n".encode("utf-16-le"))
    assert "(byte 1 is zero), but text is expected; if it is UTF-16 text without its mark" in complaint(
        path, shape=shape
    )


PLAIN = "a plain line\twithout accents\n" * 11
OTHER = "a plain line\twithout accents\n" * 60_000  # the first accent comes in the second chunk
WESTERN = {
    "Latin-1": "un café\tcoffee — no\n".replace("—", "-").encode("latin-1"),
    "Windows-1252": "it’s\tè “così”\n".encode("cp1252"),
}


def content(shape: str, *paths: str, **options: object) -> str:
    """Everything in a file, as one text."""
    if shape == "text":
        return joined(text(*paths, valid_part=0.0, test_part=0.0, **options))
    return tsv(whole(*paths, **options))


@pytest.mark.parametrize("shape", ["pairs", "text"])
@pytest.mark.parametrize("name", WESTERN)
@pytest.mark.parametrize("before", [PLAIN, OTHER], ids=["small", "large"])
def test_western_text_is_read_and_that_is_said(tmp_path: Path, shape: str, name: str, before: str) -> None:
    packed = before.encode() + WESTERN[name] * 3
    path = put(tmp_path / "a.tsv", packed)
    expected = before + WESTERN[name].decode(name) * 3
    assert content(shape, path) == expected
    assert content(shape, put(tmp_path / "a.tsv.gz", gzip.compress(packed))) == expected
    data = (pairs if shape == "pairs" else text)(path, valid_part=0.0, test_part=0.0)
    assert f"{name} (it is not UTF-8; data.encoding if it is another)" in data.understood[0]
    assert content(shape, path, encoding="cp1250") == before + WESTERN[name].decode("cp1250") * 3


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 50])
def test_western_text_is_read_whatever_the_size_of_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(textfile, "CHUNK", size)
    for told in ("abc\r\nélan vital\n", "abcdefgh\nà la carte é", "plain"):
        path = Path(put(tmp_path / f"{len(told)}.txt", told.encode("latin-1")))
        assert "".join(TextFile(path).text()) == told.replace("\r\n", "\n")


KINDS = {
    "labels": ("a.csv", "text,label\ncafé noir,good\nthé vert,bad\n"),
    "tags": ("a.conll", "Le O\ncafé B-x\n\nun O\nthé B-x\n"),
    "questions": ("a.jsonl", '{"question": "où?", "context": "au café", "answer": "café"}\n'),
    "text": ("a.txt", "Le café est là.\n" * 9),
    "pairs": ("a.tsv", "café\tcoffee\nthé\ttea\n"),
}


@pytest.mark.parametrize("shape", KINDS)
def test_every_kind_of_file_is_read_in_every_encoding(tmp_path: Path, shape: str) -> None:
    name, told = KINDS[shape]
    options = {"valid_part": 0.0, "test_part": 0.0}

    def examples(data: bytes, **more: str) -> list[object]:
        path = put(tmp_path / name, data)
        return list(open_data(DataConfig(path=(path,), **options, **more), shape).splits["train"])  # type: ignore[arg-type]

    expected = examples(told.encode())
    for code in ("latin-1", "cp1252", "utf-16", "utf-8-sig"):
        assert examples(told.encode(code)) == expected, code
    for code in ("utf-16-le", "cp850", "mac-roman", "latin-1"):
        assert examples(told.encode(code), encoding=code) == expected, code


def test_parallel_files_may_differ(tmp_path: Path) -> None:
    one, two = put(tmp_path / "a.en", b"tea\ncoffee\n"), put(tmp_path / "a.fr", "thé vert\ncafé\n".encode("latin-1"))
    assert whole(one, two) == [("tea", "thé vert"), ("coffee", "café")]
    assert "UTF-8 and Latin-1 (it is not UTF-8" in pairs(one, two, valid_part=0.0, test_part=0.0).understood[0]


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_text_that_is_not_surely_western_is_refused(tmp_path: Path, shape: str) -> None:
    path = put(tmp_path / "b.tsv", PLAIN.encode() + "привет\tмир\n".encode("cp1251") * 99)
    assert complaint(path, shape=shape) == (
        f"{path}, line 12 is not UTF-8: byte 0xef is of an unknown encoding: save it as UTF-8, or name the encoding "
        "with data.encoding"
    )
    assert content(shape, path, encoding="cp1251") == PLAIN + "привет\tмир\n" * 99
    path = put(tmp_path / "b.tsv", PLAIN.encode() + b"one \x81\ttwo\n")  # no letter of Windows-1252
    assert "line 12 is not UTF-8: byte 0x81 is of an unknown encoding" in complaint(path, shape=shape)
    path = put(tmp_path / "c.tsv", "è\tb\n".encode() * 300_000 + b"c\t\xe8 d\n")  # the mistake is in the second chunk
    among = "stands among text that is UTF-8: correct this line, or name the encoding with data.encoding"
    assert f"line 300001 is not UTF-8: byte 0xe8 {among}" in complaint(path, shape=shape)
    path = put(tmp_path / "d.tsv", b"c\t\xe8 d\n" + "è\tplain words\n".encode() * 9)  # the mistake comes first
    assert "line 1 is not UTF-8: byte 0xe8" in complaint(path, shape=shape)
    path = put(tmp_path / "e.tsv", b"a\tb\n" * 9 + b"c\t\xe8\0d\n")
    assert "is a binary file" in complaint(path, shape=shape)
    path = put(tmp_path / "f.tsv", b"a\tb\n" * 9 + b"caf\xe9\tb\n")
    assert complaint(path, shape=shape, encoding="utf-8") == (
        f"{path}, line 10 is not utf-8 (byte 0xe9), which data.encoding names: correct one of them"
    )


@pytest.mark.parametrize("name", ["latin-7000", "rot13", "hex", "zip", "x" * 10_000, "é", "../a"])
def test_an_encoding_that_there_is_not(name: str) -> None:
    with pytest.raises(UserError, match=r"^data.encoding = '.*' is no encoding of text; ") as error:
        DataConfig(encoding=name)
    assert len(str(error.value)) < 300


def test_an_encoding_is_for_own_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data.encoding goes with your own files"):
        open_data(DataConfig(name="corpus", encoding="cp1251"), "text")
    rows = [("привет", "hello")] * 9
    chosen = choose("translate/transformer", ["data.encoding=cp1251"], rows)  # text in memory has no encoding
    assert chosen.data.encoding == ""
    path = put(tmp_path / "a.tsv", tsv(rows).encode("cp1251"))
    assert choose("translate/transformer", ["data.encoding=cp1251"], path).data.encoding == "cp1251"
    with pytest.raises(UserError, match=r"data.encoding = cp1251 is for files, and a part of data is not in one"):
        choose("translate/transformer", ["data.encoding=cp1251"], {"train": path, "test": rows})
    parts = {"valid_part": 0.0, "test_part": 0.0}
    assert pairs(path, encoding="cp1251", **parts).fingerprint != pairs(path, encoding="koi8-r", **parts).fingerprint


def test_the_file_in_a_zip_archive(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.zip", data___pairs__csv="english,italian\nGo,Vai\n", __MACOSX___x="", README__md="!")
    assert plain_name(Path(path)) == "a.csv"
    assert whole(path) == [("Go", "Vai")]
    assert plain_name(Path(archive(tmp_path / "b.en.zip", b__en="Go\n"))) == "b.en"
    parallel = [archive(tmp_path / f"train.{side}.zip", **{f"x__{side}": f"{side}\n"}) for side in ("en", "it")]
    assert whole(*parallel) == [("en", "it")]
    book = archive(tmp_path / "book.zip", book__txt="one\n" * 100)
    assert joined(text(book, valid_part=0.0, test_part=0.0)) == "one\n" * 100
    folder = tmp_path / "set"
    for split in ("train", "valid", "test"):
        archive(folder / f"{split}.zip", rows__tsv=tsv(ROWS))
    assert [split.examples for split in pairs(str(folder)).splits.values()] == [len(ROWS)] * 3


def test_zip_archives_that_cannot_be_read(tmp_path: Path) -> None:
    path = archive(tmp_path / "a b.zip", train__csv="a,b\n", test__csv="a,b\n")
    assert complaint(path) == (
        f"{path} holds 2 files (train.csv, test.csv): unpack it with `unzip '{path}'` and give one of them, or a "
        "folder with train.*, valid.* and test.*"
    )
    assert complaint(archive(tmp_path / "b.zip")).endswith("is an archive without a file")
    good = Path(archive(tmp_path / "c.zip", a__tsv=tsv(ROWS))).read_bytes()
    assert "is damaged: it is not a whole zip archive" in complaint(put(tmp_path / "d.zip", good[:-30]))
    assert "is damaged" in complaint(put(tmp_path / "e.zip", good[:200] + b"xxx" + good[203:]))
    flag = good.index(b"PK\1\2") + 8  # the general purpose flags
    locked = good[:flag] + bytes([good[flag] | 1]) + good[flag + 1 :]
    assert "is encrypted: unpack it with its password" in complaint(put(tmp_path / "f.zip", locked))
    named = Path(archive(tmp_path / "h.zip", é__tsv=tsv(ROWS))).read_bytes()
    assert "cannot be unpacked" in complaint(put(tmp_path / "i.zip", named.replace(b"\xc3\xa9", b"\xc3-", 1)))
    office = archive(tmp_path / "g.xlsx", **{"[Content_Types]__xml": "", "xl___a__xml": ""})
    assert "is a file of an office program: save it there as CSV" in complaint(office)


def test_a_folder_of_texts_may_hold_any_archive(tmp_path: Path) -> None:
    put(tmp_path / "t" / "a.txt", "one\n")
    archive(tmp_path / "t" / "b.zip", x="", y="")
    assert joined(text(str(tmp_path / "t"), valid_part=0.0, test_part=0.0)) == "one\n"
