"""classify: the labels of a run, its answers, its scores and its image, and every mistake in its data."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from allyouneed import catalog
from allyouneed.data.batches.labelled import Labelled
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.figures import heatmaps
from allyouneed.models.labeller import Labeller
from allyouneed.nn.heads import POOLS, ClassifyHead
from allyouneed.nn.losses import cross_entropy, divergence
from allyouneed.nn.spelling import spell
from allyouneed.recipe import read_recipe
from allyouneed.run import Run, load, train
from allyouneed.tasks.labels import Classify
from allyouneed.text.layout import Layout
from allyouneed.text.word_boundaries import find_words
from allyouneed.training.starting import choose
from commands import ayn, reseal
from conftest import RUNTIME
from inputs import ids_of

TINY = [
    *RUNTIME, "model.width=16", "train.steps=90", "train.eval_every=90", "train.batch_tokens=256", "train.lr=1e-2",
    "train.warmup=5", "task.linear=false", "task.pool=max",
]  # fmt: skip
SHORT = [*TINY, "train.steps=2", "train.eval_every=2"]


def write(path: Path, rows: list[tuple[str, ...]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def opinions(count: int, seed: int = 0) -> list[tuple[str, ...]]:
    """What comes after "but" decides."""
    chance, rows = random.Random(seed), {}
    while len(rows) < count:
        one, other = chance.sample(["good", "bad", "odd"], 2)
        things = " ".join(chance.choices(["soup", "bread", "tea", "cake", "rice"], k=chance.randint(1, 4)))
        rows[f"the {things} was {one} but then {other}"] = other
    return list(rows.items())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("classify")
    write(made / "opinions.tsv", opinions(400))
    return made


@pytest.fixture(scope="module")
def run(folder) -> Run:
    path = folder / "opinions.tsv"
    return train("classify/rnn", *TINY, data=path, out=folder / "run", quiet=True)


def test_smoothing_and_unknown_words_are_for_learning_alone(run):
    options = replace(run.recipe.task, smoothing=0.5, unknown=0.9)
    other = run.task.on(run.recipe.with_(task=options))
    numbers = run.task.examples("valid").cover(4096)[0]
    batch, same = (task.examples("valid").collate(numbers, 5) for task in (run.task, other))
    assert all(torch.equal(same.tensors[name], t) for name, t in batch.tensors.items())
    assert torch.equal(other.losses(run.model, batch)["labels"], run.task.losses(run.model, batch)["labels"])
    model = Labeller(run.model.body, run.model.head).train()
    try:
        model.body.eval()  # nothing is dropped, so that only the smoothing differs
        model.head.dropout.eval()
        assert other.losses(model, batch)["labels"] > 1.2 * run.task.losses(model, batch)["labels"]
    finally:
        model.eval()


def test_agreement_takes_two_passes_for_learning_alone(run):
    """R-Drop: the mean of the cross-entropies, and the divergence with its weight."""
    other = run.task.on(run.recipe.with_(task=replace(run.recipe.task, agreement=3.0)))
    batch = run.task.examples("valid").collate(run.task.examples("valid").cover(4096)[0], 5)
    goals = batch.tensors["targets"]
    assert torch.equal(other.losses(run.model, batch)["labels"], run.task.losses(run.model, batch)["labels"])
    model = Labeller(run.model.body, run.model.head).train()
    try:
        torch.manual_seed(1)
        loss = other.losses(model, batch)["labels"]
        torch.manual_seed(1)
        one, two = (model(batch.tensors) for _ in range(2))
        assert not torch.equal(one, two)
        mean = (cross_entropy(one, goals) + cross_entropy(two, goals)) / 2
        torch.testing.assert_close(loss, mean + 3 * divergence(one, two, goals))
    finally:
        model.eval()


def test_agreement_without_dropout_is_refused(folder):
    with pytest.raises(UserError, match="the model has none"):
        train(
            "classify/rnn", *SHORT, "task.agreement=1", "model.dropout=0", data=folder / "opinions.tsv",
            out=folder / "dry", quiet=True,
        )  # fmt: skip


def test_two_passes_take_about_twice_the_activations(folder, capsys):
    told = []
    for agreement in (0, 1):
        train(
            "classify/rnn", *SHORT, f"task.agreement={agreement}", data=folder / "opinions.tsv",
            out=folder / f"agree{agreement}", quiet=False,
        )  # fmt: skip
        told.append(float(re.findall(r"activations ([\d.]+) KiB", "".join(capsys.readouterr()))[0]))
    assert 1.6 * told[0] < told[1] < 2.1 * told[0]


@pytest.fixture(scope="module")
def pair_run(folder) -> Run:
    rows = [(one.removeprefix("the "), "same" if i % 2 else "other", f"it was {label}, no") for i, (one, label) in
            enumerate(opinions(60, 1))]  # fmt: skip
    path = write(folder / "pairs.tsv", [("sentence1", "label", "sentence2"), *rows])
    return train("classify/rnn", *SHORT, "model.layers=1", data=path, out=folder / "pairs", quiet=True)


def test_it_learns_what_the_order_of_words_says(run):
    accuracy, macro = run.test("test")
    assert accuracy.value > 95
    assert macro.value > 95
    assert "split:test" in accuracy.signature
    assert run.predict("the tea was bad but then good") == "good"


def test_texts_together_get_what_each_gets_alone(run):
    texts = ["tea was odd", "the soup bread cake was good but then bad", "bad but then odd", "good"]
    together = [answer.details["probabilities"] for answer in run.answers(texts)]
    alone = [run.answers([text])[0].details["probabilities"] for text in texts]
    for one, other in zip(together, alone):
        assert one == pytest.approx(other, abs=2e-6)


@pytest.mark.parametrize("pool", POOLS)
def test_padding_is_never_pooled(pool):
    torch.manual_seed(0)
    head = ClassifyHead(8, 3, pool).eval()
    hidden, lengths = -1 - torch.rand(3, 6, 8), torch.tensor([6, 2, 4])  # below the zeros of a padding
    batch = head(hidden, lengths)
    hidden[1, 2:], hidden[2, 4:] = 9.0, -9.0
    torch.testing.assert_close(head(hidden, lengths), batch)
    torch.testing.assert_close(head(hidden[1:2, :2], lengths[1:2]), batch[1:2])


def test_the_answer_has_all_probabilities(run):
    answer = run.answers(["the cake was odd but then good"])[0]
    p = answer.details["probabilities"]
    assert list(p) == run.task.labels == ["bad", "good", "odd"]
    assert sum(p.values()) == pytest.approx(1, abs=1e-5)
    assert answer.text == answer.details["label"] == max(p, key=p.get)
    assert np.exp(answer.logprob) == pytest.approx(answer.details["probability"], abs=1e-5)


def test_the_command_prints_label_and_probability(run):
    text = "the cake was odd but then good"
    p = run.answers([text])[0].details["probability"]
    assert ayn("use", run.folder.path, text).out == f"good  {100 * p:.1f} %\n"
    assert json.loads(ayn("use", run.folder.path, text, "--json").out)["probabilities"].keys() == {"bad", "good", "odd"}
    lines = list(run.answer_lines([text, "", "the tea was bad"]))
    assert [line.answer.text if line.answer else None for line in lines] == ["good", None, "bad"]
    table = ayn("use", run.folder.path, text, "--table").out.splitlines()
    assert "likely labels" in table[0]
    assert len(table) == 8
    assert table[-1].split()[1:4] == ["·good", f"{100 * p:.1f}%", "good"]
    assert ayn("use", run.folder.path, " ").code == 2


def test_the_table_is_what_the_text_up_to_there_would_be(run):
    guesses = run.table("the tea was bad but then good")
    assert [guess.token for guess in guesses] == [" the", " tea", " was", " bad", " but", " then", " good"]
    p = run.answers(["the tea was bad"])[0].details["probabilities"]
    assert dict(guesses[3].likely) == pytest.approx(p, abs=2e-6)


def test_a_text_of_unknown_words_gets_an_answer_as_in_the_test(run):
    texts = ["the tea was bad", "qwerty asdf", "the soup was good"]
    assert all(id == run.task.tokenizer.unk for id in run.predictor.read(texts[1], run.decode()).tokens[0])
    found = list(run.answers(texts))
    assert [answer.text for answer in found] == [run.predict(text) for text in texts]
    (p,) = run.predictor.label_probabilities([run.predictor.read(texts[1], run.decode())])
    assert found[1].text == run.task.labels[int(p.argmax())]


def test_labels_are_kept_with_the_run(run):
    kept = json.loads((run.folder.path / "labels.json").read_text())
    assert kept == {"labels": ["bad", "good", "odd"], "texts": 1}
    again = load(run.folder.path)
    assert "data" not in vars(again.task)  # nothing is read to answer
    assert again.predict("the tea was bad but then odd") == "odd"
    assert run.config["data"]["report"]["classes"]["train"].keys() == set(kept["labels"])


def test_numbered_labels_stand_in_the_order_of_numbers(folder):
    rows = [(f"text {i} of {i % 11}", str(i % 11)) for i in range(300)]
    made = train("classify/rnn", *SHORT, data=write(folder / "numbers.tsv", rows), out=folder / "numbers", quiet=True)
    assert made.task.labels == [str(i) for i in range(11)]


def test_labels_that_are_gone_or_damaged(run, folder, tmp_path):
    for name in ("recipe.toml", "config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((run.folder.path / name).read_bytes())
    done = ayn("use", tmp_path, "tea")
    assert (done.code, "it has no labels.json" in done.err) == (2, True)
    kept = (run.folder.path / "labels.json").read_text()
    for damage in ("{", '{"labels": 3}', "[]", '{"labels": ["x", "y"], "texts": 1}', kept.replace("odd", "ode")):
        (tmp_path / "labels.json").write_text(damage)
        for command in (["use", tmp_path, "tea"], ["info", tmp_path]):
            done = ayn(*command)
            assert (done.code, "labels.json is damaged" in done.err) == (2, True)
    for strange in ("{", '{"labels": 3}', "[]", "[" * 5000, '{"labels": ["x", "y"], "texts": 1}'):
        (tmp_path / "labels.json").write_text(strange)
        reseal(tmp_path)  # as whoever wants to deceive would
        done = ayn("use", tmp_path, "tea")
        expected = "labels.json is damaged" if "texts" not in strange else "does not fit the model"
        assert (done.code, expected in done.err) == (2, True), done


def test_training_and_testing_draw_the_confusion_matrix(run):
    image = run.folder.path / "confusion.png"
    assert image.stat().st_size > 5000
    before = image.read_bytes()
    image.unlink()
    done = ayn("test", run.folder.path)
    assert "confusion.png" in done.out
    assert image.read_bytes() == before
    ayn("test", run.folder.path, "--split", "train")
    assert image.with_name("confusion-train.png").read_bytes() != before
    table, names, title = _confused(run)
    assert table.sum() == run.task.data.splits["test"].examples
    assert names == run.task.labels
    assert "test" in title


def _confused(run: Run):
    run.test("test")
    return run.task.confused


def test_a_run_goes_on_with_its_labels(folder):
    """The resumed run takes their order from its own file, not from the data."""
    path, out = folder / "opinions.tsv", folder / "resumed"
    train("classify/rnn", *SHORT, data=path, out=out, quiet=True)
    kept = json.loads((out / "labels.json").read_text())
    (out / "labels.json").write_text(json.dumps({**kept, "labels": kept["labels"][::-1]}))
    reseal(out)
    done = ayn("train", "classify/rnn", *SHORT, "train.steps=4", "--data", path, "--out", out, "--resume")
    assert done.code == 0, done.err
    assert load(out).task.labels == ["odd", "good", "bad"]
    assert ayn("train", "classify/rnn", *SHORT, "--data", path, "--out", out, "--overwrite").code == 0
    assert load(out).task.labels == ["bad", "good", "odd"]


def attempt(folder: Path, *settings: str, data: Path | str) -> str:
    done = ayn("train", "classify/rnn", *SHORT, *settings, "--data", data, "--out", folder / "never", "--overwrite")
    assert done.code == 2, done.out
    assert not (folder / "never" / "recipe.toml").exists()
    return done.err


def test_labels_that_training_never_saw_are_named_and_counted(folder):
    path = folder / "opinions.tsv"
    for split in ("valid", "test"):
        write(folder / "strange.tsv", [("a b", "good"), ("a c", "fine"), ("a d", "fine"), ("a e", "poor")])
        told = attempt(folder, f"data.{split}_path={folder / 'strange.tsv'}", data=path)
        assert (
            f"the {split} split has 2 labels that the training data does not have, in 3 places: 'fine' (2), 'poor' (1)"
            in told
        )


def test_labels_that_cannot_be_learned(folder):
    assert "all training texts have the label 'x'" in attempt(
        folder, data=write(folder / "one.tsv", [(f"text {i}", "x") for i in range(50)])
    )
    told = attempt(folder, data=write(folder / "all.tsv", [(f"text {i}", f"name {i}") for i in range(100)]))
    assert "different labels ('name 0'" in told
    assert "data.target" in told


def test_one_or_two_texts(pair_run):
    assert pair_run.task.sides == 2
    assert "two texts" in pair_run.predictor.asks
    one, other = pair_run.answers(["soup was good ||| it was bad, no", "soup was good\tit was bad, no"])
    assert one == other
    eos = pair_run.task.tokenizer.eos
    ids = ids_of(pair_run, "soup was good\tit was bad")
    assert ids.count(eos) == 1
    assert ids == [
        *pair_run.task.tokenizer.encode(" soup was good"),
        eos,
        *pair_run.task.tokenizer.encode(" it was bad"),
    ]
    for text, told in (("soup", "this run reads pairs of texts"), ("soup\t ", "the text is empty")):
        done = ayn("use", pair_run.folder.path, text)
        assert (done.code, told in done.err) == (2, True)
    batch = pair_run.task.examples("train").collate(np.array([0]))
    assert (batch.tensors["ids"] == eos).sum() == 1


def test_of_a_long_pair_the_longer_text_is_cut():
    first, second = Ragged.of([[1] * 8, [1] * 2, [1] * 9, [1]]), Ragged.of([[2] * 3, [2] * 9, [2] * 9, [2]])
    labels, layout = np.zeros(4, dtype=np.int64), Layout(between=(3,))

    def rows(sides: list[Ragged], longest: int) -> list[str]:
        batch = Labelled(sides, labels, layout, longest).collate(np.arange(4)).tensors
        return ["".join(map(str, row[:length].tolist())) for row, length in zip(batch["ids"], batch["lengths"])]

    assert rows([first, second], 8) == ["11113222", "11322222", "11113222", "132"]
    assert rows([first], 4) == ["1111", "11", "1111", "1"]
    assert rows([first, second], 99)[2] == "1" * 9 + "3" + "2" * 9


def test_long_texts_are_cut_in_training_and_said_and_whole_in_the_test(folder):
    rows = [(" ".join(["soup"] * (30 if i % 2 else 3)) + f" {i}", str(i % 2)) for i in range(100)]
    path = write(folder / "long.tsv", rows)
    done = ayn("train", "classify/rnn", *SHORT, "data.max_length=8", "--data", path, "--out", folder / "long")
    assert done.code == 0, done.err
    assert "over 8" in done.out
    made = load(folder / "long")
    longest = max(made.task.rows("train")[0].lengths)
    assert made.task.examples("train").sizes.max() == 8 < longest
    assert made.task.whole("train", made.model).sizes.max() == longest == 31
    sizes = []
    real = made.task.whole

    def watched(*how):
        examples = real(*how)
        sizes.append(examples.sizes.max())
        return examples

    made.task.whole = watched
    made.test("test")
    assert sizes == [31]


def test_tokens_are_hidden_only_while_it_learns(run):
    task = run.task.on(run.recipe.with_(task=replace(run.recipe.task, unknown=0.5)))
    numbers = np.arange(32)

    def hidden(examples: Labelled, key: int) -> torch.Tensor:
        return examples.collate(numbers, key).tensors["ids"] == task.tokenizer.unk

    learned, plain = task.examples("train"), task.whole("train", run.model)
    assert not hidden(plain, 3).any()
    assert not hidden(task.examples("valid"), 3).any()
    there = plain.collate(numbers, 3).tensors["lengths"].sum()
    assert 0.3 < hidden(learned, 3).sum() / there < 0.7
    assert torch.equal(hidden(learned, 3), hidden(learned, 3))
    assert not torch.equal(hidden(learned, 3), hidden(learned, 4))  # in another epoch others


@pytest.mark.parametrize("settings", [["text.kind=bpe", "text.vocab=300"], ["text.kind=char"], ["task.pool=last"]])
def test_other_tokens_and_pools(folder, settings):
    made = train("classify/rnn", *SHORT, *settings, data=folder / "opinions.tsv", out=folder / settings[0], quiet=True)
    assert made.predict("the soup was good") in made.task.labels


def test_a_model_that_reads_letters_gets_them(folder):
    recipe = folder / "spelled.toml"
    recipe.write_text(
        '[task]\nkind = "classify"\n[model]\nkind = "elmo"\nsize = "nano"\nwidth = 8\nfilters = 1\nreader = 8\n'
        '[text]\nkind = "word"\n[train]\nsteps = 1\n'
    )
    settings = [*RUNTIME, "train.batch_tokens=64"]
    path = write(folder / "odd.tsv", [(f"it's nr-{i}, {'so' * (i % 2)} well", str(i % 2)) for i in range(40)])
    made = train(str(recipe), *settings, data=path, out=folder / "spelled", quiet=True)
    example = next(iter(made.task.data.splits["train"]))
    batch = made.task.examples("train").collate(np.array([0])).tensors
    words = [example.text[start:end] for start, end in find_words(example.text)]
    assert words[:3] == ["it", "'s", f"nr-{example.text.split('-')[1].split(',')[0]}"]
    assert "ids" not in batch
    assert batch["lengths"].tolist() == [len(words)]
    np.testing.assert_array_equal(batch["chars"][0], spell(words, made.recipe.model.letters))
    mixed = made.task.examples("train").collate(np.arange(6)).tensors
    padding = torch.arange(mixed["chars"].size(1)) >= mixed["lengths"][:, None]
    assert not mixed["chars"][padding].any()
    assert mixed["chars"][~padding].any(-1).all()
    together = list(made.answers(["it's well", "never seen words here!"]))
    alone = [made.answers([text])[0] for text in ("it's well", "never seen words here!")]
    for one, other in zip(together, alone):
        assert one.details["probability"] == pytest.approx(other.details["probability"], abs=1e-5)
    assert not made.task.tokenizers
    assert not (folder / "spelled" / "tokenizer.json").exists()
    assert json.loads((folder / "spelled" / "config.json").read_text())["parts"].keys() == {"labels.json"}


def test_the_recipe_names_a_model_that_can_read():
    assert "classify" in catalog.model("rnn").tasks
    with pytest.raises(UserError, match=r"cannot do the task 'classify'; these can: .*rnn"):
        read_recipe("classify/rnn", ["model.kind=transformer"])


def test_of_many_classes_the_rarest_are_drawn_as_one(tmp_path):
    table = np.diag(np.arange(1000))
    table[3, 4] = 7
    counts, names = heatmaps._commonest(table, [str(i) for i in range(1000)])
    assert counts.shape == (len(names), len(names)) == (heatmaps.MOST_CLASSES, heatmaps.MOST_CLASSES)
    assert names[0] == "941"
    assert names[-1] == "941 others"
    assert counts.sum() == table.sum()
    assert counts[-1, -1] == sum(range(941)) + 7
    heatmaps.confusion_matrix(table, [str(i) for i in range(1000)], tmp_path / "many.png")
    assert (tmp_path / "many.png").stat().st_size > 1000


def test_a_model_that_gives_no_numbers_gives_no_answer(run, monkeypatch):
    monkeypatch.setattr(run.model.head, "forward", lambda hidden, lengths: torch.full((len(lengths), 3), torch.nan))
    for ask in (run.predict, run.table):
        with pytest.raises(UserError, match="is not a number"):
            ask("the film was fine")


@pytest.mark.parametrize(("balance", "wanted"), [(1.0, [2 / 3, 2.0]), (0.5, None), (0.0, None)])
def test_rare_labels_may_count_more(balance, wanted, tmp_path):
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"word {i}\t{'rare' if i % 4 == 0 else 'common'}\n" for i in range(80)))
    settings = [*RUNTIME, "data.follow=false", "data.valid_part=0", "data.test_part=0", f"task.balance={balance}"]
    made = choose("classify/rnn", settings, data)
    task = Classify(made)
    task.prepare(lambda line: None)
    weights = task.examples("train").weights
    if wanted is None:
        assert (weights is None) == (balance == 0)
        assert weights is None or (weights[0] < weights[1] < 3 * weights[0])
    else:
        assert weights.tolist() == pytest.approx(wanted)
    whole = task.examples("train").size(np.arange(80), 0)
    assert whole.counts["labels"] == pytest.approx(80)  # 1 in the mean of all examples


def test_a_label_with_a_single_example_is_told(tmp_path):
    data = tmp_path / "data.tsv"
    data.write_text("".join(f"word {i}\t{'odd' if i % 2 else 'even'}\n" for i in range(60)) + "one more word\tonly\n")
    said: list[str] = []
    settings = [*RUNTIME, "data.follow=false", "data.valid_part=0", "data.test_part=0"]
    Classify(choose("classify/rnn", settings, data)).prepare(said.append)
    assert any("a single training example has the label 'only'" in line for line in said)
