"""The experiments of the lectures: each draws its image, and shows what the lecture says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from allyouneed import lectures
from allyouneed.figures.curves import Panel, plot_curves
from allyouneed.lectures import banks, gradients, lengths, patch_positions, patches, paths
from allyouneed.lectures.base import Lecture
from allyouneed.metrics import translation_scores
from allyouneed.models.vit import positions_2d
from allyouneed.run import load, train
from commands import ayn, mistake, trained
from notebooks import shown

PNG = b"\x89PNG"


def quiet(out: Path, name: str = "topic", **options: Any) -> Lecture:
    return Lecture(out, lambda text: None, name=name, **options)


def read(out: Path, name: str) -> dict[str, Any]:
    """The numbers of a topic that was shown."""
    return json.loads((out / f"{name}.json").read_text())["numbers"]


def test_gradients_vanish_in_an_rnn_and_not_in_a_transformer(tmp_path, monkeypatch):
    monkeypatch.setattr(gradients, "SEEDS", 2)
    lecture = quiet(tmp_path)
    lectures.show("gradients", lecture)
    assert (tmp_path / "gradients.png").read_bytes().startswith(PNG)
    assert (tmp_path / "gradients.svg").read_text().startswith("<?xml")
    numbers = read(tmp_path, "gradients")
    at = numbers["distance"].index(32)
    assert numbers["RNN"][at] < numbers["LSTM"][at] < 1e-4
    assert numbers["LSTM, forget gate open"][at] > 0.1
    assert numbers["Transformer"][at] > 0.3


def test_paths_counts_and_times_every_length(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "LENGTHS", (8, 16))
    monkeypatch.setattr(paths, "REPEATS", 1)
    said: list[str] = []
    lectures.show("paths", Lecture(tmp_path, said.append))
    numbers = read(tmp_path, "paths")
    assert numbers["path"] == {"recurrent": [8, 16], "convolution": [4, 8], "self-attention": [1, 1]}
    assert numbers["steps"] == {"recurrent": [8, 16], "convolution": [1, 1], "self-attention": [1, 1]}
    assert all(second > 0 for several in numbers["seconds"].values() for second in several)
    assert "recurrent" in "".join(said)


SMALL = ("model.width=16", "train.steps=3", "train.eval_every=3", "train.warmup=1", "train.threads=1")


@pytest.mark.slow
def test_lengths_scores_both_models_on_texts_that_are_only_longer(tmp_path, monkeypatch):
    monkeypatch.setattr(lengths, "TRAIN", 300)
    monkeypatch.setattr(lengths, "TEST", 3)
    monkeypatch.setattr(lengths, "MOST", 4)
    drawn: list[Panel] = []

    def draw(panels: list[Panel], *rest: Any) -> None:
        drawn.extend(panels)
        plot_curves(panels, *rest)

    monkeypatch.setattr(lengths, "plot_curves", draw)
    settings = ("model.width=32", "train.steps=40", "train.eval_every=40", "train.lr=1e-2", "train.batch_tokens=256")
    numbers = lengths.show(quiet(tmp_path, "lengths"), (*SMALL, *settings))
    assert numbers["words"] == sorted(numbers["words"])
    assert (tmp_path / "lengths.png").read_bytes().startswith(PNG)
    _, tests = lengths.write_texts(tmp_path / "again.tsv")
    assert [len(several) for several in tests] == [3] * lengths.MOST
    models = {"with attention": "additive", "one context vector": "none"}
    for name, score in models.items():
        run = load(tmp_path / "models" / f"lengths-{name.replace(' ', '-')}")
        assert run.recipe.model.score == score
        answers = iter(run.predict([source for several in tests for source, _ in several]))
        for several, value in zip(tests, numbers[name], strict=True):
            targets = [target for _, target in several]
            assert translation_scores([next(answers) for _ in several], targets, False)[0].value == value
    assert drawn[0].curves == [(name, numbers["words"], numbers[name]) for name in models]
    assert numbers["with attention"] != numbers["one context vector"]  # or nobody would see them swapped


def test_alignment_looks_into_a_given_run(tmp_path, pairs):
    done = ayn("lecture", "alignment", "one two three", "--out", tmp_path, "--run", trained("translate", pairs))
    assert done.code == 0, done.err
    (numbers,) = read(tmp_path, "alignment")["sentences"]
    assert len(numbers["weights"]) == len(numbers["target"])
    assert (tmp_path / "alignment.png").read_bytes().startswith(PNG)
    unknown = ayn("lecture", "alignment", "one two xyzzy", "--out", tmp_path, "--run", trained("translate", pairs))
    assert (unknown.code, unknown.err) == (2, "ayn: the model has never seen 'xyzzy': take words that it knows\n")


@pytest.mark.slow
def test_banks_part_by_their_meaning_and_not_by_their_spelling(tmp_path):
    """With the default settings, in all three models."""
    lectures.show("banks", quiet(tmp_path))
    numbers = read(tmp_path, "banks")
    same = torch.tensor([[a == b for b in numbers["senses"]] for a in numbers["senses"]])
    others = same & ~torch.eye(9, dtype=torch.bool)
    torch.testing.assert_close(torch.tensor(numbers["elmo"]["layers"][0]), torch.ones(9, 9))
    for name in ("elmo", "gpt", "bert"):
        last = torch.tensor(numbers[name]["layers"][-1])
        assert last[others].mean() > last[~same].mean() + 0.3, name
        assert numbers[name]["itself"][0] == pytest.approx(1)
        assert numbers[name]["itself"][-1] < 0.9, name
        assert (tmp_path / f"banks-{name}.png").read_bytes().startswith(PNG)
    # What stands after the word tells its meaning, which a model that reads from left to right cannot see.
    assert numbers["gpt"]["alike"] == 1 > max(numbers["elmo"]["alike"], numbers["bert"]["alike"])
    assert all("bank" in text.split() for texts in banks.SENTENCES.values() for text in texts)


def test_wordmap_finds_the_woman(tmp_path):
    lectures.show("wordmap", quiet(tmp_path))
    numbers = read(tmp_path, "wordmap")
    assert numbers["nearest"][0]["word"] == "woman"
    assert (tmp_path / "wordmap.png").read_bytes().startswith(PNG)


def test_a_trained_model_is_not_trained_again(tmp_path):
    said: list[str] = []
    lecture = Lecture(tmp_path, said.append)
    lecture.trained("wordvectors/skipgram", "train.epochs=1")
    assert not any("trained before" in text for text in said)
    lecture.trained("wordvectors/skipgram", "train.epochs=1")
    assert any("trained before" in text for text in said)
    lecture.trained("wordvectors/skipgram", "train.epochs=2")
    assert sum("trained before" in text for text in said) == 1


def test_the_command_lists_the_lectures_and_helps_with_their_names(tmp_path, pairs, story):
    assert all(name in ayn("lecture").out for name in lectures.TOPICS)
    wrong = ayn("lecture", "gradient")
    assert wrong.code == 2
    assert "did you mean 'gradients'?" in wrong.err
    other = ayn("lecture", "banks", "--out", tmp_path, "--run", trained("translate", pairs))
    assert other.code == 2
    assert "is a run of translate/transformer, but 'banks' needs one of lm/elmo" in other.err
    gpt = ayn("lecture", "banks", "--out", tmp_path, "--run", trained("lm", story))
    assert gpt.code == 2
    assert "the model has never seen" in gpt.err
    both = ayn("lecture", "all", "--out", tmp_path, "--run", trained("lm", story))
    assert (both.code, both.err) == (
        2,
        "ayn: 'all' shows every topic in models of its own: leave out --run and the text\n",
    )
    text = ayn("lecture", "gradients", "The dog", "--out", tmp_path)
    assert text.code == 2
    assert "'gradients' takes no text of your own; these do: by-hand, " in text.err
    assert "the text is empty" in mistake("lecture", "decoding", "", "--out", tmp_path)
    for name in ("gradients", "paths", "lengths"):
        own = ayn("lecture", name, "--out", tmp_path, "--run", trained("lm", story))
        assert own.code == 2
        others = ", ".join(name for name, topic in lectures.TOPICS.items() if topic.runs)
        assert f"makes its own models; --run is for {others}" in own.err


def test_patches_of_one_row_or_column_are_alike_if_positions_say_so():
    """Sinusoids in two dimensions have what slide 31 finds in learned positions."""
    table = patches.similar(positions_2d(6, 6, 64, torch.device("cpu")))
    assert torch.allclose(table.diagonal(), torch.ones(36), atol=1e-5)
    found = list(patches.neighbours(table.view(6, 6, 6, 6)).values())
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.5 > 0 > found[2]
    shuffled = table[torch.randperm(36, generator=torch.Generator().manual_seed(1))]
    assert abs(patches.neighbours(shuffled.view(6, 6, 6, 6))["side by side"]) < 0.2
    weight = torch.zeros(20, 3 * 4 * 4)
    weight[::2, 5], weight[1::2, 5] = 1.0, -1.0  # every filter looks at one pixel of the first channel
    first = patches.filters(weight, 3, 4)[0]
    assert (
        first.abs().argmax()
        == torch.zeros(4, 4, 3)
        .index_put((torch.tensor(1), torch.tensor(1), torch.tensor(0)), torch.tensor(1.0))
        .argmax()
    )


def test_the_images_of_patch_positions_tell_the_quarter_only_by_where_the_circle_is(tmp_path):
    patches.write_images(tmp_path / "a.npz", patch_positions.SEED, patch_positions.draw_image)
    with np.load(tmp_path / "a.npz") as file:
        images, labels = file["x_train"].astype(float), file["y_train"]
    red = (255 - images[..., 1]) * (images[..., 0] > images[..., 2])  # the square is blue
    middles = [red.sum(axis) @ (np.arange(32) + 0.5) / red.sum((1, 2)) for axis in (2, 1)]
    said = [
        f"{('top', 'bottom')[int(down > 16)]} {('left', 'right')[int(across > 16)]}" for down, across in zip(*middles)
    ]
    assert said == labels.tolist()
    for middle in middles:
        for label in set(said):
            counts, _ = np.histogram(middle[labels == label] % patch_positions.PATCH, 4, (0, patch_positions.PATCH))
            assert abs(counts / counts.sum() - 0.25).max() < 0.05


@pytest.mark.slow
def test_patch_positions_compares_kinds_of_positions_over_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(patch_positions, "KINDS", {"none": "none", "2-D": "sinusoidal_2d"})
    monkeypatch.setattr(patch_positions, "SEEDS", (1, 2))
    said: list[str] = []
    small = [*SMALL, "model.heads=2", "model.layers=1", "train.batch_tokens=650", "data.limit=50"]
    lecture = Lecture(tmp_path, said.append, name="patch-positions")
    found = patch_positions.show(lecture, small)
    assert (tmp_path / "patch-positions.png").read_bytes().startswith(PNG)
    for name, kind in patch_positions.KINDS.items():
        for seed in patch_positions.SEEDS:
            run = load(tmp_path / "models" / f"positions-{name}-{seed}")
            assert (run.recipe.model.positions, run.recipe.train.seed) == (kind, seed)
            assert found[name]["test"][seed - 1] == run.scores()["test"][0].value
        assert found[name]["steps"] == [3]
    assert "seed 2" in said[-1]


@pytest.mark.slow
def test_positions_of_patches_that_are_near_or_in_one_row_become_alike(tmp_path_factory):
    """With the default settings, where the place of a patch matters."""
    numbers = read(shown("patches", tmp_path_factory), "patches")
    near, line, neither = (value for name, value in numbers.items() if name != "cosines")
    assert near > line + 0.1 > neither + 0.2


@pytest.mark.slow
def test_patches_are_drawn_from_a_run(tmp_path):
    settings = [*SMALL, "model.heads=2", "model.layers=1", "train.batch_tokens=650", "data.limit=50"]
    run = train("recognize/vit", *settings, out=tmp_path / "run", quiet=True)
    said: list[str] = []
    lectures.show("patches", Lecture(tmp_path, said.append, run=str(run.folder.path)))
    assert (tmp_path / "patches.png").read_bytes().startswith(PNG)
    assert "4,294,967,296" in "".join(said)
    assert len(read(tmp_path, "patches")["cosines"]) == 64
    none = train("recognize/vit", *settings, "model.positions=none", out=tmp_path / "none", quiet=True)
    done = ayn("lecture", "patches", "--run", none.folder.path, "--out", tmp_path)
    assert done.code == 2
    assert "has no learned positions (model.positions = none)" in done.err
