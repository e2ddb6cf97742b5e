"""Inside and Vocabulary: layers, vectors, heads, positions and words on a page are those of the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from allyouneed.errors import UserError
from allyouneed.look import Page, View
from allyouneed.look.starts import STARTS
from allyouneed.look.vocabulary import Table, flat, show_map
from allyouneed.nn.block import Block
from allyouneed.nn.masks import Mask
from allyouneed.nn.positions import Rotary
from allyouneed.nn.trace import Trace
from allyouneed.predict.base import Without
from allyouneed.run import Run
from browser import Watched, browsing, offline, serving  # noqa: F401  (a fixture)
from families import FAMILIES, made, train_family

ENTRY = {"gpt": "body.embeddings", "transformer": "body.target.embeddings"}


def text_of(name: str) -> Any:
    return FAMILIES[name][2][0]


def saved(name: str, folder: Path, text: Any = None) -> Path:
    return made(name).look(text or text_of(name)).save(folder / f"{name}.html")


@pytest.fixture(autouse=True, scope="module")
def trained() -> None:
    """Before a test switches gradients off."""
    for name in ("gpt", "transformer"):
        made(name)


def shown(token: str) -> str:
    """As a page shows a token."""
    return token.replace("\n", "↵").replace(" ", "·")


def numbers(view: View, ref: dict[str, Any]) -> torch.Tensor:
    kind = np.float32 if ref["type"] == "float32" else np.int32
    return torch.from_numpy(np.frombuffer(view.pieces[ref["piece"]](), kind).copy()).view(ref["shape"])


@contextmanager
def live(run: Run, hash: str = "") -> Iterator[Watched]:
    with serving(run) as address, browsing(viewport={"width": 1280, "height": 900}) as page:
        yield page.open(address, hash)


# What each layer would say


@pytest.mark.parametrize(
    "name", ["gpt", "rnn", "lstm", "conv", "elmo", "bert", "transformer", "convseq2seq", "seq2seq", "attention"]
)
def test_the_last_layer_says_what_the_model_says(name):
    run, view = made(name), made(name).view(text_of(name))
    logits = next(one for path, one in run.trace(text_of(name), "logits").items()).value
    p = logits[:, : len(run.predictor.tokenizer)].softmax(-1)
    found = numbers(view, view.shown["lens"]["p"])
    assert len(found) == len(view.shown["lens"]["layers"])
    torch.testing.assert_close(found[-1], p.topk(5).values, rtol=0, atol=1e-5)
    words = json.loads(view.pieces["lens.words"]())
    assert words[-5 * len(p) :: 5] == [run.predictor.tokenizer.token(i) for i in p.argmax(-1).tolist()]
    if name not in ("seq2seq", "attention"):  # whose decoders have one layer here
        assert not torch.allclose(found[0], found[-1])


@pytest.mark.parametrize("name", ["gpt", "transformer"])
@torch.no_grad()
def test_a_lower_layer_is_read_through_the_last_norm_and_the_head(name):
    run, view = made(name), made(name).view(text_of(name))
    stack = run.model.body.stack if name == "gpt" else run.model.body.decoder
    found, lens = run.trace(text_of(name), "embeddings", "layers"), numbers(view, view.shown["lens"]["p"])
    path = next(path for path in found if path.endswith(("stack.blocks.0.layers", "decoder.blocks.0.layers")))
    for row, x in enumerate([found[ENTRY[name]].value, found[path].value]):
        p = run.model.head(stack.norm(x))[:, : len(run.predictor.tokenizer)].softmax(-1)
        torch.testing.assert_close(lens[row], p.topk(5).values, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["seq2seq", "attention"])
def test_a_lower_layer_of_a_recurrent_decoder_is_read_with_its_context_and_its_input(name, tmp_path):
    run = train_family(name, tmp_path / "run", "model.decoder_layers=2", "model.embedding=12")
    view, found = run.view(text_of(name)), run.trace(text_of(name), "inputs", "layers", "logits")
    inputs = found["body.decoder.layers.0.inputs"].value
    lens = numbers(view, view.shown["lens"]["p"])
    assert view.shown["lens"]["layers"] == ["layer 1", "layer 2"]
    for row in (0, 1):
        states = found[f"body.decoder.layers.{row}.layers"].value
        with torch.no_grad():
            logits = run.model.head(run.model.body.output(states, inputs[:, 12:], inputs[:, :12]))
        p = logits[:, : len(run.predictor.tokenizer)].softmax(-1)
        torch.testing.assert_close(lens[row], p.topk(5).values, rtol=0, atol=1e-5)
    torch.testing.assert_close(logits, found["logits"].value, rtol=0, atol=1e-4)
    assert not torch.allclose(lens[0], lens[1])


def test_the_page_lists_the_words_of_a_layer(tmp_path, offline):  # noqa: F811
    page = offline.open(saved("gpt", tmp_path), "view=inside&part=lens")
    likely = made("gpt").table(text_of("gpt"))[-1].likely
    page.tab.wait_for_selector("table td.number")
    assert page.texts("table td.number") == [f"{100 * value:.1f} %" for _, value in likely]
    assert page.texts("table td.text") == [shown(word) for word, _ in likely]
    view = made("gpt").view(text_of("gpt"))
    page.tab.focus("svg[role=img]")
    page.tab.keyboard.press("ArrowDown")  # one layer down
    p = numbers(view, view.shown["lens"]["p"])[-2, -1]
    assert page.texts("table td.number") == [f"{100 * value:.1f} %" for value in p.tolist()]
    assert page.errors == []


# Vectors


@pytest.mark.parametrize("name", ["gpt", "lstm", "conv", "bert", "transformer", "tag-lstm", "vit", "answer"])
def test_cosines_are_those_of_the_traced_vectors(name):
    view, found = made(name).view(text_of(name)), made(name).trace(text_of(name), "embeddings", "layers")
    side = view.shown["vectors"][-1]
    vectors = [one.value for path, one in found.items() if "encoder" not in path and "source" not in path]
    assert len(vectors) == len(side["layers"])
    for ref, x in zip(side["cosines"], vectors):
        expected = F.cosine_similarity(x[:, None], x[None], dim=-1)
        torch.testing.assert_close(numbers(view, ref), expected, rtol=0, atol=1e-5)
    own = numbers(view, side["own"])
    if vectors[-1].shape != vectors[-2].shape:  # two directions over one embedding
        assert own[:, -1, -2].isnan().all()
    else:
        expected = F.cosine_similarity(vectors[-1], vectors[-2], dim=-1)
        torch.testing.assert_close(own[:, -1, -2], expected, rtol=0, atol=1e-5)


def test_the_layers_of_elmo_are_those_of_its_body():
    run, text = made("tag-elmo"), text_of("tag-elmo")
    side = (view := run.view(text)).shown["vectors"][0]
    body = [torch.from_numpy(run.embed(text, layers=i, words=True).vectors) for i in range(3)]
    for ref, x in zip(side["cosines"], body):
        expected = F.cosine_similarity(x[:, None], x[None], dim=-1)
        torch.testing.assert_close(numbers(view, ref), expected, rtol=0, atol=1e-5)
    assert side["layers"] == ["embeddings", "layer 1", "layer 2", "reader"]


def test_a_word_is_compared_across_two_texts(tmp_path, offline):  # noqa: F811
    run, texts = made("embed"), ("I am tired.", "I am a dog.")
    page = offline.open(run.look(" ||| ".join(texts)).save(tmp_path / "page.html"), "view=inside&part=vectors")
    one, other = (run.trace(text, "embeddings", "layers") for text in texts)
    place = len(next(iter(one.values())).value)
    page.tab.select_option("select[aria-label='one token']", "1")
    page.tab.select_option("select[aria-label='another token']", str(place + 1))
    expected = [F.cosine_similarity(a.value[1], b.value[1], dim=0) for a, b in zip(one.values(), other.values())]
    page.tab.wait_for_function(f"document.querySelectorAll('[data-cosine]').length === {len(expected)}")
    page.tab.wait_for_function("location.hash.includes('b=')")
    assert page.tab.locator("[data-cosine]").all_text_contents() == [f"{value:.3f}" for value in expected]
    assert page.text("[data-value]") == f"{expected[-1]:.3f}"
    assert page.errors == []


def test_sentences_are_compared_live():
    run, texts = made("gpt"), ("The dog sleeps", "The dog reads a book")
    with live(run, "view=inside&part=vectors&text=The+dog") as page:
        page.tab.fill("textarea[aria-label^=sentences]", "\n".join(texts))
        page.tab.click("text=Compare >> nth=-1")
        page.tab.wait_for_selector("text=2 sentences")
        page.tab.select_option("select[aria-label='one token']", "1")
        page.tab.select_option("select[aria-label='another token']", "4")
        traced = [list(run.trace(text, "layers").values())[-1].value[1] for text in texts]
        expected = f"{F.cosine_similarity(*traced, dim=0):.3f}"
        page.tab.wait_for_function(f"document.querySelector('[data-value]').textContent === '{expected}'")
        assert page.errors == []


# The nearest of some lines


def test_lines_are_searched_live_and_those_of_a_saved_page_are_known():
    run, text, lines = made("embed"), "I am tired.", ("il cane", "Io sono stanco.", "we book")
    near = run.nearest(text, lines)
    with live(run, "text=I+am+tired.") as page:
        page.tab.fill("textarea[aria-label='lines to search']", "\n".join(lines))
        page.tab.click("text=Search")
        page.tab.wait_for_selector("text=3 lines searched")
        table = "section:has(h2:text-is('The nearest of some lines')) td"
        assert page.texts(f"{table}.text") == [one.text for one in near]
        assert page.texts(f"{table}.number") == [f"{one.cosine:.4f}" for one in near]
        page.tab.fill("textarea[aria-label='lines to search']", "\n\n")
        page.tab.click("text=Search")
        page.tab.wait_for_selector("text=There are no lines yet.")
        assert page.errors == []
    shown = run.view(text).shown["nearest"]
    assert {line for line, _ in shown} <= set(STARTS["lines"]["embed"])
    assert [cosine for _, cosine in shown] == sorted((cosine for _, cosine in shown), reverse=True)
    assert "nearest" not in run.view("I am tired. ||| Io sono stanco.").shown


# Heads


@pytest.mark.parametrize("head", [0, 1])
@torch.no_grad()
def test_a_head_that_is_off_is_a_slice_of_zeros(head):
    run = made("gpt")
    model, ids = run.model, torch.tensor([run.predictor.tokenizer.encode("The dog sleeps")])
    out, width = model.body.stack.blocks[1].attention.out, 8
    trace = Trace("logits")
    trace.off["body.stack.blocks.1.attention"] = [head]
    model(ids, trace=trace)

    def silence(module: Any, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        z = given[0].clone()
        z[..., head * width : (head + 1) * width] = 0
        return (z,)

    handle = out.register_forward_pre_hook(silence)
    by_hand = model(ids)
    handle.remove()
    assert torch.equal(trace["logits"], by_hand)
    assert not torch.equal(by_hand, model(ids))


@torch.no_grad()
def test_with_nothing_off_a_trace_changes_no_bit():
    run = made("gpt")
    ids = torch.tensor([run.predictor.tokenizer.encode("The dog sleeps")])
    trace = Trace("logits")
    assert torch.equal(run.model(ids, trace=trace), run.model(ids))


@pytest.mark.parametrize("name", ["gpt", "bert", "transformer", "convseq2seq", "classify-bert", "tag-bert", "vit"])
def test_what_each_head_does_is_computed_by_switching_it_off(name):
    run, text = made(name), text_of(name)
    view = run.view(text)
    switches = view.shown["switches"]
    each = numbers(view, switches["each"])
    assert len(each) == sum(one["heads"] for one in switches["attentions"])
    at = len(each) - 1
    last = switches["attentions"][-1]
    given, settings = run.read(text)
    off = run.predictor.trace(given, settings, ("logits",), Without({last["path"]: [last["heads"] - 1]}))
    logits = next(iter(off.values())).value
    logits = logits.view(-1, logits.size(-1))
    rows = [-1] if name == "gpt" else range(len(logits))
    if name == "bert":
        rows = [i for i, id in enumerate(given.ids) if id == run.predictor.tokenizer.mask]
    known = None if run.predictor.labels else len(run.predictor.tokenizer)
    for number, row in enumerate(rows):
        best = switches["rows"][number]["likely"][0][2]
        assert float(logits[row][:known].softmax(-1)[best]) == pytest.approx(float(each[at, number]), abs=1e-6)


def test_where_an_answer_begins_is_seen_without_a_head(tmp_path, offline):  # noqa: F811
    run, text = made("answer"), text_of("answer")
    view = run.view(text)
    begin, end = view.shown["switches"]["rows"]
    for i, (name, row) in enumerate((("begin", begin), ("end", end))):
        everywhere = [(guess.likely[i][1], guess.token) for guess in run.table(text)]
        none = 1 - sum(p for p, _ in everywhere), "(no answer in the text)"
        best = sorted([*everywhere, none], reverse=True)
        assert row["token"] == name
        assert [p for _, p, _ in row["likely"]] == pytest.approx([p for p, _ in best[:10]], abs=1e-6)
        assert row["likely"][0][0] == best[0][1]
    path = view.shown["switches"]["attentions"][0]["path"]
    given, settings = run.read(text)
    off = run.predictor.trace(given, settings, ("logits",), Without({path: [0, 1]}))
    _, p = run.predictor.likely_at(given, next(iter(off.values())).value)
    p = torch.cat([p, 1 - p.sum(0, keepdim=True)])
    ids = [[at for _, _, at in row["likely"]] for row in (begin, end)]
    answer = run.ask(view, "off", json.dumps({"off": {path: [0, 1]}, "ids": ids})).shown["rows"]
    assert [row["p"] for row in answer] == [p[own, i].tolist() for i, own in enumerate(ids)]
    assert answer[0]["p"] != [value for _, value, _ in begin["likely"]]
    page = offline.open(Page([view], "answer").save(tmp_path / "page.html"), "view=inside&part=switches")
    for label, row in (("begins", begin), ("ends", end)):
        page.tab.click(f"[aria-label=positions] >> text={label}")
        page.tab.wait_for_selector(f"h3:text-is('where the answer {label}')")
        assert page.texts(".compare td.text") == [shown(word) for word, _, _ in row["likely"]]
        assert page.texts(".compare td.number") == [f"{100 * p:.1f} %" for _, p, _ in row["likely"]]
    assert page.errors == []


@pytest.fixture
def loud_heads() -> Iterator[None]:
    """A layer whose heads matter, in a model that has hardly learned."""
    stack = made("gpt").model.body.stack
    before = [(weight, weight.data) for weight in (stack.blocks[1].attention.out.weight, stack.norm.weight)]
    for (weight, data), factor in zip(before, (300, 10)):
        weight.data = data * factor
    yield
    for weight, data in before:
        weight.data = data


@pytest.mark.parametrize("name", ["gpt", "bert", "transformer", "classify-bert", "answer", "vit"])
def test_blocks_below_a_head_that_is_off_are_not_computed_again(name):
    run = made(name)
    given, settings = run.read(text_of(name))
    found = run.predictor.trace(given, settings)
    paths = [path.removesuffix(".weights") for path in found if path.endswith(".weights")]
    for path in paths:
        for off in ({path: [1]}, {path: [0], paths[-1]: [1]}):
            slow, quick = (run.predictor.says(given, settings, Without(off, known)) for known in ({}, found))
            for one, other in zip(slow, quick, strict=True):
                torch.testing.assert_close(one.p, other.p, rtol=0, atol=1e-6)
    trace = Trace()
    Without({paths[-1]: [0]}, found).apply(trace)
    assert paths[-1].rpartition(".")[0] not in trace.known
    blocks = [path for path, part in run.model.named_modules() if isinstance(part, Block)]
    assert trace.known.keys() >= set(blocks[:-1])
    with torch.inference_mode():  # what is known is taken
        Without({paths[-1]: [0]}, {path: one._replace(value=one.value + 1) for path, one in found.items()}).apply(trace)
        changed = next(block for block in run.model.modules() if isinstance(block, Block))
        x = torch.zeros(1, *found[f"{blocks[0]}.layers"].value.shape)
        trace.at(run.model)
        assert torch.equal(changed(x, Mask(), trace=trace)[0], found[f"{blocks[0]}.layers"].value + 1)


@pytest.mark.usefixtures("loud_heads")
def test_a_head_that_is_pointed_at_is_known_before_the_click_and_all_are_tried():
    run, text = made("gpt"), " ".join(["The dog"] * 12)
    heads = [(layer, head) for layer in (0, 1) for head in (0, 1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("allyouneed.look.inside.EACH_TOKENS", 4)
        with live(run, f"view=inside&part=switches&text={text}") as page:
            page.tab.hover("button[aria-label='layer 2, head 2']")
            page.tab.wait_for_timeout(400)
            asked = len(page.requests)
            page.tab.click("button[aria-label='layer 2, head 2']")
            page.tab.wait_for_selector("[data-now]")
            assert len(page.requests) == asked
            page.tab.click("text=all on")
            page.tab.click("text=try each head alone")
            page.tab.wait_for_selector("#said:text-is('each head was tried')", state="attached")
            rows = run.predictor.says(*run.read(text))
            best, full = int(rows[0].p.argmax()), float(rows[0].p.max())
            for layer, head in heads:
                off = Without({f"body.stack.blocks.{layer}.attention": [head]})
                without = float(run.predictor.says(*run.read(text), off)[0].p[best])
                change = f"{abs(100 * (without - full)):.1f}"
                cells = page.tab.locator("section:has(h2:text('How much each head')) svg text").all_text_contents()
                assert any(change in cell for cell in cells), (layer, head, change, cells)
            assert page.errors == []


@pytest.mark.usefixtures("loud_heads")
def test_a_head_is_switched_off_live_and_on_again():
    run, text = made("gpt"), text_of("gpt")
    given, settings = run.read(text)
    path = "body.stack.blocks.1.attention"
    off = run.predictor.trace(given, settings, ("logits",), Without({path: [0]}))["logits"].value[-1]
    known = len(run.predictor.tokenizer)
    before, after = run.trace(text, "logits")["logits"].value[-1][:known].softmax(-1), off[:known].softmax(-1)
    best = before.topk(10).indices
    with live(run, f"view=inside&part=switches&text={text}") as page:
        page.tab.click("button[aria-label='layer 2, head 1']")
        page.tab.wait_for_selector("[data-now]")
        assert [f"{value:.3f}" for value in before[best]] != [f"{value:.3f}" for value in after[best]]
        assert page.texts("[data-now]") == [f"{100 * value:.1f} %" for value in after[best].tolist()]
        assert page.text("[data-top]") == shown(run.predictor.tokenizer.token(int(after.argmax())))
        assert "off=1.0" in page.tab.url
        page.tab.click("button[aria-label='layer 2, head 1']")
        page.tab.wait_for_selector("[data-now]", state="detached")
        assert page.errors == []


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("nothing", "{}"),
        ("off", "no json"),
        ("off", "[]"),
        ("off", "{}"),
        ("off", '{"off": {"body.nothing": [0]}, "ids": [[0]]}'),
        ("off", '{"off": {"body.stack.blocks.0.attention": [2]}, "ids": [[0]]}'),
        ("off", '{"off": {"body.stack.blocks.0.attention": [0]}, "ids": [[999999]]}'),
        ("near", '{"table": 3, "row": 0}'),
        ("near", '{"table": 0, "row": 99999}'),
        ("vectors", '{"text": 5}'),
        ("write on", '{"step": 0, "max_new": 5}'),
    ],
)
def test_a_question_that_has_no_answer_is_a_sentence(question, asked):
    with pytest.raises(UserError, match="load the page again"):
        made("gpt").view("The dog").ask(question, asked)


# Positions


@pytest.mark.parametrize(
    "name", ["gpt", "transformer", "vit", "convseq2seq", pytest.param("dalle", marks=pytest.mark.slow)]
)
def test_the_table_of_positions_is_that_of_the_model(name):
    run = made(name)
    view = run.view("")
    assert view.shown["positions"]
    for one in view.shown["positions"]:
        part = run.model.get_submodule(one["path"])
        table = part.table if hasattr(part, "table") else part
        table = getattr(table, "weight", table)
        assert torch.equal(numbers(view, one["table"]), table[:256].detach())


@pytest.mark.parametrize("name", ["lstm", "conv", "seq2seq"])
def test_a_model_without_positions_shows_none(name):
    assert made(name).view("").shown["positions"] == []


def test_rotary_positions_are_their_angles():
    from allyouneed.look.inside import show_positions

    rotary, view = Rotary(8), View()
    show_positions(view, rotary)
    (one,) = view.shown["positions"]
    table = numbers(view, one["table"])
    cos, sin = rotary(torch.arange(256), 256)
    assert torch.equal(table, torch.cat([cos, sin], -1))


def test_cosines_of_positions_on_the_page(tmp_path, offline):  # noqa: F811
    page = offline.open(saved("gpt", tmp_path), "view=inside&part=positions")
    table = made("gpt").model.body.embedding.positions.table.weight.detach()
    box = page.tab.locator("svg image").nth(1).bounding_box()
    cell = box["width"] / len(table)
    page.tab.mouse.move(box["x"] + 5.5 * cell, box["y"] + 2.5 * cell)
    assert page.text("[data-reading]") == f"positions 3 and 6: {F.cosine_similarity(table[2], table[5], dim=0):.3f}"
    box = page.tab.locator("svg image").nth(0).bounding_box()
    page.tab.mouse.move(box["x"] + 1, box["y"] + 1)
    assert page.text("[data-reading]") == f"position 1, dimension 1: {table[0, 0]:.3f}"


def test_a_patch_is_compared_with_all_others(tmp_path, offline):  # noqa: F811
    page = offline.open(saved("vit", tmp_path), "view=inside&part=positions&patch=6")
    table = made("vit").model.body.patches.positions.table.weight.detach()
    expected = F.cosine_similarity(table[6:7], table[1:], dim=-1)
    cells = page.tab.locator(".card >> nth=1").locator("svg text").all_text_contents()
    side = round(len(expected) ** 0.5)
    assert cells[2 * side :] == [f"{value:.2f}" for value in expected.tolist()]


# Vocabulary


def test_the_map_is_the_principal_components():
    vectors = F.normalize(
        torch.randn(300, 12, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 13), dim=-1
    )
    at, share = flat(vectors)
    centred = (vectors - vectors.mean(0)).double()
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    expected = u[:, :2] * s[:2]
    signs = (expected * at).sum(0).sign()
    torch.testing.assert_close(at.double(), expected * signs, rtol=0, atol=1e-4)
    torch.testing.assert_close(share.double(), s[:2] ** 2 / (s**2).sum(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "word"), [("gpt", "dog"), ("word2vec", "queen"), ("transformer", "good"), ("bert", "the")]
)
def test_the_map_finds_a_word_and_its_nearest(name, word, tmp_path, offline):  # noqa: F811
    run = made(name)
    page = offline.open(saved(name, tmp_path), "view=vocabulary")
    page.tab.fill("input[type=search]", word)
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("[data-word]")
    table = run.model.inputs.weight if name == "word2vec" else run.model.tables()[0].weight
    token, encode = run.predictor.tokenizer.token, run.processor.tokenizers["tokenizer.json"].encode
    ids = run.predictor.words() if name == "word2vec" else torch.arange(len(run.predictor.tokenizer))
    chosen = page.text("[data-word]")
    assert word in chosen
    row = next(i for i, id in enumerate(ids.tolist()) if shown(token(id)) == chosen)
    cosines = F.cosine_similarity(table[ids], table[ids[row]][None], dim=-1).detach()
    cosines[row] = -2
    best = cosines.topk(10)
    assert page.texts("table.near td.number") == [f"{value:.3f}" for value in best.values.tolist()]
    own = {shown(token(id)) for id in encode(str(text_of(name)), ("mask",) if name == "bert" else ())}
    assert set(page.texts(".tokens .token")) == own
    assert page.errors == []


def test_the_words_of_the_text_have_rings(tmp_path, offline):  # noqa: F811
    page = offline.open(saved("gpt", tmp_path), "view=vocabulary")
    page.tab.wait_for_function("document.querySelector('canvas.map').dataset.frames > 0")
    orange = """() => {
        const { width, height } = document.querySelector('canvas.map');
        const { data } = document.querySelector('canvas.map').getContext('2d').getImageData(0, 0, width, height);
        let found = 0;
        for (let i = 0; i < data.length; i += 4) found += data[i] > 150 && data[i + 2] < 60;
        return found;
    }"""
    assert page.tab.evaluate(orange) > 50
    page.open(saved("gpt", tmp_path, "Two"), "view=learning")
    page.open(made("gpt").look("").save(tmp_path / "none.html"), "view=vocabulary")
    page.tab.wait_for_function("document.querySelector('canvas.map').dataset.frames > 0")
    assert page.tab.evaluate(orange) == 0


def test_fifty_thousand_words_move_smoothly(tmp_path, offline):  # noqa: F811
    rng = torch.Generator().manual_seed(0)

    class Many:
        mask = None

        def __len__(self) -> int:
            return 50_000

        def token(self, id: int) -> str:
            return f" word{id}"

        def encode(self, text: str, specials: tuple[str, ...]) -> list[int]:
            return [3, 4]

    view = made("gpt").view("")
    table = Table("words", torch.randn(50_000, 16, generator=rng), Many(), list(range(50_000)))  # type: ignore[arg-type]
    view.shown["vocabulary"] = [show_map(view, "many", table, "some text")]
    page = offline.open(Page([view], "many").save(tmp_path / "page.html"), "view=vocabulary")
    page.tab.wait_for_function("document.querySelector('canvas.map').dataset.frames > 0")
    times = page.tab.evaluate(
        """async () => {
            const canvas = document.querySelector('canvas.map'), found = [];
            canvas.focus();
            const left = 'ArrowLeft', right = 'ArrowRight';
            for (const key of [left, 'ArrowUp', '+', right, '+', 'ArrowDown', '+', '-', left, '0']) {
                const before = canvas.dataset.frames;
                canvas.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true }));
                while (canvas.dataset.frames === before) await new Promise(requestAnimationFrame);
                found.push(Number(canvas.dataset.ms));
            }
            return found;
        }"""
    )
    assert sorted(times)[len(times) // 2] < 33, times
    assert int(page.tab.locator("canvas.map").get_attribute("data-labels") or 0) > 20
    page.tab.fill("input[type=search]", "word31415")
    page.tab.keyboard.press("Enter")
    page.tab.wait_for_selector("[data-word]")
    assert page.text("[data-word]") == "·word31415"
    assert "nearest words of the words of its text only" in page.text(".card .note")
    page.tab.click(".tokens .token")
    page.tab.wait_for_selector("table.near")
    assert page.errors == []


def test_the_map_zooms_at_the_pointer_and_drags(tmp_path, offline):  # noqa: F811
    page = offline.open(saved("gpt", tmp_path), "view=vocabulary")
    page.tab.wait_for_function("document.querySelector('canvas.map').dataset.frames > 0")
    frames = "Number(document.querySelector('canvas.map').dataset.frames)"
    box = page.tab.locator("canvas.map").bounding_box()
    drawn = page.tab.evaluate(frames)
    page.tab.mouse.move(box["x"] + 200, box["y"] + 200)
    page.tab.mouse.wheel(0, -400)
    page.tab.wait_for_function(f"{frames} > {drawn}")
    drawn = page.tab.evaluate(frames)
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] + 300, box["y"] + 260, steps=3)
    page.tab.mouse.up()
    page.tab.wait_for_function(f"{frames} > {drawn}")
    assert "word=" not in page.tab.url  # a drag chooses nothing
    assert page.errors == []
