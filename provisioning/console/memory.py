"""A limit of the address space (``ulimit -v``) that is too low for numpy.

When numpy is imported, OpenBLAS reserves a buffer for each thread. Without memory for it, OpenBLAS
asks again and again, for ever (seen with numpy 2.2.6).
"""

from __future__ import annotations

import os
import resource
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

from provisioning.console.allowance import PROC
from provisioning.documents import read_window

LIBRARY_BYTES = 128 << 20  # numpy's own libraries
BUFFER_BYTES = 34 << 20  # per thread
MOST_THREADS = 64


class _Guard(MetaPathFinder):
    """Raises MemoryError for an import of numpy that would not end."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Return None, so that another finder finds the module. Raises MemoryError."""
        if name == "numpy" and 0 < limit_bytes() < used_bytes() + needed_bytes():
            raise MemoryError
        return None


def guard_imports() -> None:
    """Let an import of numpy raise MemoryError if the limit of the address space is too low for it.
    Without a limit, nothing changes."""
    if limit_bytes() and not any(isinstance(finder, _Guard) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Guard())


def limit_bytes() -> int:
    """Return the limit of the address space of this process, 0 if there is none."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit


def needed_bytes() -> int:
    """Return how much address space an import of numpy takes on this machine."""
    return LIBRARY_BYTES + BUFFER_BYTES * min(len(os.sched_getaffinity(0)), MOST_THREADS)


def used_bytes() -> int:
    """Return the size of this process's address space; 0 if it is unknown."""
    pages = read_window(PROC / "self" / "statm").split()[:1]
    return int(pages[0]) * resource.getpagesize() if pages else 0
