"""Bad input over HTTP: every answer is a 4xx with one sentence that names what was wrong, and nothing of a client
reaches the file system.

The slow tier sends 1,500 random bodies and 10 schemathesis cases per operation. With AYN_SERVE_FULL=1 it sends
10,000 random bodies and 100 cases per operation (about ten minutes of CPU)."""

from __future__ import annotations

import base64
import contextlib
import gc
import io
import json
import os
import random
import shutil
import socket
import string
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allyouneed.run import load
from commands import mistake
from families import made, train_family
from serving import JSON, serving

httpx = pytest.importorskip("httpx")

FULL = bool(os.environ.get("AYN_SERVE_FULL"))
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SECRET = "the-secret-of-a-file"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(made("gpt"), made("transformer"), made("vit"), made("classify-conv")) as found:
        yield found


@pytest.fixture(scope="module")
def http(address: str) -> Iterator[Any]:
    with httpx.Client(base_url=address, timeout=60) as client:
        yield client


def named(task: str) -> str:
    """The name of one of the runs of `address`: all are folders called "run", of which the first keeps this name."""
    return "run" if task == "gpt" else f"{made(task).folder.path.parent.name}/run"


def refusal(response: Any, status: int = 400) -> str:
    """The one sentence of an error in OpenAI's form."""
    assert response.status_code == status, response.text
    (error,) = response.json().values()
    assert {"message", "type", "param", "code"} == set(error)
    assert error["message"].count("\n") == 0
    assert error["message"]
    return str(error["message"])


def exchange(address: str, *pieces: bytes, seconds: float = 20) -> bytes:
    """What a server says to these bytes, until it closes the connection."""
    found = b""
    where = "127.0.0.1", int(address.rpartition(":")[2])
    with socket.create_connection(where, seconds) as place, contextlib.suppress(OSError):
        for piece in pieces:
            place.sendall(piece)
        while piece := place.recv(65536):
            found += piece
    return found


def idle(http: Any) -> bool:
    """Whether nothing runs or waits."""
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith("allyouneed_num_requests")]
    assert lines
    return all(line.endswith(" 0") for line in lines)


GPT = {"model": "gpt", "prompt": "The dog", "max_tokens": 2}
BAD_COMPLETIONS = {
    "an unknown field": ({"max_token": 5}, "max_token: it is not supported"),
    "a wrong type": ({"temperature": "hot"}, "temperature"),
    "a negative number": ({"temperature": -1}, "temperature"),
    "too many answers": ({"n": 17, "temperature": 1}, "17 answers are asked for, and this server gives 16"),
    "too many tokens": ({"max_tokens": 100_000}, "100,000 new tokens are asked for, and this server writes 2,048"),
    "a number that is too large": ({"max_tokens": 10**30}, "decode.max_new"),
    "too many texts": ({"prompt": ["a"] * 129}, "129 inputs are given"),
    "too many lists of tokens": ({"prompt": [[1]] * 129}, "129 inputs are given"),
    "too long": ({"prompt": "dog " * 50_000}, "a text has 200,000 characters"),
    "too many tokens in a prompt": ({"prompt": [5] * 40}, "the prompt has 40 tokens"),
    "an unknown token": ({"prompt": [10**6]}, "there is no token 1000000"),
    "a negative token": ({"prompt": [-1]}, "prompt"),
    "too many rows": ({"beam": 1000}, "1000 rows"),
    "a field without a meaning here": ({"presence_penalty": 1}, "presence_penalty"),
    "stream_options without a stream": ({"stream_options": {}}, "stream_options: it needs stream"),
    "nothing to do": ({"max_tokens": 0}, "max_tokens: 0 needs echo"),
    "an empty prompt": ({"prompt": ""}, "prompt"),
}


@pytest.mark.parametrize("case", BAD_COMPLETIONS)
def test_a_bad_field_is_named(http: Any, case: str) -> None:
    changes, said = BAD_COMPLETIONS[case]
    assert said in refusal(http.post("/v1/completions", json={**GPT, "model": named("gpt"), **changes}))


