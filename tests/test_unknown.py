"""How many tokens of the data are unknown: in the report before training, and in config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allyouneed import catalog
from allyouneed.data.report import Report
from allyouneed.recipe import read_recipe
from allyouneed.tasks.base import Task
from allyouneed.training.starting import choose
from commands import ayn
from conftest import TINY_TRANSLATE


def prepared(recipe: str, *settings: str) -> tuple[Task, Report]:
    chosen = choose(recipe, list(settings), None)
    task = catalog.task(chosen.task_kind)(chosen)
    return task, task.prepare(lambda line: None)


def files(folder: Path, **lines: list[str]) -> dict[str, str]:
    for name, several in lines.items():
        (folder / name).write_text("\n".join(several) + "\n", encoding="utf-8")
    return {name: str(folder / name) for name in lines}


def shares(report: Report) -> dict[str, list[float | None]]:
    return {part.name: [side.unknown for side in part.sides] for part in report.parts}


@pytest.fixture
def labelled(tmp_path: Path) -> list[str]:
    """Of the five words of the test texts, two are not in the training texts; of the eight of valid, none."""
    paths = files(
        tmp_path,
        train=["good fine good\tyes", "bad poor bad\tno"],
        valid=["good fine good good\tyes", "bad poor bad bad\tno"],
        test=["good splendid\tyes", "bad poor dreadful\tno"],
    )
    return [f"data.path={paths['train']}", f"data.valid_path={paths['valid']}", f"data.test_path={paths['test']}"]


def test_the_report_has_the_fraction_of_unknown_tokens_of_each_split(labelled):
    _, report = prepared("classify/rnn", *labelled)
    assert shares(report) == {"train": [0.0], "valid": [0.0], "test": [0.4]}
    lines = report.to_lines()
    start = next(number for number, line in enumerate(lines) if line.startswith("tokens"))
    header, train, valid, test = (line.split() for line in lines[start : start + 4])
    assert header[-1] == "unknown"
    assert (train[-2:], valid[-2:], test[-2:]) == (["0.0", "%"], ["0.0", "%"], ["40.0", "%"])


def test_many_unknown_tokens_get_one_sentence_with_what_to_try(labelled):
    _, report = prepared("classify/rnn", "text.kind=word", *labelled)
    (said,) = [line for line in report.to_lines() if "vocabulary" in line]
    assert said == (
        "many tokens are not in the vocabulary (test 40.0 %), so the model cannot tell them apart: "
        "try text.kind=bpe, which knows every text"
    )


def test_few_unknown_tokens_get_no_sentence(tmp_path):
    """One of 25 words of the test is unknown: 4 %."""
    paths = files(tmp_path, train=["good fine\tyes", "bad poor\tno"], test=["good fine " * 12 + "splendid\tyes"])
    _, report = prepared("classify/rnn", f"data.path={paths['train']}", f"data.test_path={paths['test']}",
                         "data.valid_part=0")  # fmt: skip
    assert shares(report)["test"] == [0.04]
    assert not [line for line in report.to_lines() if "vocabulary" in line]


@pytest.mark.parametrize("kind", ["char", "word", "wordpiece", "bert"])
def test_every_tokenizer_with_an_unknown_token_has_the_column(kind, labelled, tmp_path):
    (tmp_path / "test").write_text("Ωμέγα\tyes\n", encoding="utf-8")
    _, report = prepared("classify/rnn", *labelled, f"text.kind={kind}")
    assert shares(report)["train"] == [0.0]
    assert shares(report)["test"][0] > 0.5


def test_bytes_are_never_unknown_so_there_is_no_column(labelled):
    _, report = prepared("classify/rnn", *labelled, "text.kind=bpe", "text.vocab=300")
    assert shares(report) == {"train": [None], "valid": [None], "test": [None]}
    assert not [line for line in report.to_lines() if "unknown" in line]


def test_a_body_that_reads_letters_has_no_column(labelled):
    _, report = prepared("classify/elmo", *labelled)
    assert shares(report)["test"] == [None]


def test_source_and_target_are_counted_apart(tmp_path):
    """Each side has its own tokenizer: one of two source words is unknown, and no target word."""
    paths = files(tmp_path, train=["one\tuno", "two\tdue"], test=["one\tuno", "three\tdue"])
    _, report = prepared("translate/transformer", f"data.path={paths['train']}", f"data.test_path={paths['test']}",
                         "data.valid_part=0", "text.kind=word", "text.joint=false", "model.share=false")  # fmt: skip
    assert shares(report)["test"] == [0.5, 0.0]
    (said,) = [line for line in report.to_lines() if "vocabulary" in line]
    assert said.startswith("many tokens are not in the vocabulary (test source 50.0 %), so")


def test_rare_words_count_as_unknown_in_word_vectors_without_advice(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("sun moon sun moon sun moon comet\n" * 1 + "sun moon\n" * 500 + "meteor\n", encoding="utf-8")
    task, report = prepared("wordvectors/skipgram", f"data.path={text}", "text.min_count=3")
    whole = task.stream("train").tokens
    assert shares(report)["train"] == [float((whole == task.tokenizer.unk).mean())]
    assert [line for line in report.to_lines() if line.rstrip().endswith("unknown")]
    assert not [line for line in report.to_lines() if "vocabulary" in line]


def test_the_fraction_is_printed_before_training_and_kept_in_config_json(pairs, tmp_path):
    done = ayn("train", "translate/transformer", "--data", pairs, "--out", tmp_path / "run", *TINY_TRANSLATE,
               "text.kind=word", "train.steps=1")  # fmt: skip
    assert done.code == 0, done.err
    assert "unknown" in done.out.split("model:")[0]
    parts = json.loads((tmp_path / "run" / "config.json").read_text())["data"]["report"]["parts"]
    assert [side["unknown"] for part in parts for side in part["sides"]] == [0.0] * 6


def test_a_given_tokenizer_and_a_run_to_start_from_have_their_own_advice(tmp_path):
    recipe = read_recipe("classify/rnn")
    task = catalog.task("classify")(recipe)
    assert "text.kind=bpe" in task.unknown_advice
    other = read_recipe("classify/rnn", ["text.path=my.json"])
    assert "text.path" in catalog.task("classify")(other).unknown_advice
    begun = read_recipe("classify/rnn", [f"train.init={tmp_path}"])
    assert "start from a run" in catalog.task("classify")(begun).unknown_advice
