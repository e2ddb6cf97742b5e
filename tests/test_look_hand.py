"""By hand: the numbers of every step on the page are those of the trace, and those that torch computes again."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed.look import page as pages
from allyouneed.run import Run, train
from browser import Watched, offline  # noqa: F401  (a fixture)
from families import ATTENDS, BOOK, FAMILIES, IMAGES, SMALL, made

# Like the families, with settings that they do not have.
OTHERS = {
    "grouped": ("gpt", (*ATTENDS, "model.heads=4", "model.kv_heads=2", "model.positions=rotary")),
    "cosine": ("gpt", (*ATTENDS, "model.score=cosine")),
    "parameter_free": ("gpt", (*ATTENDS, "model.score=parameter_free")),
    "general": ("attention", ("model.score=general",)),
    "dot": ("attention", ("model.score=dot",)),
    "deep": ("attention", ("model.cell=lstm", "model.layers=2", "model.memory=mix")),
    "gumbel": ("dvae", (*BOOK, "model.codebook=gumbel")),
}


@cache
def run_of(name: str) -> Run:
    if name not in OTHERS:
        return made(name)
    recipe, settings, _ = FAMILIES[OTHERS[name][0]]
    out = Path(tempfile.mkdtemp(prefix=f"{name}-")) / "run"
    return train(recipe, *SMALL, *settings, *OTHERS[name][1], out=out, quiet=True)


def asked(name: str) -> Any:
    return FAMILIES[OTHERS[name][0] if name in OTHERS else name][2][0]


def hand(tab: Watched, name: str, folder: Path, choice: str) -> Watched:
    """The page of a run, where the first step is there."""
    path = run_of(name).look(asked(name)).save(folder / f"{name}.html")
    tab.open(path, f"view=hand&{choice}")
    tab.tab.wait_for_selector(".step")
    assert tab.errors == []
    return tab


def number(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


def read(page: Watched, selector: str) -> list[float]:
    return [number(text) for text in page.texts(selector)]


def rounded(values: Any) -> Any:
    """As far as four digits tell."""
    return pytest.approx([float(value) for value in values], rel=6e-4, abs=2e-5)


def exactly(values: Any) -> Any:
    return pytest.approx([float(value) for value in values], rel=1e-4, abs=1e-5)


def every(page: Watched, step: str, column: int = 0) -> list[float]:
    """What "all numbers" of a step lists."""
    box = page.tab.locator(f"[data-step={step}] details.every").last
    if box.get_attribute("open") is None:
        box.locator("summary").click()
    box.locator("td").first.wait_for()
    return [number(text) for text in box.locator(f"tr td:nth-child({column + 2})").all_inner_texts()]


ATTENTION = [
    ("gpt", 1, 1, 0),
    ("bert", 0, 1, 2),
    ("transformer", 0, 0, 1),
    ("transformer", 3, 1, 1),
    ("attention", 0, 0, 2),
    ("convseq2seq", 1, 0, 1),
    ("vit", 1, 1, 3),
    ("grouped", 1, 3, 2),
    ("cosine", 0, 1, 2),
    ("parameter_free", 0, 1, 2),
    ("general", 0, 0, 1),
    ("dot", 0, 0, 1),
    pytest.param("dalle", 0, 1, 20, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "layer", "head", "token"), ATTENTION)
def test_attention_is_that_of_the_trace(name, layer, head, token, tmp_path, offline):  # noqa: F811
    page = hand(offline, name, tmp_path, f"layer={layer}&head={head}&token={token}&rows=all")
    run, found = run_of(name), run_of(name).trace(asked(name))
    path = [one.removesuffix(".weights") for one in found if one.endswith(".weights")][layer]
    scores, weights, heads = (found[f"{path}.{kind}"].value for kind in ("scores", "weights", "heads"))
    blocked = scores[head, token].isneginf()
    assert [text == "−∞" for text in page.texts("table.keys .mask")] == blocked.tolist()
    last = "score" if page.tab.locator("table.keys .score").count() else "dot"
    shown = read(page, f"table.keys .{last}")
    assert [shown[i] for i in (~blocked).nonzero().flatten()] == rounded(scores[head, token][~blocked])
    assert read(page, "table.keys .weight") == rounded(weights[head, token])
    assert read(page, "table.keys .exp") == rounded(scores[head, token].double().exp())
    assert every(page, "query") == exactly(found[f"{path}.queries"].value[head, token])
    assert every(page, "values") == exactly(heads[head, token])
    module = run.model.get_submodule(path)
    out = getattr(module, "out", None)
    if out is not None:
        with torch.inference_mode():
            given = out(heads[:, token].flatten().to(out.weight))
        several = len(heads)
        assert every(page, "sum", several + (out.bias is not None)) == exactly(given)
        assert every(page, "sum", head) == exactly(
            torch.nn.functional.linear(heads[head, token], out.weight.detach().chunk(several, 1)[head])
        )
        assert read(page, "[data-step=sum] .given") == rounded(given[:1])


def test_one_score_is_the_sum_of_its_products(tmp_path, offline):  # noqa: F811
    page = hand(offline, "gpt", tmp_path, "layer=0&head=1&token=2&seen=1")
    found = run_of("gpt").trace(asked("gpt"))
    q, k = (found[f"body.stack.blocks.0.attention.{kind}"].value[1] for kind in ("queries", "keys"))
    assert read(page, "[data-step=score] .dot") == rounded([q[2] @ k[1]])
    assert read(page, "[data-step=score] .score") == rounded([q[2] @ k[1] / 8**0.5])
    terms = read(page, "[data-step=score] .term .number")
    assert terms == rounded(torch.stack([q[2, :3], k[1, :3]], 1).flatten())
    page.tab.locator("table.keys button").nth(0).click()  # another key
    page.tab.wait_for_selector("tr.pinned[data-seen='0']")
    assert read(page, "[data-step=score] .dot") == rounded([q[2] @ k[0]])


def test_a_step_is_copied_with_all_digits(tmp_path, offline):  # noqa: F811
    offline.tab.add_init_script(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: (text) => {window.copied = text}}})"
    )
    page = hand(offline, "gpt", tmp_path, "layer=0&head=1&token=1")
    found = run_of("gpt").trace(asked("gpt"))
    scores, weights = (found[f"body.stack.blocks.0.attention.{kind}"].value[1, 1] for kind in ("scores", "weights"))
    page.tab.locator("[data-step=softmax] button", has_text="CSV").click()
    heading, *rows = page.tab.evaluate("copied").splitlines()
    assert heading == ",product,score,masked,exp,weight"
    assert [float(row.split(",")[-3]) for row in rows] == exactly(scores)  # -inf where a query may not look
    assert [float(row.split(",")[-1]) for row in rows] == exactly(weights)
    page.tab.locator("[data-step=softmax] button", has_text="NumPy").click()
    assert "-np.inf" in page.tab.evaluate("copied")


CELLS = [
    ("rnn", 0, 1),
    ("lstm", 0, 2),
    ("tag-lstm", 1, 0),
    ("seq2seq", 0, 1),
    ("seq2seq", 2, 0),
    ("attention", 2, 1),
    ("deep", 4, 0),
    ("deep", 5, 2),
    ("tag-elmo", 3, 1),
    ("tag-elmo", 5, 1),
]
SIGNS = {"lstm": "ifo", "gru": "rz", "rnn": ""}


@pytest.mark.parametrize(("name", "cell", "token"), CELLS)
def test_a_cell_gives_the_gates_and_the_state_of_the_trace(name, cell, token, tmp_path, offline):  # noqa: F811
    page = hand(offline, name, tmp_path, f"step=cells&cell={cell}&token={token}&unit=3")
    run, found = run_of(name), run_of(name).trace(asked(name))
    one = run.view(asked(name)).shown["hand"]["cells"][cell]
    layer = f"{one['path']}.layers.{one['layer'] - 1}"
    side = int(one["backward"]) if one["directions"] == 2 else 0
    state = found[f"{layer}.layers"].value[token].chunk(one["directions"])[side]
    for i, sign in enumerate(SIGNS[one["cell"]]):
        gate = found[f"{layer}.gates"].value[token, side, i]
        assert every(page, f"block-{sign}") == exactly(gate)
        assert read(page, f"[data-step=block-{sign}] .sum .block-{sign}") == rounded([gate[3]])
    assert every(page, "block-h" if one["cell"] == "rnn" else "state") == exactly(state)


def test_the_sums_of_a_unit_are_those_of_its_rows(tmp_path, offline):  # noqa: F811
    page = hand(offline, "lstm", tmp_path, "step=cells&token=1&unit=2&sums=f")
    run, found = run_of("lstm"), run_of("lstm").trace(asked("lstm"))
    layer = run.model.body.recurrent.layers[0]
    x, h = found["body.embeddings"].value[1], found["body.recurrent.layers.0.layers"].value[0]
    at = run.recipe.model.width + 2  # the row of the forget gate
    with torch.inference_mode():
        sums = [layer.weight_ih_l0[at] @ x + layer.bias_ih_l0[at], layer.weight_hh_l0[at] @ h + layer.bias_hh_l0[at]]
    assert read(page, "[data-step=block-f] details[open] .products .sum b .number") == rounded(sums)


def test_word2vec_multiplies_and_compares_vectors(tmp_path, offline):  # noqa: F811
    page = hand(offline, "word2vec", tmp_path, "")
    run = run_of("word2vec")
    model, token = run.model, run.predictor.tokenizer.token
    (id,) = run.predictor.tokenizer.encode("king")
    ids = model.counts.nonzero().flatten()
    with torch.inference_mode():
        scores = model.inputs.weight[id].double() @ model.outputs.weight[ids].double().T
        cosines = torch.nn.functional.cosine_similarity(model.inputs.weight[id][None], model.inputs.weight[ids])
    names = page.texts("[data-step=softmax] tbody th")
    where = [[token(int(i)) for i in ids].index(name) for name in names]
    assert len(names) == 20
    assert read(page, "[data-step=softmax] .dot") == rounded(scores[where])
    assert read(page, "[data-step=softmax] .p") == rounded(scores.softmax(0)[where])
    assert read(page, "[data-step=softmax] .total") == rounded([scores.exp().sum()])
    names = page.texts("[data-step=cosine] tbody th")
    where = [[token(int(i)) for i in ids].index(name) for name in names]
    assert read(page, "[data-step=cosine] tbody .cosine") == rounded(cosines[where])
    assert names == [one["word"] for one in run.view("king").shown["answer"]["details"]["nearest"]]


@pytest.mark.parametrize("name", ["vit", pytest.param("dvae", marks=pytest.mark.slow)])
def test_the_pixels_of_a_patch_become_its_vector(name, tmp_path, offline):  # noqa: F811
    page = hand(offline, name, tmp_path, "step=patches&token=11&unit=5")
    found = run_of(name).trace(IMAGES[0])
    x = found["body.embeddings" if name == "vit" else "into.embeddings"].value[11]
    assert every(page, "vector", 2 if name == "vit" else 0) == exactly(x)
    assert read(page, f"[data-step=unit] .{'value' if name == 'vit' else 'product'}") == rounded([x[5]])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dvae", "gumbel"])
def test_scores_become_the_code_of_a_patch(name, tmp_path, offline):  # noqa: F811
    page = hand(offline, name, tmp_path, "step=codes&token=6")
    found = run_of(name).trace(IMAGES[0])
    scores, code = found["choose.logits"].value[6], int(found["codes"].value.flatten()[6])
    if name == "gumbel":
        assert page.text("[data-step=digits] tr.pinned th") == str(code)
        assert read(page, "[data-step=digits] .score") == rounded(scores.sort(descending=True)[0][:10])
    else:
        assert read(page, "[data-step=digits] .score") == rounded(scores)
        assert read(page, "[data-step=digits] .number.level") == rounded((scores.tanh() + 1) / 2 * 2)
        assert read(page, "[data-step=code] .code") == [code]
    assert every(page, "decode") == exactly(found["unfold.embeddings"].value[6])


def test_the_choice_is_that_of_the_attention_view_and_keys_read_numbers(tmp_path, offline):  # noqa: F811
    page = hand(offline, "gpt", tmp_path, "layer=0&head=1&token=2")
    q = run_of("gpt").trace(asked("gpt"))["body.stack.blocks.0.attention.queries"].value[1, 2]
    strip = page.tab.locator("[data-step=query] canvas")
    strip.focus()
    page.tab.keyboard.press("ArrowRight")
    assert number(page.tab.locator("#said").text_content().partition(" = ")[2]) == pytest.approx(float(q[1]), rel=1e-6)
    box = strip.bounding_box()
    page.tab.mouse.move(box["x"] + 2.5 * box["width"] / len(q), box["y"] + 5)
    assert number(page.text(".float").partition(" = ")[2]) == pytest.approx(float(q[2]), rel=1e-6)
    page.tab.locator("[data-key=query-1]").click()
    page.tab.wait_for_selector("[data-key=query-1][aria-pressed=true]")
    assert page.tab.evaluate("document.activeElement.dataset.key") == "query-1"  # the focus stays
    page.tab.locator("[role=tab]", has_text="Attention").click()
    page.tab.wait_for_selector(".tokens .token[aria-pressed=true]")
    assert page.tab.locator(".tokens .token").nth(1).get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize(("name", "choice"), [("gpt", ""), ("lstm", ""), ("word2vec", ""), ("vit", "step=patches")])
def test_numbers_that_are_left_out_are_a_sentence(name, choice, tmp_path, offline, monkeypatch):  # noqa: F811
    monkeypatch.setattr(pages, "BUDGET", -1)
    path = run_of(name).look(asked(name)).save(tmp_path / "page.html")
    page = offline.open(path, f"view=hand&{choice}")
    page.tab.wait_for_selector(".hand .note")
    assert "The live page shows them" in page.text(".hand .note")
    assert page.errors == []
    assert b'data-piece="0/hand.' not in path.read_bytes()
