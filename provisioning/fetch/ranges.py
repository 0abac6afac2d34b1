"""Some byte ranges of a remote file, brought into a sparse local one in few requests."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock

from provisioning.console.progress import Bar, Progress
from provisioning.fetch.client import Client
from provisioning.fetch.part_file import open_own
from provisioning.fetch.transfer import (
    MismatchError,
    PermanentError,
    TransferPolicy,
    TransientError,
    no_restarts,
    try_again,
)

Span = tuple[int, int]  # first byte, one past the last
MERGE_GAP_BYTES = 4096
OPEN_ATTEMPTS = 2


class NoRangesError(PermanentError):
    """The server gives whole files only."""


def merge_spans(spans: Iterable[Span], gap_bytes: int = MERGE_GAP_BYTES) -> list[Span]:
    """Sorted spans, those less than ``gap_bytes`` apart made one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start - merged[-1][1] <= gap_bytes:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


class RemoteFile:
    """A ByteSource over HTTP ranges: what was fetched can be read at its own offset.

    Reading what was not fetched is a request of its own; ``fetch`` brings many spans at once.
    """

    def __init__(self, url: str, scratch: Path, progress: Progress, policy: TransferPolicy) -> None:
        self.url, self.progress, self.policy = url, progress, policy
        self.name = scratch.name.strip(".")
        self.client = Client(policy)
        self.validator = ""
        self.size = 0
        self.spans: list[Span] = []
        self.guard = Lock()
        self.fd = open_own(scratch)
        os.ftruncate(self.fd, 0)

    def close(self) -> None:
        """Close the connection and the scratch file."""
        self.client.close()
        os.close(self.fd)

    def open(self, tail_bytes: int, size_bytes: int = 0) -> None:
        """Learn the file's size, which must be ``size_bytes`` if that is not 0, and bring its
        last ``tail_bytes``.

        It gives up after few tries: the whole file is asked for then, with all patience.
        Raises NoRangesError when the server does not answer ranges, PermanentError.
        """
        brief = replace(self.policy, attempts=min(self.policy.attempts, OPEN_ATTEMPTS))
        open_ = partial(self._open, tail_bytes, size_bytes)
        try_again(open_, no_restarts, brief, self.progress, self.name)

    def _open(self, tail_bytes: int, size_bytes: int) -> None:
        with self.client.get(self.url, {"Range": f"bytes=-{tail_bytes}"}) as (head, body):
            if head.status != 206 or head.total < 0 or head.range_start < 0 or not head.validator:
                raise NoRangesError("the server does not answer ranges")
            if size_bytes not in {0, head.total}:
                raise MismatchError(f"it has {head.total} bytes, {size_bytes} are pinned")
            if head.range_start != max(0, head.total - tail_bytes):
                raise NoRangesError("the server sent another range than was asked for")
            self.size, self.validator = head.total, head.validator
            at = self._store(head.range_start, head.total, body)
        if at != self.size:
            raise TransientError("the body ended early")
        self._have((head.range_start, at))

    def fetch(self, spans: Iterable[Span]) -> None:
        """Bring these spans. Raises PermanentError."""
        wanted = [span for span in merge_spans(spans) if not self._has(span)]
        total = sum(end - start for start, end in wanted)
        with self.progress.bar(f"{self.name}: {len(wanted)} parts,", total) as bar:
            for span in wanted:
                self._fetch_span(span, bar)

    def _fetch_span(self, span: Span, bar: Bar | None = None) -> None:
        at = [span[0]]

        def work() -> None:
            headers = {"Range": f"bytes={at[0]}-{span[1] - 1}", "If-Range": self.validator}
            with self.client.get(self.url, headers) as (head, body):
                if head.status != 206 or head.range_start != at[0] or head.total != self.size:
                    raise PermanentError("the file changed in mid-way")
                if head.validator and head.validator != self.validator:
                    raise PermanentError("the file changed in mid-way")
                if head.length > span[1] - at[0]:
                    raise PermanentError("the server sent more than was asked for")
                for data in body:
                    at[0] = self._store(at[0], span[1], [data])
                    if bar:
                        bar.advance(len(data))
            if at[0] != span[1]:
                raise TransientError("the body ended early")

        try_again(work, lambda: at[0], self.policy, self.progress, self.name)
        self._have(span)

    def _store(self, at: int, end: int, body: Iterable[bytes]) -> int:
        for data in body:
            if at + len(data) > end:
                raise PermanentError("the server sent more than was asked for")
            os.pwrite(self.fd, data, at)
            at += len(data)
        return at

    def _has(self, span: Span) -> bool:
        return any(start <= span[0] and span[1] <= end for start, end in self.spans)

    def _have(self, span: Span) -> None:
        self.spans = merge_spans([*self.spans, span], 0)

    def read_at(self, offset: int, count: int) -> bytes:
        """At most ``count`` bytes at ``offset``."""
        end = min(offset + count, self.size)
        if end > offset and not self._has((offset, end)):
            with self.guard:
                self._fetch_span((offset, end))
        return os.pread(self.fd, end - offset, offset) if end > offset else b""


@contextmanager
def open_remote(
    url: str, scratch: Path, progress: Progress, policy: TransferPolicy | None = None
) -> Iterator[RemoteFile]:
    """A RemoteFile, its scratch file removed afterwards."""
    scratch.parent.mkdir(parents=True, exist_ok=True)
    remote = RemoteFile(url, scratch, progress, policy or TransferPolicy.from_environment())
    try:
        with closing(remote):
            yield remote
    finally:
        scratch.unlink(missing_ok=True)
