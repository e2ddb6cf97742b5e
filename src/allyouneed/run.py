"""Run: what `load` returns. A trained model with its tokenizers: it answers, is scored, and shows what it computes."""

from __future__ import annotations

import base64
import html
import math
import os
import shlex
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, overload

import torch

from allyouneed import catalog
from allyouneed.config import READ_BY, DataConfig, DecodeConfig, build
from allyouneed.data.formats.file_paths import look
from allyouneed.errors import UserError, option_name
from allyouneed.exchange.exporting import export_run
from allyouneed.exchange.hub import HUB, imported, with_imported
from allyouneed.format import human_count
from allyouneed.look import Page, View, look_at
from allyouneed.metrics import Score
from allyouneed.models.base import Writer
from allyouneed.predict.answers import Answer, Line
from allyouneed.predict.base import Alignment, Guess, Predictor, Traced, Writing, answered
from allyouneed.predict.embed import Embedding, Found, Layers
from allyouneed.predict.engine import Engine
from allyouneed.predict.images import ImageReader
from allyouneed.predict.processor import compile_step, load_processor, load_weights, store_by_columns
from allyouneed.predict.token_vectors import freeze_vectors
from allyouneed.predict.words import WordMap, WordsPredictor
from allyouneed.recipe import Recipe, as_overrides
from allyouneed.runtime import (
    allow_tf32,
    attend_by_cudnn,
    check_engine,
    claim_process,
    pick_device,
    pick_precision,
    silence_bf16,
)
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import read_bytes
from allyouneed.tasks.base import Task
from allyouneed.tasks.scoring import check_out, score_run, write_predictions
from allyouneed.terminal import brief, printable, say
from allyouneed.training.compiling import share_compiled_code
from allyouneed.training.fit import fit
from allyouneed.training.memory import check_rows, explain_memory, flops, lasting, parameters
from allyouneed.training.starting import Given, choose, default_out, resumed, with_data

MOST_FIGURE = 1 << 24  # bytes
MASK = "[MASK]"
Text = str | Sequence[str]  # for a tagger, a text may be the list of its words
T = TypeVar("T")
DATA_KEYS = {field.name for field in fields(DataConfig)}  # no key of [decode] is among them


