"""The task wordvectors: runs that repeat themselves, files that gensim opens, sums of words, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from allyouneed.data.builtin.family import couples, questions
from allyouneed.data.vectors import Vectors, read_vectors, write_vectors
from allyouneed.errors import UserError
from allyouneed.recipe import read_recipe
from allyouneed.run import Run, load, train
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import write_tensors
from allyouneed.tasks import wordvectors
from allyouneed.tasks.wordvectors import WordVectors
from allyouneed.training.interrupt import Interrupted
from allyouneed.training.trainer import Trainer
from commands import ayn, mistake

TINY = ["train.threads=1", "train.device=cpu", "train.epochs=0", "train.batch_tokens=1000", "model.width=8"]
EIGHT = [*TINY, "train.steps=8", "train.eval_every=4", "text.min_count=1"]


pytestmark = pytest.mark.usefixtures("one_thread")


def stopped(
    story: Path, out: Path, monkeypatch: pytest.MonkeyPatch, name: str = "wordvectors/skipgram", *settings: str
) -> RunFolder:
    """A run that was interrupted at step 5 of 8."""
    step = Trainer._step

    def stops(self, work):
        if self.at.step == 5:
            raise Interrupted(2, 5)
        step(self, work)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_step", stops)
        with pytest.raises(Interrupted):
            train(name, *EIGHT, *settings, data=str(story), out=out, quiet=True)
    return RunFolder(out)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["negative", "softmax"])
@pytest.mark.parametrize("name", ["wordvectors/skipgram", "wordvectors/cbow"])
def test_resumed_is_uninterrupted_bit_for_bit(name, loss, story, tmp_path, monkeypatch):
    settings = [*EIGHT, f"model.loss={loss}"]
    train(name, *settings, data=str(story), out=tmp_path / "whole", quiet=True)
    stopped(story, tmp_path / "stopped", monkeypatch, name, f"model.loss={loss}")
    train(name, data=str(story), out=tmp_path / "stopped", resume=True, quiet=True)
    whole, resumed = (load(tmp_path / part).model.state_dict() for part in ("whole", "stopped"))
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)
    again = train(name, *settings, "train.seed=2", data=str(story), out=tmp_path / "other", quiet=True)
    assert not torch.equal(again.model.inputs.weight, whole["inputs.weight"])


FAR = torch.tensor([[0, 2**31 - 1]] * 3, dtype=torch.int32)  # aliases that point far outside the vectors


@pytest.mark.parametrize(
    ("name", "damage", "sentence"),
    [
        ("counts", lambda t: -1 - t, "the model file is damaged (counts must be"),
        ("counts", lambda t: t - 2**62, "the model file is damaged (counts must be"),
        ("counts", torch.zeros_like, "the model file is damaged (counts must be"),
        ("counts", lambda t: t[:-1], "model.safetensors does not fit the model"),
        ("inputs.weight", lambda t: t[:, :-1], "model.safetensors does not fit the model"),
        ("table", lambda t: FAR, "model.safetensors does not fit the model"),
    ],
)
def test_a_damaged_model_is_a_sentence_at_load_and_at_resume(name, damage, sentence, story, tmp_path, monkeypatch):
    folder = stopped(story, tmp_path / "run", monkeypatch)
    checkpoint = folder.checkpoints.latest()
    tensors = checkpoint.model()
    bad = tensors | {name: damage(tensors.get(name)).contiguous()}
    write_tensors(folder.model, bad, {"run": folder.identity()})
    assert sentence in mistake("use", folder.path, "one")
    folder.checkpoints.save(checkpoint.step, bad, checkpoint.train(), checkpoint.state)
    assert sentence in mistake("train", "wordvectors/skipgram", "--data", story, "--out", folder.path, "--resume")


def test_damaged_tokens_are_made_again(story, tmp_path, monkeypatch):
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "cache"))
    asked = ["train", "wordvectors/skipgram", "--data", story, *TINY, "train.steps=1", "text.min_count=1", "--out"]
    assert ayn(*asked, tmp_path / "first").code == 0
    (file,) = (tmp_path / "cache" / "tokens").glob("train-text-*")
    whole = file.read_bytes()
    file.write_bytes(b"\xff\xff" + whole[2:])
    assert ayn(*asked, tmp_path / "second").code == 0
    assert file.read_bytes() == whole
    first, second = (load(tmp_path / name).model.state_dict() for name in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_without_a_compiler_it_learns_the_slow_way_and_says_so(story, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "cache"))
    settings = [*TINY, "train.steps=60", "train.lr=0.1", "text.min_count=1"]
    train("wordvectors/skipgram", *settings, data=str(story), out=tmp_path / "run")
    assert "without the compiled kernel, which is slower: there is no C compiler" in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert losses[-1] < losses[0]


def task(*settings: str) -> WordVectors:
    return WordVectors(read_recipe("wordvectors/skipgram", [*TINY, "train.steps=1", *settings]))


def test_what_cannot_be_trained_is_refused_at_once(monkeypatch, story):
    with pytest.raises(UserError, match=r"no word is left: none occurs text\.min_count = 1000000 times"):
        task("text.min_count=1000000").prepare(lambda line: None)
    with pytest.raises(UserError, match=r"text\.kind must be terms, not char"):
        task("text.kind=char").prepare(lambda line: None)
    for method in ("skipgram", "cbow"):
        with pytest.raises(UserError, match=r"model\.width = 3000000 is too large; the largest is 10,000"):
            task(f"model.method={method}", "model.width=3000000")
    with monkeypatch.context() as patch:
        patch.setattr(wordvectors, "available", lambda device: 1000)
        with pytest.raises(UserError, match=r"the vectors need .*, and 1000 B are free: raise text\.min_count"):
            task().prepare(lambda line: None)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="one process"):
        task().check()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The recipe as it is."""
    out = tmp_path_factory.mktemp("runs") / "skipgram"
    return train("wordvectors/skipgram", "train.threads=1", "train.device=cpu", out=out, quiet=True)


