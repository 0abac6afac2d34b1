"""Read the serial number of a device's SoC, for which a test signature is made."""

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
    """Parse a decimal number, or a hexadecimal one that starts with 0x, and return it in the form
    ``0xbadcafe``.

    Raises UsageError if ``text`` is not a number from 1 to 0xffffffff. The number is a secret, so
    the message does not contain it.
    """
    try:
        number = int(text, 16 if text.strip().lower().startswith("0x") else 10)
    except ValueError as error:
        raise UsageError(
            "the serial number cannot be parsed",
            fix="pass a decimal number, or 0x and up to eight hexadecimal digits",
        ) from error
    if not 0 < number < 1 << 32:
        raise UsageError(
            "the serial number is 0 or has more than 32 bits",
            why="the signer accepts only numbers from 1 to 0xffffffff",
        )
    return f"{number:#x}"


def read_device_serial(device: str = "") -> str:
    """Read the SoC's serial number through adb and return it as ``parse_serial`` does.

    ``device`` is the device's serial number in adb, or "" for the only device that is connected.
    Raises UnfitError if adb is missing or the device does not report a number, and UsageError if
    the number is 0 or has more than 32 bits.
    """
    adb = shutil.which("adb")
    if not adb:
        raise UnfitError(
            "adb is not on PATH",
            fix="install platform-tools, or pass the SoC's serial number with --testsig",
        )
    command = [adb, *(["-s", device] if device else []), "shell", "cat", SERIAL_FILE]
    try:
        said = run_process(command, timeout_s=ADB_TIMEOUT_S).output
    except ToolError as error:
        raise UnfitError(
            "the device's serial number cannot be read",
            why=error.why,
            fix="connect one device, or select one with --device; some devices permit reading the "
            "number only after `adb root`",
        ) from error
    found = re.search(r"^\s*(\d+|0x[0-9a-fA-F]+)\s*$", said, re.MULTILINE)
    if not found:
        raise UnfitError(f"{SERIAL_FILE} on the device does not contain a number")
    return parse_serial(found[1])


def read_serial(name: str) -> int | None:
    """Return the serial number in the file name of a test signature, or None if ``name`` is not of
    the form ``testsig-0xNUMBER.so``.
    """
    found = TESTSIG_NAME.fullmatch(name)
    return int(found[1], 16) if found else None
