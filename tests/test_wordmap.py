"""The map of word vectors: which words it shows, and labels that cover nothing."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from allyouneed.data.vectors import Vectors
from allyouneed.figures import style
from allyouneed.figures.word_map import plane, word_map
from allyouneed.predict.words import frequent_words, usual_words
from allyouneed.run import Run, load
from commands import ayn, mistake


def overlap(a: Bbox, b: Bbox) -> bool:
    return a.x0 < b.x1 and b.x0 < a.x1 and a.y0 < b.y1 and b.y0 < a.y1


def drawn_labels(
    words: list[str], vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> dict[str, Bbox]:
    """The box of each label on the map, after it was drawn."""
    made: list[Figure] = []
    monkeypatch.setattr(style, "_save", lambda figure, *_: made.append(figure))
    word_map(words, vectors, Path("map.png"), **more)
    made[0].canvas.draw()
    (axes,) = made[0].axes
    frame = axes.get_window_extent()
    labels = {text.get_text(): text.get_window_extent() for text in axes.texts if text.get_text() in words}
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in labels.values())
    assert all(frame.y0 <= box.y0 and box.y1 <= frame.y1 for box in labels.values())
    dots = axes.transData.transform([line.get_xydata()[0] for line in axes.lines])
    assert not any(box.contains(*dot) for box in labels.values() for dot in dots)
    return labels


@pytest.mark.parametrize("count", [2, 12, 60, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("power", [1, 3])  # 3: most are close together, some far away
def test_no_name_on_the_map_lies_over_another_or_over_a_dot(power, count, monkeypatch):
    rng = np.random.default_rng(count)
    vectors = rng.normal(size=(count, 5)) ** power
    vectors[count // 2 :: 10] = vectors[0]  # several in one place
    words = [f"{'long' * int(rng.integers(1, 5))}{i}" for i in range(count)]
    labels = drawn_labels(words, vectors, monkeypatch)
    assert not any(overlap(labels[a], labels[b]) for a, b in combinations(labels, 2))
    assert len(labels) >= (0.9 if power == 1 else 0.6) * min(count, 60)  # few are left out
    assert words[0] in labels  # the first word has a label before all others
    again = drawn_labels(words, vectors, monkeypatch)
    assert {word: box.extents.tolist() for word, box in again.items()} == {
        word: box.extents.tolist() for word, box in labels.items()
    }


def test_no_name_lies_over_an_arrow(monkeypatch):
    places = np.array([[0.0, 0.0], [4.0, 0.1], [1.0, 3.0], [5.0, 3.1], [2.0, -3.0], [2.1, 2.0]])
    arrows = [("a0", "b0"), ("a1", "b1"), ("a2", "b2")]
    words = ["a0", "b0", "a1", "b1", "a2", "b2"]
    labels = drawn_labels(words, places, monkeypatch, arrows=arrows)
    assert labels.keys() == set(words)
    made: list[Figure] = []
    monkeypatch.setattr(style, "_save", lambda figure, *_: made.append(figure))
    word_map(words, places, Path("map.png"), arrows=arrows)
    at = dict(zip(words, made[0].axes[0].transData.transform(plane(places))))
    for start, end in arrows:
        for part in np.linspace(0.05, 0.95, 200):
            x, y = at[start] + part * (at[end] - at[start])
            assert not any(box.contains(x, y) for box in labels.values())


def test_the_frequent_words_of_a_text_are_content_words():
    words = [f"{letter}{letter}" for letter in "abcdefghij"] + [f"word{'x' * i}" for i in range(90)] + ["it's", "1999"]
    found = frequent_words(words)
    assert len(found) == 60
    assert found[0] == "word"  # the tenth of the vocabulary before it is left out
    assert frequent_words(["the", "dog", "Haus", "ein", "猫", "नमस्ते", "سلام", "a.b"]) == ["Haus", "猫", "नमस्ते", "سلام"]


def test_a_text_without_families_has_a_map_of_its_frequent_words():
    words = [f"word{'x' * i}" for i in range(30)]
    matrix = np.random.default_rng(1).normal(size=(30, 4))
    found = usual_words(Vectors(words, matrix))
    assert found is not None
    assert (found.words, found.shown, list(found.arrows)) == (words[3:], "27 frequent words of the text", [])
    np.testing.assert_allclose(np.linalg.norm(found.vectors, axis=1), 1)
    np.testing.assert_allclose(found.vectors[0], matrix[3] / np.linalg.norm(matrix[3]))
    assert usual_words(Vectors(words[:4], matrix[:4])) is None
    family = ["man", "woman", "boy", "girl", "father", "mother"]
    known = usual_words(Vectors([*words, *family], np.random.default_rng(1).normal(size=(36, 4))))
    assert known is not None
    assert (known.words, known.arrows[0]) == (family, ("man", "woman"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Vectors of a text about the kitchen, which knows no uncle and no aunt."""
    folder = tmp_path_factory.mktemp("kitchen")
    things = ["apple", "bread", "butter", "cheese", "garlic", "onion", "pepper", "sugar", "tomato", "water"]
    lines = [f"the cook has {a} with {b} and {c}" for a, b, c in combinations(things, 3)]
    (folder / "kitchen.txt").write_text("\n".join(lines * 3))
    settings = ["model.width=8", "text.min_count=1", "train.epochs=0", "train.steps=4", "train.batch_tokens=1000"]
    done = ayn("train", "wordvectors/skipgram", "--data", folder / "kitchen.txt", "--out", folder / "run", *settings)
    assert done.code == 0, done.err
    assert f"the figure is in {folder / 'run' / 'words.png'}" in done.out
    return load(folder / "run")


def test_training_on_any_text_draws_a_map(run: Run) -> None:
    assert (run.folder.path / "words.png").stat().st_size > 5000
    assert "words.png" in run.folder.read_config()["files"]
    assert {"apple", "tomato", "water"} <= set(run.map_words().words)


def test_a_map_of_ones_own_words(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "map.svg"
    done = ayn("use", run.folder.path, "apple", "bread, sugar", "apple", "--map", out)
    assert done == (0, f"the figure is in {out}\n", "")
    text = out.read_text()
    assert all(text.count(f">{word}<") == 1 for word in ("apple", "bread", "sugar"))
    assert "water" not in text
    assert ayn("use", run.folder.path, "--map", out).code == 0
    assert ">water<" in out.read_text()
    assert "frequent words of the text" in out.read_text()


def test_words_that_cannot_be_mapped_are_told(run: Run, tmp_path: Path, lm: Path) -> None:
    out = tmp_path / "map.png"
    said = mistake("use", run.folder.path, "aple", "bread", "tomatoe", "--map", out)
    assert "'aple' is not among the 15 words of this run; similar spellings: apple" in said
    assert "'tomatoe' is not among the 15 words of this run; similar spellings: tomato" in said
    assert "at least two words" in mistake("use", run.folder.path, "apple", "--map", out)
    assert "at least two words" in mistake("use", run.folder.path, "apple", "apple", "--map", out)
    assert "a run of the task 'lm' has no word vectors to map" in mistake("use", lm, "one", "two", "--map", out)
    assert "ends in .png or .svg" in mistake("use", run.folder.path, "apple", "bread", "--map", tmp_path / "map.pdf")
    assert not list(tmp_path.iterdir())
