"""The notebooks of the lecture notes: short, without outputs, linked; and each runs from a fresh kernel."""

from __future__ import annotations

import ast
import re

import pytest
from rich import console

from allyouneed import lectures
from allyouneed.exercises import EXERCISES
from allyouneed.training.progress import Progress
from notebooks import NAMES, path, read, run_once, sources, topics
from test_docs import TOP, check_commands, spans

CELLS, LINES, SECONDS = 15, 15, 240
PRINTED = 40  # lines that a cell prints, at most
each_notebook = pytest.mark.parametrize("name", NAMES)


def test_there_is_one_for_each_note_and_each_is_linked():
    assert {file.stem for file in (TOP / "notebooks").iterdir()} == set(NAMES)
    for document, start in (("README.md", "notebooks/"), ("docs/lectures.md", "../notebooks/")):
        linked = re.findall(r"\]\((\S+\.ipynb)\)", (TOP / document).read_text(encoding="utf-8"))
        assert linked == [f"{start}{name}.ipynb" for name in NAMES], document


@each_notebook
def test_it_is_a_short_notebook_without_outputs(name):
    notebook = read(name)
    pytest.importorskip("nbformat").validate(notebook)
    assert notebook.nbformat == 4
    assert 10 <= len(notebook.cells) <= CELLS
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert (cell.outputs, cell.execution_count) == ([], None), cell.id
            assert len(cell.source.splitlines()) <= LINES, cell.id
            ast.parse(cell.source)
        else:
            assert len(cell.source.split()) <= 150, cell.id


@each_notebook
def test_it_depends_on_no_place(name):
    for cell in read(name).cells:
        assert not re.search(r"(?:^|[\s\"'(=`])(?:/\w|~/|[A-Z]:\\)", cell.source), cell.id
        assert "://" not in cell.source, cell.id
    first = sources(name, "code")[0].splitlines()[0]
    assert first.startswith("# If allyouneed is not installed")
    assert "%pip install" in first


@each_notebook
def test_what_it_names_exists(name):
    text = "\n".join(sources(name, "markdown"))
    check_commands(text)
    for link, place in re.findall(r"\]\(([^)#]+)(?:#([^)]+))?\)", text):
        target = (path(name).parent / link).resolve()
        assert target.is_file(), link
        assert not place or f"## {place.replace('-', ' ')}" in target.read_text(encoding="utf-8").lower(), place
    for command in spans(text):
        words = command.split()
        known = {"exercise": EXERCISES, "lecture": lectures.TOPICS}.get(words[1] if words[0] == "ayn" else "", words)
        assert words[-1] in known, command
    assert {*re.findall(r"\blecture\(\"([^\"]+)\"", text), *topics(name)} <= set(lectures.TOPICS)
    assert re.search(r"`ayn exercise \S+`", text)
    assert "questions.md" in text


def test_no_topic_is_in_two_notebooks():
    every = [topic for name in NAMES for topic in topics(name)]
    assert len(every) == len(set(every)) >= 5


def test_the_lines_of_a_training_are_plain_text_in_a_notebook(monkeypatch, capsys):
    monkeypatch.setattr(console, "_is_jupyter", lambda: True)
    with Progress(1) as progress:
        progress.update(1, 2.0, 10.0, 1e-3)
    assert capsys.readouterr().out.startswith("step 1/1  loss 2.0000")


@pytest.mark.slow
@each_notebook
def test_it_runs_from_a_fresh_kernel(name, tmp_path_factory):
    """Each claim that it shows is an assertion in one of its cells."""
    assert sum(source.count("\nassert ") for source in sources(name, "code")) >= 3
    folder = run_once(name, tmp_path_factory)
    # On one core or two, the tests beside it do not count.
    assert float((folder / "seconds").read_text()) < SECONDS
    notebook = pytest.importorskip("nbformat").read(folder / "shown.ipynb", as_version=4)
    outputs = [(cell.id, output) for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [text for id, output in outputs if output.get("name") == "stderr" for text in (id, output.text)]
    drawn = [output for _, output in outputs if {"image/png", "text/html"} & output.get("data", {}).keys()]
    assert len(drawn) >= 2
    for cell in notebook.cells:
        printed = "".join(output.text for output in cell.get("outputs", ()) if output.output_type == "stream")
        assert len(printed.splitlines()) <= PRINTED, cell.id
