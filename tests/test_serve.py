"""The server: what existing clients get, and that the answer to a request is what it is alone."""

from __future__ import annotations

import base64
import io
import json
import math
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from allyouneed.data.formats.pixels import to_image
from allyouneed.run import Run, load
from families import CAPTIONS, FAMILIES, made
from serving import Asked, ask_all, serving

pytest.importorskip("fastapi")
openai = pytest.importorskip("openai")
PATHS = {
    "bert": "/fill",
    **dict.fromkeys(("classify-rnn", "classify-conv", "classify-bert"), "/classify"),
    **dict.fromkeys(("tag-lstm", "tag-elmo", "tag-bert"), "/tag"),
    "answer": "/answer",
    "embed": "/embed",
    "word2vec": "/nearest",
    "vit": "/recognize",
    "dvae": "/compress",
    "dalle": "/draw",
}
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def own(name: str) -> Run:
    """A run that no other test has: the server changes how it computes."""
    return load(made(name).folder.path, "cpu")


def in_base64(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    to_image(pixels).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def request_of(rng: random.Random, name: str, model: str) -> Asked:
    """Something that a run of this family can be asked."""
    asks = FAMILIES[name][2]
    given = rng.choice(asks)
    if name == "answer":
        question, context = given.split(" ||| ")
        return "/answer", {"model": model, "question": question, "context": context}
    if name in ("vit", "dvae"):
        return PATHS[name], {"model": model, "image": in_base64(given)}
    if name == "dalle":
        decode = {
            "seed": rng.randrange(5),
            "n_best": rng.choice([1, 2]),
            "method": "sample",
            "guidance": rng.choice([1, 2.0]),
        }
        return "/draw", {"model": model, "input": given, "decode": decode}
    if name in PATHS:
        several = given.split(" ||| ") if name == "embed" else [given]
        if name.startswith(("classify", "tag")):
            several = [
                " ".join(rng.choice(asks) for _ in range(rng.choice([1, 1, 2]))) for _ in range(rng.choice([1, 3]))
            ]
        return PATHS[name], {"model": model, "input": several}
    if name == "gpt":
        given = " ".join(rng.sample(asks[:3], rng.choice([1, 2, 3])))
    body: dict[str, Any] = {"model": model, "prompt": given, "max_tokens": rng.choice([3, 8, 16])}
    how = rng.choice(["greedy", "beam", "sample", "sample"])
    if how == "greedy":
        body["temperature"] = 0
    elif how == "beam":
        body["beam"] = rng.choice([2, 4])
    else:
        body |= {"temperature": 1.0, "seed": rng.randrange(9), "top_k": rng.choice([0, 10]), "n": rng.choice([1, 2])}
    more: list[dict[str, Any]] = [{}, {"stream": True}, {"logprobs": 3}]
    return "/v1/completions", body | rng.choice(more)


def without_id(answer: tuple[int, str]) -> tuple[int, str]:
    return answer[0], re.sub(r'"(id|created)": ?("[^"]*"|\d+)', "", answer[1])


def compare(names: list[str], count: int, clients: int, *, break_it: bool = False) -> int:
    """How many of so many random requests are answered otherwise beside others than alone."""
    runs = [own(name) for name in names]
    with serving(*runs, waiting=4 * clients) as address:
        models = [one["id"] for one in get(address, "/v1/models")["data"]]
        rng = random.Random(7)
        asked = [request_of(rng, names[k], models[k]) for k in (rng.randrange(len(names)) for _ in range(count))]
        if break_it:
            for run in runs:
                depend_on_batch(run.model)
        together, alone = ask_all(address, asked, clients), ask_all(address, asked, 1)
    assert [(what, answer) for what, answer in zip(asked * 2, together + alone) if answer[0] != 200] == []
    return sum(without_id(one) != without_id(other) for one, other in zip(together, alone))


def depend_on_batch(model: Any) -> None:
    """Logits that are a little different for each number of rows."""
    step = model.step

    def broken(tokens: torch.Tensor, state: Any) -> torch.Tensor:
        logits = step(tokens, state)
        return logits + 0.5 * len(logits) * torch.linspace(-1, 1, logits.shape[1]).sin()

    model.step = broken


def get(address: str, path: str) -> Any:
    import httpx

    return httpx.get(address + path).json()


def post(address: str, path: str, **body: Any) -> Any:
    import httpx

    answer = httpx.post(address + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_answer_beside_others_is_what_it_is_alone():
    assert compare(["gpt", "transformer", "classify-bert", "dalle"], 60, 16) == 0


@pytest.mark.slow
def test_every_family_answers_beside_others_as_alone():
    """64 clients, 2,000 requests of all tasks: greedy, sampled and beam, streamed and not. No byte differs."""
    assert compare(list(FAMILIES), 2000, 64) == 0


def test_a_model_that_looks_at_its_neighbours_is_caught():
    assert compare(["gpt", "transformer"], 60, 16, break_it=True) > 0


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    chats = own("gpt")
    chats.predictor.processor.chat = CHAT
    with serving(chats, own("transformer"), own("bert"), own("dalle")) as found:
        yield found


@pytest.fixture
def client(address: str) -> Any:
    return openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)


@pytest.fixture
def names(address: str) -> dict[str, str]:
    return {one["task"]: one["id"] for one in get(address, "/v1/models")["data"]}


def test_the_openai_client_lists_the_runs(client, names):
    assert {one.id for one in client.models.list()} == set(names.values())
    assert client.models.retrieve(names["lm"]).id == names["lm"]


def test_the_openai_client_continues_a_text(client, names):
    settings = {"model": names["lm"], "prompt": "The dog", "max_tokens": 6}
    whole = client.completions.create(**settings, temperature=0)
    expected = made("gpt").predict("The dog", method="greedy", max_new=6)
    assert whole.choices[0].text == expected
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (2, 6)
    sampled = {**settings, "temperature": 1.0, "seed": 4, "n": 2}
    both = client.completions.create(**sampled)
    assert [one.index for one in both.choices] == [0, 1]
    (answer,) = made("gpt").answers(
        ["The dog"], method="sample", temperature=1.0, seed=4, n_best=2, max_new=6, chat=False
    )
    assert [one.text for one in both.choices] == [answer.text, *(one.text for one in answer.others)]
    pieces, usage = {0: "", 1: ""}, None
    for event in client.completions.create(**sampled, stream=True, stream_options={"include_usage": True}):
        usage = event.usage or usage
        for one in event.choices:
            pieces[one.index] += one.text
    assert [*pieces.values()] == [one.text for one in both.choices]
    assert usage == both.usage


def test_without_a_seed_answers_differ_and_with_one_they_do_not(client, names):
    settings = {"model": names["lm"], "prompt": "The dog", "max_tokens": 16, "temperature": 2.0}
    assert len({client.completions.create(**settings).choices[0].text for _ in range(6)}) > 1
    assert len({client.completions.create(**settings, seed=3).choices[0].text for _ in range(6)}) == 1


def test_log_probabilities_are_those_of_the_model(client, names):
    settings = {"model": names["lm"], "prompt": "The dog", "max_tokens": 4, "temperature": 0}
    found = client.completions.create(**settings, logprobs=2, echo=True).choices[0]
    assert found.text.startswith("The dog")
    assert found.logprobs.token_logprobs[0] is None
    run = made("gpt")
    (answer,) = run.answers(["The dog"], method="greedy", max_new=4)
    given, _ = run.read("The dog")
    ids = [*given.ids, *answer.whole]
    logprobs = run.model(torch.tensor([ids])).log_softmax(-1)[0]
    expected = [logprobs[i, id].item() for i, id in enumerate(ids[1:])]
    assert found.logprobs.token_logprobs[1:] == pytest.approx(expected, abs=1e-4)
    assert found.logprobs.tokens == [run.processor.tokenizer.token(id) for id in ids]
    assert "".join(found.logprobs.tokens) == found.text
    assert found.logprobs.text_offset[:3] == [0, 3, 7]
    for likely, chosen in zip(found.logprobs.top_logprobs[2:], found.logprobs.token_logprobs[2:]):
        assert len(likely) == 2
        assert max(likely.values()) == pytest.approx(chosen)  # greedy
    *_, last = client.completions.create(**settings, logprobs=2, echo=True, stream=True)
    assert last.choices[0].logprobs == found.logprobs


def test_the_openai_client_chats(client, names):
    messages = [
        {"role": "system", "content": "You are good."},
        {"role": "user", "content": [{"type": "text", "text": "The dog"}]},
        {"role": "assistant", "content": "sleeps"},
        {"role": "user", "content": "A child"},
    ]
    settings = {"model": names["lm"], "messages": messages, "max_tokens": 5, "temperature": 0}
    whole = client.chat.completions.create(**settings, logprobs=True, top_logprobs=2)
    turns = "system: You are good.\nuser: The dog\nassistant: sleeps\nuser: A child\nassistant:"
    tokenizer = made("gpt").processor.tokenizer
    assert whole.usage.prompt_tokens == len(tokenizer.encode_written(turns))
    message = whole.choices[0].message
    assert message.role == "assistant"
    assert "".join(one.token for one in whole.choices[0].logprobs.content) == message.content
    assert len(whole.choices[0].logprobs.content[0].top_logprobs) == 2
    events = list(client.chat.completions.create(**settings, stream=True))
    assert events[0].choices[0].delta.role == "assistant"
    assert "".join(event.choices[0].delta.content or "" for event in events) == message.content
    assert events[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_the_openai_client_makes_vectors(client, names):
    texts = ["The dog", "A child reads"]
    found = client.embeddings.create(model=names["lm"], input=texts)  # it asks for base64
    vectors = [one.embedding for one in found.data]
    assert np.allclose(vectors, made("gpt").embed(texts), atol=1e-5)
    plain = client.embeddings.create(model=names["lm"], input=texts, encoding_format="float")
    assert np.allclose([one.embedding for one in plain.data], vectors, atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "kind", "says"),
    [
        ({"model": "nothing"}, openai.NotFoundError, "no run 'nothing'"),
        ({"prompt": "The dog", "suffix": "x"}, openai.BadRequestError, "suffix: it is not supported"),
        ({"extra_body": {"foo": 1}}, openai.BadRequestError, "foo: it is not supported"),
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"presence_penalty": 1.0}, openai.BadRequestError, "presence_penalty"),
        ({"max_tokens": 1_000_000}, openai.BadRequestError, "1,000,000 new tokens"),
        ({"prompt": "The dog " * 100}, openai.BadRequestError, "reads at most 32"),
        ({"prompt": ""}, openai.BadRequestError, "prompt"),
        ({"n": 100}, openai.BadRequestError, "100 answers"),
    ],
)
def test_errors_come_in_openais_form(client, names, changes, kind, says):
    settings = {"model": names["lm"], "prompt": "The dog", "max_tokens": 4, "temperature": 1.0, **changes}
    with pytest.raises(kind, match=re.escape(says)) as found:
        client.completions.create(**settings)
    assert set(found.value.body) == {"message", "type", "param", "code"}
    with pytest.raises(kind):  # the same before a stream begins
        client.completions.create(**settings, stream=True)


