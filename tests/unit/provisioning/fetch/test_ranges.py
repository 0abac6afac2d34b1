"""Parts of a remote file: which are asked for, what an answer must be, what is brought once."""

from __future__ import annotations

import dataclasses
import math
import random
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from provisioning.console.progress import Progress
from provisioning.fetch import ranges
from provisioning.fetch.ranges import (
    CostlyError,
    NoRangesError,
    RemoteFile,
    merge_spans,
    open_remote,
    plan_spans,
    split_spans,
)
from provisioning.fetch.transfer import MismatchError, PermanentError, TransferPolicy
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault

DATA = random.Random(9).randbytes(50_000)
SIZE = len(DATA)
QUICK = TransferPolicy(attempts=3, backoff_s=0, connect_timeout_s=5, read_timeout_s=5)


@pytest.fixture
def remote(server: BadServer, tmp_path: Path) -> Iterator[RemoteFile]:
    server.files["a"] = DATA
    with open_remote(server.url("a"), tmp_path / "deep/er/.a.parts", Progress(), QUICK) as remote:
        yield remote


def asked(server: BadServer) -> list[str]:
    return [one.range.removeprefix("bytes=") for one in server.requests]


def test_spans_are_merged_at_their_gap() -> None:
    assert merge_spans([(0, 10), (20, 30)], 10) == [(0, 30)]
    assert merge_spans([(0, 10), (21, 30)], 10) == [(0, 10), (21, 30)]
    assert merge_spans([(20, 30), (0, 10)], 0) == [(0, 10), (20, 30)]
    assert merge_spans([(0, 10), (10, 30), (5, 7)], 0) == [(0, 30)]
    assert merge_spans([(0, 10), (4106, 4107)]) == [(0, 4107)]
    assert merge_spans([(0, 10), (4107, 4108)]) == [(0, 10), (4107, 4108)]
    several = [(0, 10), (100, 110), (112, 120), (119, 121), (200, 201), (202, 204)]
    assert merge_spans(several, 5) == [(0, 10), (100, 121), (200, 204)]
    assert merge_spans([]) == []


def spread(count: int, gap: int, size: int = 1) -> list[tuple[int, int]]:
    return [(at * (gap + size), at * (gap + size) + size) for at in range(count)]


def test_up_to_eight_parts_are_asked_for_as_they_are() -> None:
    assert plan_spans(spread(8, 5000), 40_000, 9999, 1) == spread(8, 5000)
    assert plan_spans(spread(9, 5000), 40_000, 9999, 1) == [(0, 40_000)]


def test_the_gap_follows_what_a_round_trip_costs_between_its_limits() -> None:
    large = 1 << 40
    near, far = spread(9, 100_000), spread(9, 100_001)
    assert plan_spans(near, large, 0.1, 1e6) == [(0, near[-1][1])]
    assert plan_spans(far, large, 0.1, 1e6) == far
    least = spread(9, 4097)
    assert plan_spans(least, large, 0, 1e6) == least
    most = spread(9, (4 << 20) + 1)
    assert plan_spans(most, large, 999, 1e6) == most
    assert plan_spans(spread(9, 4 << 20), large, 999, 1e6) == [(0, 8 * (4 << 20) + 9)]


def test_parts_that_cost_nine_tenths_of_the_whole_are_not_asked_for() -> None:
    parts = spread(10, 1_000_000, 1000)  # 10 round trips of 1 s, and 10,000 bytes at 1000/s
    assert plan_spans(parts, 22_223, 1, 1000) == parts
    assert plan_spans(parts, 22_222, 1, 1000) == [(0, 22_222)]
    assert plan_spans(spread(9, 1 << 23), 90, 0, 1) == spread(9, 1 << 23)
    assert plan_spans(spread(9, 1 << 23), 10, 0, 1) == [(0, 10)]


def test_pieces_have_a_largest_size() -> None:
    assert split_spans([(5, 15)], 10) == [(5, 15)]
    assert split_spans([(5, 16)], 10) == [(5, 15), (15, 16)]
    assert split_spans([(0, (1 << 20) + 1)]) == [(0, 1 << 20), (1 << 20, (1 << 20) + 1)]


