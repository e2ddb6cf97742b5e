"""tag: names in a text with their exact places, any scheme of tags, scores that equal seqeval's, and bad files."""

from __future__ import annotations

import json
import random
import re
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import seqeval.metrics
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allyouneed.batch import IGNORE
from allyouneed.data.examples import inputs
from allyouneed.data.formats.conll import spans, tagged
from allyouneed.errors import UserError
from allyouneed.metrics import Score, entity_scores
from allyouneed.nn.spelling import spell
from allyouneed.predict.labels import mark
from allyouneed.run import Run, load, train
from allyouneed.tasks.tag import Tag
from commands import ayn, reseal
from conftest import RUNTIME

TINY = [
    *RUNTIME, "model.width=16", "train.steps=130", "train.eval_every=130", "train.batch_tokens=256", "train.lr=1e-2",
    "train.warmup=5", "task.unknown=0.2",
]  # fmt: skip
SHORT = [*TINY, "train.steps=2", "train.eval_every=2"]
Sentence = tuple[list[str], list[str]]


def sentences(count: int, seed: int = 0) -> list[Sentence]:
    """A name after "Mr" is a person, after "in" a place; some have two words, and two places touch."""
    chance, made = random.Random(seed), []
    for _ in range(count):
        names = [chance.choice(["Lee", "Ray", "Ann", "Bo"]) for _ in range(6)]
        second = chance.random() < 0.5
        words = ["Mr", *names[: 1 + second], "ran", "in", *names[2:4], chance.choice([".", "!"])]
        tags = ["O", "B-person", *["I-person"] * second, "O", "O", "B-place", "B-place", "O"]
        made.append((words, tags))
    return made


