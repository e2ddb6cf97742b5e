"""Any body reads for any head: classify and tag with every family and every kind of tokenizer, from scratch and from a
language model whose folder is gone before the run goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from allyouneed import catalog
from allyouneed.errors import UserError
from allyouneed.run import Run, load, train
from allyouneed.text import Tokenizer
from allyouneed.training.feed import Step
from allyouneed.training.trainer import Trainer
from conftest import RUNTIME

READERS = ("rnn", "convnet", "gpt", "elmo")
FIRST = ("gpt", *(pytest.param(name, marks=pytest.mark.slow) for name in READERS if name != "gpt"))
KINDS = ("char", "word", "bpe", "wordpiece", "bert")
SMALL = {
    "rnn": ["model.width=16", "model.layers=2"],
    "convnet": ["model.width=16", "model.layers=2", "model.kernel=3"],
    "gpt": ["model.width=16", "model.heads=2", "model.layers=2", "model.context=96"],
    "elmo": ["model.width=16", "model.layers=2", "model.filters=2", "model.reader=8"],
}
HELD = ["data.valid_part=0.2", "data.test_part=0.2"]
STEPS = ["train.steps=6", "train.epochs=0", "train.eval_every=3", "train.warmup=1", "train.batch_tokens=512"]
CLASSIFY = {"rnn": "classify/rnn", "convnet": "classify/conv", "gpt": "classify/gpt", "elmo": "classify/elmo"}
DONOR = {reader: ["text.kind=word"] if reader == "elmo" else ["text.kind=bpe", "text.vocab=300"] for reader in READERS}
LM = {"rnn": "lm/lstm", "convnet": "lm/conv", "gpt": "lm/gpt", "elmo": "lm/elmo"}


def settings(kind: str, *more: str) -> list[str]:
    return [*RUNTIME, *SMALL[kind], *STEPS, *more]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("names") / "names.conll"
    people = ("Ada", "Mrs Berg", "O'Neill", "Tom", "Mary Ann", "Leo")
    places = ("London", "New York", "Baden-Baden", "Rome", "the Hague")
    sentences = []
    for who in people:
        for where in places:
            rows = [("I", "O"), ("think", "O")]
            rows += [(word, f"{'I' if i else 'B'}-person") for i, word in enumerate(who.split())]
            rows += [("lives", "O"), ("in", "O")]
            rows += [(word, f"{'I' if i else 'B'}-place") for i, word in enumerate(where.split())]
            sentences.append("\n".join(f"{word}\t{tag}" for word, tag in [*rows, (".", "O")]))
    path.write_text("\n\n".join(sentences) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def donors(story: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Run]:
    """A small language model of each family, trained when first asked for."""

    @cache
    def trained(reader: str) -> Run:
        out = tmp_path_factory.mktemp("donor") / reader
        return train(LM[reader], *settings(reader, *DONOR[reader]), data=story, out=out, quiet=True)

    return trained


def kinds(reader: str) -> tuple[str, ...]:
    """A body that reads letters has no tokenizer."""
    return ("none",) if catalog.model(reader).BodyClass.spelled else KINDS


COMBINATIONS = [(reader, kind) for reader in READERS for kind in kinds(reader)]


def text(kind: str) -> list[str]:
    return [] if kind == "none" else [f"text.kind={kind}", "text.vocab=400"]


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "kind"), COMBINATIONS)
def test_classify_runs_with_every_reader_and_tokenizer(reader, kind, reviews, tmp_path, monkeypatch):
    made = settings(reader, *text(kind), *HELD)
    run = train(CLASSIFY[reader], *made, data=reviews, out=tmp_path / "run", quiet=True)
    assert run.predict("the film was fine, really fine") in ("good", "bad")
    names = {"accuracy", "macro-F1", "majority baseline", "linear baseline"}
    assert {score.name for score in run.scores()["test"]} == names
    assert all(name.startswith(("body.", "reader.", "head.")) for name, _ in run.model.named_parameters())
    (answer,) = run.answers(["the film was fine"])
    assert sum(answer.details["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    if reader == "gpt":
        asked: list[str] = []
        encode = Tokenizer.encode
        monkeypatch.setattr(Tokenizer, "encode", lambda own, text: (asked.append(text), encode(own, text))[1])
        looked = run.attention("the film was fine")
        assert [text.strip() for text in asked] == ["the film was fine"]  # tokenized once
        assert len(looked) == run.recipe.model.layers
        assert all(one.weights.shape[1:] == (len(one.target), len(one.source)) for one in looked.values())
    else:
        with pytest.raises(UserError, match="no attention"):
            run.attention("the film was fine")


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "kind"), COMBINATIONS)
def test_tag_runs_with_every_reader_and_tokenizer(reader, kind, names, tmp_path):
    made = settings(reader, f"model.kind={reader}", *text(kind), *HELD)
    run = train("tag/lstm", *made, data=names, out=tmp_path / "run", quiet=True)
    sentence = "Yesterday Mrs O'Neill left Baden-Baden for London, didn't she?"
    (answer,) = run.answers([sentence])
    assert len(answer.details["tags"]) == len(answer.details["words"])
    assert all(sentence[e["start"] : e["end"]] == e["text"] for e in answer.details["entities"])
    assert len(run.table(sentence)) == len(answer.details["words"])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "tag", "lm"])
@pytest.mark.parametrize("reader", FIRST)
def test_a_run_starts_from_a_language_model_and_never_needs_it_again(
    reader, task, reviews, names, story, donors, tmp_path
):
    donor = donors(reader)
    shutil.copytree(donor.folder.path, tmp_path / "donor")
    before = {name: t.clone() for name, t in donor.model.state_dict().items()}
    recipe, data = {
        "classify": (CLASSIFY[reader], reviews),
        "tag": ("tag/lstm", names),
        "lm": (LM[reader], story),
    }[task]
    made = [*RUNTIME, *STEPS, f"model.kind={reader}", f"train.init={tmp_path / 'donor'}", "train.lr=0"]
    run = train(recipe, *made, *HELD, data=data, out=tmp_path / "run", quiet=True)
    body = {name: t for name, t in run.model.state_dict().items() if name.startswith("body.")}
    assert body
    for name, t in body.items():
        assert torch.equal(t, before[name]), name
    if task == "lm":
        assert torch.equal(run.model.head.out.weight, donor.model.head.out.weight)
    shutil.rmtree(tmp_path / "donor")
    again = train(recipe, *made, "train.steps=8", data=data, out=tmp_path / "run", resume=True, quiet=True)
    asked = "one two three" if task == "lm" else "Ada left London"
    assert again.predict(asked, **({"max_new": 3} if task == "lm" else {}))
    assert load(tmp_path / "run").info()["parameters"]["total"] == sum(p.numel() for p in again.model.parameters())


def test_a_run_killed_before_its_first_evaluation_does_not_need_it_either(reviews, donors, tmp_path, monkeypatch):
    shutil.copytree(donors("gpt").folder.path, tmp_path / "donor")
    step = Trainer._step

    def killed(self: Trainer, work: Step) -> None:
        if self.at.step == 2:
            raise RuntimeError("killed")
        step(self, work)

    made = [*RUNTIME, *STEPS, f"train.init={tmp_path / 'donor'}", *HELD]
    whole = train("classify/gpt", *made, data=reviews, out=tmp_path / "whole", quiet=True)
    monkeypatch.setattr(Trainer, "_step", killed)
    with pytest.raises(RuntimeError, match="killed"):
        train("classify/gpt", *made, data=reviews, out=tmp_path / "run", quiet=True)
    monkeypatch.setattr(Trainer, "_step", step)
    shutil.rmtree(tmp_path / "donor")
    run = train("classify/gpt", *made, data=reviews, out=tmp_path / "run", resume=True, quiet=True)
    for name, t in whole.model.state_dict().items():
        assert torch.equal(t, run.model.state_dict()[name]), name
    assert 0 not in run.folder.checkpoints.steps()
    with pytest.raises(UserError, match=r"there is no run folder .*donor"):
        train("classify/gpt", *made, data=reviews, out=tmp_path / "another", quiet=True)


@pytest.mark.parametrize("reader", FIRST)
def test_the_whole_body_learns_unless_it_is_frozen(reader, reviews, donors, tmp_path):
    donor = donors(reader)
    made = [*RUNTIME, *STEPS, f"train.init={donor.folder.path}", *HELD]

    def moved(*more: str) -> set[str]:
        run = train(CLASSIFY[reader], *made, *more, data=reviews, out=tmp_path / "run", overwrite=True, quiet=True)
        old = donor.model.state_dict()
        return {n for n, t in run.model.state_dict().items() if n.startswith("body.") and not torch.equal(t, old[n])}

    every, some = moved(), moved("model.freeze=1")
    assert {n for n, p in donor.model.named_parameters() if n.startswith("body.") and p.dim() > 1} <= every
    lowest = {id(p) for stage in donor.model.body.stages()[:2] for module in stage for p in module.parameters()}
    names = {n for n, p in donor.model.named_parameters() if n.startswith("body.") and id(p) in lowest}
    assert some == every - names
    assert some
    assert names
    assert not moved("model.freeze=body")
    with pytest.raises(UserError, match="the body has 2 layers"):
        moved("model.freeze=3")


def test_a_frozen_body_needs_a_run_to_start_from(reviews, tmp_path):
    with pytest.raises(UserError, match="has learned nothing"):
        train("classify/gpt", "model.freeze=body", data=reviews, out=tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match="neither body nor a number"):
        train("classify/gpt", "model.freeze=head", data=reviews, out=tmp_path / "run", quiet=True)


@pytest.mark.parametrize("reader", ["gpt", "convnet"])
def test_the_limit_comes_from_the_body(reader, reviews, tmp_path):
    """Learned positions end: longer texts are cut, and an answer says how much was not read."""
    recipe = CLASSIFY[reader]
    made = settings(reader, "model.positions=learned", "text.kind=word", *HELD)
    run = train(recipe, *made, "model.context=4", data=reviews, out=tmp_path / "run", quiet=True)
    assert run.model.limit == 4
    assert run.predict("the film was fine") in ("good", "bad")
    (answer,) = run.answers(["the film was fine, really fine"])
    assert answer.details["unread"] == 3
    assert answer.shown.endswith("%  (3 of 7 tokens were not read)")
    assert answer.text == run.predict("the film was fine")  # which is what is read of it
