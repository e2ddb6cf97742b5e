"""ayn train | test | use | info | list. Mistakes get one sentence and exit code 2; --debug shows the traceback."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allyouneed.errors import UserError, nearest
from allyouneed.format import columns, human_bytes, human_count

if TYPE_CHECKING:
    from allyouneed.run import Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Train, test and use every model of the Transformer lectures.

    \b
    Example:
      ayn train translate/transformer
      ayn use runs/translate-transformer "I am Italian."
    """,
)
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]
Mirror = Annotated[str | None, typer.Option(metavar="DIR", help="Folder with copies of the public data sets.")]


@app.callback(invoke_without_command=True)
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a mistake.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from allyouneed import __version__

        typer.echo(__version__)
        raise typer.Exit()


@app.command("train", short_help="Train a model on built-in, public or own data.")
def train_command(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A name of `ayn list recipes`, or a .toml file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="SECTION.KEY=VALUE", help="Settings other than the recipe's.")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="Own file or folder (twice: parallel files), or a name of `ayn list data`."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the run.  [default: runs/RECIPE]")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the run stopped.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a run that is there.")] = False,
    mirror: Mirror = None,
) -> None:
    """Train a model on the recipe's data, on a public data set, or on your own.

    \b
    Example:
      ayn train translate/transformer --data my.tsv --out runs/mine train.lr=1e-3
    """
    settings = list(overrides or [])
    for stray in settings:
        if "=" not in stray and Path(stray).exists():
            raise UserError(f"'{stray}' is not of the form section.key=value; own data is given with --data {stray}")
    if mirror:
        settings.append(f"data.mirror={os.path.abspath(mirror)}")
    from allyouneed.run import choose, default_out, resumed
    from allyouneed.training.fit import fit
    from allyouneed.training.interrupt import Interrupted

    folder = out or default_out(recipe)
    chosen = resumed(folder, recipe, settings, data) if resume else choose(recipe, settings, data)
    first = os.environ.get("RANK", "0") == "0"
    try:
        fit(chosen, folder, resume=resume, overwrite=overwrite, say=typer.echo)
    except (Interrupted, KeyboardInterrupt, BrokenPipeError, SystemExit) as stop:  # rich exits when a pipe breaks
        where = f"at step {stop.step}" if isinstance(stop, Interrupted) else "between two checkpoints"
        again = shlex.join(["ayn", "train", recipe, "--out", str(folder), "--resume"])
        begun = (folder / "recipe.toml").is_file()
        if first:
            typer.echo(f"\nstopped {where}; go on with:\n  {again}" if begun else "\nstopped before it began", err=True)
        code = stop.exit_code if isinstance(stop, Interrupted) else 130 if isinstance(stop, KeyboardInterrupt) else 1
        raise typer.Exit(code) from None
    if first:
        typer.echo(f"\nthe run is in {folder}; try:\n  {shlex.join(['ayn', 'use', str(folder)])}")


@app.command("test", short_help="Score a run.")
def score_command(
    run: RunPath,
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="DECODE.KEY=VALUE", help="Settings other than the run's.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="Which split.")] = "test",
    mirror: Mirror = None,
) -> None:
    """Score a run: perplexity and bits per byte, or BLEU, chrF and exact match.

    \b
    Example:
      ayn test runs/en-it decode.method=beam decode.beam=5
    """
    decode, loaded = _decode(overrides or []), _load(run)
    if mirror:
        loaded.task.recipe = loaded.recipe.with_(data=replace(loaded.recipe.data, mirror=mirror))
    _print_columns(_rows(loaded.test(split, **decode)))


