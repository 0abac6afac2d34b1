"""Read files that others wrote: only regular ones, bounded while they are read, and decoded with
one list of exceptions.

No other module calls read_bytes or read_text of a path, or opens one for reading
(tests/static/test_bounds.py).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar

from provisioning.errors import QnnCiError, UsageError

T = TypeVar("T")
# msgspec 0.22 crashes (SIGSEGV) if two threads decode into the same Struct for the first time.
DECODING = threading.Lock()
DOCUMENT_BYTES = 64 << 20  # of a file that is decoded as a whole, such as a record or a source file
CONTENT_BYTES = 2 << 30  # of a program, a library or a file of tensors
POINTER = b"version https://git-lfs"  # the start of a Git LFS pointer
WINDOW_BYTES = 4 << 20  # of a log
MORE_BYTES = 1 << 16
MAPPED_BYTES = 8 << 30  # of a program or a library that is mapped
KINDS = {
    stat.S_IFREG: "",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
# What decoders raise for content that they cannot decode.
UNDECODABLE = (
    *(ValueError, EOFError, RecursionError, MemoryError, ArithmeticError),
    struct.error,
)


class DocumentError(ValueError):
    """A file from outside cannot be read or decoded; the message is the reason."""


def open_regular(path: Path, limit_bytes: int = 0) -> BinaryIO:
    """Open a regular file for reading. Raises OSError, also for a pipe, a device or a directory,
    and for a file of more than ``limit_bytes``, unless that is 0.
    """
    try:
        # O_NONBLOCK: opening a pipe without a writer would wait for one.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.EINVAL, "it is a socket", str(path)) from error
        raise
    # Of the descriptor and not of the path, which may lead to another file by now.
    state = os.fstat(descriptor)
    kind = KINDS.get(stat.S_IFMT(state.st_mode), "not a file")
    why = f"it is {kind}" if kind else _find_excess(state.st_size, limit_bytes or state.st_size)
    if not why:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    raise OSError(errno.EINVAL, why, str(path))


def _find_excess(size: int, limit_bytes: int) -> str:
    return f"it is longer than {limit_bytes} bytes" if size > limit_bytes else ""


def read_bytes(path: Path, limit_bytes: int = DOCUMENT_BYTES) -> bytes:
    """Return the content of a regular file. Raises OSError, also if it is longer than
    ``limit_bytes``, whatever its size was when it was opened.
    """
    with open_regular(path, limit_bytes) as file:
        data = file.read(os.fstat(file.fileno()).st_size)
        while chunk := file.read(MORE_BYTES):
            data += chunk  # the size of a file in /proc is 0, and a file may grow
            if why := _find_excess(len(data), limit_bytes):
                raise OSError(errno.EINVAL, why, str(path))
    return data


def read_text(path: Path, errors: str = "strict", limit_bytes: int = DOCUMENT_BYTES) -> str:
    """Return the text of a regular file in UTF-8. Raises OSError as read_bytes does, and
    UnicodeDecodeError.
    """
    return read_bytes(path, limit_bytes).decode("utf-8", errors)


def read_window(path: Path, start: int = 0, most_bytes: int = WINDOW_BYTES) -> str:
    """Return the text of a log from the byte ``start`` on. Of a longer one than ``most_bytes``, the
    middle is left out. A log that is missing or cannot be read is empty.
    """
    half = most_bytes // 2
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size - start
            file.seek(start)
            data = file.read(most_bytes if size <= most_bytes else half)
            if size > most_bytes:
                file.seek(-half, os.SEEK_END)
                data += f"\n[{size - 2 * half} bytes are left out]\n".encode() + file.read(half)
    except OSError:
        return ""
    return data.decode("utf-8", "replace")


@contextmanager
def decoding() -> Iterator[None]:
    """Turn what the block raises for content that it cannot read or decode into a DocumentError."""
    try:
        yield
    # DocumentError is a ValueError, and would be wrapped a second time below.
    except (QnnCiError, DocumentError):
        raise
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise DocumentError(f"{place}{error.strerror or error}") from error
    except UNDECODABLE as error:
        raise DocumentError(_give_reason(error)) from error


def _give_reason(error: Exception) -> str:
    # The texts of these two are about Python, not about the file.
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError) and error.encoding.startswith("utf-8"):
        line = error.object.count(b"\n", 0, error.start) + 1
        return f"line {line} is not in UTF-8 (byte 0x{error.object[error.start]:02x})"
    return str(error) or type(error).__name__


def decode_json(data: bytes | str, kind: type[T]) -> T:
    """Return JSON as an object of ``kind``, such as a msgspec.Struct. Raises DocumentError."""
    import msgspec  # the noxfile asks the verbs for their environments without third-party packages

    with decoding(), DECODING:
        return msgspec.json.decode(data, type=kind)


def read_json(path: Path, kind: type[T], limit_bytes: int = DOCUMENT_BYTES) -> T:
    """Return the JSON in a file as an object of ``kind``. Raises DocumentError."""
    with decoding():
        return decode_json(read_bytes(path, limit_bytes), kind)


def read_user_file(
    path: Path, called: str, limit_bytes: int = CONTENT_BYTES, *, smaller: str = ""
) -> bytes:
    """Return the bytes of a file, read only once, so that all checks see the same content.

    Raises UsageError if the file cannot be read, is not a regular file, or is longer than
    ``limit_bytes``. ``called`` is what the error calls the file, such as ``the model``, and
    ``smaller`` is its fix for a file that is too long.
    """
    try:
        return read_bytes(path, limit_bytes)
    except OSError as error:
        why = error.strerror or str(error)
        fixes = {
            "it is longer": smaller,
            "it is a": "use a regular file",
            "No such": "correct the path",
        }
        fix = next((fix for start, fix in fixes.items() if why.startswith(start)), "")
        raise UsageError(f"cannot read {called} {path}", why=why, fix=fix) from error
