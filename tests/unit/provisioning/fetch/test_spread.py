"""A file over several connections: when it is worth it, what each brings, how it ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.fetch import ranges
from provisioning.fetch.part_file import PartFile
from provisioning.fetch.ranges import Spread, split_spans
from tests.build.fetch import DATA as WHOLE
from tests.build.fetch import QUICK, outcome
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault

PIECE = 1000
DATA = WHOLE[: 30 * PIECE + 500]
SIZE = len(DATA)
HAVE = 700


@pytest.fixture
def part(tmp_path: Path) -> Iterator[PartFile]:
    """A part file with the first 700 bytes."""
    part = PartFile(tmp_path / "a.zip", "http://h/a")
    part.restart(bad.etag(DATA))
    part.append(DATA[:HAVE])
    yield part
    part.close()


def spread_rest(server: BadServer, part: PartFile) -> Spread:
    """What brings the rest of the part file."""

    def take(at: int, data: bytes) -> None:
        assert at == part.size
        part.append(data)

    pieces = split_spans([(part.size, SIZE)], PIECE)
    validator = part.validator
    return Spread(server.url("a"), pieces, take, size_bytes=SIZE, validator=validator, policy=QUICK)


@pytest.fixture
def spread(server: BadServer, part: PartFile) -> Iterator[Spread]:
    server.files["a"] = DATA
    spread = spread_rest(server, part)
    yield spread
    server.usual = bad.serve
    assert all(thread.daemon and not thread.is_alive() for thread in spread.clients)


def test_the_rest_comes_in_pieces_each_once_over_more_connections_while_they_help(
    spread: Spread, part: PartFile, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "ROUND_S", 0.01)
    server.usual = bad.limited(2e4)
    spread.run()
    assert part.path.read_bytes() == DATA
    assert sorted(asked.range for asked in server.requests) == sorted(
        f"bytes={at}-{min(at + PIECE, SIZE) - 1}" for at in range(HAVE, SIZE, PIECE)
    )
    assert 5 <= server.peak <= 8
    assert len(spread.clients) <= 8
    assert spread.came_bytes == SIZE - HAVE


def test_a_server_that_allows_two_gives_it_over_two(
    spread: Spread, part: PartFile, server: BadServer
) -> None:
    refused = threading.Event()
    free = threading.Semaphore(2)

    def serve(handler: bad.Handler, data: bytes) -> None:
        """To two at once, who both wait until a third was sent away."""
        if not free.acquire(blocking=False):
            handler.head(429, 0)
            refused.set()
            return
        assert refused.wait(5)
        bad.serve(handler, data)
        free.release()

    server.usual = serve
    spread.run()
    assert part.path.read_bytes()[:2000] == DATA[:2000]
    assert spread.refusals >= 1
    assert 2 <= spread.most < 8


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        (bad.status(404), None),
        (bad.status(503), "TransientError: HTTP 503"),
        (bad.part(ETag='"other"'), None),
    ],
    ids=["not there", "busy", "another file"],
)
def test_when_every_connection_fails_it_ends(
    spread: Spread, part: PartFile, server: BadServer, fault: Fault, wanted: str | None
) -> None:
    server.faults["a"] = [fault] * 99
    assert outcome(spread.run) == wanted
    assert type(spread.failure).__name__ in {"PermanentError", "TransientError", "ChangedError"}
    assert part.size == HAVE
    assert 1 <= len(server.requests) <= 12
    assert sorted(spread.waiting) == list(range(len(spread.pieces)))


def test_an_error_of_the_disk_ends_all(spread: Spread) -> None:
    def fail(at: int, data: bytes) -> None:
        raise OSError("disk")

    spread.take = fail
    assert outcome(spread.run) == "OSError: disk"
    assert spread.is_over
