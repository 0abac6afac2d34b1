"""What a run of a suite leaves on disk: the journal with the result of each test, which is also the
state of an interrupted run, and the comparisons that each test kept."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from ci.judging.figures import Array
from ci.models.tensors import TensorInfo
from ci.report.schema import Tool
from provisioning.documents import DocumentError, decode_json, open_regular, read_bytes, read_json
from provisioning.errors import UsageError

ARRAYS, RECORD = ".npz", ".json"


class Member(str, Enum):
    """The kinds of arrays in a comparison. ``INPUT`` has one array per input. Each of the others
    has one array per output."""

    INPUT = "input"
    OUTPUT = "output"
    UPSTREAM = "upstream"  # the values with which upstream compares the output
    FLOAT = "float"
    QUANTIZED = "quantized"
    NOISE = "noise"  # [run, sample, *shape]; empty without a prediction
    LOW, HIGH = "low", "high"  # bounds of the outputs, if one of them is not floating-point


class Comparison(Struct, frozen=True, kw_only=True):
    """A comparison without its arrays."""

    scheme: str  # empty if no scheme has the types of the test's model
    outputs: tuple[TensorInfo, ...]
    inputs: tuple[TensorInfo, ...]
    lacks: tuple[str, ...] = ()  # what could not be computed for the gate, and why
    pte_bytes: int = 0  # the size of the .pte
    predict_s: float = 0.0  # seconds to compute the models' outputs and the prediction


Arrays = Mapping[Member, list[Array]]


def write_comparison(
    place: Path, record: Comparison, arrays: Mapping[Member, Iterable[Any]]
) -> None:
    """Write the arrays to the file ``place`` with the suffix .npz, and then the record with the
    suffix .json."""
    named = {}
    for member, values in arrays.items():
        for index, array in enumerate(values):
            named[f"{member.value}_{index}"] = np.asarray(array)
    np.savez_compressed(place.with_suffix(ARRAYS), allow_pickle=False, **named)
    place.with_suffix(RECORD).write_bytes(msgspec.json.encode(record))


def read_comparisons(directory: Path) -> list[tuple[Comparison, Arrays]]:
    """Return the comparisons of a test, in the order in which the test made them. Raises OSError or
    ValueError if a file is missing or damaged."""
    places = sorted(directory.glob(f"*{RECORD}"), key=lambda path: int(path.stem))
    comparisons: list[tuple[Comparison, Arrays]] = []
    for place in places:
        arrays: dict[Member, list[Array]] = {}
        with (
            open_regular(place.with_suffix(ARRAYS)) as stream,
            np.load(stream, allow_pickle=False) as data,
        ):
            for name in data.files:  # in the order in which they were written
                arrays.setdefault(Member(name.rpartition("_")[0]), []).append(data[name])
        comparisons.append((read_json(place, Comparison), arrays))
    return comparisons


JOURNAL, KEPT = "journal.jsonl", "kept"
LOG = "log.txt"  # of a test, in its directory in KEPT


class Ran(str, Enum):
    """The result of a test according to upstream. ``DIED`` is a crash of the test's process, and
    ``LATE`` is a timeout. A test that is ``LACKING`` failed because it needs a package or a flag of
    the runner that this project does not have."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    LACKING = "lacking"
    DIED = "died"
    LATE = "late"


class Entry(Struct, frozen=True, kw_only=True):
    """The result of one run of a test."""

    test: str
    repeat: int = 0  # the number of the run, from 0
    ran: Ran
    # Why the test did not pass. The key "told" keeps older journals readable.
    message: str = field(default="", name="told")
    test_s: float = 0.0  # how many seconds upstream's test took
    wall_s: float = 0.0  # how many seconds the whole run took
    comparisons: int = 0  # the number of comparisons in the directory that kept_directory returns
    refusal: str = ""  # the error that the test expects, if it passed for that reason
    log_tail: str = ""  # the end of the log if the test did not pass


