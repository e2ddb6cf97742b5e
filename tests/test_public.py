"""Public data sets in the layouts of their official files: small files of these layouts, from a server and a mirror."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allyouneed.config import DataConfig
from allyouneed.data import layouts, registry
from allyouneed.data.fetch import File
from allyouneed.data.opening import open_data
from allyouneed.data.sources import Dataset
from allyouneed.errors import UserError

REVIEWS = {
    "train/pos/2_9": "The third good film.",
    "train/pos/10_10": "The fourth:<br /><br />good\x85 è vero.",
    "train/pos/0_7": "The first good film.",
    "train/pos/1_8": "The second good film.",
    "train/neg/1_1": "The second bad film.",
    "train/neg/0_4": "The first bad film.",
    "train/unsup/1_0": "Who knows?",
    "train/unsup/0_0": "A film<br />about nothing.",
    "test/pos/0_10": "Well played.",
    "test/neg/0_1": "Badly played.",
}
IMDB = "imdb/aclImdb_v1.tar.gz"


def tar(members: Mapping[str, str | bytes]) -> bytes:
    """A tar.gz with these files."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, content in members.items():
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), 1, mtime=0)  # the same bytes at any time


def reviews(**more: str) -> bytes:
    files: dict[str, Any] = {"aclImdb/README": "Large Movie Review Dataset", "aclImdb/train/labeledBow.feat": "9 0:9"}
    return tar(files | {f"aclImdb/{name}.txt": text for name, text in REVIEWS.items()} | more)


def zipped(how: int = zipfile.ZIP_DEFLATED, **members: str) -> bytearray:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", how) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return bytearray(packed.getvalue())


def squad(articles: dict[str, list[Any]]) -> bytes:
    data = [{"title": title, "paragraphs": paragraphs} for title, paragraphs in articles.items()]
    return json.dumps({"version": "1.1", "data": data}).encode()


def paragraphs(title: str) -> list[Any]:
    """A text with one question."""
    answers = [{"text": title, "answer_start": 12}, {"text": f"is {title}", "answer_start": 9}]
    asked = {"id": title, "question": f"What is {title}?", "answers": answers}
    return [{"context": f"The name is {title}.", "qas": [asked]}]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ALLYOUNEED_MIRROR", raising=False)
    return tmp_path / "cache"


class Web:
    """A server of the files in a folder, at which the public sets of the library are."""

    def __init__(self, folder: Path, address: str, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.address, self.patch = folder, address, patch
        self.asked: list[str] = []

    def put(self, **files: bytes) -> None:
        """Serve these files, by their paths in the table, as if they were the real ones; the others cannot be had."""
        for path, content in files.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(content)

        def moved(file: File) -> File:
            content = files.get(file.path)
            if content is None:
                return file if file.address is None else replace(file, address=f"{self.address}/nowhere/{file.path}")
            known = replace(file, checksum=hashlib.sha256(content).hexdigest(), address_checksum=None)
            return replace(known if file.expected else file, address=f"{self.address}/{file.path}")

        def with_files(form: Any) -> Any:
            return replace(form, files={split: [moved(file) for file in some] for split, some in form.files.items()})

        sets = {
            name: replace(known, forms=[with_files(form) for form in known.forms])
            for name, known in registry.SETS.items()
        }
        self.patch.setattr(registry, "SETS", sets)


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given, directory=str(tmp_path / "web"))

        def do_GET(self) -> None:
            served.asked.append(self.path)
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    (tmp_path / "web").mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Web(tmp_path / "web", f"http://127.0.0.1:{server.server_port}", monkeypatch)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        yield served
        server.shutdown()


def opened(name: str, shape: str, mirror: Path | str = "", **options: Any) -> Dataset:
    return open_data(DataConfig(name=name, mirror=str(mirror), **options), shape)


def examples(data: Dataset) -> dict[str, list[Any]]:
    return {name: list(split) for name, split in data.splits.items()}


