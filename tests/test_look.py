"""`look`: a page of every family, in a real browser with the network off; its numbers are those of the model."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from allyouneed.look.page import asset, scripts
from allyouneed.run import Run, train
from browser import OWN, browsing, offline, serving  # noqa: F401  (a fixture)
from commands import ayn
from families import FAMILIES, SMALL, made

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


def test_a_long_text_is_a_small_page_and_a_head_is_shown_at_once(tmp_path, offline):  # noqa: F811
    """12 layers of 12 heads over 512 tokens, with sharp attention as trained models have it."""
    run = wide_gpt(tmp_path / "run")
    text = " ".join(f"The dog sees {what} ." for what in ("the fox", "a cow", "the old king") for _ in range(40))
    page = run.look(" ".join(text.split()[:512])).save(tmp_path / "page.html")
    assert page.stat().st_size <= 20e6
    offline.open(page, "view=attention")
    offline.tab.wait_for_selector(".figure svg")
    paint = offline.tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    assert paint < 2000  # alone 300 ms; other tests may run beside it
    offline.tab.evaluate(CLICK_A_HEAD, 0)  # the first one also compiles the scripts
    took = sorted(offline.tab.evaluate(CLICK_A_HEAD, head) for head in (13, 77, 140, 55, 101))
    assert took[0] < 100, took  # the others may have waited for other tests
    assert offline.errors == []


CLICK_A_HEAD = """async (which) => {
  const head = document.querySelectorAll(".head")[which], began = performance.now();
  const shown = () => document.querySelector(".two > .card:nth-child(2) h2").textContent.endsWith(head.title);
  head.click();
  while (!shown()) await new Promise((next) => setTimeout(next));
  return performance.now() - began;
}"""


def wide_gpt(folder: Path) -> Run:
    model = {"layers": 12, "heads": 12, "width": 96, "context": 512}
    run = train("lm/gpt", *SMALL, "train.batch_tokens=64", model=model, out=folder, quiet=True)
    with torch.no_grad():
        for name, weight in run.model.named_parameters():
            if name.endswith("qkv.weight"):
                weight.mul_(25)
    return run


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(tmp_path, offline):  # noqa: F811
    framed = tmp_path / "notebook.html"
    shown = made("bert").look(FAMILIES["bert"][2][0])._repr_html_()
    framed.write_text(f"<!doctype html><meta charset=utf-8><p id=page>a cell</p>{shown}", encoding="utf-8")
    offline.open(framed)
    inside = offline.tab.frame_locator("iframe")
    inside.locator("[role=tab]", has_text="Attention").click()
    inside.locator(".head").first.wait_for()
    assert offline.outside == []
    assert offline.errors == []


def test_a_figure_is_saved_as_svg_and_png_and_its_numbers_are_copied(tmp_path):
    with browsing(offline=True, permissions=["clipboard-read", "clipboard-write"]) as page:
        page.open(saved("gpt", tmp_path), "view=attention&layer=1&head=0")
        weights = made("gpt").trace(FAMILIES["gpt"][2][0], "weights")["body.stack.blocks.1.attention.weights"].value[0]
        for kind, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
            with page.tab.expect_download() as waiting:
                page.tab.get_by_role("button", name=kind).click()
            assert Path(waiting.value.path()).read_bytes().startswith(start)
        page.tab.get_by_role("button", name="CSV").click()
        page.tab.wait_for_function("document.getElementById('said').textContent === 'CSV copied'")
        rows = page.tab.evaluate("navigator.clipboard.readText()").strip().split("\n")
        assert [float(cell) for cell in rows[-1].split(",")[1:]] == [round(float(w), 3) for w in weights[-1]]
        assert page.errors == []


def test_the_keyboard_is_enough(tmp_path, offline):  # noqa: F811
    page = offline.open(saved("gpt", tmp_path))
    page.tab.locator("[role=tab][aria-selected=true]").focus()
    for name in ("Writing", "Attention"):
        page.tab.keyboard.press("ArrowRight")
        assert page.text("[role=tab][aria-selected=true]") == name
    page.tab.wait_for_selector(".token")
    page.tab.locator(".token").first.focus()
    page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector(".token[aria-pressed=true]")
    assert "token=1" in page.tab.url
    unnamed = "[...document.querySelectorAll('button')].filter((b) => !(b.innerText || b.ariaLabel || b.title)).length"
    assert page.tab.evaluate(unnamed) == 0


def test_a_phone_needs_no_sideways_scrolling(tmp_path):
    with browsing(offline=True, viewport={"width": 390, "height": 800}, color_scheme="dark") as page:
        page.open(saved("transformer", tmp_path))
        for view in ("answer", "attention", "learning", "architecture"):
            page.open(saved("transformer", tmp_path), f"view={view}")
            page.tab.wait_for_selector("[role=tabpanel] .card")
            assert page.tab.evaluate("document.documentElement.scrollWidth") <= 390, view
        assert page.tab.evaluate("document.documentElement.dataset.theme") == "dark"


def test_all_scripts_and_styles_are_small_and_their_lines_are_short():
    assert not [name for name, text in scripts().items() if max(map(len, text.decode().split("\n"))) > 120]
    assert sum(len(text) for text in scripts().values()) + len(asset("page.css")) + len(asset("page.html")) < 300_000


def test_the_live_page_answers_what_is_typed_for_runs_side_by_side():
    with serving(made("gpt"), made("lstm")) as address, browsing() as page:
        page.open(address)
        asks = page.tab.locator("textarea")
        assert asks.count() == 2
        asks.first.fill("The dog sleeps")
        asks.first.press("Enter")
        page.tab.locator(".panel").first.locator("[role=tab]", has_text="Answer").wait_for()
        expected = made("gpt").predict("The dog sleeps")
        assert page.tab.locator(".panel").first.locator("mark").text_content() == expected
        page.tab.reload()  # the address knows the text
        page.ready()
        assert page.tab.locator(".panel").first.locator("mark").text_content() == expected
        asks = page.tab.locator("textarea")
        asks.first.fill("xyzzy plugh")
        asks.first.press("Enter")
        page.tab.locator("[role=alert]").wait_for()
        assert "vocabulary" in page.text("[role=alert]")
        assert [url for url in page.requests if not url.startswith((address, *OWN))] == []


def test_a_live_page_reads_an_image_and_no_path():
    with serving(made("vit")) as address, browsing() as page:
        page.open(address)
        file = io.BytesIO()
        Image.fromarray(FAMILIES["vit"][2][0]).save(file, "PNG")
        page.tab.locator("input[type=file]").set_input_files(
            {"name": "a.png", "mimeType": "image/png", "buffer": file.getvalue()}
        )
        page.tab.locator("[role=tab]", has_text="Answer").wait_for()
        page.tab.locator("canvas").wait_for()
        path = urllib.parse.quote(str(made("vit").folder.path / "loss.png"))
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{address}look/0?text={path}")
        assert (refused.value.code, "choose a file" in refused.value.read().decode()) == (400, True)


def test_another_site_is_not_answered():
    with serving(made("rnn")) as address:
        asked = urllib.request.Request(f"{address}look/0?text=The", headers={"Host": "example.org"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked)
        assert refused.value.code == 400


def test_a_port_in_use_is_a_sentence():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        place.listen()
        port = place.getsockname()[1]
        done = ayn("look", made("rnn").folder.path, "--no-open", "--port", port)
    assert done.code == 2
    assert f"port {port} is in use" in done.err


def test_the_gallery_leads_to_a_page_of_each_run(tmp_path, monkeypatch, offline):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    assert "train one first" in ayn("look", "--gallery").err
    for recipe, name in (("lm-gpt", "gpt"), ("recognize-vit", "vit")):
        shutil.copytree(made(name).folder.path, tmp_path / "runs" / recipe)
    done = ayn("look", "--gallery", "--no-open")
    assert (done.code, done.err) == (0, "")
    offline.tab.goto((tmp_path / "runs/gallery/index.html").as_uri())
    assert offline.texts("a h2") == ["lm-gpt", "recognize-vit"]
    offline.tab.click("a:has-text('lm-gpt')")
    offline.tab.wait_for_selector("[role=tab]")
    assert offline.errors == []


def test_the_architecture_counts_every_weight_once_and_shows_its_code(tmp_path, offline):  # noqa: F811
    run = made("transformer")
    page = offline.open(saved("transformer", tmp_path), "view=architecture&module=body.decoder.blocks.0.cross")
    counted = page.tab.locator(".boxes button.part .shape").last.text_content()
    assert page.text(".boxes > .box > button .shape") == f"{sum(p.numel() for p in run.model.parameters()):,}", counted
    assert "MultiHead" in page.text(".formula")
    weight = run.model.get_parameter("body.decoder.blocks.0.cross.q.weight").detach()
    row = page.tab.locator("tr", has_text="q.weight").first.locator("td").all_inner_texts()
    assert row[1] == " × ".join(map(str, weight.shape))
    assert [float(cell) for cell in row[2:]] == pytest.approx(
        [float(f) for f in (weight.mean(), weight.std(correction=0), weight.min(), weight.max())], rel=1e-3
    )
    page.tab.locator("summary").click()
    assert "class Attention(nn.Module)" in page.text("pre")


def test_a_page_says_which_words_the_run_does_not_know_and_what_was_cut(tmp_path, offline):  # noqa: F811
    offline.open(made("classify-rnn").look("the soup was qwertyuiop").save(tmp_path / "page.html"))
    assert "does not know: " in offline.text(".note")
    assert "qwertyuiop" in offline.text(".note")
    short = train(
        "classify/bert", *SMALL, "model.context=32", "model.positions=learned", out=tmp_path / "run", quiet=True
    )
    long = "the soup was good " * 20
    offline.open(short.look(long).save(tmp_path / "page.html"))
    unread = short.answers(long)[0].details["unread"]
    assert offline.text(".note") == f"The text was cut: its last {unread} tokens were not read."


def test_firefox_draws_it_too(tmp_path):
    firefox = shutil.which("firefox-esr") or shutil.which("firefox")
    if firefox is None:
        pytest.skip("needs firefox")
    page, image = saved("gpt", tmp_path), tmp_path / "page.png"
    address = f"{page.as_uri()}#view=attention&layer=0&head=0&token=1&as=matrix"
    command = [firefox, "--headless", "--window-size", "1200,900", "--screenshot", str(image), address]
    for attempt in range(4):  # it takes the image as soon as the page is loaded, which may be before it has drawn
        subprocess.run(command, env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, timeout=120)
        pixels = np.asarray(Image.open(image).convert("RGB")).reshape(-1, 3)
        if (pixels == (26, 43, 80)).all(1).sum() > 100 or attempt == 3:  # a weight of 1 is navy
            break
    assert (pixels == (26, 43, 80)).all(1).sum() > 100
    assert (pixels == (184, 86, 11)).all(1).sum() > 20  # the pinned token's orange


def test_every_script_can_be_read_by_a_browser(tmp_path, offline):  # noqa: F811
    """A name that is declared twice would leave the page empty."""
    offline.open(saved("rnn", tmp_path))
    for name in scripts():
        assert offline.tab.evaluate(f"import('look/{name}').then(() => '', (error) => error.message)") == ""


def test_views_are_made_by_several_threads_at_once():
    runs = [made(name) for name in ("gpt", "lstm", "rnn")]
    with ThreadPoolExecutor(6) as pool:
        views = list(pool.map(lambda run: run.view("The dog"), runs * 6))
    for run, view in zip(runs * 6, views):
        assert view.shown["run"]["model"] == run.recipe.model_kind
        assert "class" in next(iter(json.loads(view.piece("architecture"))["code"].values()))["lines"]
