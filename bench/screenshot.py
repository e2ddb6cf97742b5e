"""python -m bench.screenshot PAGE.html OUT.png [STATE] [WIDTH] [dark] [beams]: a page of `ayn look` as an image.

STATE is what stands behind the # of its address: "view=attention&token=2". It needs playwright and Chromium."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def screenshot(page: Path, out: Path, state: str = "", width: int = 1180, dark: bool = False, only: str = "") -> None:
    from playwright.sync_api import sync_playwright

    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"there is no browser here: install one of {', '.join(BROWSERS)}")
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        scheme = "dark" if dark else "light"
        tab = started.new_page(
            viewport={"width": width, "height": 600}, color_scheme=scheme, device_scale_factor=1.25, offline=True
        )
        tab.goto(f"{page.absolute().as_uri()}#{state}")
        tab.wait_for_selector("#page[aria-busy]", state="detached")
        tab.wait_for_timeout(800)
        height = tab.evaluate("document.getElementById('page').getBoundingClientRect().height")
        tab.set_viewport_size({"width": width, "height": min(1400, max(300, int(height)))})
        if only:
            tab.locator(".card", has=tab.locator(only)).screenshot(path=out)
        else:
            tab.screenshot(path=out)
        started.close()


if __name__ == "__main__":
    page, out, *rest = sys.argv[1:]
    state = rest[0] if rest else ""
    width = int(rest[1]) if len(rest) > 1 else 1180
    screenshot(Path(page), Path(out), state, width, "dark" in rest, ".beams" * ("beams" in rest))