def write(path: Path, rows: list[Sentence], scheme: str = "IOB2") -> Path:
    blocks = []
    for words, tags in rows:
        there = tagged(spans(tags), len(words), scheme)
        blocks.append("".join(f"{word}\tx\t{tag}\n" for word, tag in zip(words, there)))
    path.write_text("\n".join(blocks), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("tag")
    write(made / "my.conll", sentences(400))
    return made


@pytest.fixture(scope="module")
def run(folder) -> Run:
    return train("tag/lstm", *TINY, data=folder / "my.conll", out=folder / "run", quiet=True)


def test_it_learns_what_the_neighbours_say(run):
    scores = {score.name: score for score in run.test("test")}
    assert scores["F1"].value > 95
    assert {"F1", "precision", "recall", "F1 person", "recall place"} <= set(scores)
    assert "split:test" in scores["F1"].signature
    assert run.predict("Mr Ray Lee ran in Ann Bo.") == "Mr [Ray Lee person] ran in [Ann place] [Bo place]."
    assert run.predict("Mr Zorn ran in Ann Bo.").startswith("Mr [Zorn person] ran")  # a name it never saw


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 30])
def test_the_scores_equal_seqeval(folder, steps):
    """Of a model that has hardly learned, so that its tags are wild."""
    out = folder / f"wild {steps}"
    made = train("tag/lstm", *SHORT, f"train.steps={steps}", data=folder / "my.conll", out=out, quiet=True)
    truth = [list(example.tags) for example in made.task.data.splits["test"]]
    texts = [inputs(example)[0] for example in made.task.data.splits["test"]]
    guesses = [answer.details["tags"] for answer in made.answers(texts)]
    scores = {score.name: score.value for score in made.test("test")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert scores["F1"] == pytest.approx(100 * seqeval.metrics.f1_score(truth, guesses), abs=1e-9)
        assert scores["precision"] == pytest.approx(100 * seqeval.metrics.precision_score(truth, guesses), abs=1e-9)
        report = seqeval.metrics.classification_report(truth, guesses, output_dict=True, zero_division=0)
    assert scores["recall place"] == pytest.approx(100 * report["place"]["recall"], abs=1e-9)


def test_the_best_weights_are_those_of_the_best_f1_on_the_validation_split(folder, monkeypatch):
    values = iter([20.0, 70.0, 70.0, 50.0, 60.0])  # the loss falls all the time; the last is that of the test split
    kept = iter([1, 2, 3, 4])
    weights = {}

    def test(task, model, split, decode, say, budget=None):
        if split == "valid":
            assert not model.training
            weights[next(kept)] = model.head.out.weight.clone()
        return [Score("recall", 99.0, ""), Score("F1", next(values), "")]

    monkeypatch.setattr(Tag, "test", test)
    settings = [*TINY, "train.steps=40", "train.eval_every=10"]
    made = train("tag/lstm", *settings, data=folder / "my.conll", out=folder / "chosen", quiet=True)
    lines = [json.loads(line) for line in (folder / "chosen" / "metrics.jsonl").read_text().splitlines()]
    valid = [line for line in lines if line["kind"] == "valid"]
    assert [line["F1"] for line in valid] == [20.0, 70.0, 70.0, 50.0]
    assert min(valid, key=lambda line: line["loss"])["step"] == 40
    assert made.folder.made_at() == "step:30"  # as good as step 20, with a lower loss
    assert torch.equal(made.model.head.out.weight, weights[3])


def test_texts_together_get_what_each_gets_alone(run):
    texts = ["Mr Lee ran", "Mr Ann Ray ran in Bo Bo . and in Lee Ray !", "in Zed"]
    together = run.predictor.label_probabilities([run.predictor.read(text, run.decode()) for text in texts])
    for text, p in zip(texts, together):
        (alone,) = run.predictor.label_probabilities([run.predictor.read(text, run.decode())])
        torch.testing.assert_close(p, alone, atol=1e-6, rtol=1e-5)
    assert run.predict(texts) == [run.predict(text) for text in texts]


names = st.sampled_from(
    ["Mr", "Lee", "Ray", "ran", "in", "Bo", "é", "e\u0301", "🇮🇹", "日本", "\u200d", "\u00a0", " ", "\t", "[", "]", ","]
)


@given(st.lists(names, max_size=14).map("".join))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_offsets_are_exact_in_any_text(run, text):
    text = f"Mr Lee {text} in Bo"
    (answer,) = run.answers([text])
    found = answer.details["entities"]
    for entity in found:
        assert text[entity["start"] : entity["end"]] == entity["text"] == entity["text"].strip()
        assert entity["type"] in ("person", "place")
    assert all(before["end"] <= after["start"] for before, after in pairwise(found))
    assert answer.text == answer.details["text"] == mark(text, found)
    plain = answer.text
    for entity in reversed(found):  # taking the marks away again gives the text
        marked = f"[{entity['text']} {entity['type']}]"
        at = plain.rindex(marked)
        plain = plain[:at] + entity["text"] + plain[at + len(marked) :]
    assert plain == text
    words, tags = answer.details["words"], answer.details["tags"]
    assert len(words) == len(tags)
    assert [entity["type"] for entity in found] == [span.kind for span in spans(tags)]


def test_a_text_of_unknown_words_gets_an_answer_and_ends_no_batch(run):
    texts = ["Mr Ray ran", "qwerty asdf", "Mr Bo ran"]
    assert all(id == run.task.tokenizer.unk for id in run.predictor.read(texts[1], run.decode()).tokens[0])
    found = list(run.answers(texts))
    assert [answer.text for answer in found] == [run.predict(text) for text in texts]
    assert found[1].details["words"] == ["qwerty", "asdf"]
    assert len(run.table(texts[1])) == 2
    assert [text for text in run.predict(texts) if "person" in text] == ["Mr [Ray person] ran", "Mr [Bo person] ran"]


def test_words_may_be_given_and_are_not_cut_again(run):
    words = ["Mr", "Lee-Ray's", "ran", "in", "New York", "U.S.", "!"]
    first, second = run.answers([words, "Mr Bo ran"])
    assert first.details["words"] == [*words[:4], "New\N{NO-BREAK SPACE}York", *words[5:]]
    assert len(first.details["tags"]) == len(words)
    assert first.details["entities"][0] == {"type": "person", "text": "Lee-Ray's", "start": 3, "end": 12}
    assert run.predict([tuple(words), "Mr Bo ran"]) == [first.text, second.text]
    assert [guess.token for guess in run.table(words)] == first.details["words"]
    with pytest.raises(UserError, match="the text is an empty list: give its words"):
        run.predict([words, []])
    lines = list(run.answer_lines([words, [], ["Mr", " "], "Mr Bo ran"]))
    assert [line.answer.text if line.answer else str(line.error)[:20] for line in lines] == [
        first.text,
        "the text is an empty",
        "' ' is not a word: a",
        second.text,
    ]


def test_only_a_tagger_takes_words(lm):
    with pytest.raises(UserError, match="a run of the task 'lm' reads a text as one string, not as its words"):
        load(lm).predict([["one", "two"]])


def test_how_words_are_cut_is_kept_with_the_run(tmp_path):
    words = ["is", "n't", "in", "the", "U.S.", "."]
    rows = [(["Mr.", f"Berg{i}", *words], ["O", "B-x", *["O"] * len(words)]) for i in range(100)]
    made = train("tag/lstm", *SHORT, data=write(tmp_path / "my.conll", rows), out=tmp_path / "run", quiet=True)
    text = "Mr. Berg didn't leave the U.S., Zed."
    expected = ["Mr.", "Berg", "did", "n't", "leave", "the", "U.S.", ",", "Zed", "."]
    assert made.answers([text])[0].details["words"] == expected
    again = load(tmp_path / "run")
    assert again.answers([text])[0].details["words"] == expected
    assert "data" not in vars(again.task)
    kept = json.loads((tmp_path / "run" / "labels.json").read_text())
    assert kept["words"]["whole"] == ["Mr.", "U.S."]
    for words in (3, [], {}, {**kept["words"], "whole": [3]}, {**kept["words"], "whole": "U.S."}):
        (tmp_path / "run" / "labels.json").write_text(json.dumps({**kept, "words": words}))
        reseal(tmp_path / "run")
        done = ayn("use", tmp_path / "run", text)
        assert (done.code, "labels.json is damaged" in done.err) == (2, True), done


def test_the_scores_are_told_in_a_few_lines(run):
    done = ayn("test", run.folder.path)
    assert done.code == 0, done.err
    start, *table = done.out.splitlines()[-4:]
    value = r"\d+\.\d\d \[\d+\.\d, \d+\.\d\]"
    assert re.fullmatch(rf"F1 {value}  precision \d+\.\d\d  recall \d+\.\d\d +\(entities\|.*\)", start)
    kept = {score.name: score for score in run.scores()["test"]}
    assert len(kept) == 9
    assert kept["F1"].signature in start
    assert table[0].split() == ["type", "F1", "precision", "recall", "count"]
    for row, kind in zip(table[1:], ("person", "place")):
        values = [f"{kept[f'{measure} {kind}'].value:.2f}" for measure in ("F1", "precision", "recall")]
        values[1:1] = kept[f"F1 {kind}"].interval.split()
        count = re.search(r"true:(\d+)", kept[f"F1 {kind}"].signature)
        assert row.split() == [kind, *values, count[1]]
    told = ayn("info", run.folder.path).out
    assert told.count("entities|") == 1
    assert all(line.split()[0] in told for line in table)


@pytest.mark.slow
def test_use_has_the_score_of_the_test(mirror, tmp_path):
    """On words that the training has not seen, as one string and one by one; hardly trained, so that tags are wild."""
    data = mirror / "wnut17"
    settings = [*RUNTIME, "data.follow=false", "train.steps=2", "train.eval_every=2", "train.schedule=constant"]
    made = train(
        "tag/lstm", *settings, f"data.test_path={data / 'test.conll'}", data=data / "train.conll", out=tmp_path / "run"
    )
    rows = list(made.task.data.splits["test"])
    truth = [spans(row.tags) for row in rows]
    tested = [(score.name, score.value) for score in made.test()]
    assert tested[0][1] > 0
    for texts in ([" ".join(row.words) for row in rows], [row.words for row in rows]):
        found = list(made.answers(texts))
        assert [answer.details["words"] for answer in found] == [list(row.words) for row in rows]
        guesses = [spans(answer.details["tags"]) for answer in found]
        assert sum(map(len, guesses)) > 1000
        assert [(score.name, score.value) for score in entity_scores(truth, guesses)] == tested


def test_marked_text():
    text = "Ada Lovelace went to London"
    named = [
        {"type": "person", "text": "Ada Lovelace", "start": 0, "end": 12},
        {"type": "place", "text": "London", "start": 21, "end": 27},
    ]
    assert mark(text, named) == "[Ada Lovelace person] went to [London place]"
    assert mark(text, []) == text


def test_the_commands(run):
    path, text = run.folder.path, "Mr  Ray Lee ran in Ann Bo!"
    assert ayn("use", path, text).out == "Mr  [Ray Lee person] ran in [Ann place] [Bo place]!\n"
    told = json.loads(ayn("use", path, text, "--json").out)
    assert told["entities"][0] == {"type": "person", "text": "Ray Lee", "start": 4, "end": 11}
    assert told["tags"] == ["O", "B-person", "I-person", "O", "O", "B-place", "B-place", "O"]
    lines = list(run.answer_lines([text, "", "qwerty asdf", "Mr Bo ran"]))
    assert [line.answer.text for line in lines if line.answer] == [
        "Mr  [Ray Lee person] ran in [Ann place] [Bo place]!",
        run.predict("qwerty asdf"),
        "Mr [Bo person] ran",
    ]
    table = ayn("use", path, "Mr Ray ran", "--table").out.splitlines()
    assert "likely tags" in table[0]
    assert table[2].split()[3] == "B-person"
    assert (done := ayn("use", path, " ")).code == 2
    assert "the text is empty" in done.err
    assert ayn("use", path, text, "--alignment", "a.png").code == 2
    assert (path / "confusion.png").stat().st_size > 5000


@pytest.mark.parametrize("scheme", [pytest.param("IOB1", marks=pytest.mark.slow), "IOBES"])
def test_answers_are_in_the_scheme_of_the_file(run, folder, scheme):
    """The model is the same; only what it says is written in another way."""
    path = write(folder / f"{scheme}.conll", sentences(400), scheme)
    done = ayn("train", "tag/lstm", *TINY, "--data", path, "--out", folder / scheme)
    assert done.code == 0, done.err
    assert f"{scheme} tags" in done.out
    other = load(folder / scheme)
    assert other.task.labels == run.task.labels == ["O", "B-person", "I-person", "B-place", "I-place"]
    text = "Mr Ray Lee ran in Ann Bo"
    expected = {
        "IOB1": ["O", "I-person", "I-person", "O", "O", "I-place", "B-place"],
        "IOBES": ["O", "B-person", "E-person", "O", "O", "S-place", "S-place"],
    }[scheme]
    assert other.answers([text])[0].details["tags"] == expected
    assert other.predict(text) == run.predict(text)
    for name, value in run.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[name], value)