def documents(data: Dataset) -> dict[str, list[str]]:
    return {name: ["".join(pieces) for pieces in split.documents()] for name, split in data.splits.items()}


# IMDB


def in_order(split: str) -> list[tuple[str, str]]:
    """Those of pos by their numbers, those of neg by theirs, and then mixed."""
    names = sorted((n for n in REVIEWS if n.startswith(split)), key=lambda n: int(n.split("/")[2].split("_")[0]))
    rows = [
        (REVIEWS[name].replace("<br />", "\n"), label)
        for side, label in (("pos", "positive"), ("neg", "negative"))
        for name in names
        if f"/{side}/" in name
    ]
    random.Random(0).shuffle(rows)
    return rows


def test_imdb_from_its_archive(web: Web, cache: Path) -> None:
    web.put(**{IMDB: reviews()})
    data = opened("imdb", "labels")
    found = {name: [(e.text, e.label) for e in split] for name, split in data.splits.items()}
    assert found["test"] == in_order("test")
    held = set(found["valid"])
    assert found["train"] == [row for row in in_order("train") if row not in held]
    assert len(found["train"]) + len(held) == 6
    assert ("The fourth:\n\ngood\x85 è vero.", "positive") in {*found["train"], *held}
    assert (cache / IMDB).is_file()
    assert opened("imdb", "labels").fingerprint == data.fingerprint
    assert web.asked == [f"/{IMDB}"]


def test_the_order_of_mixed_reviews_never_changes() -> None:
    rows = layouts._mixed([f"p{i}" for i in range(5)], [f"n{i}" for i in range(5)])
    assert " ".join(review for review, _ in rows) == "n2 n3 p1 n0 p3 p4 p2 p0 n4 n1"


def test_texts_of_imdb_from_its_archive(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.put(**{IMDB: reviews()})
    first = [text for text, _ in in_order("train")]
    for name, expected in (("imdb-unlabelled", []), ("imdb-text", first)):
        expected = [*expected, "A film\nabout nothing.", "Who knows?"]
        spans = {"train": (0, len(expected) - 1), "valid": (len(expected) - 1, len(expected))}
        monkeypatch.setitem(registry.SETS, name, replace(registry.SETS[name], documents=spans))
        assert documents(opened(name, "text")) == {"train": expected[:-1], "valid": expected[-1:]}
    assert web.asked == [f"/{IMDB}"]  # one download for all


def test_nothing_is_unpacked_out_of_the_archive(web: Web, tmp_path: Path) -> None:
    names = ("/tmp/7_7.txt", "aclImdb/train/pos/../../../../7_7.txt", "../aclImdb/train/pos/7_7.txt", "evil/7_7.txt")
    web.put(**{IMDB: reviews(**dict.fromkeys(names, "evil"))})
    data = opened("imdb", "labels")
    assert "evil" not in {example.text for split in data.splits.values() for example in split}
    assert not list(tmp_path.rglob("*7_7*"))


def test_an_archive_that_unpacks_without_end(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "UNPACKED", 1 << 20)
    web.put(**{"tatoeba/ita-eng.zip": bytes(zipped(ita="a\tb\n" * (1 << 19)))})
    with pytest.raises(UserError, match=r"is damaged: it has more than 1.0 MiB of files"):
        opened("tatoeba-eng-ita", "pairs")


# CIFAR-10


def test_cifar10_from_its_archive(web: Web) -> None:
    """A record is a label, and then all red values, all green ones, and all blue ones."""
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (60, 32, 32, 3), np.uint8), rng.integers(0, 10, 60).astype(np.uint8)
    records = np.concatenate([labels[:, None], pixels.transpose(0, 3, 1, 2).reshape(60, -1)], 1)
    parts = {"data_batch_2": records[20:40], "data_batch_1": records[:20], "test_batch": records[40:]}
    files = {f"cifar-10-batches-bin/{name}.bin": part.tobytes() for name, part in parts.items()}
    web.put(**{"cifar10/cifar-10-binary.tar.gz": tar({**files, "cifar-10-batches-bin/batches.meta.txt": "airplane"})})
    data = opened("cifar10", "images")
    names = registry.SETS["cifar10"].forms[0].options["labels"]
    for splits, first, last in ((("train", "valid"), 0, 40), (("test",), 40, 60)):
        for image in (image for name in splits for image in data.splits[name]):
            number = first + image.number
            assert image.label == names[labels[number]]
            assert np.array_equal(data.splits[splits[0]].array[image.number], pixels[number])
        assert sum(data.splits[name].examples for name in splits) == last - first


