"""A slow link to a program: ``python -m tests.stand_ins.slow_link FILE PROGRAM``. FILE has the
bytes per second, and the link is as fast as it can be when it has gone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.stand_ins.waits import pause

CHUNK = 1 << 14


def carry(source: int, target: int, speed: Path) -> None:
    """Copy until the end of the input."""
    while data := os.read(source, CHUNK):
        with contextlib.suppress(OSError, ValueError):
            pause(len(data) / float(speed.read_text()))
        while data:
            data = data[os.write(target, data) :]


def main() -> None:
    speed, words = Path(sys.argv[1]), sys.argv[2:]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        assert peer.stdin
        assert peer.stdout
        streams = (sys.stdin.fileno(), peer.stdin.fileno(), speed)
        threading.Thread(target=carry, args=streams, daemon=True).start()
        carry(peer.stdout.fileno(), sys.stdout.fileno(), speed)


if __name__ == "__main__":
    main()
