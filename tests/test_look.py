"""`look`: a page of every family, in a real browser with the network off; its numbers are those of the model."""

from __future__ import annotations

from pathlib import Path

import pytest

from browser import Watched, offline  # noqa: F401  (a fixture)
from commands import ayn
from families import FAMILIES, made

SLOW = ("dvae", "dalle")
EACH = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in FAMILIES]


def saved(name: str, folder: Path) -> Path:
    return made(name).look(FAMILIES[name][2][0]).save(folder / f"{name}.html")


@pytest.mark.parametrize("name", EACH)
def test_the_page_of_every_family_opens_from_disk_without_a_network(name, tmp_path, offline):  # noqa: F811
    page = offline.open(saved(name, tmp_path))
    for tab in page.tab.locator("[role=tab]").all():
        tab.click()
        page.tab.wait_for_selector("[role=tabpanel] .card")
        page.tab.wait_for_timeout(50)
        assert page.tab.locator("[role=tabpanel] .card").first.inner_text().strip()
    assert page.outside == []
    assert page.errors == []


@pytest.mark.parametrize("name", ["gpt", "bert", "transformer", "attention", "convseq2seq", "vit"])
def test_the_weights_on_the_page_are_those_of_the_model(name, tmp_path, offline):  # noqa: F811
    text = FAMILIES[name][2][0]
    page = offline.open(saved(name, tmp_path), "view=attention&layer=0&head=0&token=1&as=matrix")
    (path, traced), *_ = made(name).trace(text, "weights").items()
    assert path.endswith(".weights")
    row = traced.value[0, 1]
    page.tab.wait_for_selector("table.read")
    at = [int(text) - 1 for text in page.texts("table.read .shape")]
    assert page.texts("table.read .weight") == [f"{row[i]:.3f}" for i in at]
    assert [f"{weight:.3f}" for weight in row.sort(descending=True)[0][:8]] == page.texts("table.read .weight")


def test_a_pointed_weight_is_named_and_a_click_pins_its_row(tmp_path, offline):  # noqa: F811
    page = offline.open(saved("gpt", tmp_path), "view=attention&layer=0&head=1&as=matrix")
    weights = made("gpt").trace(FAMILIES["gpt"][2][0], "weights")["body.stack.blocks.0.attention.weights"].value[1]
    frame = page.tab.locator("svg image").first
    box = frame.bounding_box()
    cell = box["width"] / weights.size(1)
    page.tab.mouse.move(box["x"] + 0.5 * cell, box["y"] + 2.5 * cell)
    assert page.text("[data-weight]") == f"{weights[2, 0]:.3f}"
    page.tab.mouse.down()
    page.tab.mouse.up()
    page.tab.wait_for_selector(".token[aria-pressed=true]")
    assert "token=2" in page.tab.url  # a link restores the same view
    again = page.tab.url.partition("#")[2]
    page.open(saved("gpt", tmp_path), again)
    page.tab.wait_for_selector(".token[aria-pressed=true]")
    assert page.tab.locator(".tokens .token").nth(2).get_attribute("aria-pressed") == "true"


def test_text_of_anyone_is_shown_and_never_run(tmp_path, offline):  # noqa: F811
    text = "the soup </script><script>document.title='run'</script> \x1b[31m <img src=x onerror=alert(1)>"
    page = offline.open(made("classify-bert").look(text).save(tmp_path / "page.html"))
    assert page.tab.title() == "run"  # the name of the run's folder
    assert "<script>" in page.text(".asked")
    assert page.tab.locator("img").count() == 0
    assert page.errors == []


def test_what_cannot_be_looked_at_is_a_sentence(tmp_path):
    run = made("gpt").folder.path
    for words, says in {
        ("no/such/run",): "there is no run folder",
        (run, "one", "two"): "put it in quotes",
        (run, " "): "the text is empty",
        (run, "--out", tmp_path / "a.html"): "give one, or leave --out out",
        (run, "the " * 100, "--no-open"): "tokens",
        (run, "The dog", "--no-open", "--out", tmp_path / "none" / "a.html"): "could not write",
    }.items():
        done = ayn("look", *words)
        assert (done.code, done.out) == (2, "")
        assert says in done.err
        assert len(done.err.splitlines()) == 1


def test_the_command_writes_a_page(tmp_path):
    done = ayn("look", made("gpt").folder.path, "The dog", "--no-open", "--out", tmp_path / "a.html")
    assert done.code == 0
    assert done.out.strip() == f"the page is in {tmp_path / 'a.html'}"
    assert (tmp_path / "a.html").read_bytes().startswith(b"<!doctype html>")
