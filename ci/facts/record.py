"""The base class of values that are written to JSON."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import msgspec
from msgspec import Struct


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value of a report. numpy's numbers are converted to Python's, NaN and infinity become
    None, and characters that UTF-8 cannot encode are replaced.
    """

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            plain = _plain(value)
            if plain is not value:
                msgspec.structs.force_setattr(self, name, plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    number = value.item() if hasattr(value, "item") else value
    return None if isinstance(number, float) and not math.isfinite(number) else number
