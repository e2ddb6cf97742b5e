"""Mistakes a person can mend: one clear sentence, exit code 2, no traceback, and nothing is lost."""

from __future__ import annotations

import http.server
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from allyouneed.data import registry
from allyouneed.data.registry import Form
from allyouneed.errors import UserError, nearest
from allyouneed.run import load
from allyouneed.tasks.translate import Translate
from commands import NUMBERS, ayn, mistake, train
from conftest import TINY_LM

pytestmark = pytest.mark.usefixtures("elsewhere")

# Recipes and settings: found before anything is read or made

SETTINGS = {
    "lm/gtp": "there is no recipe 'lm/gtp'; did you mean 'lm/gpt'?",
    "lm/gpt train.stesp=5": "[train] has no key 'stesp'; did you mean 'steps'?",
    "lm/gpt trian.steps=5": "a recipe has no section [trian]; did you mean 'train'?",
    "lm/gpt model.size=nanno": "model.size: gpt has no size 'nanno'; did you mean 'nano'?",
    "lm/gpt model.kind=gtp": "there is no model 'gtp'; did you mean 'gpt'?",
    "lm/gpt task.kind=lmm": "there is no task 'lmm'; did you mean 'lm'?",
    "lm/gpt text.kind=bp": "text.kind = 'bp' is not one of char, word, terms, bpe, wordpiece, bert; did you mean",
    "lm/gpt train.steps=many": "train.steps = 'many' is not a whole number",
    "lm/gpt train.steps=1.5": "train.steps = '1.5' is not a whole number",
    "lm/gpt train.lr=fast": "train.lr = 'fast' is not a number",
    "lm/gpt train.lr=nan": "train.lr = nan is not a finite number",
    "lm/gpt train.lr=-1": "train.lr = -1.0 is too small; the smallest is 0",
    "lm/gpt model.dropout=2": "model.dropout = 2.0 is too large; the largest is 1",
    "lm/gpt train.seed=99999999999999999999": "train.seed = 99999999999999999999 is too large",
    "lm/gpt model.bias=perhaps": "model.bias = 'perhaps' is not true or false",
    "lm/gpt model.heads=5": "model.heads = 5 does not divide model.width = 48",
    "lm/gpt model.kv_heads=2": "model.kv_heads = 2 does not divide model.heads = 3",
    "lm/gpt model.positions=rotary model.width=12 model.heads=4": "rotary positions need an even head width, not 3",
    "lm/gpt decode.alpha=500": "decode.alpha = 500",
    "lm/gpt train.steps=0": "[train] needs steps, epochs or minutes",
    "lm/gpt decode.n_best=9 decode.method=beam": "decode.n_best = 9 is more than decode.beam = 5",
    "translate/transformer decode.n_best=2": "decode.n_best = 2 needs decode.method = beam or sample",
    "lm/gpt train.beta1=1": "train.beta1 = 1.0 is too large; the largest is 0.999999",
    "lm/gpt train.ema=1": "train.ema = 1.0 is too large; the largest is 0.999999",
    "lm/gpt model.vocab=-3": "model.vocab = -3 is too small; the smallest is 0",
    "wordvectors/cbow model.vocab=3": "model.vocab = 3 cannot be set: it comes from the tokenizer, see [text]; leave",
    "translate/transformer model.vocab=300": "model.vocab = 300 and model.target_vocab = 0 differ, but source and",
    "translate/attention model.target_vocab=300": "model.vocab = 0 and model.target_vocab = 300 differ, but source and",
    "lm/gpt text.kind=bpe text.vocab=5": "text.vocab = 5 is too small for bpe",
    "lm/gpt text.path=no.json": "there is no tokenizer file no.json",
    "lm/rnn model.bidirectional=true": "model.bidirectional = true: a language model would read",
    "translate/transformer model.share=true text.joint=false": "text.joint = false gives two vocabularies",
    "translate/transformer task.teacher_forcing=0.5": "task.teacher_forcing = 0.5 needs a model that decodes step by",
    "lm/gpt model.freeze=head": "model.freeze = 'head' is neither body nor a number of layers",
    "lm/gpt model.freeze=body": "model.freeze = body would freeze a body that has learned nothing: start from a run",
    'lm/gpt decode.stop=["a"': 'decode.stop = ["a" is not a list',
    "lm/gpt steps=20": "'steps=20' is not of the form section.key=value, for example train.steps=20",
    "lm/gpt fast": "'fast' is not of the form section.key=value, for example train.lr=1e-3",
}


