"""The serial number of a device, for a test signature."""

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
    """``0x0badcafe`` of a hexadecimal or decimal 32-bit number. Raises UsageError.

    The text itself is a secret and not in the message.
    """
    try:
        number = int(text, 16 if text.strip().lower().startswith("0x") else 10)
    except ValueError as error:
        raise UsageError(
            "the serial number is not a number", fix="0x and up to eight hexadecimal digits"
        ) from error
    if not 0 < number < 1 << 32:
        raise UsageError(
            "the serial number does not fit in 32 bits", why="the signer accepts nothing else"
        )
    return f"{number:#x}"


def read_device_serial(device: str = "") -> str:
    """The SoC's serial number by adb, of ``device`` when several are there. Raises UnfitError."""
    adb = shutil.which("adb")
    if not adb:
        raise UnfitError("adb is not on PATH", fix="install platform-tools, or give the serial")
    command = [adb, *(["-s", device] if device else []), "shell", "cat", SERIAL_FILE]
    try:
        said = run_process(command, timeout_s=ADB_TIMEOUT_S).output
    except ToolError as error:
        raise UnfitError(
            "the device's serial number cannot be read",
            why=error.why,
            fix="connect one device, or name it with --device; reading needs adb root on some",
        ) from error
    found = re.search(r"^\s*(\d+|0x[0-9a-fA-F]+)\s*$", said, re.MULTILINE)
    if not found:
        raise UnfitError(f"{SERIAL_FILE} of the device holds no number")
    return parse_serial(found[1])


def read_serial(name: str) -> int | None:
    """The serial that the file name of a test signature holds, None for another name."""
    found = TESTSIG_NAME.fullmatch(name)
    return int(found[1], 16) if found else None
