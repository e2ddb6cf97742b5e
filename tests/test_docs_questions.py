"""docs/questions.md: every question has an answer, and the Python that shows it runs, each by itself."""

from __future__ import annotations

import re

import pytest
import torch

from test_docs import TOP, blocks

TEXT = (TOP / "docs" / "questions.md").read_text(encoding="utf-8")
PARTS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
SETUP = blocks(TEXT)[0][1]
QUESTIONS = {
    int(number): body
    for part in PARTS.values()
    for number, body in re.findall(r"^\*\*(\d+)\.(.*?</details>)", part, re.M | re.S)
}


def test_there_are_as_many_as_the_page_says():
    counts = {name: len(re.findall(r"^\*\*\d+\.", part, re.M)) for name, part in PARTS.items()}
    assert counts == {"Choose one": 10, "Problems": 4, "About the code": 20}
    assert list(QUESTIONS) == list(range(1, 35))


@pytest.mark.parametrize("number", range(1, 11))
def test_four_answers_and_one_is_right(number):
    asked, answer = QUESTIONS[number].split("<details")
    assert re.findall(r"\(([abcd])\) ", asked) == ["a", "b", "c", "d"]
    assert re.search(r"</summary>\n\n\(([abcd])\)\. ", answer)


@pytest.mark.parametrize("number", QUESTIONS)
def test_the_answer_is_true(number):
    ((language, code),) = blocks(QUESTIONS[number])
    assert (language, "assert" in code) == ("python", True)
    torch.manual_seed(0)
    here: dict[str, object] = {}
    exec(SETUP, here)
    exec(code, here)
