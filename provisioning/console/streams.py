"""Separates what this program prints from what other packages print.

torch, ExecuTorch, QNN, pytest and the code of users' models print from Python, from C and C++, and
in processes that they start. So while a verb runs, the descriptors 1 and 2, which all of them
inherit, are a log, and only this program knows the caller's stdout and stderr.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

OUTPUTS = (1, 2)
SHOWN_LINES, SHOWN_CHARS = 10, 200
MAX_COPIED = 1 << 26  # bytes of a log that are copied or searched for its last lines


class PackageLog:
    """The log of the lines of other packages, and the caller's streams ``stdout`` and ``stderr``.

    It is a file without a name until ``keep_in`` gives it a path. ``path`` is then this path.
    """

    def __init__(self, file: BinaryIO, stdout: TextIO, stderr: TextIO) -> None:
        self.first = self.file = file
        self.stdout, self.stderr = stdout, stderr
        self.path: Path | None = None
        self.has_ended = False

    def keep_in(self, path: Path) -> None:
        """Go on in the file ``path``, which is replaced. Raises OSError if it cannot be written."""
        with suppress(FileNotFoundError):
            path.unlink()  # an earlier run's log may be a link, or be read by another program
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        flush_streams()
        self.file = os.fdopen(descriptor, "r+b", buffering=0)
        self.path = path
        for number in OUTPUTS:
            os.dup2(descriptor, number)

    def write(self, line: str) -> None:
        """Add a line that another program printed, up to MAX_COPIED bytes."""
        if os.fstat(self.file.fileno()).st_size < MAX_COPIED:
            os.write(self.file.fileno(), f"{line}\n".encode("utf-8", "replace"))

    def end(self) -> None:
        """Add what was written before the log had a path, and by processes that were started then.
        An empty log is removed."""
        flush_streams()
        if self.path is None or self.has_ended:
            return
        self.has_ended = True
        if early := read_end(self.first):
            with suppress(OSError):
                self.file.write(early)
        if not os.fstat(self.file.fileno()).st_size:
            self.path.unlink(missing_ok=True)
            self.path = None

    def tail(self) -> list[str]:
        """Return the last SHOWN_LINES lines that are not blank, each cut after SHOWN_CHARS."""
        text = read_end(self.file).decode("utf-8", "replace")
        lines = [line.rstrip()[:SHOWN_CHARS] for line in text.splitlines() if line.strip()]
        return lines[-SHOWN_LINES:]


def read_end(file: BinaryIO) -> bytes:
    """Return the last MAX_COPIED bytes of a file."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), MAX_COPIED, max(size - MAX_COPIED, 0))


_current: list[PackageLog] = []  # of the verb that runs now; a process has one at a time


def package_log() -> PackageLog | None:
    """Return the log of this call, or None if other packages print to the caller's streams."""
    return _current[-1] if _current else None


def user_stdout() -> TextIO:
    """Return the caller's stdout."""
    log = package_log()
    return log.stdout if log else sys.stdout


def user_stderr() -> TextIO:
    """Return the caller's stderr."""
    log = package_log()
    return log.stderr if log else sys.stderr


def flush_streams() -> None:
    """Flush the buffers of Python's streams and of C's stdio."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a package may have closed or replaced it
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def open_copy(stream: TextIO, number: int) -> TextIO:
    """Return a stream that writes where ``stream`` does now: ``stream`` itself unless it writes to
    the descriptor ``number``."""
    with suppress(OSError, ValueError):
        if stream.fileno() == number:
            return open(  # noqa: PTH123 - a descriptor, which stays open
                os.dup(number), "w", encoding=stream.encoding, errors=stream.errors
            )
    return stream


@contextmanager
def packages_logged() -> Iterator[PackageLog | None]:
    """Let everything that other packages print in the block go to a log. Where no temporary file
    can be created, yield None, and they print to the caller's streams."""
    if _current:  # a verb that runs another one
        yield _current[-1]
        return
    try:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed below
    except OSError:  # the verb reports what it needs a directory for
        yield None
        return
    streams = sys.stdout, sys.stderr
    flush_streams()
    log = PackageLog(file, open_copy(sys.stdout, 1), open_copy(sys.stderr, 2))
    before = [os.dup(number) for number in OUTPUTS]
    try:
        for number in OUTPUTS:
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = (open_output(number) for number in OUTPUTS)
        _current.append(log)
        yield log
    finally:
        log.end()
        _current.clear()
        for stream in (log.stdout, log.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        sys.stdout, sys.stderr = streams
        for number, descriptor in zip(OUTPUTS, before, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for opened in {file, log.file}:
            opened.close()


def open_output(number: int) -> TextIO:
    """Return a stream for Python code that writes each line to a descriptor at once."""
    return open(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


@contextmanager
def terminal_shared() -> Iterator[None]:
    """Let what is written to the descriptors 1 and 2 in the block reach the caller, such as the
    output of a command that the caller runs in a container."""
    log = package_log()
    if log is None:
        yield
        return
    log.stdout.flush()
    log.stderr.flush()
    before = [os.dup(number) for number in OUTPUTS]
    try:
        for number, stream in zip(OUTPUTS, (log.stdout, log.stderr), strict=True):
            with suppress(OSError, ValueError):  # a test's stream without a descriptor
                os.dup2(stream.fileno(), number)
        yield
    finally:
        for number, descriptor in zip(OUTPUTS, before, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
