"""An HTTP client for one download. It checks each redirect, and limits the time without a response
or new data. Credentials are a bearer token per host, or the output of a credential helper.
requests itself handles ``~/.netrc``. A secret is sent only to its own host, and only over https
(except to loopback).
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any
from urllib.parse import urljoin, urlsplit
from weakref import WeakSet

from msgspec import Struct, field

from provisioning.console.process import run_process
from provisioning.documents import DocumentError, decode_json
from provisioning.errors import ToolError, UnfitError
from provisioning.fetch.transfer import (
    Head,
    PermanentError,
    TransferPolicy,
    TransientError,
    check_bundle,
    check_status,
    explain_failures,
    parse_head,
)

TOKENS_VARIABLE = "QNN_CI_BEARER_TOKENS"
HELPER_VARIABLE = "QNN_CI_CREDENTIAL_HELPER"
# A helper may ask a server for a token.
HELPER_TIMEOUT_S = 60.0
MAX_CHARACTERS = 1 << 20
# Nobody between can read what is sent to these.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def find_headers(url: str) -> dict[str, str]:
    """Return the headers with credentials for a URL, empty if there are none. Raises UnfitError if
    the variable with tokens is malformed or the helper fails.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    # A secret that is sent over http can be read on the way.
    if parts.scheme != "https" and host not in LOOPBACK:
        return {}
    place = parts.netloc.rpartition("@")[2]
    tokens = parse_tokens(os.environ.get(TOKENS_VARIABLE, ""))
    # An entry with the port, HOST:PORT, comes before one for the whole host.
    if token := tokens.get(place, tokens.get(host, "")):
        return {"Authorization": f"Bearer {token}"}
    helper = os.environ.get(HELPER_VARIABLE, "")
    # Neither login nor query: the helper is another program, which may log its input.
    return _ask_helper(helper, f"{parts.scheme}://{place}{parts.path}") if helper else {}


def parse_tokens(text: str) -> dict[str, str]:
    """Parse ``host=token`` pairs separated by blanks or commas. Raises UnfitError."""
    tokens = {}
    for entry in re.split(r"[\s,]+", text.strip()):
        host, equals, token = entry.partition("=")
        if entry and not (host and equals and re.fullmatch(r"[!-~]+", token)):
            why = "an entry is not HOST=TOKEN"
            fix = "set it to HOST=TOKEN entries, separated by blanks or commas"
            raise UnfitError(f"{TOKENS_VARIABLE} is malformed", why=why, fix=fix)
        tokens[host] = token
    return tokens


class HelperAnswer(Struct, frozen=True):
    """What a credential helper prints."""

    headers: dict[str, list[str]] = field(default_factory=dict)


@lru_cache(maxsize=64)
def _ask_helper(helper: str, uri: str) -> dict[str, str]:
    """Return the headers that ``HELPER get`` prints for ``{"uri": ...}`` (Bazel's protocol)."""
    try:
        return _read_helper(helper, uri)
    except ToolError as error:
        fix = f"check what `{helper} get` prints for {uri}, or unset {HELPER_VARIABLE}"
        raise UnfitError("the credential helper failed", why=error.what, fix=fix) from error


def _read_helper(helper: str, uri: str) -> dict[str, str]:
    characters_left = MAX_CHARACTERS

    def count(line: str) -> None:
        nonlocal characters_left
        characters_left -= len(line) + 1
        if characters_left < 0:
            # A helper that prints without end must not fill the memory.
            raise ToolError(f"it printed more than {MAX_CHARACTERS} characters")

    ended = run_process(
        [helper, "get"],
        input_text=json.dumps({"uri": uri}),
        timeout_s=HELPER_TIMEOUT_S,
        on_line=count,
        check=False,  # an error of run_process would contain the output, which may be secret
        merged=False,
    )
    if not ended.is_good:
        raise ToolError(f"{helper} {ended.describe()}")
    try:
        headers = decode_json(ended.output, HelperAnswer).headers
    except DocumentError as error:
        why = 'it printed something other than {"headers": {NAME: [VALUE]}}'
        raise ToolError(why) from error
    joined_headers = {name: ", ".join(values) for name, values in headers.items()}
    if any(re.search(r"[^ -~]", word) for pair in joined_headers.items() for word in pair):
        raise ToolError("one of its headers has characters that HTTP does not allow")
    return joined_headers


MAX_REDIRECTS = 10
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# More memory would be mapped and unmapped for every piece.
READ_BYTES = 512 << 10
USER_AGENT = "executorch-qnn-ci"


_open_clients: WeakSet[Client] = WeakSet()
_is_ending = threading.Event()


@contextmanager
def end_transfers() -> Iterator[None]:
    """End the transfers of all threads, and prevent new ones during the block."""
    _is_ending.set()
    try:
        for client in list(_open_clients):
            client.abort()
        yield
    finally:
        _is_ending.clear()