def test_the_recipe_finds_the_woman_of_the_man(run):
    assert run.predict("man + aunt - uncle") == "woman"
    assert run.predict("king + woman − man") == "queen"
    (printed,) = run.answers(["man + uncle - aunt"])  # as Chapter 08 has it: away from her
    assert "woman" not in [one.text for one in (printed, *printed.others)]
    assert {score.name: score.value for score in run.scores()["test"]}["analogies"] >= 90
    assert (run.folder.path / "words.png").is_file()


def test_cbow_finds_her_too(tmp_path):
    run = train("wordvectors/cbow", "train.threads=1", "train.device=cpu", out=tmp_path / "run", quiet=True)
    assert run.predict("man + aunt - uncle") == "woman"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wordvectors/skipgram", "wordvectors/cbow"])
def test_the_full_softmax_learns_with_the_settings_of_the_recipe(name, tmp_path):
    settings = ["model.loss=softmax", "train.threads=1", "train.device=cpu", "train.epochs=8"]
    run = train(name, *settings, out=tmp_path / "run", quiet=True)
    assert {score.name: score.value for score in run.scores()["test"]}["analogies"] >= 90


def test_an_optimizer_that_is_not_used_is_told(story, tmp_path):
    asked = ["train", "wordvectors/cbow", "--data", story, *TINY, "train.steps=1", "text.min_count=1"]
    done = ayn(*asked, "train.optimizer=adamw", "--out", tmp_path / "run")
    assert "plain SGD: train.optimizer = adamw is ignored" in done.out


def test_answers_are_the_nearest_words_with_their_cosines(run):
    (answer,) = run.answers(["king"])
    vectors = F.normalize(run.model.inputs.weight.detach())
    king = run.task.tokenizer.encode("king")[0]
    for one in (answer, *answer.others):
        cosine = float(vectors[king] @ vectors[one.tokens[0]])
        assert one.score == pytest.approx(cosine, abs=1e-5)
    found = [one.score for one in (answer, *answer.others)]
    assert len(found) == 10
    assert found == sorted(found, reverse=True)
    assert "king" not in [one.text for one in answer.others]
    assert run.table("king aunt")[1].token == "aunt"


def test_the_commands_answer_and_complain(run):
    folder = run.folder.path
    shown = ayn("use", folder, "man + aunt - uncle")
    assert shown.out.splitlines()[0].split()[1] == "woman"
    (line,) = ayn("use", folder, "king", "--json").out.splitlines()
    assert len(json.loads(line)["nearest"]) == 10
    unknown = ayn("use", folder, "man + ant - uncle")
    assert unknown.code == 2
    assert "'ant' is not among the" in unknown.err
    assert "aunt" in unknown.err
    both = ayn("use", folder, "man + ant - unkle").err
    assert "'ant' is not among the" in both
    assert "'unkle' is not among the" in both
    for bad in ("man + - aunt", "man +", "+", "!!"):
        assert ayn("use", folder, bad).code == 2
    assert "its sum is zero" in ayn("use", folder, "man - man").err
    for equation in ("woman = man + aunt - uncle", "woman=man + aunt - uncle", "= man + aunt - uncle"):
        assert mistake("use", folder, equation) == "leave out '=' and what is left of it: man + aunt - uncle"
    assert "what is right of it: man + aunt - uncle" in mistake("use", folder, "man + aunt - uncle = woman")


def test_info_counts_neither_gradients_nor_an_optimizer(run):
    info = run.info()
    assert info["memory"]["training"] == info["memory"]["weights"] == 4 * info["parameters"]["total"]


def test_the_built_in_questions_are_the_couples():
    assert len(questions()) == len(couples()) * (len(couples()) - 1)
    assert ("uncle", "aunt", "man", "woman") in questions()


