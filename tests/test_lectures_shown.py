"""`lecture(...)` in Python: what the command tells, told once, as a page of a notebook and as numbers."""

from __future__ import annotations

import html
import json
import shlex

import pytest

import allyouneed
from allyouneed import lecture, load
from allyouneed.errors import UserError
from allyouneed.lectures import booklet, gradients, paths
from allyouneed.lectures.base import Lecture
from browser import offline  # noqa: F401  (a fixture)
from commands import ayn, trained


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr(gradients, "SEEDS", 1)
    monkeypatch.setattr(paths, "LENGTHS", (8, 16))
    monkeypatch.setattr(paths, "REPEATS", 1)


def test_a_notebook_draws_what_the_booklet_has_and_nothing_is_printed(tmp_path, capsys):
    shown = lecture("gradients", out=tmp_path)
    assert capsys.readouterr() == ("", "")
    record = json.loads((tmp_path / "gradients.json").read_text())
    assert shown.numbers == record["numbers"]
    assert [path.name for path in shown.files] == ["gradients.png", "gradients.json"]
    page = booklet.write_booklet(tmp_path).read_text()
    assert shown.section() in page
    assert shown.section() in shown._repr_html_()
    assert repr(shown).startswith("Shown('gradients', numbers: distance, RNN")
    assert len(repr(shown).splitlines()) == 1


def test_print_and_the_command_say_the_same_words(tmp_path):
    said: list[str] = []
    shown = lecture("paths", out=tmp_path, say=said.append)
    assert str(shown) == "\n".join(said)
    assert "longest path" in str(shown)


def test_the_style_of_a_topic_stays_inside_it(tmp_path, offline):  # noqa: F811
    shown = lecture("paths", out=tmp_path)
    page = tmp_path / "page.html"
    page.write_text(f"<h2 id='own'>own</h2><table><tr><td>own</td></tr></table>{shown._repr_html_()}")
    tab = offline.open(page).tab
    size = "found => getComputedStyle(found).fontSize"
    assert tab.locator("#own").evaluate(size) == "24px" != tab.locator("#paths h2").evaluate(size)
    assert tab.locator("#paths tbody tr").count() == 8
    assert (offline.outside, offline.errors) == ([], [])


def test_the_trainings_of_a_topic_print_one_line(tmp_path, capsys):
    made = Lecture(tmp_path, lambda text: None, quiet=True)
    for line in (f"training, into {tmp_path / 'models'}: one, two\n", ""):  # then both are there
        with made.topic("words", ()):
            for name in ("one", "two"):
                made.trained("wordvectors/skipgram", "train.epochs=1", name=name)
        assert capsys.readouterr().out == line
    Lecture(tmp_path, lambda text: None).trained("wordvectors/skipgram", "train.epochs=1", name="three")
    assert "training, into" not in (loud := capsys.readouterr().out)
    assert "step " in loud


def test_a_run_is_given_as_it_is_or_by_its_folder(tmp_path, pairs):
    run = load(trained("translate", pairs))
    text = "one two three"
    of_run, of_folder = (lecture("alignment", text, run=one, out=tmp_path) for one in (run, run.folder.path))
    assert of_run.numbers == of_folder.numbers
    command = shlex.join(["ayn", "lecture", "alignment", text, "--run", str(run.folder.path)])
    assert f"<pre>{html.escape(command)}</pre>" in of_run.section()


def test_errors_are_those_of_the_command_in_the_words_of_python(tmp_path):
    for given, message in (
        ({"topic": "gradient"}, "did you mean 'gradients'"),
        ({"topic": "paths", "text": "a"}, "takes no text of your own"),
        ({"topic": "paths", "run": "a"}, "makes its own models; run is for"),
        ({"topic": "all"}, "ayn lecture all"),
        ({"topic": "by-hand", "text": "alone"}, "needs a sentence of 2 to 10 words"),
    ):
        with pytest.raises(UserError, match=message):
            lecture(out=tmp_path, **given)
    assert "makes its own models; --run is for" in ayn("lecture", "paths", "--run", "a").err


def test_it_is_at_the_front_door():
    assert allyouneed.lecture is lecture
    assert "lecture" in dir(allyouneed)
