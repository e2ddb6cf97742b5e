"""Settings that follow the data: what the rules choose, that what the user has set stays, and that a run keeps them."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from allyouneed.data.facts import SAMPLE, gather
from allyouneed.data.records import Records
from allyouneed.data.registry import SETS
from allyouneed.data.sources import Dataset, Text
from allyouneed.lectures.base import Lecture
from allyouneed.recipe import Recipe, read_recipe, recipe_names
from allyouneed.runtime import probe
from allyouneed.training import rules
from allyouneed.training.fit import fit
from allyouneed.training.rules import follow
from allyouneed.training.starting import choose, resumed
from commands import ayn

BUILT_IN_NAMES = {row.name for row in SETS.values() if row.built_in}
QUICK = ["train.steps=2", "train.device=cpu", "train.threads=1", "train.precision=fp32", "train.compile=off"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    """Pairs whose words are often unique, as those of real text."""
    draw, path = random.Random(1), tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    lines = [f"the {_word(draw)} {_word(draw)} is\til {_word(draw)} {_word(draw)} è" for _ in range(400)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _word(draw: random.Random) -> str:
    return "".join(draw.choice("abcdefghilmnoprst") for _ in range(draw.randint(2, 9)))


def facts(**values: object) -> rules.Facts:
    usual = {"splits": ("train",), "examples": 30_000, "bytes": 2_000_000, "words": 480_000, "different": 0.05}
    return rules.Facts(**{**usual, "once": 0.45, "lines": 0, "loose": 0.0, **values})


def followed(name: str, *given: str, device: str = "cpu", **values: object) -> tuple[Recipe, str]:
    recipe = replace(choose(name, given, None), given=frozenset(text.partition("=")[0] for text in given))
    recipe = recipe.with_(data=replace(recipe.data, name="", path=("own.txt",)))
    runtime = replace(probe(recipe.train), device=device, threads=2)
    found, told = follow(recipe, facts(**values), runtime)
    return found, "\n".join(told)


def as_text(documents: list[str]) -> Text:
    records = Records.of({"train": [(document,) for document in documents]}, ())
    return Text(records, list(pairwise(records.ends.tolist())))


def test_facts_count_words_and_lines():
    text = as_text(["a b b.\n\n  c a a\n", "d\n"])
    found = gather(Dataset("", "text", {"train": text, "test": text}))
    assert (found.splits, found.examples, found.words, found.lines) == (("train", "test"), 2, 8, 4)
    assert found.different == 5 / 8
    assert found.once == 3 / 5  # ".", c and d
    assert found.loose == 2 / 4


def test_facts_of_a_long_text_are_in_proportion():
    text = as_text(["a b c d e f g h i j " * 800_000])
    found = gather(Dataset("", "text", {"train": text}))
    assert found.bytes == 16_000_000 > SAMPLE
    assert found.words == pytest.approx(8_000_000, rel=0.01)


def test_real_text_gets_pieces_of_words_and_generated_text_does_not():
    found, told = followed("translate/transformer")
    assert (found.text.kind, found.text.vocab) == ("bpe", 4000)
    assert followed("translate/transformer", device="cuda")[0].text.vocab == 5500
    assert "vocabulary: text.kind=bpe, text.vocab=4000, because 45 % of the words occur only once" in told
    assert followed("translate/transformer", once=0.05)[0].text.kind == "word"


def test_images_that_are_seen_once_or_twice_are_not_changed():
    seen, told = followed("recognize/vit", "train.minutes=4", examples=60_000, side=28, channels=1)
    assert (seen.task.shift, seen.task.changes) == (0.0, 0)
    assert "augmentation: task.shift=0.0, because the data is seen about 0.32 times" in told
    assert followed("recognize/vit", "train.minutes=4", "task.shift=0.1", examples=60_000, side=28)[0].task.shift == 0.1
    often, told = followed("recognize/vit", "train.epochs=20", examples=60_000, side=28, channels=1)
    assert (often.task.shift, often.task.changes) == (0.1, 2)


@pytest.mark.parametrize("name", [name for name in recipe_names() if "elmo" in name])
def test_models_that_read_letters_keep_their_words(name):
    assert followed(name)[0].text == read_recipe(name).text


def test_classes_are_seen_in_words_unless_the_text_has_no_spaces():
    recipe, told = followed("classify/rnn")
    assert (recipe.text.kind, recipe.text.min_count) == ("word", 2)
    assert "vocabulary: text.min_count=2, because 45 % of the words occur only once" in told
    assert followed("classify/rnn", examples=300)[0].text.min_count == 1
    assert followed("classify/rnn", once=0.1)[0].text.min_count == 1
    assert followed("classify/rnn", different=0.9)[0].text.kind == "bpe"


@pytest.mark.parametrize("setting", ["text.kind=word", "text.kind=char", "text.path=tokenizer.json"])
def test_a_vocabulary_of_the_users_own_stays(setting):
    recipe, told = followed("translate/transformer", setting)
    assert recipe.text == choose("translate/transformer", [setting], None).text
    assert "vocabulary" not in told


@pytest.mark.parametrize("name", [name for name in recipe_names() if read_recipe(name).data.name in BUILT_IN_NAMES])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_set_stays_and_what_is_chosen_is_valid(name, device):
    base = read_recipe(name)
    given = [f"train.batch_tokens={base.train.batch_tokens}", "train.steps=77", "train.eval_every=7"]
    recipe, told = followed(name, *given, device=device)
    assert (recipe.train.steps, recipe.train.epochs, recipe.train.eval_every) == (77, 0, 7)
    assert recipe.train.batch_tokens == base.train.batch_tokens
    assert recipe == Recipe.parse(recipe.to_dict())
    assert "evaluations" not in told
    assert "epochs" not in told


def test_a_size_of_the_users_own_keeps_its_learning_rate():
    recipe, _ = followed("translate/transformer", "model.size=base")
    assert (recipe.model.width, recipe.train.lr) == (512, read_recipe("translate/transformer").train.lr)


def test_more_passes_need_more_dropout():
    few, many = (followed("translate/transformer", f"train.minutes={m}")[0] for m in (6, 60))
    assert (few.model.dropout, few.task.smoothing) == (0.0, 0.0)
    assert (many.model.dropout, many.task.smoothing) == (0.1, 0.1)
    assert followed("translate/transformer", examples=3_000, words=60_000)[0].model.dropout == 0.3


def test_a_gpu_learns_more():
    cpu, gpu = (followed("lm/gpt", device=device, bytes=10_000_000, words=2_000_000)[0] for device in ("cpu", "cuda"))
    assert gpu.model.width > cpu.model.width
    assert gpu.train.epochs > cpu.train.epochs
    assert gpu.train.batch_tokens > cpu.train.batch_tokens


def test_answers_end_with_the_line_only_if_each_line_stands_for_itself():
    names = followed("lm/gpt", lines=30_000, loose=0.0)[0]
    code = followed("lm/gpt", lines=30_000, loose=0.7)[0]
    assert (names.decode.stop, code.decode.stop) == (("\n",), ())


def test_evaluations_of_word_vectors_cost_little():
    recipe, told = followed("wordvectors/skipgram", bytes=20_000_000, words=5_000_000)
    assert recipe.data.valid_part == 0.005
    assert "held out: data.valid_part=0.005, data.test_part=0.005, because that is enough of 19.1 MiB" in told


def test_only_other_data_is_followed(pairs, tmp_path):
    assert choose("translate/transformer", [], None).given is None
    assert choose("translate/transformer", [], "phrasebook").given is None
    assert choose("translate/transformer", [], "french").given is None  # built in, too
    assert choose("translate/transformer", ["train.lr=1"], pairs).given == {"train.lr"}
    assert choose("translate/transformer", [f"data.path={pairs}"], None).given == {"data.path"}
    assert choose("classify/rnn", [], "sst2").given == set()
    assert choose("translate/multi30k", [], pairs).given is None  # made for real data
    assert choose("translate/transformer", ["data.follow=false"], pairs).given is None
    own = tmp_path / "own.toml"
    own.write_text('[task]\nkind = "translate"\n[model]\nkind = "transformer"\n[train]\nsteps = 1\n')
    assert choose(str(own), [], pairs).given is None
    assert choose(read_recipe("translate/transformer"), [], pairs).given is None


@pytest.mark.slow
def test_a_run_keeps_what_it_chose(pairs, tmp_path):
    out = tmp_path / "run"
    done = ayn("train", "translate/transformer", "--data", pairs, "--out", out, *QUICK)
    assert done.code == 0, done.err
    lines = json.loads((out / "config.json").read_text())["followed"]
    assert any(line.startswith("vocabulary: text.kind=bpe") for line in lines)
    assert all(line in done.out for line in lines)
    assert all(line in " ".join(ayn("info", out).out.split()) for line in lines)
    before = (out / "recipe.toml").read_text()
    assert 'kind = "bpe"' in before
    fit(resumed(out, "translate/transformer", ["train.steps=3"], None), out, resume=True, quiet=True)
    assert json.loads((out / "config.json").read_text())["followed"] == lines
    assert (out / "recipe.toml").read_text() == before.replace("steps = 2\n", "steps = 3\n")


def test_a_choice_that_contradicts_the_user_is_left_out():
    recipe, told = followed("lm/lstm", "model.embedding=64", "model.tie=true")
    assert recipe.model.width == read_recipe("lm/lstm").model.width
    assert "model size" not in told
    assert followed("translate/transformer", "decode.n_best=5", "decode.method=beam")[0].decode.beam == 5


def test_of_few_examples_more_are_held_out():
    recipe, told = followed("classify/rnn", examples=600)
    assert (recipe.data.valid_part, recipe.data.test_part) == (0.1, 0.2)
    said = "held out: data.valid_part=0.1, data.test_part=0.2, because there are 600 examples: an accuracy of 80 %"
    assert f"{said} is then known to about ± 7.2" in told
    for examples, valid, test in ((64, 0.1, 0.2), (3_775, 0.1, 0.2), (10_000, 0.05, 0.1), (40_000, 0.05, 0.05)):
        data = followed("classify/rnn", examples=examples)[0].data
        assert (data.valid_part, data.test_part) == (valid, test)
    assert followed("classify/rnn", examples=1_000_000)[0].data.test_part == 0.005
    assert followed("translate/transformer", examples=1_000_000)[0].data.test_part == 0.001
    assert followed("lm/gpt", bytes=5_000_000)[0].data.valid_part == 0.05


def test_twenty_texts_are_enough_to_begin_with(tmp_path):
    """They are not split before the rules have seen how few they are."""
    path = tmp_path / "few.tsv"
    path.write_text("".join(f"text number {i} is {'good' if i % 2 else 'bad'}\t{'yn'[i % 2]}\n" for i in range(20)))
    done = ayn("train", "classify/rnn", "--data", path, "--out", tmp_path / "run", *QUICK)
    assert done.code == 0, done.err


def test_little_data_is_learned_in_small_batches_with_a_short_warmup():
    recipe = followed("lm/gpt", bytes=10_000, words=2_500, examples=1)[0]
    steps = recipe.train.epochs * 2_500 * 1.35 / recipe.train.batch_tokens
    assert steps > 300
    assert recipe.train.warmup <= steps / 9
    assert followed("lm/gpt", bytes=2_000, words=500, examples=1)[0].model.context == 32
    recipe = followed("translate/transformer", examples=100, words=1_500)[0]
    assert (recipe.train.batch_tokens, recipe.train.warmup < 100) == (128, True)


def test_a_line_names_only_what_was_chosen():
    told = followed("translate/transformer", "train.lr=1e-4", "train.batch_tokens=4096")[1]
    assert "train.lr" not in told
    assert "train.batch_tokens" not in told
    assert re.search(r"training: train.epochs=9.3, train.warmup=\d+, .*because there are 30,000 pairs", told)
    assert "vocabulary: text.kind=bpe, because" in followed("translate/transformer", "text.vocab=30000")[1]


def test_steps_are_counted_in_the_batches_that_are_chosen():
    recipe = followed("translate/transformer", "train.steps=2000", device="cuda")[0]
    assert recipe.train.batch_tokens == 4096
    assert recipe.model.dropout == 0.3  # 2,000 steps of 4,096 tokens are 25 epochs


def test_splits_that_have_files_are_not_held_out():
    told = followed("classify/rnn", examples=600, splits=("train", "valid"))[1]
    assert "held out: data.test_part=0.2, because" in told
    assert "held out" not in followed("classify/rnn", examples=600, splits=("train", "valid", "test"))[1]


def test_a_tagger_of_whole_words_still_learns_unknown_ones():
    assert followed("tag/lstm", "text.kind=word")[0].task.unknown == read_recipe("tag/lstm").task.unknown
    assert followed("tag/lstm")[0].task.unknown == 0
    assert followed("tag/lstm", "text.vocab=200")[0].text.kind == "word"
    assert followed("tag/lstm", "text.min_count=3")[0].text.kind == "word"


def test_lectures_keep_their_settings(tmp_path):
    said: list[str] = []
    lecture, text = Lecture(tmp_path, say=said.append), tmp_path / "text.txt"
    text.write_text("one two three four five six seven\n" * 200)
    settings = [*QUICK, "model.width=8", "model.heads=2", "model.layers=1"]
    assert lecture.trained("lm/gpt", *settings, data=text).recipe.text == read_recipe("lm/gpt").text
    said.clear()
    lecture.trained("lm/gpt", *settings, data=text)
    assert said == [f"using the model that was trained before: {tmp_path / 'models' / 'lm-gpt'}"]


@pytest.mark.parametrize("name", ["classify/bert", "tag/bert", "answer/bert", "classify/gpt"])
def test_what_starts_from_another_run_takes_few_passes_and_small_steps(name):
    recipe = read_recipe(name)
    recipe = replace(recipe, given=frozenset()).with_(
        train=replace(recipe.train, init="runs/reader"), data=replace(recipe.data, name="", path=("own.txt",))
    )
    runtime = replace(probe(recipe.train), device="cpu", threads=2)
    tuned, told = follow(recipe, facts(), runtime)
    scratch, _ = follow(recipe.with_(train=replace(recipe.train, init="")), facts(), runtime)
    assert tuned.train.lr <= 5e-4 < scratch.train.lr
    assert 3 <= tuned.train.epochs <= 12
    assert tuned.model.dropout == 0.1
    assert any("it starts from a run that can read" in line for line in told)
    few, _ = follow(recipe, facts(words=20_000, examples=800), runtime)
    assert few.train.epochs > tuned.train.epochs