BAD_BODIES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{",
    "invalid UTF-8": b'{"model": "\xff\xfe"}',
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"prompt":' * 100_000,
    "NaN": b'{"model": "gpt", "prompt": "a", "temperature": NaN}',
    "Infinity": b'{"model": "gpt", "prompt": "a", "temperature": -Infinity}',
    "an overflow": b'{"model": "gpt", "prompt": "a", "temperature": 1e999}',
    "5,000 digits": b'{"model": "gpt", "prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "half a character": b'{"model": "gpt", "prompt": "\\ud800"}',
    "half a character as a field": b'{"model": "gpt", "prompt": "a", "\\ud800": 1}',
}


@pytest.mark.parametrize("case", BAD_BODIES)
def test_a_body_that_is_no_request_is_refused(http: Any, case: str) -> None:
    for path in ("/v1/completions", "/translate", "/trace"):
        refusal(http.post(path, content=BAD_BODIES[case], headers=JSON))


def test_an_unknown_run_is_404(http: Any) -> None:
    assert "there is no run 'nope' here" in refusal(http.post("/v1/completions", json={**GPT, "model": "nope"}), 404)
    assert "there is no run" in refusal(http.get("/v1/models/nope"), 404)
    refusal(http.get("/v1/nothing"), 404)
    refusal(http.put("/v1/completions", json=GPT), 405)


SETTINGS: dict[str, Any] = {"self": 1, "changes": 1, "alpha": -1, "beam": 0, "max_new": "x", "stop": [1], "nothing": 1}


@pytest.mark.parametrize("key", SETTINGS)
def test_a_bad_setting_is_named(http: Any, key: str) -> None:
    """Also one that is the name of an argument inside."""
    for path in ("/translate", "/trace"):
        body = {"model": named("transformer"), "input": "I am tired.", "decode": {key: SETTINGS[key]}}
        said = refusal(http.post(path, json=body))
        assert key in said or "decode" in said


def test_no_body_is_larger_than_the_limit(http: Any, address: str) -> None:
    """100 MB are refused before they are read, and a body in pieces as soon as it is too much."""
    assert exchange(address, HEAD + b"Content-Length: 100000000\r\n\r\n").startswith(b"HTTP/1.1 413")
    pieces = [b"100000\r\n" + b"x" * 0x100000 + b"\r\n"] * 3
    found = exchange(address, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *pieces, seconds=5)
    assert not found or found.startswith(b"HTTP/1.1 413")  # a system may drop an answer while a client still sends
    assert "at most 2" in refusal(http.post("/classify", content=b"x" * (2 << 20 | 1), headers=JSON), 413)
    refusal(http.post("/classify", content=b"x" * (2 << 20), headers=JSON))


@pytest.mark.parametrize("length", [b"-1", b"9" * 5000, b"x", b"1\r\nContent-Length: 2"])
def test_a_length_that_is_none_is_refused(address: str, length: bytes) -> None:
    assert exchange(address, HEAD + b"Content-Length: " + length + b"\r\n\r\n").startswith(b"HTTP/1.1 4")


