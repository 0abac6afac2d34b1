"""Which ONNX operators QNN's provider takes on HTP, as it answered: operators.toml."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

TABLE = Path(__file__).with_name("operators.toml")


class Answer(str, Enum):
    """What came of a model of one node."""

    TAKEN = "taken"
    WRONG = "wrong"
    REFUSED = "refused"
    CRASHED = "crashed"


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """Element types and ranks that had the same answer, in one form of the operator."""

    answer: Answer
    kinds: tuple[str, ...]
    ranks: tuple[int, ...]
    variant: str = ""
    reason: str = ""

    @property
    def where(self) -> str:
        """``3d: float32, u8 of rank 5``."""
        variant = f"{self.variant}: " if self.variant else ""
        return f"{variant}{', '.join(self.kinds)} of rank {join_ranks(self.ranks)}"


class Operator(NamedTuple):
    """``name`` has its domain before it, except for ONNX's own; ``listed``: in upstream's table."""

    name: str
    rows: tuple[Row, ...]
    listed: bool = False

    def rows_of(self, *answers: Answer) -> list[Row]:
        """The rows with one of these answers."""
        return [row for row in self.rows if row.answer in answers]


class OperatorTable(Struct, frozen=True, forbid_unknown_fields=True):
    """``provider`` and ``soc`` are those that were asked, ``rows`` the answers by operator."""

    provider: str
    qnn: str
    soc: str
    listed: tuple[str, ...]
    rows: dict[str, tuple[Row, ...]]

    @property
    def operator(self) -> list[Operator]:
        """The operators in the order of the file."""
        return [Operator(name, rows, name in self.listed) for name, rows in self.rows.items()]


@functools.cache
def read_operators() -> OperatorTable:
    return msgspec.toml.decode(TABLE.read_bytes(), type=OperatorTable)


def join_ranks(ranks: Sequence[int]) -> str:
    """``1 to 4``, or ``2, 4``."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))
