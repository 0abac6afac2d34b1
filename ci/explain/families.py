"""Families of numbers: the errors of ExecuTorch and FastRPC, and the data types of QNN."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from msgspec import Struct

from provisioning.manifest.reader import read_policy

DSP_OFFSET = 0x80000400  # errors of the CPU's side of FastRPC are without it


class _Table(Struct, forbid_unknown_fields=True):
    source: str
    text: tuple[str, ...]
    pattern: str
    numbers: dict[str, tuple[str, str]] = {}
    like: str = ""


@dataclass(frozen=True)
class Family:
    """Numbers with their names and meanings.

    ``pattern`` finds them in a line, as the groups ``code`` and ``other``: in hexadecimal with 0x,
    otherwise in decimal, or by name. Numbers of 32 bits may be negative. The group ``low`` is a
    hexadecimal number to which DSP_OFFSET has to be added. Each line with a number contains one of
    ``text`` (ignoring case).
    """

    source: str
    text: tuple[str, ...]
    pattern: re.Pattern[str]
    numbers: Mapping[int, tuple[str, str]]

    def find(self, line: str, codes: Collection[int] = ()) -> Mapping[str, str] | None:
        """Return the texts of the first known number in ``line``: ``code`` and ``other``, each a
        number with its name, and ``meaning``, that of ``code``. Returns None if there is none, or
        none of ``codes``."""
        for found in self.pattern.finditer(line):
            texts = {group: text for group, text in found.groupdict().items() if text}
            values = {group: self._parse(text) for group, text in texts.items() if group != "low"}
            code = values.setdefault("code", int(texts.get("low", "0"), 16) + DSP_OFFSET)
            if self.numbers.keys() >= set(values.values()) and (not codes or code in codes):
                named = {
                    group: f"{one:#x} ({self.numbers[one][0]})" for group, one in values.items()
                }
                return {**named, "meaning": self.numbers[code][1]}
        return None

    def _parse(self, text: str) -> int:
        """Return the number that ``text`` spells or names, or -1."""
        plain = text.replace(":", "").lower()
        if plain.startswith("0x"):
            return int(plain, 16)
        if plain.removeprefix("-").isdecimal():
            return int(plain) % (1 << 32)
        return next((number for number, (name, _) in self.numbers.items() if name == text), -1)


@functools.cache
def read_families() -> dict[str, Family]:
    """Return the families of manifests/policies/codes.toml by name. Raises ManifestError if the
    file is invalid."""
    tables = read_policy("codes", dict[str, _Table])
    return {
        name: Family(
            one.source,
            one.text,
            re.compile(one.pattern),
            {int(key, 16): named for key, named in tables[one.like or name].numbers.items()},
        )
        for name, one in tables.items()
    }