@pytest.mark.parametrize("words", SETTINGS)
def test_a_wrong_setting_is_told_before_any_data_is_read(words, tmp_path):
    said = mistake("train", *words.split(), "--data", tmp_path / "no such file.txt", "--out", tmp_path / "run")
    assert said.startswith(SETTINGS[words])
    assert not (tmp_path / "run").exists()


def test_a_whole_number_may_be_written_as_1e3(tmp_path):
    said = mistake("train", "lm/gpt", "train.steps=1e3", "train.seed=1_000", "--data", tmp_path / "no.txt")
    assert "no.txt" in said


RECIPES = {
    b"[task\nkind = 'lm'": r"not valid TOML: .*line 1",
    b"task = 5": r"'task' is a section",
    b"": r"\[task\] needs a kind",
    b"[task]\nkind = 'lm'\n": r"\[model\] needs a kind",
    b"\xff\xfe": r"not UTF-8 text \(byte 0\)",
}


@pytest.mark.parametrize("text", RECIPES)
def test_an_own_recipe_that_is_wrong(text, tmp_path):
    (tmp_path / "mine.toml").write_bytes(text)
    said = mistake("train", "mine.toml")
    assert re.search(RECIPES[text], said)


def test_an_own_recipe_that_is_not_there(tmp_path):
    (tmp_path / "mine.toml").touch()
    assert mistake("train", "mien.toml") == "there is no recipe file mien.toml; did you mean 'mine.toml'?"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("trian lm/gpt", "No such command 'trian'"),
        ("train lm/gpt --ressume", "--resume"),
        ("train", "Missing argument 'RECIPE'"),
        ("use", "Missing argument 'RUN'"),
    ],
)
def test_a_mistyped_command_or_option(words, expected):
    done = ayn(*words.split())
    assert done.code == 2
    assert expected in done.err
    assert "Traceback" not in done.err


def test_of_very_many_names_the_nearest_few_are_shown():
    names = [f"run-{i:03}" for i in range(200)]
    assert nearest("x", names).endswith(" and 196 more")
    assert nearest("7", names) == "; there is run-197, run-187, run-179, run-178 and 196 more"
    assert nearest("x", names[:8]) == f"; there is {', '.join(names[:8])}"
    assert nearest("rnu-117", names) == "; did you mean 'run-117'?"


def test_a_missing_run_is_told_with_the_nearest_few(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ["en-it", *(f"experiment number {i:02}" for i in range(40))]:
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "recipe.toml").touch()
    assert mistake("use", "runs/nope", "x").endswith(" and 37 more")
    assert mistake("use", "runs/en-itt", "x") == "there is no run folder runs/en-itt; did you mean 'en-it'?"
    assert mistake("use", "en-it", "x") == "there is no run folder en-it; did you mean 'runs/en-it'?"
    assert mistake("info", "nowhere/nope") == "there is no run folder nowhere/nope"
    with pytest.raises(UserError, match=r"there is no run folder nope; there is .* and 37 more$"):
        load("nope")


def test_a_list_of_what_there_is_not():
    assert mistake("list", "recipies") == "there is no list of 'recipies'; did you mean 'recipes'?"


# Data