def test_vectors_are_kept_in_the_format_asked_for(tmp_path):
    for binary, name in (("true", "vectors.bin"), ("false", "vectors.txt")):
        run = train("wordvectors/skipgram", *TINY, "train.steps=2", f"task.binary={binary}", out=tmp_path / name)
        kept, made = read_vectors(tmp_path / name / name), run.predictor.vectors()
        assert kept.words == made.words
        assert (kept.matrix == made.matrix).all()


def test_what_was_asked_is_no_answer(tmp_path):
    run = train("wordvectors/skipgram", *TINY, "train.steps=2", out=tmp_path / "run")
    with torch.no_grad():
        run.model.inputs.weight.fill_(1.0)  # now every word is as near as every other, those given among them
    for asked in ("king", "man + aunt - uncle"):
        (answer,) = run.answers([asked])
        assert not {answer.text, *(other.text for other in answer.others)} & set(asked.split())


def test_what_is_not_asked_is_told(run):
    said = ayn("test", run.folder.path).out
    assert "left out: the public analogies and WordSim-353, because they need 2,000 words, and this run has 226" in said
    assert "questions:family" in said


@pytest.mark.slow
def test_own_questions_are_asked_whatever_the_vocabulary(run, tmp_path, monkeypatch):
    analogies = tmp_path / "mine.txt"
    analogies.write_text(
        "# mine\n: royal\nMan woman king queen\nman woman nobody queen\n\n: rest\nuncle aunt man woman\n"
    )
    said = ayn("test", run.folder.path, f"task.questions={analogies}").out
    (line,) = (line for line in said.splitlines() if "questions:mine.txt" in line)
    assert line.startswith("analogies 100.00")
    assert "known:2of3" in line
    for name, between in (("p.tsv", "\t"), ("p.csv", ", "), ("p.txt", "  ")):
        rows = (("king", "queen", "9"), ("king", "prince", "7.5"), ("king", "aunt", "1"))
        (tmp_path / name).write_text("# mine\n" + "".join(between.join(row) + "\n" for row in rows))
        monkeypatch.chdir(tmp_path)
        said = ayn("test", run.folder.path, f"task.questions={name}").out
        (line,) = (line for line in said.splitlines() if f"pairs:{name}" in line)
        assert line.startswith("similarity ")
        assert "known:3of3" in line
    (tmp_path / "strange.txt").write_text("a b c d\n")
    assert "give your own with task.questions=FILE" in mistake("test", run.folder.path, "--data", "strange.txt")
    said = ayn("test", run.folder.path, "task.questions=strange.txt").out
    assert "left out: strange.txt, because this run knows the words of too few of its questions" in said


@pytest.mark.slow
def test_own_questions_are_asked_at_the_end_of_training(tmp_path, monkeypatch):
    (tmp_path / "mine.txt").write_text("man woman king queen\n")
    monkeypatch.chdir(tmp_path)
    asked = ["wordvectors/skipgram", *TINY, "train.steps=2", "task.questions=mine.txt"]
    done = ayn("train", *asked, "--out", "run")
    assert "questions:mine.txt" in done.out
    monkeypatch.chdir("/")
    assert "questions:mine.txt" in ayn("test", tmp_path / "run").out
    (tmp_path / "mine.txt").write_text("man woman king\n")
    assert "mine.txt, line 1: four words, or two words and a number, are expected" in mistake("test", tmp_path / "run")
    assert "questions:mine.txt" not in ayn("test", tmp_path / "run", "task.questions=").out


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("man woman king queen\nman woman king\n", "line 2: four words are expected, there are 3"),
        (": one\n\nman woman king queen prince\n", "line 3: four words are expected, there are 5"),
        ("king,queen,9\nking,prince\n", "line 2: two words and a number are expected"),
        ("king queen 9\nking prince much\n", "line 2: two words and a number are expected"),
        ("king queen 9\nking prince nan\n", "line 2: two words and a number are expected"),
        ("# mine\nking queen\n", "line 2: four words, or two words and a number, are expected"),
        (": one\n", "has no question"),
        ("", "has no question"),
    ],
)
def test_a_bad_line_of_own_questions_is_named_before_training(content, complaint, tmp_path):
    (tmp_path / "q").write_text(content)
    asked = ["train", "wordvectors/skipgram", *TINY, "train.steps=2", "--out", tmp_path / "run"]
    assert complaint in mistake(*asked, f"task.questions={tmp_path / 'q'}")
    assert not (tmp_path / "run").exists()
    assert "there is no file" in mistake(*asked, f"task.questions={tmp_path / 'nothing'}")


@pytest.mark.parametrize("setting", ["train.layer_decay=0.5", "text.vectors=v.txt"])
def test_what_only_models_with_layers_can_do_is_refused(setting, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_vectors(tmp_path / "v.txt", Vectors(["man"], np.ones((1, 50), np.float32)))
    said = mistake("train", "wordvectors/skipgram", "--out", tmp_path / "run", "train.steps=2", setting)
    assert ("no layers" if "decay" in setting else "no token embeddings") in said
