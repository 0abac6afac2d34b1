"""HTTP as a download needs it: one request, its failures named, tried again where that helps.

Proxies, certificates and ~/.netrc are those that requests finds. What a message shows of a
URL never holds credentials or a query.
"""

from __future__ import annotations

import math
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

from provisioning.console.progress import Progress
from provisioning.errors import UnfitError

T = TypeVar("T")
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
PROGRESS_BYTES = 64 << 10


class TransientError(Exception):
    """A failure that another try may not meet. ``wait_s`` is what the server asked for."""

    def __init__(self, why: str, wait_s: float = 0) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class PermanentError(Exception):
    """A failure that the same URL will give again."""


class ChangedError(PermanentError):
    """The file is another than the one whose first bytes came."""


class BusyError(PermanentError):
    """A failure that the same URL will not give forever: others are asked first."""


class MismatchError(PermanentError):
    """Bytes came, and they are not the pinned ones."""


@dataclass(frozen=True)
class TransferPolicy:
    """How long and how often to try. ``attempts`` counts failures that brought nothing new."""

    attempts: int = 6
    backoff_s: float = 0.5
    longest_wait_s: float = 30.0
    patience_s: float = math.inf
    connect_timeout_s: float = 15.0
    read_timeout_s: float = 60.0
    slowest_bytes_s: float = 1024.0

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> TransferPolicy:
        """The policy with QNN_CI_ATTEMPTS, QNN_CI_BACKOFF_S and QNN_CI_TIMEOUT_S applied.

        Raises UnfitError for a value that is not a number in its range.
        """
        usual = cls()
        timeout_s = _number(variables, "QNN_CI_TIMEOUT_S", usual.read_timeout_s, 0.01, 86400)
        return cls(
            attempts=int(_number(variables, "QNN_CI_ATTEMPTS", usual.attempts, 1, 1000)),
            backoff_s=_number(variables, "QNN_CI_BACKOFF_S", usual.backoff_s, 0, 3600),
            connect_timeout_s=min(usual.connect_timeout_s, timeout_s),
            read_timeout_s=timeout_s,
        )

    def wait_s(self, failures: int, asked_s: float) -> float:
        """Seconds before the next try: exponential with jitter, or what the server asked."""
        backoff = self.backoff_s * 2.0 ** (failures - 1) * random.uniform(0.5, 1.5)  # noqa: S311
        return min(max(backoff, asked_s), self.longest_wait_s)


def _number(
    variables: Mapping[str, str], name: str, usual: float, least: float, most: float
) -> float:
    text = variables.get(name, "")
    try:
        value = float(text) if text else usual
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        why = f"it must be a number from {least:g} to {most:g}"
        raise UnfitError(f"{name}={text} is not usable", why=why, fix=f"correct or unset {name}")
    return value


@dataclass(frozen=True)
class Head:
    """What a response says before its body. Sizes are -1 when not said.

    ``validator`` is what If-Range may carry: a strong ETag, else the date; empty without either.
    """

    status: int
    length: int
    range_start: int
    total: int
    validator: str
    content_type: str


def usable_validator(text: str) -> str:
    """``text`` when a header can carry it, else nothing."""
    return text if re.fullmatch(r"[ -~]{1,300}", text) else ""


def parse_head(status: int, headers: Mapping[str, str]) -> Head:
    """The parts of a response's head that matter here. Malformed figures count as not said."""
    start, total = -1, -1
    unit, _, rest = headers.get("Content-Range", "").partition(" ")
    if unit == "bytes":
        span, _, size = rest.partition("/")
        start = _digits(span.partition("-")[0])
        total = _digits(size)
    etag = headers.get("ETag", "")
    is_strong = etag and not etag.startswith("W/")
    return Head(
        status,
        _digits(headers.get("Content-Length", "")),
        start,
        total,
        usable_validator(etag if is_strong else headers.get("Last-Modified", "")),
        headers.get("Content-Type", ""),
    )


def _digits(text: str) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else -1


def check_status(status: int, headers: Mapping[str, str]) -> None:
    """Raise what an HTTP status asks for; 200, 206 and 416 pass."""
    if status in {200, 206, 416}:
        return
    if status in RETRIED_STATUS:
        raise TransientError(f"HTTP {status}", _retry_after_s(headers.get("Retry-After", "")))
    reasons = {
        401: "HTTP 401: it wants credentials (~/.netrc)",
        403: "HTTP 403: access is refused (credentials go into ~/.netrc)",
        404: "HTTP 404: it is not there",
        407: "HTTP 407: the proxy wants credentials",
        410: "HTTP 410: it is gone",
    }
    raise PermanentError(reasons.get(status, f"HTTP {status}"))


def _retry_after_s(text: str) -> float:
    if (seconds := _digits(text)) >= 0:
        return float(seconds)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, IndexError, OverflowError, OSError):
        return 0.0


def redact_url(url: str) -> str:
    """A URL without credentials, query and fragment, for messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url.partition("?")[0].rpartition("@")[2]
    if not parts.scheme:
        return url.partition("?")[0]
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def try_again(
    work: Callable[[], T],
    count: Callable[[], int],
    policy: TransferPolicy,
    progress: Progress,
    label: str,
    *,
    restarts: Callable[[], int] = lambda: 0,
) -> T:
    """Call ``work`` until it returns; after a TransientError wait, and report it.

    ``count`` gives the bytes that are there: a try that brought many that never came before
    starts the counting of failures anew. ``restarts`` tells how often what was there had to go:
    never, unless it is given.
    Raises PermanentError, also after the last try, and BusyError when the server asks for more
    patience than there is.
    """
    failures, best = 0, count()
    while True:
        try:
            return work()
        except TransientError as error:  # noqa: PERF203 - trying again is the loop
            there = count()
            failures = 1 if there - best >= PROGRESS_BYTES else failures + 1
            best = max(best, there)
            if max(failures, restarts()) >= policy.attempts:
                tries = "1 try" if failures == 1 else f"{failures} tries"
                again = f", started over {restarts()} times" if restarts() else ""
                raise PermanentError(f"{error} ({tries}{again})") from error
            if error.wait_s > policy.patience_s:
                raise BusyError(f"{error}; it asks for {error.wait_s:.0f} s of patience") from error
            wait_s = policy.wait_s(failures, error.wait_s)
            progress.step(f"{label}: {error}; trying again in {wait_s:.1f} s")
            time.sleep(wait_s)