FILES: dict[str, tuple[str, bytes, str]] = {
    "empty": ("lm", b"", r"is empty"),
    "blank": ("lm", b"\n \n\n", r"only blank lines"),
    "binary": ("lm", b"abc\0def", r"binary file \(byte 3 is zero\)"),
    "not UTF-8": ("lm", b"\xef\xf0\xe8\n" * 50, r"line 1 is not UTF-8: byte 0xef is of an unknown encoding"),
    "shorter than a window": ("lm", b"ab\ncd\nefgh\nij\n", r"train text has 12 tokens: .* model.context = 16"),
    "one letter": ("lm", b"a", r"too small"),
    "a row too short": ("translate", b"a\tb\nc\td\ne\n" * 20, r"line 3 has 1 columns, but the first row has 2"),
    "a row too long": ("translate", b"a\tb\nc\td\te\n" * 20, r"line 2 has 3 columns, but the first row has 2"),
    "one column": ("translate", b"a\nb\n" * 20, r"only one column"),
    "too few pairs": ("translate", b"a\tb\n", r"too small or has no usable example"),
    "empty table": ("translate", b"", r"is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_data(name, tmp_path):
    task, content, expected = FILES[name]
    path = tmp_path / ("given.txt" if task == "lm" else "given.tsv")
    path.write_bytes(content)
    said = mistake(*train(task, path))
    assert re.search(expected, said)
    assert str(path) in said or "train text" in said


def test_one_tokenizer_is_not_two_vocabularies(story, pairs, lm):
    said = mistake(*train("translate", pairs, f"text.path={lm / 'tokenizer.json'}", "text.joint=false"))
    assert said == "text.path is one tokenizer for both sides: leave text.joint at true"


@pytest.mark.parametrize("setting", ["model.vocab=3", "model.vocab=3 model.target_vocab=3"])
def test_a_vocabulary_smaller_than_the_tokenizers(setting, story, pairs):
    """It is told as soon as the tokenizer is known, and nothing is made."""
    task, data = ("lm", story) if "target" not in setting else ("translate", pairs)
    said = mistake(*train(task, data, *setting.split(), out="runs of mine/small"))
    assert re.fullmatch(r"model\.vocab = 3 is less than the \d+ tokens of the tokenizer: raise it", said)
    assert not Path("runs of mine").exists()


def test_a_target_vocabulary_smaller_than_the_tokenizers(pairs):
    said = mistake(*train("translate", pairs, "model.target_vocab=3", "model.share=false"))
    assert re.fullmatch(r"model\.target_vocab = 3 is less than the \d+ tokens of the tokenizer: raise it", said)


def test_data_that_is_not_there(story, tmp_path):
    assert mistake(*train("lm", "")).startswith("the name of the data is empty")
    shutil.copy(story, tmp_path)
    assert "there is no " in mistake(*train("lm", "stori.txt"))
    assert "did you mean 'story.txt'?" in mistake(*train("lm", "stori.txt"))
    assert mistake(*train("lm", "corpuss")) == "'corpuss' is neither a file here nor a data set; did you mean 'corpus'?"
    assert "did you mean 'corpus'?" in mistake("train", "lm/gpt", "data.name=corpuss", "--out", "run")
    assert mistake(*train("lm", "zzzzzzzz")).endswith("nor a data set; `ayn list data` shows the data sets")
    assert "these fit: corpus" in mistake(*train("lm", "phrasebook"))


@pytest.mark.slow
def test_a_pipe_is_refused(command, tmp_path):
    done = command("train", "lm/gpt", "--data", "/dev/stdin", "--out", "run", input="one two\n", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "ayn: /dev/stdin is a pipe, which can be read only once: save the data to a file and give that file\n"
    )


def test_a_path_that_the_system_refuses(story, tmp_path):
    long = "x" * 5000 + ".txt"
    assert mistake(*train("lm", long)).endswith("cannot be opened: File name too long")
    assert mistake(*train("lm", long, "--data", long)).endswith("cannot be opened: File name too long")
    assert mistake(*train("lm", story, f"data.valid_path={long}")).endswith("cannot be opened: File name too long")
    shutil.copy(story, tmp_path / "caf\udce9.txt")
    assert mistake(*train("lm", "caf\udce9.txt")).endswith(r"caf\udce9.txt is not valid UTF-8: rename it")
    assert mistake(*train("lm", "~nobody at all/story.txt")).endswith("does not exist")


def test_a_file_that_changes_during_the_training_changes_nothing(pairs, tmp_path, monkeypatch):
    rows = pairs.read_text().splitlines(keepends=True)
    Path("mine.tsv").write_text("".join(rows))
    assert ayn(*train("translate", "mine.tsv", out="left alone")).code == 0
    begin = Translate.begin

    def meddle(self, model, say):
        Path("mine.tsv").write_text("".join(rows[::-1][:100]))
        begin(self, model, say)

    monkeypatch.setattr(Translate, "begin", meddle)
    done = ayn(*train("translate", "mine.tsv", out="meddled with"))
    assert done.code == 0, done.err
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("left alone", "meddled with")]
    scores = [(tmp_path / run / "scores.json").read_text() for run in ("left alone", "meddled with")]
    assert scores[0] == scores[1]
    assert weights[0][-1000:] == weights[1][-1000:]


def test_a_folder_without_usable_files(tmp_path):
    (tmp_path / "folder").mkdir()
    assert "has no text file" in mistake(*train("lm", "folder"))
    assert "has no train.* file (it has nothing)" in mistake(*train("translate", "folder"))
    (tmp_path / "folder" / "a.bin").write_bytes(b"\0\1")
    assert "has no text file" in mistake(*train("lm", "folder"))
    assert "has no train.* file (it has a.bin)" in mistake(*train("translate", "folder"))


def test_a_file_that_was_not_given_with_data(story, tmp_path):
    shutil.copy(story, tmp_path)
    assert mistake("train", "lm/gpt", "story.txt").endswith("own data is given with --data story.txt")


def test_a_tokenizer_that_is_not_there_or_none(story, tmp_path):
    assert mistake(*train("lm", story, "text.path=no.json")) == "there is no tokenizer file no.json"
    (tmp_path / "a.json").write_text("{}")
    assert "a.json is not a tokenizer.json" in mistake(*train("lm", story, "text.path=a.json"))


def test_a_cache_that_cannot_be_written(story, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "file" / "cache"))
    assert "ALLYOUNEED_CACHE" in mistake(*train("lm", story))


