"""A static HTTP server with ranges that sends files by sendfile, in a process of its own."""

from __future__ import annotations

import os
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue

from provisioning.console.process import run_process

START_S = 30


class Handler(BaseHTTPRequestHandler):
    """GET of the one directory that the server was started in; counts the body's bytes."""

    protocol_version = "HTTP/1.1"
    sent_bytes = 0

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path in {"/sent", "/stop"}:
            self._send_text(str(Handler.sent_bytes))
            if self.path == "/stop":
                threading.Thread(target=self.server.shutdown).start()
            return
        with Path(self.path.lstrip("/")).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start, end = parse_range(self.headers.get("Range", ""), size)
            is_part = "Range" in self.headers
            self.send_response(206 if is_part else 200)
            self.send_header("Content-Length", str(end - start))
            self.send_header("ETag", f'"{size:x}"')
            self.send_header("Accept-Ranges", "bytes")
            if is_part:
                self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
            self.end_headers()
            self.wfile.flush()
            Handler.sent_bytes += end - start
            while start < end:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, end - start)

    def _send_text(self, text: str) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def parse_range(header: str, size: int) -> tuple[int, int]:
    """The first byte and one past the last of a single byte range."""
    first, _, last = header.removeprefix("bytes=").partition("-")
    if not first:
        return (max(0, size - int(last)), size) if last else (0, size)
    return int(first), min(int(last) + 1, size) if last else size


def serve() -> None:
    """Serve the working directory on a free port of loopback, and print the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """The base URL of a server of ``directory``, running in a process of its own."""
    lines: Queue[str] = Queue()
    argv = [sys.executable, "-m", "tests.bench.file_server"]
    root = Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": str(root)}
    options = {"cwd": directory, "env": env, "on_line": lines.put, "check": False}
    thread = threading.Thread(target=run_process, args=(argv,), kwargs=options)
    thread.start()
    base = f"http://127.0.0.1:{lines.get(timeout=START_S)}"
    try:
        yield base
    finally:
        ask_server(base, "stop")
        thread.join()


def ask_server(base: str, word: str) -> int:
    """The server's count of body bytes; ``stop`` ends it as well."""
    with urllib.request.urlopen(f"{base}/{word}", timeout=START_S) as answer:
        return int(answer.read())


if __name__ == "__main__":
    serve()
