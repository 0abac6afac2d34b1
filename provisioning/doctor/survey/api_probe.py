"""Asks a QNN backend library which API version it has. Standard library only: run as a script.

QnnInterface_getProviders (QnnInterface.h) gives structs that begin with the backend's id (32
bits), a pointer to its name and the core API version: three numbers of 32 bits.
"""

from __future__ import annotations

import ctypes
import sys


def ask_version(path: str) -> tuple[int, ...]:
    """(2, 38, 0) of the first provider. Raises OSError for what is not such a library."""
    providers, count = ctypes.POINTER(ctypes.c_void_p)(), ctypes.c_uint32()
    library = ctypes.CDLL(path)
    if library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)) != 0:
        raise OSError(f"{path} names no provider")
    return tuple((ctypes.c_uint32 * 7).from_address(providers[0] or 0)[4:])


if __name__ == "__main__":
    sys.stdout.write(f"api {'.'.join(map(str, ask_version(sys.argv[1])))}\n")
