"""Mask device serial numbers and secrets, which must not appear in a log."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping

MASK = "***"
SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSWORD|PASSPHRASE|PASSWD|CREDENTIAL|API[_-]?KEY", re.IGNORECASE
)
TESTSIG_FILE = re.compile(r"(testsig-)0x[0-9a-f]+", re.IGNORECASE)
PEM_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*-----|\Z)", re.DOTALL)
SHORTEST_SECRET = 4


class Masker:
    """Replaces ``secrets`` in a text with MASK. Private keys in PEM format and the serial number in
    the file name of a test signature are always replaced.

    Secrets of fewer than SHORTEST_SECRET characters are ignored.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = sorted({one for one in secrets if len(one) >= SHORTEST_SECRET}, key=len)
        self._secrets = [re.compile(re.escape(one), re.IGNORECASE) for one in reversed(known)]

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
