"""The user's own files -> splits of examples, and one clear sentence for every mistake."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import subprocess
import sys
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path

import pytest

from allyouneed.config import DataConfig
from allyouneed.data.examples import LabelledText, SentencePair, TaggedSentence, inputs, to_cells
from allyouneed.data.opening import open_data
from allyouneed.data.report import describe
from allyouneed.data.sources import Dataset, ExampleSplit, part_of, sampled
from allyouneed.errors import UserError

ROWS = [(f"The cat {i} sleeps.", f"Il gatto {i} dorme.") for i in range(200)]


def put(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def tsv(rows: list[tuple[str, ...]]) -> str:
    return "".join("\t".join(row) + "\n" for row in rows)


def pairs(*paths: str, **options: object) -> Dataset:
    return open_data(DataConfig(path=paths, **options), "pairs")  # type: ignore[arg-type]


def whole(*paths: str, **options: object) -> list[tuple[str, str]]:
    """All pairs, nothing held out."""
    return list(pairs(*paths, valid_part=0.0, test_part=0.0, **options).splits["train"])


def text(*paths: str, **options: object) -> Dataset:
    return open_data(DataConfig(path=paths, **options), "text")  # type: ignore[arg-type]


def joined(dataset: Dataset, split: str = "train") -> str:
    return "".join(dataset.splits[split])


def complaint(*paths: str, shape: str = "pairs", **options: object) -> str:
    with pytest.raises(UserError) as caught:
        open_data(DataConfig(path=paths, **options), shape)  # type: ignore[arg-type]
    return str(caught.value)


def test_tsv_splits_never_share_a_source_and_lose_nothing(tmp_path: Path) -> None:
    rows = [*ROWS, *((source, target + " Già.") for source, target in ROWS)]
    data = pairs(put(tmp_path / "a.tsv", tsv(rows)), valid_part=0.2, test_part=0.2)
    parts = {name: list(split) for name, split in data.splits.items()}
    assert list(parts) == ["train", "valid", "test"]
    assert sorted(chain(*parts.values())) == sorted(rows)
    sources = [{source for source, _ in part} for part in parts.values()]
    assert sum(map(len, sources)) == len(set.union(*sources))
    assert all(40 < len(part) < 140 for part in (parts["valid"], parts["test"]))
    for name, split in data.splits.items():
        assert isinstance(split, ExampleSplit)
        assert split.examples == len(parts[name])
        assert split.bytes == sum(len((s + t).encode()) for s, t in parts[name])
        assert list(split) == parts[name]
        assert list(split.texts("target")) == [pair.target for pair in parts[name]]


def test_a_split_depends_on_the_sentence_alone() -> None:
    assert [part_of(f"sentence {i}", 0.3, 0.3) for i in range(5)] == ["valid", "valid", "test", "test", "test"]
    assert part_of("x", 0.0, 0.0) == "train"
    assert {part_of(str(i), 0.5, 0.5) for i in range(50)} == {"valid", "test"}


def test_tsv_has_no_quoting(tmp_path: Path) -> None:
    assert whole(put(tmp_path / "a.tsv", '"Hi\tCiao\n"Go"\t"Vai\n')) == [('"Hi', "Ciao"), ('"Go"', '"Vai')]


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    odd = "a\u2028b\x0bc\x85d"
    assert whole(put(tmp_path / "a.tsv", f"{odd}\tx\r\ny\tz")) == [(odd, "x"), ("y", "z")]


def test_csv_with_header_quotes_and_newlines_in_cells(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", '\ufeffid,it,en\n1,"Ciao, ""tu""","Hello,\nyou"\n2,Vai,Go\n')
    assert whole(path) == [('Ciao, "tu"', "Hello,\nyou"), ("Vai", "Go")]
    assert whole(path, source="en", target="it")[1] == ("Go", "Vai")
    assert whole(path, source="3", target="2")[1] == ("Go", "Vai")
    assert whole(path, source="en")[1] == ("Go", "Vai")
    assert whole(path, target="it")[1] == ("Go", "Vai")  # the other one is the source
    assert whole(path, target="en")[1] == ("Vai", "Go")
    assert whole(path, reverse=True)[1] == ("Go", "Vai")
    told = " ".join(pairs(path, valid_part=0.0, test_part=0.0).understood)
    assert "CSV" in told
    assert "with a header" in told
    assert "source is column it, target is column en" in told


def test_csv_with_semicolons_and_without_header(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "Hello, you;Ciao\nGo;Vai\n")
    assert whole(path) == [("Hello, you", "Ciao"), ("Go", "Vai")]
    assert "without a header" in pairs(path, valid_part=0.0, test_part=0.0).understood[0]


