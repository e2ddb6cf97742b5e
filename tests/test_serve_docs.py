"""docs/serve.md: every line of curl and of Python in it is answered by a server of small runs; and what it says of the
endpoints, the options and the limits is so."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from allyouneed.exchange.importing import import_run
from allyouneed.run import Run, load
from families import IMAGES, made
from serving import serving
from test_docs import TOP, blocks
from test_exchange import chatting as chatting

PAGE = (TOP / "docs" / "serve.md").read_text(encoding="utf-8")
RUNS = {
    "en-it": "transformer", "notes": "gpt", "reviews": "classify-conv", "names": "tag-lstm", "answers": "answer",
    "reader": "bert", "search": "embed", "words": "word2vec", "photos": "vit", "codes": "dvae", "painter": "dalle",
}  # fmt: skip
REFUSED = {"colour": 400}  # what the example of an error is about


def runs(folder: Path, chat: Path) -> list[Run]:
    """A small run for each that the page names."""
    import_run(chat, folder / "helper", say=lambda line: None)
    for name, family in RUNS.items():
        shutil.copytree(made(family).folder.path, folder / name)
    (command,) = re.findall(r"^ayn serve (runs/en-it runs/notes .*)$", PAGE, re.M)
    return [load(folder / path.removeprefix("runs/"), "cpu", "fp32") for path in command.split()]


def curl_lines() -> list[str]:
    return [line for kind, block in blocks(PAGE) if kind == "bash" for line in block.splitlines()]


@pytest.fixture
def server(tmp_path: Path, chatting: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch):
    found = runs(tmp_path, chatting)
    monkeypatch.chdir(tmp_path)
    from PIL import Image

    Image.fromarray(IMAGES[0]).save("image.png")
    with serving(*found) as address:
        yield address


def test_every_line_of_the_page_is_answered(server: str) -> None:
    pytest.importorskip("openai")
    if not shutil.which("curl"):
        pytest.skip("needs curl")
    for line in curl_lines():
        asked = line.replace("localhost:8000", server.removeprefix("http://"))
        shell = f"{asked} --silent --write-out '\\n%{{http_code}}'"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
        body, _, status = done.stdout.rpartition("\n")
        wanted = next((code for word, code in REFUSED.items() if word in line), 200)
        assert int(status) == wanted, (line, done.stdout, done.stderr)
        assert body, line
        if '"stream": true' in line:
            assert body.rstrip().endswith("data: [DONE]"), body
        elif "/health/" not in line and "/metrics" not in line:
            json.loads(body)
    shown: dict[str, Any] = {}
    for kind, block in blocks(PAGE):
        if kind == "python":
            exec(block.replace("http://localhost:8000", server), shown)  # the client raises for a status of 4xx or 5xx
            for line in block.splitlines():
                if line.startswith("http."):
                    answer = eval(re.split(r"\)(?=\.json|\.text)", line)[0] + ")", shown)
                    assert answer.status_code == 200, (line, answer.text)
    assert Path("drawn.png").read_bytes()[:4] == b"\x89PNG"


def test_every_endpoint_is_on_the_page() -> None:
    pytest.importorskip("fastapi")
    from allyouneed.serve import app

    schema = app([made("gpt")]).app.openapi()["paths"]
    lines = "\n".join(curl_lines())
    python = "\n".join(block for kind, block in blocks(PAGE) if kind == "python")
    assert len(schema) > 18
    for path in schema:
        asked = path.replace("{name}", "notes")
        assert re.search(rf"localhost:8000{re.escape(asked)}(?=\s|$)", lines), f"no line of curl for {path}"
        named = path.startswith(("/v1", "/health/live")) or f'"{path}"' in python
        assert named, f"no line of Python for {path}"


def test_the_limits_of_the_page_are_those_of_the_server() -> None:
    pytest.importorskip("fastapi")
    import typer

    from allyouneed.cli import app as command
    from allyouneed.serve.limits import Limits

    limits = Limits()
    for number in (limits.texts, limits.characters, limits.prompt, limits.output, limits.answers):
        assert re.search(rf"One request has .*\b{number:,}\b", PAGE), number
    assert f"more than {limits.body >> 20} MiB" in PAGE
    assert f"within {limits.sending:g} s" in PAGE
    table = PAGE.partition("| option | default |")[2].partition("\n\n")[0]
    known: Any = typer.main.get_command(command)
    options = {one.opts[0]: one.default for one in known.commands["serve"].params if one.opts[0].startswith("--")}
    assert set(re.findall(r"--[a-z]+", table)) == set(options) - {"--help"}
    rows = dict(re.findall(r"^\| `(--[a-z]+)`[^|]*\| (\S+)", table, re.M))
    for name in ("--rows", "--waiting", "--cache", "--seconds", "--threads", "--ray"):
        assert rows[name] == str(options[name]), name
    given = {field.name: field.default for field in dataclasses.fields(Limits)}
    assert (options["--rows"], options["--waiting"]) == (given["rows"], given["waiting"])
    assert (options["--cache"] << 20, options["--seconds"]) == (given["cache"], given["seconds"])
