"""A large pinned file over several connections of which some go wrong; a server that wants a login.

How many connections and parts there are is in tests/unit/provisioning/fetch.
"""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.console.progress import Progress
from provisioning.errors import DownloadError
from provisioning.fetch.download import Pin, fetch_file
from provisioning.fetch.transfer import TransferPolicy
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault

DATA = (random.Random(9).randbytes((1 << 20) + 7) * 24)[: 24 << 20]  # no two pieces are the same
PIN = Pin(len(DATA), hashlib.sha256(DATA).hexdigest())
QUICK = TransferPolicy(attempts=4, backoff_s=0.01, read_timeout_s=5, connect_timeout_s=5)
RATE = 4e6


@pytest.fixture
def server() -> Iterator[BadServer]:
    with bad.running() as server:
        server.files["a.zip"] = DATA
        server.usual = bad.limited(RATE)
        yield server


def fetch(server: BadServer, directory: Path, pin: Pin = PIN) -> None:
    target = directory / "a.zip"
    fetch_file([server.url("a.zip")], target, pin, Progress(io.StringIO()), policy=QUICK)
    assert target.read_bytes() == DATA
    assert [path.name for path in directory.iterdir()] == ["a.zip"]


def reset_each_third(handler: bad.Handler, data: bytes) -> None:
    if len(handler.server.requests) % 3:
        bad.limited(RATE)(handler, data)
    else:
        bad.cut(0.01, hard=True)(handler, data)


def ignore_ranges_with_an_end(handler: bad.Handler, data: bytes) -> None:
    if handler.asked.range.endswith("-") or not handler.asked.range:
        bad.limited(4 * RATE)(handler, data)
    else:
        bad.whole()(handler, data)


def another_etag(handler: bad.Handler, data: bytes) -> None:
    if handler.asked.range:
        bad.part(ETag='"other"')(handler, data)
    else:
        bad.limited(4 * RATE)(handler, data)


@pytest.mark.parametrize(
    "usual",
    [
        reset_each_third,
        ignore_ranges_with_an_end,
        another_etag,
        bad.limited(4 * RATE, wrong_after=20 << 20),
    ],
    ids=["resets", "no ranges", "another file", "wrong bytes"],
)
def test_what_goes_wrong_with_parts_is_mended(
    server: BadServer, tmp_path: Path, usual: Fault
) -> None:
    server.usual = usual
    fetch(server, tmp_path)


def test_what_came_of_a_broken_one_is_resumed(server: BadServer, tmp_path: Path) -> None:
    gone = bad.status(404)

    def stop_in_the_middle(handler: bad.Handler, data: bytes) -> None:
        (bad.limited(4 * RATE) if handler.server.sent_bytes < 12 << 20 else gone)(handler, data)

    server.usual = stop_in_the_middle
    with pytest.raises(DownloadError):
        fetch(server, tmp_path)
    (part,) = tmp_path.glob(".*.part")
    came = part.read_bytes()
    assert came == DATA[: len(came)]
    assert len(came) > 4 << 20
    server.usual = bad.limited(4 * RATE)
    sent = server.sent_bytes
    fetch(server, tmp_path)
    assert server.sent_bytes - sent < len(DATA)
