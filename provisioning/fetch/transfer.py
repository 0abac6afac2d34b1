"""HTTP for downloads: policy, response heads, kinds of failure, and retries.

The ``requests`` library handles proxies, certificates and ~/.netrc. URLs in messages never contain
credentials or a query.
"""

from __future__ import annotations

import http.client
import math
import os
import random
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from provisioning.console.progress import Progress
from provisioning.errors import UnfitError

T = TypeVar("T")
RETRIED_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# Without a minimum, a server that sends one byte per connection would be retried without end.
PROGRESS_BYTES = 64 << 10


class TransientError(Exception):
    """A failure that a retry may avoid. ``wait_s`` is the delay that the server asked for."""

    def __init__(self, why: str, wait_s: float = 0) -> None:
        super().__init__(why)
        self.wait_s = wait_s


class PermanentError(Exception):
    """A failure that a retry of the same URL would repeat."""


class BusyError(PermanentError):
    """The server asked for a longer delay than ``patience_s`` of the policy; other URLs are tried
    first.
    """


class MismatchError(PermanentError):
    """The content does not match the pin."""


@dataclass(frozen=True)
class TransferPolicy:
    """Time limits and retries.

    ``attempts`` limits the failures in a row, each with fewer than PROGRESS_BYTES new bytes, and
    how often a download starts over. ``longest_wait_s`` is the longest delay before a retry, and
    ``patience_s`` the longest delay that a server may ask for. A connection that transfers fewer
    than ``slowest_bytes_s`` bytes per second during ``read_timeout_s`` has failed.
    """

    # Downloads of the QNN SDK break often (resets of HTTP/2, small error bodies with status 200):
    # for that reason, ExecuTorch's own script tries five times.
    attempts: int = 6
    backoff_s: float = 0.5
    longest_wait_s: float = 30.0
    patience_s: float = math.inf
    connect_timeout_s: float = 15.0
    read_timeout_s: float = 60.0
    slowest_bytes_s: float = 1024.0

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> TransferPolicy:
        """Return the policy with QNN_CI_ATTEMPTS, QNN_CI_BACKOFF_S and QNN_CI_TIMEOUT_S applied.

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
        """Return the seconds to wait before a retry: an exponential delay with jitter, or the delay
        that the server asked for if that is longer, but at most ``longest_wait_s``.
        """
        # Jitter, so that the jobs of a CI run do not come back to a busy server at the same moment.
        backoff = self.backoff_s * 2.0 ** (failures - 1) * random.uniform(0.5, 1.5)  # noqa: S311
        return min(max(backoff, asked_s), self.longest_wait_s)


def _number(
    variables: Mapping[str, str], name: str, default: float, low: float, high: float
) -> float:
    text = variables.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        why = f"it must be a number from {low:g} to {high:g}"
        raise UnfitError(f"{name}={text} is not usable", why=why, fix=f"correct or unset {name}")
    return value


@dataclass(frozen=True)
class Head:
    """The head of an HTTP response. Sizes are -1 if not stated.

    ``validator`` is for If-Range: a strong ETag, else the date, else ''.
    """

    status: int
    length: int
    range_start: int
    total: int
    validator: str
    content_type: str


def usable_validator(text: str) -> str:
    """Return ``text`` if it is valid in a header, else ''."""
    return text if re.fullmatch(r"[ -~]{1,300}", text) else ""


def parse_head(status: int, headers: Mapping[str, str]) -> Head:
    """Return the relevant parts of a response's head. Malformed numbers are treated as missing."""
    start, total = -1, -1
    unit, _, range_and_size = headers.get("Content-Range", "").partition(" ")
    # Ranges in other units say nothing about bytes.
    if unit == "bytes":
        span, _, size = range_and_size.partition("/")
        start = _digits(span.partition("-")[0])
        total = _digits(size)
    etag = headers.get("ETag", "")
    # A weak ETag may stay the same if bytes change, so If-Range must not use it (RFC 9110, 13.1.5).
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
    # int() also accepts signs, blanks, underscores and digits of other scripts.
    return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else -1


def check_status(status: int, headers: Mapping[str, str]) -> None:
    """Raise TransientError or PermanentError for every HTTP status except 200, 206 and 416."""
    if status in {200, 206, 416}:
        return
    if status in RETRIED_STATUS:
        raise TransientError(f"HTTP {status}", _retry_after_s(headers.get("Retry-After", "")))
    reasons = {
        401: "HTTP 401: the server needs credentials; put them into ~/.netrc",
        403: "HTTP 403: access is refused; if credentials are needed, put them into ~/.netrc",
        404: "HTTP 404: not found",
        407: "HTTP 407: the proxy needs credentials",
        410: "HTTP 410: gone",
    }
    raise PermanentError(reasons.get(status, f"HTTP {status}"))


def _retry_after_s(text: str) -> float:
    if (seconds := _digits(text)) >= 0:
        return float(seconds)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    # What parsedate_to_datetime and timestamp raise for malformed or impossible dates. The usual
    # delay applies then.
    except (TypeError, ValueError, IndexError, OverflowError, OSError):
        return 0.0