def test_sentences_longer_than_learned_positions_are_cut_in_training_and_in_the_test(pairs):
    assert ayn(*train("translate", pairs, "model.positions=learned", "model.context=4", out="run")).code == 0
    assert "reads at most 4" in mistake("use", "run", "one two three four")


def test_words_that_training_never_saw_do_not_stop_the_test(tmp_path):
    (tmp_path / "test.tsv").write_text("zzz\tzzz\n")
    (tmp_path / "train.tsv").write_text("".join(f"one {i}\tuno {i}\n" for i in range(200)))
    done = ayn(*train("translate", "train.tsv", "text.kind=word", "data.test_path=test.tsv"))
    assert done.code == 0, done.err
    assert "BLEU" in done.out


# Downloads


@pytest.fixture
def server(tmp_path) -> Iterator[str]:
    """Serves tmp_path/web."""
    (tmp_path / "web").mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given: object) -> None:
            super().__init__(*given, directory=str(tmp_path / "web"))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, address: str) -> str:
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "cache"))
    entries = {
        name: replace(entry, forms=[Form("text", {"train": [replace(entry.forms[0].every_file[0], address=address)]})])
        if name == "tinyshakespeare"
        else entry
        for name, entry in registry.SETS.items()
    }
    monkeypatch.setattr(registry, "SETS", entries)
    done = ayn("train", "lm/shakespeare", "--out", f"run {next(NUMBERS)}", *TINY_LM)
    assert done.code == 2
    assert "Traceback" not in done.err
    return done.err


