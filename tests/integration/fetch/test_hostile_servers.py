"""Servers that mean harm, or seem to: an end in time, in words, in little memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError
from provisioning.fetch.download import Pin, fetch_file
from provisioning.fetch.transfer import TransferPolicy
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault

DATA = random.Random(8).randbytes(3_000_000)
PIN = Pin(len(DATA), hashlib.sha256(DATA).hexdigest())
PATIENT = TransferPolicy(attempts=3, backoff_s=0.01, read_timeout_s=600, connect_timeout_s=600)


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad.running() as server:
        server.files["a.zip"] = DATA
        yield server


def fetch(urls: list[str], directory: Path, pin: Pin = PIN) -> tuple[str, str]:
    """How a fetch ended, and what it said."""
    stream = io.StringIO()
    try:
        fetch_file(urls, directory / "a.zip", pin, Progress(stream), policy=PATIENT)
        ended = "ok"
    except QnnCiError as error:
        ended = type(error).__name__
        stream.write(str(error))
    return ended, stream.getvalue()


def grow_with_new_etag(handler: bad.Handler, data: bytes) -> None:
    """Another ETag each time, and each time 100 kB more until the connection breaks."""
    count = 100_000 * len(handler.server.requests)
    handler.head(200, len(data), ETag=f'"{len(handler.server.requests)}"')
    handler.body(data[:count])
    handler.hang_up()


def grow_without_etag(handler: bad.Handler, data: bytes) -> None:
    handler.head(200, len(data))
    handler.body(data[: 100_000 * len(handler.server.requests)])
    handler.hang_up()


@pytest.mark.parametrize("fault", [grow_with_new_etag, grow_without_etag])
def test_a_download_that_keeps_starting_over_is_given_up(
    server: BadServer, tmp_path: Path, fault: Fault
) -> None:
    server.faults["a.zip"] = [fault] * 30
    ended, messages = fetch([server.url("a.zip")], tmp_path)
    assert (ended, len(server.requests) <= 2 * PATIENT.attempts) == ("DownloadError", True)
    assert "started over" in messages


@pytest.mark.parametrize(("piece", "pause_s"), [(b"x", 0.1), (bytes(1 << 20), 0)])
def test_the_body_of_a_redirect_is_not_read(
    server: BadServer, tmp_path: Path, piece: bytes, pause_s: float
) -> None:
    server.faults["moved.zip"] = [bad.redirect_with_body("/a.zip", piece, pause_s)]
    ended, _ = fetch([server.url("moved.zip")], tmp_path)
    assert ended == "ok"  # the body has no end


STRANGE: dict[str, Fault] = {
    "a status that is none": bad.raw(b"HTTP/1.1 2xx OK\r\n\r\n"),
    "an ETag that no header can carry": bad.whole(DATA[:-9], ETag="\xa4\x80", length=len(DATA)),
    "a chunk of nonsense": bad.raw(
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n"
    ),
    "a line without end": bad.raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000),
    "ten thousand headers": bad.raw(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 10_000 + b"\r\n"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_unusual_server_response_is_retried(server: BadServer, tmp_path: Path, name: str) -> None:
    server.faults["a.zip"] = [STRANGE[name]]
    ended, messages = fetch([server.url("a.zip")], tmp_path)
    assert ended == "ok", messages


MEASURE = """
import io, sys
from pathlib import Path
from provisioning.console.progress import Progress
from provisioning.errors import QnnCiError
from provisioning.fetch.download import Pin, fetch_file
from provisioning.fetch.transfer import TransferPolicy
once = TransferPolicy(attempts=1)
try:
    fetch_file([sys.argv[1]], Path(sys.argv[2]), Pin(), Progress(), policy=once)
except QnnCiError as error:
    print(error)
status = Path("/proc/self/status").read_text()  # ru_maxrss begins with the parent's
print(status.partition("VmHWM:")[2].split()[0])
"""


@pytest.mark.parametrize("kind", ["redirect", "gzip"])
def test_what_a_server_sends_does_not_fill_the_memory(
    server: BadServer, tmp_path: Path, kind: str
) -> None:
    """A redirect has a body of 200 MB, or of 0.5 MB of gzip that unpack to 0.5 GB."""
    bomb = gzip.compress(bytes(25_000_000)) * 20
    encoding = {"Content_Encoding": "gzip"} if kind == "gzip" else {}
    body = bomb if kind == "gzip" else bytes(200_000_000)
    moved = bad.status(302, body, Location="/a.zip", **encoding)
    server.faults["moved.zip"] = [moved]
    argv = [sys.executable, "-c", MEASURE, server.url("moved.zip"), str(tmp_path / "a.zip")]
    ended = subprocess.run(argv, capture_output=True, text=True, check=True, env={**os.environ})
    assert (tmp_path / "a.zip").read_bytes() == DATA
    assert int(ended.stdout.split()[-1]) < 150_000, ended.stdout
