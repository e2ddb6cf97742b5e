"""ayn train | test | use | look | serve | import | export | info | lecture | exercise | list. An error is one
sentence and exit code 2; --debug shows more."""

from __future__ import annotations

import io
import os
import shlex
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from allyouneed import errors
from allyouneed.cli import common
from allyouneed.cli.common import argument, as_paths, complain, flag, given_settings, load, option, print_columns
from allyouneed.cli.listing import LISTS, lectures, recipe_settings
from allyouneed.cli.look import look_command
from allyouneed.cli.serve import serve_command
from allyouneed.cli.use import use_command
from allyouneed.errors import UserError, nearest, shortened
from allyouneed.format import human_bytes, human_count
from allyouneed.terminal import brief, say, write

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""\b
ayn train translate/transformer  # every model of the Transformer lectures""",
)
UsageError: Any = typer.BadParameter.__base__  # of click, or of the copy of it that newer versions of typer have


@app.callback(invoke_without_command=True)
def _options(
    debug: Annotated[bool, flag("--debug", "Show the traceback of an error.")] = False,
    version: Annotated[bool, flag("--version", "Print the version.")] = False,
) -> None:
    if version:
        from allyouneed.version import __version__

        write(__version__)
        raise typer.Exit()


@app.command("train", short_help="Train a model on built-in, public or own data.")
def train_command(
    recipe: Annotated[str, argument("RECIPE", "A name of `ayn list recipes`, or a .toml file.")],
    overrides: Annotated[
        list[str] | None, argument("SECTION.KEY=VALUE", "Settings that differ from the recipe.")
    ] = None,
    data: common.Data = None,
    out: Annotated[Path | None, option("DIR", "Folder of the run.  [default: runs/RECIPE]")] = None,
    init: Annotated[str, option("RUN", "Start from the body of another run.")] = "",
    resume: Annotated[bool, flag("--resume", "Continue where the run stopped, if it has begun.")] = False,
    overwrite: common.Overwrite = False,
    mirror: common.Mirror = None,
) -> None:
    """Train a model on the recipe's data, on a public data set, or on your own.

    \b
    Example:
      ayn train translate/transformer --data my.tsv --out runs/mine train.lr=1e-3
    """
    began, settings = time.monotonic(), list(overrides or [])
    for stray in settings:
        if "=" not in stray and os.path.exists(stray):
            raise UserError(f"'{stray}' is not of the form section.key=value; own data is given with --data {stray}")
    if mirror:
        settings.append(f"data.mirror={os.path.abspath(mirror)}")
    from allyouneed.exchange.hub import HUB, with_imported
    from allyouneed.training.fit import begun_since, fit
    from allyouneed.training.interrupt import Interrupted, Terminated
    from allyouneed.training.starting import choose, default_out, resumed

    if init:
        settings.append(f"train.init={init if init.startswith(HUB) else os.path.abspath(init)}")
    folder, settings = out or default_out(recipe), with_imported(settings, say)
    given = as_paths(data)
    chosen = resumed(folder, recipe, settings, given) if resume else choose(recipe, settings, given)
    first, now = (os.environ.get("RANK") or "0") == "0", time.time()
    try:
        fit(chosen, folder, resume=resume, overwrite=overwrite, say=say, began=began)
    except (Interrupted, KeyboardInterrupt, BrokenPipeError, SystemExit) as stop:  # rich exits when a pipe breaks
        where = f"at step {stop.step}" if isinstance(stop, Interrupted) else "between two checkpoints"
        again = shlex.join(["ayn", "train", recipe, "--out", str(folder), "--resume"])
        begun = begun_since(folder, 0 if resume else now)
        if first:
            write(f"\nstopped {where}; continue with:\n  {again}" if begun else "\nstopped before it began", err=True)
        codes = {Interrupted: getattr(stop, "exit_code", 1), Terminated: 143, KeyboardInterrupt: 130}
        raise typer.Exit(codes.get(type(stop), 1)) from None
    if first:
        image = ["TEXT", "--out", "a.png"] if chosen.task_kind == "draw" else []
        write(f"\nthe run is in {folder}; try:\n  {shlex.join(['ayn', 'use', str(folder), *image])}")


