"""Images show their numbers, hold their labels, and repeat themselves byte for byte."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from allyouneed.errors import UserError
from allyouneed.figures import alignment, heads, loss_curve, sinusoid, style
from allyouneed.figures.curves import _smooth

ENGLISH, ITALIAN = ["I", "am", "Italian", "."], ["Io", "sono", "italiano", "."]


def softmax(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    scores = np.exp(3 * np.random.default_rng(seed).normal(size=(rows, columns)))
    return scores / scores.sum(1, keepdims=True)


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        image.verify()
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).astype(int)


def words(path: Path) -> list[str]:
    return [element.text or "" for element in ET.parse(path).getroot().iter() if element.tag.endswith("}text")]


def near(image: np.ndarray, colour: str, tolerance: int = 6) -> np.ndarray:
    wanted = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return (abs(image - wanted) <= tolerance).all(-1)


def training(steps: int, **changes: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for step in range(10, steps + 1, 10):
        rows.append({"kind": "train", "step": step, "loss": 2 + 4 * 0.99**step, "lr": 1e-3, **changes})
        if step % 100 == 0:
            rows.append({"kind": "valid", "step": step, "loss": 2 + abs(step - 300) / 100})
    return rows


def test_the_darkest_cell_is_the_largest_weight(tmp_path: Path) -> None:
    weights = np.full((4, 5), 0.02)
    weights[2, 3] = 0.92
    out = tmp_path / "a.png"
    alignment(weights, [*ENGLISH, "x"], ITALIAN, out)
    image = pixels(out)
    # The grid of 5 by 4 squares is found by its lines, the longest pale ones there are.
    lines = near(image, style.PALE, 2)
    rows, columns = np.flatnonzero(lines.sum(1) > 300), np.flatnonzero(lines.sum(0) > 240)
    cell = (rows.max() - rows.min()) / 4
    assert (columns.max() - columns.min()) / 5 == pytest.approx(cell, abs=1)
    # A corner of each cell, where no digit is printed.
    corners = [
        [image[int(rows.min() + (r + 0.15) * cell), int(columns.min() + (c + 0.15) * cell)].sum() for c in range(5)]
        for r in range(4)
    ]
    assert np.unravel_index(np.argmin(corners), (4, 5)) == (2, 3)
    assert np.sort(corners, axis=None)[1] > 700  # of 765: nearly white


def test_colours_grow_darker_in_equal_steps() -> None:
    def lightness(colour: Any) -> float:
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour[:3]]
        return 116 * float(np.dot([0.2126, 0.7152, 0.0722], linear)) ** (1 / 3) - 16

    steps = np.diff([lightness(style.weight_colours()(value)) for value in np.linspace(0, 1, 9)])
    assert steps == pytest.approx(np.full(8, -82 / 8), abs=0.6)


def test_labels_and_values_stand_in_the_svg(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "folder" / "a.svg"
    weights = softmax(4, 4)
    alignment(weights, ENGLISH, ITALIAN, out, title="layer 2, head 1")
    found = words(out)
    for text in [*ENGLISH, *ITALIAN, "source", "target", "attention weight", "layer 2, head 1", f"{weights[1, 2]:.2f}"]:
        assert text in found
    assert [path.name for path in out.parent.iterdir()] == ["a.svg"]


def test_values_are_printed_up_to_twelve_words(tmp_path: Path) -> None:
    out = tmp_path / "a.svg"
    for count, printed in ((12, True), (13, False)):
        names = [f"w{i}" for i in range(count)]
        alignment(np.full((count, count), 0.07), names, names, out)
        assert ("0.07" in words(out)) is printed


def test_blanks_dollars_and_broken_characters_are_shown(tmp_path: Path) -> None:
    tokens = [" ", "\n", "\t", " am", "", "$5$", "\x00", "\ud800", "<&>", "x" * 40]
    out = tmp_path / "a.svg"
    alignment(softmax(1, 10), tokens, ["t"], out)
    found = words(out)
    for shown in ("␣", "↵", "⇥", "␣am", "∅", "$5$", "\N{REPLACEMENT CHARACTER}", "<&>", "x" * 23 + "…"):
        assert shown in found


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 12), (12, 1), (60, 60)])
def test_every_size_is_drawn_and_nothing_touches_the_edge(tmp_path: Path, rows: int, columns: int) -> None:
    out = tmp_path / "a.png"
    source, target = [f"extraordinary{i}" for i in range(columns)], [f"word{i}" for i in range(rows)]
    alignment(softmax(rows, columns), source, target, out, title="a title that is wider than one small cell")
    image = pixels(out)
    margin = np.ones(image.shape[:2], bool)
    margin[8:-8, 8:-8] = False
    assert (image[margin] == 255).all()
    # At least so many pixels a word that its label can be read.
    assert image.shape[0] > 30 * rows
    assert image.shape[1] > 30 * columns
    assert max(image.shape) < 3000


def test_wide_words_are_slanted_and_short_ones_are_not(tmp_path: Path) -> None:
    out = tmp_path / "a.svg"
    for source, slanted in ((["a", "b"], False), (["a", "neighbouring"], True)):
        alignment(softmax(1, 2), source, ["t"], out)
        assert ("rotate(-45" in out.read_text(encoding="utf-8")) is slanted


def test_weights_that_do_not_fit_the_words_are_refused(tmp_path: Path) -> None:
    for weights, source in ((softmax(4, 3), ENGLISH), (softmax(4, 4)[None], ENGLISH), (np.zeros((4, 0)), [])):
        with pytest.raises(ValueError, match="do not fit"):
            alignment(weights, source, ITALIAN, tmp_path / "a.png")
    with pytest.raises(ValueError, match="do not fit"):
        heads(softmax(4, 4), ENGLISH, ITALIAN, tmp_path / "a.png")
    assert not list(tmp_path.iterdir())


def test_an_unknown_weight_is_grey_and_marked(tmp_path: Path) -> None:
    weights = softmax(4, 4)
    weights[0, 0] = np.nan
    alignment(weights, ENGLISH, ITALIAN, tmp_path / "a.svg")
    assert "?" in words(tmp_path / "a.svg")


def test_every_head_has_its_numbered_panel(tmp_path: Path) -> None:
    out = tmp_path / "a.svg"
    heads(np.stack([softmax(4, 4, seed) for seed in range(7)]), ENGLISH, ITALIAN, out, title="layer 1")
    found = words(out)
    assert [word for word in found if word.startswith("head ")] == [f"head {i}" for i in range(1, 8)]
    # Four panels in the first row name the source, two rows name the target.
    assert (found.count("Italian"), found.count("italiano"), found.count("layer 1")) == (4, 2, 1)


def test_heads_over_a_long_text_are_numbered_by_position(tmp_path: Path) -> None:
    out = tmp_path / "a.svg"
    heads(softmax(100, 100)[None], ["w"] * 100, ["w"] * 100, out)
    found = words(out)
    assert "w" not in found
    assert {"1", "20", "100", "key position", "query position"} <= set(found)
    heads(np.ones((1, 100, 100)), ["w"] * 100, ["w"] * 100, tmp_path / "a.png")
    # The cells fill their panel of 3.2 inches.
    assert near(pixels(tmp_path / "a.png"), style.WEIGHTS[-1]).sum() > 0.95 * (3.2 * style.DPI) ** 2


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_numbers_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    first, second = tmp_path / f"a.{suffix}", tmp_path / "sub" / f"b.{suffix}"
    for draw in (
        lambda out: alignment(softmax(4, 4), ENGLISH, ITALIAN, out, title="t"),
        lambda out: loss_curve(training(600), out, "t"),
    ):
        draw(first)
        draw(second)
        assert first.read_bytes() == second.read_bytes()
    assert b"Matplotlib" not in first.read_bytes()


def test_other_kinds_of_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.png or \.svg"):
        sinusoid(np.zeros((2, 2)), tmp_path / "a.jpg")


def test_metrics_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"kind": "train", "step": 1, "loss": 2.0}\n\xff\xfe\n{}\n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is not JSON"):
        loss_curve(tmp_path / "metrics.jsonl", tmp_path / "a.png", "x")


def test_a_failed_image_leaves_the_old_one_and_no_scraps(tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    sinusoid(np.zeros((2, 2)), out)
    before = out.read_bytes()
    with pytest.raises(RuntimeError), style.figure(out, 1, 1):
        raise RuntimeError
    out2 = tmp_path / "folder.png"
    out2.mkdir()
    with pytest.raises(UserError, match=r"could not write .*folder\.png"):
        sinusoid(np.zeros((2, 2)), out2)
    assert out.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "folder.png"]


def test_the_callers_matplotlib_settings_stay(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 31, "axes.linewidth": 9}):
        sinusoid(np.zeros((2, 2)), tmp_path / "a.png")
        assert matplotlib.rcParams["font.size"] == 31
        inside = pixels(tmp_path / "a.png")
    sinusoid(np.zeros((2, 2)), tmp_path / "b.png")
    assert (inside == pixels(tmp_path / "b.png")).all()


def test_loss_curve_names_the_best_validation(tmp_path: Path) -> None:
    out = tmp_path / "a.svg"
    metrics = tmp_path / "metrics.jsonl"
    lines = [json.dumps(row) for row in training(600)]
    metrics.write_text("\n".join([*lines, '{"kind": "train", "st']), encoding="utf-8")
    loss_curve(metrics, out, "lm/gpt")
    found = words(out)
    assert {"lm/gpt", "training", "validation", "best 2.0000 at step 300", "step", "loss (nats per token)"} <= set(
        found
    )
    assert "rate" in " ".join(found)


def test_a_broken_line_inside_the_metrics_is_named(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"kind": "train"}\nnonsense\n{"kind": "train"}\n', encoding="utf-8")
    with pytest.raises(UserError, match="line 2"):
        loss_curve(metrics, tmp_path / "a.png", "t")
    with pytest.raises(UserError, match="cannot be read"):
        loss_curve(tmp_path / "nowhere.jsonl", tmp_path / "a.png", "t")


def test_loss_curve_falls_where_the_loss_falls(tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    loss_curve([row for row in training(600) if row["kind"] == "train"], out, "")
    image = pixels(out)[60:]  # below the legend
    blue = np.argwhere(near(image, style.BLUE))
    left, right = blue[blue[:, 1] == blue[:, 1].min()], blue[blue[:, 1] == blue[:, 1].max()]
    assert left[:, 0].mean() + 200 < right[:, 0].mean()
    assert blue[:, 1].max() - blue[:, 1].min() > 0.7 * image.shape[1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], "no finite loss"),
        ([{"kind": "train", "step": 10, "loss": 3.1, "lr": 0.001}], "training"),
        ([{"kind": "train", "step": 10, "loss": 3.1, "lr": 0.0}], "training"),
        ([{"kind": "valid", "step": 10, "loss": 3.1}], "best 3.1000 at step 10"),
        ([{"kind": "train", "step": 10, "loss": float("nan"), "lr": None}], "not finite (1)"),
        ([{"kind": "train", "step": 10, "loss": float("inf")}], "no finite loss"),
        ([{"kind": "train", "step": i, "loss": 3.0, "lr": [0.1, float("inf")][i]} for i in range(2)], "0.1"),
        (training(600, loss=None), "not finite (60)"),
    ],
)
def test_loss_curve_of_little_or_broken_metrics(tmp_path: Path, rows: list[dict[str, Any]], expected: str) -> None:
    loss_curve(rows, tmp_path / "a.svg", "t")
    assert expected in words(tmp_path / "a.svg")


def test_smoothing_keeps_a_constant_and_the_gaps() -> None:
    values = np.full(400, 3.0)
    values[[0, 50, 399]] = np.nan
    smooth = _smooth(values)
    assert np.isnan(smooth[[0, 50, 399]]).all()
    assert np.nanmax(abs(smooth - 3.0)) < 1e-12
    noisy = np.random.default_rng(0).normal(size=400)
    assert _smooth(noisy).std() < 0.5
    assert _smooth(noisy)[200] == pytest.approx(noisy[190:211].mean())


def test_sinusoid_shows_the_table(tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    table = np.zeros((8, 16))
    table[:4], table[4:] = 1.0, -1.0
    sinusoid(table, out)
    image = pixels(out)
    left = image[:, : image.shape[1] * 3 // 4]
    red, blue = np.argwhere(near(left, "#67001f")), np.argwhere(near(left, "#053061"))
    assert len(red) > 50_000
    assert len(blue) > 50_000
    assert red[:, 0].max() < blue[:, 0].min()
    with pytest.raises(ValueError, match="positions, dimensions"):
        sinusoid(np.zeros(3), out)


def test_importing_figures_does_not_import_matplotlib() -> None:
    code = "import sys, allyouneed.figures; assert not {'matplotlib', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_drawing_leaves_pyplot_alone(tmp_path: Path) -> None:
    code = "import sys, pathlib, allyouneed.figures as f; f.sinusoid([[0.0]], pathlib.Path(sys.argv[1]));"
    code += "assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.png")], check=True)


LONG = "a sentence that is much longer than the heat map is wide, so that its title needs more than one line of text"


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 3), (5, 6), (30, 40)])
@pytest.mark.parametrize("title", ["", "I am Italian.", LONG])
def test_the_title_and_the_attention_shown_stand_above_all_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, columns: int, title: str
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(style, "_save", lambda made, *_: drawn.append(made))
    source = [f"extraordinary{i}" for i in range(columns)]
    alignment(
        softmax(rows, columns), source, ["t"] * rows, tmp_path / "a.png", title, "decoder layer 2, mean of 4 heads"
    )
    (made,) = drawn
    made.canvas.draw()
    axes = made.axes[0]
    texts = {text.get_text().replace("\n", " "): text.get_window_extent() for text in axes.findobj(Text)}
    shown = texts["decoder layer 2, mean of 4 heads"]
    below = [
        texts["source"],
        *(label.get_window_extent() for label in axes.get_xticklabels()),
        axes.get_window_extent(),
    ]
    assert all(shown.y0 > box.y1 for box in below)
    if title:
        assert texts[title].y0 > shown.y1
        assert texts[title].width < 8 * style.DPI


def test_a_very_long_title_is_cut(tmp_path: Path) -> None:
    alignment(softmax(2, 2), ["a", "b"], ["c", "d"], tmp_path / "a.png", title="word " * 1000)
    assert pixels(tmp_path / "a.png").shape[0] < 600