def test_a_tail_tells_the_size(remote: RemoteFile, server: BadServer, tmp_path: Path) -> None:
    assert math.isinf(remote.round_trip_s)
    remote.open(1000, SIZE)
    assert (remote.size, remote.validator, remote.spans) == (
        SIZE,
        bad.etag(DATA),
        [(SIZE - 1000, SIZE)],
    )
    assert 0 < remote.round_trip_s < math.inf
    assert remote.name == "a.parts"
    assert remote.read_at(SIZE - 1000, 5000) == DATA[-1000:]
    assert asked(server) == ["-1000"]


def test_a_tail_may_be_the_whole(remote: RemoteFile, server: BadServer) -> None:
    remote.open(2 * SIZE)
    assert remote.read_at(0, SIZE) == DATA
    assert asked(server) == [f"-{2 * SIZE}"]


def test_an_earlier_scratch_file_is_not_read(server: BadServer, tmp_path: Path) -> None:
    server.files["a"] = DATA
    scratch = tmp_path / ".a.parts"
    scratch.write_bytes(b"x" * SIZE)
    with open_remote(server.url("a"), scratch, Progress(), QUICK) as remote:
        assert scratch.stat().st_size == 0
        remote.open(10)
        assert remote.read_at(0, 10) == DATA[:10]
        scratch.unlink()  # as gc may
    assert list(tmp_path.iterdir()) == []


def test_the_scratch_file_goes_after_an_error_too(server: BadServer, tmp_path: Path) -> None:
    def work() -> None:
        with open_remote(server.url("a"), tmp_path / ".a.parts", Progress(), QUICK) as remote:
            before.append(remote)
            remote.open(10)

    before: list[RemoteFile] = []
    with pytest.raises(PermanentError, match="404"):
        work()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError, match="Bad file"):
        before[0].close()


def test_the_policy_is_that_of_the_environment(
    server: BadServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_ATTEMPTS", "7")
    with open_remote(server.url("a"), tmp_path / ".a", Progress()) as remote:
        assert remote.policy.attempts == 7


def tail(start: int, **more: str) -> Fault:
    """A tail that begins at ``start``, with other headers than it should have."""

    def fault(handler: bad.Handler, data: bytes) -> None:
        headers = {"ETag": bad.etag(data), "Content_Range": f"bytes {start}-{SIZE - 1}/{SIZE}"}
        status = int(more.pop("status", "206"))
        handler.head(status, SIZE - start, **{**headers, **more})
        handler.body(data[start:])

    return fault


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (tail(SIZE - 10, status="200"), NoRangesError, "the server does not support ranges"),
        (tail(SIZE - 10, ETag=""), NoRangesError, "the server does not support ranges"),
        (
            tail(SIZE - 10, Content_Range=f"bytes {SIZE - 10}-{SIZE - 1}/*"),
            NoRangesError,
            "the server does not support ranges",
        ),
        (
            tail(SIZE - 10, Content_Range=f"bytes */{SIZE}"),
            NoRangesError,
            "the server does not support ranges",
        ),
        (
            tail(SIZE - 11),
            NoRangesError,
            "the server sent a range other than the one requested",
        ),
        (tail(SIZE - 9), NoRangesError, "the server sent a range other than the one requested"),
        (
            tail(SIZE - 11, Content_Range=f"bytes {SIZE - 10}-{SIZE - 1}/{SIZE}"),
            PermanentError,
            "the server sent more than was requested",
        ),
        (
            tail(SIZE - 10, Content_Range=f"bytes {SIZE - 10}-{SIZE}/{SIZE + 1}"),
            MismatchError,
            f"it is {SIZE + 1} bytes long, not the pinned {SIZE}",
        ),
    ],
)
def test_a_tail_that_is_none_is_given_up_at_once(
    remote: RemoteFile, server: BadServer, fault: Fault, kind: type[Exception], words: str
) -> None:
    server.faults["a"] = [fault, fault]
    with pytest.raises(kind) as caught:
        remote.open(10, SIZE)
    assert (str(caught.value), len(server.requests)) == (words, 1)