@app.command("use", short_help="Translate, or continue, what you give or type.")
def use_command(
    run: RunPath,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", show_default=False)] = None,
    table: Annotated[bool, typer.Option("--table", help="Show the five likeliest next words at each place.")] = False,
    alignment: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw which source words were looked at (.png, .svg).")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of [decode]; may be repeated.")
    ] = None,
) -> None:
    """Translate, or continue, each TEXT. Without TEXT: each line of standard input,
    answered by one line; or, at a terminal, what you type.

    \b
    Example:
      ayn use runs/en-it "I am Italian." --set method=beam --set beam=4
    """
    items = [item.removeprefix("decode.") for item in set_ or []]
    for item in items:
        if "=" not in item:
            raise UserError(f"--set {item} is not of the form key=value, for example --set beam=5")
    decode = _decode([f"decode.{item}" for item in items])
    loaded = _load(run)
    loaded.decode(**decode)  # complains before anything is read
    try:
        if alignment is not None:
            _draw(loaded, text or [], alignment, decode)
        elif text:
            for i, line in enumerate(text):
                typer.echo("\n" if table and i else "", nl=False)
                _answer(loaded, line, table, decode)
        elif sys.stdin is not None and sys.stdin.isatty():
            _converse(loaded, table, decode)
        else:
            _stream(loaded, table, decode)
    except KeyboardInterrupt:
        typer.echo("", err=True, nl=sys.stderr.isatty())  # the prompt of the shell begins on a line of its own
        raise typer.Exit(130) from None


def _answer(run: Run, text: str, table: bool, decode: dict[str, Any]) -> None:
    """A continuation is written as it comes, after its prompt; a translation when it is there."""
    if table:
        _print_table(run, text, decode)
        return
    before = text if run.recipe.task_kind == "lm" else ""
    if before and run.decode(**decode).method != "beam":
        pieces = iter([before])  # not shown before the prompt is found good
        for _ in run.answers([text], show=lambda piece: _show(next(pieces, "") + piece), **decode):
            typer.echo(next(pieces, ""))
        return
    for answer in run.answers([text], **decode):
        for one in (answer, *answer.others):
            score = f"{one.score:8.3f}  " if answer.others else ""
            typer.echo(f"{score}{before}{one.text}")


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _converse(run: Run, table: bool, decode: dict[str, Any]) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history)
    what = "the beginning of a text" if run.recipe.task_kind == "lm" else "a sentence"
    typer.echo(f"type {what} and press Enter; Ctrl-D ends", err=True)
    while True:
        try:
            line = input("> " if sys.stdout.isatty() else "")
        except EOFError:
            typer.echo("", err=True)
            return
        if not line.strip():
            continue
        try:
            _answer(run, line, table, decode)
        except UserError as error:
            typer.echo(str(error), err=True)


def _stream(run: Run, table: bool, decode: dict[str, Any]) -> None:
    """Line in, line out, in order; a newline inside an answer is shown as \\n, an unusable line as an empty one."""
    from allyouneed.data import stdin

    first = 1
    for lines in stdin.lines(sys.stdin.fileno(), _complain) if sys.stdin is not None else ():
        if table:
            for number, line in enumerate(lines, first):
                try:
                    if line.strip():
                        _answer(run, line, table, decode)
                except UserError as error:
                    _complain(f"line {number}: {error}")
                typer.echo("")
        else:
            for line, answer in zip(lines, run.lines(lines, _complain, first, **decode)):
                before = line if run.recipe.task_kind == "lm" else ""
                _show((before + answer.text if answer is not None else "").replace("\n", "\\n") + "\n")
        first += len(lines)


def _complain(problem: str) -> None:
    typer.echo(f"ayn: {problem}", err=True)


def _print_table(run: Run, text: str, decode: dict[str, Any]) -> None:
    def visible(token: str) -> str:
        return token.replace(" ", "·").replace("\n", "\\n").replace("\t", "\\t")

    rows = [("", "word", "likely next (· is a space)")]
    guesses = run.table(text, **decode)
    likely = [[f"{100 * p:5.1f}% {visible(word)}" for word, p in guess.likely] for guess in guesses]
    widths = [max(map(len, column)) for column in zip(*likely)]
    for i, (guess, cells) in enumerate(zip(guesses, likely)):
        rows.append((str(i), visible(guess.token), "".join(cell.ljust(w + 1) for cell, w in zip(cells, widths))))
    _print_columns(rows, fold=False)


def _draw(run: Run, texts: list[str], out: Path, decode: dict[str, Any]) -> None:
    from allyouneed.figures import alignment

    if len(texts) != 1:
        raise UserError("--alignment draws one sentence: give one TEXT")
    found = run.align(texts[0], **decode)
    try:
        alignment(found.weights.numpy(), found.source, found.target, out, title=texts[0])
    except OSError as error:
        raise UserError(f"could not write {out}: {error.strerror}") from error
    typer.echo(f"the picture is in {out}")