def test_a_run_without_a_template_does_not_chat(client, names):
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model=names["translate"], messages=[{"role": "user", "content": "hello"}])


def test_a_translator_translates(address, names):
    found = post(address, "/translate", input=["I am tired.", "The dog sleeps."], decode={"method": "beam", "beam": 3})
    run = made("transformer")
    expected = [run.predict(text, method="beam", beam=3) for text in ("I am tired.", "The dog sleeps.")]
    assert [one["text"] for one in found["answers"]] == expected
    also = post(address, "/v1/completions", model=names["translate"], prompt="I am tired.", beam=3, max_tokens=6)
    assert also["choices"][0]["text"] == expected[0]


def test_a_drawing_is_what_the_run_draws(address):
    found = post(address, "/draw", input=CAPTIONS[0], decode={"method": "sample", "seed": 5, "n_best": 2})
    (answer,) = made("dalle").answers([CAPTIONS[0]], method="sample", seed=5, n_best=2)
    for shown, one in zip(found["answers"][0]["images"], (answer, *answer.others)):
        assert shown["codes"] == one.details["codes"]
        from PIL import Image

        assert np.array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(shown["png"])))), one.image)


def test_next_tokenize_and_trace_are_those_of_the_run(address, names):
    run = made("gpt")
    plain = {"model": names["lm"], "input": "The dog", "decode": {"chat": False}}
    likely = post(address, "/next", **plain, most=3)["answers"][0]["next"]
    assert [one["token"] for one in likely] == [name for name, _ in run.table("The dog", most=3)[-1].likely]
    follows = post(address, "/next", model=names["pretrain"], input="he sings", second="she walks")
    assert follows["answers"][0]["follows"] == made("bert").answers(["he sings ||| she walks"])[0].details["follows"]
    ids = post(address, "/tokenize", model=names["lm"], input="The dog")["answers"][0]["ids"]
    assert ids == run.processor.tokenizer.encode("The dog")
    values = post(address, "/trace", **plain, kinds=["weights"])["values"]
    expected = run.trace("The dog", "weights")
    assert values.keys() == expected.keys()
    for name, one in expected.items():
        assert np.allclose(values[name]["value"], one.value.numpy(), atol=1e-6)
        assert values[name]["axes"] == [axis._asdict() for axis in one.axes]