def test_a_tail_is_tried_twice_or_less(remote: RemoteFile, server: BadServer) -> None:
    server.faults["a"] = [bad.status(503)]
    remote.open(10)
    assert len(server.requests) == 2
    server.faults["a"] = [bad.status(503)] * 9
    with pytest.raises(PermanentError, match=r"HTTP 503 \(2 tries\)"):
        remote.open(10)
    server.requests.clear()
    remote.policy = dataclasses.replace(QUICK, attempts=1)
    with pytest.raises(PermanentError, match=r"HTTP 503 \(1 try\)"):
        remote.open(10)
    assert len(server.requests) == 1


def test_a_first_byte_at_the_beginning_is_one(remote: RemoteFile, server: BadServer) -> None:
    server.faults["a"] = [tail(0)]
    remote.open(SIZE)
    assert remote.spans == [(0, SIZE)]


def short_tail(handler: bad.Handler, data: bytes) -> None:
    """A tail without a length that ends too early."""
    where = f"bytes {SIZE - 10}-{SIZE - 1}/{SIZE}"
    handler.head(206, None, ETag=bad.etag(data), Content_Range=where)
    handler.body(data[-10:-1])


def test_a_tail_that_ends_early_is_tried_again(remote: RemoteFile, server: BadServer) -> None:
    server.faults["a"] = [short_tail]
    remote.open(10)
    assert len(server.requests) == 2
    server.faults["a"] = [short_tail] * 2
    remote.spans = []
    with pytest.raises(PermanentError, match=r"^the body ended early \(2 tries\)$"):
        remote.open(10)
    assert remote.spans == []


def test_parts_are_brought_once(remote: RemoteFile, server: BadServer) -> None:
    remote.open(10)
    server.requests.clear()
    remote.fetch([(0, 100), (20_000, 20_100)])
    assert asked(server) == ["0-99", "20000-20099"]
    assert remote.read_at(20_010, 20) == DATA[20_010:20_030]
    remote.fetch([(10, 90), (20_000, 20_100), (SIZE - 10, SIZE)])
    assert len(server.requests) == 2
    remote.fetch([(90, 110)])
    assert asked(server)[2:] == ["90-109"]
    assert remote.read_at(0, 110) == DATA[:110]
    assert len(server.requests) == 3
    remote.fetch([(200, 300)])
    assert remote.read_at(100, 200) == DATA[100:300]  # what lies between two parts is not there
    assert remote.read_at(100, 200) == DATA[100:300]
    assert asked(server)[3:] == ["200-299", "100-299"]


def test_parts_that_cost_too_much_are_not_brought(remote: RemoteFile, server: BadServer) -> None:
    remote.open(10)
    remote.round_trip_s = 10.0
    server.requests.clear()
    with pytest.raises(CostlyError, match=r"^9 parts would take longer than the whole file$"):
        remote.fetch([(at * 5000, at * 5000 + 10) for at in range(9)])
    assert server.requests == []


def test_reading_brings_what_is_not_there(remote: RemoteFile, server: BadServer) -> None:
    remote.open(10)
    server.requests.clear()
    assert remote.read_at(5, 10) == DATA[5:15]
    assert remote.read_at(5, 10) == DATA[5:15]
    assert remote.read_at(6, 0) == b""
    assert remote.read_at(9000, 0) == b""
    assert remote.read_at(SIZE, 5) == b""
    assert remote.read_at(SIZE + 5, 5) == b""
    assert remote.read_at(SIZE - 3, 99) == DATA[-3:]
    assert asked(server) == ["5-14"]
    assert remote.read_at(4, 10) == DATA[4:14]
    assert remote.read_at(15, 1) == DATA[15:16]
    assert asked(server) == ["5-14", "4-13", "15-15"]