@app.command("info", short_help="Tell what a run is.")
def info_command(run: RunPath, json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Tell what a run is: parameters by part, FLOPs a token, memory, data, scores, versions.

    \b
    Example:
      ayn info runs/en-it
    """
    loaded = _load(run)
    info = loaded.info()
    if json:
        from json import dumps

        typer.echo(dumps(info, indent=2, ensure_ascii=False))
        return
    parameters, memory, data = info["parameters"], info["memory"], info["data"]
    width = len(f"{parameters['total']:,}")
    parts = [f"{count:>{width},}  {part}" for part, count in parameters.items()]
    scores = [
        (f"{split} score", f"{what}  {signature}")
        for split, found in loaded.scores().items()
        for what, signature in _rows(found)
    ]
    work = f"{human_count(info['flops per token'])} FLOPs a token forward, with {info['context']} tokens of context"
    _print_columns(
        [
            ("run", info["run"]),
            ("task", info["task"]),
            ("model", info["model"]),
            *(("parameters" if i == 0 else "", part) for i, part in enumerate(parts)),
            ("work", f"{work}; about three times that in training"),
            ("memory", f"{human_bytes(memory['weights'])} of weights; "
             f"{human_bytes(memory['training'])} in training, before activations"),
            ("data", f"{data['name']} ({data.get('licence') or 'own files'})"),
            *scores,
            ("runtime", info["runtime"].get("why", "")),
            ("versions", ", ".join(f"{name} {version}" for name, version in info["versions"].items())),
        ]
    )  # fmt: skip


def _rows(scores: Sequence[object]) -> list[tuple[str, str]]:
    """What was measured, all equally wide, and its signature."""
    both = [str(score).split("  ", 1) for score in scores]
    width = max((len(what) for what, _ in both), default=0)
    return [(what.ljust(width), signature) for what, signature in both]


@app.command("list", short_help="List recipes, data sets or models.")
def list_command(
    what: Annotated[str, typer.Argument(metavar="recipes|data|models", help="What to list.", show_default=False)],
) -> None:
    """List what there is: recipes, data sets or models.

    \b
    Example:
      ayn list recipes
    """
    kinds = {"recipes": _recipes, "data": _data, "models": _models}
    if what not in kinds:
        raise UserError(f"there is no list of '{what}'{nearest(what, kinds)}")
    _print_columns(kinds[what]())


def _recipes() -> list[tuple[str, ...]]:
    from allyouneed.config import recipe_names, recipe_text

    return [(name, recipe_text(name).splitlines()[0].lstrip("# ")) for name in recipe_names()]


def _data() -> list[tuple[str, ...]]:
    from allyouneed.data.registry import listing

    return [(row.name, row.shape, f"{row.what}; {row.licence}; {row.origin}") for row in listing()]


def _models() -> list[tuple[str, ...]]:
    from allyouneed import catalog

    rows: list[tuple[str, ...]] = []
    for kind in sorted(catalog.MODELS):
        for size, values in catalog.model(kind).sizes.items():
            rows.append((kind, size, ", ".join(f"{key} {value}" for key, value in values.items())))
    return rows


def _print_columns(rows: Sequence[tuple[str, ...]], fold: bool = True) -> None:
    """Columns that begin together. On a terminal the last is folded at its edge; elsewhere a row is a line."""
    width = shutil.get_terminal_size().columns if fold and sys.stdout.isatty() else 0
    typer.echo("\n".join(columns(rows, width)))


def _load(path: str) -> Run:
    from allyouneed.run import load

    return load(path)


def _decode(overrides: list[str]) -> dict[str, Any]:
    """decode.key=value -> keyword arguments."""
    from allyouneed.config import override

    values = override({}, overrides)
    for section in values:
        if section != "decode":
            raise UserError(f"here only decode.key=value can be changed, not [{section}]")
    return dict(values.get("decode", {}))


def main() -> None:
    """The command `ayn`."""
    words = sys.argv[1:]
    options = words[: words.index("--")] if "--" in words else words
    debug = "--debug" in options
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # texts are UTF-8, whatever the locale says
            stream.reconfigure(
                encoding="utf-8", errors="surrogateescape" if stream is sys.stdin else "backslashreplace"
            )
    try:
        app([word for i, word in enumerate(words) if word != "--debug" or i >= len(options)])
    except UserError as error:
        if debug:
            traceback.print_exc()
        _complain(str(error))
        sys.exit(2)