def test_every_task_has_its_endpoint_with_the_answers_of_its_run():
    names = [name for name in PATHS if name not in ("dalle", "answer", "embed", "bert", "word2vec")]
    with serving(*map(own, names)) as address:
        models = [one["id"] for one in get(address, "/v1/models")["data"]]
        for name, model in zip(names, models):
            given = FAMILIES[name][2][0]
            body = {"image": in_base64(given)} if name in ("vit", "dvae") else {"input": given}
            found = post(address, PATHS[name], model=model, **body)["answers"][0]
            assert close(found, made(name).answers(given if isinstance(given, str) else [given])[0].plain()), name


def test_questions_vectors_words_and_hidden_words():
    with serving(own("answer"), own("embed"), own("word2vec"), own("bert")) as address:
        question, context = FAMILIES["answer"][2][0].split(" ||| ")
        found = post(address, "/answer", question=question, context=context)["answers"][0]
        assert close(found, made("answer").answers(FAMILIES["answer"][2][0])[0].plain())
        assert close(
            post(address, "/fill", input="a [MASK]")["answers"][0], made("bert").answers("a [MASK]")[0].plain()
        )
        names = {one["task"]: one["id"] for one in get(address, "/v1/models")["data"]}
        name = names["embed"]
        vector = post(address, "/embed", model=name, input="the dog")["answers"][0]["vector"]
        assert np.allclose(vector, made("embed").embed("the dog"), atol=1e-5)
        lines = ["a dog", "the cat sleeps", "il cane"]
        near = post(address, "/nearest", model=name, input="the dog", lines=lines, most=2)["answers"][0]["nearest"]
        assert [one["text"] for one in near] == [one.text for one in made("embed").nearest("the dog", lines, most=2)]
        words = post(address, "/nearest", model=names["wordvectors"], input="man + aunt - uncle")["answers"][0]
        assert close(words, made("word2vec").answers("man + aunt - uncle")[0].plain())


