"""Fetch byte ranges of a remote file.

RemoteFile fetches some ranges into a sparse local file, with few requests.

Spread fetches a file over several connections. It is meant for large pinned files on servers that
limit each connection. Pieces arrive out of order and wait in memory, in a bounded window. They are
written in order, so that a download can be resumed if its process is killed.
"""

from __future__ import annotations

import math
import os
import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Condition, Lock, Thread

from provisioning.console.progress import Bar, Progress
from provisioning.fetch.client import Client
from provisioning.fetch.part_file import open_part
from provisioning.fetch.transfer import (
    ChangedError,
    MismatchError,
    PermanentError,
    TransferPolicy,
    TransientError,
    try_again,
)

Span = tuple[int, int]  # first byte, one past the last
MERGE_GAP_BYTES = 4096
MOST_GAP_BYTES = 4 << 20
FEW_SPANS = 8
USUAL_BYTES_S = 8 << 20
PIECE_BYTES = 1 << 20
OPEN_ATTEMPTS = 2
ABORT_S = 0.02
WINDOW_PIECES = 48
FIRST_CONNECTIONS, STEP_CONNECTIONS, MOST_CONNECTIONS = 4, 2, 8
ROUND_S = 0.4
MIN_FILE_BYTES = 16 << 20
PROBE_S = 0.25
FAST_BYTES_S = 32 << 20
GAIN = 1.15


def is_worth_it(left_bytes: int, came_bytes: int, seconds: float) -> bool:
    """Return whether more connections may help to download ``left_bytes`` if ``came_bytes`` arrived
    in ``seconds``.
    """
    is_slow = came_bytes < FAST_BYTES_S * seconds
    return seconds >= PROBE_S and is_slow and left_bytes > 8 * PIECE_BYTES


class Spread:
    """Downloads ``url``, a file of ``size_bytes`` with ``validator``, in pieces, and adapts the
    number of connections to their throughput. ``take`` is called with the offset and bytes of each
    piece, in order; ``taken`` counts these calls.
    """

    def __init__(
        self,
        url: str,
        pieces: Sequence[Span],
        take: Callable[[int, bytes], None],
        *,
        size_bytes: int,
        validator: str,
        policy: TransferPolicy,
    ) -> None:
        self.url, self.pieces, self.size_bytes = url, pieces, size_bytes
        self.validator, self.policy, self.take = validator, policy, take
        self.changed = Condition()
        self.waiting = list(range(len(pieces)))
        self.taken = 0
        self.arrived: dict[int, bytes] = {}
        self.clients: dict[Thread, Client] = {}
        self.wanted, self.most, self.refusals = FIRST_CONNECTIONS, MOST_CONNECTIONS, 0
        self.came_bytes = 0
        self.failure: TransientError | PermanentError | None = None
        self.is_over = False

    def run(self) -> None:
        """Download until all pieces were passed to ``take``, every connection has failed, or the
        server's file has changed.

        Raises OSError, and TransientError if pieces are missing and the last failure was transient.
        """
        try:
            self._connect(FIRST_CONNECTIONS)
            self._gather()
        finally:
            with self.changed:
                self.is_over = True
                self.changed.notify_all()
            for thread, client in self.clients.items():
                while thread.is_alive():
                    client.abort()  # repeated, since it may have been connecting
                    thread.join(ABORT_S)
        if isinstance(self.failure, TransientError) and self.taken < len(self.pieces):
            raise self.failure

    def _connect(self, count: int) -> None:
        for _ in range(count):
            client = Client(self.policy)
            thread = Thread(target=self._work, args=(client,), daemon=True)
            self.clients[thread] = client
            thread.start()

    def _count(self) -> int:
        """Return the number of working connections."""
        return sum(thread.is_alive() for thread in self.clients)

    def _gather(self) -> None:
        """Pass pieces to ``take`` in order. Every ROUND_S seconds, add connections if the last ones
        increased the throughput.
        """
        best, since, before = 0.0, time.monotonic(), 0
        while self.taken < len(self.pieces) and not isinstance(self.failure, ChangedError):
            with self.changed:
                self.changed.wait_for(lambda: self.taken in self.arrived, 0.05)
                data = self.arrived.pop(self.taken, None)
                self.changed.notify_all()
            if data is not None:
                self.take(self.pieces[self.taken][0], data)
                self.taken += 1
            elif not self._count():
                return
            if (elapsed_s := time.monotonic() - since) >= ROUND_S:
                rate = (self.came_bytes - before) / elapsed_s
                if rate > GAIN * best:
                    self.wanted += STEP_CONNECTIONS
                if self.refusals < MOST_CONNECTIONS and self.waiting:
                    self._connect(min(self.most, self.wanted) - self._count())
                best, since, before = max(best, rate), time.monotonic(), self.came_bytes

    def _work(self, client: Client) -> None:
        with closing(client):
            while (index := self._claim()) >= 0:
                try:
                    data = self._fetch(client, *self.pieces[index])
                except (TransientError, PermanentError) as error:
                    self._give_back(index, error)
                    return
                with self.changed:
                    self.arrived[index] = data
                    self.changed.notify_all()

    def _claim(self) -> int:
        """Return the index of the next piece to download, -1 if there is none."""
        with self.changed:
            while self.waiting and not self.is_over:
                if self.waiting[0] < self.taken + WINDOW_PIECES:
                    return self.waiting.pop(0)
                self.changed.wait(0.5)
        return -1

    def _give_back(self, index: int, error: TransientError | PermanentError) -> None:
        """Put the piece ``index`` back into the queue after a failure, and allow one connection
        fewer, but at least two.
        """
        with self.changed:
            insort(self.waiting, index)
            self.refusals += 1
            self.most = max(2, min(self.most, self._count() - 1))
            if not isinstance(self.failure, ChangedError):
                self.failure = error
            self.changed.notify_all()

    def _fetch(self, client: Client, start: int, end: int) -> bytes:
        data = bytearray()
        total, validator = self.size_bytes, self.validator
        with closing(
            client.get_range(self.url, start, end, total=total, validator=validator)
        ) as body:
            for piece in body:
                data += piece
                self.came_bytes += len(piece)
                if self.is_over:
                    raise PermanentError("it is no longer needed")
        return bytes(data)


