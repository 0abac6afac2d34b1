"""Threads that decode at once: msgspec dies of two that are the first to do so into a Struct."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading
import msgspec
from provisioning.manifest.reader import convert_toml

sys.setswitchinterval(1e-6)
decode = {decode}
for number in range(100):
    row = msgspec.defstruct(f"Row{{number}}", [(f"a{{one}}", dict[str, int]) for one in range(5)])
    kind = msgspec.defstruct(f"Kind{{number}}", [(f"f{{one}}", row) for one in range(8)])
    value = {{f"f{{one}}": {{f"a{{each}}": {{}} for each in range(5)}} for one in range(8)}}
    start = threading.Barrier(4)
    threads = [
        threading.Thread(target=lambda: (start.wait(), decode(value, kind))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def run(decode: str) -> int:
    argv = [sys.executable, "-c", SCRIPT.format(decode=decode)]
    return subprocess.run(argv, check=False).returncode


def test_threads_may_be_the_first_to_decode_into_a_struct() -> None:
    assert run("lambda value, kind: convert_toml(value, kind, '')") == 0
    assert run("msgspec.convert") < 0  # once it survives this, the lock can go
