"""The error classes. Each error states what happened, why, and what to do next; each class has an
exit code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path

_CREDENTIALS = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)[^/?#\s]+@")
_QUERY = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s?#'\"<>]*)\?[^\s'\"<>]+")


class ExitCode(IntEnum):
    """Exit codes of every command, documented in docs/reference/exit-codes.md."""

    OK = 0
    FAILED = 1
    USAGE = 2
    ENVIRONMENT = 3
    DOWNLOAD = 4
    TOOL = 5
    DEFECT = 70  # EX_SOFTWARE of sysexits.h
    INTERRUPTED = 130


def mask_credentials(text: str) -> str:
    """Mask secrets: ``https://user:password@host/a?sig=x`` becomes ``https://***@host/a?***``."""
    if "://" not in text:  # searching for a scheme takes long
        return text
    return _QUERY.sub(r"\1?***", _CREDENTIALS.sub(r"\1***@", text))


class QnnCiError(Exception):
    """Base class of every error that is shown to a user.

    ``what`` states what happened, ``why`` the reason (may be empty), and ``fix`` the next step (may
    be empty). The user name, password and query of URLs are masked in all three.
    """

    exit_code = ExitCode.FAILED

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        # Here and not where messages are printed: errors are also written to reports and JSON.
        self.what, self.why, self.fix = map(mask_credentials, (what, why, fix))

    def __str__(self) -> str:
        parts = [self.what]
        if self.why:
            parts.append(f"  why: {self.why}")
        if self.fix:
            parts.append(f"  fix: {self.fix}")
        return "\n".join(parts)


MAX_DESCRIBED = 4000


def describe_exception(error: BaseException) -> str:
    """Return the type and message of an exception, cut after MAX_DESCRIBED characters.

    The exception can be of a user's class, so its message may be huge or raise an exception itself.
    """
    name = type(error).__name__
    try:
        text = f"{name}: {error}".strip().rstrip(":")
    except (Exception, SystemExit) as second:  # noqa: BLE001 - the user's code
        return f"{name}, whose message raised {type(second).__name__}"
    return text if len(text) <= MAX_DESCRIBED else f"{text[:MAX_DESCRIBED]}..."


class FailedError(QnnCiError):
    """The thing under test failed."""


class UsageError(QnnCiError):
    """The command line, or a name, path or file that the user gave, is wrong."""

    exit_code = ExitCode.USAGE


@contextmanager
def at_key(key: str) -> Iterator[None]:
    """Prefix the message of every UsageError raised in the block with ``key``, a key in the user's
    file. If ``key`` is empty, the message is not changed.
    """
    try:
        yield
    except UsageError as error:
        message = f"{key}: {error.what}" if key else error.what
        raise UsageError(message, why=error.why, fix=error.fix) from error


class UnfitError(QnnCiError):
    """The environment is unsuitable: a tool, library, version or variable is missing or wrong."""

    exit_code = ExitCode.ENVIRONMENT


class DownloadError(QnnCiError):
    """Something could not be downloaded."""

    exit_code = ExitCode.DOWNLOAD


class IntegrityError(QnnCiError):
    """Content does not match its pin, or cannot be trusted for another reason."""

    exit_code = ExitCode.DOWNLOAD


class StoreError(QnnCiError):
    """A result or a download could not be written because of disk space, permissions or a lock.
    ``place`` is the path that could not be written, if it is known, and ``is_full`` is true if the
    disk was full.
    """

    exit_code = ExitCode.DOWNLOAD

    def __init__(
        self,
        what: str,
        *,
        why: str = "",
        fix: str = "",
        place: Path | None = None,
        is_full: bool = False,
    ) -> None:
        super().__init__(what, why=why, fix=fix)
        self.place, self.is_full = place, is_full


class ManifestError(QnnCiError):
    """A file below manifests/ cannot be read, does not match its schema, or contradicts another."""

    exit_code = ExitCode.USAGE


class ToolError(QnnCiError):
    """A tool that was run failed, exceeded its time limit, or did not produce its result."""

    exit_code = ExitCode.TOOL


class MissingToolError(ToolError):
    """A required tool is missing or cannot be started."""

    exit_code = ExitCode.ENVIRONMENT


class DefectError(QnnCiError):
    """An unexpected error, which means a bug in this project."""

    exit_code = ExitCode.DEFECT


class InterruptedRunError(QnnCiError):
    """The run was stopped: Ctrl-C, SIGTERM, or a closed terminal."""

    exit_code = ExitCode.INTERRUPTED