@app.command("test", short_help="Score a run.")
def score_command(
    run: common.RunPath,
    overrides: Annotated[
        list[str] | None, argument("SECTION.KEY=VALUE", "Settings of decode, or of data with --data.")
    ] = None,
    data: common.Data = None,
    split: Annotated[str, option("NAME", "Which split.")] = "test",
    out: Annotated[Path | None, option("FILE", "Write predictions as JSON lines.")] = None,
    mirror: common.Mirror = None,
    device: common.Device = "auto",
    precision: common.Precision = "auto",
    engine: common.Engine = "torch",
) -> None:
    """Score a run on its test split or, with --data, on other files: perplexity, bits per
    byte; BLEU, chrF, exact match; accuracy, macro-F1; F1 of entities; or analogies and
    similarity of words (task.questions=FILE adds yours).

    \b
    Example:
      ayn test runs/en-it --out predictions.jsonl decode.method=beam decode.beam=5
      ayn test runs/reviews --data other.csv data.source=title data.target=stars
    """
    own = [item for item in overrides or [] if item.startswith("task.questions=")]
    settings = given_settings([item for item in overrides or [] if item not in own], "decode", "data")
    loaded = load(run, device, precision, engine)
    if own:
        from allyouneed.recipe import Recipe, override

        loaded.task.options = Recipe.parse(override(loaded.recipe.to_dict(), own)).task
    if mirror:
        loaded.recipe = loaded.task.recipe = loaded.recipe.with_(data=replace(loaded.recipe.data, mirror=mirror))
    from allyouneed.tasks.scoring import score_rows

    print_columns(score_rows(loaded.test(split, data=as_paths(data), out=out, **settings)))


app.command("use", short_help="Translate, continue, classify or tag; find near words.")(use_command)
app.command("look", short_help="See what a run computes, in a browser.")(look_command)
app.command("serve", short_help="Serve runs over HTTP.")(serve_command)


@app.command("import", short_help="Make a run of a model of another library.")
def import_command(
    path: Annotated[str, argument("PATH", "A folder of transformers, a .gguf, a llama2.c .bin, or hf:NAME.")],
    out: Annotated[Path | None, option("RUN", "Folder of the run.  [default: runs/PATH]")] = None,
    architecture: Annotated[
        str, option("NAME", "Read it as this, such as BertForMaskedLM; leave out other heads.", "--as")
    ] = "",
    overwrite: common.Overwrite = False,
) -> None:
    """Make a run of a model of another library: GPT-2, Llama, Mistral, Qwen2, BERT, DistilBERT,
    RoBERTa, ViT, Marian or Pegasus. Nothing in its files is executed.

    \b
    Example:
      ayn import downloads/gpt2 --out runs/gpt2
      ayn use runs/gpt2 "Once upon a time"
    """
    from allyouneed.exchange.hub import HUB, find_model
    from allyouneed.exchange.importing import import_run

    name = Path(path.removeprefix(HUB)).absolute().name
    source = find_model(path.removeprefix(HUB), say) if path.startswith(HUB) else Path(path)
    folder = out or Path("runs") / name.removesuffix(".gguf").removesuffix(".bin")
    import_run(source, folder, architecture=architecture, overwrite=overwrite, say=say)
    write(f"try:\n  {shlex.join(['ayn', 'use', str(folder)])}")


@app.command("export", short_help="Write a run for another library.")
def export_command(
    run: common.RunPath,
    out: Annotated[Path, argument("DIR", "Folder to write; it must be new or empty.")],
    to: Annotated[str, option("NAME", "hf, onnx (for ONNX Runtime) or ct2 (CTranslate2).")],
    numbers: Annotated[str, option("TYPE", "ct2: weights as float32 or int8.")] = "float32",
    overwrite: common.Overwrite = False,
) -> None:
    """Write a run for another library. What that library cannot express is refused by name.

    \b
    Example:
      ayn export runs/reviews exported/reviews --to hf
      ayn export runs/en-it exported/en-it --to ct2 --numbers int8
    """
    made = load(run, "cpu", "fp32").export(out, to, numbers, overwrite, say=say)
    write(f"wrote {len(made)} files into {out}")