# SQuAD


def titles(split: str) -> list[str]:
    return registry.SETS["squad"].forms[1].options["titles"][split]


def test_squad_from_its_dev_file(web: Web) -> None:
    """The articles of the file in another order, and one that is not used."""
    every = [*reversed(titles("test")), "Kenya", *reversed(titles("train"))]
    web.put(**{"squad/dev-v1.1.json": squad({title: paragraphs(title) for title in every})})
    found = examples(opened("squad", "questions"))
    assert [question.id for question in found["test"]] == titles("test")
    held = {question.id for question in found["valid"]}
    assert [question.id for question in found["train"]] == [title for title in titles("train") if title not in held]
    assert len(found["train"]) + len(held) == 36
    first = found["test"][0]
    assert (first.question, first.answers[0]) == ("What is Pharmacy?", (12, "Pharmacy"))


def test_a_dev_file_of_squad_that_is_damaged(web: Web) -> None:
    whole = squad({title: paragraphs(title) for title in titles("train")})
    web.put(**{"squad/dev-v1.1.json": whole})
    with pytest.raises(UserError, match=r"dev-v1\.1\.json is damaged: it has no article “Pharmacy”, “University_of_"):
        opened("squad", "questions")
    web.put(**{"squad/dev-v1.1.json": whole[:-100]})
    with pytest.raises(UserError, match=r"dev-v1\.1\.json, line 1 is not JSON.*is the file complete"):
        opened("squad", "questions")


# Tatoeba

ITALIAN = [("Hi.", "Ciao!"), ("Run!", "Corri!"), ('"Who?"', '"Chi?"'), ("I am late.", "Sono in ritardo.")]
ABOUT = "CC-BY 2.0 (France) Attribution: tatoeba.org #1 (a) & #2 (b)"


def anki(pairs: list[tuple[str, str]], name: str, columns: int = 3) -> bytes:
    text = "".join("\t".join((*pair, ABOUT)[:columns]) + "\n" for pair in pairs)
    folder = name.rpartition("/")[0]
    return bytes(zipped(**{f"{folder}/_about.txt" if folder else "_about.txt": "About", name: text}))


def every_pair(data: Dataset) -> set[tuple[str, str]]:
    return {(pair.source, pair.target) for split in data.splits.values() for pair in split}


def test_tatoeba_from_the_zip_of_anki(web: Web) -> None:
    french = [("Go.", "Va\u202f!"), ("Stop!", "Arrête\xa0!")]
    files = {"tatoeba/ita-eng.zip": anki(ITALIAN, "ita.txt"), "tatoeba/fra-eng.zip": anki(french, "fra-eng/fra.txt", 2)}
    web.put(**files)
    swapped = {(target, source) for source, target in ITALIAN}
    assert every_pair(opened("tatoeba-eng-ita", "pairs")) == set(ITALIAN)
    assert every_pair(opened("tatoeba-ita-eng", "pairs")) == swapped
    assert every_pair(opened("tatoeba-eng-ita", "pairs", reverse=True)) == swapped
    assert every_pair(opened("tatoeba-eng-fra", "pairs")) == set(french)
    data = opened("tatoeba-ita-eng", "pairs", reverse=True)
    assert every_pair(data) == set(ITALIAN)
    assert any("they change with time" in line for line in data.understood)
    assert len(web.asked) == 2