def test_a_download_that_fails(server, monkeypatch, tmp_path):
    said = download(monkeypatch, tmp_path, f"{server}/input.txt")
    assert f"{server}/input.txt cannot be downloaded: the server answered 404" in said
    assert "--mirror DIR" in said
    said = download(monkeypatch, tmp_path, "http://127.0.0.1:1/input.txt")
    assert "127.0.0.1:1/input.txt cannot be downloaded" in said
    assert "refused" in said


def test_a_download_with_the_wrong_checksum(server, monkeypatch, tmp_path):
    (tmp_path / "web" / "input.txt").write_text("something else")
    said = download(monkeypatch, tmp_path, f"{server}/input.txt")
    assert "wrong checksum" in said
    assert not [path for path in (tmp_path / "cache").rglob("input*") if path.is_file()]


def test_a_mirror_with_the_wrong_file_or_none(tmp_path):
    wrong = tmp_path / "mirror" / "tinyshakespeare" / "input.txt"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("something else")
    said = mistake("train", "lm/shakespeare", "--out", "run", "--mirror", "mirror")
    assert f"{wrong} has the wrong checksum" in said
    assert "is not a folder" in mistake("train", "lm/shakespeare", "--out", "run2", "--mirror", "nowhere")


# use and test

TEXTS = {
    "": r"is empty",
    "   ": r"is empty",
    "漢字漢字": r"most of the \w+ is not in this model's vocabulary: '漢",
    "one\udcff": r"not valid Unicode",
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("table", [[], ["--table"]])
def test_a_text_that_no_model_takes(text, table, lm, translator):
    for run in (lm, translator):
        done = ayn("use", run, text, *table)
        assert done.code == 2
        assert done.out == ""
        assert re.search(TEXTS[text], done.err)


def test_a_text_longer_than_the_model_takes(lm, translator):
    long = "one " * 50
    done = ayn("use", lm, long)
    assert (done.code, done.out) == (2, "")
    assert "the prompt has 200 tokens, but this model reads at most 16: shorten it" in done.err
    assert ayn("use", translator, long).code == 0  # sinusoidal positions do not end


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("bem=5", r"\[decode\] has no key 'bem'; did you mean 'beam'\?"),
        ("beam", r"--set beam is not of the form key=value, for example --set beam=5"),
        ("beam=x", r"decode.beam = 'x' is not a whole number"),
        ("beam=0", r"decode.beam = 0 is too small"),
        ("top_p=2", r"decode.top_p = 2.0 is too large"),
        ("method=best", r"decode.method = 'best' is not one of greedy, sample, beam"),
        ("temperature=inf", r"decode.temperature = inf is not a finite number"),
    ],
)
def test_a_wrong_setting_of_the_search_is_told_before_anything_is_read(setting, expected, lm, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    assert re.fullmatch(expected + ".*", mistake("use", lm, "--set", setting))


def test_a_wrong_split_or_section(lm):
    said = mistake("test", lm, "--split", "tset")
    assert said == "the data of this run has no split 'tset'; there is train, valid, test"
    assert mistake("test", lm, "train.steps=5") == (
        "here only decode.key=value and data.key=value can be changed, not [train]"
    )
    assert "did you mean 'beam'?" in mistake("test", lm, "decode.bem=5")


def test_data_that_has_gone(story, tmp_path):
    shutil.copy(story, tmp_path / "mine.txt")
    assert ayn(*train("lm", "mine.txt", out="run")).code == 0
    (tmp_path / "mine.txt").unlink()
    assert f"the data of this run, {tmp_path / 'mine.txt'}, is missing" in mistake("test", "run")
    assert ayn("use", "run", "one").code == 0


def test_a_figure_that_cannot_be_drawn(lm, translator, tmp_path):
    assert "no source to align with" in mistake("use", lm, "one", "--alignment", "a.png")
    assert "choose a name that ends in .png or .svg" in mistake("use", translator, "one", "--alignment", "a.txt")
    assert "give one TEXT" in mistake("use", translator, "one", "two", "--alignment", "a.png")
    (tmp_path / "file").touch()
    assert "could not write" in mistake("use", translator, "one", "--alignment", "file/a.png")
