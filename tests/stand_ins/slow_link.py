"""A ProxyCommand of OpenSSH with a slow link: ``slow_link.py HOST PORT FILE``, where FILE has the
bytes per second, and the link is as fast as it can be when it has gone."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from pathlib import Path

CHUNK = 1 << 14


def carry(source: int, target: int, speed: Path) -> None:
    """Copy until the end of the input."""
    while data := os.read(source, CHUNK):
        with contextlib.suppress(OSError, ValueError):
            time.sleep(len(data) / float(speed.read_text()))
        while data:
            data = data[os.write(target, data) :]


def main() -> None:
    host, port, speed = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    with socket.create_connection((host, port)) as peer:
        words = (sys.stdin.fileno(), peer.fileno(), speed)
        threading.Thread(target=carry, args=words, daemon=True).start()
        carry(peer.fileno(), sys.stdout.fileno(), speed)


if __name__ == "__main__":
    main()
