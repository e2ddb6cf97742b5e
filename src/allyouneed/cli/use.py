"""ayn use: a trained run answers what is given, typed or streamed in."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allyouneed.cli import common
from allyouneed.cli.common import argument, complain, flag, given_settings, load, option, print_columns
from allyouneed.errors import UserError, nearest, shortened
from allyouneed.terminal import write

if TYPE_CHECKING:
    from allyouneed.predict.answers import Answer, Line
    from allyouneed.predict.embed import Embedding
    from allyouneed.run import Run


NEAREST = 5  # lines per answer
MOST_LINES, MOST_TEXT = 1_000_000, 1 << 28  # lines and characters of a file that is searched


def use_command(
    run: Annotated[str, argument("RUN")],
    text: Annotated[list[str] | None, argument("TEXT")] = None,
    table: Annotated[bool, flag("--table", "Show the likeliest at each position.")] = False,
    json: Annotated[bool, flag("--json", "Answer with one JSON object per line.")] = False,
    alignment: Annotated[Path | None, option("FILE", "Where attention looked: a .png, .svg or .jsonl.")] = None,
    heads: Annotated[Path | None, option("FILE", "The weights of each attention head: a .png or .svg.")] = None,
    place: Annotated[str, option("PATH", "Which attention --heads draws, by its path.")] = "",
    map_: Annotated[Path | None, option("FILE", "Word vectors: a map of the words in TEXT.", "--map")] = None,
    embed: Annotated[bool, flag("--embed", "A vector of TEXT; the cosine of two, A ||| B.")] = False,
    layers: Annotated[str, option("NAMES", "--embed: last, mix (the mean of all), or numbers: 0,1.")] = "",
    pool: Annotated[str, option("NAME", "--embed: mean, max, first or last of the tokens.")] = "",
    words: Annotated[bool, flag("--words", "--embed: one vector per word.")] = False,
    nearest_: Annotated[
        Path | None, option("FILE", "--embed: lines of a file nearest to each TEXT.", "--nearest")
    ] = None,
    out: Annotated[Path | None, option("FILE", "Where to write drawings and copies: a .png or .svg.")] = None,
    set_: Annotated[list[str] | None, option("KEY=VALUE", "A setting of [decode]; may be repeated.", "--set")] = None,
    device: common.Device = "auto",
    precision: common.Precision = "auto",
    engine: common.Engine = "torch",
) -> None:
    """\b
    Answer TEXT, or standard input; with word vectors, "man + aunt - uncle".
    Example:
      ayn use runs/en-it "I am Italian." --set method=beam --set beam=4
    """
    for item in set_ or []:
        if "=" not in item:
            raise UserError(f"--set {item} is not of the form key=value, for example --set beam=5")
    decode = given_settings([f"decode.{item.removeprefix('decode.')}" for item in set_ or []], "decode")
    around = os.path.dirname(run)
    if (" " in run or len(run) > 255) and not (os.path.exists(run) or (around and os.path.isdir(around))):
        raise UserError(
            f"there is no run folder '{shortened(run)}': the first argument is the run, and the texts follow it: "
            "ayn use RUN TEXT"
        )
    if place and heads is None:
        raise UserError(f"--place {shortened(place)} chooses what --heads FILE draws: give both")
    about = {"--embed": embed, "--layers": layers, "--pool": pool, "--words": words, "--nearest": nearest_}
    vectors = [flag for flag, value in about.items() if value]
    attention = "--alignment" if alignment else "--heads" if heads else ""
    drawing = ["--table" * table, attention, "--map" * bool(map_), "--out" * bool(out)]
    asked = [one for one in (*vectors[:1], *drawing, "--nearest" * bool(words and nearest_)) if one]
    if len(asked) > 1:
        raise UserError(f"{asked[0]} and {asked[1]} ask for different things: give one of them")
    loaded = load(run, device, precision, engine)
    how = "table" if table else "json" if json else "text"
    typed = sys.stdin is not None and sys.stdin.isatty()
    if vectors:
        if not embed and loaded.recipe.task_kind != "embed":
            raise UserError(f"{vectors[0]} is about vectors of texts: give it together with --embed")
        made = loaded.embedding(layers or "last", pool, words)
        _answer_by_vectors(loaded, made, nearest_, decode, one=how == "text" and not text and not typed)
        decode = {"method": "greedy", "n_best": 1}
    loaded.decode(**decode)  # complains before anything is read
    if loaded.predictor.makes_image and how == "text" and not (out or heads):
        raise UserError("an answer of this run is an image: name a file for it, --out FILE.png")
    try:
        if alignment is not None:
            _draw_alignment(loaded, text or [], alignment, decode)
        if heads is not None:
            _draw_heads(loaded, text or [], heads, place, decode)
        if map_ is not None:
            _draw_map(loaded, text or [], map_)
        if out is not None:
            _draw_answers(loaded, text or [], out, decode)
        if attention or map_ or out:
            return
        if typed and not text:
            _converse(loaded, how, decode)
        elif not (_answer_each(loaded, text, how, decode) if text else _stream(loaded, how, decode)):
            raise typer.Exit(2)
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            write("", err=True)  # the prompt of the shell begins on a line of its own
        raise typer.Exit(130) from None


def _answer_each(run: Run, texts: list[str], how: str, decode: dict[str, Any]) -> bool:
    """Answer what each argument stands for. Of a folder, what cannot be answered is named, and the others are answered,
    but not all of them together; returns whether all could be."""
    from allyouneed.predict.images import ImageReader

    asked, failed = [(one, given) for given in texts for one in run.predictor.expand(given)], dict.fromkeys(texts, 0)
    named = isinstance(run.predictor, ImageReader) and len(texts) > 1
    for i, (text, given) in enumerate(asked):
        write("\n" if how == "table" and i else "", end="")
        try:
            if text == given and failed[given]:
                raise UserError(f"{given}: no answer for all together, since {failed[given]:,} cannot be read")
            _answer(run, text, how, decode, f"{text}: " if named or text != given else "")
        except UserError as error:
            if text == given and not failed[given]:
                raise
            failed[given] += 1
            complain(str(error))
    return not any(failed.values())


def _answer(run: Run, text: str, how: str, decode: dict[str, Any], before: str = "") -> None:
    """A continuation is printed token by token, after its prompt; a translation once it is complete, after `before`."""
    if how == "table":
        _print_table(run, text, decode)
        return
    opening, settings = run.predictor.opening(text), run.decode(**decode)
    if how == "text" and opening and settings.n_best == 1 and settings.method != "beam":
        pieces = iter([opening])  # not shown before the prompt is found good
        for answer in run.answers([text], show=lambda piece: write(next(pieces, "") + piece, end=""), **decode):
            write(next(pieces, ""))
            _note(answer.details.get("unknown", ()))
        return
    for answer in run.answers([text], **decode):
        if how == "json":
            write(_json(text, answer))
            continue
        for one in (answer, *answer.others):
            score = f"{one.score or one.logprob:8.3f}  " if answer.others else ""
            write(f"{score}{opening or before}{one.shown or one.text}")
        _note(answer.details.get("unknown", ()))


def _note(words: Sequence[str], before: str = "") -> None:
    """Say on standard error which words of a text are not in the vocabulary: the answer stays as it is."""
    from allyouneed.predict.inputs import unknown_note

    if words:
        with suppress(OSError):  # standard error may be full
            write(f"{before}{unknown_note(words)}", err=True)


def _json(text: str, answer: Answer | None, error: object = None) -> str:
    """An answer, or why there is none, for a program: one JSON object on one line."""
    from json import dumps

    found = {"error": str(error or "the line is empty")} if answer is None else answer.plain()
    return dumps({"input": text, **found}, ensure_ascii=False)


def _converse(run: Run, how: str, decode: dict[str, Any]) -> None:
    with suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history)
    write(f"type {run.predictor.asks} and press Enter; Ctrl-D ends", err=True)
    while True:
        try:
            line = input("> " if sys.stdout.isatty() else "")
        except EOFError:
            write("", err=True)
            return
        try:
            if line.strip():
                _answer(run, line, how, decode)
        except UserError as error:
            write(str(error), err=True)


def _stream(run: Run, how: str, decode: dict[str, Any]) -> bool:
    """Answer each line of standard input with one line of output, in order; a line without an answer gets an empty one.
    Returns whether every line could be answered; a blank one asks nothing."""
    from allyouneed.cli import stdin

    if how == "text" and run.decode(**decode).n_best > 1:
        raise UserError("each line of standard input is answered by one line: --json gives all of decode.n_best")
    first, fine = 1, True
    for lines in stdin.read_lines(sys.stdin.fileno(), complain) if sys.stdin is not None else ():
        for line in _tables(run, lines, first, decode) if how == "table" else run.answer_lines(lines, first, **decode):
            if line.error is not None:
                fine = False
                complain(f"line {line.number}: {line.error}")
            shown = ""
            if how == "json":
                shown = _json(line.text, line.answer, line.error)
            elif line.answer is not None:  # on one line
                answer = run.predictor.opening(line.text) + (line.answer.shown or line.answer.text)
                shown = answer.replace("\n", "\\n")
            write(shown)
            if how == "text" and line.answer is not None:
                _note(line.answer.details.get("unknown", ()), f"line {line.number}: ")
        first += len(lines)
    return fine


def _tables(run: Run, lines: list[str | UserError], first: int, decode: dict[str, Any]) -> Iterator[Line]:
    """Print the table of each line, if it has one."""
    from allyouneed.predict.answers import Line

    for number, text in enumerate(lines, first):
        line = Line(number, "", error=text) if isinstance(text, UserError) else Line(number, text)
        try:
            if line.asks:
                _print_table(run, line.text, decode, f"line {number}: ")
        except UserError as error:
            line = replace(line, error=error)
        yield line


def _print_table(run: Run, text: str, decode: dict[str, Any], before: str = "") -> None:
    def visible(token: str) -> str:
        return shortened(token.replace(" ", "·"))

    rows = [("", "word", run.predictor.table_heading)]
    guesses = run.table(text, **decode)
    likely = [[f"{100 * p:5.1f}% {visible(word)}" for word, p in guess.likely] for guess in guesses]
    widths = [max(map(len, column)) for column in zip(*likely)]
    for i, (guess, cells) in enumerate(zip(guesses, likely)):
        rows.append((str(i), visible(guess.token), "".join(cell.ljust(w + 1) for cell, w in zip(cells, widths))))
    print_columns(rows, fold=False)
    _note(run.unknown(text, **decode), before)


def _draw_alignment(run: Run, texts: list[str], out: Path, decode: dict[str, Any]) -> None:
    """The alignment of one sentence as a figure, or of several as one JSON object per line."""
    if out.suffix.lower() == ".jsonl":
        from allyouneed.storage.wholefile import write_pieces

        lines = texts or ([] if sys.stdin is None or sys.stdin.isatty() else (line.rstrip("\n") for line in sys.stdin))
        write_pieces(out, (_aligned(run, line, decode) for line in lines if line.strip()))
        write(f"the alignments are in {out}")
        return
    from allyouneed.figures import alignment

    if len(texts) != 1:
        raise UserError("--alignment draws one sentence: give one TEXT; a FILE.jsonl takes any number of them")
    found = run.align(texts[0], **decode)
    alignment(found.weights.numpy(), found.source, found.target, out, texts[0], found.shown)
    write(f"{found.answer}\nthe figure is in {out}")
    _note(run.unknown(texts[0], **decode))


def _aligned(run: Run, text: str, decode: dict[str, Any]) -> bytes:
    from json import dumps

    found = run.align(text, **decode)
    weights = [[round(weight, 6) for weight in row] for row in found.weights.tolist()]
    line = {"input": text, "source": found.source, "target": found.target, "weights": weights}
    return (dumps(line, ensure_ascii=False) + "\n").encode()


def _draw_heads(run: Run, texts: list[str], out: Path, place: str, decode: dict[str, Any]) -> None:
    """One attention of the model, one heat map per head; the last attention if none is named, or all over an image."""
    from allyouneed.figures import heads
    from allyouneed.predict.images import RecognizePredictor

    if len(texts) != 1:
        raise UserError("--heads draws one text: give one TEXT")
    given, settings = run.read(texts[0], **decode)
    found = run.predictor.attention(given, settings)
    if place and place not in found:
        raise UserError(f"--place {place} is not an attention of this model{nearest(place, found)}")
    if isinstance(run.predictor, RecognizePredictor):
        run.predictor.draw_heads(found, given, place, out)
    else:
        place = place or list(found)[-1]
        heads(found[place].weights.numpy(), found[place].source, found[place].target, out, title=place)
    write(f"the figure of {place or 'all heads'} is in {out}; there are {', '.join(found)}")
    _note(run.predictor.unknown(given))


def _draw_answers(run: Run, texts: list[str], out: Path, decode: dict[str, Any]) -> None:
    """The images that answer the texts, on one sheet."""
    from allyouneed.figures import check_name
    from allyouneed.predict.base import answered

    check_name(out)
    predictor, settings = run.predictor, run.decode(**decode)
    if not predictor.writes_images:
        raise UserError(f"--out is for images: a run of the task '{run.recipe.task_kind}' answers with text")
    if not texts:
        raise UserError(f"--out draws what is asked for: give {predictor.asks}")
    asked = [predictor.read(one, settings) for text in texts for one in predictor.expand(text)]
    predictor.write_images(list(zip(asked, answered(predictor.answers(asked, settings)))), out)
    write(f"the image is in {out}")


def _draw_map(run: Run, texts: list[str], out: Path) -> None:
    """The words of the texts as points; without any, those that the run chooses."""
    from allyouneed.figures import word_map

    found = run.map_words(*(word for text in texts for word in text.replace(",", " ").split()))
    word_map(found.words, found.vectors, out, found.arrows, run.folder.path.name, found.shown)
    write(f"the figure is in {out}")


def _answer_by_vectors(run: Run, made: Embedding, nearest: Path | None, decode: Mapping[str, Any], one: bool) -> None:
    """From now on the run answers a text by its vectors, or by the lines of the file `nearest` that are nearest to it:
    by `one` of them, or by n_best. The file is read and embedded here, once."""
    from allyouneed.training.memory import explain_memory

    for key in decode:
        if key != "n_best" or nearest is None:
            raise UserError(f"--set {key} has no effect on vectors: only n_best has, with --nearest FILE")
    if nearest is not None:
        most = run.decode(method="sample", **{"n_best": NEAREST, **decode}).n_best
        lines = _lines_to_search(nearest)
        with explain_memory():
            cut = made.search(lines, 1 if one else most, store=True)
        if cut:
            write(
                f"{cut:,} of {len(lines):,} lines are longer than the {run.model.limit} tokens that this model reads: "
                "only their beginning is compared",
                err=True,
            )
    run.predictor = made


def _lines_to_search(path: Path) -> list[tuple[int, str]]:
    """The lines of a text file that are not blank, with their numbers."""
    from allyouneed.data.formats.textfile import TextFile

    path = Path(os.path.expanduser(path))
    if not os.path.isfile(path):
        there = "is not a plain file" if os.path.exists(path) else "does not exist"
        raise UserError(f"--nearest {shortened(path)} {there}: give a text file, whose lines are searched")
    found, size, file = [], 0, TextFile(path)
    for number, line in enumerate(file.iter_lines(), 1):
        size += len(line)
        if line.strip():
            found.append((number, line))
        if len(found) > MOST_LINES or size > MOST_TEXT:
            raise UserError(
                f"--nearest {shortened(path)} has more than {MOST_LINES:,} lines or {MOST_TEXT:,} characters, which is "
                "too much to search: give a smaller file"
            )
    code = file.encoding
    if not code.startswith("UTF"):
        write(f"{shortened(path.name)} is read as {code.partition(' ')[0]}, as it is not UTF-8", err=True)
    if not found:
        raise UserError(f"--nearest {shortened(path)} has no lines with text: there is nothing to search")
    return found
