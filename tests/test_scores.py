"""Each score says on which data it was computed, and the images of one test never replace those of another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from allyouneed import Run, train
from commands import ayn
from conftest import RUNTIME


def write(path: Path, rows: int, good: str = "fine") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(f"it is {good if i % 2 else 'dull'} {i}\t{'good' if i % 2 else 'bad'}\n" for i in range(rows))
    )
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("scores")
    data = write(folder / "reviews.tsv", 120)
    return train("classify/rnn", *RUNTIME, "model.width=16", "train.steps=4", data=data, out=folder / "run", quiet=True)


@pytest.fixture(autouse=True)
def as_trained(run: Run) -> None:
    """Without what an earlier test scored."""
    path = run.folder.path
    scores = json.loads(run.folder.scores.read_text())
    run.folder.scores.write_text(json.dumps({"test": scores["test"]}))
    for image in path.glob("confusion-*.png"):
        image.unlink()


def images(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.folder.path.glob("*.png")}


def signature(run: Run, key: str) -> str:
    return run.scores()[key][0].signature


def test_other_data_leaves_the_images_and_scores_of_the_test_alone(run: Run, tmp_path: Path) -> None:
    before, scores = images(run), run.scores()["test"]
    other = write(tmp_path / "other.tsv", 10)
    done = ayn("test", run.folder.path, "--data", other)
    (image,) = images(run).keys() - before.keys()
    assert image.startswith("confusion-other.tsv@")
    assert f"the figure is in {run.folder.path / image}" in done.out
    assert {name: data for name, data in images(run).items() if name in before} == before
    assert run.scores()["test"] == scores
    assert f"|data:{image.removeprefix('confusion-').removesuffix('.png')}|" in signature(run, f"{other} all")
    run.test(data=other, limit=4)
    assert len(images(run)) == len(before) + 2  # another part of the file


def test_every_split_has_its_own_image(run: Run) -> None:
    before = images(run)
    run.test("valid")
    assert {name: data for name, data in images(run).items() if name in before} == before
    assert images(run).keys() - before.keys() == {"confusion-valid.png"}
    run.test("test")
    assert images(run)["confusion.png"] == before["confusion.png"]


def test_files_of_the_same_name_are_told_apart(run: Run, tmp_path: Path) -> None:
    first, second = write(tmp_path / "a" / "new.tsv", 10), write(tmp_path / "b" / "new.tsv", 20)
    run.test(data=first)
    run.test(data=second)
    signed = [re.search(r"\|data:(new.tsv@\w+)\|", signature(run, f"{file} all")) for file in (first, second)]
    assert len({found[1] for found in signed if found}) == 2
    named = [name for name in images(run) if name.startswith("confusion-new.tsv")]
    assert len(named) == 2
    scores = run.scores()
    run.test(data=first)  # again: the same names as before
    run.test(data=second)
    assert run.scores() == scores
    assert [name for name in images(run) if name.startswith("confusion-new.tsv")] == named


def test_a_file_with_the_name_of_the_runs_own_data_is_told_apart(run: Run, tmp_path: Path) -> None:
    run.test(data=(other := write(tmp_path / "reviews.tsv", 10)))
    assert "|data:reviews.tsv|" in signature(run, "test")
    assert "|data:reviews.tsv@" in signature(run, f"{other} all")
    own = run.recipe.data.path[0]
    run.test(data=own)  # the very file, whole
    assert "|split:all|n:120|ci95:exact|data:reviews.tsv@" in signature(run, f"{own} all")


def test_a_file_called_as_a_split_or_very_long_has_a_figure_of_its_own(run: Run, tmp_path: Path) -> None:
    run.test("valid")
    before = images(run)
    run.test(data=write(tmp_path / "valid" / "train.tsv", 10).parent)
    run.test(data=write(tmp_path / f"{'x' * 240}.tsv", 10))
    after = images(run)
    assert {name: data for name, data in after.items() if name in before} == before
    assert len(after) == len(before) + 2


def test_a_score_names_the_file_of_its_split(tmp_path: Path) -> None:
    data, test = write(tmp_path / "mine.tsv", 60), write(tmp_path / "held-out.tsv", 20)
    settings = [*RUNTIME, "model.width=16", "train.steps=2", f"data.test_path={test}"]
    run = train("classify/rnn", *settings, data=data, out=tmp_path / "run", quiet=True)
    assert "|data:held-out.tsv|" in signature(run, "test")
    run.test("valid")
    assert "|data:mine.tsv|" in signature(run, "valid")