class Client:
    """A requests session with connections that another thread can end."""

    def __init__(self, policy: TransferPolicy) -> None:
        self.policy = policy
        self.sockets: list[socket.socket] = []
        self.session = _open_session(self.sockets)
        _open_clients.add(self)

    def close(self) -> None:
        """Close its connections."""
        self.session.close()
        while self.sockets:
            self.sockets.pop().close()

    def abort(self) -> None:
        """Shut down its connections. Any thread may call this."""
        for connected in list(self.sockets):
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str]) -> Iterator[tuple[Head, Iterator[bytes]]]:
        """GET ``url`` and yield the head of the final response, and its body piece by piece.

        Raises TransientError or PermanentError if the transfer fails, and UnfitError if the
        settings for credentials are wrong.
        """
        response = self._follow(url, headers)
        is_read = False
        try:
            check_status(response.status_code, response.headers)
            yield parse_head(response.status_code, response.headers), self._body(url, response)
            is_read = response.raw.length_remaining == 0
        finally:
            self._close(response, is_read)

    def _close(self, response: Any, is_read: bool) -> None:
        """Close the response. If its body was not read to the end, close the connection, too, since
        it cannot be reused.
        """
        if is_read:
            response.raw.release_conn()  # an empty body is never read, which would release it
        response.close()
        if not is_read:
            self.abort()
            while self.sockets:
                self.sockets.pop().close()

    def _follow(self, url: str, headers: Mapping[str, str]) -> Any:
        """Return the final response after all redirects; the bodies of redirects are not read."""
        with self._within(self.policy.connect_timeout_s + self.policy.read_timeout_s):
            # Not left to requests, since each target is checked, and gets only its own credentials.
            for _ in range(MAX_REDIRECTS + 1):
                response = self._ask(url, headers)
                if response.status_code not in REDIRECTS or "Location" not in response.headers:
                    return response
                self._close(response, is_read=response.raw.length_remaining == 0)
                url = judge_redirect(url, response.headers["Location"])
        raise PermanentError(f"the server sends more than {MAX_REDIRECTS} redirects")

    def _ask(self, url: str, headers: Mapping[str, str]) -> Any:
        timeout = (self.policy.connect_timeout_s, self.policy.read_timeout_s)
        if _is_ending.is_set():
            raise PermanentError("the transfer was ended")
        # Before the request, whose error would not name the bundle.
        check_bundle()
        with explain_failures(url):
            sent = {**headers, **find_headers(url)}
            # Without an ``auth``, requests would replace our Authorization header from ~/.netrc.
            has_own = "authorization" in map(str.lower, sent)
            auth = (lambda request: request) if has_own else None
            return self.session.get(url, headers=sent, stream=True, timeout=timeout, auth=auth)

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """Shut down the connections if the block takes longer than ``seconds``, even if single
        bytes keep arriving. Then raises a TransientError that states the time limit.
        """
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self.abort()

        # requests' timeout is for each read of the socket: single bytes would keep a response going
        # for hours.
        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        except TransientError as error:
            if expired.is_set():
                raise TransientError(f"no response within {seconds:.0f} s") from error
            raise
        finally:
            timer.cancel()
        if expired.is_set():  # an ended connection looks like the end of a body without a length
            raise TransientError(f"no response within {seconds:.0f} s")

    def _body(self, url: str, response: Any) -> Iterator[bytes]:
        encoding = response.headers.get("Content-Encoding", "identity")
        # Sizes, ranges and hashes would be those of the compressed body.
        if encoding != "identity":
            raise PermanentError(f"the server sends the body compressed ({encoding})")
        window_s = self.policy.read_timeout_s
        while True:
            since, count, waited_s = time.monotonic(), 0, 0.0
            # A read may begin at the end of the window. It also waits for what is not data, such as
            # the extensions of a chunk and the headers after the last chunk, without end.
            with self._within(2 * window_s):
                while waited_s < window_s:
                    with explain_failures(url):
                        # read1 returns what has arrived. read would wait for READ_BYTES, and a slow
                        # transfer would seem to stall.
                        data = response.raw.read1(READ_BYTES)
                    if not data:
                        return
                    yield data
                    count += len(data)
                    waited_s = time.monotonic() - since
            if count < self.policy.slowest_bytes_s * waited_s:
                raise TransientError(f"the transfer stalled: {count} bytes in {waited_s:.0f} s")


def judge_redirect(url: str, location: str) -> str:
    """Return the absolute URL of a Location header. Raises PermanentError if it must not be
    followed.
    """
    try:
        target = urljoin(url, location)
        scheme = urlsplit(target).scheme
        has_host = bool(urlsplit(target).hostname)
    except ValueError as error:
        raise PermanentError("the server redirects to something that is not a URL") from error
    if scheme not in {"http", "https"}:
        raise PermanentError(f"the server redirects to a URL with the scheme {scheme}")
    if not has_host:
        raise PermanentError("the server redirects to a URL without a host")
    if urlsplit(url).scheme == "https" and scheme != "https":
        raise PermanentError("the server redirects from https to http")
    return target


def _open_session(sockets: list[socket.socket]) -> Any:
    import requests
    import requests.adapters

    class Watched:
        """Remembers the socket of each new connection."""

        def _new_conn(self) -> Any:
            connected = super()._new_conn()  # type: ignore[misc]
            # TLS detaches the socket from this object, so that only a duplicate stays usable.
            sockets.append(connected.dup())
            return connected

    class Adapter(requests.adapters.HTTPAdapter):
        def get_connection_with_tls_context(self, *words: Any, **options: Any) -> Any:
            pool: Any = super().get_connection_with_tls_context(*words, **options)
            if not issubclass(pool.ConnectionCls, Watched):
                pool.ConnectionCls = type("Connection", (Watched, pool.ConnectionCls), {})
            return pool

    class Session(requests.Session):
        def get_redirect_target(self, resp: Any) -> None:
            """Return None, so that requests does not follow redirects: it would read the whole body
            of each response.
            """

    session = Session()
    session.mount("http://", Adapter())
    session.mount("https://", Adapter())
    # Ranges, sizes and hashes are those of the file itself, not of a compressed transfer.
    session.headers.update({"Accept-Encoding": "identity", "User-Agent": USER_AGENT})
    return session
