"""Downloads from a bad server: one file, how fetching it ends, and answers of other kinds."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from provisioning.console.progress import Bar, Progress
from provisioning.errors import QnnCiError
from provisioning.fetch.download import Judge, Pin, accept_any, fetch_file
from provisioning.fetch.transfer import PermanentError, TransferPolicy, TransientError
from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer, Fault

DATA = b"The file." * 20 + random.Random(5).randbytes(99_820)
SIZE = len(DATA)
SHA256 = hashlib.sha256(DATA).hexdigest()
PIN = Pin(SIZE, SHA256)
UNKNOWN = Pin()
QUICK = TransferPolicy(
    attempts=3, backoff_s=0, longest_wait_s=0, connect_timeout_s=600, read_timeout_s=600
)
ONCE = replace(QUICK, attempts=1)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the kind of its error and its words."""
    try:
        return call()
    except (PermanentError, TransientError, QnnCiError, OSError) as error:
        return f"{type(error).__name__}: {error}"


class Watched(Progress):
    """All that is said, and the bars that were shown."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.bars: list[Bar] = []

    @property
    def said(self) -> str:
        assert isinstance(self.stream, io.StringIO)
        return self.stream.getvalue()

    @contextmanager
    def bar(self, label: str, total: float = 0, unit: str = "B") -> Iterator[Bar]:
        self.bars.append(Bar(label, total, unit, self))
        yield self.bars[-1]


def fetch(
    urls: Sequence[str],
    directory: Path,
    pin: Pin = PIN,
    policy: TransferPolicy = QUICK,
    judge: Judge = accept_any,
    progress: Progress | None = None,
) -> str:
    """How fetching ``a.zip`` into a directory ends: "ok" with DATA, a size with other bytes."""
    target = directory / "a.zip"
    shown = progress or Progress()
    ended = outcome(lambda: fetch_file(urls, target, pin, shown, policy=policy, judge=judge))
    if target.exists():
        data = target.read_bytes()
        assert ended == hashlib.sha256(data).hexdigest()
        return "ok" if data == DATA else f"{len(data)} bytes"
    return str(ended)


def names_in(directory: Path) -> list[str]:
    """The names of what is in a directory."""
    return sorted(path.name for path in directory.iterdir())


def note(request_headers: list[dict[str, str]]) -> Fault:
    """Served well; ``request_headers`` gets the headers of the request."""

    def fault(handler: bad.Handler, data: bytes) -> None:
        request_headers.append(dict(handler.headers.items()))
        bad.serve(handler, data)

    return fault


def unsized(body: bytes, status: int = 200, **headers: str) -> Fault:
    """An answer without Content-Length."""

    def fault(handler: bad.Handler, data: bytes) -> None:
        handler.head(status, None, **headers)
        handler.body(body)

    return fault


def piece(
    start: int | None = None,
    *,
    extra: int = 0,
    status: int = 206,
    sized: bool = True,
    **headers: str,
) -> Fault:
    """The range that was asked for, from ``start`` if given, with ``extra`` bytes at its end, or
    with other headers than it should have.
    """

    def fault(handler: bad.Handler, data: bytes) -> None:
        first, end = handler.span(data) or (0, len(data))
        first = first if start is None else start
        where = f"bytes {first}-{end - 1}/{len(data)}"
        length = end + extra - first if sized else None
        handler.head(status, length, **{"ETag": bad.etag(data), "Content_Range": where, **headers})
        handler.body(data[first : end + extra])

    return fault


def resumed(fault: Fault) -> Fault:
    """The fault where the rest is asked for; the whole is served well."""
    return lambda handler, data: (fault if handler.asked.range else bad.serve)(handler, data)


@dataclass(frozen=True)
class Story:
    """A server's files and faults, and a download from some of its URLs: after an earlier try that
    met ``before``, of ``old`` bytes, whose part file was edited.
    """

    faults: Sequence[Fault] = ()
    pin: Pin = PIN
    urls: Sequence[str] = ("a",)
    files: dict[str, bytes] = field(default_factory=lambda: {"a": DATA})
    before: Sequence[Fault] = ()
    old: bytes = DATA
    edit: Callable[[bytes], bytes] = bytes
    judge: Judge = accept_any

    def tell(self, server: BadServer, directory: Path) -> str:
        """All that is seen of it: requests, words, the bar, the end, and what is left on disk."""
        urls = [name if "://" in name else server.url(name) for name in self.urls]
        if self.before:
            server.files["a"] = self.old
            for fault in self.before:
                server.faults["a"] = [fault]
                fetch(urls, directory, self.pin, ONCE)
            (part,) = directory.glob(".a.zip.*.part")
            part.write_bytes(self.edit(part.read_bytes()))
        server.files.clear()
        server.requests.clear()
        server.files |= self.files
        server.faults["a"] = list(self.faults)
        watched = Watched()
        ended = fetch(urls, directory, self.pin, QUICK, self.judge, watched)
        lines = [f"asked: {request.name} {request.range}".rstrip() for request in server.requests]
        lines += [f"said: {line}" for line in watched.said.splitlines()]
        lines += [f"bar: {bar.label} {bar.done:g} of {bar.total:g}" for bar in watched.bars]
        lines += [f"ended: {ended}"]
        lines += [
            f"left: {path.name.replace(path.name[7:15], 'HASH')} {path.stat().st_size}"
            if path.suffix in {".part", ".json"}
            else f"left: {path.name}"
            for path in sorted(directory.iterdir())
        ]
        return "\n".join(lines).replace(server.url(""), "URL/") + "\n"
