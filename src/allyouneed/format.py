"""Numbers and tables for people to read."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from allyouneed.errors import shortened
from allyouneed.terminal import brief


def human_count(value: float) -> str:
    """41234 -> "41.2k"."""
    return _scaled(value, 1000, ("", "k", "M", "G", "T"))


def human_bytes(value: float) -> str:
    """1536 -> "1.5 KiB"."""
    return _scaled(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def human_time(seconds: float) -> str:
    """52 -> "00:52", 3661 -> "1:01:01", 100000 -> "1d 03:46:40"."""
    if not math.isfinite(seconds):
        return "--:--"
    minutes, second = divmod(max(0, round(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}:{minute:02d}:{second:02d}"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute:02d}:{second:02d}"


def either(choices: Sequence[str]) -> str:
    """["a", "b", "c"] -> "a, b or c"."""
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last


def columns(rows: Sequence[tuple[str, ...]], width: int = 0) -> list[str]:
    """Aligned columns; the last is folded so that lines have at most `width` characters (0: never)."""
    rows = [(*map(shortened, cells), brief(last)) for *cells, last in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    left = sum(widths) + 2 * len(widths)
    found = []
    for *cells, last in rows:
        folded = ["".join(cell.ljust(width) + "  " for cell, width in zip(cells, widths))]
        for piece in re.findall("[^ |]*[ |]*", last):  # after a space, or after a | of a signature
            if width > left + 20 and len(folded[-1]) > left and len(folded[-1] + piece.rstrip()) > width:
                folded.append(" " * left)
            folded[-1] += piece
        found += [line.rstrip() for line in folded]
    return found


def _scaled(value: float, base: int, units: tuple[str, ...]) -> str:
    for unit in units:
        # Round before comparing, so that 999,999 is "1.0M" and never "1000.0k".
        digits = 0 if unit is units[0] else 1
        if unit is units[-1] or not abs(round(value, digits)) >= base:
            break
        value /= base
    return f"{value:.{digits}f}{unit}"
