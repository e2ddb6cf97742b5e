"""Named data sets and how their files are obtained: mirror, cache, and a real server on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from allyouneed.config import DataConfig
from allyouneed.data import fetch, registry
from allyouneed.data.fetch import File, obtain
from allyouneed.data.opening import open_data
from allyouneed.data.sources import Dataset, Text
from allyouneed.errors import UserError
from allyouneed.version import __version__

CONTENT = bytes(range(256)) * 4000
MIRROR = os.environ.get("ALLYOUNEED_MIRROR", "")
needs_mirror = pytest.mark.skipif(not MIRROR, reason="ALLYOUNEED_MIRROR is not set")


class Server(ThreadingHTTPServer):
    """Serves `content`; `stop_after` ends a transfer early, `reset` then breaks the connection, `ranges` says whether
    parts can be asked for."""

    content, stop_after, ranges, hang, reset = CONTENT, None, True, False, False
    daemon_threads = False  # `server_close` waits for them: none writes into the next test

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []
        self.agents: list[str | None] = []
        self.released = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, start = self.server, 0
        asked = self.headers.get("Range")
        server.asked.append(asked)
        server.agents.append(self.headers.get("User-Agent"))
        if server.hang:
            server.released.wait(20)
            return
        if self.path == "/missing":
            self.send_error(404)
            return
        if asked and server.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])  # type: ignore[index]
            if start >= len(server.content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        self.wfile.write(server.content[start : server.stop_after])
        if server.reset:
            server.released.wait(20)  # until the client has read it all
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        self.connection.shutdown(socket.SHUT_WR)
        while self.connection.recv(1 << 16):  # close after the client has: nothing that it has not read yet is lost
            pass

    def finish(self) -> None:
        with contextlib.suppress(OSError):  # the client, or the test, has closed the connection
            super().finish()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    serving = Server()
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield serving
    serving.released.set()
    serving.shutdown()
    serving.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ALLYOUNEED_MIRROR", raising=False)
    return tmp_path / "cache"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def public(server: Server, path: str = "file.bin", content: bytes = CONTENT) -> File:
    return File(f"set/{path}", len(content), sha256(content), f"{server.address}/{path}")


def test_download_once_then_from_the_cache(server: Server, cache: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = obtain(public(server))
    assert path == cache / "set/file.bin"
    assert path.read_bytes() == CONTENT
    assert capfd.readouterr().err == f"downloading {server.address}/file.bin (1000.0 KiB)\n"
    assert obtain(public(server)) == path
    assert server.asked == [None]
    assert sorted(p.name for p in path.parent.iterdir()) == ["file.bin"]


def test_a_damaged_cache_is_downloaded_again(server: Server) -> None:
    path = obtain(public(server))
    path.write_bytes(b"damaged")
    assert obtain(public(server)).read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_an_interrupted_download_goes_on_where_it_stood(server: Server, cache: Path) -> None:
    server.stop_after = 300_000
    with pytest.raises(UserError, match=r"ended after 300000 of 1024000 bytes; run it again.*data.mirror=DIR"):
        obtain(public(server))
    assert (cache / "set/file.bin.part").stat().st_size == 300_000
    assert not (cache / "set/file.bin").exists()
    server.stop_after = None
    assert obtain(public(server)).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]


def test_a_broken_connection_keeps_what_has_come(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.stop_after, server.reset = 300_000, True

    def progress(bar: object, row: int, completed: int) -> None:
        if completed == 300_000:
            server.released.set()

    with monkeypatch.context() as patch:
        patch.setattr("rich.progress.Progress.update", progress)
        with pytest.raises(UserError, match=r"ended after 300000 of 1024000 bytes; run it again to go on from there"):
            obtain(public(server))
    server.stop_after, server.reset = None, False
    assert obtain(public(server)).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-"]


def test_a_server_without_ranges_starts_over(server: Server, cache: Path) -> None:
    (cache / "set").mkdir(parents=True)
    (cache / "set/file.bin.part").write_bytes(b"x" * 100)
    server.ranges = False
    assert obtain(public(server)).read_bytes() == CONTENT
    assert server.asked == ["bytes=100-"]


def test_a_part_that_is_too_long_starts_over(server: Server, cache: Path) -> None:
    (cache / "set").mkdir(parents=True)
    (cache / "set/file.bin.part").write_bytes(CONTENT + b"more")
    assert obtain(public(server)).read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT) + 4}-", None]


def test_a_wrong_checksum_removes_the_file(server: Server, cache: Path) -> None:
    file = public(server, content=b"something else")
    with pytest.raises(UserError, match=f"{file.checksum} is expected, it has {sha256(CONTENT)}"):
        obtain(file)
    assert list((cache / "set").iterdir()) == []


def test_a_missing_address_names_itself_and_the_mirror(server: Server) -> None:
    with pytest.raises(UserError, match=rf"{server.address}/missing.*404.*data.mirror=DIR"):
        obtain(public(server, "missing"))


def test_no_server_and_no_answer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"http://127.0.0.1:9/x cannot be downloaded: .*refused.*data.mirror=DIR"):
        obtain(File("set/x", 1, "0", "http://127.0.0.1:9/x"))
    monkeypatch.setattr(fetch, "TIMEOUT", 0.2)
    server.hang = True
    with pytest.raises(UserError, match=r"cannot be downloaded: timed out"):
        obtain(public(server))


def test_a_file_that_is_packed_in_another_way_at_its_address(server: Server, cache: Path, tmp_path: Path) -> None:
    file = File("set/file.bin", 1, sha256(b"mirrored"), f"{server.address}/file.zip", sha256(CONTENT))
    assert obtain(file).read_bytes() == CONTENT
    copy = tmp_path / "mirror/set/file.bin"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(b"mirrored")
    assert obtain(file, str(tmp_path / "mirror")) == copy


def test_a_published_sha_1_is_checked(server: Server, cache: Path) -> None:
    right = hashlib.sha1(CONTENT).hexdigest()
    assert obtain(File("set/file.bin", 0, right, f"{server.address}/file.bin")).read_bytes() == CONTENT
    with pytest.raises(UserError, match=f"wrong checksum: SHA-1 {'0' * 40} is expected, it has {right}"):
        obtain(File("set/other.bin", 0, "0" * 40, f"{server.address}/other.bin"))
    assert [p.name for p in (cache / "set").iterdir()] == ["file.bin"]


def test_a_file_without_a_checksum_is_downloaded_once_and_known_by_its_content(server: Server, cache: Path) -> None:
    file = File("set/file.bin", 1, sha256(b"mirrored"), f"{server.address}/file.bin", "")
    (cache / "set").mkdir(parents=True)
    (cache / "set/file.bin.part").write_bytes(b"of another version")
    path = obtain(file)
    assert path.read_bytes() == CONTENT
    assert obtain(file) == path
    assert server.asked == [None]
    assert fetch.content_checksum(file, path) == sha256(CONTENT)
    assert fetch.content_checksum(public(server), path) == sha256(CONTENT)


def test_a_server_is_told_who_asks(server: Server) -> None:
    obtain(public(server))
    assert server.agents == [f"allyouneed/{__version__}"]


def test_the_mirror_comes_first_and_is_verified(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "mirror/set/file.bin"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(CONTENT)
    assert obtain(public(server), str(tmp_path / "mirror")) == copy
    monkeypatch.setenv("ALLYOUNEED_MIRROR", str(tmp_path / "mirror"))
    assert obtain(public(server)) == copy
    assert server.asked == []
    copy.write_bytes(CONTENT[::-1])
    with pytest.raises(UserError, match="wrong checksum"):
        obtain(public(server))


def test_a_mirror_without_the_file_falls_back(server: Server, tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    assert obtain(public(server), str(tmp_path / "mirror")).read_bytes() == CONTENT
    with pytest.raises(UserError, match=r"mirror .*mirror has no set/missing, and http.*404"):
        obtain(public(server, "missing"), str(tmp_path / "mirror"))
    with pytest.raises(UserError, match=r"mirror .*mirror has no set/x, and set/x has no public address"):
        obtain(File("set/x", 1, "0"), str(tmp_path / "mirror"))
    with pytest.raises(UserError, match="is not a folder"):
        obtain(public(server), str(tmp_path / "nowhere"))


def test_listing_has_every_name_once() -> None:
    rows = registry.listing()
    names = [row.name for row in rows]
    assert len(set(names)) == len(names)
    assert {"phrasebook", "corpus", "multi30k-en-de", "tatoeba-ita-eng", "tinyshakespeare", "enwik8"} <= set(names)
    assert {"opinions", "entities", "sst2", "trec", "imdb", "wnut17", "questions", "squad"} <= set(names)
    assert {"shapes", "scenes", "mnist", "fashion-mnist", "cifar10", "emoji"} <= set(names)
    assert {"text", "pairs", "labels", "tags", "questions", "images", "captions"} <= {row.shape for row in rows}
    assert all(row.what and row.licence and row.origin for row in rows)
    assert [row.name for row in rows if "mirror only" in row.origin] == ["emoji"]
    changing = {"sst2", "tatoeba-eng-ita", "tatoeba-ita-eng"}
    assert {row.name for row in rows if "may change" in row.origin} == changing


def test_entries_are_complete() -> None:
    for entry in registry.SETS.values():
        assert entry.forms, entry.name
        for file in {file for form in entry.forms for file in form.every_file}:
            assert re.fullmatch("[0-9a-f]{64}|[0-9a-f]{40}", file.checksum) or file.path == "tatoeba/ita-eng.zip"
            assert file.bytes > 0 or file.path in ("tatoeba/ita-eng.zip", "tatoeba/fra-eng.zip")
            assert file.address is None or file.address.startswith("https://")


def test_a_set_without_address_says_so() -> None:
    with pytest.raises(UserError, match=r"no public address.*data.mirror=DIR"):
        open_data(DataConfig(name="emoji"), "captions")


def test_wrong_names_and_shapes() -> None:
    with pytest.raises(UserError, match="did you mean 'tinyshakespeare'"):
        open_data(DataConfig(name="tinyshakespear"), "text")
    with pytest.raises(
        UserError, match=r"is plain text, but this task needs pairs of sentences; these fit: phrasebook"
    ):
        open_data(DataConfig(name="enwik8"), "pairs")
    with pytest.raises(UserError, match="there is no data"):
        open_data(DataConfig(), "text")
    with pytest.raises(UserError, match=r"data\.source goes with your own files"):
        open_data(DataConfig(name="phrasebook", source="en"), "pairs")


def test_phrasebook() -> None:
    data = open_data(DataConfig(name="phrasebook", limit=5), "pairs")
    assert data.splits["train"].examples == 5
    assert data.splits["valid"].examples == 5
    swapped = open_data(DataConfig(name="phrasebook", reverse=True, limit=5), "pairs")
    assert [(t, s) for s, t in swapped.splits["train"]] == list(data.splits["train"])
    assert (
        len({swapped.fingerprint, data.fingerprint, open_data(DataConfig(name="phrasebook"), "pairs").fingerprint}) == 3
    )


def test_corpus() -> None:
    data = open_data(DataConfig(name="corpus"), "text")
    for split in data.splits.values():
        assert isinstance(split, Text)
        assert split.examples == 1
        assert split.bytes == len("".join(split).encode()) > 100


def mirrored(name: str, shape: str, **options: object) -> Dataset:
    return open_data(DataConfig(name=name, mirror=MIRROR, **options), shape)  # type: ignore[arg-type]


@needs_mirror
@pytest.mark.parametrize("sides", ["en-de", "de-en", "en-fr", "fr-en"])
def test_multi30k_has_its_official_splits(sides: str) -> None:
    data = mirrored(f"multi30k-{sides}", "pairs")
    counts = {name: split.examples for name, split in data.splits.items()}
    assert counts == {"train": 29_000, "valid": 1_014, "test": 1_000, "test_2017": 1_000}
    back = mirrored(f"multi30k-{'-'.join(reversed(sides.split('-')))}", "pairs")
    assert [(t, s) for s, t in back.splits["test"]] == list(data.splits["test"])
    assert list(mirrored(f"multi30k-{sides}", "pairs", reverse=True).splits["test"]) == list(back.splits["test"])


@needs_mirror
@pytest.mark.parametrize(
    ("name", "total"),
    [("eng-ita", 32_135), ("ita-eng", 32_135), pytest.param("fra-eng", 167_130, marks=pytest.mark.slow)],
)
def test_tatoeba_splits_by_source(name: str, total: int) -> None:
    data = mirrored(f"tatoeba-{name}", "pairs")
    parts = [list(data.splits[split]) for split in ("train", "valid", "test")]
    assert sum(map(len, parts)) + sum(split.empty for split in data.splits.values()) == total
    sources = [{source for source, _ in part} for part in parts]
    assert sum(map(len, sources)) == len(set.union(*sources))
    assert all(0.015 < len(part) / total < 0.025 for part in parts[1:])
    english = sum(" the " in f" {source} " for source in sources[0])
    assert (english > 1000) == name.startswith("eng")


@needs_mirror
def test_tinyshakespeare_is_cut_at_nine_tenths() -> None:
    data = mirrored("tinyshakespeare", "text")
    content = (Path(MIRROR) / "tinyshakespeare/input.txt").read_text()
    cut = int(0.9 * len(content))
    assert "".join(data.splits["train"]) == content[:cut]
    assert "".join(data.splits["valid"]) == "".join(data.splits["test"]) == content[cut:]
    assert any("test is the same text as valid" in line for line in data.understood)


@needs_mirror
@pytest.mark.slow
def test_enwik8_has_the_usual_splits() -> None:
    data = mirrored("enwik8", "text")
    sizes, whole = {}, hashlib.sha256()
    for name, split in data.splits.items():
        for chunk in split:
            whole.update(chunk.encode())
        sizes[name] = split.bytes
    assert sizes == {"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000}
    assert whole.hexdigest() == "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8"