@app.command("info", short_help="Tell what a run is.")
def info_command(
    run: common.RunPath,
    json: Annotated[bool, flag("--json", "As JSON.")] = False,
    device: common.Device = "auto",
    precision: common.Precision = "auto",
) -> None:
    """Tell what a run is: parameters by part, FLOPs per token, memory, data, scores, versions.

    \b
    Example:
      ayn info runs/en-it
    """
    loaded = load(run, device, precision)
    info = loaded.info()
    if json:
        from json import dumps

        write(dumps(info, indent=2, ensure_ascii=False))
        return
    from allyouneed.tasks.scoring import score_rows

    parameters, memory, data = info["parameters"], info["memory"], info["data"]
    width = len(f"{parameters['total']:,}")
    parts = [f"{count:>{width},}  {part}" for part, count in parameters.items()]
    scores = [
        (f"{split} score", f"{what}  {signature}")
        for split, found in loaded.scores().items()
        for what, signature in score_rows(found)
    ]
    origin = [("data", f"{data['name']} ({data.get('licence') or 'own files'})")]
    trained = [("trained", info["runtime"].get("why", ""))]
    if info["imported"]:
        origin, trained = [("imported", info["imported"])], []
    work = f"{human_count(info['flops per token'])} FLOPs per token forward, with {info['context']} tokens of context"
    print_columns(
        [
            ("run", info["run"]),
            ("task", info["task"]),
            ("model", info["model"]),
            *(("parameters" if i == 0 else "", part) for i, part in enumerate(parts)),
            ("work", f"{work}; about three times that in training"),
            ("memory", f"{human_bytes(memory['weights'])} of weights; "
             f"{human_bytes(memory['training'])} in training, before activations"),
            *origin,
            *(("followed" if i == 0 else "", line) for i, line in enumerate(info["followed"])),
            *scores,
            *trained,
            ("loaded", f"{info['loaded']['precision']} on {info['loaded']['device']}"),
            ("versions", ", ".join(f"{name} {version}" for name, version in info["versions"].items())),
        ]
    )  # fmt: skip


@app.command("lecture", short_help="Show a topic of the lectures, with its figures.")
def lecture_command(
    name: Annotated[str, argument("TOPIC", "Which one, or all; without a name they are listed.")] = "",
    text: Annotated[str | None, argument("TEXT", "A sentence of your own, for topics that take one.")] = None,
    out: Annotated[Path, option("DIR", "Folder of the results.")] = Path("runs/lectures"),
    run: Annotated[str, option("RUN", "Look into this run instead of training one.", "--run")] = "",
    mirror: common.Mirror = None,
    device: common.Device = "auto",
) -> None:
    """Show a topic of the lectures: in words, with its figure and its numbers. Models that
    topics train are kept and shared. "all" makes one booklet of all topics.

    \b
    Example:
      ayn lecture gradients
      ayn lecture all
    """
    if not name:
        print_columns(lectures())
        return
    from allyouneed.lectures import ALL, check, lecture

    check(name, run, text)  # an unknown name is found before torch is imported
    from allyouneed.lectures.base import Lecture
    from allyouneed.lectures.booklet import show_all
    from allyouneed.training.interrupt import Interrupted

    given: dict[str, Any] = {"run": run, "out": out, "mirror": mirror or "", "device": device, "say": say}
    try:
        written = show_all(Lecture(**given)) if name == ALL else lecture(name, text, **given).where
    except (Interrupted, KeyboardInterrupt):
        write("\nstopped; the same command goes on", err=True)
        raise typer.Exit(130) from None
    write(f"\n{written}")