def other_part(**more: str) -> Fault:
    """The part that was asked for, with other headers."""

    def fault(handler: bad.Handler, data: bytes) -> None:
        start, end = handler.span(data) or (0, SIZE)
        headers = {"ETag": bad.etag(data), "Content_Range": f"bytes {start}-{end - 1}/{SIZE}"}
        status, extra = int(more.get("status", "206")), int(more.get("extra", "0"))
        changed = {name: text for name, text in more.items() if name[0].isupper()}
        handler.head(status, end - start + extra, **{**headers, **changed})
        handler.body(data[start : end + extra])

    return fault


MID_WAY, MORE = "the file changed during the download", "the server sent more than was requested"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (other_part(status="200"), MID_WAY),
        (other_part(Content_Range=f"bytes 101-199/{SIZE}"), MID_WAY),
        (other_part(Content_Range=f"bytes 100-199/{SIZE + 1}"), MID_WAY),
        (other_part(Content_Range="bytes 100-199/*"), MID_WAY),
        (other_part(ETag='"other"'), MID_WAY),
        (other_part(extra="1"), MORE),
    ],
)
def test_a_part_of_something_else_ends_it(
    remote: RemoteFile, server: BadServer, fault: Fault, words: str
) -> None:
    remote.open(10)
    server.requests.clear()
    server.faults["a"] = [fault]
    with pytest.raises(PermanentError) as caught:
        remote.read_at(100, 100)
    assert (str(caught.value), len(server.requests)) == (words, 1)
    assert remote.spans == [(SIZE - 10, SIZE)]
    assert remote.read_at(100, 100) == DATA[100:200]


def endless(handler: bad.Handler, data: bytes) -> None:
    """More than was asked for, of a length that is not told."""
    handler.head(206, None, ETag=bad.etag(data), Content_Range=f"bytes 100-199/{SIZE}")
    handler.body(data[100:201])


def test_a_body_of_no_length_is_not_taken_beyond_its_part(
    remote: RemoteFile, server: BadServer
) -> None:
    remote.open(10)
    server.faults["a"] = [endless]
    with pytest.raises(PermanentError, match=f"^{MORE}$"):
        remote.read_at(100, 100)


def test_a_part_without_a_validator_is_one(remote: RemoteFile, server: BadServer) -> None:
    remote.open(10)
    server.faults["a"] = [other_part(ETag="")]
    assert remote.read_at(100, 100) == DATA[100:200]


def test_a_part_that_breaks_is_gone_on_with(remote: RemoteFile, server: BadServer) -> None:
    def broken(handler: bad.Handler, data: bytes) -> None:
        start, end = handler.span(data) or (0, 0)
        where = f"bytes {start}-{end - 1}/{SIZE}"
        handler.head(206, None, ETag=bad.etag(data), Content_Range=where)
        handler.body(data[start : start + 30])

    remote.open(10)
    server.requests.clear()
    server.faults["a"] = [broken, broken]
    assert remote.read_at(100, 100) == DATA[100:200]
    assert asked(server) == ["100-199", "130-199", "160-199"]
    server.faults["a"] = [broken] * 3
    with pytest.raises(PermanentError, match=r"the body ended early \(3 tries\)"):
        remote.read_at(1000, 100)


def test_a_part_is_asked_for_by_its_validator(remote: RemoteFile, server: BadServer) -> None:
    seen: list[str | None] = []

    def look(handler: bad.Handler, data: bytes) -> None:
        seen.append(handler.headers.get("If-Range"))
        bad.serve(handler, data)

    remote.open(10)
    remote.round_trip_s = 0.0
    server.faults["a"] = [look]
    remote.read_at(100, 100)
    assert seen == [bad.etag(DATA)]
    assert remote.round_trip_s == 0.0  # the shortest one counts
    remote.round_trip_s = 999.0
    remote.read_at(300, 100)
    assert 0 < remote.round_trip_s < 999
    remote.read_at(201, 10)
    assert (200, 211) not in remote.spans
    assert remote.read_at(200, 1) == DATA[200:201]


