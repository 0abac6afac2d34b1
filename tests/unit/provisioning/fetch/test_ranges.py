"""Parts of a remote file: which are asked for, what an answer must be, what is brought once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioning.console.progress import Progress
from provisioning.fetch.ranges import (
    CostlyError,
    RemoteFile,
    Span,
    merge_spans,
    open_remote,
    plan_spans,
)
from tests.build.fetch import DATA, QUICK, SIZE, Watched, note, outcome, piece
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault

SPANS = st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), max_size=9)


@settings(deadline=None)
@given(spans=SPANS, gap=st.integers(0, 5))
def test_merged_spans_cover_the_same_bytes(spans: list[Span], gap: int) -> None:
    ranges = [(start, start + size) for start, size in spans]
    requested = {at for start, end in ranges for at in range(start, end)}
    merged = merge_spans(ranges, gap)
    covered = {at for start, end in merged for at in range(start, end)}
    between = [(end, start) for (_, end), (start, _) in pairwise(merged)]
    assert requested <= covered
    assert all(start - end > gap for end, start in between)
    for at in covered - requested:  # only what lies in a gap
        assert any(before in requested for before in range(at - gap, at))
        assert any(after in requested for after in range(at + 1, at + gap + 1))


def every(gap: int, count: int = 9, size: int = 1) -> list[Span]:
    """So many spans of a size, so far from each other."""
    return [(at * (gap + size), at * (gap + size) + size) for at in range(count)]


FAR, LARGE, MIB = every(100_001), 1 << 40, 1 << 20
SLOW = every(1_000_000, 10, 1000)  # 10 round trips of 1 s, and 10,000 bytes at 1000/s


@pytest.mark.parametrize(
    ("spans", "size", "round_trip_s", "bytes_s", "planned"),
    [
        ([(0, 10), (4106, 4107)], 9, 1, 1, [(0, 4107)]),
        ([(0, 10), (4107, 4108)], 9, 1, 1, [(0, 10), (4107, 4108)]),
        (every(5000, 8), 40_000, 9999, 1, every(5000, 8)),  # up to eight, as they are
        (every(5000), 40_000, 9999, 1, [(0, 40_000)]),
        (every(100_000), LARGE, 0.1, 1e6, [(0, 800_009)]),  # as far as a round trip brings
        (FAR, LARGE, 0.1, 1e6, FAR),
        (every(4 * MIB), LARGE, 999, 1e6, [(0, 32 * MIB + 9)]),
        (SLOW, 22_223, 1, 1000, SLOW),  # less than nine tenths of what the whole costs
        (SLOW, 22_222, 1, 1000, [(0, 22_222)]),
    ],
)
def test_ranges_are_requested_only_if_cheaper_than_the_whole_file(
    spans: Sequence[Span], size: int, round_trip_s: float, bytes_s: float, planned: Sequence[Span]
) -> None:
    assert plan_spans(spans, size, round_trip_s, bytes_s) == planned


@pytest.fixture
def remote(server: BadServer, tmp_path: Path) -> Iterator[RemoteFile]:
    """The last ten bytes are there."""
    server.files["a"] = DATA
    with open_remote(server.url("a"), tmp_path / "deep/er/.a.parts", Watched(), QUICK) as remote:
        assert math.isinf(remote.round_trip_s)
        remote.open(10)
        server.requests.clear()
        yield remote


def asked(server: BadServer) -> list[str]:
    return [request.range.removeprefix("bytes=") for request in server.requests]


@pytest.mark.parametrize("tail", [1000, SIZE, 2 * SIZE])
def test_reading_the_tail_of_a_remote_file_determines_its_size(
    server: BadServer, tmp_path: Path, tail: int
) -> None:
    """Data of an earlier process in the scratch file are ignored, and gc may remove the file."""
    server.files["a"] = DATA
    scratch = tmp_path / ".a.parts"
    scratch.write_bytes(b"x" * SIZE)
    with open_remote(server.url("a"), scratch, Progress(), QUICK) as remote:
        assert scratch.stat().st_size == 0
        remote.open(tail, SIZE)
        start = max(0, SIZE - tail)
        assert (remote.size, remote.validator) == (SIZE, bad.etag(DATA))
        assert (remote.name, remote.spans) == ("a.parts", [(start, SIZE)])
        assert 0 < remote.round_trip_s < math.inf
        assert remote.read_at(start, 2 * SIZE) == DATA[-tail:]
        assert asked(server) == [f"-{tail}"]
        scratch.unlink()
    assert list(tmp_path.iterdir()) == []


NONE = "PermanentError: the server does not support ranges"
OTHER = "PermanentError: the server sent a range other than the one requested"
MORE = "PermanentError: the server sent more than was requested"
LONGER = f"bytes {SIZE - 10}-{SIZE}/{SIZE + 1}"
BUSY, EARLY = bad.status(503), piece(extra=-1, sized=False)


@pytest.mark.parametrize(
    ("faults", "attempts", "ending", "requests"),
    [
        ([piece(status=200)], 3, NONE, 1),
        ([piece(Content_Range=f"bytes {SIZE - 10}-{SIZE - 1}/*")], 3, NONE, 1),
        ([piece(SIZE - 11)], 3, OTHER, 1),
        (
            [piece(SIZE - 11, Content_Range=f"bytes {SIZE - 10}-{SIZE - 1}/{SIZE}")],
            3,
            MORE,
            1,
        ),
        (
            [piece(Content_Range=LONGER)],
            3,
            f"MismatchError: it is {SIZE + 1} bytes long, not the pinned {SIZE}",
            1,
        ),
        ([BUSY], 3, None, 2),
        ([EARLY] * 2, 3, "PermanentError: the body ended early (2 tries)", 2),
    ],
)
def test_a_tail_is_tried_twice_unless_the_server_has_none(
    remote: RemoteFile,
    server: BadServer,
    faults: list[Fault],
    attempts: int,
    ending: str | None,
    requests: int,
) -> None:
    server.faults["a"] = list(faults)
    remote.policy = replace(QUICK, attempts=attempts)
    remote.spans = []
    assert outcome(lambda: remote.open(10, SIZE)) == ending
    assert len(server.requests) == requests
    assert remote.spans == ([] if ending else [(SIZE - 10, SIZE)])


def test_each_byte_range_is_fetched_only_once(remote: RemoteFile, server: BadServer) -> None:
    fetch = remote.fetch
    steps = [
        (lambda: fetch([(0, 100), (20_000, 20_100)]), ["0-99", "20000-20099"]),
        (lambda: remote.read_at(20_010, 20) == DATA[20_010:20_030], []),
        (lambda: fetch([(10, 90), (20_000, 20_100), (SIZE - 10, SIZE)]), []),
        (lambda: fetch([(90, 110)]), ["90-109"]),
        (lambda: remote.read_at(0, 110) == DATA[:110], []),
        (lambda: fetch([(200, 300)]), ["200-299"]),
        (lambda: remote.read_at(100, 200) == DATA[100:300], ["100-299"]),  # not in between
        (lambda: remote.read_at(100, 200) == DATA[100:300], []),
        (lambda: remote.read_at(9000, 0) == b"", []),
        (lambda: remote.read_at(SIZE, 5) == b"", []),
        (lambda: remote.read_at(SIZE + 5, 5) == b"", []),
        (lambda: remote.read_at(SIZE - 3, 99) == DATA[-3:], []),
        (lambda: remote.read_at(300, 1) == DATA[300:301], ["300-300"]),
    ]
    for step, requests in steps:
        server.requests.clear()
        assert step() in {None, True}
        assert asked(server) == requests
    assert isinstance(remote.progress, Watched)
    bars = [(bar.label, bar.done, bar.total) for bar in remote.progress.bars]
    assert bars == [
        ("a.parts: 2 parts,", 200, 200),
        ("a.parts: 0 parts,", 0, 0),
        ("a.parts: 1 parts,", 20, 20),
        ("a.parts: 1 parts,", 100, 100),
    ]


def test_byte_ranges_slower_than_the_whole_file_are_not_fetched(
    remote: RemoteFile, server: BadServer
) -> None:
    remote.round_trip_s = 10.0
    with pytest.raises(CostlyError, match=r"^9 parts would take longer than the whole file$"):
        remote.fetch(every(5000))
    assert server.requests == []


CHANGED = "PermanentError: the file changed during the download"


@pytest.mark.parametrize(
    ("faults", "ending", "requests"),
    [
        ([piece(status=200)], CHANGED, ["100-199"]),
        ([piece(101)], CHANGED, ["100-199"]),
        ([piece(Content_Range=f"bytes 100-199/{SIZE + 1}")], CHANGED, ["100-199"]),
        ([piece(ETag='"other"')], CHANGED, ["100-199"]),
        ([piece(extra=1, sized=False)], MORE, ["100-199"]),
        ([piece(ETag="")], None, ["100-199"]),
        ([piece(extra=-70, sized=False)], None, ["100-199", "130-199"]),
        ([BUSY, piece(extra=-70, sized=False)], None, ["100-199", "100-199", "130-199"]),
        (
            [EARLY] * 3,
            "PermanentError: the body ended early (3 tries)",
            ["100-199", "199-199", "199-199"],
        ),
    ],
)
def test_a_range_of_a_changed_file_is_refused(
    remote: RemoteFile,
    server: BadServer,
    faults: list[Fault],
    ending: str | None,
    requests: list[str],
) -> None:
    server.faults["a"] = list(faults)
    ended = outcome(lambda: remote.read_at(100, 100))
    assert ended == (ending or DATA[100:200])
    assert asked(server) == requests
    assert ((100, 200) in remote.spans) == (ending is None)
    assert remote.read_at(100, 100) == DATA[100:200]


def test_range_is_requested_with_the_files_validator(remote: RemoteFile, server: BadServer) -> None:
    """The shortest measured round trip counts."""
    request_headers: list[dict[str, str]] = []
    remote.round_trip_s = 0.0
    server.faults["a"] = [note(request_headers)]
    remote.read_at(100, 100)
    assert [headers["If-Range"] for headers in request_headers] == [bad.etag(DATA)]
    assert remote.round_trip_s == 0.0
    remote.round_trip_s = 999.0
    remote.read_at(300, 100)
    assert 0 < remote.round_trip_s < 999
    server.files["a"] = DATA[::-1]
    assert outcome(lambda: remote.read_at(500, 100)) == CHANGED