class NoRangesError(PermanentError):
    """The server does not support ranges."""


class CostlyError(PermanentError):
    """Fetching the parts would take longer than fetching the whole file."""


def merge_spans(spans: Iterable[Span], gap_bytes: int = MERGE_GAP_BYTES) -> list[Span]:
    """Return the spans in order, merging those that are at most ``gap_bytes`` apart."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start - merged[-1][1] <= gap_bytes:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def plan_spans(
    spans: Sequence[Span], size_bytes: int, round_trip_s: float, bytes_s: float
) -> list[Span]:
    """Return the spans to request; spans that are at most MERGE_GAP_BYTES apart are merged.

    If more than FEW_SPANS are left, two spans are also merged if downloading the bytes between them
    takes less time than a round trip. The result is then one span of the whole file if downloading
    that is faster.
    """
    near = merge_spans(spans)
    if len(near) <= FEW_SPANS:
        return near
    gap_bytes = min(max(round_trip_s * bytes_s, MERGE_GAP_BYTES), MOST_GAP_BYTES)
    merged = merge_spans(spans, int(gap_bytes))
    cost_s = len(merged) * round_trip_s + sum(end - start for start, end in merged) / bytes_s
    return merged if cost_s < 0.9 * size_bytes / bytes_s else [(0, size_bytes)]


def split_spans(spans: Iterable[Span], most_bytes: int = PIECE_BYTES) -> list[Span]:
    """Split spans into pieces of at most ``most_bytes``."""
    return [
        (at, min(at + most_bytes, end))
        for start, end in spans
        for at in range(start, end, most_bytes)
    ]


class RemoteFile:
    """A ByteSource that fetches ranges of a remote file over HTTP into the file ``scratch``.

    ``fetch`` fetches many spans at once. ``read_at`` reads fetched bytes, and sends a separate
    request for other bytes.
    """

    def __init__(self, url: str, scratch: Path, progress: Progress, policy: TransferPolicy) -> None:
        self.url, self.progress, self.policy = url, progress, policy
        self.scratch, self.name = scratch, scratch.name.strip(".")
        self.client = Client(policy)
        self.validator = ""
        self.size = 0
        self.spans: list[Span] = []
        self.reading = Lock()
        self.round_trip_s = math.inf
        self.fd = open_part(scratch)
        os.ftruncate(self.fd, 0)

    def close(self) -> None:
        """Close the connection, and remove the scratch file."""
        self.client.close()
        os.close(self.fd)
        self.scratch.unlink(missing_ok=True)

    def open(self, tail_bytes: int, size_bytes: int = 0) -> None:
        """Find the file's size, which must be ``size_bytes`` unless that is 0, and fetch its last
        ``tail_bytes``.

        Gives up after OPEN_ATTEMPTS attempts, since the whole file can still be downloaded. Raises
        PermanentError, and NoRangesError if the server does not support ranges.
        """
        brief = replace(self.policy, attempts=min(self.policy.attempts, OPEN_ATTEMPTS))
        open_ = partial(self._open, tail_bytes, size_bytes)
        try_again(open_, lambda: 0, brief, self.progress, self.name)

    def _open(self, tail_bytes: int, size_bytes: int) -> None:
        asked = time.monotonic()
        with self.client.get(self.url, {"Range": f"bytes=-{tail_bytes}"}) as (head, body):
            self.round_trip_s = time.monotonic() - asked
            if head.status != 206 or head.total < 0 or head.range_start < 0 or not head.validator:
                raise NoRangesError("the server does not support ranges")
            if size_bytes not in {0, head.total}:
                raise MismatchError(f"it is {head.total} bytes long, not the pinned {size_bytes}")
            if head.range_start != max(0, head.total - tail_bytes):
                raise NoRangesError("the server sent a range other than the one requested")
            self.size, self.validator = head.total, head.validator
            at = head.range_start
            for data in body:
                if at + len(data) > head.total:
                    raise PermanentError("the server sent more than was requested")
                os.pwrite(self.fd, data, at)
                at += len(data)
        if at != self.size:
            raise TransientError("the body ended early")
        self._have((head.range_start, at))

    def fetch(self, spans: Iterable[Span]) -> None:
        """Fetch these spans, over several connections if a single one is slow.

        Raises PermanentError, and CostlyError if the whole file would take less time.
        """
        missing = [span for span in spans if not self._has(span)]
        wanted = plan_spans(missing, self.size, self.round_trip_s, USUAL_BYTES_S)
        if wanted == [(0, self.size)]:
            raise CostlyError(f"{len(missing)} parts would take longer than the whole file")
        pieces, total = split_spans(wanted), sum(end - start for start, end in wanted)
        with self.progress.bar(f"{self.name}: {len(wanted)} parts,", total) as bar:
            began, came = time.monotonic(), 0
            while pieces and not is_worth_it(total - came, came, time.monotonic() - began):
                start, end = pieces.pop(0)
                self._fetch_span((start, end), bar)
                came += end - start
            if pieces:
                self._fetch_together(pieces, bar)

    def _fetch_together(self, pieces: list[Span], bar: Bar) -> None:
        """Fetch pieces over several connections, and the rest over one. Raises PermanentError."""

        def take(start: int, data: bytes) -> None:
            os.pwrite(self.fd, data, start)
            self._have((start, start + len(data)))
            bar.advance(len(data))

        size_bytes, validator, policy = self.size, self.validator, self.policy
        spread = Spread(
            self.url, pieces, take, size_bytes=size_bytes, validator=validator, policy=policy
        )
        with suppress(TransientError):
            spread.run()
        if isinstance(spread.failure, ChangedError):
            raise spread.failure
        for span in pieces[spread.taken :]:
            self._fetch_span(span, bar)

    def _fetch_span(self, span: Span, bar: Bar | None = None) -> None:
        at = [span[0]]

        def work() -> None:
            asked, bring = time.monotonic(), self.client.get_range
            total, validator = self.size, self.validator
            with closing(bring(self.url, at[0], span[1], total=total, validator=validator)) as body:
                for data in body:
                    self.round_trip_s = min(self.round_trip_s, time.monotonic() - asked)
                    os.pwrite(self.fd, data, at[0])
                    at[0] += len(data)
                    if bar:
                        bar.advance(len(data))

        try_again(work, lambda: at[0], self.policy, self.progress, self.name)
        self._have(span)

    def _has(self, span: Span) -> bool:
        return any(start <= span[0] and span[1] <= end for start, end in self.spans)

    def _have(self, span: Span) -> None:
        self.spans = merge_spans([*self.spans, span], 0)

    def read_at(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes at ``offset``, fewer at the end of the file."""
        end = min(offset + count, self.size)
        if end > offset and not self._has((offset, end)):
            with self.reading:
                self._fetch_span((offset, end))
        return os.pread(self.fd, end - offset, offset) if end > offset else b""


@contextmanager
def open_remote(
    url: str, scratch: Path, progress: Progress, policy: TransferPolicy | None = None
) -> Iterator[RemoteFile]:
    """Yield a RemoteFile; remove its scratch file afterwards."""
    scratch.parent.mkdir(parents=True, exist_ok=True)
    used = policy or TransferPolicy.from_environment()
    with closing(RemoteFile(url, scratch, progress, used)) as remote:
        yield remote
