"""ayn train | test | use | info | list. Mistakes get one sentence and exit code 2; --debug shows the traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allyouneed.errors import UserError, nearest

if TYPE_CHECKING:
    from allyouneed.run import Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Train, test and use every model of the Transformer lectures.\n\n"
    "Example:  ayn train translate/transformer && ayn use runs/translate-transformer 'I am Italian.'",
)
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[section.key=value]...", show_default=False)]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="folder of a run", show_default=False)]


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from allyouneed import __version__

        typer.echo(__version__)
        raise typer.Exit()


@app.command("train")
def train_command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="a name of `ayn list recipes`, or a .toml file")],
    overrides: Overrides = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Own file or folder; twice for two parallel files; or a name.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run  [default: runs/RECIPE]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there.")] = False,
    mirror: Annotated[str | None, typer.Option(help="Folder with copies of the public data sets.")] = None,
) -> None:
    """Train a model: on its built-in data, a named set, or your own file.

    Example:  ayn train translate/transformer --data pairs.tsv --out runs/mine train.steps=2000 model.size=small
    """
    from allyouneed.run import choose, default_out, resumed
    from allyouneed.train.fit import fit
    from allyouneed.train.interrupt import Interrupted

    settings = [f"data.mirror={mirror}"] if mirror else []
    named = data[0] if data and len(data) == 1 and _is_name(data[0]) else None
    if named:
        settings.append(f"data.name={named}")
    folder = out or default_out(recipe)
    settings += overrides or []
    chosen = resumed(folder, settings) if resume else choose(recipe, settings, None if named else data)
    try:
        fit(chosen, folder, resume=resume, overwrite=overwrite, say=typer.echo)
    except Interrupted as stop:
        typer.echo(f"stopped at step {stop.step}; nothing is lost. Go on with:\n  {_resume_command(recipe, folder)}")
        raise typer.Exit(stop.exit_code) from None
    if int(os.environ.get("RANK", "0")) == 0:
        typer.echo(f"the run is in {folder}; try:  ayn use {folder}")


def _is_name(text: str) -> bool:
    """Whether --data names a set rather than a file."""
    from allyouneed.data.registry import listing

    return not Path(text).exists() and text in {row.name for row in listing()}


def _resume_command(recipe: str, folder: Path) -> str:
    return f"ayn train {recipe} --out {folder} --resume"


@app.command("test")
def score_command(
    run: RunPath,
    overrides: Overrides = None,
    split: Annotated[str, typer.Option(help="Which split.")] = "test",
    mirror: Annotated[str | None, typer.Option(help="Folder with copies of the public data sets.")] = None,
) -> None:
    """Score a run: perplexity and bits per byte, or BLEU, chrF and exact match.

    Example:  ayn test runs/en-it decode.method=beam decode.beam=5
    """
    if mirror:
        os.environ["ALLYOUNEED_MIRROR"] = mirror
    for score in _load(run).test(split, **_decode(overrides)):
        typer.echo(str(score))


@app.command("use")
def use_command(
    run: RunPath,
    text: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", show_default=False)] = None,
    table: Annotated[bool, typer.Option("--table", help="The five likeliest next words at each position.")] = False,
    alignment: Annotated[Path | None, typer.Option(help="Draw which source words were looked at (.png, .svg).")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A key of [decode], as beam=5; repeatable.")] = None,
) -> None:
    """Translate or continue TEXT; without TEXT each line of standard input, or what you type at the prompt.

    Example:  ayn use runs/en-it "I am Italian." --set method=beam
    """
    loaded, decode = _load(run), _decode([f"decode.{item}" for item in set_ or []])
    if table:
        for line in text or _lines():
            _print_table(loaded, line, decode)
    elif alignment is not None:
        _draw(loaded, text or [], alignment, decode)
    elif text:
        for line in text:
            _answer(loaded, line, decode)
    elif sys.stdin.isatty():
        _converse(loaded, decode)
    else:
        _stream(loaded, decode)


def _answer(run: Run, text: str, decode: dict[str, Any]) -> None:
    """A continuation is written as it comes, after its prompt; a translation when it is there."""
    continues = run.recipe.task_kind == "lm"
    if continues and run.decode(**decode).method != "beam":
        typer.echo(text, nl=False)
        for _ in run.answers([text], show=_show, **decode):
            typer.echo("")
        return
    for answer in run.answers([text], **decode):
        for one in (answer, *answer.others):
            score = f"{one.score:8.3f}  " if answer.others else ""
            typer.echo(f"{score}{text if continues else ''}{one.text}")


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _converse(run: Run, decode: dict[str, Any]) -> None:
    import readline  # noqa: F401  (arrow keys and history)

    typer.echo("type a sentence and press Enter; Ctrl-D ends", err=True)
    while True:
        try:
            line = input("> ")
        except EOFError:
            typer.echo("")
            return
        if not line.strip():
            continue
        try:
            _answer(run, line, decode)
        except UserError as error:
            typer.echo(str(error), err=True)


def _stream(run: Run, decode: dict[str, Any]) -> None:
    """Line in, line out, in order; a newline inside an answer is shown as \\n, an unusable line as an empty one."""
    prefix = run.recipe.task_kind == "lm"
    source, kept = _lines(), []

    def remembered() -> Iterable[str]:
        for line in source:
            if prefix:
                kept.append(line)
            yield line

    for answer in run.lines(remembered(), lambda problem: typer.echo(problem, err=True), **decode):
        before = kept.pop(0) if prefix else ""
        text = before + answer.text if answer is not None else ""
        sys.stdout.write(text.replace("\n", "\\n") + "\n")
        sys.stdout.flush()


def _lines() -> Iterable[str]:
    """Standard input as UTF-8, whatever the locale says; a wrong byte is named."""
    for number, raw in enumerate(sys.stdin.buffer, 1):
        try:
            yield raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(f"line {number} of standard input is not UTF-8 (byte {error.start} of the line)") from None


def _print_table(run: Run, text: str, decode: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("position", "word", "likely next", box=None, header_style="bold")
    for i, guess in enumerate(run.table(text, **decode)):
        likely = "  ".join(f"{word!r} {100 * p:.1f}%" for word, p in guess.likely)
        table.add_row(str(i), repr(guess.token), likely)
    Console(soft_wrap=not sys.stdout.isatty(), markup=False).print(table)


def _draw(run: Run, texts: list[str], out: Path, decode: dict[str, Any]) -> None:
    from allyouneed.figures import alignment

    if len(texts) != 1:
        raise UserError("--alignment draws one sentence: give one TEXT")
    found = run.align(texts[0], **decode)
    alignment(found.weights.numpy(), found.source, found.target, out, title=texts[0])
    typer.echo(f"the picture is in {out}")


@app.command("info")
def info_command(run: RunPath, json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Tell what a run is: parameters by part, FLOPs a token, memory, data, scores, versions.

    Example:  ayn info runs/en-it
    """
    info = _load(run).info()
    if json:
        from json import dumps

        typer.echo(dumps(info, indent=2, ensure_ascii=False))
        return
    from allyouneed.format import human_bytes, human_count

    typer.echo(f"{info['run']}: {info['model']} for {info['task']}")
    typer.echo("parameters")
    for part, count in info["parameters"].items():
        typer.echo(f"  {part:<24}{count:>14,}")
    typer.echo(f"FLOPs a token             {human_count(info['flops per token'])} forward, about 3x that in training")
    memory = info["memory"]
    typer.echo(
        f"memory                    {human_bytes(memory['weights'])} of weights, "
        f"{human_bytes(memory['training'])} in training before activations"
    )
    data = info["data"]
    typer.echo(f"data                      {data['name']} ({data['licence'] or 'own files'})")
    for split, scores in info["scores"].items():
        for score in scores if isinstance(scores, list) else []:
            typer.echo(f"{split + ' score':<26}{score['name']} {score['value']:.4g}  ({score['signature']})")
    typer.echo(f"runtime                   {info['runtime'].get('why', '')}")
    typer.echo(f"versions                  {', '.join(f'{k} {v}' for k, v in info['versions'].items())}")