@pytest.mark.parametrize(
    "row",
    [
        {"source": "Go", "target": "Vai"},
        {"tgt": "Vai", "src": "Go"},
        {"id": "7", "en": "Go", "it": "Vai", "score": 1.5},
        {"translation": {"en": "Go", "it": "Vai"}},
        {"left": "Go", "right": "Vai"},
    ],
)
def test_jsonl_keys_are_guessed(tmp_path: Path, row: dict[str, object]) -> None:
    assert whole(put(tmp_path / "a.jsonl", json.dumps(row) + "\n")) == [("Go", "Vai")]


def test_jsonl_keys_can_be_chosen(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", '{"translation": {"de": "Geh", "en": "Go", "it": "Vai"}}\n')
    assert whole(path, source="en", target="it") == [("Go", "Vai")]


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)])
def test_parallel_files_also_compressed(tmp_path: Path, ending: str, pack: object) -> None:
    left = put(tmp_path / f"a.en{ending}", pack(b"Go\nHi\n"))  # type: ignore[operator]
    right = put(tmp_path / f"a.it{ending}", pack("Vai\nÈ".encode()))  # type: ignore[operator]
    assert whole(left, right) == [("Go", "Vai"), ("Hi", "È")]
    assert whole(left, right, source="it") == [("Vai", "Go"), ("È", "Hi")]


def test_a_folder_with_named_splits(tmp_path: Path) -> None:
    put(tmp_path / "train.tsv", tsv(ROWS))
    put(tmp_path / "dev.tsv.gz", gzip.compress(b"a\tb\n"))
    data = pairs(str(tmp_path), test_part=0.1)
    assert list(data.splits["valid"]) == [("a", "b")]
    assert {name: split.examples > 5 for name, split in data.splits.items()} == {
        "train": True,
        "valid": False,
        "test": True,
    }
    assert data.splits["train"].examples + data.splits["test"].examples == len(ROWS)


