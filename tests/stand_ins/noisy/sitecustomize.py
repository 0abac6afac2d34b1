"""Makes packages noisy: each process that imports one of them prints in all the ways in which
packages do. Python imports this module when it starts, if its folder is on PYTHONPATH."""

from __future__ import annotations

import ctypes
import importlib.abc
import logging
import os
import subprocess
import sys
import threading
import warnings

NOISY = {"numpy", "onnx", "onnxruntime", "psutil", "rich", "torch", "torchao"}


def print_noise(name: str) -> None:
    """Print to both streams from Python, C, a thread, a logger and another process."""
    for stream in (sys.stdout, sys.stderr):
        print(f"NOISE of {name} from Python", file=stream)
    for descriptor in (1, 2):
        os.write(descriptor, f"NOISE of {name} by write\n".encode())
    ctypes.CDLL(None).puts(f"NOISE of {name} from C, buffered".encode())
    logging.getLogger(name).error("NOISE of %s from a logger", name)
    warnings.warn(f"NOISE of {name}", stacklevel=1)
    thread = threading.Thread(target=print, args=[f"NOISE of {name} from a thread"])
    thread.start()
    thread.join()
    words = "echo NOISE of a process; echo NOISE of a process >&2"
    subprocess.run(["/bin/sh", "-c", words], check=False)


class Finder(importlib.abc.MetaPathFinder):
    """Finds nothing, but prints when a noisy package is first imported."""

    def find_spec(self, fullname: str, *_: object) -> None:
        """Print, and leave the search to the other finders."""
        if fullname in NOISY:
            NOISY.discard(fullname)
            print_noise(fullname)


sys.meta_path.insert(0, Finder())
