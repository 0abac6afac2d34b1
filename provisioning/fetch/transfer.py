"""HTTP as a download needs it: one request, its failures named, tried again where that helps.

Proxies, certificates and ~/.netrc are those that requests finds. What a message shows of a
URL never holds credentials or a query.
"""

from __future__ import annotations

import email.utils
import http.client
import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from provisioning.console.progress import Progress

T = TypeVar("T")
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_REDIRECTS = 10
READ_BYTES = 512 << 10
PROGRESS_BYTES = 64 << 10
USER_AGENT = "executorch-qnn-ci"


class TransientError(Exception):
    """A failure that another try may not meet. ``wait_s`` is what the server asked for."""

    def __init__(self, why: str, wait_s: float = 0) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class PermanentError(Exception):
    """A failure that the same URL will give again."""


class MismatchError(PermanentError):
    """Bytes came, and they are not the pinned ones."""


@dataclass(frozen=True)
class TransferPolicy:
    """How long and how often to try. ``attempts`` counts failures that brought nothing new."""

    attempts: int = 6
    backoff_s: float = 0.5
    longest_wait_s: float = 30.0
    connect_timeout_s: float = 15.0
    read_timeout_s: float = 60.0
    slowest_bytes_s: float = 1024.0

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> TransferPolicy:
        """The policy with QNN_CI_ATTEMPTS, QNN_CI_BACKOFF_S and QNN_CI_TIMEOUT_S applied."""
        usual = cls()
        timeout_s = _number(variables, "QNN_CI_TIMEOUT_S", usual.read_timeout_s)
        return cls(
            attempts=max(1, int(_number(variables, "QNN_CI_ATTEMPTS", usual.attempts))),
            backoff_s=_number(variables, "QNN_CI_BACKOFF_S", usual.backoff_s),
            connect_timeout_s=min(usual.connect_timeout_s, timeout_s),
            read_timeout_s=timeout_s,
        )

    def wait_s(self, failures: int, asked_s: float) -> float:
        """Seconds before the next try: exponential with jitter, or what the server asked."""
        backoff = self.backoff_s * 2.0 ** (failures - 1) * random.uniform(0.5, 1.5)  # noqa: S311
        return min(max(backoff, asked_s), self.longest_wait_s)


def _number(variables: Mapping[str, str], name: str, usual: float) -> float:
    try:
        return float(variables[name])
    except (KeyError, ValueError):
        return usual


@dataclass(frozen=True)
class Head:
    """What a response says before its body. Sizes are -1 when not said."""

    status: int
    length: int
    range_start: int
    total: int
    etag: str
    modified: str
    content_type: str

    @property
    def validator(self) -> str:
        """What If-Range may carry: a strong ETag, or the date. Empty when there is neither."""
        return self.modified if not self.etag or self.etag.startswith("W/") else self.etag


def parse_head(status: int, headers: Mapping[str, str]) -> Head:
    """The parts of a response's head that matter here. Malformed figures count as not said."""
    start, total = -1, -1
    unit, _, rest = headers.get("Content-Range", "").partition(" ")
    if unit == "bytes":
        span, _, size = rest.partition("/")
        start = _digits(span.partition("-")[0])
        total = _digits(size)
    return Head(
        status,
        _digits(headers.get("Content-Length", "")),
        start,
        total,
        headers.get("ETag", ""),
        headers.get("Last-Modified", ""),
        headers.get("Content-Type", ""),
    )


