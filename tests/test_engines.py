"""A run through another engine gives the answers that it gives through torch; what an engine lacks is said."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from allyouneed.engines import cached, ct2
from allyouneed.engines.onnx import OnnxReader, OnnxWriter
from allyouneed.errors import UserError
from allyouneed.models.base import Writer
from allyouneed.predict.answers import Answer
from allyouneed.run import Run, load
from conftest import WORDS
from exporting import SMALL, other
from test_export_onnx import OTHERS, SLOW, bert, read  # noqa: F401

ctranslate2 = pytest.importorskip("ctranslate2")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("one_thread")
CHANCE = random.Random(0)
SENTENCES = [" ".join(CHANCE.choices(list(WORDS), k=CHANCE.randint(1, 9))) for _ in range(40)]
BEGINNINGS = [sentence[: 1 + i % 6].strip() for i, sentence in enumerate(SENTENCES)]
TEXTS = {"translator": SENTENCES, "lm": BEGINNINGS}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "cache"))


def through(run: Run, engine: str, folder: Path, precision: str = "fp32") -> Run:
    """The run with random weights, through an engine."""
    run.export(folder, engine, cached.NUMBERS[precision], say=lambda line: None)
    if engine == "ct2":
        model: Any = ct2.CT2(run.model, run.processor, folder, "cpu", precision)
    else:
        model = (OnnxWriter if isinstance(run.model, Writer) else OnnxReader)(run.model, folder)
    return Run(run.folder, type(run.predictor)(run.processor, model), run.config, engine=engine)


def assert_same(found: list[Answer], wanted: list[Answer]) -> None:
    assert len(found) == len(wanted)
    for one, right in zip(found, wanted):
        assert (one.text, one.tokens, one.reason, one.end) == (right.text, right.tokens, right.reason, right.end)
        assert one.logprob == pytest.approx(right.logprob, abs=1e-3)
        assert one.score == pytest.approx(right.score, abs=1e-3)
        assert one.details == right.details


@pytest.mark.parametrize("engine", ["ct2", "onnx"])
@pytest.mark.parametrize("kind", TEXTS)
def test_greedy_answers_are_the_same(kind, engine, lm, translator, tmp_path):
    run = other(load({"lm": lm, "translator": translator}[kind], "cpu"), **SMALL)
    made, ended = through(run, engine, tmp_path / "out"), set()
    for settings in ({}, {"batch": 5}, {"max_new": 4}, {"stop": ["e"]}, {"stop": [" o", "\n"], "times_source": 0}):
        given: dict[str, Any] = {"method": "greedy", "max_new": 30, "stop": (), **settings}
        wanted = run.answers(TEXTS[kind], **given)
        assert_same(made.answers(TEXTS[kind], **given), wanted)
        ended |= {answer.reason for answer in wanted}
    assert ended == {"stop", "length"}


@pytest.mark.parametrize("kind", TEXTS)
def test_beams_are_the_same(kind, lm, translator, tmp_path):
    run = other(load({"lm": lm, "translator": translator}[kind], "cpu"), **SMALL)
    made = through(run, "ct2", tmp_path / "out")
    greedy = [answer.tokens for answer in run.answers(TEXTS[kind], method="greedy", max_new=20, stop=())]
    for settings in (
        {"alpha": 0.0},
        {"alpha": 0.0, "length_penalty": "gnmt"},
        {"alpha": 0.6},
        {"alpha": 2.0},
        {"stop": ["e"]},
    ):
        given: dict[str, Any] = {"method": "beam", "beam": 3, "length_penalty": "power", "max_new": 20, "stop": ()}
        wanted = run.answers(TEXTS[kind], **{**given, **settings})
        assert_same(made.answers(TEXTS[kind], **{**given, **settings}), wanted)
        assert [answer.tokens for answer in wanted] != greedy


@pytest.mark.parametrize("engine", ["ct2", "onnx"])
@pytest.mark.parametrize("kind", TEXTS)
def test_what_is_shown_comes_piece_by_piece(kind, engine, lm, translator, tmp_path):
    run = other(load({"lm": lm, "translator": translator}[kind], "cpu"), **SMALL)
    shown: dict[str, list[str]] = {"torch": [], engine: []}
    answers = [
        made.answers(TEXTS[kind], show=shown[name].append, method="greedy", max_new=30, stop=())
        for made, name in ((run, "torch"), (through(run, engine, tmp_path / "out"), engine))
    ]
    assert_same(answers[1], answers[0])
    assert shown[engine] == shown["torch"]
    assert len(shown[engine]) > 5


def test_learned_positions_end_an_answer(lm, translator, tmp_path):
    for i, folder in enumerate((lm, translator)):
        run = other(load(folder, "cpu"), **{**SMALL, "positions": "learned", "context": 12})
        texts = BEGINNINGS if folder == lm else [text for text in SENTENCES if len(text.split()) < 6]
        wanted = run.answers(texts, method="greedy", max_new=30, stop=(), times_source=0)
        assert {answer.reason for answer in wanted} >= {"length"}
        for engine in ("ct2", "onnx"):
            made = through(run, engine, tmp_path / f"{engine}{i}")
            assert_same(made.answers(texts, method="greedy", max_new=30, stop=(), times_source=0), wanted)


def test_an_error_belongs_to_its_text(lm, tmp_path):
    run = other(load(lm, "cpu"), **{**SMALL, "positions": "learned", "context": 5})
    for engine in ("ct2", "onnx"):
        made = through(run, engine, tmp_path / engine)
        lines = list(made.answer_lines(["one", "one two three", "two"], method="greedy", max_new=3))
        assert [line.error is None for line in lines] == [True, False, True]


def test_more_tokens_than_positions_are_refused(lm, tmp_path, monkeypatch):
    monkeypatch.setattr("allyouneed.exchange.to_ct2.TABLE", 40)
    run = other(load(lm, "cpu"), **{**SMALL, "positions": "sinusoidal", "context": 8})
    made = through(run, "ct2", tmp_path / "out")
    assert made.answers(["one"], method="greedy", max_new=38)
    with pytest.raises(UserError, match=r"3 tokens, and 39 new ones .* the 40 positions that CTranslate2 has"):
        made.answers(["one"], method="greedy", max_new=39)


READ: dict[str, list[str]] = {
    "classify, bert": ["the film was fine", "the end was dull, really dull and poor", "music"],
    "classify, gpt": ["the film was fine", "the end was dull, really dull and poor", "music"],
    "answer, bert": ["Where is Anna? ||| Anna is in the garden. Tom is here.", "Who is here? ||| Tom is here."],
    "tag, bert": ["one two six", "six six one two", "five"],
    "recognize, vit": ["0.png", "1.png"],
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in READ])
def test_what_reads_answers_the_same(name, read, tmp_path):  # noqa: F811
    run = other(read(name), **OTHERS[name][2])
    texts = READ[name]
    if name == "recognize, vit":
        texts = [str(tmp_path / text) for text in texts]
        for i, text in enumerate(texts):
            Image.fromarray(np.random.default_rng(i).integers(0, 256, (32, 32, 3), np.uint8)).save(text)
    wanted = run.answers(texts)
    for found, right in zip(through(run, "onnx", tmp_path / "out").answers(texts), wanted, strict=True):
        assert (found.text, found.tokens) == (right.text, right.tokens)
        assert found.logprob == pytest.approx(right.logprob, abs=1e-4)
    assert len({answer.logprob for answer in wanted}) > 1


def test_hidden_words_are_filled_in_the_same(bert, tmp_path):  # noqa: F811
    run = other(bert)
    texts = ["one [MASK] six", "[MASK] two", "one two. ||| five six."]
    made = through(run, "onnx", tmp_path / "out")
    for found, right in zip(made.answers(texts), run.answers(texts), strict=True):
        assert (found.text, found.tokens) == (right.text, right.tokens)
        assert found.details.get("follows") == pytest.approx(right.details.get("follows"), abs=1e-4)
    assert made.table(texts[0])[1].likely[0][0] == run.table(texts[0])[1].likely[0][0]


def test_a_classifier_is_scored_the_same(read):  # noqa: F811
    run = read("classify, bert")
    wanted, found = (load(run.folder.path, "cpu", engine=e).test(say=lambda line: None) for e in ("torch", "onnx"))
    assert [score.value for score in found] == [score.value for score in wanted]


def test_vectors_come_from_torch_only(read):  # noqa: F811
    with pytest.raises(UserError, match="the vectors of a run of the task embed come from torch only"):
        load(read("embed, bert").folder.path, engine="onnx")


# Runs as `load` opens them: exported once, into the cache.


@pytest.mark.parametrize("engine", ["ct2", "onnx"])
def test_a_run_is_exported_once(engine, translator, tmp_path, capsys):
    wanted = load(translator, "cpu").answers(SENTENCES)
    made = load(translator, engine=engine)
    assert_same(made.answers(SENTENCES), wanted)
    assert (made.engine, made.device, made.precision) == (engine, "cpu", "fp32")
    (exported,) = (tmp_path / "cache" / "engines").iterdir()
    out, told = capsys.readouterr()
    assert not out
    assert str(exported) in told
    before = {path.name: path.stat().st_mtime_ns for path in exported.iterdir()}
    assert_same(load(translator, engine=engine).answers(SENTENCES), wanted)
    assert before == {path.name: path.stat().st_mtime_ns for path in exported.iterdir()}
    assert not capsys.readouterr().err


@pytest.mark.parametrize("name", ["model.bin", "checksums.json", "allyouneed.json", "config.json"])
@pytest.mark.parametrize("how", ["gone", "cut", "changed"])
def test_a_damaged_export_is_made_again(name, how, translator, tmp_path):
    wanted = load(translator, engine="ct2").answers(SENTENCES[:3])
    (exported,) = (tmp_path / "cache" / "engines").iterdir()
    data = (exported / name).read_bytes()
    if how == "gone":
        (exported / name).unlink()
    else:
        (exported / name).write_bytes(data[: len(data) // 2] + (b"" if how == "cut" else b"!" * (len(data) // 2)))
    assert_same(load(translator, engine="ct2").answers(SENTENCES[:3]), wanted)
    assert (exported / name).stat().st_size >= len(data) - 200


def test_a_run_that_has_changed_is_exported_again(translator, tmp_path):
    import shutil

    from allyouneed.storage.tensorfile import read_header, read_tensors
    from allyouneed.storage.wholefile import write_tensors

    load(translator, engine="ct2")
    shutil.copytree(translator, tmp_path / translator.name)
    weights, notes = read_tensors(translator / "model.safetensors"), read_header(translator / "model.safetensors").notes
    weights["body.source.tokens.weight"] = weights["body.source.tokens.weight"] * 3
    kept = {name: note for name, note in notes.items() if name == "run"}
    write_tensors(tmp_path / translator.name / "model.safetensors", weights, kept)
    changed = tmp_path / translator.name
    assert_same(load(changed, engine="ct2").answers(SENTENCES), load(changed, "cpu").answers(SENTENCES))
    assert len(list((tmp_path / "cache" / "engines").iterdir())) == 2


@pytest.mark.parametrize("stop", [KeyboardInterrupt, UserError])
def test_an_export_that_is_interrupted_leaves_nothing(stop, translator, tmp_path, monkeypatch):
    def ended(*_: Any) -> None:
        raise stop("now")

    for place in ("allyouneed.exchange.to_ct2.write_bytes", "allyouneed.engines.cached._compare"):
        with monkeypatch.context() as patch:
            patch.setattr(place, ended)
            with pytest.raises(stop):
                load(translator, engine="ct2")
        assert not list((tmp_path / "cache" / "engines").iterdir())
    assert load(translator, engine="ct2").predict("one") is not None


def test_an_engine_that_writes_other_words_is_not_used(translator, tmp_path, monkeypatch):
    own = ct2.vocabulary
    monkeypatch.setattr("allyouneed.engines.ct2.vocabulary", lambda *given: [*own(*given)[:4], *own(*given)[:3:-1]])
    with pytest.raises(UserError, match="CTranslate2 writes other words than this run, so it is not used"):
        load(translator, engine="ct2")
    assert not list((tmp_path / "cache" / "engines").iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written(translator, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir(mode=0o500)
    with pytest.raises(UserError, match=r"could not write .*Permission denied"):
        load(translator, engine="ct2")


def test_a_cache_that_is_a_file(translator, tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match=r"could not write .*engines"):
        load(translator, engine="ct2")


def test_another_process_may_be_faster(translator, tmp_path, monkeypatch):
    wanted, own = load(translator, "cpu").answers(SENTENCES), cached._compare

    def compare(*given: Any) -> None:
        own(*given)
        monkeypatch.setattr(cached, "_compare", own)
        load(translator, engine="ct2")

    monkeypatch.setattr(cached, "_compare", compare)
    for _ in range(2):
        assert_same(load(translator, engine="ct2").answers(SENTENCES), wanted)
    assert len(list((tmp_path / "cache" / "engines").iterdir())) == 1


def test_what_the_library_cannot_do_is_told(translator, monkeypatch):
    def refused(*_: Any, **__: Any) -> None:
        raise ValueError("no int8 here")

    monkeypatch.setattr(ctranslate2, "Translator", refused)
    with pytest.raises(UserError, match="CTranslate2 cannot open this run: no int8 here; try another engine"):
        load(translator, precision="int8", engine="ct2")


def test_int8_is_a_precision_of_ct2(translator):
    made = load(translator, precision="int8", engine="ct2")
    assert made.precision == "int8"
    assert made.model.library.compute_type.startswith("int8")
    assert len(made.predict(SENTENCES)) == len(SENTENCES)
    for engine in ("torch", "onnx"):
        with pytest.raises(UserError, match=f"precision = int8 is for the engine ct2, and the engine is {engine}"):
            load(translator, precision="int8", engine=engine)


def test_a_test_scores_the_same(translator, tmp_path):
    wanted = load(translator, "cpu").test(say=lambda line: None)
    for engine in ("ct2", "onnx"):
        found = load(translator, engine=engine).test(say=lambda line: None)
        assert [score.value for score in found] == [score.value for score in wanted]


# What an engine lacks is said, in one sentence.


@pytest.mark.parametrize(
    ("engine", "decode", "told"),
    [
        ("ct2", {"method": "sample", "top_p": 0.9}, "random numbers of its own, which decode.seed does not decide"),
        ("ct2", {"method": "beam", "n_best": 2}, "gives one answer to a text: leave decode.n_best at 1"),
        ("ct2", {"method": "beam"}, "no length penalty like gnmt: choose decode.length_penalty = power"),
        ("onnx", {"method": "sample"}, "writes greedily, not with decode.method = sample"),
        ("onnx", {"method": "beam"}, "writes greedily, not with decode.method = beam"),
        ("onnx", {"n_best": 2}, "n_best = 2 needs decode.method = beam or sample"),
    ],
)
def test_a_search_that_an_engine_lacks_is_refused(engine, decode, told, translator):
    run = load(translator, engine=engine)
    with pytest.raises(UserError, match=told):
        run.predict("one", **{"method": "greedy", **decode})


@pytest.mark.parametrize("engine", ["ct2", "onnx"])
def test_what_the_model_computes_is_not_shown(engine, translator, lm):
    run = load(translator, engine=engine)
    name = {"ct2": "CTranslate2", "onnx": "ONNX Runtime"}[engine]
    told = f"{name} gives answers, and not what the model computes on the way to them: load the run without engine"
    asked = [run.table, run.align, run.attention, run.trace, run.view]
    for ask in asked:
        with pytest.raises(UserError, match=told):
            ask("one")
    other_run = load(lm, engine=engine)
    for ask in (other_run.trace, other_run.view, other_run.embed):
        with pytest.raises(UserError, match=told):
            ask("one")
    with pytest.raises(UserError, match=told):
        other_run.test(say=lambda line: None)
    with pytest.raises(UserError, match=told):
        run.export("nowhere", "hf")
    assert run.info()["parameters"] == load(translator, "cpu").info()["parameters"]
    assert "parameters" in repr(run)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"engine": "ct3"}, "there is no engine 'ct3'; did you mean 'ct2'?"),
        (
            {"engine": "onnx", "device": "cuda"},
            "the engine onnx computes on the CPU, and device = cuda: leave it at auto",
        ),
        ({"engine": "ct2", "device": "cuda:99"}, "device = cuda:99, but CTranslate2 sees . CUDA devices here"),
        ({"engine": "ct2", "device": "mps"}, "computes on cpu or cuda, and device = mps: leave it at auto"),
        ({"engine": "ct2", "precision": "bf16"}, "the engine ct2 computes with the precision fp32 or int8, not bf16"),
        ({"engine": "onnx", "precision": "tf32"}, "the engine onnx computes with the precision fp32, not tf32"),
    ],
)
def test_what_cannot_be_loaded_is_told(given, told, translator, tmp_path):
    with pytest.raises(UserError, match=told.replace("?", r"\?")):
        load(translator, **given)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("engine", "package"), [("ct2", "ctranslate2"), ("onnx", "onnxruntime")])
def test_a_missing_package_is_named(engine, package, translator, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"pip install {package}"):
        load(translator, engine=engine)


def test_a_model_that_an_engine_lacks(pretrained, tmp_path):
    for engine in ("ct2", "onnx"):
        with pytest.raises(UserError, match="a run of the model elmo for the task lm cannot be written"):
            load(pretrained, engine=engine)
    assert not list((tmp_path / "cache" / "engines").glob("*"))


def test_the_command_line_has_engines(translator, command):
    wanted = load(translator, "cpu").predict(SENTENCES[:3])
    used = command("use", translator, "--engine", "ct2", input="".join(f"{text}\n" for text in SENTENCES[:3]))
    assert used.stdout.splitlines() == wanted
    tested = command("test", translator, "--engine", "ct2", "--precision", "int8")
    assert "precision:int8" in tested.stdout
    for options, told in (
        (("--engine", "ct3"), "ayn: there is no engine 'ct3'; did you mean 'ct2'?\n"),
        (("--engine", "ct2", "--table"), "load the run without --engine for that\n"),
        (("--engine", "onnx", "--set", "method=beam"), "choose greedy, or another engine\n"),
    ):
        refused = command("use", translator, "one", *options)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.endswith(told)
        assert "Traceback" not in refused.stderr