def attempt(folder: Path, *settings: str, data: Path) -> str:
    done = ayn("train", "tag/lstm", *SHORT, *settings, "--data", data, "--out", folder / "never", "--overwrite")
    assert done.code == 2, done.out
    assert not (folder / "never" / "recipe.toml").exists()
    return done.err


def test_types_that_training_never_saw_are_named_and_counted(folder):
    strange = write(folder / "strange.conll", [(["a", "b", "c"], ["B-car", "I-car", "B-person"]), (["a"], ["B-car"])])
    told = attempt(folder, f"data.test_path={strange}", data=folder / "my.conll")
    assert "the test split has 1 entity type that the training data does not have, in 2 places: 'car' (2)" in told


def test_files_that_cannot_be_learned_from(folder):
    broken = folder / "broken.conll"
    broken.write_text("a O\nb B-x\nc\n")
    assert f"{broken}, line 3 has 1 column, but the first has 2" in attempt(folder, data=broken)
    dull = write(folder / "dull.conll", [(["a", f"b{i}"], ["O", "O"]) for i in range(80)])
    assert "all tags of the training data are O" in attempt(folder, data=dull)


CUTTING = {"char": 100, "bpe": 264, "bert": 40}  # with so few tokens that words are cut


def pieces(run: Run, kind: str, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """The row of a sentence, and where the first piece of each word stands in it; each word encoded by itself."""
    tokenizer, around = run.task.tokenizer, kind == "bert"
    ids, places = [tokenizer.cls] * around, []
    for i, word in enumerate(words):
        space = kind == "bpe" or (kind == "char" and i > 0)  # only bpe has one before the first word
        several = tokenizer.encode(f" {word}" if space else word)
        places.append(len(ids) + (tokenizer.token(several[0]) == " "))
        ids += several
    return [*ids, *[tokenizer.sep] * around], places


@pytest.mark.slow
@pytest.mark.parametrize("kind", CUTTING)
def test_a_tokenizer_that_cuts_words_labels_the_first_piece(folder, kind):
    settings = [*TINY, f"text.kind={kind}", f"text.vocab={CUTTING[kind]}", "task.unknown=0"]
    made = train("tag/lstm", *settings, data=folder / "my.conll", out=folder / f"cut by {kind}", quiet=True)
    rows = list(made.task.data.splits["train"])[:6]
    batch = made.task.examples("train").collate(np.arange(6))
    for row, (words, tags) in enumerate(rows):
        ids, places = pieces(made, kind, words)
        assert len(ids) > len(words) + 2
        expected = [IGNORE] * batch.tensors["ids"].size(1)
        for place, tag in zip(places, tags):
            expected[place] = made.task.labels.index(tag)
        assert batch.tensors["ids"][row, : len(ids)].tolist() == ids
        assert batch.tensors["lengths"][row] == len(ids)
        assert batch.tensors["targets"][row].tolist() == expected
    assert batch.size.counts == {"labels": sum(len(words) for words, _ in rows)}
    # The answers are those of the first pieces too.
    text = "Mr Ray Lee ran in Ann Bo ."
    ids, places = pieces(made, kind, text.split())
    with torch.no_grad():
        p = made.model({"ids": torch.tensor([ids]), "lengths": torch.tensor([len(ids)])})[0].softmax(-1)[places]
    guesses = made.table(text)
    assert [guess.token for guess in guesses] == text.split()
    assert [guess.likely[0][1] for guess in guesses] == pytest.approx(p.amax(-1).tolist(), abs=1e-5)
    found = [made.task.labels[i] for i in p.argmax(-1)]
    assert made.answers([text])[0].details["tags"] == tagged(spans(found), 8, "IOB2")
    scores = {score.name: score.value for score in made.test("test")}
    assert scores["F1"] > 90
    assert made.predict(text) == "Mr [Ray Lee person] ran in [Ann place] [Bo place] ."


def test_a_word_is_one_of_the_files_whatever_is_in_it(folder):
    """The words of a CoNLL file are not found again: each has one tag, however many tokens are in it."""
    words = ("don't", "http://a.b/c", "U.S.", "</s>", "x\N{NO-BREAK SPACE}y", "日本", "don't")
    rows = [([*words, str(i)], ["B-x", *["O"] * 6, "B-x"]) for i in range(300)]
    path = write(folder / "strange words.conll", rows)
    made = train("tag/lstm", *SHORT, data=path, out=folder / "strange words", quiet=True)
    task = made.task
    batch = task.examples("train").collate(np.array([0])).tensors
    assert (batch["targets"][0] != IGNORE).sum() == 8
    assert batch["lengths"][0] > 8
    assert task.tokenizer.eos not in batch["ids"]  # a special token that is written is only text
    starts = (batch["targets"][0] != IGNORE).nonzero().flatten().tolist()
    whole = task.whole("train", made.model).collate(np.array([0])).tensors["ids"][0]
    assert whole[starts[0]] == whole[starts[6]] == task.tokenizer.encode(" don")[0]


def test_long_sentences_are_cut_in_training_and_said_and_whole_in_the_test(folder):
    rows = [(["a"] * 20 + [f"n{i}"], ["O"] * 20 + ["B-x"]) for i in range(100)]
    rows += [([f"m{i}", "b"], ["B-x", "O"]) for i in range(100)]
    path = write(folder / "long.conll", rows)
    done = ayn(
        "train", "tag/lstm", *SHORT, "data.max_length=8", "text.kind=word", "--data", path, "--out", folder / "long"
    )
    assert done.code == 0, done.err
    header, first = (line.split() for line in done.out.splitlines() if line.startswith(("tokens ", "train   text")))
    assert header[-3:] == ["over", "8", "unknown"]
    run, sizes = load(folder / "long"), []
    task = run.task
    long = sum(len(example.words) > 8 for example in task.data.splits["train"])
    assert int(first[-3]) == long > 50
    assert task.examples("train").sizes.max() == 8
    assert task.whole("train", run.model).sizes.max() == 21
    real = run.task.whole

    def watched(*how):
        examples = real(*how)
        sizes.append(examples.sizes.max())
        return examples

    run.task.whole = watched
    run.test("test")
    assert sizes == [21]
    kept = json.loads((folder / "long" / "scores.json").read_text())["test"]
    assert f"true:{len(list(task.data.splits['test']))}" in kept[0]["signature"]  # the last word of each counts


def test_targets_are_the_tags(run):
    task = run.task
    batch = task.examples("train").collate(np.arange(5)).tensors
    for row, (words, tags) in zip(range(5), task.data.splits["train"]):
        count = len(words)
        assert [task.labels[i] for i in batch["targets"][row, :count]] == list(tags)
        assert (batch["targets"][row, count:] == IGNORE).all()
        assert batch["lengths"][row] == count


def test_a_model_that_reads_letters_gets_them(folder):
    recipe = folder / "spelled.toml"
    recipe.write_text(
        '[task]\nkind = "tag"\n[model]\nkind = "elmo"\nsize = "nano"\nwidth = 8\nfilters = 1\nreader = 8\n'
        '[text]\nkind = "word"\n[train]\nsteps = 1\n'
    )
    settings = [*RUNTIME, "train.batch_tokens=64"]
    made = train(str(recipe), *settings, data=folder / "my.conll", out=folder / "spelled", quiet=True)
    words = list(next(iter(made.task.data.splits["train"])).words)
    batch = made.task.examples("train").collate(np.array([0])).tensors
    np.testing.assert_array_equal(batch["chars"][0], spell(words, made.recipe.model.letters))
    assert "ids" not in batch
    assert json.loads((folder / "spelled" / "config.json").read_text())["parts"].keys() == {"labels.json"}
    seen = []
    made.model.reader.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]["chars"].clone()))
    text = "Ünsung Héros ran."  # training has seen none of it
    made.predict(text)
    np.testing.assert_array_equal(seen[0][0], spell(["Ünsung", "Héros", "ran", "."], made.recipe.model.letters))


def test_options_are_checked(folder):
    with pytest.raises(UserError, match=r"task\.unknown"):
        train("tag/lstm", "task.unknown=1.5", data=folder / "my.conll", out=folder / "never", quiet=True)
