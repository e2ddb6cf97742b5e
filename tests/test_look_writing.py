"""`look`, the view "writing": its numbers are those with which the model writes, cuts and searches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig
from allyouneed.decode import sample
from allyouneed.errors import UserError
from allyouneed.predict.answers import Prompt, request_for
from allyouneed.run import Run
from browser import Watched, browsing, offline, serving  # noqa: F401  (a fixture)
from families import FAMILIES, made

WRITE = ("gpt", "lstm", "elmo", "transformer", "seq2seq", "convseq2seq")
SETTINGS = [(0.5, 0, 1.0), (1.0, 5, 1.0), (2.0, 0, 0.55), (1.3, 20, 0.8), (0.0, 0, 1.0), (0.8, 3, 0.0)]


@pytest.fixture(autouse=True)
def _soon(request: pytest.FixtureRequest) -> None:
    """What a page does not show at once, it does not show."""
    if "offline" in request.fixturenames:
        request.getfixturevalue("offline").tab.set_default_timeout(8000)


def asked(name: str) -> str:
    return str(FAMILIES[name][2][0])


def saved(run: Run, text: str, folder: Path, **decode: Any) -> Path:
    return run.look(text, **decode).save(folder / "page.html")


def written(run: Run, text: str, **decode: Any) -> tuple[dict[str, Any], Tensor]:
    """What the page says, and the logits (T, V) of its steps."""
    view = run.view(text, **decode)
    shown = view.shown["writing"]
    given, _ = run.read(text, **decode)
    lead = given if shown["translates"] else replace(given, ids=given.ids[: len(shown["before"])])
    return shown, run.predictor.steps(lead, shown["tokens"])


def shown_part(part: float) -> str:
    """As the page writes a part of 1."""
    value = 100 * part
    if value == 0 or value >= 9.95:
        return f"{value:.1f} %"
    if value >= 0.0995:
        return f"{value:.2f} %"
    return "< 0.0001 %" if value < 0.0001 else f"{value:.{3 if value >= 0.00995 else 4 if value >= 0.000995 else 5}f} %"


def near(text: str, part: float) -> bool:
    """Whether a part is shown so, but for the last bit of a float."""
    return text in {shown_part(part * (1 + e)) for e in (-2e-6, 0.0, 2e-6)}


def weights_of(logits: Tensor, temperature: float, k: int, p: float) -> Tensor:
    """The weights with which `decode/sample.py` draws: its own cut of its own integers."""
    scaled = (logits - logits.max()) / max(temperature, torch.finfo(torch.float32).tiny)
    weight = (scaled.softmax(-1) * 2**sample.WHOLE).long()
    return sample._cut(logits[None], weight[None], torch.tensor([[k]]), torch.tensor([[p]]))[0]


@pytest.mark.parametrize("name", WRITE)
def test_the_steps_are_those_of_the_trace_and_of_the_answer(name):
    run, text = made(name), asked(name)
    shown, logits = written(run, text)
    (answer,) = run.answers([text])
    tokens = shown["tokens"][shown["prompt"] :]
    assert tokens[: len(answer.tokens)] == answer.tokens
    assert len(tokens) == len(answer.tokens) + (answer.reason == "stop")
    each = logits.log_softmax(-1).gather(1, torch.tensor(shown["tokens"])[:, None])[shown["prompt"] :]
    assert float(each.sum()) == pytest.approx(answer.logprob, abs=1e-3)
    (traced,) = run.trace(text, "logits").values()  # of a language model while it reads, of others while they write
    steps = min(len(traced.value), len(logits))
    inside = logits.isfinite()[:steps]
    both = [one[:steps, : logits.shape[1]][inside] for one in (traced.value, logits)]
    torch.testing.assert_close(*both, atol=1e-4, rtol=1e-4)


def test_steps_at_the_limit_of_a_model():
    run = made("gpt")
    limit, predictor = run.model.limit or 32, run.predictor
    tokens = [5] * limit
    assert len(predictor.steps(Prompt([5], limit), tokens)) == limit


@pytest.mark.parametrize("name", ["gpt", "lstm", "transformer"])
def test_what_is_kept_is_what_the_sampler_keeps(name, tmp_path, offline):  # noqa: F811
    run, text = made(name), asked(name)
    shown, logits = written(run, text)
    step = len(logits) - 2
    path = saved(run, text, tmp_path)
    own = logits[step].double().softmax(-1)
    order = logits[step].sort(descending=True, stable=True).indices
    entropy = float(-(own * own.log2()).nan_to_num().sum())
    for temperature, k, p in SETTINGS:
        page = offline.open(path, f"view=writing&step={step}&temperature={temperature:g}&k={k}&p={p:g}&rows=50")
        page.tab.reload()
        page.tab.wait_for_selector("table.dist tbody tr")
        drawn = weights_of(logits[step], temperature, k, p)
        if temperature == 0:
            drawn = torch.zeros_like(drawn).index_fill(0, logits[step].argmax()[None], 1)
        now = drawn.double() / drawn.sum()
        count = len(now) if not k and p == 1 and temperature > 0 else int((drawn > 0).sum())
        assert page.text("[data-count]").removeprefix("all ").replace(",", "") == str(count)
        rows = order[:50].tolist()
        words = page.texts("table.dist tbody tr:not(.rest) .word")
        assert [word.replace("·", " ") for word in words[:20]] == [
            run.predictor.tokenizer.token(id).replace("\n", "↵") for id in rows[:20]
        ]
        for was, after, id in zip(page.texts("[data-was]"), page.texts("[data-now]"), rows):
            assert near(was, float(own[id])), (temperature, k, p)
            assert (after == "cut") == (drawn[id] == 0 and count < len(now)), (temperature, k, p)
            assert after == "cut" or near(after, float(now[id])), (temperature, k, p, after)
        chosen = shown["tokens"][step]
        assert near(page.text("[data-probability]"), float(own[chosen]))
        rank = order.tolist().index(chosen) + 1
        assert page.text("[data-rank]") == f"{rank:,} of {len(own):,}"
        assert float(page.text("[data-entropy]").split()[0]) == pytest.approx(entropy, abs=6e-4)
        left = float(-(now * now.log2()).nan_to_num().sum())
        assert float(page.text("[data-left-entropy]").split()[0]) == pytest.approx(left, abs=6e-4)
    assert page.errors == []


def test_of_a_large_vocabulary_the_rest_is_exact_and_a_far_cut_is_said(tmp_path, offline, monkeypatch):  # noqa: F811
    import allyouneed.look.writing as writing

    monkeypatch.setattr(writing, "SMALL", 10)
    monkeypatch.setattr(writing, "STORED", 20)
    run, text = made("gpt"), asked("gpt")
    shown, logits = written(run, text)
    path = saved(run, text, tmp_path)
    own = logits[3].double().softmax(-1)
    for temperature in (0.5, 1.0, 2.0):
        page = offline.open(path, f"view=writing&step=3&temperature={temperature:g}&p=1&k=0")
        page.tab.reload()
        page.tab.wait_for_selector("table.dist tbody tr")
        now = (logits[3].double() / temperature).softmax(-1)
        values = [float(one) for one in now.sort(descending=True).values[:12]]
        assert all(near(text, value) for text, value in zip(page.texts("[data-now]"), values))
        left = float(-(now * now.log2()).nan_to_num().sum())
        assert float(page.text("[data-left-entropy]").split()[0]) == pytest.approx(left, abs=6e-4)
        entropy = float(-(own * own.log2()).nan_to_num().sum())
        assert float(page.text("[data-entropy]").split()[0]) == pytest.approx(entropy, abs=6e-4)
        assert near(page.text("[data-probability]"), float(own[shown["tokens"][3]]))
    page = offline.open(path, "view=writing&step=3&p=0.99")
    page.tab.reload()
    page.tab.wait_for_selector("table.dist tbody tr")
    assert page.text("[data-count]") == "more than 20"
    assert set(page.texts("[data-now]")) == {"—"}
    assert page.errors == []


def test_sliders_move_by_keys_and_a_token_is_chosen_by_arrows(tmp_path, offline):  # noqa: F811
    page = offline.open(saved(made("gpt"), asked("gpt"), tmp_path), "view=writing&step=1")
    page.tab.locator("input[aria-label='top-k']").focus()
    page.tab.keyboard.press("Home")
    assert page.text("[data-count]") == "1"
    assert page.tab.locator("table.dist tr.cut").count() > 0
    assert (
        page.tab.locator("tr.cut .word").first.evaluate("e => getComputedStyle(e).textDecorationLine") == "line-through"
    )
    page.tab.locator(".tokens .token[aria-pressed=true]").focus()
    page.tab.keyboard.press("ArrowRight")
    assert "step=2" in page.tab.url
    assert page.tab.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    assert page.errors == []


TOKENS = "[aria-label='the tokens as they were written'] .token"


@pytest.mark.parametrize("name", ["lstm", "gpt"])
def test_the_first_tokens_of_a_long_prompt_are_behind_a_button(name, tmp_path, offline):  # noqa: F811
    run, text = made(name), " ".join(["The dog sleeps in the garden."] * (20 if name == "lstm" else 2))
    shown, _ = written(run, text)
    answer, given = shown["tokens"][shown["prompt"] :], len(shown["before"]) + shown["prompt"]
    assert (given > 60) == (name == "lstm")
    path = saved(run, text, tmp_path)
    page = offline.open(path, "view=writing")
    whole = [visible(run, id) for id in [*run.read(text)[0].ids, *answer]]
    if name == "lstm":
        assert page.texts(TOKENS) == whole[given - 30 :]
        page.tab.get_by_text(f"… {given - 30} tokens before").click()
        assert page.tab.evaluate("[scrollY, document.activeElement.ariaPressed]") == [0, "true"]
    assert page.texts(TOKENS) == whole
    assert page.tab.locator("[data-folded]").count() == 0
    page.open(path, "view=writing&step=0")  # a token that would be behind the button is chosen
    assert page.texts(TOKENS) == whole
    assert page.errors == []


@pytest.mark.parametrize("name", ["transformer", "seq2seq", "gpt"])
def test_the_best_branch_of_the_tree_is_the_answer_of_the_beam_search(name, tmp_path, offline):  # noqa: F811
    run, texts = made(name), FAMILIES[name][2]
    decode: dict[str, Any] = {"method": "beam", "beam": 4}
    answers = zip(texts, run.answers(texts, **decode))
    text = next(text for text, answer in answers if answer.tokens)  # one may be empty
    (answer,) = run.answers([text], **decode)  # alone, as the tree is made: so every bit is the same
    page = offline.open(saved(run, text, tmp_path, **(decode if name == "gpt" else {})), "view=writing")
    beams = run.view(text, **(decode if name == "gpt" else {})).shown["beams"]
    path, at = [], beams["winner"]
    while at >= 0:
        path.insert(0, at)
        at = beams["nodes"][at]["parent"]
    ended = answer.reason == "stop"
    words = [beams["nodes"][i]["token"] for i in path]
    assert words[: len(answer.tokens)] == [run.predictor.tokenizer.token(id) for id in answer.tokens]
    assert len(words) == len(answer.tokens) + ended
    best = beams["nodes"][beams["winner"]]
    assert (best["logprob"], best["score"]) == (answer.logprob, answer.score)
    assert float(page.text("[data-logprob]").replace("−", "-")) == pytest.approx(answer.logprob, abs=6e-5)
    assert float(page.text("[data-score]").replace("−", "-")) == pytest.approx(answer.score, abs=6e-5)
    assert page.text(".branch-text").strip() == "".join(words).replace("\n", "↵ ").strip()
    assert page.tab.locator(".beams .node").count() == len(beams["nodes"])
    assert page.tab.locator(".beams .node.wins").count() == len(path)
    scores = [
        float(one.removeprefix("= ").replace("−", "-")) for one in page.tab.locator(".beams .score").all_text_contents()
    ]
    assert max(scores) == pytest.approx(answer.score, abs=6e-3)
    page.tab.locator(f"[data-node='{beams['winner']}']").focus()
    page.tab.keyboard.press("ArrowLeft")
    parent = beams["nodes"][path[-2]]["logprob"]
    assert float(page.text("[data-logprob]").replace("−", "-")) == pytest.approx(parent, abs=6e-5)
    assert page.errors == []


def test_finished_hypotheses_are_those_of_the_search():
    """Each finished node is a hypothesis that n_best answers would have; their scores come from the same search."""
    run, text = made("transformer"), asked("transformer")
    answers = run.answers([text], method="beam", beam=4, n_best=4)[0]
    nodes = run.view(text, method="beam", beam=4, n_best=4).shown["beams"]["nodes"]
    scores = sorted((node["score"] for node in nodes if node["score"] is not None), reverse=True)
    assert scores[:4] == [one.score for one in (answers, *answers.others)]


def test_a_saved_page_says_what_only_a_live_one_can(tmp_path, offline):  # noqa: F811
    page = offline.open(saved(made("gpt"), asked("gpt"), tmp_path), "view=writing")
    assert "live page" in page.text("[data-live-only]")
    assert page.tab.locator("table.dist button").count() == 0


def continued(run: Run, text: str, tokens: list[int]) -> list[int]:
    """The likeliest tokens after these, with which the answer begins, step by step."""
    given, decode = run.read(text, method="greedy")
    ends = request_for(given, decode, run.predictor.tokenizer.eos).stop
    tokens = list(tokens)
    text = run.predictor.tokenizer.decode
    while len(tokens) < given.max_new and tokens[-1] not in ends and not any(s in text(tokens) for s in decode.stop):
        tokens.append(int(run.predictor.steps(given, [*tokens, 0])[-1].argmax()))
    return tokens


@pytest.mark.parametrize("name", ["gpt", "lstm", "transformer", "convseq2seq"])
def test_another_token_of_a_live_page_is_gone_on_from(name):
    run, text = made(name), asked(name)
    shown, logits = written(run, text)
    step = min(shown["prompt"] + 1, len(logits) - 1)
    other = int(logits[step].topk(3).indices[2])
    begun = [*shown["tokens"][shown["prompt"] : step], other]
    expected = continued(run, text, begun)
    with serving(run) as address, browsing(viewport={"width": 1280, "height": 900}) as page:
        page.tab.set_default_timeout(8000)
        page.open(address, f"view=writing&step={step}&temperature=0&text={text}")
        page.tab.locator(f"table.dist button[data-id='{other}']").click()
        page.tab.wait_for_selector(".note button")
        words = page.texts("[aria-label='the tokens as they were written'] button")
        assert words[shown["prompt"] :] == [visible(run, id) for id in expected]
        assert page.tab.locator("tr.chosen button").first.get_attribute("data-id") == str(other)
        page.tab.get_by_text("back to the run's answer").click()
        page.tab.wait_for_selector(".note", state="detached")
        assert page.errors == []


@pytest.mark.parametrize("name", ["gpt", "transformer"])
def test_a_link_to_an_answer_that_was_written_on_asks_for_it_again(name):
    run, text = made(name), asked(name)
    with serving(run) as address, browsing(viewport={"width": 1280, "height": 900}) as page:
        page.tab.set_default_timeout(8000)
        page.open(address, f"view=writing&temperature=2&seed=5&text={text}")
        first = page.texts(TOKENS)
        page.tab.locator("table.dist button").nth(3).click()
        page.tab.get_by_text("written on from").wait_for()
        page.tab.locator(f"{TOKENS} >> nth=-2").click()
        page.tab.get_by_text("write on with these settings").click()
        page.tab.get_by_text("written anew").wait_for()
        note, words, link = page.text(".card .note"), page.texts(TOKENS), page.tab.url
        chosen = page.text("h2 .chosen")
        assert words != first
        page.tab.goto("about:blank")
        page.open(link)
        page.tab.get_by_text("written anew").wait_for()
        assert (page.text(".card .note"), page.texts(TOKENS), page.text("h2 .chosen")) == (note, words, chosen)
        page.tab.get_by_text("back to the run's answer").click()
        page.tab.wait_for_selector(".card .note", state="detached")
        assert page.texts(TOKENS) == first
        assert "on=" not in page.tab.url
        page.open(link)  # pasted into the address of an open page
        page.tab.get_by_text("written anew").wait_for()
        assert page.texts(TOKENS) == words
        page.tab.fill("textarea", asked(name) + " The")
        page.tab.get_by_role("button", name="Look", exact=True).click()
        page.tab.wait_for_selector(".card .note", state="detached")
        assert "on=" not in page.tab.url
        page.open(link)  # of another text than the one that is shown
        page.tab.get_by_text("written anew").wait_for()
        assert (page.texts(TOKENS), page.tab.locator("textarea").input_value()) == (words, text)
        assert page.errors == []
        page.open(address, f"view=writing&on=99_1&text={text}")
        assert "no step 99" in page.tab.locator("[role=alert]").inner_text()
        assert page.texts(TOKENS) == first


def test_a_pasted_address_replaces_all_that_was_chosen():
    run = made("gpt")
    with serving(run) as address, browsing() as page:
        page.tab.set_default_timeout(8000)
        page.open(address, "view=writing&step=2&temperature=0.5&k=3&rows=50&text=The dog sleeps")
        assert page.text("[data-count]") == "3"
        page.open(address, "view=writing&step=1&text=The dog sleeps")
        page.tab.get_by_text("Step 2 of").wait_for()
        assert page.text("[data-count]") == f"all {len(run.predictor.tokenizer)}"
        assert page.tab.locator("table.dist tbody tr:not(.rest)").count() < 15
        page.tab.locator(TOKENS).nth(3).click()  # the first one is read, and has no step
        assert page.tab.url.partition("#")[2] == "view=writing&step=2&text=The+dog+sleeps"
        page.open(address, "text=The old woman")  # another text
        page.tab.locator("mark").wait_for()
        assert page.tab.locator("mark").text_content() == run.predict("The old woman")
        assert page.tab.locator("textarea").input_value() == "The old woman"
        assert page.errors == []


def test_a_saved_page_cannot_write_on(tmp_path, offline):  # noqa: F811
    page = offline.open(saved(made("gpt"), asked("gpt"), tmp_path), "view=writing&on=1_5")
    assert "only the live page" in page.text("[role=alert]")
    assert page.tab.locator("table.dist tbody tr").count() > 1


def visible(run: Run, id: int) -> str:
    return run.predictor.tokenizer.token(id).replace("\n", "↵").replace(" ", "·") or "∅"


def test_writing_on_is_a_function_of_its_settings_and_its_seed():
    run, text = made("gpt"), asked("gpt")
    view = run.view(text)
    settings = {"step": 1, "temperature": 2, "top_k": 50, "top_p": 0.9}
    several = [view.ask("write on", json.dumps({**settings, "seed": seed})) for seed in (1, 2, 3, 1)]
    texts = [one.shown["writing"]["tokens"] for one in several]
    assert texts[0] == texts[3]
    anew = view.ask("write on", json.dumps(settings))
    assert anew.shown["writing"]["decode"] == view.shown["writing"]["decode"]  # of the run
    assert len({tuple(one) for one in texts}) > 1
    given, decode = run.read(text, method="sample", temperature=2.0, top_k=50, top_p=0.9, seed=1)
    ids = given.ids[:2]
    (answer,) = run.predictor.answers([replace(given, ids=ids)], decode)
    assert texts[0][1 : 1 + len(answer.tokens)] == answer.tokens  # type: ignore[union-attr]


def test_what_cannot_be_gone_on_from_is_a_sentence():
    client = pytest.importorskip("fastapi.testclient")
    from allyouneed.serve import app

    page = client.TestClient(app([made("gpt")]), base_url="http://localhost")
    key = page.get("/look/0?text=The dog").json()["key"]
    assert page.post(f"/look/0/{key}/write on", json={"step": 0}).status_code == 200
    for at, asks, says in (
        (f"0/{key}", {"step": 99}, "there is no step 99"),
        (f"0/{key}", {"step": 0, "token": 100000}, "no token 100000"),
        (f"0/{key}", {"step": 0, "temperature": "x"}, "is not a number"),
        (f"0/{key}", {"step": 0, "top_p": 7}, "top_p"),
        ("0/77", {"step": 0}, "no longer here"),
        (f"5/{key}", {"step": 0}, "no run 5"),
    ):
        answer = page.post(f"/look/{at}/write on", json=asks)
        assert answer.status_code == 400
        assert says in answer.json()["error"]["message"]


def test_the_end_is_the_one_that_was_written():
    """Of several tokens that may end an answer, the one that has."""
    run, decode = made("gpt"), DecodeConfig(method="sample", temperature=1.5, seed=3)
    given, _ = run.read(asked("gpt"))
    several = replace(given, stop=frozenset(range(3, 60)), max_new=30)
    (answer,) = run.predictor.answers([several], decode)
    assert not isinstance(answer, Exception)
    assert answer.reason == "stop"
    assert answer.end in several.stop
    whole = answer.whole
    assert whole == [*answer.tokens, answer.end]
    each = run.predictor.steps(given, whole).log_softmax(-1).gather(1, torch.tensor(whole)[:, None])
    assert float(each.sum()) == pytest.approx(answer.logprob, abs=1e-4)
    assert replace(answer, end=None).whole == answer.tokens
    (best,) = made("transformer").answers([asked("transformer")], method="beam", max_new=40)
    assert (best.end == made("transformer").processor.tokenizer.eos) == (best.reason == "stop")


CUT = """async ([steps, temperatures]) => {
  const { cut } = await import("look/sampling.js");
  return steps.map(([logits, others, vocab, settings]) => {
    const { now, kept } = cut({ logits: Float32Array.from(logits), others, vocab }, temperatures, settings);
    return [now && Array.from(now), kept === Infinity ? -1 : kept];
  });
}"""


def test_the_page_cuts_ties_and_what_is_not_stored_as_the_sampler_does(tmp_path, offline):  # noqa: F811
    import allyouneed.look.writing as writing

    page = offline.open(saved(made("gpt"), asked("gpt"), tmp_path), "view=writing")
    rng, steps, expected = torch.Generator().manual_seed(1), [], []
    for n in range(60):
        logits = (3 * torch.randn(40, generator=rng)).round() if n % 2 else torch.zeros(40)  # many are equal
        temperature, k, p = (0.5, 1.0, 2.0)[n % 3], (0, 4, 8, 30)[n % 4], (0.0, 0.25, 0.5, 0.9, 1.0)[n % 5]
        order = logits.sort(descending=True, stable=True).indices
        stored = (40, 20)[n // 5 % 2]
        others = writing._others(logits[order[stored:]], logits.max().double(), [0.5, 1.0, 2.0])
        weights = weights_of(logits, temperature, k, p)[order]
        settings = {"temperature": temperature, "k": k, "p": p}
        top = [max(-1e9, value) for value in logits[order[:stored]].tolist()]
        steps.append([top, [max(-1e9, x) for x in others.flatten().tolist()], 40, settings])
        expected.append(weights)
    seen = 0
    for (top, _, _, settings), weights, (now, count) in zip(
        steps, expected, page.tab.evaluate(CUT, [steps, [0.5, 1.0, 2.0]]), strict=True
    ):
        true = int((weights > 0).sum())
        if now is None:
            assert len(top) < 40
            assert count <= true, settings
            assert true > len(top) or settings["k"] > len(top), settings  # nothing is hidden that could be known
            continue
        seen += 1
        assert count == true, settings
        left = (weights.double() / weights.sum())[: len(top)]
        torch.testing.assert_close(torch.tensor(now, dtype=torch.double), left, atol=1e-6, rtol=0)
    assert 30 < seen < 60


# Drawings


@pytest.fixture(scope="module")
def drawing() -> Run:
    return made("dalle")


@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, 2.5])
def test_the_codes_of_a_drawing_are_chosen_from_what_the_page_shows(drawing, guidance):
    view = drawing.view(asked("dalle"), method="greedy", guidance=guidance)
    shown, answer = view.shown["writing"], view.shown["answer"]
    assert shown["tokens"] == answer["details"]["codes"]
    assert shown["ranks"] == [0] * len(shown["tokens"])  # of the mixed logits, each is the likeliest
    given, _ = drawing.read(asked("dalle"), guidance=guidance)
    logits = drawing.predictor.steps(given, shown["tokens"])
    assert shown["own"] == logits.max(-1).values.tolist()
    words, codes = torch.tensor([drawing.model.prompt(given.ids)]), torch.tensor([shown["tokens"]])
    _, asking = drawing.model(words, codes)
    _, free = drawing.model(torch.tensor([drawing.model.prompt([])]), codes)
    mixed = free + guidance * (asking - free)
    torch.testing.assert_close(logits, mixed[0].detach(), rtol=0, atol=1e-5)
    tokenizer = drawing.processor.image_tokenizer
    image = tokenizer.decode(np.array([shown["tokens"]]))[0]
    assert bytes_of(view, shown["drawing"]["image"])[..., :3].tolist() == image.tolist()
    alone = tokenizer.decode(np.full((1, len(shown["tokens"])), 5))[0]
    side = len(image) // shown["drawing"]["grid"]
    at = shown["drawing"]["grid"] // 2 * side
    patches = bytes_of(view, shown["drawing"]["patches"])[5 * side : 6 * side, :, :3]
    assert patches.tolist() == alone[at : at + side, at : at + side].tolist()


def bytes_of(view: Any, ref: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(view.piece(ref["piece"]), np.uint8).reshape(ref["shape"])


@pytest.mark.slow
def test_a_drawing_goes_on_from_another_code(drawing):
    view = drawing.view(asked("dalle"), method="greedy", guidance=2.0)
    tokens = view.shown["writing"]["tokens"]
    other = drawing.ask(view, "write on", json.dumps({"step": 4, "token": 7})).shown["writing"]
    assert other["tokens"][:5] == [*tokens[:4], 7]
    assert len(other["tokens"]) == len(tokens)
    assert other["ranks"][5:] == [0] * (len(tokens) - 5)
    last = drawing.ask(view, "write on", json.dumps({"step": len(tokens) - 1, "token": 3})).shown["writing"]
    assert last["tokens"] == [*tokens[:-1], 3]
    own = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 3}
    drawn = drawing.ask(view, "write on", json.dumps({"step": 0, **own})).shown["writing"]["tokens"]
    (answer,) = drawing.answers(asked("dalle"), method="sample", guidance=2.0, **own)
    assert drawn == answer.tokens
    with pytest.raises(UserError, match="no token"):
        drawing.ask(view, "write on", json.dumps({"step": 4, "token": 10**6}))


@pytest.mark.slow
def test_a_drawing_is_written_on_in_the_browser(drawing):
    with serving(drawing) as address, browsing(viewport={"width": 1280, "height": 900}) as page:
        page.open(address, f"view=writing&step=4&text={asked('dalle')}")
        page.tab.wait_for_selector(".codes .code[aria-pressed=true]")
        written = page.texts(".codes .code")
        painted = "Array.from(document.querySelector('.figure canvas').getContext('2d').getImageData(0,0,256,256).data)"
        grid = drawing.view(asked("dalle")).shown["writing"]["drawing"]["grid"]
        seen = np.array(page.tab.evaluate(painted)).reshape(256, 256, 4)[
            256 // grid // 2 :: 256 // grid, 128 // grid :: 256 // grid
        ]
        assert (seen[..., 3].flatten()[: grid**2] > 0).tolist() == [at < 5 for at in range(grid**2)]  # up to the code
        row = page.tab.locator("table.dist tr", has=page.tab.locator("[data-id]")).nth(2)
        code = row.locator("[data-id]").inner_text()
        assert row.locator("canvas").count() == 1  # its patch
        row.locator("[data-id]").click()
        page.tab.wait_for_selector(".note:has-text('written on from')")
        assert page.texts(".codes .code")[:5] == [*written[:4], code]
        assert page.errors == []
