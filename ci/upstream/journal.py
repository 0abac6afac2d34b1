"""The journal of a run: each test's result is appended to it, so that it remains after a kill."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

import msgspec
from msgspec import Struct

from ci.report.schema import Tool
from provisioning.errors import UsageError

JOURNAL, KEPT = "journal.jsonl", "kept"


class Ran(str, Enum):
    """A test's result for upstream. A crash or a timeout is different from a failure."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    DIED = "died"
    LATE = "late"


class Entry(Struct, frozen=True, kw_only=True):
    """One run of a test. ``told`` is why it did not pass, ``test_s`` is upstream's part of
    ``wall_s``, ``repeat`` counts from 0. The ``comparisons`` are in KEPT below the test's
    directory. If a test passed because it expects an error, ``refusal`` is that error."""

    test: str
    repeat: int = 0
    ran: Ran
    told: str = ""
    test_s: float = 0.0
    wall_s: float = 0.0
    comparisons: int = 0
    refusal: str = ""
    log_tail: str = ""


class Header(Struct, frozen=True, kw_only=True):
    """The header of a journal: ``every`` test of the suite and the selected ``tests``, each of
    which runs ``repeat`` times. ``identity`` is a digest of everything else that affects
    results."""

    suite: str
    soc: str
    identity: str
    every: tuple[str, ...]
    tests: tuple[str, ...]
    repeat: int = 1
    tools: tuple[Tool, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Return whether all tests of the suite were selected."""
        return set(self.every) == set(self.tests)


class Journal:
    """A journal that is locked and open for appending."""

    def __init__(self, file: int) -> None:
        self.file = file

    def add(self, entry: Entry) -> None:
        """Append an entry. When this returns, the entry is on the disk."""
        _append(self.file, msgspec.json.encode(entry))


@contextmanager
def open_journal(
    directory: Path, header: Header, *, resume: bool
) -> Iterator[tuple[Journal, list[Entry]]]:
    """Open the journal in ``directory``, and yield it with its entries.

    Without ``resume``, old entries are removed. Raises UsageError if the journal is in use, or if a
    resumed journal has other tests or tools.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = os.open(directory / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{directory} is in use", why="another run uses it", fix="wait, or set --reports"
            ) from error
        entries = list[Entry]()
        known = read_journal(directory)
        if resume and known:
            if known[0] != header:
                raise UsageError(
                    f"{directory / JOURNAL} belongs to another run",
                    why="its tests, SoC, tools or options differ from those of this call",
                    fix="omit --resume",
                )
            entries = known[1]
            os.ftruncate(file, size_whole(directory))  # drops an incomplete last line
        else:
            os.ftruncate(file, 0)
            _append(file, msgspec.json.encode(header))
        yield Journal(file), entries
    finally:
        os.close(file)


def read_journal(directory: Path) -> tuple[Header, list[Entry]] | None:
    """Return the contents of a journal without an incomplete last line; None if it is missing."""
    with suppress(FileNotFoundError):
        data = (directory / JOURNAL).read_bytes()
        if lines := data[: size_whole(directory)].splitlines():
            header = msgspec.json.decode(lines[0], type=Header)
            return header, [msgspec.json.decode(line, type=Entry) for line in lines[1:]]
    return None


def size_whole(directory: Path) -> int:
    """Return the size of a journal in bytes, up to the end of its last complete line."""
    return (directory / JOURNAL).read_bytes().rfind(b"\n") + 1


def _append(file: int, line: bytes) -> None:
    os.write(file, line + b"\n")
    os.fsync(file)


def kept_directory(directory: Path, test: str, repeat: int = 0) -> Path:
    """Return the directory of a test's comparisons. Its name is that of the test without characters
    that file names cannot have."""
    name = "".join(one if one.isalnum() or one in "_.-" else "_" for one in test)
    digest = f"{zlib.crc32(test.encode()):08x}"  # distinguishes names that differ only in these
    return directory / KEPT / f"{name[:120]}-{digest}" / str(repeat)