@app.command("exercise", short_help="Fill in the key lines of a part yourself, and check them.")
def exercise_command(
    name: Annotated[str, argument("EXERCISE", "Which one; without a name they are listed.")] = "",
    file: Annotated[Path | None, argument("FILE", "Your file.  [default: EXERCISE.py]")] = None,
) -> None:
    """Write a file in which the key lines are left out; the same command checks what you have
    filled in. The exit code is 0 when all is right, else 1.

    \b
    Example:
      ayn exercise attention
    """
    from allyouneed.exercises import EXERCISES, begin, find

    if not name:
        print_columns([(name, exercise.about) for name, exercise in EXERCISES.items()])
        return
    exercise, own = find(name), file or Path(f"{name}.py")
    again = shlex.join(["ayn", "exercise", name, *([str(file)] if file else [])])
    if not os.path.exists(own):
        begin(name, own)
        write(f"{own} is written: replace each ... in it, then check it with\n  {again}")
        return
    from allyouneed.exercises.checking import check

    results = []
    for result in check(name, own):
        write(f"{'not yet' if result.wrong else 'right':7}  {result.about}{result.wrong and f': {result.wrong}'}")
        results.append(not result.wrong)
    if not all(results):
        raise typer.Exit(1)
    write(f"all is right; the library has it in {exercise.solution}")


@app.command("list", short_help="List recipes, data sets, models, tasks, lectures or settings.")
def list_command(
    what: Annotated[str, argument("LIST", f"What to list: {', '.join(LISTS)}.")],
    recipe: Annotated[str, argument("RECIPE", "settings: only those of this recipe.")] = "",
) -> None:
    """List recipes, data sets, models, tasks, lectures, or settings: all of them, or those of a
    recipe with its values.

    \b
    Example:
      ayn list recipes
      ayn list settings lm/gpt
    """
    if what not in LISTS:
        raise UserError(f"there is no list of '{shortened(what)}'{nearest(what, LISTS)}")
    if recipe and what != "settings":
        raise UserError(f"ayn list {what} takes no recipe; ayn list settings {shortened(recipe)} lists its settings")
    print_columns(recipe_settings(recipe) if recipe else LISTS[what]())


def main() -> None:
    """The command `ayn`."""
    asking = os.environ.get("_AYN_COMPLETE", "").removeprefix("complete_")  # set by the script of the shell
    if asking in ("bash", "zsh", "fish"):  # the user has pressed TAB
        from allyouneed.cli.completing import answer

        sys.exit(answer(typer.main.get_command(app), asking))
    words = sys.argv[1:]
    options = words[: words.index("--")] if "--" in words else words
    debug = "--debug" in options
    _open_streams()
    errors.shell = True
    try:
        asked = [word for i, word in enumerate(words) if word != "--debug" or i >= len(options)]
        code: int | str | None = app(asked, prog_name="ayn", standalone_mode=False)
    except SystemExit as end:
        code = end.code
    except UsageError as error:  # typer prints it, but as it was typed
        error.message = brief(error.message)
        error.show()
        code = error.exit_code
    except (typer.Abort, BrokenPipeError):
        code = 1  # the user has stopped typing, or the reader of a pipe has ended
    except (UserError, OSError) as error:
        code = 2
        with suppress(OSError):  # standard error may be full
            if debug:
                write(traceback.format_exc(), err=True)
        if isinstance(error, UserError):
            complain(str(error))
        elif not _flush():  # otherwise it is the output that cannot be written, and that has been said
            complain(_sentence(error))
    finally:
        errors.shell = False
    sys.exit(code or _flush())


def _open_streams() -> None:
    """What is written to a closed stream is dropped. Texts are UTF-8, whatever the locale says."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (until the end)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                encoding="utf-8", errors="surrogateescape" if stream is sys.stdin else "backslashreplace"
            )


def _flush() -> int:
    """Write what is left of the output. The exit code if that fails; then the rest is dropped."""
    try:
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        code = 1
    except OSError as error:
        code = 2
        complain(f"standard output: {error.strerror}")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())  # so that Python does not try again, and complain, when it ends
    os.close(nowhere)
    return code


def _sentence(error: OSError) -> str:
    """An error of the operating system: which file, and what is wrong with it. Only streams have no name: what the
    library writes itself names its file."""
    name = shortened(error.filename) if error.filename is not None else "standard input or output"
    return f"{name}: {error.strerror or error}"