def png(width: int, height: int) -> str:
    """A file in base64 whose pixels, all white, are much larger than the file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([1, 0, 0, 0, 0])
    packer, row = zlib.compressobj(1), bytes(min(1 + (width + 7) // 8, 2501))
    pixels = packer.compress(row * min(height, 20_000)) + packer.flush()
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("size", [(20_000, 20_000), (2**31 - 1, 1), (1, 2**31 - 1)])
def test_a_picture_bomb_is_refused(http: Any, size: tuple[int, int]) -> None:
    assert "the image" in refusal(http.post("/recognize", json={"image": png(*size)}))
    assert http.post("/look/2", content=base64.b64decode(png(*size))).status_code == 400


def test_no_path_of_a_client_is_opened(http: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as an image, a text, layers, a script, a value or a run; also if there is such a file."""
    monkeypatch.chdir(tmp_path)
    secret, image = tmp_path / "secret.txt", tmp_path / "image.png"
    secret.write_text(SECRET)
    image.write_bytes(base64.b64decode(png(100, 100)))
    opened, before = list[str](), io.open

    def noted(file: Any, *more: Any, **options: Any) -> Any:
        opened.append(str(file))
        return before(file, *more, **options)

    monkeypatch.setattr("builtins.open", noted)
    monkeypatch.setattr("io.open", noted)
    for path in (str(secret), str(image), "secret.txt", "./image.png", "../" * 9 + str(secret), f"file://{secret}"):
        quoted = httpx.URL("/", params={"text": path}).query.decode()
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/recognize", {"image": path}),
            ("/recognize", {"image": base64.b64encode(path.encode()).decode()}),
            ("/embed", {"model": named("gpt"), "input": "The dog", "layers": path}),
            ("/embed", {"model": named("gpt"), "input": path}),
            ("/nearest", {"model": named("gpt"), "input": "The dog", "lines": [path]}),
            ("/trace", {"model": named("vit"), "input": path}),
            ("/trace", {"model": named("gpt"), "input": "The dog", "kinds": [path]}),
            ("/classify", {"input": path}),
            ("/translate", {"input": path}),
            ("/tokenize", {"model": path, "input": "a"}),
        ]
        answers = [http.post(to, json=body) for to, body in bodies]
        answers += [http.get(f"/look/{run}?{quoted}") for run in range(4)]
        answers += [http.post(f"/look/{run}", content=path.encode()) for run in range(4)]
        answers += [http.get(f"{to}/{path}") for to in ("/v1/models", "/assets", "/look/0/1", "/learning", "/look")]
        for answer in answers:
            assert answer.status_code < 500, answer.text
            assert SECRET not in answer.text
        assert "choose a file" in answers[12].json()["error"]["message"]
    assert not [path for path in opened if path.startswith(str(tmp_path)) or "secret" in path or "image.png" in path]


def test_an_image_for_a_run_that_reads_texts_is_refused(http: Any) -> None:
    for run in (0, 1, 3):
        for content in (b"", b"x", b"\xff" * 9, base64.b64decode(png(8, 8))):
            answer = http.post(f"/look/{run}", content=content)
            assert answer.status_code == 400, answer.text
            assert "texts" in answer.json()["error"]["message"]


def test_questions_of_the_page_are_checked(http: Any) -> None:
    key = http.get("/look/0?text=The+dog").json()["key"]
    asked = (b"", b"{}", b"null", b"\xff", b"[" * 100_000, b'{"ids": [-1]}', b"1e999", b"-1")
    for question in ("write", "heads", "vocabulary", "x"):
        for body in asked:
            answer = http.post(f"/look/0/{key}/{question}", content=body)
            assert answer.status_code in (400, 404), answer.text
    for path in ("/look/9?text=a", f"/look/{10**30}?text=a", "/look/-1", "/look/x", "/look/0/9999/x", "/learning/-1"):
        assert http.get(path).status_code in (400, 404)


def test_a_port_in_use_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
        assert f"port {port} is in use" in mistake("serve", made("gpt").folder.path, "--port", port)
    said = mistake("serve", made("gpt").folder.path, "--host", "0.0.0.0", "--port", 0)
    assert "can be reached by others" in said


def test_a_run_that_is_deleted_goes_on(tmp_path: Path) -> None:
    train_family("conv", tmp_path / "gone")
    with serving(load(tmp_path / "gone")) as address, httpx.Client(base_url=address, timeout=60) as http:
        shutil.rmtree(tmp_path / "gone")
        body = {"model": "gone", "prompt": "The dog", "max_tokens": 2}
        assert http.post("/v1/completions", json=body).status_code == 200
        for path in ("/", "/v1/models", "/health/live", "/health/ready", "/metrics", "/openapi.json"):
            assert http.get(path).status_code == 200
        for path in ("/look/0?text=The+dog", "/look/0", "/learning/0"):
            assert http.get(path).status_code < 500


# Who may ask