def close(found: Any, expected: Any) -> bool:
    """The same, but for the last digits of numbers."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float):
        return math.isclose(found, expected, abs_tol=1e-5)
    return bool(found == expected)


def test_prometheus_reads_what_was_counted(address, names):
    post(address, "/v1/completions", model=names["lm"], prompt="The dog", max_tokens=4, temperature=0)
    import httpx

    text = httpx.get(f"{address}/metrics").text
    label = f'model_name="{names["lm"]}"'
    numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(numbers[f"allyouneed_num_requests_running{{{label}}}"]) == 0
    assert float(numbers[f"allyouneed_generation_tokens_total{{{label}}}"]) >= 4
    assert float(numbers[f"allyouneed_time_to_first_token_seconds_count{{{label}}}"]) >= 1
    assert float(numbers[f'allyouneed_inter_token_latency_seconds_bucket{{{label},le="+Inf"}}']) >= 3
    for line in text.splitlines():
        assert re.fullmatch(r"# (HELP|TYPE) allyouneed_\w+ .+|allyouneed_\w+\{.*\} [\d.e+-]+", line), line


def test_a_long_prompt_does_not_hold_up_the_others():
    """It is read in pieces, and between two of them the others get a token."""
    run = own("lstm")
    sizes, step = list[int](), run.model.step
    read_on = run.model.read_on

    def noted(inputs: Any, state: Any) -> Any:
        sizes.append(max(map(len, inputs)))
        return read_on(inputs, state)

    def stepped(tokens: Any, state: Any) -> Any:
        sizes.append(0)
        return step(tokens, state)

    run.model.read_on, run.model.step = noted, stepped
    with serving(run) as address:
        name = run.folder.path.name
        short = {"model": name, "prompt": "The dog", "max_tokens": 500, "temperature": 0}
        long = {"model": name, "prompt": "The dog sleeps " * 1000, "max_tokens": 2, "temperature": 0}
        answers = ask_all(address, [("/v1/completions", short), ("/v1/completions", long)], 2)
    assert [status for status, _ in answers] == [200, 200], answers
    assert max(sizes) <= 512
    between = "".join("." if not size else "#" for size in sizes)
    assert re.search(r"#\.+#\.+#", between)  # pieces of the long one, with steps of the short one between them


def test_a_score_of_lm_eval_is_that_of_the_model(address, names, tmp_path):
    """The real harness asks for log-likelihoods through /v1/completions."""
    api_models = pytest.importorskip("lm_eval.models.openai_completions")
    from lm_eval.api.instance import Instance

    made("gpt").export(tmp_path / "hf", to="hf")
    harness = api_models.LocalCompletionsAPI(
        base_url=f"{address}/v1/completions",
        model=names["lm"],
        tokenizer=str(tmp_path / "hf"),
        tokenizer_backend="huggingface",
        batch_size=1,
        max_length=32,
    )
    pairs = [("The dog", " sleeps"), ("A child", " reads a book"), ("The old woman", " is in the garden")]
    asked = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    found = harness.loglikelihood(asked)
    run = made("gpt")
    tokenizer = run.processor.tokenizer
    for (context, rest), (score, greedy) in zip(pairs, found):
        whole, before = tokenizer.encode(context + rest), tokenizer.encode(context)
        assert whole[: len(before)] == before
        logprobs = run.model(torch.tensor([whole])).log_softmax(-1)[0]
        own_scores = [logprobs[i - 1, whole[i]] for i in range(len(before), len(whole))]
        assert score == pytest.approx(float(sum(own_scores)), abs=1e-3)
        assert greedy == all(int(logprobs[i - 1].argmax()) == whole[i] for i in range(len(before), len(whole)))


def test_the_schema_is_there_and_its_page_loads_nothing_from_elsewhere(address):
    import httpx

    schema = get(address, "/openapi.json")
    assert {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/translate", "/draw"} <= schema[
        "paths"
    ].keys()
    page = httpx.get(f"{address}/docs").text
    assert "https://" not in page
    assert "http://" not in page
    assert json.dumps(schema)
