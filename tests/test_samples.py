"""Samples: answers beside their references while a model trains. They cost little, and change nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from allyouneed import catalog
from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.predict.translate import TranslatePredictor
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.tasks.base import BRIEF, Sample, Task, sample_indices
from allyouneed.training import trainer as trainer_module
from allyouneed.training.evaluating import Sampler
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose
from commands import ayn
from conftest import RUNTIME, TINY_LM, TINY_TRANSLATE


def test_a_short_sample_is_one_line_and_a_long_one_two():
    assert Sample("one", "uno", "una").to_lines() == ["  sample: one → uno (reference: una)"]
    assert Sample("king", "queen, prince").to_lines() == ["  sample: king → queen, prince"]
    assert Sample("", "[Ada who]", "Ada").to_lines() == ["  sample: [Ada who] (reference: Ada)"]
    first, second = Sample("a" * 300, "b\n" * 200, "c" * 300).to_lines()
    assert first == f"  sample: {'a' * 100}…"
    assert second.startswith("    → b\\nb\\n")
    assert second.endswith(f"… (reference: {'c' * 100}…)")
    assert len(Sample("", "b" * 90, "c" * 90).to_lines()) == 2
    assert Sample("one", "", "uno").to_lines() == ["  sample: one → (nothing) (reference: uno)"]


def test_the_examples_are_spread_and_there_may_be_few():
    assert sample_indices(10) == [2, 5, 7]
    assert sample_indices(10**9) == [250, 500, 750]
    assert sample_indices(1) == [0]
    assert sample_indices(0) == []


def prepared(recipe: str, *settings: str, data: object = None) -> tuple[Task, torch.nn.Module]:
    chosen = choose(recipe, list(settings), data)
    task = catalog.task(chosen.task_kind)(chosen)
    task.prepare(lambda line: None)
    torch.manual_seed(1)
    model = task.build_model().eval()
    task.begin(model, lambda line: None)
    return task, model


def test_a_translation_is_beside_its_reference_and_ends_soon(pairs, monkeypatch):
    asked, answers = [], TranslatePredictor.answers

    def watched(own, prompts, *how):
        return answers(own, [asked.append(prompt.max_new) or prompt for prompt in prompts], *how)

    monkeypatch.setattr(TranslatePredictor, "answers", watched)
    task, model = prepared("translate/transformer", *TINY_TRANSLATE, data=str(pairs))
    found = task.samples(model, "valid", DecodeConfig(max_new=256), 3)
    known = dict(task.data.splits["valid"])
    assert len(found) == 3
    assert [sample.reference for sample in found] == [known[sample.text] for sample in found]
    assert len(asked) == 3
    assert max(asked) <= BRIEF
    assert found == task.samples(model, "valid", DecodeConfig(max_new=256), 3)
    assert found[:1] == task.samples(model, "valid", DecodeConfig(max_new=256), 1)


@pytest.mark.parametrize("recipe", ["lm/gpt", "lm/rnn", "lm/conv", "lm/elmo"])
def test_a_continuation_is_beside_the_true_one(recipe, story):
    settings = ["text.kind=char", "model.context=32"]
    task, model = prepared(recipe, *settings, data=str(story))
    found = task.samples(model, "valid", DecodeConfig(), 3)
    text = "".join(task.data.splits["valid"])
    assert len(found) == 3
    for sample in found:
        assert sample.text + sample.reference in text
        assert len(sample.text) == len(sample.reference) == 16  # half of the context
        assert len(sample.answer.replace("<unk>", "?")) <= 16
        at = text.index(sample.text + sample.reference)
        assert text[at - 1] == "\n"


def test_a_label_is_beside_the_right_one_also_for_a_text_that_is_too_long(tmp_path):
    data = [(f"{'very ' * 50}good {i}", "yes") for i in range(60)] + [(f"bad {i}", "no") for i in range(60)]
    task, model = prepared("classify/gpt", "model.context=16", "model.positions=learned", data=data)
    found = task.samples(model, "valid", DecodeConfig(), 3)
    known = {example.text: example.label for example in task.data.splits["valid"]}
    assert len(found) == 3
    assert max(len(task.tokenizer.encode(sample.text)) for sample in found) > 16
    for sample in found:
        assert sample.reference == known[sample.text]
        assert sample.answer.split()[0] in ("yes", "no")


def test_entities_are_marked_in_the_answer_and_in_the_reference(tmp_path):
    rows = [f"Ada B-who\nLee I-who\nleft O\nRome B-where\n{i} O\n" for i in range(60)]
    path = tmp_path / "tags.conll"
    path.write_text("\n".join(rows), encoding="utf-8")
    task, model = prepared("tag/lstm", data=str(path))
    (sample,) = task.samples(model, "valid", DecodeConfig(), 1)
    assert sample.reference.startswith("[Ada Lee who] left [Rome where] ")
    assert sample.text == ""
    assert {"Ada", "left", "Rome"} <= set(sample.answer.replace("[", "").split())


def test_tags_that_mark_no_entities_are_beside_their_words(tmp_path):
    path = tmp_path / "tags.conll"
    path.write_text("\n".join(f"dogs N\nrun V\n{i} D\n" for i in range(60)), encoding="utf-8")
    task, model = prepared("tag/lstm", data=str(path))
    (sample,) = task.samples(model, "valid", DecodeConfig(), 1)
    assert sample.reference.startswith("dogs/N run/V ")
    assert [piece.split("/")[0] for piece in sample.answer.split()][:2] == ["dogs", "run"]


def test_word_vectors_show_the_nearest_words_without_a_reference():
    task, model = prepared("wordvectors/skipgram")
    found = task.samples(model, "valid", DecodeConfig(), 3)
    assert len({sample.text for sample in found}) == 3
    for sample in found:
        assert sample.reference is None
        assert len(sample.answer.split(", ")) == 5


# In a run


def test_a_run_shows_one_sample_per_evaluation_and_three_at_the_end(pairs, tmp_path, monkeypatch):
    monkeypatch.setattr(Sampler, "affordable", lambda self, seconds: True)
    done = ayn("train", "translate/transformer", "--data", pairs, "--out", tmp_path / "run", *TINY_TRANSLATE)
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    after = [lines[i + 1] for i, line in enumerate(lines) if "validation loss" in line and line.startswith("step ")]
    assert len(after) == 3
    assert all(line.startswith("  sample: ") for line in after)
    assert len({line.split(" → ")[0] for line in after}) == 1  # always the same example
    end = lines[lines.index(next(line for line in lines if line.startswith("exact match"))) :]
    assert sum(line.startswith("  sample: ") for line in end) == 3


def test_a_quiet_run_asks_the_model_nothing(pairs, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(catalog.task("translate"), "samples", None)
    fit(choose("translate/transformer", TINY_TRANSLATE, str(pairs)), tmp_path / "run", quiet=True)
    assert capsys.readouterr().out == ""


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["translate/transformer", "lm/rnn", "classify/rnn"])
def test_samples_change_nothing(recipe, pairs, story, reviews, tmp_path):
    """A run with samples, one without, and one that was stopped: the same weights, and the same checkpoints."""
    data = {"translate": pairs, "lm": story, "classify": reviews}[recipe.split("/")[0]]
    settings = [*RUNTIME, "model.width=16", "train.epochs=0", "train.steps=6", "train.eval_every=2",
                "train.batch_tokens=128", "train.warmup=2", "model.dropout=0.2", "train.ema=0.5", "data.valid_part=0.3",
                "data.test_part=0.2"]  # fmt: skip
    chosen = choose(recipe, settings, str(data))
    fit(chosen, tmp_path / "quiet", quiet=True)
    fit(chosen, tmp_path / "shown", say=lambda line: None)
    step = trainer_module.Trainer._step

    def interrupted(self, work):
        step(self, work)
        if self.at.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "_step", interrupted)
        with pytest.raises(trainer_module.Interrupted):
            fit(chosen, tmp_path / "cut", say=lambda line: None)
    fit(chosen, tmp_path / "cut", resume=True, say=lambda line: None)
    for file in ("model.safetensors", "checkpoints/step-000006/model.safetensors"):
        one, two, three = (read_tensors(tmp_path / name / file) for name in ("quiet", "shown", "cut"))
        assert all(torch.equal(one[key], two[key]) and torch.equal(one[key], three[key]) for key in one)
    last = "checkpoints/step-000006/train.safetensors"
    assert len({(tmp_path / name / last).read_bytes() for name in ("quiet", "shown", "cut")}) == 1


def test_samples_cost_at_most_two_per_cent_after_the_first(pairs):
    task, model = prepared("translate/transformer", *TINY_TRANSLATE, data=str(pairs))
    sampler = Sampler(model, task, torch.no_grad, quiet=False)
    assert sampler.affordable(0.0)
    assert sampler.formatted(1)
    assert sampler.spent > 0
    assert not sampler.affordable(10 * sampler.spent)
    assert sampler.affordable(51 * sampler.spent)


def test_the_examples_are_read_before_the_training(tmp_path: Path, pairs):
    data = tmp_path / "pairs.tsv"
    data.write_bytes(pairs.read_bytes())
    task, model = prepared("translate/transformer", *TINY_TRANSLATE, data=str(data))
    sampler = Sampler(model.train(), task, torch.no_grad, quiet=False)
    data.unlink()
    assert len(sampler.formatted(3)) >= 3
    assert model.training


def test_a_model_that_cannot_answer_trains_on(pairs, monkeypatch):
    task, model = prepared("translate/transformer", *TINY_TRANSLATE, data=str(pairs))

    def broken(*_: object) -> list[Sample]:
        raise UserError("not a number")

    monkeypatch.setattr(task, "samples", broken)
    sampler = Sampler(model.train(), task, torch.no_grad, quiet=False)
    assert sampler.formatted(3) == []
    assert model.training


def test_a_run_without_validation_data_shows_samples_of_the_test_or_none(story, tmp_path):
    done = ayn("train", "lm/gpt", "--data", story, "--out", tmp_path / "a", *TINY_LM, "data.valid_part=0")
    assert done.code == 0, done.err
    assert done.out.count("  sample: ") == 3
    done = ayn("train", "lm/gpt", "--data", story, "--out", tmp_path / "b", *TINY_LM, "data.valid_part=0",
               "data.test_part=0")  # fmt: skip
    assert done.code == 0, done.err
    assert "  sample: " not in done.out
