"""Read the serial number of a device's SoC, for which a test signature is made, and mask it and
other secrets, which must not appear in a log."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping

from provisioning.console.process import run_process
from provisioning.errors import ToolError, UnfitError, UsageError

SERIAL_FILE = "/sys/devices/soc0/serial_number"
ADB_TIMEOUT_S = 30.0
FROM_ADB = "adb"
# The name that the Hexagon SDK's signer gives to a test signature (-t).
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
        output = run_process(command, timeout_s=ADB_TIMEOUT_S).output
    except ToolError as error:
        raise UnfitError(
            "the device's serial number cannot be read",
            why=error.why,
            fix="connect one device, or select one with --device; some devices permit reading the "
            "number only after `adb root`",
        ) from error
    # adb may print that it starts its server before the answer.
    number = re.search(r"^\s*(\d+|0x[0-9a-fA-F]+)\s*$", output, re.MULTILINE)
    if not number:
        raise UnfitError(f"{SERIAL_FILE} on the device does not contain a number")
    return parse_serial(number[1])


def read_serial(name: str) -> int:
    """Return the serial number in the file name of a test signature, or 0 if ``name`` is not of
    the form ``testsig-0xNUMBER.so``.
    """
    match = TESTSIG_NAME.fullmatch(name)
    return int(match[1], 16) if match else 0


MASK = "***"
SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSPHRASE|PASSWD|CREDENTIAL|API[_-]?KEY", re.IGNORECASE
)
TESTSIG_FILE = re.compile(r"(testsig-)0x[0-9a-f]+", re.IGNORECASE)
PEM_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*-----|\Z)", re.DOTALL)
# A shorter one, such as "1" or "yes", would mask ordinary text.
SHORTEST_SECRET = 4


class Masker:
    """Replaces ``secrets`` in a text with MASK. Private keys in PEM format and the serial number in
    the file name of a test signature are always replaced.

    Secrets of fewer than SHORTEST_SECRET characters are ignored.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        long_secrets = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        # Longer ones first, because a secret can be a part of another one.
        ordered = sorted(long_secrets, key=len, reverse=True)
        self._secrets = [re.compile(re.escape(secret), re.IGNORECASE) for secret in ordered]

    def __call__(self, text: str) -> str:
        text = PEM_KEY.sub(MASK, TESTSIG_FILE.sub(rf"\1{MASK}", text))
        for secret in self._secrets:
            text = secret.sub(MASK, text)
        return text


def mask_arguments(words: Iterable[str]) -> Iterator[str]:
    """Yield the arguments in ``words``, with MASK for the value of each option whose name matches
    SECRET_NAME, such as ``--token``.
    """
    after_secret = False
    for word in words:
        option, equals, _ = word.partition("=")
        named = word.startswith("-") and bool(SECRET_NAME.search(option))
        if after_secret:
            yield MASK
        else:
            yield f"{option}={MASK}" if named and equals else word
        after_secret = named and not equals


def list_secrets(environment: Mapping[str, str] = os.environ, serial: str = "") -> list[str]:
    """Return the secrets to mask. These are the values of the environment variables whose names
    match SECRET_NAME, and all forms in which a signer may print the serial number.

    The forms are ``serial`` itself, the number in decimal, and the number in hexadecimal, with and
    without 0x and leading zeros.
    """
    values = [value for name, value in environment.items() if SECRET_NAME.search(name)]
    if serial:
        number = int(serial, 16)
        values += [serial, str(number)]
        values += [f"{number:{form}}" for form in ("x", "#010x", "08x")]
    return values
