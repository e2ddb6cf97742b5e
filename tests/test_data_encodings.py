"""Files in other encodings, and files in archives: read, or refused with one sentence that tells the cure."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import pytest

from allyouneed.data import reading
from allyouneed.data.compressed import plain_name
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
    monkeypatch.setattr(reading, "CHUNK", size)
    path = Path(put(tmp_path / "a.txt", "aè😀\nb\n😀".encode("utf-16")))
    assert "".join(reading.text(path)) == "aè😀\nb\n😀"


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


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_another_encoding_is_named_with_its_line_and_its_cure(tmp_path: Path, shape: str) -> None:
    plain = "a plain line\twithout accents\n" * 11
    path = put(tmp_path / "my file.tsv", plain.encode() + "un café\tcoffee\n".encode("latin-1"))
    assert complaint(path, shape=shape) == (
        f"{path}, line 12 is not UTF-8: byte 0xe9 looks like Latin-1 or Windows-1252 ('é'); convert it with: "
        f"iconv -f WINDOWS-1252 -t UTF-8 '{path}' > 'my file-utf8.tsv'"
    )
    path = put(tmp_path / "a.tsv", plain.encode() + "it’s\tè\n".encode("cp1252"))
    assert "line 12 is not UTF-8: byte 0x92 looks like Latin-1 or Windows-1252 ('’')" in complaint(path, shape=shape)
    packed = put(tmp_path / "a.tsv.gz", gzip.compress(Path(path).read_bytes()))
    assert "; decompress it, then convert it with: iconv -f WINDOWS-1252 -t UTF-8 a.tsv >" in complaint(
        packed, shape=shape
    )
    path = put(tmp_path / "b.tsv", "привет\tмир\n".encode("cp1251") * 9)
    assert "line 1 is not UTF-8: byte 0xef is of an unknown encoding; convert it with: iconv -f ITS-ENC" in complaint(
        path, shape=shape
    )
    path = put(tmp_path / "c.tsv", "è\tb\n".encode() * 300_000 + b"c\t\xe8 d\n")  # the mistake is in the second chunk
    assert "line 300001 is not UTF-8: byte 0xe8 stands among text that is UTF-8; correct this line" in complaint(
        path, shape=shape
    )


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
