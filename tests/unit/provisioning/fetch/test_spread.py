"""A file over several connections: when it is worth it, what each brings, how it ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from provisioning.fetch import client as clients
from provisioning.fetch import ranges as spreads
from provisioning.fetch.client import Client
from provisioning.fetch.part_file import PartFile
from provisioning.fetch.ranges import (
    FAST_BYTES_S,
    PIECE_BYTES,
    PROBE_S,
    Spread,
    is_worth_it,
    split_spans,
)
from provisioning.fetch.transfer import (
    PermanentError,
    TransferPolicy,
    TransientError,
)
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault

PIECE = 1000
DATA = random.Random(4).randbytes(30 * PIECE + 500)
SIZE = len(DATA)
QUICK = TransferPolicy(attempts=3, backoff_s=0, connect_timeout_s=5, read_timeout_s=5)


@pytest.fixture
def part(tmp_path: Path) -> Iterator[PartFile]:
    """A part file with the first 700 bytes."""
    part = PartFile(tmp_path / "a.zip", "http://h/a")
    part.restart(bad.etag(DATA))
    part.append(DATA[:700])
    yield part
    part.close()


def make_spread(server: BadServer, part: PartFile) -> Spread:
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
    yield make_spread(server, part)
    server.usual = bad.serve


def test_when_more_connections_may_help() -> None:
    enough = 8 * PIECE_BYTES + 1
    slow = int(FAST_BYTES_S * PROBE_S) - 1
    assert is_worth_it(enough, slow, PROBE_S)
    assert not is_worth_it(enough - 1, slow, PROBE_S)
    assert not is_worth_it(enough, slow + 1, PROBE_S)
    assert not is_worth_it(enough, 0, PROBE_S - 0.001)
    assert is_worth_it(enough, slow + 1, PROBE_S + 0.001)
    assert (PIECE_BYTES, FAST_BYTES_S, PROBE_S) == (1 << 20, 32 << 20, 0.25)


def test_the_rest_comes_in_pieces_each_once(
    spread: Spread, part: PartFile, server: BadServer
) -> None:
    server.usual = bad.limited(5e5)
    spread.run()
    assert part.path.read_bytes() == DATA
    assert all(thread.daemon for thread in spread.clients)
    assert sorted(asked.range for asked in server.requests) == sorted(
        f"bytes={at}-{min(at + PIECE, SIZE) - 1}" for at in range(700, SIZE, PIECE)
    )
    assert 2 <= server.peak <= 8
    assert spread.came_bytes == SIZE - 700
    assert not any(thread.is_alive() for thread in spread.clients)


def test_a_file_may_be_spread_from_its_first_byte(
    server: BadServer, part: PartFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces that are read in parts, too."""
    monkeypatch.setattr(clients, "READ_BYTES", PIECE // 3)
    server.files["a"] = DATA
    part.restart(bad.etag(DATA))
    make_spread(server, part).run()
    assert part.path.read_bytes() == DATA


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


@pytest.mark.parametrize(
    ("fault", "kind"), [(bad.status(404), None), (bad.status(503), TransientError)]
)
def test_when_every_connection_fails_it_ends(
    spread: Spread, part: PartFile, server: BadServer, fault: Fault, kind: type[Exception] | None
) -> None:
    server.faults["a"] = [fault] * 99
    if kind:
        with pytest.raises(kind, match="HTTP 503"):
            spread.run()
    else:
        spread.run()
        assert isinstance(spread.failure, PermanentError)
    assert part.size == 700
    assert sum(asked.sent for asked in server.requests) == 0
    assert 4 <= len(server.requests) <= 12


def test_an_error_of_the_disk_ends_all(spread: Spread) -> None:
    def fail(at: int, data: bytes) -> None:
        raise OSError("disk")

    spread.take = fail
    with pytest.raises(OSError, match="disk"):
        spread.run()
    assert spread.is_over
    assert not any(thread.is_alive() for thread in spread.clients)


def test_a_failure_before_the_end_does_not_matter_when_all_came(spread: Spread) -> None:
    spread.taken = len(spread.pieces)
    spread.failure = TransientError("x")
    spread.run()


def test_a_piece_counts_and_is_given_up_at_the_end(spread: Spread, server: BadServer) -> None:
    with closing(Client(QUICK)) as client:
        assert spread._fetch(client, 100, 200) == DATA[100:200]
        assert server.requests[-1].range == "bytes=100-199"
        assert spread.came_bytes == 100
        spread.is_over = True
        with pytest.raises(PermanentError):
            spread._fetch(client, 0, 100)


def test_what_is_claimed_next(spread: Spread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spreads, "WINDOW_PIECES", 3)
    error = PermanentError("x")
    assert [spread._claim() for _ in range(3)] == [0, 1, 2]
    for index in (2, 1):
        spread._give_back(index, error)
    assert [spread._claim() for _ in range(2)] == [1, 2]
    claimed: list[int] = []
    waiting = threading.Thread(target=lambda: claimed.append(spread._claim()))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()  # the window is full
    with spread.changed:
        spread.taken = 1
        spread.changed.notify_all()
    waiting.join(5)
    assert claimed == [3]
    last = len(spread.pieces) - 1
    spread.waiting, spread.taken = [last], last - 1
    assert (spread._claim(), spread._claim()) == (last, -1)
    spread.waiting = [5]
    spread.is_over = True
    assert spread._claim() == -1


def test_a_connection_that_failed_is_one_less(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = iter([5, 7, 1, 9])
    monkeypatch.setattr(spread, "_count", lambda: next(counts))
    error = PermanentError("x")
    seen = []
    spread.waiting = []
    for index in range(4):
        spread._give_back(index, error)
        seen.append((spread.most, spread.refusals))
    assert seen == [(4, 1), (4, 2), (2, 3), (2, 4)]
    assert spread.waiting == [0, 1, 2, 3]
    assert spread.failure is error


def test_connections_follow_what_they_give(spread: Spread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a clock of our own: nothing, 100 B/s twice, 114 (no gain), then 135 (a gain)."""
    clock = [0.0]
    rounds = iter([(0.5, 0), (0.5, 50), (1, 150), (0.5, 207), (1, 342), (0.5, 417)])
    made: list[int] = []
    monkeypatch.setattr(spread, "_connect", made.append)
    monkeypatch.setattr(spread, "_count", lambda: 4)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def wait(predicate: object, timeout: float) -> bool:
        elapsed_s, spread.came_bytes = next(rounds)
        clock[0] += elapsed_s
        if spread.came_bytes == 417:
            spread.arrived[0] = DATA[700:]
        return True

    spread.pieces = [(700, SIZE)]
    monkeypatch.setattr(spread.changed, "wait_for", wait)
    spread._gather()
    assert spread.taken == 1
    assert made == [0, 2, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("refusals", "waiting", "asks"), [(7, [0], True), (8, [0], False), (0, [], False)]
)
def test_no_connection_is_added_after_refusals_or_for_nothing(
    spread: Spread,
    monkeypatch: pytest.MonkeyPatch,
    refusals: int,
    waiting: list[int],
    asks: bool,
) -> None:
    clock = [0.0]
    made: list[int] = []
    monkeypatch.setattr(spread, "_connect", made.append)
    monkeypatch.setattr(spread, "_count", lambda: 4)
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    spread.refusals, spread.waiting, spread.pieces = refusals, waiting, [(700, SIZE)]

    def wait(predicate: object, timeout: float) -> bool:
        assert callable(predicate)
        assert not predicate()
        assert timeout == 0.05
        clock[0] += 0.4
        spread.arrived[0] = DATA[700:]
        assert predicate()
        return True

    monkeypatch.setattr(spread.changed, "wait_for", wait)
    spread._gather()
    assert bool(made) == asks


def test_it_begins_with_four_connections(spread: Spread, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (spread.wanted, spread.most, spread.refusals) == (4, 8, 0)
    assert (spread.waiting[0], spread.came_bytes, spread.failure) == (0, 0, None)
    seen: list[int] = []
    monkeypatch.setattr(spread, "_connect", seen.append)
    monkeypatch.setattr(spread, "_gather", lambda: None)
    spread.run()
    assert seen == [4]
