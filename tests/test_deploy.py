"""deploy/: the files say what the server needs, and those who read them find no mistake."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from test_docs import TOP

DEPLOY = TOP / "deploy"
SECONDS = 300  # of ayn serve: the longest time of an answer


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2].strip()) for line in text.splitlines() if line[:1].isupper()]


def checked(*command: object) -> None:
    """A program finds no mistake; skipped where it is not installed."""
    if not shutil.which(str(command[0])):
        pytest.skip(f"needs {command[0]}")
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def documents() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))


def test_the_image_runs_the_server_without_root():
    given = dict(instructions())
    command = json.loads(given["ENTRYPOINT"])
    assert command[:2] == ["ayn", "serve"]
    assert "--insecure" not in command
    assert given["USER"] == "10001"
    assert "/health/ready" in given["HEALTHCHECK"]
    for name, value in instructions():
        if name == "COPY":
            assert all((TOP / source).exists() for source in value.split()[:-1]), value
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [source for name, value in instructions() if name == "COPY" for source in value.split()[:-1]]
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied)


def test_hadolint_finds_nothing():
    checked("hadolint", DEPLOY / "Dockerfile")


def test_the_unit_ends_the_server_in_time():
    pairs = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / "ayn-serve.service").read_text(encoding="utf-8"), re.M))
    assert "ayn serve " in pairs["ExecStart"]
    assert "--host" not in pairs["ExecStart"]
    assert (pairs["KillSignal"], pairs["Restart"]) == ("SIGTERM", "on-failure")
    assert int(pairs["TimeoutStopSec"]) > SECONDS


def test_systemd_finds_nothing(tmp_path: Path):
    text = (DEPLOY / "ayn-serve.service").read_text(encoding="utf-8")
    unit = tmp_path / "ayn-serve.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable} -m allyouneed", text, flags=re.M))
    checked("systemd-analyze", "verify", unit)


def test_kubernetes_asks_for_health_and_gives_time():
    deployment, service = documents()
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for probe, path in (("startupProbe", "ready"), ("readinessProbe", "ready"), ("livenessProbe", "live")):
        *python, program, given = container[probe]["exec"]["command"]
        assert (python, given) == (["python", "-c"], path)
        compile(program, probe, "exec")
        assert "/health/" in program
        assert container[probe]["timeoutSeconds"] <= container[probe]["periodSeconds"]
    wait = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > SECONDS + wait
    assert f"--seconds={SECONDS}" in container["args"]
    (key,) = [one for one in container["env"] if one["name"] == "AYN_API_KEY"]
    assert "secretKeyRef" in key["valueFrom"]
    assert container["resources"]["limits"]["memory"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"] == labels
    ports = {one["name"] for one in container["ports"]}
    assert {one["targetPort"] for one in service["spec"]["ports"]} <= ports


def test_kubernetes_validates():
    validate = pytest.importorskip("kubernetes_validate")
    for one in documents():
        validate.validate(one, validate.latest_version(), strict=True)
