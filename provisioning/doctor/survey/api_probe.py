"""Find out libQnnHtp.so's API version, and the offset of the SoC (socModel) in its device
configuration. This module uses only the standard library, since it is run as a script, in a process
that may crash.

QnnInterface_getProviders (QnnInterface.h) returns structs that start with the backend's id (32
bits), a pointer to its name, and the core and backend API versions: six numbers of 32 bits. A table
of functions follows, which only ever grows at its end.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

FUNCTIONS, BACKEND_CREATE, DEVICE_CREATE = 40, 1, 40  # bytes before the table; indices in it
CUSTOM, SOC = 0, 0  # QNN_DEVICE_CONFIG_OPTION_CUSTOM, QNN_HTP_DEVICE_CONFIG_OPTION_SOC
SM8650 = 57
OFFSETS = (4, 8)  # a 32-bit option, then a union that is aligned to 8 bytes by a pointer in it
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


def bind_function(provider: int, place: int, *kinds: Any) -> Any:
    """Return the function at index ``place`` of the provider's table. It takes arguments of the
    types ``kinds``, and returns a QNN error number, 0 for success.
    """
    address = POINTER.from_address(provider + FUNCTIONS + place * ctypes.sizeof(POINTER)).value
    return ctypes.CFUNCTYPE(ctypes.c_uint64, *kinds)(address or 0)


class DeviceConfig(ctypes.Structure):
    """The struct QnnDevice_Config_t of QNN's C API."""

    _fields_ = [("option", WORD), ("custom", POINTER)]


def find_soc_offset(provider: int) -> int:
    """Return the offset in QnnHtpDevice_CustomConfig_t at which the library reads the SoC, or 0 if
    no offset works.

    Tries each offset by creating a device with an SoC there and zeros elsewhere.
    """
    backend, device = POINTER(), POINTER()
    create = bind_function(provider, BACKEND_CREATE, POINTER, POINTER, POINTER)
    create(None, None, ctypes.addressof(backend))
    create_device = bind_function(provider, DEVICE_CREATE, POINTER, POINTER, POINTER)
    for offset in OFFSETS:
        words = (WORD * 8)(SOC)
        words[offset // ctypes.sizeof(WORD)] = SM8650
        config = DeviceConfig(CUSTOM, ctypes.addressof(words))
        configs = (POINTER * 2)(ctypes.addressof(config), None)
        if create_device(None, ctypes.addressof(configs), ctypes.addressof(device)) == 0:
            return offset
    return 0


def main(path: str) -> None:
    """Print ``api CORE`` and ``socModel OFFSET`` as soon as each is known."""
    provider = find_provider(path)
    core = (WORD * 7).from_address(provider)[4:]
    sys.stdout.write(f"api {'.'.join(map(str, core))}\n")
    sys.stdout.flush()
    sys.stdout.write(f"socModel {find_soc_offset(provider)}\n")


if __name__ == "__main__":
    main(sys.argv[1])