def redact_url(url: str) -> str:
    """Return a URL without credentials, query and fragment, for messages."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return re.split(r"[?#]", url)[0].rpartition("@")[2]
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
    """Call ``work`` until it returns, and return its result. After each TransientError, print it
    and wait.

    ``count`` returns the number of bytes so far; an attempt that adds at least PROGRESS_BYTES new
    bytes resets the count of failures. ``restarts`` returns how often the bytes were discarded
    (default: never). Raises PermanentError, including after the last attempt, and BusyError if the
    server asks for a longer delay than the policy allows.
    """
    failures, best_bytes = 0, count()
    while True:
        try:
            return work()
        except TransientError as error:  # noqa: PERF203 - the loop is for retries
            size_bytes = count()
            failures = 1 if size_bytes - best_bytes >= PROGRESS_BYTES else failures + 1
            best_bytes = max(best_bytes, size_bytes)
            if max(failures, restarts()) >= policy.attempts:
                tries = "1 try" if failures == 1 else f"{failures} tries"
                times = restarts()
                restarts_text = f", started over {times} time{'s' * (times > 1)}" if times else ""
                raise PermanentError(f"{error} ({tries}{restarts_text})") from error
            if error.wait_s > policy.patience_s:
                why = f"{error}; the server asks for a delay of {error.wait_s:.0f} s"
                raise BusyError(why) from error
            wait_s = policy.wait_s(failures, error.wait_s)
            progress.step(f"{label}: {error}; trying again in {wait_s:.1f} s")
            time.sleep(wait_s)


BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


def check_bundle() -> None:
    """Raise PermanentError if REQUESTS_CA_BUNDLE or, if that is not set, CURL_CA_BUNDLE points to a
    missing file, or to a file without certificates or with a damaged one.
    """
    name = next((variable for variable in BUNDLES if os.environ.get(variable)), "")
    if not name:
        return
    path = Path(os.environ[name])
    try:
        if not path.is_dir():
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        if isinstance(error, FileNotFoundError):
            why = "does not exist"
        elif isinstance(error, ssl.SSLError):
            empty = error.reason == "NO_CERTIFICATE_OR_CRL_FOUND"
            why = "contains no certificates" if empty else "contains a damaged certificate"
        raise PermanentError(f"{name} points to {path}, which {why}") from error


@contextmanager
def explain_failures(url: str) -> Iterator[None]:
    """Turn errors of requests, urllib3 and sockets in the block into TransientError or
    PermanentError.
    """
    import requests
    import urllib3

    try:
        yield
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
        # requests reports a proxy with the scheme socks5, if PySocks is missing, as an invalid
        # schema.
        if isinstance(error, requests.exceptions.InvalidProxyURL) or "SOCKS" in str(error):
            why = "HTTP_PROXY, HTTPS_PROXY or ALL_PROXY is not the URL of an HTTP proxy"
            raise PermanentError(why) from error
        raise PermanentError(f"{redact_url(url)} is not a URL that can be fetched") from error
    except requests.exceptions.MissingSchema as error:
        raise PermanentError(f"{redact_url(url)} has no scheme") from error
    except requests.exceptions.InvalidHeader as error:
        raise PermanentError("a request header has characters that HTTP does not allow") from error
    except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise _classify(error) from error
    # Some malformed responses pass urllib3 as errors of the standard library.
    except (ValueError, http.client.HTTPException) as error:
        raise TransientError(f"the response is not HTTP ({type(error).__name__})") from error


def _classify(error: BaseException) -> TransientError | PermanentError:
    import requests
    import urllib3

    chain = list(_causes(error))
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return PermanentError(
                f"its certificate is not trusted: {cause.verify_message} "
                "(REQUESTS_CA_BUNDLE can point to other authorities)"
            )
        # SSLErrors as well, but about the connection and not about the protocol.
        if isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return TransientError("the server closed the connection during the TLS handshake")
    if any(isinstance(cause, ssl.SSLError) for cause in chain):
        why = "TLS failed: the server and this machine may have no protocol in common"
        return PermanentError(why)
    if isinstance(error, requests.exceptions.ProxyError):
        return _classify_proxy(chain)
    incomplete = urllib3.exceptions.IncompleteRead, http.client.IncompleteRead
    reasons: dict[str, tuple[type[BaseException], ...]] = {
        "the host's name cannot be resolved": (socket.gaierror,),
        "the connection was refused": (ConnectionRefusedError,),
        "the connection closed before the end of the body": incomplete,
        "the server closed the connection without a response": (http.client.RemoteDisconnected,),
        "the connection was reset": (ConnectionResetError,),
        "no data arrived within the time limit": (TimeoutError, urllib3.exceptions.TimeoutError),
    }
    for why, kinds in reasons.items():
        if any(isinstance(cause, kinds) for cause in chain):
            return TransientError(why)
    return TransientError(f"the connection failed ({type(chain[-1]).__name__})")


def _classify_proxy(chain: list[BaseException]) -> TransientError | PermanentError:
    messages = " ".join(str(cause) for cause in chain)
    if refusal := re.search(r"Tunnel connection failed: (\d{3})", messages):
        status = int(refusal[1])
        if status == 407:
            return PermanentError(
                "the proxy needs credentials (HTTP 407); set HTTPS_PROXY=http://USER:PASSWORD@HOST"
            )
        # 4xx is the proxy's decision about the host; 5xx may be the network behind it.
        if status < 500:
            return PermanentError(f"the proxy refuses this host (HTTP {status})")
        return TransientError(f"the proxy failed (HTTP {status})")
    return TransientError("the proxy cannot be reached; check HTTP_PROXY and HTTPS_PROXY")


def _causes(error: BaseException) -> Iterator[BaseException]:
    yielded_ids: set[int] = set()
    stack: list[BaseException] = [error]
    while stack:
        at = stack.pop()
        if id(at) in yielded_ids:
            continue
        yielded_ids.add(id(at))
        yield at
        # urllib3 keeps the cause in ``reason``, requests among the arguments.
        inner = [at.__cause__, at.__context__, getattr(at, "reason", None), *at.args]
        stack.extend(item for item in inner if isinstance(item, BaseException))
