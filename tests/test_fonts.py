"""Images in every script: a font of the system that has the characters, or one sentence that names them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from PIL import Image

from allyouneed.figures import alignment, confusion_matrix, heads, word_map
from allyouneed.figures.fonts import _characters, cannot_show, choose_fonts

WORDS = ["안", "녕", "ok"]
WEIGHTS = np.eye(3)
IMAGES: dict[str, Callable[[Path], None]] = {
    "alignment": lambda out: alignment(WEIGHTS, WORDS, WORDS, out, title="안녕"),
    "heads": lambda out: heads(WEIGHTS[None], WORDS, WORDS, out, title="안녕"),
    "confusion": lambda out: confusion_matrix(np.eye(3, dtype=int), WORDS, out, "안녕"),
    "words": lambda out: word_map(WORDS, WEIGHTS, out, title="안녕"),
}


def make_font(path: Path, name: str, letters: str) -> Path:
    """A font in which every letter is a black square."""
    pen = TTGlyphPen(None)
    pen.moveTo((100, 0))
    for point in ((100, 700), (900, 700), (900, 0)):
        pen.lineTo(point)
    pen.closePath()
    square, empty = pen.glyph(), TTGlyphPen(None).glyph()
    names = [f"u{ord(letter):04x}" for letter in letters]
    made = FontBuilder(1000, isTTF=True)
    made.setupGlyphOrder([".notdef", *names])
    made.setupCharacterMap({ord(letter): glyph for letter, glyph in zip(letters, names)})
    made.setupGlyf({".notdef": empty, **dict.fromkeys(names, square)})
    made.setupHorizontalMetrics(dict.fromkeys([".notdef", *names], (1000, 0)))
    made.setupHorizontalHeader(ascent=800, descent=-200)
    made.setupNameTable({"familyName": name, "styleName": "Regular"})
    made.setupOS2(sTypoAscender=800, usWeightClass=400)
    made.setupPost()
    made.save(path)
    return path


@pytest.fixture(autouse=True)
def only_matplotlibs_fonts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The fonts that come with matplotlib, whatever this system has."""
    bundled = Path(font_manager.__file__).parent / "mpl-data"
    kept = [entry for entry in font_manager.fontManager.ttflist if Path(entry.fname).is_relative_to(bundled)]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", kept)
    _characters.cache_clear()
    yield
    _characters.cache_clear()


def install(font: Path) -> None:
    font_manager.fontManager.addfont(font)
    _characters.cache_clear()


def black(path: Path) -> int:
    with Image.open(path) as image:
        return int((np.asarray(image.convert("L")) < 60).sum())


@pytest.mark.parametrize("name", IMAGES)
def test_a_figure_names_the_characters_that_it_cannot_show(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.png"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        IMAGES[name](out)
    said = "cannot show 안, 녕: no font on this system has them; install for example Noto Sans CJK"
    assert capsys.readouterr().err == f"{out} {said}\n"
    assert out.is_file()


@pytest.mark.parametrize("name", IMAGES)
def test_a_font_of_the_system_shows_them(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(make_font(tmp_path / "squares.ttf", "Any Name At All", "안녕"))
    before, after = tmp_path / "before.png", tmp_path / "after.png"
    IMAGES[name](after)
    assert capsys.readouterr().err == ""
    font_manager.fontManager.ttflist = [
        entry for entry in font_manager.fontManager.ttflist if entry.name != "Any Name At All"
    ]
    _characters.cache_clear()
    IMAGES[name](before)
    assert black(after) > black(before) + 500  # the squares


def test_an_svg_leaves_it_to_the_viewer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    IMAGES["alignment"](tmp_path / "a.svg")
    assert capsys.readouterr().err == ""
    assert "안" in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_texts_in_latin_need_no_other_font() -> None:
    assert choose_fonts(["naïve café", "Ελλάδα", "Москва", "אָ", "سلام", "␣↵∅…"]) == (["DejaVu Sans"], "")


def test_the_font_with_the_most_of_the_characters_is_chosen(tmp_path: Path) -> None:
    for name, letters in (("A Few", "你"), ("B Most", "你好世"), ("C Rest", "界"), ("D None", "x")):
        install(make_font(tmp_path / f"{name}.ttf", name, letters))
    assert choose_fonts(["你好世界\t 모"]) == (["DejaVu Sans", "B Most", "C Rest"], "모")


def test_a_preferred_font_comes_first(tmp_path: Path) -> None:
    for name in ("A Brush Script", "Noto Sans Thai"):
        install(make_font(tmp_path / f"{name}.ttf", name, "ไทย"))
    assert choose_fonts(["ไทย"]) == (["DejaVu Sans", "Noto Sans Thai"], "")


def test_a_damaged_font_is_passed_over(tmp_path: Path) -> None:
    install(font := make_font(tmp_path / "bad.ttf", "Bad", "你"))
    font.write_bytes(b"no font")
    assert choose_fonts(["你"]) == (["DejaVu Sans"], "你")


def test_matplotlib_says_nothing_about_fonts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        IMAGES["words"](tmp_path / "a.png")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_sentence_names_a_font_of_each_script() -> None:
    assert cannot_show("猫") == "cannot show 猫: no font on this system has it; install for example Noto Sans CJK"
    assert cannot_show("हไ").endswith("install for example Noto Sans Devanagari and Noto Sans Thai")
    assert cannot_show("\N{DNA DOUBLE HELIX}").endswith("Noto Emoji")
    assert "ㄱ, ㄴ, ㄷ, ㄹ, ㅁ, ㅂ, ㅅ, ㅇ and 2 more:" in cannot_show("ㄱㄴㄷㄹㅁㅂㅅㅇㅈㅊ")