class Run:
    """A trained run. `device` and `precision` are those it computes with.

    >>> run = load("runs/en-it")
    >>> run.predict("I am Italian.")
    'Io sono italiano.'
    """

    def __init__(
        self,
        folder: RunFolder,
        predictor: Predictor,
        config: dict[str, Any],
        device: str = "cpu",
        precision: str = "fp32",
        engine: str = "torch",
    ) -> None:
        self.folder, self.predictor, self.config = folder, predictor, config
        self.recipe, self.processor, self.model = predictor.recipe, predictor.processor, predictor.model
        self.device, self.precision, self.engine = device, precision, engine
        self.outline = self.model.outline if isinstance(self.model, Engine) else self.model  # its modules and shapes

    @cached_property
    def task(self) -> Task:
        """What the run has learned, on its own data; for `test`."""
        made: Task = catalog.task(self.recipe.task_kind)(self.recipe)
        made.read_parts(self.processor.parts())
        return made

    def __repr__(self) -> str:
        return brief(f"Run({str(self.folder.path)!r}: {', '.join(self._facts())})")

    def _facts(self) -> list[str]:
        """What the run is, in a few words: task, model, size, and its first score."""
        parameters = human_count(sum(p.numel() for p in self.outline.parameters()))
        scores = [f"{split} {found[0].short}" for split, found in self.scores().items() if found][:1]
        return [self.recipe.task_kind, self.recipe.model_kind, f"{parameters} parameters", *scores]

    def _repr_html_(self) -> str:
        """For notebooks: what the run is, its scores and its loss curve."""
        scores = [(f"{split} {score.name}", score) for split, found in self.scores().items() for score in found]
        rows = [
            ("run", str(self.folder.path)),
            ("model", ", ".join(self._facts()[:3])),
            ("data", str(self.config["data"]["name"])),
            *((name, f"{score.short.removeprefix(score.name)}  {score.signature}") for name, score in scores),
        ]
        cells = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(what)}</td></tr>" for name, what in rows)
        curve = self.folder.path / "loss.png"
        figure = base64.b64encode(read_bytes(curve, MOST_FIGURE)).decode() if curve.is_file() else ""
        image = f'<img alt="loss" src="data:image/png;base64,{figure}">' if figure else ""
        return f"<table>{printable(cells)}</table>{image}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, a run is its folder, which is loaded there."""
        return load, (str(self.folder.path.absolute()), self.device, self.precision, self.engine)

    @overload
    def predict(self, text: str, **decode: Any) -> str: ...
    @overload
    def predict(self, text: Sequence[Text], **decode: Any) -> list[str]: ...
    def predict(self, text: str | Sequence[Text], **decode: Any) -> str | list[str]:
        """The answer to one text, or to each of several. `decode` are keys of the recipe's [decode]:
        method="beam", beam=5, temperature=0.8, max_new=50, … `answers` has more: n_best, probabilities, tokens."""
        found = [answer.result for answer in self.answers(text, **decode)]
        return found[0] if self.predictor.is_single(text) else found

    def answers(
        self, texts: str | Iterable[Text], show: Callable[[str], None] | None = None, **decode: Any
    ) -> list[Answer]:
        """The answers to some texts, or to one, with their tokens and probabilities. `show` gets the pieces of the
        first one while it is written. If words of a text are not in the vocabulary, `details["unknown"]` of its answer
        names them. A text that the model cannot read is an error; `answer_lines` goes on, and gives each answer as soon
        as it is known."""
        one = self.predictor.is_single(texts)
        if not one and not isinstance(texts, Iterable):
            raise UserError(f"give {self.predictor.asks}, or several in a list; not {type(texts).__name__}")
        several: Any = [texts] if one else texts
        settings = self._ready(decode)
        inputs = (self.predictor.read(self._text(text), settings) for text in several)
        with explain_memory():
            return list(answered(self.predictor.answers(inputs, settings, show)))

    def answer_lines(self, lines: Iterable[Text | UserError], first: int = 1, **decode: Any) -> Iterator[Line]:
        """Every line with its answer, or with the error that says why it has none; in order, for any number of lines. A
        line that could not be read is given as its error. `first` is the number of the first line."""
        return self._answer_lines(lines, first, self._ready(decode))

    def _answer_lines(self, lines: Iterable[Text | UserError], first: int, settings: DecodeConfig) -> Iterator[Line]:
        waiting: deque[Line] = deque()  # read, and not yet yielded

        def inputs() -> Iterator[Any]:
            for number, line in enumerate(lines, first):
                text, given = "", None
                try:
                    if isinstance(line, UserError):
                        raise line
                    text = self._text(line)
                    given = self.predictor.read(text, settings) if text.strip() else None
                except UserError as error:
                    waiting.append(Line(number, text, error=error))
                    continue
                waiting.append(Line(number, text))
                if text.strip():
                    yield given

        with explain_memory():
            for outcome in self.predictor.answers(inputs(), settings):
                while not waiting[0].asks:
                    yield waiting.popleft()
                if isinstance(outcome, UserError):
                    yield replace(waiting.popleft(), error=outcome)
                else:
                    yield replace(waiting.popleft(), answer=next(answered([outcome])))
        yield from waiting

    def _text(self, text: Text) -> str:
        found = text if isinstance(text, str) else self.predictor.accept(text)
        tokenizers = self.processor.tokenizers.values()
        if tokenizers and MASK in found and all(tokenizer.mask is None for tokenizer in tokenizers):
            raise UserError(f"this run has no {MASK}: a run of the task pretrain fills in hidden words")
        return found

    def decode(self, /, **changes: Any) -> DecodeConfig:
        """The run's [decode] with some keys changed."""
        values = {**vars(self.recipe.decode), **changes}
        checked: DecodeConfig = build(DecodeConfig, values, "decode")
        if isinstance(self.predictor, Writing):
            checked.check_writing()
        return checked

    def read(self, text: Text, **decode: Any) -> tuple[Any, DecodeConfig]:
        """An input as `predictor` takes it, and the checked [decode] settings."""
        settings = self._ready(decode)
        return self.predictor.read(self._text(text), settings), settings

    def _ready(self, decode: Mapping[str, Any]) -> DecodeConfig:
        """The checked [decode] settings; called before the model computes anything."""
        claim_process()
        allow_tf32(self.precision)
        attend_by_cudnn(False)
        settings = self.decode(**decode)
        if isinstance(self.model, Writer):
            check_rows(self.model, settings, len(self.processor.tokenizer))
        return settings

    def test(
        self,
        split: str = "test",
        say: Callable[[str], None] = say,
        data: Given | None = None,
        out: str | os.PathLike[str] | None = None,
        **settings: Any,
    ) -> list[Score]:
        """Scores on a split of the run's own data, or of other `data`, of which a single file is scored whole. They are
        written to scores.json, and the predictions to the file `out`, if given: one JSON object per example.
        `settings` are keys of the recipe's [decode] and, for other data, of its [data]: beam=5, source="title", …"""
        columns = {key: value for key, value in settings.items() if key in DATA_KEYS}
        decode = self._ready({key: value for key, value in settings.items() if key not in columns})
        task = self.task
        if data is None:
            if columns:
                raise UserError(
                    f"data.{next(iter(columns))} says how other data is read: name that with {option_name('--data')}"
                )
            self._same_data(say)
        else:
            task = self._on(data, columns, say)
            split = "all" if split == "test" and not task.has(split) else split
        if not task.has(split):
            whose = "this run" if data is None else task.data.name
            raise UserError(f"the data of {whose} has no split '{split}'; there is {', '.join(task.data.splits)}")
        if data is not None:
            examples = task.data.splits[split]
            left_out = f"; {examples.empty:,} blank or damaged ones left out" if examples.empty else ""
            say(f"{split}: {examples.examples:,} {'documents' if task.shape == 'text' else 'examples'}{left_out}")
        target = None if out is None else check_out(out, task, self.folder, [self.recipe.data, task.recipe.data])
        with explain_memory():
            scores = score_run(task, self.model, split, decode, self.folder, say, data is not None, self.precision)
        if target is not None:
            write_predictions(target, task.predictions())
            say(f"the predictions are in {target}")
        return scores

    def _on(self, data: Given, columns: Mapping[str, Any], say: Callable[[str], None]) -> Task:
        """The task of this run on other data, read with these keys of [data]. Nothing is held out of own files; a
        single split is called "all"."""
        whole = replace(self.recipe.data, valid_path=(), test_path=(), valid_part=0.0, test_part=0.0, limit=0)
        recipe = with_data(self.recipe.with_(data=whole), data)
        if not recipe.data.path:  # a public set has no columns to name
            recipe = recipe.with_(data=replace(recipe.data, **{key: getattr(DataConfig, key) for key in READ_BY}))
        own = vars(recipe.data)
        config = build(DataConfig, {**own, **columns, "name": own["name"], "path": own["path"]}, "data")
        recipe = recipe.with_(data=config)
        task = self.task.on(recipe)
        if list(task.data.splits) == ["train"]:
            task.data.splits = {"all": task.data.splits["train"]}
        for line in task.data.understood:
            say(line)
        return task

    def _same_data(self, say: Callable[[str], None]) -> None:
        if not (self.recipe.data.name or self.recipe.data.path):
            raise UserError(
                f"{self.folder.path} was not trained here, so there is no data to test it on: name some with "
                f"{option_name('--data')}"
            )
        gone = [path for path in self.recipe.data.path if look(path) is None]
        if gone:
            again = shlex.join(["ayn", "train", str(self.folder.recipe), "--out", str(self.folder.path), "--resume"])
            raise UserError(f"the data of this run, {gone[0]}, is missing; if it has moved: {again} --data NEW-PLACE")
        if self.task.data.fingerprint != self.config["data"].get("fingerprint"):
            say("the data has changed since this run was trained: its splits may be different")

    def table(self, text: Text, most: int = 5, **decode: Any) -> list[Guess]:
        """At each position, the most likely next tokens with their probabilities."""
        return self._look(lambda given, settings: self.predictor.table(given, settings, most), text, decode)

    def unknown(self, text: Text, **decode: Any) -> Sequence[str]:
        """The words of a text that are not in the vocabulary, once each, in order."""
        given, _ = self.read(text, **decode)
        return self.predictor.unknown(given)

    def align(self, text: str, **decode: Any) -> Alignment:
        """How much each token of the best answer attended to each token of the source."""
        return self._look(self.predictor.align, text, decode)

    def attention(self, text: str, **decode: Any) -> dict[str, Alignment]:
        """The attention weights (H, T, S) of every head while the model reads the text and writes its answer, by the
        path of the module: "body.decoder.blocks.1.cross"."""
        return self._look(self.predictor.attention, text, decode)

    def trace(self, text: Text, *kinds: str, **decode: Any) -> dict[str, Traced]:
        """What the model computes while it reads the text and writes its answer, by the path of the module: see
        `Predictor.trace`."""
        return self._look(lambda given, settings: self.predictor.trace(given, settings, kinds), text, decode)

    def look(self, text: Any = "", **decode: Any) -> Page:
        """A page that shows what the model computes for a text or an image: a notebook draws it, and it can be saved.

        >>> run.look("The dog sees").save("look.html")
        """
        return Page([self.view(text, **decode)], self.folder.path.absolute().name)

    def view(self, text: Any = "", **decode: Any) -> View:
        """What a page shows of this run; see `look`."""
        settings = self._ready(decode)
        given = self._text(text) if isinstance(text, str) else text
        with explain_memory():
            return look_at(self.folder, self.predictor, given, settings, self._look_facts())

    def ask(self, view: View, question: str, asked: str | bytes) -> View:
        """The answer to a question about a view of this run; see `View.ask`."""
        self._ready({})
        with explain_memory():
            return view.ask(question, asked)

    def _look_facts(self) -> dict[str, Any]:
        scores = [score for found in self.scores().values() for score in found]
        step = next((s.signature.partition("|step:")[2] for s in scores if "|step:" in s.signature), "")
        return {
            "name": self.folder.path.absolute().name,
            "task": self.recipe.task_kind,
            "model": self.recipe.model_kind,
            "parameters": sum(weight.numel() for weight in self.outline.parameters()),
            "step": step,
            "precision": self.precision,
            "device": self.device,
            "asks": self.predictor.asks,
            "reads": "image" if isinstance(self.predictor, ImageReader) else "text",
            "score": next((score.short for score in scores), ""),
        }

    def _look(self, look: Callable[[Any, DecodeConfig], T], text: Text, decode: Mapping[str, Any]) -> T:
        given, settings = self.read(text, **decode)
        with explain_memory():
            return look(given, settings)

    def embedding(self, layers: Layers = "last", pool: str = "", words: bool = False) -> Embedding:
        """What makes vectors of texts, from these layers of the body and with this pooling; see `Embedding`."""
        self._ready({})
        return Embedding(self.predictor, layers, pool, words)

    def embed(self, texts: Text | Sequence[Text], layers: Layers = "last", pool: str = "", words: bool = False) -> Any:
        """The vector (D,) of a text, or those of several (N, D), as numpy arrays. With `words`: the words of each text
        and their vectors, as `EmbeddedWords`.

        `layers`: "last", "mix" (the mean of all), a number (0: the embeddings), or several, "1,2". `pool`: mean, max,
        first or last of a text's tokens; "" is mean or, for a run of the task embed, its own."""
        made, one = self.embedding(layers, pool, words), isinstance(texts, str)
        rows = [made.row(self._text(text)) for text in ([texts] if isinstance(texts, str) else texts)]
        with explain_memory():
            found = made.word_vectors(rows) if words else made.vectors(rows)
        return found[0] if one else found

    def nearest(
        self, text: Text, lines: Iterable[str], most: int = 5, layers: Layers = "last", pool: str = ""
    ) -> list[Found]:
        """The `most` lines nearest to a text by the cosine of their vectors, the nearest first; see `embed`."""
        made = self.embedding(layers, pool)
        with explain_memory():
            made.search(enumerate(lines, 1), most, store=True)
            return next(made.nearest(made.vectors([made.row(self._text(text))])))

    def export(
        self,
        out: str | os.PathLike[str],
        to: str = "",
        numbers: str = "float32",
        overwrite: bool = False,
        say: Callable[[str], None] = say,
    ) -> list[Path]:
        """Write the run into the folder `out` for another library, `to` "hf", "onnx" or "ct2"; returns the files.
        `numbers` is the type of the weights for ct2: float32 or int8."""
        if isinstance(self.model, Engine):
            raise self.model.lacks()
        return export_run(self, out, to, numbers, overwrite, say)

    def map_words(self, *words: str) -> WordMap:
        """Word vectors of length 1, as a map draws them: of these words, or of usual ones if none are given."""
        self._ready({})
        if not isinstance(self.predictor, WordsPredictor):
            raise UserError(f"a run of the task '{self.recipe.task_kind}' has no word vectors to map")
        return self.predictor.map_words(words)

    def info(self) -> dict[str, Any]:
        """Parameters by part, FLOPs per token, memory, data, scores and versions."""
        parts = parameters(self.outline)
        total = sum(parts.values())
        adam = self.recipe.train.optimizer == "adamw"
        context = self.processor.longest
        return {
            "run": str(self.folder.path),
            "task": self.recipe.task_kind,
            "model": self.recipe.model_kind,
            "parameters": {**parts, "total": total},
            "flops per token": flops(self.outline, context),
            "context": context,
            "loaded": {"device": self.device, "precision": self.precision, "engine": self.engine},
            "memory": {
                "weights": (2 if self.precision == "bf16" else 4) * total,
                "training": sum(lasting(self.outline, adam=adam)),
            },
            "imported": self.config.get("imported", ""),
            "data": self.config["data"],
            "followed": self.config["followed"],
            "scores": self.folder.read_scores(),
            "runtime": self.config.get("runtime", {}),
            "versions": self.config["versions"],
        }

    def scores(self) -> dict[str, list[Score]]:
        """The scores in scores.json, by split."""
        # A number that JSON cannot hold, such as an infinite perplexity, is null in the file.
        return {
            split: [Score(**{**s, "value": math.nan if s["value"] is None else s["value"]}) for s in found]
            for split, found in self.folder.read_scores().items()
        }


