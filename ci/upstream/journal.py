"""The results of a run, appended test by test: what a run that was killed has done stays done."""

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
    """How a test ended for upstream; one that died or was late is no test that failed."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    DIED = "died"
    LATE = "late"


class Entry(Struct, frozen=True, kw_only=True):
    """One run of a test. ``told`` is why it did not pass, ``test_s`` upstream's part of ``wall_s``,
    ``repeat`` counts from 0, ``comparisons`` are in KEPT below a directory of the test's.
    ``refusal`` is the error that upstream expects of a test that passed with it."""

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
    """What a journal is of: ``every`` test of the suite and those that were chosen, each ``repeat``
    times. ``identity`` is a digest of everything else that decides about results."""

    suite: str
    soc: str
    identity: str
    every: tuple[str, ...]
    tests: tuple[str, ...]
    repeat: int = 1
    tools: tuple[Tool, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all tests of the suite were chosen."""
        return set(self.every) == set(self.tests)


class Journal:
    """A journal that is open for appending, locked."""

    def __init__(self, file: int) -> None:
        self.file = file

    def add(self, entry: Entry) -> None:
        """Append an entry, on the disk when this returns."""
        _append(self.file, msgspec.json.encode(entry))


@contextmanager
def open_journal(
    directory: Path, header: Header, *, resume: bool
) -> Iterator[tuple[Journal, list[Entry]]]:
    """Have the journal of ``directory`` and its entries: none unless ``resume``.

    Raises UsageError for one that is in use, and when resuming one of other tests or tools.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = os.open(directory / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{directory} is in use", why="another run writes to it", fix="wait, or --reports"
            ) from error
        entries = list[Entry]()
        known = read_journal(directory)
        if resume and known:
            if known[0] != header:
                raise UsageError(
                    f"{directory / JOURNAL} is of another run",
                    why="its tests, SoC, tools or options are not those of this call",
                    fix="leave out --resume",
                )
            entries = known[1]
            os.ftruncate(file, size_whole(directory))  # a line that was cut off goes
        else:
            os.ftruncate(file, 0)
            _append(file, msgspec.json.encode(header))
        yield Journal(file), entries
    finally:
        os.close(file)


def read_journal(directory: Path) -> tuple[Header, list[Entry]] | None:
    """Return what a journal holds, without a last line that was cut off; None if there is none."""
    with suppress(FileNotFoundError):
        data = (directory / JOURNAL).read_bytes()
        if lines := data[: size_whole(directory)].splitlines():
            header = msgspec.json.decode(lines[0], type=Header)
            return header, [msgspec.json.decode(line, type=Entry) for line in lines[1:]]
    return None


def size_whole(directory: Path) -> int:
    """Return the bytes of a journal up to the end of its last whole line."""
    return (directory / JOURNAL).read_bytes().rfind(b"\n") + 1


def _append(file: int, line: bytes) -> None:
    os.write(file, line + b"\n")
    os.fsync(file)


def kept_directory(directory: Path, test: str, repeat: int = 0) -> Path:
    """Return where a test's comparisons are: its name, with what no file name may have replaced."""
    name = "".join(one if one.isalnum() or one in "_.-" else "_" for one in test)
    digest = f"{zlib.crc32(test.encode()):08x}"  # keeps names apart that differ in these only
    return directory / KEPT / f"{name[:120]}-{digest}" / str(repeat)
