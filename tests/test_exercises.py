"""`ayn exercise`: what is left out can be filled in, right answers are right, and each wrong one is told why."""

from __future__ import annotations

import ast
import re

import pytest

from allyouneed.errors import UserError
from allyouneed.exercises import EXERCISES, begin, blanks, template
from allyouneed.exercises.checking import check
from allyouneed.exercises.checks import CHECKS
from allyouneed.terminal import printable
from commands import ayn
from test_docs import HOME

# What belongs in place of each `...`, by its number.
SOLUTIONS = {
    "attention": [
        "q @ k.T / math.sqrt(d_k)",
        "scores.softmax(-1)",
        "weights @ v",
        "x.unflatten(1, (heads, -1)).transpose(0, 1)",
        "x.transpose(0, 1).flatten(1)",
    ],
    "mask": [
        "torch.ones(tokens, tokens, dtype=torch.bool).tril()",
        "torch.arange(tokens) < lengths[:, None]",
        "scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)",
        "hidden.softmax(-1).masked_fill(~allowed, 0.0)",
    ],
    "positions": [
        "positions[:, None] / 10000 ** (2 * i / width)",
        "torch.stack([a.sin(), a.cos()], dim=-1).flatten(1)",
        "torch.stack([sine * angle.cos() + cosine * angle.sin(), cosine * angle.cos() - sine * angle.sin()], -1)",
    ],
    "beam-search": [
        "([*tokens, token], logprob + more)",
        "sorted(hypotheses, key=lambda one: -one[1])[:count]",
        "best(extend(beam, step), size)",
        "[one for one in chosen if one[0][-1] == end or len(one[0]) == longest]",
        "[one for one in chosen if one[0][-1] != end and len(one[0]) < longest]",
    ],
    "masking": [
        "max(1, round(part * len(chances)))",
        "chances <= chances.sort().values[count - 1]",
        "torch.where(chosen & (chances < 0.8), mask, torch.where(chosen & (chances < 0.9), others, ids))",
        "torch.where(chosen, ids, IGNORE)",
    ],
    "patches": [
        "(image // patch) ** 2 + 1",
        "image.unfold(1, patch, patch).unfold(2, patch, patch).permute(1, 2, 0, 3, 4).flatten(0, 1).flatten(1)",
        "torch.cat([cls[None], patches @ matrix]) + positions",
    ],
}
# A mistake that students make: which blank, what they write, and what they are told.
MISTAKES = [
    ("attention", 1, "q @ k.T", "not divided by the root of d_k"),
    ("attention", 1, "q @ k.T / d_k", "divided by d_k, not by its root"),
    ("attention", 2, "scores.softmax(0)", "along which axis?"),
    ("attention", 2, "scores.softmax(-1).T", "line 25: RuntimeError"),
    ("attention", 3, "weights @ v * 2", "the output is off by"),
    ("attention", 3, "v @ weights", "line 25: RuntimeError"),
    ("attention", 4, "x.view(heads, -1, x.size(1) // heads)", "head 1 has the first 4 of 12 columns"),
    ("attention", 5, "None", "join_heads should be a tensor, not NoneType"),
    ("mask", 1, "torch.ones(tokens, tokens, dtype=torch.bool).tril(-1)", "a token should see itself, too"),
    ("mask", 1, "torch.ones(tokens, tokens, dtype=torch.bool).triu()", "row i sees the columns 0 to i"),
    ("mask", 1, "torch.ones(tokens, tokens).tril()", "should have the type torch.bool, not torch.float32"),
    ("mask", 2, "torch.arange(tokens) <= lengths[:, None]", "is off by"),
    ("mask", 3, "scores * allowed", "a score of 0 still gets a weight"),
    ("mask", 3, "scores", "hide the scores before the softmax"),
    ("mask", 3, "scores.masked_fill(~allowed, -torch.inf)", ""),
    ("mask", 4, "hidden.softmax(-1)", "the second query sees nothing"),
    ("positions", 1, "positions[:, None] / 10000 ** (i / width)", "the last of width 6 is 1 / 10000^(4/6)"),
    ("positions", 2, "torch.cat([a.sin(), a.cos()], dim=-1)", "all sines come first"),
    ("positions", 3, "torch.stack([sine * angle.cos(), cosine * angle.cos()], -1)", "should be PE(p + 3)"),
    ("beam-search", 1, "([*tokens, token], more)", "the log-probability"),
    ("beam-search", 2, "sorted(hypotheses, key=lambda one: one[1])[:count]", "best should give [2] and [3]"),
    ("beam-search", 4, "[one for one in chosen if one[0][-1] == end]", "line 37: IndexError"),
    ("beam-search", 5, "[one for one in chosen if one[0][-1] != end]", "which is the longest that is allowed, goes on"),
    ("masking", 1, "round(part * len(chances))", "at least one"),
    ("masking", 3, "torch.where(chances < 0.8, mask, ids)", "should stay as they are"),
    ("masking", 3, "torch.where(chosen, mask, ids)", "80 % become the mask"),
    ("masking", 4, "torch.where(chosen, ids, 0)", "targets is off by up to 100"),
    ("patches", 1, "(image // patch) ** 2", "are 197 tokens, not 196"),
    ("patches", 2, "image.view(3, 2, 4, 3, 4).permute(1, 3, 2, 4, 0).reshape(6, 48)", "the first channel comes first"),
    ("patches", 3, "torch.cat([patches @ matrix, cls[None]]) + positions", "[CLS] comes first"),
]  # fmt: skip


