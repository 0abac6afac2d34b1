"""An HTTP client for one download. It checks each redirect, and limits the time without a response
or new data. requests reads the credentials of each host from ``~/.netrc``, or from the file in
``NETRC``.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urljoin, urlsplit
from weakref import WeakSet

from provisioning.console.progress import Progress
from provisioning.fetch.credentials import find_headers
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

MAX_REDIRECTS = 10
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# More memory would be mapped and unmapped for every piece.
READ_BYTES = 512 << 10
USER_AGENT = "executorch-qnn-ci"
UNKNOWN_HOST = "https://unknown.invalid/"  # no machine has this name (RFC 6761)


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

    def __init__(self, policy: TransferPolicy, progress: Progress | None = None) -> None:
        self.policy = policy
        self.progress = progress or Progress()
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
            first_host = urlsplit(url).hostname
            for _ in range(MAX_REDIRECTS + 1):
                has_moved = urlsplit(url).hostname != first_host
                response = self._ask(url, headers, has_moved=has_moved)
                if response.status_code not in REDIRECTS or "Location" not in response.headers:
                    return response
                self._close(response, is_read=response.raw.length_remaining == 0)
                url = judge_redirect(url, response.headers["Location"])
        raise PermanentError(f"the server sends more than {MAX_REDIRECTS} redirects")

    def _ask(self, url: str, headers: Mapping[str, str], *, has_moved: bool) -> Any:
        timeout = (self.policy.connect_timeout_s, self.policy.read_timeout_s)
        if _is_ending.is_set():
            raise PermanentError("the transfer was ended")
        # Before the request, whose error would not name the bundle.
        check_bundle()
        with explain_failures(url):
            sent = {**headers, **find_headers(url, self.progress)}
            has_own = "authorization" in map(str.lower, sent)
            # Without an ``auth``, requests would replace our Authorization header from ~/.netrc,
            # and send the login of its entry ``default`` to any host that a server redirects to.
            no_netrc = has_own or (has_moved and is_default_login(url))
            auth = (lambda request: request) if no_netrc else None
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


def is_default_login(url: str) -> bool:
    """Return whether ~/.netrc has a login for a URL only in its entry ``default``."""
    from requests.utils import get_netrc_auth

    login = get_netrc_auth(url)
    return login is not None and login == get_netrc_auth(UNKNOWN_HOST)


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
