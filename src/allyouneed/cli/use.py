"""ayn use: a trained run answers what is given, typed or streamed in."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allyouneed.cli.common import RunPath, complain, decode_settings, load, print_columns
from allyouneed.errors import UserError

if TYPE_CHECKING:
    from allyouneed.run import Run
    from allyouneed.tasks.answers import Answer


def use_command(
    run: RunPath,
    text: Annotated[list[str] | None, typer.Argument(metavar="TEXT", show_default=False)] = None,
    table: Annotated[bool, typer.Option("--table", help="Show what is likeliest at each place.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Answer with a JSON object a line.")] = False,
    alignment: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Which source words were looked at: a .png, .svg or .jsonl.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of [decode]; may be repeated.")
    ] = None,
) -> None:
    """Translate, continue, classify or tag each TEXT; with word vectors find the words near a
    word, or near a sum such as "man + aunt - uncle". Without TEXT: each line of standard
    input, answered by one line; or, at a terminal, what you type.

    \b
    Example:
      ayn use runs/en-it "I am Italian." --set method=beam --set beam=4
    """
    items = [item.removeprefix("decode.") for item in set_ or []]
    for item in items:
        if "=" not in item:
            raise UserError(f"--set {item} is not of the form key=value, for example --set beam=5")
    decode = decode_settings([f"decode.{item}" for item in items])
    loaded = load(run)
    loaded.decode(**decode)  # complains before anything is read
    how = "table" if table else "json" if json else "text"
    try:
        if alignment is not None:
            _draw(loaded, text or [], alignment, decode)
        elif text:
            for i, line in enumerate(text):
                typer.echo("\n" if table and i else "", nl=False)
                _answer(loaded, line, how, decode)
        elif sys.stdin is not None and sys.stdin.isatty():
            _converse(loaded, how, decode)
        elif not _stream(loaded, how, decode):
            raise typer.Exit(2)
    except KeyboardInterrupt:
        typer.echo("", err=True, nl=sys.stderr.isatty())  # the prompt of the shell begins on a line of its own
        raise typer.Exit(130) from None


def _answer(run: Run, text: str, how: str, decode: dict[str, Any]) -> None:
    """A continuation is written as it comes, after its prompt; a translation when it is there."""
    if how == "table":
        _print_table(run, text, decode)
        return
    if how == "json":
        for answer in run.answers([text], **decode):
            typer.echo(_object(text, answer))
        return
    before = text if run.recipe.task_kind == "lm" else ""
    if before and run.decode(**decode).n_best == 1 and run.decode(**decode).method != "beam":
        pieces = iter([before])  # not shown before the prompt is found good
        for _ in run.answers([text], show=lambda piece: _show(next(pieces, "") + piece), **decode):
            typer.echo(next(pieces, ""))
        return
    for answer in run.answers([text], **decode):
        for one in (answer, *answer.others):
            score = f"{one.score or one.logprob:8.3f}  " if answer.others else ""
            typer.echo(f"{score}{before}{one.shown or one.text}")


def _object(text: str, answer: Answer | None, why: str = "") -> str:
    """An answer for a program, or why there is none: one JSON object on one line."""
    from json import dumps

    if answer is None:
        return dumps({"input": text, "error": why}, ensure_ascii=False)
    found = answer.details or _plain(answer)
    if answer.others and not answer.details:
        found = {**found, "others": [_plain(other) for other in answer.others]}
    return dumps({"input": text, **found}, ensure_ascii=False)


def _plain(answer: Answer) -> dict[str, Any]:
    return {"text": answer.text, "logprob": round(answer.logprob, 6), "reason": answer.reason}


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _converse(run: Run, how: str, decode: dict[str, Any]) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history)
    typer.echo(f"type {run.task.asks} and press Enter; Ctrl-D ends", err=True)
    while True:
        try:
            line = input("> " if sys.stdout.isatty() else "")
        except EOFError:
            typer.echo("", err=True)
            return
        if not line.strip():
            continue
        try:
            _answer(run, line, how, decode)
        except UserError as error:
            typer.echo(str(error), err=True)


def _stream(run: Run, how: str, decode: dict[str, Any]) -> bool:
    """Line in, line out, in order; a newline inside an answer is shown as \\n, an unusable line as an empty one.
    Returns whether every line could be answered; an empty one asks for nothing."""
    from allyouneed.cli import stdin

    if how == "text" and run.decode(**decode).n_best > 1:
        raise UserError("a line of standard input is answered by one line: --json gives all of decode.n_best")
    first, fine = 1, True
    told: list[str] = []  # of these lines

    def tell(problem: str) -> None:
        told.append(problem)
        complain(problem)

    for lines in stdin.lines(sys.stdin.fileno(), tell) if sys.stdin is not None else ():
        if how == "table":
            for number, line in enumerate(lines, first):
                try:
                    if line.strip():
                        _answer(run, line, how, decode)
                except UserError as error:
                    tell(f"line {number}: {error}")
                typer.echo("")
        else:
            for number, (line, answer) in enumerate(zip(lines, run.lines(lines, tell, first, **decode)), first):
                before = line if run.recipe.task_kind == "lm" else ""
                if how == "json":
                    found = (text.partition(": ")[2] for text in told if text.startswith(f"line {number}: "))
                    _show(_object(line, answer, next(found, "the line is empty")) + "\n")
                    continue
                written = before + (answer.shown or answer.text) if answer is not None else ""
                _show(written.replace("\n", "\\n") + "\n")
        fine = fine and not told
        told.clear()
        first += len(lines)
    return fine


def _print_table(run: Run, text: str, decode: dict[str, Any]) -> None:
    def visible(token: str) -> str:
        return token.replace(" ", "·").replace("\n", "\\n").replace("\t", "\\t")

    rows = [("", "word", run.task.expects)]
    guesses = run.table(text, **decode)
    likely = [[f"{100 * p:5.1f}% {visible(word)}" for word, p in guess.likely] for guess in guesses]
    widths = [max(map(len, column)) for column in zip(*likely)]
    for i, (guess, cells) in enumerate(zip(guesses, likely)):
        rows.append((str(i), visible(guess.token), "".join(cell.ljust(w + 1) for cell, w in zip(cells, widths))))
    print_columns(rows, fold=False)


def _draw(run: Run, texts: list[str], out: Path, decode: dict[str, Any]) -> None:
    """The alignment of one sentence as a picture, or of each as a line of JSON."""
    if out.suffix.lower() == ".jsonl":
        from allyouneed.wholefile import write_pieces

        lines = texts or ([] if sys.stdin is None or sys.stdin.isatty() else (line.rstrip("\n") for line in sys.stdin))
        write_pieces(out, (_aligned(run, line, decode) for line in lines if line.strip()))
        typer.echo(f"the alignments are in {out}")
        return
    from allyouneed.figures import alignment

    if len(texts) != 1:
        raise UserError("--alignment draws one sentence: give one TEXT; a FILE.jsonl takes any number of them")
    found = run.align(texts[0], **decode)
    alignment(found.weights.numpy(), found.source, found.target, out, title=texts[0])
    typer.echo(f"the picture is in {out}")


def _aligned(run: Run, text: str, decode: dict[str, Any]) -> bytes:
    from json import dumps

    found = run.align(text, **decode)
    weights = [[round(weight, 6) for weight in row] for row in found.weights.tolist()]
    line = {"input": text, "source": found.source, "target": found.target, "weights": weights}
    return (dumps(line, ensure_ascii=False) + "\n").encode()