def test_a_folder_of_parallel_files_in_three_languages(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        for language in ("de", "en", "it"):
            put(tmp_path / f"{split}.{language}", f"{split} {language}\n")
    data = pairs(str(tmp_path), source="it", target="en")
    assert {name: list(split) for name, split in data.splits.items()} == {
        "train": [("train it", "train en")],
        "valid": [("val it", "val en")],
        "test": [("test it", "test en")],
    }
    assert "choose with data.source and data.target" in complaint(str(tmp_path))


def test_own_files_for_valid_and_test(tmp_path: Path) -> None:
    valid, test = put(tmp_path / "v.tsv", "a\tb\n"), put(tmp_path / "t.tsv", "c\td\n")
    data = pairs(put(tmp_path / "a.tsv", tsv(ROWS)), valid_path=(valid,), test_path=(test,))
    assert [split.examples for split in data.splits.values()] == [len(ROWS), 1, 1]


def test_pairs_with_a_blank_side_are_dropped_and_counted(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", "a\tb\n\n \tc\nd\t\n   \ne\tf\n")
    split = pairs(path, valid_part=0.0, test_part=0.0).splits["train"]
    assert list(split) == [("a", "b"), ("e", "f")]
    assert (split.examples, split.empty, split.bytes) == (2, 4, 4)


def test_limit_draws_at_random_from_every_split(tmp_path: Path) -> None:
    path, own = put(tmp_path / "a.tsv", tsv(ROWS)), put(tmp_path / "t.tsv", tsv(ROWS[:20]) + "\t\n")
    full, some = (pairs(path, test_path=(own,), valid_part=0.1, limit=limit) for limit in (0, 7))
    for name in ("train", "valid", "test"):
        all_of, drawn = list(full.splits[name]), list(some.splits[name])
        assert some.splits[name].examples == len(drawn) == 7
        assert drawn == [pair for pair in all_of if pair in drawn] != all_of[:7]  # in their order, and not the first
        assert list(some.splits[name]) == drawn
        assert some.splits[name].bytes == sum(len((s + t).encode()) for s, t in drawn)
        assert some.splits[name].empty == full.splits[name].empty
    more = pairs(path, test_path=(own,), valid_part=0.1, limit=15).splits["train"]
    assert set(some.splits["train"]) < set(more)  # a learning curve adds examples
    assert some.fingerprint != full.fingerprint
    assert "at most 7 examples of each split are used, drawn at random and always the same (data.limit)" in (
        some.understood
    )
    assert [split.examples for split in pairs(path, limit=10**12).splits.values()] == [
        split.examples for split in pairs(path).splits.values()
    ]


def test_every_example_is_drawn_equally_often() -> None:
    counts = [sum(sampled(limit, 400)) for limit in (1, 37, 399, 400, 1000)]
    assert counts == [1, 37, 399, 400, 400]
    halves = [sum(islice(sampled(1000, 10_000), start, start + 1000)) for start in range(0, 10_000, 1000)]
    assert all(70 < count < 130 for count in halves)


def test_the_fingerprint_follows_contents_and_settings(tmp_path: Path) -> None:
    path, copy = put(tmp_path / "a.tsv", tsv(ROWS)), put(tmp_path / "b.tsv", tsv(ROWS))
    first = pairs(path).fingerprint
    assert pairs(copy).fingerprint == first
    assert pairs(path, reverse=True).fingerprint != first
    assert pairs(path, test_path=(copy,)).fingerprint != first
    os.utime(path, ns=(1, 1))
    assert pairs(path).fingerprint == first
    Path(path).write_text(tsv(ROWS).replace("1", "2"))  # as long, and as old
    os.utime(path, ns=(1, 1))
    assert pairs(path).fingerprint != first


def test_wrong_number_of_columns_names_the_line(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", "a\tb\nc\td\ne\tf\tg\n")
    assert complaint(path) == f"{path}, line 3 has 3 columns, but the first row has 2"
    path = put(tmp_path / "a.csv", "a,b\nc\n")
    assert "line 2 has 1 columns" in complaint(path)


def test_parallel_files_of_different_length_give_both_counts(tmp_path: Path) -> None:
    left, right = put(tmp_path / "a.en", "a\nb\nc\nd\n"), put(tmp_path / "a.it", "a\nb\n")
    assert f"{left} has 4 and {right} has 2" in complaint(left, right)
    assert f"{right} has 2 and {left} has 4" in complaint(right, left)


def test_bad_jsonl_names_the_line(tmp_path: Path) -> None:
    good = '{"en": "Go", "it": "Vai"}\n'
    assert "line 2 is not JSON" in complaint(put(tmp_path / "a.jsonl", good + "{nonsense\n"))
    assert "line 3 has no key 'it'" in complaint(put(tmp_path / "b.jsonl", good + good + '{"en": "Go"}\n'))
    assert "line 2: 'it' is 3" in complaint(put(tmp_path / "c.jsonl", good + '{"en": "Go", "it": 3}\n'))
    assert "line 2: 'it' is" in complaint(put(tmp_path / "d.jsonl", good + '{"en": "Go", "it": "\\ud800"}\n'))
    assert "line 2 is not a JSON object" in complaint(put(tmp_path / "e.jsonl", good + "[1, 2]\n"))


def test_unknown_columns_are_named(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "english,italian\nGo,Vai\n")
    assert "no column 'italien'; did you mean 'italian'?" in complaint(path, target="italien")
    assert "no column 3; it has 2" in complaint(path, source="3")
    assert "both column english" in complaint(path, source="1", target="english")


def test_one_column_is_not_enough(tmp_path: Path) -> None:
    assert "only one column" in complaint(put(tmp_path / "a.tsv", "one\ntwo\n"))
    assert "does not look like pairs" in complaint(put(tmp_path / "a.txt", "one\ntwo\n"))


def test_too_many_paths_and_two_tables_are_refused(tmp_path: Path) -> None:
    paths = [put(tmp_path / name, "a\tb\n") for name in ("a.tsv", "b.tsv", "c.tsv")]
    assert "two parallel text files" in complaint(*paths)
    assert "two parallel text files" in complaint(*paths[:2])
    put(tmp_path / "x/train.tsv", "a\tb")
    put(tmp_path / "x/train.csv", "a,b")
    assert "more than one table for train" in complaint(str(tmp_path / "x"))


def test_a_part_that_came_out_empty_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", "a\tb\n")
    assert "too small" in complaint(path, valid_part=1e-9)


def test_a_folder_of_pairs_needs_a_train_file(tmp_path: Path) -> None:
    put(tmp_path / "pairs.tsv", "a\tb\n")
    assert "no train.* file (it has pairs.tsv)" in complaint(str(tmp_path))


def test_a_missing_path_suggests_the_nearest(tmp_path: Path) -> None:
    put(tmp_path / "corpus.tsv", "a\tb\n")
    assert "did you mean 'corpus.tsv'?" in complaint(str(tmp_path / "corpsu.tsv"))
    assert complaint(str(tmp_path / "zzz")).endswith("zzz")
    assert "does not exist" in complaint(str(tmp_path / "no/corpus.tsv"))


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_empty_and_blank_files(tmp_path: Path, shape: str) -> None:
    for ending in ("tsv", "csv", "jsonl", "txt"):
        assert complaint(put(tmp_path / f"a.{ending}", ""), shape=shape).endswith("is empty")
        assert complaint(put(tmp_path / f"b.{ending}", "\n  \n\n"), shape=shape).endswith("holds only blank lines")


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_a_zero_byte_is_named_exactly(tmp_path: Path, shape: str) -> None:
    start = "\ufeff" + "aè\tb\n" * 200_000  # the mistake lies in the second chunk
    path = put(tmp_path / "b.tsv", start.encode() + b"c\t\x00d\n")
    assert complaint(path, shape=shape) == (
        f"{path} is a binary file (byte {len(start.encode()) + 2} is zero), but text is expected"
    )
    path = put(tmp_path / "d.tsv", b"a\tb\nc\t\xc3")  # torn at the end
    assert "line 2 is not UTF-8: byte 0xc3" in complaint(path, shape=shape)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(b"a\tb\n" * 1000)
    assert "damaged" in complaint(put(tmp_path / "a.tsv.gz", packed[:-20]))
    assert "damaged" in complaint(put(tmp_path / "a.txt.xz", lzma.compress(b"hello" * 99)[:-20]), shape="text")


def test_a_folder_without_text(tmp_path: Path) -> None:
    put(tmp_path / "a.bin", b"\x00")
    assert "no text file" in complaint(str(tmp_path), shape="text")


def test_examples_have_names(tmp_path: Path) -> None:
    (example,) = pairs(put(tmp_path / "a.tsv", "Go\tVai\n"), valid_part=0.0, test_part=0.0).splits["train"]
    assert example == SentencePair(source="Go", target="Vai")
    assert inputs(LabelledText("a", "b", "c")) == ("a", "c")
    assert to_cells(LabelledText("a", "b")) == ("a", "b")
    assert to_cells(TaggedSentence(("a", "b"), ("O", "B-x"))) == ("a b", "O B-x")


def test_jsonl_that_python_cannot_hold(tmp_path: Path) -> None:
    good = '{"en": "Go", "it": "Vai"}\n'
    deep = put(tmp_path / "a.jsonl", good + '{"en": "Go", "it": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    assert complaint(deep) == f"{deep}, line 2: its lists and objects are nested too deeply"
    long = put(tmp_path / "b.jsonl", good + '{"en": "Go", "it": ' + "1" * 5000 + "}\n")
    assert complaint(long) == f"{long}, line 2 has a number with too many digits: write it as text"
    for depth in range(900, 1000):  # just below the limit, where writing it out again could fail
        nested = put(tmp_path / "c.jsonl", good + '{"en": "Go", "it": ' + "[" * depth + "]" * depth + "}\n")
        assert "line 2" in complaint(nested)


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000])
def test_a_column_is_a_decimal_number_or_a_name(tmp_path: Path, number: str) -> None:
    assert "has no column" in complaint(put(tmp_path / "a.csv", "english,italian\nGo,Vai\n"), source=number)


def test_report_counts_duplicates_overlap_and_cuts(tmp_path: Path) -> None:
    train = put(tmp_path / "a.tsv", "a\tb\na\tb\na\tc\n\t\nd\te\n")
    valid = put(tmp_path / "v.tsv", "a\tz\nq\tr\na\ty\n")
    data = pairs(train, valid_path=(valid,), test_part=0.0)
    report = describe(data, {"train": ([1, 2, 3, 10], [4, 4, 4, 4])}, limit=2, unit="tokens")
    first, second = asdict(report)["parts"]
    assert (first["examples"], first["empty"], first["duplicates"], first["in_train"]) == (4, 1, 1, None)
    assert (second["examples"], second["duplicates"], second["in_train"]) == (3, 0, 2)
    source, target = first["sides"]
    assert source == {
        "name": "source",
        "total": 16,
        "quantiles": {"50": 3, "90": 10, "99": 10},
        "longest": 10,
        "cut": 2,
        "unknown": None,
    }
    assert (target["total"], target["cut"]) == (16, 4)
    shown = "\n".join(report.to_lines())
    assert "over 2" in shown
    assert json.loads(json.dumps(asdict(report)))["unit"] == "tokens"


def test_report_of_text_counts_equal_documents(tmp_path: Path) -> None:
    for name, content in {"a": "same\n", "b": "same\n", "c": "other\n"}.items():
        put(tmp_path / "t" / f"{name}.txt", content)
    data = text(str(tmp_path / "t"), valid_path=(put(tmp_path / "v.txt", "same\n"),), test_part=0.0)
    parts = asdict(describe(data, {"train": [2, 2, 2]}))["parts"]
    assert [(part["duplicates"], part["in_train"]) for part in parts] == [(1, None), (0, 1)]


def test_data_sources_do_not_import_torch() -> None:
    modules = ("sources", "files", "registry", "fetch", "report", "store")
    code = f"import sys; import {', '.join(f'allyouneed.data.{m}' for m in modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
