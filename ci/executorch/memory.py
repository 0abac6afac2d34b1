"""Memory of a process that runs one program after the other."""

from __future__ import annotations

import ctypes

M_PERTURB = -6  # malloc.h; see mallopt(3)
FILL = 0x5A  # 1.5e16 as float32, 90 as int8
# Read when a process starts. Blocks of up to 1 KiB that a thread keeps for itself are not filled.
TUNABLES = "glibc.malloc.tcache_count=0"


def overwrite_freed_memory() -> None:
    """From now on the allocator fills what it gets back with FILL, and what it hands out with the
    complement: an output that is left unwritten holds no outputs of an earlier program.

    Covers blocks of all sizes where GLIBC_TUNABLES has TUNABLES.
    """
    ctypes.CDLL(None).mallopt(M_PERTURB, FILL)
