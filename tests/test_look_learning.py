"""`look`: how a run learns, what it wrote along the way (train.keep), and how far its gates are open."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from allyouneed.look import Page
from allyouneed.look.learning import Begun, show_progress
from allyouneed.run import Run, load, train
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import read_header, read_tensors
from allyouneed.training.trainer import Trainer
from browser import Watched, browsing, offline, serving  # noqa: F401  (a fixture)
from commands import ayn
from conftest import RUNTIME
from families import FAMILIES, made, train_family

TEXT = "The dog sees"
TWELVE = (
    *RUNTIME, "model.width=16", "model.heads=2", "model.layers=2", "model.context=32", "decode.max_new=6",
    "train.epochs=0", "train.minutes=0", "train.test_limit=-1", "train.warmup=2", "train.lr=0.01", "train.eval_every=3",
    "train.schedule=constant", "train.log_every=1", "train.batch_tokens=512", "model.dropout=0.1",
)  # fmt: skip


def trained(out: Path, *settings: str, **more: Any) -> Run:
    return train("lm/gpt", *TWELVE, "train.steps=12", *settings, out=out, quiet=True, **more)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("kept") / "run", "train.keep=3")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def files(folder: RunFolder) -> dict[int, bytes]:
    return {step: path.read_bytes() for step, path in folder.models().items()}


# train.keep


def test_the_kept_models_are_those_of_their_steps(kept, tmp_path):
    assert list(kept.folder.models()) == [4, 8, 12]
    stopped = trained(tmp_path / "stopped", "train.steps=4")
    assert list(stopped.folder.models()) == []  # none, unless asked for
    assert same(read_tensors(kept.folder.model_at(4)), stopped.folder.checkpoints.weights(4))
    assert same(read_tensors(kept.folder.model_at(12)), kept.folder.checkpoints.weights(12))
    assert read_header(kept.folder.model_at(8)).notes["run"] == kept.folder.identity()
    assert kept.folder.model_at(8).stat().st_size < 1.1 * kept.folder.model.stat().st_size


def test_keeping_changes_nothing_else(kept, tmp_path):
    without = trained(tmp_path / "run")
    for step in without.folder.checkpoints.steps():
        assert same(kept.folder.checkpoints.weights(step), without.folder.checkpoints.weights(step))
    assert not (without.folder.path / "kept").exists()


def test_a_killed_and_resumed_run_keeps_the_same_models(kept, tmp_path, monkeypatch):
    real, killed = Trainer._step, RuntimeError("killed")

    def step(trainer, work):
        if trainer.at.step == 8:
            raise killed
        real(trainer, work)

    monkeypatch.setattr(Trainer, "_step", step)
    with pytest.raises(RuntimeError, match="killed"):
        trained(tmp_path / "run", "train.keep=3")
    folder = RunFolder(tmp_path / "run")
    assert (list(folder.models()), folder.checkpoints.steps()[-1]) == ([4, 8], 6)
    monkeypatch.setattr(Trainer, "_step", real)
    shutil.copytree(folder.path, tmp_path / "shorter")
    shorter = trained(tmp_path / "shorter", "train.keep=3", "train.steps=7", resume=True).folder
    assert list(shorter.models()) == [4, 7]  # step 8 was not made by this training
    folder.model_at(8).write_bytes(b"of a training that went on")  # it is made again
    assert files(trained(tmp_path / "run", "train.keep=3", resume=True).folder) == files(kept.folder)


def test_a_longer_plan_has_other_steps_and_overwrite_removes_them(tmp_path):
    trained(tmp_path / "run", "train.keep=3", "train.steps=6")
    folder = RunFolder(tmp_path / "run")
    assert list(folder.models()) == [2, 4, 6]
    trained(tmp_path / "run", "train.keep=3", "train.steps=18", resume=True)
    assert list(folder.models()) == [6, 12, 18]
    (folder.path / "kept" / ".tmp-left").touch()
    trained(tmp_path / "run", overwrite=True)
    assert not (folder.path / "kept").exists()


# The same text along the training


def as_run(kept: Run, step: int, out: Path) -> Run:
    """A run whose model is the kept one."""
    shutil.copytree(kept.folder.path, out)
    shutil.copyfile(kept.folder.model_at(step), out / "model.safetensors")
    return load(out)


def test_the_slider_shows_what_each_kept_model_wrote(kept, tmp_path, offline):  # noqa: F811
    before = {name: weight.clone() for name, weight in kept.model.state_dict().items()}
    page = offline.open(kept.look(TEXT).save(tmp_path / "page.html"), "view=checkpoints&at=0&layer=1&head=1")
    assert same(before, kept.model.state_dict())  # the trained model is left alone
    slider = page.tab.locator("input[type=range]")
    page.tab.wait_for_function("!document.querySelector('.through').textContent.includes('…')")
    assert slider.get_attribute("max") == "3"  # three, and the run's own
    slider.focus()
    for step in (4, 8, 12):
        run = as_run(kept, step, tmp_path / f"{step}")
        (answer,) = run.answers(TEXT)
        page.tab.wait_for_function(f"document.querySelector('[data-step]').textContent === 'step {step}'")
        assert page.text("[data-answer]").split() == (TEXT + answer.text).split()
        assert f"{answer.logprob:.2f}".replace("-", "−") in page.text("[data-sure]")
        likely = run.table(TEXT, 8)[-1].likely
        heading = page.tab.locator(".card", has=page.tab.locator("h2", has_text="Likely next"))
        assert heading.locator("td.number").all_inner_texts() == [f"{100 * value:.1f} %" for _, value in likely]
        weights = run.trace(TEXT, "weights")["body.stack.blocks.1.attention.weights"].value[1]
        page.tab.locator("svg image").scroll_into_view_if_needed()
        box = page.tab.locator("svg image").bounding_box()
        cell = box["width"] / weights.size(1)
        page.tab.mouse.move(box["x"] + 0.5 * cell, box["y"] + 2.5 * cell)
        assert page.text("[data-reading]").endswith(f": {weights[2, 0]:.3f}")
        slider.press("ArrowRight")
    page.tab.wait_for_function("document.querySelector('[data-step]').textContent === 'the model'")
    assert page.text("[data-answer]").split() == (TEXT + kept.predict(TEXT)).split()
    page.tab.get_by_role("button", name="play").click()
    page.tab.wait_for_function("document.querySelector('[data-step]').textContent === 'step 8'")
    assert page.errors == []


def pixels(page: Watched, selector: str) -> np.ndarray:
    """(H, W, 4): those of a canvas."""
    script = "(c) => [c.height, c.width, ...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    height, width, *values = page.tab.eval_on_selector(selector, script)
    return np.array(values, np.uint8).reshape(height, width, 4)


@pytest.mark.parametrize("name", ["dvae", pytest.param("dalle", marks=pytest.mark.slow)])
def test_the_slider_shows_the_image_that_each_kept_model_makes(name, tmp_path, offline):  # noqa: F811
    run, given = train_family(name, tmp_path / "run", "train.keep=3"), FAMILIES[name][2][0]
    page = offline.open(run.look(given).save(tmp_path / "page.html"), "view=checkpoints&at=0")
    page.tab.wait_for_function("document.querySelectorAll('.through canvas').length === 4")
    assert page.text("h2") == f"The same {'image' if name == 'dvae' else 'text'} along the training"
    made = []
    for row, step in enumerate((1, 2, 3), 1):
        page.tab.click(f".through tbody tr:nth-child({row})")
        page.tab.wait_for_function(f"document.querySelector('[data-step]').textContent === 'step {step}'")
        (answer,) = as_run(run, step, tmp_path / f"{step}").answers(given)
        shown = pixels(page, "[data-answer] figure:last-child canvas")
        assert np.array_equal(shown[..., :3], answer.image)
        assert (shown[..., 3] == 255).all()
        assert np.array_equal(shown, pixels(page, f".through tbody tr:nth-child({row}) canvas"))
        assert page.tab.get_by_role("img", name=f"the image of step {step}").count() == 1
        made.append(answer.image)
    assert not np.array_equal(made[0], made[2])
    if name == "dvae":
        read = pixels(page, "[data-answer] figure:first-child canvas")
        assert np.array_equal(read[..., :3], given)
    damage(run, 2)
    page.open(run.look(given).save(tmp_path / "damaged.html"), "view=checkpoints&at=1")
    page.tab.wait_for_function("!document.querySelector('.through').textContent.includes('…')")
    assert "step-000002.safetensors is damaged" in page.text("[data-answer]")
    assert page.tab.locator(".through canvas").count() == 3
    assert page.errors == []


def damage(run: Run, step: int) -> None:
    """Change a kept model."""
    data = bytearray(run.folder.model_at(step).read_bytes())
    data[-3] ^= 64
    run.folder.model_at(step).write_bytes(bytes(data))


def test_a_damaged_model_is_named_and_the_others_are_shown(kept, tmp_path, offline):  # noqa: F811
    shutil.copytree(kept.folder.path, tmp_path / "run")
    run = load(tmp_path / "run")
    damage(run, 8)
    page = offline.open(run.look(TEXT).save(tmp_path / "page.html"), "view=checkpoints&at=1")
    page.tab.wait_for_function("!document.querySelector('.through').textContent.includes('…')")
    assert "step-000008.safetensors is damaged" in page.text("[data-answer]")
    (answer,) = as_run(kept, 4, tmp_path / "4").answers(TEXT)
    assert page.texts(".through td.text")[0].split() == answer.text.split()


# Curves


def test_the_curves_are_those_of_the_metrics(kept, tmp_path, offline):  # noqa: F811
    rows = [json.loads(line) for line in kept.folder.metrics.read_text().splitlines()]
    page = offline.open(kept.look("").save(tmp_path / "page.html"), "view=learning")
    chart = page.tab.locator(".chart")
    chart.focus()
    for key, step in (("Home", 1), ("ArrowRight", 2), ("End", 12), ("ArrowLeft", 11)):
        page.tab.keyboard.press(key)
        assert page.text("[data-value=training]") == f"{rows_at(rows, 'train', step)['loss']:.4f}"
    assert page.text("[data-value=validation]") == f"{rows_at(rows, 'valid', 9)['loss']:.4f}"  # the last one before
    best = min(row["loss"] for row in rows if row["kind"] == "valid")
    assert f"best validation loss: {best:.4f}" in page.text("[role=tabpanel] .tip")
    linear = chart.locator(".curve").first.get_attribute("points")
    page.tab.get_by_role("button", name="logarithmic steps").click()
    assert chart.locator(".curve").first.get_attribute("points") != linear
    assert {"step=11", "x=log"} <= set(page.tab.url.partition("#")[2].split("&"))
    box = chart.bounding_box()
    page.tab.mouse.move(box["x"] + 56, box["y"] + 100)
    assert page.text("[data-step]") == "1"
    assert page.errors == []


def test_only_what_was_measured_is_a_curve(kept, tmp_path):
    shutil.copytree(kept.folder.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    before = show_progress(folder)["learning"]
    with folder.metrics.open("a") as file:
        file.write('{"kind": "plan", "step": 12, "total": 61, "every": 200, "valid": 1.0, "seconds": 0.712}\n')
    assert show_progress(folder)["learning"] == before
    assert {curve["kind"] for curve in before} == {"train", "valid"}


def rows_at(rows: list[dict[str, Any]], kind: str, step: int) -> dict[str, Any]:
    return next(row for row in rows if (row["kind"], row["step"]) == (kind, step))


def test_several_runs_stand_over_each_other(kept, tmp_path, offline):  # noqa: F811
    runs = [kept, made("lstm"), made("rnn")]
    page = offline.open(Page([run.view(TEXT) for run in runs], "three").save(tmp_path / "page.html"))
    card = page.tab.locator(".together")
    curves = card.locator(".curve")
    assert [curve.get_attribute("data-name") for curve in curves.all()] == ["run (1)", "run (2)", "run (3)"]
    assert len({curve.get_attribute("stroke") for curve in curves.all()}) == 3
    card.locator(".chart").focus()
    page.tab.keyboard.press("End")
    last = [json.loads(line) for line in kept.folder.metrics.read_text().splitlines() if '"valid"' in line][-1]
    assert card.locator("[data-value='run (1)']").inner_text() == f"{last['loss']:.4f}"
    assert page.errors == []


# Live


def test_a_run_that_trains_is_shown_before_it_has_weights(kept, tmp_path):
    shutil.copytree(kept.folder.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    model, lines = folder.model.read_bytes(), folder.metrics.read_text().splitlines(keepends=True)
    folder.model.unlink()
    folder.metrics.write_text("".join(lines[:3]))
    run = Begun(folder, lambda: load(folder.path))
    with serving(run) as address, browsing() as page, folder.lock():
        page.open(address, "view=learning&x=log&step=2")
        assert "no weights yet" in page.text(".note")
        assert page.texts("[role=tab]") == ["Learning", "Architecture"]
        assert page.tab.get_attribute(".chart", "aria-valuemax") == "3"
        folder.metrics.write_text("".join(lines) + '{"kind": "tr')  # and a line that is not complete
        page.tab.wait_for_selector(".chart[aria-valuemax='12']", timeout=10_000)
        assert page.text("[data-step]") == "2"
        assert page.text("[role=tabpanel] .live") == "training now"
        assert page.tab.get_by_role("button", name="logarithmic steps").get_attribute("aria-pressed") == "true"
        folder.model.write_bytes(model)
        page.tab.wait_for_selector("form.ask", timeout=10_000)  # now it can be asked
        assert page.tab.get_by_role("tab", name="Learning").get_attribute("aria-selected") == "true"
        assert page.errors == []


def test_a_page_asks_only_while_the_run_trains(kept):
    with serving(kept) as address, browsing() as page:
        page.open(address, "view=learning")
        page.tab.wait_for_timeout(3500)
        assert len([url for url in page.requests if "/learning/0" in url]) == 1
    assert not show_progress(kept.folder)["training"]
    with kept.folder.lock():
        assert show_progress(kept.folder, kept.folder.metrics.stat().st_size) == {
            "size": kept.folder.metrics.stat().st_size, "training": True, "weights": True,
        }  # fmt: skip


def test_a_text_needs_weights(kept, tmp_path):
    shutil.copytree(kept.folder.path, tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    done = ayn("look", tmp_path / "run", TEXT, "--no-open")
    assert done.code == 2
    assert "has not reached its first evaluation" in done.err
    view = Begun(RunFolder(tmp_path / "run"), lambda: load(tmp_path / "run")).view()
    assert "the training has stopped" in view.shown["notes"][0]
    assert view.shown["run"]["parameters"] == kept.info()["parameters"]["total"]


# Gates


@pytest.mark.parametrize("name", ["lstm", "attention", "tag-elmo", "convseq2seq", "classify-rnn"])
def test_the_gates_on_the_page_are_those_of_the_model(name, tmp_path, offline):  # noqa: F811
    text = FAMILIES[name][2][0]
    page = offline.open(made(name).look(text).save(tmp_path / "page.html"), "view=gates")
    values = [traced.value for traced in made(name).trace(text, "gates").values()]
    means = [
        value[:, way, gate].mean(-1)
        for value in values
        for way in range(value.size(1))
        for gate in range(value.size(2))
    ]
    rows = page.tab.locator(".gate")
    page.tab.wait_for_selector(".gate")
    assert rows.count() == len(means)
    read = []
    for row in rows.all():
        row.scroll_into_view_if_needed()
        at = row.locator("xpath=..").locator("image").bounding_box()
        box = row.locator("rect").first.bounding_box()
        page.tab.mouse.move(at["x"] + 4, box["y"] + box["height"] / 2)
        read.append(page.text("[data-gate]"))
    assert sorted(read) == sorted(f"{mean[0]:.3f}" for mean in means)
    # All units of the last gate.
    page.open(tmp_path / "page.html", f"view=gates&gate={len(means) - 1}&units=stored")
    page.tab.reload()
    page.tab.wait_for_selector("h2:has-text('units')")
    units = values[-1][:, -1, -1]
    box = page.tab.locator(".card", has_text="as stored").locator("svg image").bounding_box()
    page.tab.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] * 2.5 / units.size(1))
    page.tab.wait_for_selector("[data-unit='3']")
    assert page.text("[data-unit]") == f"{units[-1, 2]:.3f}"
    assert page.errors == []


def test_a_run_without_gates_has_no_such_view(tmp_path, offline):  # noqa: F811
    page = offline.open(made("gpt").look("The dog").save(tmp_path / "page.html"))
    assert "Gates" not in page.texts("[role=tab]")
    assert "Checkpoints" not in page.texts("[role=tab]")