CLIENT = httpx.Client(timeout=60)


def ask(address: str, path: str = "/v1/models", method: str = "GET", **headers: str) -> Any:
    sent = {name.replace("_", "-"): value.encode() for name, value in headers.items()}
    return CLIENT.request(method, address + path, headers=sent, json={} if method == "POST" else None)


def test_other_names_and_other_pages_are_refused(address: str) -> None:
    assert ask(address).status_code == 200
    for host in ("evil.com", "localhost.evil.com", "evil.com:8000", "", "localhost@evil.com", "127.0.0.1.nip.io"):
        assert ask(address, host=host).status_code == 400, host
    for site in ("cross-site", "same-site"):
        for path in ("/v1/completions", "/classify", "/look/0"):
            assert ask(address, path, "POST", sec_fetch_site=site, origin="http://evil.com").status_code == 403
    assert ask(address, "/v1/completions", "POST", origin="http://evil.com").status_code == 403
    assert ask(address, "/v1/completions", "POST", origin="null").status_code == 403
    assert ask(address, "/v1/completions", "POST", origin=address).status_code == 400  # its own page; the body is empty


def test_no_other_page_makes_a_model_compute(address: str) -> None:
    """An image or a script of another page sends a GET without asking."""
    for kind in ("image", "script", "iframe", "empty"):
        found = ask(address, "/look/0?text=The+dog", sec_fetch_site="cross-site", sec_fetch_dest=kind)
        assert found.status_code == 403
    assert ask(address, "/", sec_fetch_site="cross-site", sec_fetch_dest="document").status_code == 200  # a link


def test_no_page_may_read_an_answer_unless_it_is_named(address: str) -> None:
    for path in ("/v1/models", "/", "/nothing"):
        found = ask(address, path, origin="http://evil.com")
        assert not [name for name in found.headers if name.startswith("access-control")]
    with serving(made("gpt"), origins=("http://good.com",)) as other:
        assert ask(other, origin="http://good.com").headers["access-control-allow-origin"] == "http://good.com"
        assert "access-control-allow-origin" not in ask(other, origin="http://evil.com").headers
        asked = ask(other, "/v1/completions", "OPTIONS", origin="http://good.com")
        assert asked.status_code == 204
        allowed = ask(other, "/classify", "POST", origin="http://good.com", sec_fetch_site="cross-site")
        assert allowed.status_code == 400


