"""Connect this process to a container: copy stdin, stdout and stderr, and pass on changes of the
terminal's size.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import struct
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from docker.client import DockerClient

READ_BYTES = 1 << 16
# Without a terminal, each piece of data has this header: the number of the stream, and the size.
HEADER = struct.Struct(">BxxxL")
STDERR = 2


def open_stream(client: DockerClient, container_id: str) -> socket.socket:
    """Return one socket for the container's stdin, stdout and stderr. Call this before the
    container starts, so that no output is lost.
    """
    wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    opened: Any = client.api.attach_socket(container_id, params=wanted)
    stream: socket.socket = getattr(opened, "_sock", opened)
    stream.settimeout(None)
    return stream


def copy_streams(stream: socket.socket, *, terminal: bool) -> None:
    """Copy stdin to ``stream``, and ``stream`` to stdout and stderr, until the container closes its
    side.

    If the container has a ``terminal``, its stderr is part of its stdout.
    """
    done = threading.Event()
    feeder = threading.Thread(target=_feed, args=(stream, done), daemon=True)
    feeder.start()
    try:
        for number, data in _pieces(stream, terminal):
            os.write(STDERR if number == STDERR else 1, data)
    finally:
        done.set()
        feeder.join(1.0)


def _feed(stream: socket.socket, done: threading.Event) -> None:
    with suppress(OSError, ValueError):
        while not done.is_set():
            if not select.select([0], [], [], 0.2)[0]:
                continue
            data = os.read(0, READ_BYTES)
            if not data:
                stream.shutdown(socket.SHUT_WR)
                return
            stream.sendall(data)


def _pieces(stream: socket.socket, terminal: bool) -> Iterator[tuple[int, bytes]]:
    if terminal:
        while data := stream.recv(READ_BYTES):
            yield 1, data
        return
    with stream.makefile("rb") as frames:
        while len(header := frames.read(HEADER.size)) == HEADER.size:
            number, size = HEADER.unpack(header)
            yield number, frames.read(size)


@contextmanager
def raw_terminal(client: DockerClient, container_id: str) -> Iterator[None]:
    """Switch the terminal to raw mode, so that each key is sent as it is typed. Also give the
    container the terminal's size, now and whenever it changes.

    The terminal's settings are restored at the end of the block.
    """
    before = termios.tcgetattr(0)
    former = signal.getsignal(signal.SIGWINCH)

    def resize(_number: int = 0, _frame: FrameType | None = None) -> None:
        size = shutil.get_terminal_size()
        with suppress(Exception):  # the container may have exited
            client.api.resize(container_id, height=size.lines, width=size.columns)

    try:
        tty.setraw(0)
        signal.signal(signal.SIGWINCH, resize)
        resize()
        yield
    finally:
        signal.signal(signal.SIGWINCH, former)
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        sys.stdout.flush()
