"""ayn test RUN --out FILE: the predictions that the scores were computed from, one JSON object per line."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from allyouneed.data.formats.conll import spans
from allyouneed.metrics import confusion, entity_scores, label_scores, translation_scores
from allyouneed.run import Run, load
from allyouneed.tasks import scoring
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose
from commands import ayn, mistake, trained
from conftest import RUNTIME

SHORT = [*RUNTIME, "model.width=16", "train.steps=30", "train.epochs=0", "train.eval_every=30", "train.lr=1e-2",
         "train.warmup=2", "train.batch_tokens=256", "data.valid_part=0.2", "data.test_part=0.3"]  # fmt: skip


def made(recipe: str, out: Path, data: object = None, *more: str) -> Run:
    fit(choose(recipe, [*SHORT, *more], data), out, quiet=True)
    return load(out)


def written(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_translations_give_the_printed_scores(pairs, tmp_path):
    run = load(trained("translate", pairs))
    file = tmp_path / "predictions.jsonl"
    printed = {score.name: score.value for score in run.test(out=file)}
    rows = written(file)
    assert [(row["source"], row["reference"]) for row in rows] == list(run.task.data.splits["test"])
    again = translation_scores([row["prediction"] for row in rows], [row["reference"] for row in rows])
    assert {score.name: score.value for score in again} == printed
    assert len({row["prediction"] for row in rows}) > 1


def texts(many: int) -> list[tuple[str, str]]:
    draw = random.Random(1)
    return [(f"{draw.choice('abcdef')} film {i} {draw.choice('xyz')}", draw.choice(["no", "yes"])) for i in range(many)]


def test_labels_give_the_printed_scores(tmp_path):
    run = made("classify/rnn", tmp_path / "run", texts(120))
    file = tmp_path / "predictions.jsonl"
    printed = [score.value for score in run.test(out=file)]
    rows = written(file)
    assert [(row["text"], row["reference"]) for row in rows] == [e[:2] for e in run.task.data.splits["test"]]
    numbers = [[run.task.labels.index(row[key]) for row in rows] for key in ("reference", "prediction")]
    assert [score.value for score in label_scores(confusion(*numbers, 2))] == printed
    assert 0 < printed[0] < 100
    for row, answer in zip(rows, run.answers([row["text"] for row in rows])):
        assert list(row) == ["text", "prediction", "reference", "probability"]
        assert row["prediction"] == answer.text
        assert row["probability"] == pytest.approx(answer.details["probability"], abs=2e-6)


def test_both_texts_of_a_pair_are_written(tmp_path):
    rows = ["premise\thypothesis\tlabel", *(f"dog {i}\tanimal {i % 3}\t{'yes' if i % 3 else 'no'}" for i in range(90))]
    data = tmp_path / "pairs.tsv"
    data.write_text("\n".join(rows) + "\n", encoding="utf-8")
    run = made("classify/rnn", tmp_path / "run", str(data), "data.source=premise", "data.second=hypothesis",
               "data.target=label")  # fmt: skip
    run.test(out=tmp_path / "found.jsonl")
    first = written(tmp_path / "found.jsonl")[0]
    assert list(first) == ["text", "second", "prediction", "reference", "probability"]
    assert first["text"].split()[0] == "dog"
    assert first["second"].split()[0] == "animal"


@pytest.mark.parametrize("scheme", ["IOB2", "per word"])
def test_tags_give_the_printed_scores(scheme, tmp_path):
    draw, data = random.Random(2), tmp_path / "tags.conll"
    kinds = ("B-who", "B-where") if scheme == "IOB2" else ("N", "V")
    outside = "O" if scheme == "IOB2" else "D"
    data.write_text(
        "\n".join(
            f"{draw.choice('AB')}{i} {draw.choice(kinds)}\nmet {outside}\n{draw.choice('CD')}{i} {kinds[0]}\n"
            for i in range(120)
        ),
        encoding="utf-8",
    )
    run = made("tag/lstm", tmp_path / "run", str(data))
    printed = {score.name: score.value for score in run.test(out=tmp_path / "found.jsonl")}
    rows = written(tmp_path / "found.jsonl")
    assert [tuple(row["words"]) for row in rows] == [example.words for example in run.task.data.splits["test"]]
    assert all(len(row["words"]) == len(row["prediction"]) == len(row["reference"]) for row in rows)
    if scheme == "IOB2":
        both = ([spans(row[key]) for row in rows] for key in ("reference", "prediction"))
        again = entity_scores(*both)
    else:
        tags = [[run.task.labels.index(tag) for row in rows for tag in row[key]] for key in ("reference", "prediction")]
        again = label_scores(confusion(*tags, len(run.task.labels)))
    assert {score.name: score.value for score in again} == printed
    assert 0 < printed["F1" if scheme == "IOB2" else "accuracy"] < 100


def test_analogies_give_the_printed_score(tmp_path):
    run = made("wordvectors/skipgram", tmp_path / "run", None, "data.valid_part=0.05", "data.test_part=0.05")
    printed = {score.name: score.value for score in run.test(out=tmp_path / "found.jsonl", say=lambda line: None)}
    known = [row for row in written(tmp_path / "found.jsonl") if row["prediction"] is not None]
    assert {len(row["words"]) for row in known} == {3}
    right = sum(row["prediction"] == row["reference"] for row in known)
    assert 100 * right / len(known) == pytest.approx(printed["analogies"])


def test_running_text_has_no_predictions(story, tmp_path):
    said = mistake("test", trained("lm", story), "--out", tmp_path / "found.jsonl")
    assert said == (
        "a test of the task 'lm' has no answer to each example that --out could hold: it scores running text; "
        "leave it out"
    )
    assert not (tmp_path / "found.jsonl").exists()


def test_the_command_says_where_they_are_and_replaces_a_file(pairs, tmp_path):
    file = tmp_path / "found.jsonl"
    file.write_text("something else\n")
    done = ayn("test", trained("translate", pairs), "--out", file)
    assert done.code == 0, done.err
    assert f"the predictions are in {file}" in done.out
    assert list(written(file)[0]) == ["source", "prediction", "reference"]


def test_other_data_is_written_too(pairs, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text("one two\tuno due\nthree\ttre\n", encoding="utf-8")
    done = ayn("test", trained("translate", pairs), "--data", other, "--out", tmp_path / "found.jsonl")
    assert done.code == 0, done.err
    assert [row["source"] for row in written(tmp_path / "found.jsonl")] == ["one two", "three"]


def forbidden_outputs(run: Path, data: Path, folder: Path) -> dict[str, Path]:
    (folder / "link.tsv").symlink_to(data)
    return {
        "a folder": folder,
        "no folder": folder / "missing" / "found.jsonl",
        "the data": data,
        "a link to the data": folder / "link.tsv",
        "the model": run / "model.safetensors",
        "the recipe": run / "recipe.toml",
        "the metrics": run / "metrics.jsonl",
        "a checkpoint": run / "checkpoints" / "found.jsonl",
        "a device": Path("/dev/null"),
    }


SAID = {
    "a folder": "is a folder: give the name of a file",
    "no folder": "there is no folder",
    "the data": "is in the place of the data",
    "a link to the data": "is in the place of the data",
    "the model": "is inside the run",
    "the recipe": "is inside the run",
    "the metrics": "is inside the run",
    "a checkpoint": "is inside the run",
    "a device": "is not a plain file",
}


@pytest.mark.parametrize("wrong", SAID)
def test_a_file_that_cannot_be_written_is_refused_before_the_test(wrong, pairs, tmp_path, monkeypatch):
    run = trained("translate", pairs)
    out = forbidden_outputs(run, pairs, tmp_path)[wrong]
    before = out.read_bytes() if out.is_file() else b""
    monkeypatch.setattr("allyouneed.run.score_run", None)  # a test would be a TypeError
    assert SAID[wrong] in mistake("test", run, "--out", out)
    assert (out.read_bytes() if out.is_file() else b"") == before


def test_a_folder_that_is_closed_is_refused_before_the_test(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr("allyouneed.run.score_run", None)
    monkeypatch.setattr(scoring.os, "access", lambda path, mode: Path(path) != tmp_path)  # root may write anywhere
    said = mistake("test", trained("translate", pairs), "--out", tmp_path / "found.jsonl")
    assert said.endswith(f"you may not write into {tmp_path}; give another folder")


def test_predictions_may_be_beside_the_run(pairs):
    run = trained("translate", pairs)
    for _ in range(2):
        done = ayn("test", run, "--out", run / "predictions.jsonl")
        assert done.code == 0, done.err
    os.remove(run / "predictions.jsonl")


def test_a_file_is_whole_or_as_before(pairs, tmp_path, monkeypatch):
    file = tmp_path / "found.jsonl"
    file.write_text("before\n")
    run = load(trained("translate", pairs))

    def broken():
        yield {"source": "one"}
        raise KeyboardInterrupt

    monkeypatch.setattr(run.task, "predictions", broken)
    with pytest.raises(KeyboardInterrupt):
        run.test(out=file)
    assert file.read_text() == "before\n"
    assert [path.name for path in tmp_path.iterdir()] == ["found.jsonl"]