def test_parts_name_the_file_that_they_are_of(remote: RemoteFile, server: BadServer) -> None:
    remote.open(10)
    server.files["a"] = DATA[::-1]
    with pytest.raises(PermanentError, match=f"^{MID_WAY}$"):
        remote.read_at(100, 100)


def test_pieces_come_together_where_one_connection_is_slow(
    remote: RemoteFile, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.open(10)
    asked, met = count(), threading.Event()

    def meet(handler: bad.Handler, data: bytes) -> None:
        server.busy += 1
        server.peak = max(server.peak, server.busy)
        if server.busy > 1:
            met.set()
        elif next(asked) >= 3:  # where connections may be several, the first waits for another
            met.wait(2)
        try:
            bad.serve(handler, data)
        finally:
            server.busy -= 1

    server.usual = meet
    calls: list[tuple[int, int]] = []

    def judge(left: int, came: int, seconds: float) -> bool:
        assert seconds >= 0
        calls.append((left, came))
        return came >= 2000

    monkeypatch.setattr(ranges, "is_worth_it", judge)
    monkeypatch.setattr(ranges, "split_spans", lambda spans: split_spans(spans, 1000))
    advanced: list[float] = []
    monkeypatch.setattr(
        "provisioning.console.progress.Bar.advance", lambda bar, amount: advanced.append(amount)
    )
    try:
        remote.fetch([(0, 20_000)])
    finally:
        server.usual = bad.serve
    assert calls == [(20_000, 0), (19_000, 1000), (18_000, 2000)]
    assert 2 <= server.peak <= 8
    assert remote.spans == [(0, 20_000), (SIZE - 10, SIZE)]
    assert remote.read_at(0, 20_000) == DATA[:20_000]
    assert sum(advanced) == 20_000


def test_one_failure_ends_all_parts(
    remote: RemoteFile, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.open(10)
    server.requests.clear()
    remote.policy = dataclasses.replace(QUICK, read_timeout_s=120)
    monkeypatch.setattr(ranges, "is_worth_it", lambda left, came, seconds: True)
    monkeypatch.setattr(ranges, "split_spans", lambda spans: split_spans(spans, 1000))
    has_ended = threading.Event()
    released: list[bool] = []

    def held(handler: bad.Handler, data: bytes) -> None:
        start, end = handler.span(data) or (0, 0)
        where = f"bytes {start}-{end - 1}/{SIZE}"
        handler.head(206, end - start, ETag=bad.etag(data), Content_Range=where)
        has_ended.wait(30)
        released.append(True)

    server.faults["a"] = [other_part(ETag='"other"'), *[held] * 50]
    with pytest.raises(PermanentError, match=f"^{MID_WAY}$"):
        remote.fetch([(0, 20_000)])
    assert not released  # nobody waits for what is held
    has_ended.set()
    assert len(server.requests) <= 8


def test_what_several_connections_leave_comes_over_one(
    remote: RemoteFile, server: BadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.open(10)
    monkeypatch.setattr(ranges, "is_worth_it", lambda left, came, seconds: True)
    monkeypatch.setattr(ranges, "split_spans", lambda spans: split_spans(spans, 1000))
    server.faults["a"] = [bad.status(503)] * 4  # the first answer to each connection
    remote.fetch([(0, 20_000)])
    assert remote.spans == [(0, 20_000), (SIZE - 10, SIZE)]
    assert remote.read_at(0, 20_000) == DATA[:20_000]


def test_a_bar_says_how_many_parts_there_are(server: BadServer, tmp_path: Path) -> None:
    server.files["a"] = DATA
    seen: list[tuple[str, float]] = []

    class Shown(Progress):
        def bar(self, label: str, total: float = 0, unit: str = "B"):  # type: ignore[no-untyped-def]
            seen.append((label, total))
            return super().bar(label, total, unit)

    with open_remote(server.url("a"), tmp_path / ".a.parts", Shown(), QUICK) as remote:
        remote.open(10)
        remote.fetch([(0, 100), (20_000, 20_050)])
    assert seen == [("a.parts: 2 parts,", 150)]
