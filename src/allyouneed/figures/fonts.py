"""Fonts for any script: the default one, and those of this system that have the characters it lacks."""

from __future__ import annotations

import logging
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache

DEFAULT = "DejaVu Sans"  # comes with matplotlib
# Tried before all others: they look like the default one, and have whole scripts.
PREFERRED = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Hiragino Sans", "PingFang SC", "Microsoft YaHei",
    "Yu Gothic", "Malgun Gothic", "Apple SD Gothic Neo", "Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Arabic",
    "Noto Emoji", "Arial Unicode MS",
)  # fmt: skip
CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "IDEOGRAPHIC", "BOPOMOFO")
MOST = 8  # characters in a sentence


def choose_fonts(texts: Iterable[str]) -> tuple[list[str], str]:
    """The names of fonts that together show the texts, the default one first, and the characters that none has."""
    from matplotlib import font_manager

    wanted = dict.fromkeys(letter for text in texts for letter in text if unicodedata.category(letter)[0] not in "ZC")
    missing = [letter for letter in wanted if ord(letter) not in _characters(DEFAULT)]
    chosen = [DEFAULT]
    if missing:
        installed = font_manager.fontManager.get_font_names()
        # The Last Resort of matplotlib shows every character, as a box.
        rest = sorted(name for name in installed if not name.startswith("Last Resort") and name not in PREFERRED)
        for some in ([name for name in PREFERRED if name in installed], rest):
            while missing and some:
                best = max(some, key=lambda name: sum(ord(letter) in _characters(name) for letter in missing))
                left = [letter for letter in missing if ord(letter) not in _characters(best)]
                if len(left) == len(missing):
                    break
                chosen.append(best)
                missing = left
    return chosen, "".join(missing)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what matplotlib prints about fonts and characters: `cannot_show` says it in one sentence."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing|Matplotlib currently does not support")
        try:
            log.setLevel(logging.ERROR)
            yield
        finally:
            log.setLevel(level)


@lru_cache(maxsize=1024)
def _characters(name: str) -> frozenset[int]:
    """The characters of a font; none if it cannot be drawn at any size, as fonts of coloured emoji."""
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(font_manager.findfont(name, fallback_to_default=False))
        return frozenset(font.get_charmap()) if font.scalable else frozenset()
    except (ValueError, OSError, RuntimeError):  # a damaged file, or one that is gone
        return frozenset()


def cannot_show(missing: str) -> str:
    """The end of a sentence about characters that no font has: which they are, and what to install."""
    more = f" and {len(missing) - MOST} more" if len(missing) > MOST else ""
    them = "it" if len(missing) == 1 else "them"
    fonts = list(dict.fromkeys(map(_font_for, missing)))
    return (
        f"cannot show {', '.join(missing[:MOST])}{more}: no font on this system has {them}; "
        f"install for example {' and '.join(fonts[:3])}"
    )


def _font_for(letter: str) -> str:
    """A free font with this character, by the name of its script."""
    script = unicodedata.name(letter, "").partition(" ")[0]
    if script in CJK or script.startswith("CJK"):
        return "Noto Sans CJK"
    if unicodedata.category(letter)[0] in "LMN" and script:
        return f"Noto Sans {script.title()}"
    return "Noto Emoji" if ord(letter) >= 0x1F000 else "Noto Sans Symbols"
