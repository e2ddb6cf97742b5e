"""Words of a text that a run does not know are named with its answer, wherever a person or a program sees it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from allyouneed.config import TextConfig
from allyouneed.errors import UserError
from allyouneed.predict.inputs import unknown_note, unknown_words
from allyouneed.text import Tokenizer
from browser import browsing, serving
from commands import ayn
from families import FAMILIES, made
from forking import Server

WORD = "þorn"  # it is in no text, and þ in none either
KNOWN = {  # by task: a text whose words each run of it knows
    "lm": "The dog sleeps",
    "pretrain": "the dog [MASK] in the garden",
    "translate": "I am tired.",
    "classify": "the soup was good",
    "tag": "Please ask Mark Carter for the book .",
    "answer": "Where is Anna? ||| Anna is in the garden. Tom is at home.",
    "embed": "I am tired. ||| Io sono stanco.",
}
READERS = [name for name in FAMILIES if FAMILIES[name][0].partition("/")[0] in KNOWN]
SPELLED = ("tag-elmo",)  # they read letters, so that no word is unknown
NOTE = f"this run does not know: '{WORD}'"


def known(name: str) -> str:
    return KNOWN[made(name).recipe.task_kind]


@pytest.fixture
def forked(forking: Server, tmp_path: Path) -> Callable[..., tuple[int, list[str], str]]:
    """Run `ayn …` in a forked process: its exit code, the lines of its output, and what it said."""

    def run(*arguments: object) -> tuple[int, list[str], str]:
        out, err = tmp_path / "out", tmp_path / "err"
        for path in (out, err):
            path.write_bytes(b"")
        words = [str(word) for word in arguments]
        code = forking.call("forking", "run_command", words, str(tmp_path), str(out), str(err))
        return code, out.read_text().splitlines(), err.read_text()

    return run


@pytest.mark.parametrize("name", READERS)
def test_an_answer_of_every_family_names_the_word_that_is_unknown(name, forked):
    run, expected = made(name), {} if name in SPELLED else {"unknown": [WORD]}
    texts = [known(name), f"{known(name)} {WORD}", f"{known(name)} {WORD} {WORD}"]
    answers = run.answers(texts)
    flags = [{key: value for key, value in one.details.items() if key == "unknown"} for one in answers]
    assert flags == [{}, expected, expected]
    assert run.predict(texts) == [one.text for one in answers]
    code, lines, said = forked("use", run.folder.path, *texts[:2], "--json")
    assert (code, said) == (0, "")
    given = [json.loads(line) for line in lines]
    assert [one["input"] for one in given] == texts[:2]
    assert [{key: value for key, value in one.items() if key == "unknown"} for one in given] == [{}, expected]
    assert given[0].keys() == given[1].keys() - {"unknown"}


@pytest.mark.parametrize(("name", "text"), [("word2vec", f"king + {WORD}"), ("dalle", f"a small red {WORD}")])
def test_the_families_that_refuse_a_text_with_an_unknown_word_name_it(name, text):
    with pytest.raises(UserError, match=f"'{WORD}'"):
        made(name).answers([text])


def test_several_words_are_named_once_each_in_order_and_no_special_token_is():
    run = made("bert")
    for text in (f"the {WORD} [MASK] in the ☃ and ☃ ||| the {WORD} is æþ .", f"a ☃{WORD} [MASK]"):
        assert "[MASK]" in text
        (answer,) = run.answers([text])
        assert answer.details["unknown"] == ([f"☃{WORD}"] if "|||" not in text else [WORD, "☃", "æþ"])
    (pair,) = made("embed").answers([f"I am {WORD}. ||| Io sono {WORD} ☃."])
    assert pair.details["unknown"] == [WORD, "☃"]
    (asked,) = made("answer").answers([f"Who is ☃? ||| {WORD} is in the garden ."])
    assert asked.details["unknown"] == ["☃", WORD]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("char", ("þ",)), ("word", (WORD,)), ("wordpiece", (WORD,)), ("bert", (WORD,)), ("terms", (WORD,)), ("bpe", ())],
)
def test_what_is_unknown_to_a_tokenizer_is_named_as_it_stands_in_the_text(kind, expected):
    tokenizer = Tokenizer.train(["the corn and the thorn\n"] * 9, TextConfig(kind=kind, vocab=300, lowercase=True))
    text = "the þ corn" if kind == "char" else f"the corn and the {WORD}"
    assert unknown_words(tokenizer, (text, tokenizer.encode(text))) == expected
    fine = "the corn and the thorn"
    assert unknown_words(tokenizer, (fine, tokenizer.encode(fine))) == ()


def test_white_space_is_no_word():
    tokenizer = Tokenizer.train(["the corn"] * 9, TextConfig(kind="word"))
    ids = tokenizer.encode("the  corn\n\tcorn ")
    assert tokenizer.unk in ids
    assert unknown_words(tokenizer, ("the  corn\n\tcorn ", ids)) == ("corn",)  # it was never the first of a text


def test_vectors_of_any_run_name_unknown_words(forked):
    for name in ("gpt", "bert", "tag-lstm", "classify-rnn"):
        text = f"{KNOWN['tag'] if name == 'tag-lstm' else 'the'} {WORD}."
        code, (line,), said = forked("use", made(name).folder.path, text, "--embed", "--json")
        assert (code, said) == (0, "")
        assert WORD in json.loads(line)["unknown"]
        assert all(word in text for word in json.loads(line)["unknown"])
    code, (line,), _ = forked("use", made("tag-elmo").folder.path, f"the {WORD}.", "--embed", "--json")
    assert (code, "unknown" in json.loads(line)) == (0, False)


@pytest.mark.parametrize("name", ["gpt", "bert", "transformer", "classify-rnn", "tag-lstm", "answer", "embed"])
def test_a_note_stands_on_standard_error_and_the_answer_is_as_it_was(name, forked):
    run, text = made(name).folder.path, f"{known(name)} {WORD}"
    code, lines, said = forked("use", run, text)
    (answer,) = made(name).answers([text])
    assert (code, said) == (0, f"{NOTE}\n")
    assert "\n".join(lines) == made(name).predictor.opening(text) + (answer.shown or answer.text)
    assert forked("use", run, known(name))[2] == ""
    if name in ("gpt", "bert", "transformer", "tag-lstm"):
        code, lines, said = forked("use", run, known(name), text, "--table")
        assert (code, said) == (0, f"{NOTE}\n")
        assert WORD not in lines[-1] or name == "tag-lstm"


def test_the_figure_of_an_attention_comes_with_the_note(forked):
    run, text = made("transformer").folder.path, f"I am {WORD}."
    for drawn in ("--heads", "--alignment"):
        code, _, said = forked("use", run, text, drawn, "a.png")
        assert (code, said) == (0, f"{NOTE}\n")


class Typed:
    """Standard input at a terminal, at which these lines are typed."""

    def __init__(self, *lines: str) -> None:
        self.lines = iter(lines)

    def isatty(self) -> bool:
        return True

    def input(self, prompt: str) -> str:
        try:
            return next(self.lines)
        except StopIteration:
            raise EOFError from None


def test_each_line_that_is_typed_has_its_note(monkeypatch):
    typed = Typed("I am tired.", f"I am {WORD}.")
    monkeypatch.setattr(sys, "stdin", typed)
    monkeypatch.setattr("builtins.input", typed.input)
    run = made("transformer")
    done = ayn("use", run.folder.path)
    assert done.code == 0
    assert done.out.splitlines() == run.predict(["I am tired.", f"I am {WORD}."])
    assert done.err.splitlines()[1:-1] == [NOTE]


def test_each_line_of_a_stream_has_its_note_with_its_number(monkeypatch, tmp_path):
    run, path = made("transformer"), tmp_path / "lines"
    lines = ["I am tired.", f"I am {WORD}.", "", f"The {WORD} book."]
    path.write_text("\n".join(lines) + "\n")

    def streamed(*flags: str) -> Any:
        with path.open() as file:
            monkeypatch.setattr(sys, "stdin", file)
            return ayn("use", run.folder.path, *flags)

    done, table, as_json = streamed(), streamed("--table"), streamed("--json")
    notes = [f"line 2: {NOTE}", f"line 4: {NOTE}"]
    assert done.out.splitlines() == [run.predict(line) if line else "" for line in lines]
    assert (done.code, done.err.splitlines()) == (0, notes)
    assert (table.code, table.err.splitlines()) == (0, notes)
    found = [json.loads(line) for line in as_json.out.splitlines()]
    assert [one.get("unknown") for one in found] == [None, [WORD], None, [WORD]]
    assert (as_json.code, as_json.err) == (0, "")


def test_no_word_steers_a_terminal_and_no_note_is_endless(forked):
    run, text = made("classify-rnn").folder.path, "the soup was \x1b[31m good \u202e and \x9b2J"
    code, lines, said = forked("use", run, text)
    assert code == 0
    assert "'\\x1b'" in said
    assert "'\\u202e'" in said
    (line,) = forked("use", run, text, "--json")[1]
    assert {"\x1b", "\u202e"} < set(json.loads(line)["unknown"])
    for shown in (said, *lines, line):
        assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    many = unknown_note([f"w{i}" for i in range(20)])
    assert many == "this run does not know: 'w0', 'w1', 'w2', 'w3', 'w4', 'w5', 'w6', 'w7', …"
    assert len(unknown_note(["x" * 10_000])) < 200


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        ("I am tired.", []),
        (f"I am {WORD}.", [f"This run does not know: '{WORD}'. The model reads them as one unknown word."]),
    ],
)
def test_the_page_has_one_note(text, notes):
    with serving(made("transformer")) as address, browsing() as page:
        page.open(address, f"view=answer&text={quote(text)}")
        page.tab.locator("[role=tabpanel] .card").first.wait_for()
        assert page.texts(".note") == notes
        assert page.errors == []
