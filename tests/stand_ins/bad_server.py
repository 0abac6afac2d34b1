"""An HTTP server that serves files well, or badly in a way that it is told to.

``server.faults["name"] = [fault, ...]``: each request for that file meets the next fault,
and when they are used up it is served well. ``server.requests`` records what was asked and
how many body bytes went out.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.stand_ins.waits import pause


@dataclass
class Asked:
    """One request: the file, its Range header, and the bytes of the body that were sent."""

    name: str
    range: str
    sent: int = 0


Fault = Callable[["Handler", bytes], None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: BadServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].lstrip("/")
        self.asked = Asked(name, self.headers.get("Range", ""))
        self.server.requests.append(self.asked)
        data = self.server.files.get(name)
        faults = self.server.faults.get(name, [])
        fault = faults.pop(0) if faults else self.server.usual
        if data is None and not faults and fault is self.server.usual:
            self.head(404, 0)
            return
        try:
            fault(self, data or b"")
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.close_connection = True

    def head(self, status: int, length: int | None, **headers: str) -> None:
        """Send the status line and headers; ``length`` None leaves Content-Length out."""
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length is None:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()

    def body(self, data: bytes) -> None:
        """Send body bytes; counted first, since the client may be done before we are."""
        self.asked.sent += len(data)
        self.wfile.write(data)

    def span(self, data: bytes) -> tuple[int, int] | None:
        """The range that was asked for, when If-Range allows it."""
        unit, _, text = self.asked.range.partition("=")
        condition = self.headers.get("If-Range", "")
        if unit != "bytes" or (condition and condition != etag(data)):
            return None
        first, _, last = text.partition("-")
        if not first:
            return max(0, len(data) - int(last)), len(data)
        return int(first), min(int(last) + 1, len(data)) if last else len(data)

    def hang_up(self, *, hard: bool = False) -> None:
        """Close the connection; ``hard`` resets it."""
        self.wfile.flush()
        if hard:
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close_connection = True
        if not isinstance(self.connection, ssl.SSLSocket):
            self.connection.shutdown(socket.SHUT_WR) if not hard else None
        self.connection.close()


@lru_cache(maxsize=16)
def etag(data: bytes) -> str:
    """A strong ETag; each piece of a file is asked for with it."""
    return '"' + hashlib.sha256(data).hexdigest()[:16] + '"'


def serve(handler: Handler, data: bytes) -> None:
    """As a good server does: ranges, ETag, Content-Length."""
    span = handler.span(data)
    if span is None:
        handler.head(200, len(data), ETag=etag(data), Accept_Ranges="bytes")
        handler.body(data)
        return
    start, end = span
    if start >= len(data):
        handler.head(416, 0, Content_Range=f"bytes */{len(data)}")
        return
    where = f"bytes {start}-{end - 1}/{len(data)}"
    handler.head(206, end - start, ETag=etag(data), Content_Range=where)
    handler.body(data[start:end])


def status(code: int, body: bytes = b"", **headers: str) -> Fault:
    """An HTTP status with a small body."""

    def fault(handler: Handler, data: bytes) -> None:
        handler.head(code, len(body), **headers)
        handler.body(body)

    return fault


def cut(share: float, *, hard: bool = False, sized: bool = True) -> Fault:
    """The connection ends after a share of what was asked for."""

    def fault(handler: Handler, data: bytes) -> None:
        start = _begin(handler, data, sized=sized)
        handler.body(data[start : start + int((len(data) - start) * share)])
        handler.hang_up(hard=hard)

    return fault


def _begin(handler: Handler, data: bytes, *, sized: bool = True) -> int:
    span = handler.span(data)
    start = span[0] if span else 0
    length = len(data) - start if sized else None
    if start:
        where = f"bytes {start}-{len(data) - 1}/{len(data)}"
        handler.head(206, length, ETag=etag(data), Content_Range=where)
    else:
        handler.head(200, length, ETag=etag(data))
    return start


def stall(share: float, for_s: float) -> Fault:
    """Nothing comes any more after a share, for some seconds."""

    def fault(handler: Handler, data: bytes) -> None:
        start = _begin(handler, data)
        handler.body(data[start : start + int((len(data) - start) * share)])
        handler.wfile.flush()
        pause(for_s)
        handler.hang_up()

    return fault


def slow(seconds: float) -> Fault:
    """Served well, over some seconds."""

    def fault(handler: Handler, data: bytes) -> None:
        start = _begin(handler, data)
        step = max(1, (len(data) - start) // 20)
        for at in range(start, len(data), step):
            handler.body(data[at : at + step])
            pause(seconds / 20)

    return fault


def drip(count: int, pause_s: float) -> Fault:
    """A byte now and then, then the end."""

    def fault(handler: Handler, data: bytes) -> None:
        start = _begin(handler, data)
        for at in range(start, min(start + count, len(data))):
            handler.body(data[at : at + 1])
            handler.wfile.flush()
            pause(pause_s)
        handler.hang_up()

    return fault


def whole(data: bytes | None = None, *, length: int | None = None, **headers: str) -> Fault:
    """Status 200 with other bytes, or another Content-Length, than it should."""

    def fault(handler: Handler, good: bytes) -> None:
        body = good if data is None else data
        handler.head(200, len(body) if length is None else length, **headers)
        handler.body(body)
        if length is not None:
            handler.hang_up()

    return fault


def part(shift: int = 0, **headers: str) -> Fault:
    """Status 206 that starts ``shift`` bytes off, or with other headers than it should."""

    def fault(handler: Handler, data: bytes) -> None:
        span = handler.span(data) or (0, len(data))
        start = max(0, span[0] + shift)
        usual = {
            "ETag": etag(data),
            "Content_Range": f"bytes {start}-{len(data) - 1}/{len(data)}",
        }
        handler.head(206, len(data) - start, **{**usual, **headers})
        handler.body(data[start:])

    return fault


def chunked(share: float) -> Fault:
    """Transfer-Encoding: chunked that ends without its last chunk."""

    def fault(handler: Handler, data: bytes) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("ETag", etag(data))
        handler.end_headers()
        piece = data[: int(len(data) * share)]
        handler.wfile.write(f"{len(piece):x}\r\n".encode())
        handler.body(piece)
        handler.wfile.write(b"\r\n")
        handler.hang_up()

    return fault


def raw(data: bytes) -> Fault:
    """Bytes that are no HTTP response."""

    def fault(handler: Handler, good: bytes) -> None:
        handler.wfile.write(data)
        handler.hang_up()

    return fault


def drip_head(lines: bytes, pause_s: float, count: int = 1 << 30) -> Fault:
    """The head comes a byte at a time: ``lines``, again and again."""

    def fault(handler: Handler, data: bytes) -> None:
        for at in range(count):
            handler.wfile.write(lines[at % len(lines) :][:1])
            handler.wfile.flush()
            pause(pause_s)

    return fault


def repeat(lines: bytes) -> Fault:
    """The same lines for ever, some hundred times a second."""

    def fault(handler: Handler, data: bytes) -> None:
        while True:
            handler.wfile.write(lines)
            pause(0.002)

    return fault


def after(start: bytes, following: Fault) -> Fault:
    """First these bytes, then ``following``."""

    def fault(handler: Handler, data: bytes) -> None:
        handler.wfile.write(start)
        following(handler, data)

    return fault


def redirect_with_body(location: str, piece: bytes, pause_s: float) -> Fault:
    """302 with a body that has no end."""

    def fault(handler: Handler, data: bytes) -> None:
        handler.head(302, None, Location=location)
        while True:
            handler.body(piece)
            pause(pause_s)

    return fault


def redirect(location: str) -> Fault:
    """302 to another place."""
    return status(302, Location=location)


class BadServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[Fault]] = {}
        self.requests: list[Asked] = []
        self.scheme = "http"
        self.usual: Fault = serve
        self.busy = 0

    def handle_error(self, *_: Any) -> None:
        pass

    def url(self, name: str) -> str:
        """The URL of a file."""
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/{name}"

    @property
    def sent_bytes(self) -> int:
        """Body bytes of all responses."""
        return sum(request.sent for request in self.requests)


@contextmanager
def running(certificate: Path | None = None) -> Iterator[BadServer]:
    """A server on loopback, over TLS when there is a certificate (PEM, with its key)."""
    server = BadServer()
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.scheme = "https"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
