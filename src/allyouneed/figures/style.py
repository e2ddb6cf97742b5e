"""The style of all figures, and how they are drawn and written."""

from __future__ import annotations

import io
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import UserError
from allyouneed.figures.fonts import cannot_show, choose_fonts, quiet
from allyouneed.storage.wholefile import write_bytes, writing
from allyouneed.terminal import printable, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

# Okabe and Ito's colours: distinct for every kind of colour vision.
BLUE, ORANGE, RED = "#0072b2", "#e69f00", "#d55e00"
GREEN, PINK, SKY = "#009e73", "#cc79a7", "#56b4e9"
INK, GREY, PALE = "#222222", "#767676", "#e4e4e4"
# White to navy in equal steps of lightness (CIELAB L* 100 to 18), so that twice as dark is twice the weight.
WEIGHTS = (
    "#ffffff", "#cae5fe", "#9acaf7", "#70aee9", "#4d92d6", "#3277bc", "#225c9c", "#1d4278", "#1a2b50",
)  # fmt: skip

DPI = 150
MARGIN = 0.15  # inches around everything that is drawn
TITLE = 60  # letters per line
SETTINGS: dict[Any, Any] = {
    "figure.facecolor": "white",
    "figure.dpi": DPI,
    "savefig.dpi": DPI,
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.labelsize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.frameon": False,
    "legend.fontsize": 10,
    "text.color": INK,
    # A "$" in a sentence is a dollar, not the start of a formula.
    "text.parse_math": False,
    # Text stays text: it can be searched, copied, and read aloud. The salt keeps the ids of elements the same.
    "svg.fonttype": "none",
    "svg.hashsalt": "allyouneed",
}


@contextmanager
def figure(out: Path, width: float, height: float, texts: Iterable[str] = ()) -> Iterator[Figure]:
    """A white figure, `width` by `height` inches, enlarged to hold every label and written to `out` at the end. `texts`
    are what users wrote: their characters decide which fonts are used, and stderr names what no font has."""
    kind = check_name(out)
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(), quiet():
        fonts, missing = choose_fonts(texts)
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({**SETTINGS, "font.family": [*fonts, "sans-serif"]})
        made = Figure(figsize=(width, height))
        FigureCanvasAgg(made)
        yield made
        _save(made, out, kind)
    if missing and kind == "png":  # in an SVG, the fonts of the viewer decide
        write(f"{out} {cannot_show(missing)}", err=True)


def check_name(out: Path) -> str:
    """The kind of a figure file, png or svg, from its name."""
    kind = out.suffix.lower().removeprefix(".")
    if kind not in ("png", "svg"):
        raise UserError(f"{out} is not a PNG or SVG file: choose a name that ends in .png or .svg")
    return kind


def _save(made: Figure, out: Path, kind: str) -> None:
    from matplotlib.text import Text

    metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    for text in made.findobj(Text):  # an SVG with control characters is not valid
        text.set_text(printable(text.get_text()))
    # For "tight", matplotlib goes through the whole figure once more before it measures; as PNG the box is the same.
    box: Any = made.get_tightbbox().padded(MARGIN) if kind == "png" else "tight"
    figure = io.BytesIO()
    made.savefig(figure, format=kind, metadata=metadata, bbox_inches=box, pad_inches=MARGIN)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, figure.getvalue())


def weight_colours() -> Colormap:
    """The colours of attention weights: 0 is white, 1 is navy, NaN is grey."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("weights", WEIGHTS).with_extremes(bad=PALE)


def titles(axes: Axes, title: str, below: str = "") -> None:
    """A title above all labels, in as many lines as it needs, and a grey line below it."""
    wrapped = textwrap.fill(title, TITLE, max_lines=4, placeholder=" …")
    if not wrapped:
        axes.set_title(below, pad=12, color=GREY, fontsize=10)
        return
    artist = axes.set_title(wrapped, pad=12 + 16 * bool(below))
    if below:  # matplotlib moves the title above the labels when it draws, and this line with it
        axes.annotate(
            below, (0, 0), (0, -4), artist, "offset points", ha="left", va="top", color=GREY, fontsize=10
        )  # fmt: skip


def colour_bar(
    made: Figure, artist: ScalarMappable, box: tuple[float, float, float, float], label: str, low: float = 0.0
) -> None:
    """The colours from `low` to 1, with a grey frame: a bar in its own axes at `box` (left, bottom, width, height)."""
    ticks = [low + (1 - low) * part / 4 for part in range(5)]
    bar = made.colorbar(artist, cax=made.add_axes(box), ticks=ticks)
    bar.set_label(label)
    bar.outline.set_edgecolor(GREY)
    bar.ax.grid(False)


def visible(token: str, longest: int = 24) -> str:
    """A token as a label: spaces and control characters become visible symbols, and a long token is cut."""
    text = token.replace("\n", "↵").replace("\t", "⇥") or "∅"
    kinds = map(unicodedata.category, text)
    broken = dict.fromkeys(("Cc", "Cs", "Cn", "Co"), "\N{REPLACEMENT CHARACTER}")
    text = "".join("␣" if kind[0] == "Z" else broken.get(kind, sign) for kind, sign in zip(kinds, text))
    return text if len(text) <= longest else text[: longest - 1] + "…"


def whole_numbers(axis: Axis) -> None:
    """Ticks at whole numbers only, with a comma for thousands: 20,000."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    axis.set_major_formatter("{x:,.0f}")