def test_a_file_that_has_changed_is_other_data(web: Web, cache: Path) -> None:
    web.put(**{"tatoeba/ita-eng.zip": anki(ITALIAN, "ita.txt")})
    before = opened("tatoeba-eng-ita", "pairs").fingerprint
    (cache / "tatoeba/ita-eng.zip").unlink()
    web.put(**{"tatoeba/ita-eng.zip": anki([*ITALIAN, ("Stop!", "Fermo!")], "ita.txt")})
    after = opened("tatoeba-eng-ita", "pairs")
    assert after.fingerprint != before
    assert ("Stop!", "Fermo!") in every_pair(after)


def with_byte(packed: bytearray, place: int, value: int) -> bytearray:
    packed[place] = value
    return packed


def encrypted(packed: bytearray) -> bytearray:
    packed[6] |= 1  # the flag in the file's own header, and in the list of files at the end
    packed[packed.rindex(b"PK\x01\x02") + 8] |= 1
    return packed


TEXT = "".join(f"{i * i}\t{i * i * i}\n" for i in range(40_000))
PACKED = zipped(ita=TEXT)
BROKEN = {
    "encrypted": encrypted(zipped(ita=TEXT)),
    "damaged": with_byte(zipped(ita=TEXT), 60_000, PACKED[60_000] ^ 0xFF),
    "an impossible first block": with_byte(zipped(ita=TEXT), 33, 0xFF),
    "cut and mended": PACKED[:50_000] + PACKED[-80:],
    "cut": PACKED[:50_000],
    "an unknown compression": with_byte(zipped(ita=TEXT), PACKED.rindex(b"PK\x01\x02") + 10, 77),
    "damaged bzip2": with_byte(zipped(zipfile.ZIP_BZIP2, ita=TEXT), 20_000, 0xFF),
    "damaged xz": with_byte(zipped(zipfile.ZIP_LZMA, ita=TEXT), 20_000, 0xFF),
    "a page": bytearray(b"<html>\n<p>The file has moved.</p>\n</html>\n"),
    "nothing": bytearray(),
    "two files": zipped(ita=TEXT, fra=TEXT),
    "one column": zipped(ita="Hi.\nRun!\n"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_download_without_a_checksum_that_is_broken(web: Web, cache: Path, case: str) -> None:
    """It is one sentence, and the next attempt downloads the file again."""
    web.put(**{"tatoeba/ita-eng.zip": bytes(BROKEN[case])})
    with pytest.raises(
        UserError, match=r"^the download of tatoeba-eng-ita cannot be read, and is removed: .*tatoeba/ita-eng\.zip"
    ):
        opened("tatoeba-eng-ita", "pairs")
    assert not (cache / "tatoeba/ita-eng.zip").exists()
    web.put(**{"tatoeba/ita-eng.zip": anki(ITALIAN, "ita.txt")})
    assert every_pair(opened("tatoeba-eng-ita", "pairs")) == set(ITALIAN)


# SST-2


def test_sst2_from_its_repository(web: Web) -> None:
    rows = {"train": "a fine film\t1\nno fun\t0\n", "dev": "so so\t0\n", "test": "a joy\t1\n"}
    web.put(**{f"sst2/{name}.tsv": text.encode() for name, text in rows.items()})
    assert {name: list(map(tuple, split)) for name, split in examples(opened("sst2", "labels")).items()} == {
        "train": [("a fine film", "positive", None), ("no fun", "negative", None)],
        "valid": [("so so", "negative", None)],
        "test": [("a joy", "positive", None)],
    }


def test_enwik8_from_its_zip(web: Web) -> None:
    web.put(**{"enwik8/enwik8.gz": bytes(zipped(enwik8="<text>\n" * 9))})
    assert "".join(opened("enwik8", "text").splits["train"]) == "<text>\n" * 9


# Mirrors


def test_a_mirror_may_have_the_official_archive(web: Web, tmp_path: Path) -> None:
    web.put(**{IMDB: reviews()})
    mirror = tmp_path / "mirror"
    (mirror / "imdb").mkdir(parents=True)
    (mirror / "imdb/train.tsv.xz").write_bytes(b"one of two files: this form is not complete")
    assert opened("imdb", "labels", mirror).splits["test"].examples == 2  # downloaded: nothing else is whole
    assert web.asked == [f"/{IMDB}"]
    (mirror / IMDB).write_bytes(b"other")
    with pytest.raises(UserError, match=r"mirror/imdb/aclImdb_v1\.tar\.gz has the wrong checksum"):
        opened("imdb", "labels", mirror)
    (mirror / IMDB).write_bytes(reviews())
    assert opened("imdb", "labels", mirror).splits["test"].examples == 2
    assert len(web.asked) == 1


def test_a_download_that_fails_names_the_mirror(web: Web, tmp_path: Path) -> None:
    web.put()
    (tmp_path / "mirror").mkdir()
    told = r"the mirror .*mirror has no imdb/aclImdb_v1\.tar\.gz, and http.* 404 .*data\.mirror=DIR takes a local copy"
    with pytest.raises(UserError, match=told):
        opened("imdb", "labels", tmp_path / "mirror")


def test_squad_is_the_same_from_a_mirror_and_from_the_official_file(web: Web, mirror: Path) -> None:
    expected = opened("squad", "questions", mirror)
    articles = {
        article["title"]: article["paragraphs"]
        for name in ("dev", "train")
        for article in json.loads((mirror / f"squad/{name}.json").read_text(encoding="utf-8"))["data"]
    }
    web.put(**{"squad/dev-v1.1.json": squad({**articles, "Kenya": paragraphs("Kenya")})})
    assert examples(opened("squad", "questions")) == examples(expected)


def test_tatoeba_is_the_same_from_a_mirror_and_from_the_zip(web: Web, mirror: Path) -> None:
    expected = opened("tatoeba-ita-eng", "pairs", mirror)
    rows = [(source, target) for source, target in layouts.pairs(mirror / "tatoeba/eng-ita.tsv.xz")]
    web.put(**{"tatoeba/ita-eng.zip": anki(rows, "ita.txt")})
    assert examples(opened("tatoeba-ita-eng", "pairs")) == examples(expected)


def test_sst2_is_the_same_from_a_mirror_and_from_its_repository(web: Web, mirror: Path) -> None:
    expected = opened("sst2", "labels", mirror)
    web.put(**{f"sst2/{name}.tsv": (mirror / f"sst2/{name}.tsv").read_bytes() for name in ("train", "dev", "test")})
    found = opened("sst2", "labels")
    assert examples(found) == examples(expected)
    assert found.fingerprint == expected.fingerprint


@pytest.mark.slow
def test_imdb_is_the_same_from_a_mirror_and_from_the_archive(web: Web, mirror: Path) -> None:
    """All reviews, numbered as in the archive, in an order of its own."""
    expected = opened("imdb", "labels", mirror)
    texts = opened("imdb-text", "text", mirror)
    files: dict[str, Any] = {}
    for split in ("train", "test"):
        rows = list(layouts.pairs(mirror / f"imdb/{split}.tsv.xz"))
        order = list(range(len(rows)))
        random.Random(0).shuffle(order)
        for place, (text, label) in zip(order, rows):
            side = "neg" if place >= 12_500 else "pos"
            assert label == {"neg": "0", "pos": "1"}[side]
            files[f"aclImdb/{split}/{side}/{place % 12_500}_{1 if side == 'neg' else 9}.txt"] = text
    lines = layouts.TextFile(mirror / "imdb/unlabelled.txt.xz").iter_lines()
    files |= {f"aclImdb/train/unsup/{number}_0.txt": text for number, text in enumerate(lines)}
    names = list(files)
    random.Random(1).shuffle(names)
    web.put(**{IMDB: tar({name: files[name] for name in names})})
    found = opened("imdb", "labels")
    assert {name: split.examples for name, split in found.splits.items()}["test"] == 25_000
    assert examples(found) == examples(expected)
    assert documents(opened("imdb-text", "text")) == documents(texts)
