"""A gallery: a page for each of some runs, and one that leads to them."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from allyouneed.look.page import Page, asset
from allyouneed.storage.wholefile import write_text, writing


def write_gallery(folder: Path, pages: Iterable[Page], missing: Sequence[str]) -> Path:
    """Write the pages into a folder, with an index.html; `missing` are recipes that have no run yet."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    cards = []
    for page in pages:
        page.save(folder / f"{page.title}.html")
        shown = page.views[0].shown
        run, text = shown["run"], shown["text"]
        facts = f"{run['task']} · {run['model']} · {run['parameters']:,} parameters · {run['score']}"
        cards.append(
            f'<a class="card" href="{html.escape(page.title)}.html"><h2>{html.escape(page.title)}</h2>'
            f'<p class="says">{html.escape(facts)}</p><p dir="auto">{html.escape(text)}</p></a>'
        )
    commands = "".join(f"<li><code>ayn train {html.escape(name)}</code></li>" for name in missing)
    rest = f"<h2>Not trained yet</h2><ul>{commands}</ul>" if missing else ""
    style = asset("page.css").decode()
    write_text(
        folder / "index.html",
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A look inside</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style>'
        '</head><body><main id="page"><header class="bar"><b>allyouneed</b> a look inside</header>'
        f'<div class="gallery">{"".join(cards)}</div>{rest}</main></body></html>\n',
    )
    return folder / "index.html"