class Header(Struct, frozen=True, kw_only=True):
    """The first line of a journal. ``suite_tests`` lists all tests of the suite, and ``tests`` the
    selected ones, each of which runs ``repeat`` times. ``tools`` are the tools and their versions.
    ``identity`` is a digest of everything else that affects results."""

    suite: str
    soc: str
    identity: str
    # This key, too, keeps older journals readable.
    suite_tests: tuple[str, ...] = field(name="every")
    tests: tuple[str, ...]
    repeat: int = 1
    tools: tuple[Tool, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Return whether all tests of the suite were selected."""
        return set(self.suite_tests) == set(self.tests)


@contextmanager
def open_journal(
    directory: Path, header: Header, *, resume: bool
) -> Iterator[tuple[Callable[[Struct], None], list[Entry]]]:
    """Open the journal in ``directory``. Yield a function that appends an entry and returns when it
    is on the disk, and the journal's entries.

    Without ``resume``, old entries are removed. Raises UsageError if another run uses the journal,
    or if ``resume`` is true and the header of the journal differs from ``header``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    file = os.open(directory / JOURNAL, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def add(line: Struct) -> None:
        os.write(file, msgspec.json.encode(line) + b"\n")
        # --resume continues a run even after kill -9.
        os.fsync(file)

    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"{directory} is in use",
                why="another run is writing its journal there",
                fix="wait until it ends, or pass another directory to --reports",
            ) from error
        entries = list[Entry]()
        journal = read_journal(directory) if resume else None
        if journal:
            if journal[0] != header:
                raise UsageError(
                    f"{directory / JOURNAL} belongs to another run",
                    why="its tests, SoC, tools or options differ from this run's",
                    fix="omit --resume to start a new run, which overwrites this journal",
                )
            entries = journal[1]
            os.ftruncate(file, size_whole(directory))  # drops an incomplete last line
        else:
            os.ftruncate(file, 0)
            add(header)
        yield add, entries
    finally:
        os.close(file)


def read_journal(directory: Path) -> tuple[Header, list[Entry]] | None:
    """Return the header and the entries of a journal, without an incomplete last line. Return None
    if the file is missing or has no complete line. Raises UsageError if a line is damaged."""
    with suppress(FileNotFoundError):
        data = read_bytes(directory / JOURNAL)
        if lines := data[: size_whole(directory)].splitlines():
            try:
                header = decode_json(lines[0], Header)
                return header, [decode_json(line, Entry) for line in lines[1:]]
            except DocumentError as error:
                raise UsageError(
                    f"{directory / JOURNAL} is damaged",
                    why=str(error),
                    fix="run the suite again without --resume, which overwrites this journal",
                ) from error
    return None


def size_whole(directory: Path) -> int:
    """Return the size of a journal in bytes, up to the end of its last complete line."""
    return read_bytes(directory / JOURNAL).rfind(b"\n") + 1


KEPT_NAME = re.compile(r"[\w.-]{1,120}-[0-9a-f]{8}")


def remove_kept(directory: Path) -> None:
    """Remove the directories that kept_directory names, of all tests. Files of the user's next to
    them stay."""
    folder = directory / KEPT
    for place in folder.iterdir() if folder.is_dir() else ():
        if KEPT_NAME.fullmatch(place.name) and place.is_dir() and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)


def kept_directory(directory: Path, test: str, repeat: int = 0) -> Path:
    """Return the directory for the comparisons of one run of a test. Its name consists of the first
    120 characters of the test's name and a checksum of the whole name. Characters other than
    letters, digits, ``_``, ``.`` and ``-`` are replaced by ``_``."""
    name = re.sub(r"[^\w.-]", "_", test)
    digest = f"{zlib.crc32(test.encode()):08x}"  # distinguishes names that start with the same text
    return directory / KEPT / f"{name[:120]}-{digest}" / str(repeat)