def test_every_answer_has_the_headers_of_a_safe_page(address: str) -> None:
    for path in ("/", "/docs", "/v1/models", "/nothing", "/health/live", "/look/9"):
        headers = ask(address, path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers or "uvicorn" in headers["server"]  # `ayn serve` sends none
    assert ask(address, host="evil.com").headers["x-content-type-options"] == "nosniff"


def test_a_key_covers_every_path() -> None:
    with serving(made("gpt"), key="k€y") as address:
        schema = CLIENT.get(f"{address}/openapi.json", headers={"authorization": b"Bearer k\xe2\x82\xacy"})
        paths = [
            *schema.json()["paths"],
            "/",
            "/docs",
            "/openapi.json",
            "/nothing",
            "/assets/x",
            "/look/0",
            "/learning/0",
        ]
        assert len(paths) > 20
        for path in paths:
            for method in ("GET", "POST", "OPTIONS", "PUT"):
                assert CLIENT.request(method, address + path).status_code == 401, path
        for given in ("", "Bearer", "Bearer x", "Basic !!", "Basic Og==", "k", "Bearer k\xe2"):
            assert CLIENT.get(address, headers={"authorization": given.encode("latin-1")}).status_code == 401
        basic = base64.b64encode("any:k€y".encode()).decode()
        assert ask(address, authorization=f"Basic {basic}").status_code == 200


# Random bodies


WORDS = (
    "The dog",
    "",
    " ",
    "../../etc/passwd",
    "\x00",
    "😀" * 50,
    "a\tb",
    "|||",
    "[MASK]",
    "{{ x }}",
    "<b>",
    "é",
    "-1",
    "dog " * 99,
)
NUMBERS = (0, 1, -1, 2, 5, 0.5, -0.0, 1e-300, 1e300, 2**31, 2**62, 10**30, True, False, None)


def random_value(chance: random.Random, deep: int = 0) -> Any:
    kind = chance.randrange(7 if deep < 3 else 5)
    if kind < 2:
        return chance.choice(WORDS)
    if kind < 4:
        return chance.choice(NUMBERS)
    if kind == 4:
        return "".join(chance.choice(string.printable) for _ in range(chance.randrange(12)))
    inside = [random_value(chance, deep + 1) for _ in range(chance.randrange(4))]
    return inside if kind == 5 else {chance.choice(("beam", "a", "seed", "self", "max_new")): one for one in inside}


def random_requests(schema: dict[str, Any], models: list[str], count: int) -> Iterator[tuple[str, bytes]]:
    """Bodies that are nearly right: fields of the schema with values that fit or do not, and some broken bytes."""
    chance, parts = random.Random(7), schema["components"]["schemas"]
    posts = [(path, one["post"]) for path, one in schema["paths"].items() if "post" in one]
    for _ in range(count):
        path, post = chance.choice(posts)
        name = post["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        fields, needed = parts[name]["properties"], parts[name].get("required", [])
        picked = {*needed, *chance.sample(list(fields), chance.randrange(min(4, len(fields))))}
        body: dict[str, Any] = {field: random_value(chance) for field in picked}
        if chance.random() < 0.8:
            body["model"] = chance.choice(models)
        for field in ("prompt", "input", "question", "context"):
            if field in fields and chance.random() < 0.7:
                body[field] = chance.choice(("The dog sleeps", ["The", "I am tired."], "a book"))
        content = json.dumps(body).encode()
        if chance.random() < 0.1:
            at = chance.randrange(len(content))
            content = content[:at] + chance.randbytes(3) + content[at + 1 :]
        yield path, content


def send_random(http: Any, count: int) -> dict[int, int]:
    schema = http.get("/openapi.json").json()
    models, found = [one["id"] for one in http.get("/v1/models").json()["data"]], dict[int, int]()
    for path, content in random_requests(schema, [*models, "nope"], count):
        answer = http.post(path, content=content, headers=JSON)
        assert answer.status_code < 500, (path, content, answer.text)
        assert "server_error" not in answer.text, (path, content)
        found[answer.status_code] = found.get(answer.status_code, 0) + 1
    assert idle(http)
    return found


def test_random_bodies_are_answered_or_refused(http: Any) -> None:
    found = send_random(http, 150)
    assert found[200] > 5
    assert found[400] > 50


def test_a_kind_of_values_that_there_is_not_is_named(http: Any) -> None:
    said = refusal(http.post("/trace", json={"model": named("gpt"), "input": "The dog", "kinds": ["weight"]}))
    assert "not weight" in said


@pytest.mark.slow
def test_many_random_bodies_are_answered_or_refused(http: Any) -> None:
    send_random(http, 300)
    before = pages()
    print(send_random(http, 10_000 if FULL else 1500), before, pages())
    assert pages() < 1.05 * before


def pages() -> int:
    """What this process has in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.slow
def test_what_schemathesis_makes_of_the_schema_is_answered_or_refused(http: Any, address: str) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    hypothesis = pytest.importorskip("hypothesis")
    cases, operations = 0, list(schemathesis.openapi.from_url(f"{address}/openapi.json").get_all_operations())
    for operation in operations:

        @hypothesis.settings(
            max_examples=100 if FULL else 10, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )  # fmt: skip
        @hypothesis.given(case=operation.ok().as_strategy())
        def check(case: Any) -> None:
            nonlocal cases
            cases += 1
            answer = case.call(base_url=address)
            assert answer.status_code < 500, (case.path, case.body, answer.text)

        check()
    assert len(operations) > 20
    assert cases > 5 * len(operations)
    assert idle(http)
    print(f"{cases} cases of {len(operations)} operations")