@app.command("list")
def list_command(what: Annotated[str, typer.Argument(metavar="recipes|data|models")]) -> None:
    """List what there is: recipes, data sets or models.

    Example:  ayn list recipes
    """
    kinds = {"recipes": _recipes, "data": _data, "models": _models}
    if what not in kinds:
        raise UserError(f"there is no list of '{what}'{nearest(what, kinds)}")
    rows = kinds[what]()
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    for row in rows:
        typer.echo("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]))


def _recipes() -> list[tuple[str, ...]]:
    from allyouneed.config import recipe_names, recipe_text

    return [(name, recipe_text(name).splitlines()[0].lstrip("# ")) for name in recipe_names()]


def _data() -> list[tuple[str, ...]]:
    from allyouneed.data.registry import listing

    return [tuple(str(cell) for cell in row) for row in listing()]


def _models() -> list[tuple[str, ...]]:
    from allyouneed import catalog

    rows: list[tuple[str, ...]] = []
    for kind in sorted(catalog.MODELS):
        for size, values in catalog.model(kind).sizes.items():
            rows.append((kind, size, ", ".join(f"{key} {value}" for key, value in values.items())))
    return rows


def _load(path: str) -> Run:
    from allyouneed.run import load

    return load(path)


def _decode(overrides: Iterable[str] | None) -> dict[str, Any]:
    """decode.key=value -> keyword arguments."""
    from allyouneed.config import override

    values = override({}, list(overrides or []))
    for section in values:
        if section != "decode":
            raise UserError(f"here only decode.key=value can be changed, not [{section}]")
    return dict(values.get("decode", {}))


def main() -> None:
    """The command `ayn`."""
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    try:
        app()
    except UserError as error:
        if debug:
            raise
        typer.echo(f"ayn: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("", err=True)
        sys.exit(130)
    except BrokenPipeError:  # the reader had enough: `ayn use … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
