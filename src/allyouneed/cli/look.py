"""ayn look: what a run computes, in a browser."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allyouneed.cli import common
from allyouneed.cli.common import argument, flag, given_settings, load, option
from allyouneed.errors import UserError, shortened
from allyouneed.terminal import write

if TYPE_CHECKING:
    from allyouneed.look import Page
    from allyouneed.look.learning import Begun
    from allyouneed.run import Run


def look_command(
    run: Annotated[
        list[str] | None, argument("RUN… [TEXT]", "Folders of runs; then a text, or an image, to look at.")
    ] = None,
    out: Annotated[Path | None, option("FILE", "The page.  [default: RUN/look.html]")] = None,
    gallery: Annotated[bool, flag("--gallery", "A page for each built-in run in runs/.")] = False,
    no_open: Annotated[bool, flag("--no-open", "Show no browser.")] = False,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Of the live page; 0: any free.")
    ] = 8000,
    set_: Annotated[list[str] | None, option("KEY=VALUE", "A setting of [decode]; may be repeated.", "--set")] = None,
    device: common.Device = "auto",
    precision: common.Precision = "auto",
) -> None:
    """See what a run computes: write one HTML page for a TEXT and open it; without a TEXT, show a live
    page, where any text can be typed, until Ctrl-C.

    \b
    Example:
      ayn look runs/en-it "I am Italian."
      ayn look runs/en-it
    """
    if gallery:
        _gallery(run or [], out, not no_open)
        return
    if not run:
        raise UserError("name the run to look into: ayn look RUN [TEXT]")
    folders = [run[0]]
    for word in run[1:]:
        if not os.path.isfile(os.path.join(word, "recipe.toml")):
            break
        folders.append(word)
    texts = run[len(folders) :]
    if len(texts) > 1:
        raise UserError(f"one text is looked at, but {len(texts)} are given: put it in quotes")
    decode = given_settings([f"decode.{item.removeprefix('decode.')}" for item in set_ or []], "decode")
    if texts:
        _save([load(folder, device, precision) for folder in folders], texts[0], out, not no_open, decode)
    elif out is not None:
        raise UserError(f"--out {shortened(out)} is the page of a text: give one, or leave --out out for a live page")
    else:
        serve([_begun_or_loaded(folder, device, precision) for folder in folders], port, not no_open)


def _save(runs: list[Run], text: str, out: Path | None, show: bool, decode: dict[str, object]) -> None:
    from allyouneed.look import Page

    if not text.strip():
        raise UserError("the text is empty: give some words, or leave it out for a live page")
    page = Page([run.view(text, **decode) for run in runs], ", ".join(run.folder.path.absolute().name for run in runs))
    path = page.save(out or runs[0].folder.path / "look.html")
    write(f"the page is in {path}")
    _open(path, show)


def _gallery(given: list[str], out: Path | None, show: bool) -> None:
    """A page of each run that is where its recipe puts it."""
    from allyouneed.look.gallery import write_gallery
    from allyouneed.recipe import recipe_names
    from allyouneed.training.starting import default_out

    if given:
        raise UserError(f"--gallery takes the runs in runs/, and no argument: leave {shortened(given[0])} out")
    there = {name: os.path.isfile(default_out(name) / "recipe.toml") for name in recipe_names()}
    if not any(there.values()):
        raise UserError("there is no run in runs/ yet: train one first, such as `ayn train lm/gpt`")
    index = write_gallery(
        out or Path("runs") / "gallery",
        (_first_look(load(str(default_out(name)))) for name, found in there.items() if found),
        [name for name, found in there.items() if not found],
    )
    write(f"the gallery is in {index}")
    _open(index, show)


def _first_look(run: Run) -> Page:
    """The page of a run for the first text that it is offered."""
    write(f"looking into {run.folder.path}")
    first = run.view().shown["starts"][:1]
    return run.look(*first)


def _open(path: Path, show: bool) -> None:
    if show and not webbrowser.open(path.absolute().as_uri()):
        write("there is no browser here: open that file in one")


def _begun_or_loaded(folder: str, device: str, precision: str) -> Run | Begun:
    """A run that trains may have no weights yet; its curves are there already."""
    from allyouneed.look.learning import Begun
    from allyouneed.storage.runfolder import RunFolder

    run = RunFolder(folder)
    if run.recipe.is_file() and run.config.is_file() and not run.model.is_file():
        return Begun(RunFolder.open(folder), lambda: load(folder, device, precision))
    return load(folder, device, precision)


def serve(runs: Sequence[Run | Begun], port: int, show: bool) -> None:
    """The live page, until Ctrl-C."""
    try:
        from allyouneed.serve import app
        from allyouneed.serve.running import listen, run
    except ModuleNotFoundError as error:
        raise UserError(
            f"the live page needs {error.name}: pip install 'allyouneed[serve]'; or give a text, which needs nothing"
        ) from None
    place = listen("127.0.0.1", port)
    address = f"http://localhost:{place.getsockname()[1]}/"

    def ready() -> None:
        write(f"live at {address} until Ctrl-C")
        if show and not webbrowser.open(address):
            write("there is no browser here: open that address in one")

    run(app(runs), place, ready, patience=1)
    write("stopped")