def filled(name: str, changes: dict[int, str] | None = None) -> str:
    """The file of an exercise with its solutions, of which some are changed."""
    answers = iter(enumerate(SOLUTIONS[name], 1))

    lines = template(name).splitlines()
    for at in blanks(template(name)):
        number, answer = next(answers)
        lines[at - 1] = lines[at - 1].replace("...", (changes or {}).get(number, answer))
    text = "\n".join(lines) + "\n"
    assert next(answers, None) is None
    return text


@pytest.mark.parametrize("name", EXERCISES)
def test_right_answers_are_right(name, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(filled(name))
    results = list(check(name, file))
    assert [result.about for result in results] == list(CHECKS[name])
    assert [result.wrong for result in results] == [""] * len(results)


@pytest.mark.parametrize(("name", "blank", "answer", "told"), MISTAKES)
def test_a_mistake_is_told_in_words(name, blank, answer, told, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(filled(name, {blank: answer}))
    wrong = [result.wrong for result in check(name, file) if result.wrong]
    assert any(told in text for text in wrong) if told else not wrong, wrong


@pytest.mark.parametrize("name", EXERCISES)
def test_what_is_left_out_is_numbered_and_the_rest_is_code(name):
    text = template(name)
    tree = ast.parse(text)
    assert [line for line in text.splitlines() if len(line) > 120] == []
    assert len(blanks(text)) == len(SOLUTIONS[name])
    numbers = [int(number) for number in re.findall(r"# (\d+)\.", text)]
    assert numbers == list(range(1, len(SOLUTIONS[name]) + 1))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert all(ast.get_docstring(function) for function in functions if len(function.body) > 1)
    assert EXERCISES[name].solution in text
    assert (HOME / EXERCISES[name].solution).is_file()


def test_the_command_writes_the_file_once_and_then_checks_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert all(name in ayn("exercise").out for name in EXERCISES)
    first = ayn("exercise", "attention")
    assert first.code == 0, first.err
    assert (
        first.out == "attention.py is written: replace each ... in it, then check it with\n  ayn exercise attention\n"
    )
    assert (tmp_path / "attention.py").read_text() == template("attention")
    empty = ayn("exercise", "attention")
    assert (empty.code, empty.err) == (2, "ayn: attention.py still has a ... in lines 23, 24, 25, 31, 36\n")
    (tmp_path / "attention.py").write_text(filled("attention", {1: "q @ k.T"}))
    half = ayn("exercise", "attention")
    assert half.code == 1
    assert "not yet  the weights of each query: the scores are not divided by the root of d_k" in half.out
    assert "right    heads, apart and together" in half.out
    (tmp_path / "attention.py").write_text(filled("attention"))
    done = ayn("exercise", "attention")
    assert done.code == 0
    assert done.out.endswith("all is right; the library has it in nn/attention.py\n")
    assert (tmp_path / "attention.py").read_text() == filled("attention")
    other = ayn("exercise", "mask", "mine/mask.py")
    assert other.code == 0, other.err
    assert "ayn exercise mask mine/mask.py" in other.out
    assert (tmp_path / "mine" / "mask.py").read_text() == template("mask")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def attend(:\n", "cannot be run: line 1: invalid syntax"),
        ("raise ValueError('x\\x1b[2J')", "cannot be run: line 1: ValueError: x"),
        ("import nothing_of_this_name", "cannot be run: line 1: ModuleNotFoundError"),
        ("x = 1 / 0\n", "cannot be run: line 1: ZeroDivisionError"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_run(text, told, tmp_path):
    file = tmp_path / "own.py"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = ayn("exercise", "attention", str(file))
    assert done.code == 2
    assert told in done.err
    assert printable(done.err) == done.err


def test_what_is_missing_and_what_does_not_exist(tmp_path):
    (tmp_path / "own.py").write_text("x = 1\n")
    missing = ayn("exercise", "mask", str(tmp_path / "own.py"))
    assert missing.code == 1
    assert missing.out.count("not yet") == len(CHECKS["mask"])
    assert "own.py has no function causal" in missing.out
    wrong = ayn("exercise", "atention")
    assert wrong.code == 2
    assert "did you mean 'attention'?" in wrong.err
    folder = ayn("exercise", "mask", str(tmp_path))
    assert folder.code == 2
    assert "cannot be read" in folder.err
    with pytest.raises(UserError, match="is there already"):
        begin("mask", tmp_path / "own.py")
    nowhere = ayn("exercise", "mask", str(tmp_path / "own.py" / "mask.py"))
    assert nowhere.code == 2
    assert nowhere.err.startswith("ayn: ")


def test_names_of_checks_and_exercises_are_the_same():
    assert list(CHECKS) == list(EXERCISES) == list(SOLUTIONS)
