"""Read the serial number of a device, which is needed for a test signature."""

from __future__ import annotations

import re
import shutil

from provisioning.console.process import run_process
from provisioning.errors import ToolError, UnfitError, UsageError

SERIAL_FILE = "/sys/devices/soc0/serial_number"
ADB_TIMEOUT_S = 30.0
FROM_ADB = "adb"
TESTSIG_NAME = re.compile(r"testsig-0x([0-9a-f]{1,8})\.so", re.IGNORECASE)


def parse_serial(text: str) -> str:
    """Return a hexadecimal or decimal 32-bit number in the form ``0x0badcafe``. Raises UsageError.

    The number is a secret, so the message does not contain it.
    """
    try:
        number = int(text, 16 if text.strip().lower().startswith("0x") else 10)
    except ValueError as error:
        raise UsageError(
            "the serial number is not a number", fix="pass 0x and up to eight hexadecimal digits"
        ) from error
    if not 0 < number < 1 << 32:
        raise UsageError(
            "the serial number does not fit in 32 bits", why="the signer accepts only such numbers"
        )
    return f"{number:#x}"


def read_device_serial(device: str = "") -> str:
    """Return the SoC's serial number, read through adb. Raises UnfitError.

    ``device`` is the adb serial of the device to ask if several are connected.
    """
    adb = shutil.which("adb")
    if not adb:
        raise UnfitError("adb is not on PATH", fix="install platform-tools, or pass the number")
    command = [adb, *(["-s", device] if device else []), "shell", "cat", SERIAL_FILE]
    try:
        said = run_process(command, timeout_s=ADB_TIMEOUT_S).output
    except ToolError as error:
        raise UnfitError(
            "the device's serial number cannot be read",
            why=error.why,
            fix="connect one device, or select it with --device; some need adb root for this",
        ) from error
    found = re.search(r"^\s*(\d+|0x[0-9a-fA-F]+)\s*$", said, re.MULTILINE)
    if not found:
        raise UnfitError(f"{SERIAL_FILE} of the device does not contain a number")
    return parse_serial(found[1])


def read_serial(name: str) -> int | None:
    """Return the serial number in the file name of a test signature, None for any other name."""
    found = TESTSIG_NAME.fullmatch(name)
    return int(found[1], 16) if found else None
