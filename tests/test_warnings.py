"""Warnings: a data set that is too small for its model, and a validation loss that only rises."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allyouneed import catalog
from allyouneed.data.registry import listing
from allyouneed.models.dvae import DVAE, DVAEConfig
from allyouneed.predict.images import ImageTokenizer
from allyouneed.recipe import read_recipe, recipe_names
from allyouneed.storage.runfolder import RunFolder
from allyouneed.tasks.draw import Draw
from allyouneed.training import trainer as trainer_module
from allyouneed.training.evaluating import Evaluator
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose
from allyouneed.training.warning import Watch, small_data
from commands import ayn
from conftest import RUNTIME, TINY_LM


def rows(out: Path, kind: str) -> list[dict]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def watched(valid: list[float], train: list[float], waited: list[int] | None = None) -> list[int]:
    """The evaluations at which a run with these losses warns."""
    watch, found = Watch(), []
    lowest = [number - valid.index(min(valid[: number + 1])) for number in range(len(valid))]
    for number, (loss, trained) in enumerate(zip(valid, train)):
        watch.add(trained - 0.01)
        watch.add(trained + 0.01)
        if watch.evaluate(10 * number, loss, (waited or lowest)[number]):
            found.append(number)
    return found


FALLING = [3.0, 2.5, 2.0, 1.5, 1.0, 0.5, 0.4]


def test_a_validation_loss_that_only_rises_is_told_at_the_third_rise_and_once():
    assert watched([3.0, 2.8, 2.9, 3.0, 3.1, 3.2, 3.3], FALLING) == [4]


@pytest.mark.parametrize(
    ("valid", "train"),
    [
        ([3.0, 2.8, 2.9, 3.0, 2.99, 3.2, 3.3], FALLING),  # only two rises in a row
        ([3.0, 2.8, 2.81, 2.82, 2.83, 2.84, 2.85], FALLING),  # within 2 % of the best
        ([3.0, 2.8, 2.9, 3.0, 3.1, 3.2, 3.3], [3.0, 2.5, 2.6, 2.7, 2.8, 2.9, 3.0]),  # the training loss rises, too
        ([3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4], FALLING),
    ],
)
def test_other_losses_are_not_told(valid, train):
    assert watched(valid, train) == []


def test_a_rise_is_told_as_soon_as_it_is_above_two_per_cent():
    assert watched([3.0, 2.8, 2.81, 2.82, 2.83, 2.84, 2.85], FALLING) == []
    assert watched([3.0, 2.8, 2.81, 2.82, 2.83, 2.84, 2.9], FALLING) == [6]


def test_a_score_that_still_improves_is_a_reason_to_wait():
    rising = [3.0, 2.8, 2.9, 3.0, 3.1, 3.2, 3.3]
    assert watched(rising, FALLING, waited=[0, 0, 0, 0, 0, 0, 0]) == []
    assert watched(rising, FALLING, waited=[0, 0, 1, 0, 1, 2, 3]) == [6]


RISING = {4: 2.0, 8: 2.1, 12: 2.2, 16: 2.3, 20: 2.4}


@pytest.fixture
def overfitting(monkeypatch):
    """The validation loss rises from the second evaluation on, whatever the model does."""
    monkeypatch.setattr(Evaluator, "loss", lambda self, part: [RISING[self.model.steps_seen]])
    step = trainer_module.Trainer._step

    def counted(self, work):
        step(self, work)
        self.model.steps_seen = self.at.step

    monkeypatch.setattr(trainer_module.Trainer, "_step", counted)


def overfitted(story: Path, out: Path, *more: str, **options) -> list[dict]:
    settings = [*TINY_LM, "train.steps=20", "train.lr=1e-2", "model.dropout=0.1", *more]
    fit(choose("lm/gpt", settings, str(story)), out, quiet=True, **options)
    return rows(out, "warning")


def test_a_run_warns_with_what_to_try(story, tmp_path, overfitting):
    (warning,) = overfitted(story, tmp_path / "run")
    assert warning["step"] == 16
    assert warning["text"] == (
        "the validation loss has risen from 2.0000 at step 4 to 2.3000, while the training loss fell: the model "
        "memorizes its training examples; try more data, more model.dropout (now 0.1), fewer train.steps or a smaller "
        "model.size or model.width"
    )


@pytest.mark.slow
@pytest.mark.parametrize("stop", [3, 10, 15, 18])
def test_a_resumed_run_warns_as_one_that_was_never_stopped(stop, story, tmp_path, overfitting, monkeypatch):
    whole = overfitted(story, tmp_path / "whole")
    step = trainer_module.Trainer._step

    def interrupted(self, work):
        step(self, work)
        if self.at.step == stop:
            self.save(last=False)
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            overfitted(story, tmp_path / "cut")
    resumed = overfitted(story, tmp_path / "cut", resume=True)
    assert [(w["step"], w["text"]) for w in resumed] == [(w["step"], w["text"]) for w in whole]
    watches = [RunFolder(tmp_path / name).checkpoints.latest().state["watch"] for name in ("whole", "cut")]
    assert watches[0] == watches[1]
    assert watches[0]["warned"] == 1


def test_a_warning_is_printed_in_a_line_of_its_own(story, tmp_path, overfitting):
    done = ayn(
        "train", "lm/gpt", "--data", story, "--out", tmp_path / "run", *TINY_LM, "train.steps=20", "train.lr=1e-2"
    )
    assert done.code == 0, done.err
    (line,) = [line for line in done.out.splitlines() if line.startswith("warning:")]
    assert "the validation loss has risen" in line


# A data set that is too small for its model


def cautioned(recipe: str, *settings: str, data: object = None) -> str:
    chosen = choose(recipe, list(settings), data)
    task = catalog.task(chosen.task_kind)(chosen)
    if isinstance(task, Draw):
        task._image_tokenizer = ImageTokenizer(DVAE(DVAEConfig()))
    report = task.prepare(lambda line: None)
    batches = len(task.examples("train").plan(1, 0, chosen.train.batch_tokens))
    return small_data(report, task, task.build_model(), batches)


BUILT_IN = {row.name for row in listing() if row.origin.startswith("built")}
OWN = [name for name in recipe_names() if read_recipe(name).data.name in BUILT_IN]


def test_most_recipes_have_built_in_data():
    assert len(OWN) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("data", sorted({read_recipe(name).data.name for name in OWN}))
def test_no_recipe_warns_on_its_own_data(data):
    """Recipes with the same data share what is made of it."""
    said = {recipe: cautioned(recipe) for recipe in OWN if read_recipe(recipe).data.name == data}
    assert not any(said.values()), said


def texts(many: int) -> list[tuple[str, str]]:
    return [(f"the film number {i} was {'good' if i % 2 else 'bad'}", "yes" if i % 2 else "no") for i in range(many)]


def test_forty_texts_are_few():
    said = cautioned("classify/rnn", data=texts(40))
    assert said == (
        "the training data is small for this model: 36 texts with 216 tokens for 50.2k parameters (embeddings left "
        "out); try more data or a smaller model.size or model.width"
    )


def test_a_large_model_on_little_text_is_told(story):
    """20 parameters per token are the limit."""
    assert cautioned("lm/gpt", "text.kind=char", data=str(story)) == ""
    said = cautioned("lm/gpt", "text.kind=char", "model.size=micro", data=str(story))
    assert "tokens for" in said
    assert said.endswith("try more data or a smaller model.size or model.width")


def test_one_batch_per_epoch_is_told(story):
    said = cautioned("lm/rnn", "train.batch_tokens=100000", data=str(story))
    assert said.startswith("all training data is one batch: try a train.batch_tokens below 100,000")


def test_the_warning_comes_before_the_first_step_and_once(tmp_path):
    data = tmp_path / "few.tsv"
    data.write_text("".join(f"{text}\t{label}\n" for text, label in texts(40)), encoding="utf-8")
    settings = ["--data", data, "--out", tmp_path / "run", *RUNTIME, "model.width=8", "data.valid_part=0.2"]
    done = ayn("train", "classify/rnn", *settings, "train.steps=2", "train.eval_every=1")
    assert done.code == 0, done.err
    assert done.out.count("warning: the training data is small for this model") == 1
    assert [(w["kind"], w["step"]) for w in rows(tmp_path / "run", "warning")] == [("warning", 0)]
    again = ayn("train", "classify/rnn", "--out", tmp_path / "run", "--resume", "train.steps=3")
    assert again.code == 0, again.err
    assert "warning:" not in again.out
    assert len(rows(tmp_path / "run", "warning")) == 1