def load(path: str | os.PathLike[str], device: str = "auto", precision: str = "auto", engine: str = "torch") -> Run:
    """Load a run folder. Nothing in it is ever executed. "hf:PATH" is a folder as the transformers library saves it,
    and "hf:NAME" a model of the Hugging Face Hub; both are imported into the cache first.

    `device` is "auto", "cpu", "cuda", "cuda:1" or "mps". `precision` is "fp32", "tf32" (fp32 weights, matrix products
    in TF32 on CUDA) or "bf16" (bf16 weights); "auto" is bf16 on a CUDA GPU and fp32 elsewhere. Word vectors are always
    fp32. `engine` computes the answers: "torch"; "compiled", torch with a compiled step, which takes some seconds and
    makes decoding on a GPU faster; "ct2" (CTranslate2, with the precision fp32 or int8) or "onnx" (ONNX Runtime), for
    which the run is exported into the cache once.
    """
    check_engine(engine, precision)
    claim_process()
    if engine == "compiled":
        share_compiled_code()
    if str(path).startswith(HUB):
        path = imported(str(path).removeprefix(HUB), say)
    folder = RunFolder.open(Path(path))
    kind, processor = catalog.predictor(folder.read_recipe().task_kind), load_processor(folder)
    if engine not in ("torch", "compiled"):
        from allyouneed.engines.cached import open_engine  # which imports every model

        opened = open_engine(engine, folder, processor, device, precision, lambda: load(path, "cpu", "fp32"))
        return Run(folder, kind(processor, opened.model), folder.read_config(), opened.device, opened.precision, engine)
    weights = load_weights(folder, processor)
    device = pick_device(device)
    precision = "fp32" if kind.full_precision else pick_precision(precision, device)
    model = processor.build_model()
    model.load_state_dict(weights)
    freeze_vectors(model, processor.recipe.text, list(processor.tokenizers.values()))
    model.to(torch.device(device), torch.bfloat16 if precision == "bf16" else None).eval()
    if device == "cpu":
        silence_bf16()
        store_by_columns(model)
    if engine == "compiled":
        compile_step(model, device)
    return Run(folder, kind(processor, model), folder.read_config(), device, precision, engine)


def train(
    recipe: str | Recipe,
    *settings: str | Mapping[str, Any],
    data: Given | None = None,
    out: str | os.PathLike[str] | None = None,
    init: str | os.PathLike[str] = "",
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    **sections: Mapping[str, Any],
) -> Run:
    """Train a recipe (its name, a .toml file, or a Recipe), on own `data` if given, from the body of the run `init`, if
    given, and load the result.

    `settings` are "section.key=value" or dicts, `sections` are the dicts task, model, text, train and decode. `data` is
    a path, the name of a data set, a list of tuples or dicts, a dict of columns, a DataFrame, or a dict of such splits.

    >>> run = train("translate/transformer", "train.steps=500", data="pairs.tsv", out="runs/mine")
    >>> run = train("classify/rnn", train={"minutes": 2}, data=films)    # [("What a film!", "good"), …]
    """
    path = Path(out) if out is not None else default_out(recipe)
    overrides = with_imported(as_overrides(*settings, sections, {"train.init": str(init)} if init else {}), say)
    chosen = resumed(path, recipe, overrides, data) if resume else choose(recipe, overrides, data)
    fit(chosen, path, resume=resume, overwrite=overwrite, quiet=quiet)
    return load(path, chosen.train.device, chosen.train.precision)