def _digits(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1


class Client:
    """One requests session for one download."""

    def __init__(self, policy: TransferPolicy) -> None:
        import requests

        self.policy = policy
        self.session = requests.Session()
        self.session.max_redirects = MAX_REDIRECTS
        self.session.headers.update({"Accept-Encoding": "identity", "User-Agent": USER_AGENT})

    def close(self) -> None:
        """Close its connections."""
        self.session.close()

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[tuple[Head, Iterator[bytes]]]:
        """GET ``url``: the head of the response and its body, piece by piece.

        Raises TransientError and PermanentError, whatever the libraries below raise.
        """
        timeout = (self.policy.connect_timeout_s, self.policy.read_timeout_s)
        with explain_failures(url):
            response = self.session.get(url, headers=dict(headers), stream=True, timeout=timeout)
        try:
            if urlsplit(url).scheme == "https" and urlsplit(response.url).scheme != "https":
                raise PermanentError("the server redirects from https to http")
            check_status(response.status_code, response.headers)
            yield parse_head(response.status_code, response.headers), self._body(url, response)
        finally:
            response.close()

    def _body(self, url: str, response: Any) -> Iterator[bytes]:
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            raise PermanentError(f"the server sends the body compressed ({encoding})")
        window_s = self.policy.read_timeout_s
        since, count = time.monotonic(), 0
        while True:
            with explain_failures(url):
                data = response.raw.read1(READ_BYTES)
            if not data:
                return
            yield data
            count += len(data)
            if (waited_s := time.monotonic() - since) >= window_s:
                if count < self.policy.slowest_bytes_s * waited_s:
                    raise TransientError(f"the transfer stalled: {count} bytes in {waited_s:.0f} s")
                since, count = time.monotonic(), 0


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
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return 0.0


@contextmanager
def explain_failures(url: str) -> Iterator[None]:
    """Turn what requests, urllib3 and sockets raise into the two kinds of failure."""
    import requests
    import urllib3

    try:
        yield
    except requests.exceptions.TooManyRedirects as error:
        raise PermanentError(f"more than {MAX_REDIRECTS} redirects: a loop") from error
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
        raise PermanentError(f"{redact_url(url)} is not a URL that can be fetched") from error
    except requests.exceptions.MissingSchema as error:
        raise PermanentError(f"{redact_url(url)} has no scheme") from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise _classify(error) from error


def _classify(error: BaseException) -> TransientError | PermanentError:
    import requests

    chain = list(_causes(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return PermanentError(
                f"its certificate is not trusted: {cause.verify_message} "
                "(REQUESTS_CA_BUNDLE names other authorities)"
            )
    if any(isinstance(cause, ssl.SSLError) for cause in chain):
        return PermanentError("TLS failed: the server and this machine agree on no connection")
    if isinstance(error, requests.exceptions.ProxyError):
        return TransientError("the proxy cannot be reached (HTTP_PROXY, HTTPS_PROXY)")
    for kind, why in _transient_kinds():
        if any(isinstance(cause, kind) for cause in chain):
            return TransientError(why)
    return TransientError(f"the connection failed ({type(chain[-1]).__name__})")


def _transient_kinds() -> list[tuple[type[BaseException], str]]:
    import urllib3

    return [
        (socket.gaierror, "the host's name cannot be resolved"),
        (ConnectionRefusedError, "the connection was refused"),
        (urllib3.exceptions.IncompleteRead, "the connection closed before the end of the body"),
        (http.client.IncompleteRead, "the connection closed before the end of the body"),
        (http.client.RemoteDisconnected, "the server closed the connection without an answer"),
        (ConnectionResetError, "the connection was reset"),
        (TimeoutError, "nothing came for the whole time limit"),
        (urllib3.exceptions.TimeoutError, "nothing came for the whole time limit"),
    ]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    stack: list[BaseException] = [error]
    while stack:
        at = stack.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        yield at
        inner = [at.__cause__, at.__context__, getattr(at, "reason", None), *at.args]
        stack.extend(item for item in inner if isinstance(item, BaseException))


def redact_url(url: str) -> str:
    """A URL without credentials, query and fragment, for messages."""
    parts = urlsplit(url)
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
) -> T:
    """Call ``work`` until it returns; after a TransientError wait, and say so.

    ``count`` gives the bytes that are there: a try that brought many starts the counting of
    failures anew. Raises PermanentError, also after the last try.
    """
    failures, before = 0, count()
    while True:
        try:
            return work()
        except TransientError as error:  # noqa: PERF203 - trying again is the loop
            failures = 1 if count() - before >= PROGRESS_BYTES else failures + 1
            before = count()
            if failures >= policy.attempts:
                tries = "1 try" if failures == 1 else f"{failures} tries"
                raise PermanentError(f"{error} ({tries})") from error
            wait_s = policy.wait_s(failures, error.wait_s)
            progress.step(f"{label}: {error}; trying again in {wait_s:.1f} s")
            time.sleep(wait_s)
