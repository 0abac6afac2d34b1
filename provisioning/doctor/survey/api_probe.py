"""Find out libQnnHtp.so's API version. This module uses only the standard library, since it is run
as a script, in a process that may crash.

QnnInterface_getProviders (QnnInterface.h) returns structs that start with the backend's id (32
bits), a pointer to its name, and the core and backend API versions: six numbers of 32 bits.
"""

from __future__ import annotations

import ctypes
import sys

WORD, POINTER = ctypes.c_uint32, ctypes.c_void_p


def find_provider(path: str) -> int:
    """Return the address of the first provider in the library ``path``. Raises OSError if the
    library cannot be loaded, or if QnnInterface_getProviders fails.
    """
    providers, count = ctypes.POINTER(POINTER)(), WORD()
    library = ctypes.CDLL(path)
    if library.QnnInterface_getProviders(ctypes.byref(providers), ctypes.byref(count)) != 0:
        raise OSError(f"{path} has no provider")
    return providers[0] or 0


def main(path: str) -> None:
    """Print ``api CORE``."""
    core = (WORD * 7).from_address(find_provider(path))[4:]
    sys.stdout.write(f"api {'.'.join(map(str, core))}\n")


if __name__ == "__main__":
    main(sys.argv[1])
