"""--init and text.vectors: a run that begins with what another one, or a file, has learned."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from allyouneed.data.vectors import Vectors, write_vectors
from allyouneed.recipe import read_recipe, to_toml
from allyouneed.run import load
from allyouneed.storage.tensorfile import read_header, read_tensors
from allyouneed.storage.wholefile import write_tensors
from commands import Done, ayn, contents, trained
from conftest import TINY_ELMO


@pytest.fixture(scope="module")
def tagged(tmp_path_factory) -> Path:
    """Sentences in which every other word is a name."""
    rows = ["".join(f"{word} {tag}\n" for word, tag in zip(words, itertools.cycle(("O", "B-number"))))
            for words in itertools.permutations(("one", "two", "three", "four", "five"))]  # fmt: skip
    path = tmp_path_factory.mktemp("tagged") / "tagged.conll"
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


def tag(data: Path, out: Path, *more: object) -> Done:
    return ayn("train", "tag/elmo", "--data", data, "--out", out, *TINY_ELMO[5:], *more)


def moved(out: Path, pretrained: Path) -> set[bool]:
    """Whether the tensors of the body are others than they were in the language model."""
    before, after = read_tensors(pretrained / "model.safetensors"), read_tensors(out / "model.safetensors")
    body = {name for name in before if name.startswith("body.")}
    assert body == {name for name in after if name.startswith("body.")} != set()
    return {not torch.equal(before[name], after[name]) for name in body}


def test_a_tagger_takes_over_exactly_the_body(pretrained, tagged, tmp_path):
    done = tag(tagged, tmp_path / "run", "--init", pretrained, "model.freeze=body")
    assert done.code == 0, done.err
    assert re.search(rf"init: loaded the body of {pretrained}, .* values, with width=16, layers=2", done.out)
    assert "init: new: head, reader.lstm, reader.mix; not used: head" in done.out
    assert moved(tmp_path / "run", pretrained) == {False}  # frozen: after eight steps it is what it was
    recipe = read_recipe(str(tmp_path / "run" / "recipe.toml"))
    assert (recipe.model.width, recipe.model.filters, recipe.model.freeze) == (16, 2, "body")
    assert recipe.train.init == str(pretrained)
    assert not (tmp_path / "run" / "tokenizer.json").exists()  # this body reads letters
    assert ayn("use", tmp_path / "run", "one two").code == 0


def test_a_body_goes_on_reading_as_many_letters(story, tagged, tmp_path):
    """No tensor has their number in its shape: only the long words would have other vectors."""
    assert ayn("train", "lm/elmo", "--data", story, "--out", tmp_path / "lm", *TINY_ELMO, "model.letters=6").code == 0
    done = tag(tagged, tmp_path / "run", "--init", tmp_path / "lm")
    assert done.code == 0, done.err
    assert "letters=6" in done.out
    assert load(tmp_path / "run").model.body.words.most == 6


def test_a_body_learns_on_unless_it_is_frozen(pretrained, tagged, tmp_path):
    assert tag(tagged, tmp_path / "run", "--init", pretrained).code == 0
    assert moved(tmp_path / "run", pretrained) == {True}
    assert read_recipe(str(tmp_path / "run" / "recipe.toml")).model.freeze == ""


@pytest.mark.parametrize("recipe", [("classify/elmo",), ("classify/rnn", "model.kind=elmo")])
def test_a_classifier_reads_the_layers_of_a_body(recipe, pretrained, tmp_path):
    lines = [f"{'one two' if i % 2 else 'five six'} {i}\t{i % 2}\n" for i in range(200)]
    (tmp_path / "labels.tsv").write_text("".join(lines), encoding="utf-8")
    done = ayn("train", *recipe, "--data", tmp_path / "labels.tsv", "--init", pretrained, "--out", tmp_path / "run",
               "model.freeze=body", *TINY_ELMO[5:])  # fmt: skip
    assert done.code == 0, done.err
    assert "init: new: head, reader.lstm, reader.mix; not used: head" in done.out
    assert moved(tmp_path / "run", pretrained) == {False}
    assert ayn("use", tmp_path / "run", "one two 3").code == 0


def test_without_init_the_body_learns_from_nothing(tagged, tmp_path):
    done = tag(tagged, tmp_path / "run", *TINY_ELMO[:5])
    assert done.code == 0, done.err
    assert "init: " not in done.out
    first, last = (
        read_tensors(path / "model.safetensors") for path in sorted((tmp_path / "run").glob("checkpoints/*"))
    )
    body = [name for name in first if name.startswith("body.")]
    assert body
    assert not any(torch.equal(first[name], last[name]) for name in body)


def test_the_new_run_needs_the_old_one_no_more(pretrained, tagged, tmp_path):
    donor = shutil.copytree(pretrained, tmp_path / "donor")
    assert tag(tagged, tmp_path / "run", "--init", donor, "model.freeze=body").code == 0
    before = read_tensors(tmp_path / "run" / "model.safetensors")
    shutil.rmtree(donor)
    assert ayn("use", tmp_path / "run", "one two").code == 0
    done = ayn("train", "tag/elmo", "--out", tmp_path / "run", "--resume", "train.steps=12")
    assert done.code == 0, done.err
    after = read_tensors(tmp_path / "run" / "model.safetensors")
    assert torch.equal(before["body.words.project.weight"], after["body.words.project.weight"])
    assert "resumed at step 8 of 12" in done.out
    changed = ayn("train", "tag/elmo", "--out", tmp_path / "run", "--resume", "--init", pretrained)
    assert changed.code == 2
    assert "train.init" in changed.err


def test_an_rnn_brings_its_tokenizer_along(story, tmp_path):
    small = [*TINY_ELMO[4:], "model.width=16", "model.layers=1"]
    other = ["text.kind=word", "text.vocab=500", "model.embedding=8"]
    assert ayn("train", "lm/lstm", "--data", story, "--out", tmp_path / "lm", *small, *other).code == 0
    lines = [f"{'one two' if i % 2 else 'five six'} {i}\t{i % 2}\n" for i in range(200)]
    (tmp_path / "labels.tsv").write_text("".join(lines), encoding="utf-8")
    small.remove("model.context=16")
    done = ayn("train", "classify/rnn", "--data", tmp_path / "labels.tsv", "--init", tmp_path / "lm",
               "--out", tmp_path / "run", *small)  # fmt: skip
    assert done.code == 0, done.err
    body = "width=16, layers=1, cell=lstm, bidirectional=False, embedding=8"  # the recipe's is a GRU
    assert f"values, with {body}" in done.out
    assert load(tmp_path / "run").model.body.embedding.embedding_dim == 8
    assert len({read_recipe(str(tmp_path / run / "recipe.toml")).text for run in ("lm", "run")}) == 1
    names = ("tokenizer.json", "tokenizer.json")
    assert len({(tmp_path / run / name).read_text() for run, name in zip(("lm", "run"), names)}) == 1


def test_a_donor_that_cannot_be_used_is_named(pretrained, tagged, story, tmp_path):
    """Each complaint is one sentence, and the run that was there stays."""
    run = tmp_path / "run"
    assert tag(tagged, run, *TINY_ELMO[:5]).code == 0
    before = (run / "model.safetensors").read_bytes()
    damaged = shutil.copytree(pretrained, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes((damaged / "model.safetensors").read_bytes()[:-5000])
    unfinished = shutil.copytree(pretrained, tmp_path / "unfinished")
    (unfinished / "model.safetensors").unlink()
    broken = shutil.copytree(pretrained, tmp_path / "broken")
    (broken / "recipe.toml").write_text("[model", encoding="utf-8")
    headless = shutil.copytree(pretrained, tmp_path / "headless")
    tensors = read_tensors(headless / "model.safetensors")
    notes = {"run": read_header(headless / "model.safetensors").notes["run"]}
    write_tensors(
        headless / "model.safetensors", {n: t for n, t in tensors.items() if "forward_layers.1" not in n}, notes
    )
    for donor, words in {
        tmp_path / "damagd": ["no run", "did you mean 'damaged'"],
        damaged: ["damaged"],
        unfinished: ["no model yet"],
        broken: ["recipe.toml is damaged"],
        trained("lm", story): ["a run of the model 'gpt'", "'elmo'"],
        headless: ["body.forward_layers.1", "missing"],
        run: ["cannot start from itself"],
    }.items():
        done = tag(tagged, run, "--init", donor, "--overwrite")
        assert done.code == 2, donor
        assert all(word in done.err for word in words), done.err
        assert (run / "model.safetensors").read_bytes() == before, donor
    for override in ("model.width=99", "model.size=small"):
        done = tag(tagged, run, "--init", pretrained, "--overwrite", override)
        assert done.code == 2
        assert "the body of" in done.err
        assert "has 16" in done.err
    done = ayn("train", "wordvectors/skipgram", "--init", pretrained, "--out", tmp_path / "vectors")
    assert done.code == 2
    assert (
        "'word2vec' cannot start from another run; these can: bert, convnet, convseq2seq, dalle, elmo, gpt, seq2seq"
        in done.err
    )


@pytest.mark.slow
def test_for_the_same_task_with_the_same_labels_the_head_comes_along(tagged, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert tag(tagged, first, *TINY_ELMO[:5]).code == 0
    done = tag(tagged, second, "--init", first, "model.reader=8", "train.lr=0", "train.warmup=0")
    assert done.code == 0, done.err
    assert "and its head, reader.lstm, reader.mix," in done.out
    assert "init: new: none; not used: none" in done.out
    before, after = (read_tensors(run / "model.safetensors") for run in (first, second))
    assert all(torch.equal(before[name], after[name]) for name in before)
    other = tagged.parent / "other.conll"
    other.write_text(tagged.read_text().replace("B-number", "B-digit"), encoding="utf-8")
    done = tag(other, tmp_path / "third", "--init", first, "model.reader=8")
    assert done.code == 0, done.err
    assert "init: new: head, reader.lstm, reader.mix; not used: head, reader.lstm, reader.mix" in done.out


def test_a_part_comes_along_whole_or_not_at_all(tagged, tmp_path):
    """The sum of both directions is half as wide as the softmax mix: the LSTM that reads it cannot be taken over."""
    first, second = tmp_path / "first", tmp_path / "second"
    assert tag(tagged, first, *TINY_ELMO[:5], "model.mix=sum").code == 0
    assert load(first).model.reader.lstm.layers[0].weight_ih_l0.shape == (4 * 8, 16)
    done = tag(tagged, second, "--init", first, "model.reader=8", "train.lr=0", "train.warmup=0")
    assert done.code == 0, done.err
    assert "init: new: reader.lstm, reader.mix; not used: reader.lstm" in done.out
    before, after = (read_tensors(run / "model.safetensors") for run in (first, second))
    name = "reader.lstm.layers.0.weight_hh_l0"
    assert before[name].shape == after[name].shape
    assert not torch.equal(before[name], after[name])
    assert torch.equal(before["head.out.weight"], after["head.out.weight"])


def test_word_vectors_of_a_file_and_of_a_run_exclude_each_other(story, tmp_path):
    write_vectors(tmp_path / "v.txt", Vectors(["one"], np.ones((1, 16), np.float32)))
    small = ["--data", story, *TINY_ELMO[4:], "model.width=16", "text.kind=word"]
    assert ayn("train", "lm/lstm", "--out", tmp_path / "first", *small).code == 0
    both = ["--init", tmp_path / "first", f"text.vectors={tmp_path / 'v.txt'}"]
    (tmp_path / "own.toml").write_text(to_toml(read_recipe("lm/lstm", both[2:]).to_dict()), encoding="utf-8")
    for recipe, given in (("lm/lstm", both), (tmp_path / "own.toml", both[:2])):
        done = ayn("train", recipe, "--out", tmp_path / "second", *small, *given)
        assert done.code == 2
        assert "leave out text.vectors or train.init" in done.err


def test_a_run_with_word_vectors_needs_their_file_no_more_and_a_bad_one_replaces_nothing(story, tmp_path):
    write_vectors(tmp_path / "v.txt", Vectors(["one"], np.ones((1, 16), np.float32)))
    small = ["--data", story, *TINY_ELMO[4:], "model.width=16", "text.kind=word", "text.freeze=true"]
    run = ["train", "lm/lstm", "--out", tmp_path / "run", *small]
    assert ayn(*run, f"text.vectors={tmp_path / 'v.txt'}").code == 0
    before = contents(tmp_path / "run")
    for wrong in ("nowhere.txt", story):
        assert ayn(*run, f"text.vectors={wrong}", "--overwrite").code == 2
        assert contents(tmp_path / "run") == before
    (tmp_path / "v.txt").unlink()
    done = ayn("train", "lm/lstm", "--out", tmp_path / "run", "--resume", "train.steps=12")
    assert done.code == 0, done.err
    model = load(tmp_path / "run")
    ids = model.task.tokenizer.encode(" one")
    assert torch.equal(model.model.body.embedding.weight[ids[0]], torch.ones(16))  # frozen then as before
