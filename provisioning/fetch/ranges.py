"""Fetch byte ranges of a remote file into a sparse local file, with few requests."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock

from provisioning.console.progress import Bar, Progress
from provisioning.fetch.client import Client
from provisioning.fetch.part_file import open_part
from provisioning.fetch.transfer import (
    MismatchError,
    PermanentError,
    TransferPolicy,
    TransientError,
    try_again,
)

Span = tuple[int, int]  # first byte, one past the last
MERGE_GAP_BYTES = 4096
MOST_GAP_BYTES = 4 << 20
# So few requests are not worth a comparison with the whole file.
FEW_SPANS = 8
# An assumption: the speed is not known before the first large span.
USUAL_BYTES_S = 8 << 20
OPEN_ATTEMPTS = 2


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
    # The whole file is preferred if it costs about the same, since it can be resumed.
    return merged if cost_s < 0.9 * size_bytes / bytes_s else [(0, size_bytes)]


class RemoteFile:
    """A ByteSource that fetches ranges of a remote file over HTTP into the file ``scratch``.

    ``fetch`` fetches many spans at once. ``read_at`` reads fetched bytes, and sends a separate
    request for other bytes.
    """

    def __init__(self, url: str, scratch: Path, progress: Progress, policy: TransferPolicy) -> None:
        self.url, self.progress, self.policy = url, progress, policy
        self.scratch, self.name = scratch, scratch.name.strip(".")
        self.client = Client(policy, progress)
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
        PermanentError, also if the server does not support ranges.
        """
        brief = replace(self.policy, attempts=min(self.policy.attempts, OPEN_ATTEMPTS))
        open_ = partial(self._open, tail_bytes, size_bytes)
        try_again(open_, lambda: 0, brief, self.progress, self.name)

    def _open(self, tail_bytes: int, size_bytes: int) -> None:
        start_s = time.monotonic()
        with self.client.get(self.url, {"Range": f"bytes=-{tail_bytes}"}) as (head, body):
            self.round_trip_s = time.monotonic() - start_s
            # Without a validator, parts of two versions of the file could be mixed.
            if head.status != 206 or head.total < 0 or head.range_start < 0 or not head.validator:
                raise PermanentError("the server does not support ranges")
            if size_bytes not in {0, head.total}:
                raise MismatchError(f"it is {head.total} bytes long, not the pinned {size_bytes}")
            if head.range_start != max(0, head.total - tail_bytes):
                raise PermanentError("the server sent a range other than the one requested")
            self.size, self.validator = head.total, head.validator
            for _ in self._write(body, head.range_start, head.total):
                pass
        self._have((head.range_start, head.total))

    def _write(self, body: Iterable[bytes], at: int, end: int) -> Iterator[int]:
        """Write a body, which must end at ``end``, from the offset ``at`` on. Yield how many bytes
        were written each time. Raises PermanentError or TransientError.
        """
        for data in body:
            if at + len(data) > end:
                raise PermanentError("the server sent more than was requested")
            os.pwrite(self.fd, data, at)
            at += len(data)
            yield len(data)
        if at != end:
            raise TransientError("the body ended early")

    def fetch(self, spans: Iterable[Span]) -> None:
        """Fetch these spans.

        Raises PermanentError, and CostlyError if the whole file would take less time.
        """
        missing = [span for span in spans if not self._has(span)]
        planned = plan_spans(missing, self.size, self.round_trip_s, USUAL_BYTES_S)
        if planned == [(0, self.size)]:
            raise CostlyError(f"{len(missing)} parts would take longer than the whole file")
        total = sum(end - start for start, end in planned)
        with self.progress.bar(f"{self.name}: {len(planned)} parts,", total) as bar:
            for span in planned:
                self._fetch_span(span, bar)

    def _fetch_span(self, span: Span, bar: Bar | None = None) -> None:
        at = [span[0]]

        def work() -> None:
            start, end = at[0], span[1]
            headers = {"Range": f"bytes={start}-{end - 1}", "If-Range": self.validator}
            start_s = time.monotonic()
            with self.client.get(self.url, headers) as (head, body):
                # A response to If-Range need not repeat a date (RFC 9110, 15.3.7).
                is_other = head.validator not in {"", self.validator} or head.total != self.size
                if head.status != 206 or head.range_start != start or is_other:
                    raise PermanentError("the file changed during the download")
                if head.length > end - start:
                    raise PermanentError("the server sent more than was requested")
                for count in self._write(body, start, end):
                    self.round_trip_s = min(self.round_trip_s, time.monotonic() - start_s)
                    at[0] += count
                    if bar:
                        bar.advance(count)

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
