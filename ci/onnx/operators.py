"""Which ONNX operators QNN's provider takes on HTP: manifests/policies/onnx-operators.toml."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

from provisioning.manifest.reader import read_policy


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


class Operator(Struct, frozen=True, forbid_unknown_fields=True):
    """``name`` has its domain before it, but for ONNX's own; ``listed``: in upstream's table."""

    name: str
    rows: tuple[Row, ...]
    listed: bool = False

    def rows_of(self, *answers: Answer) -> list[Row]:
        """The rows with one of these answers."""
        return [row for row in self.rows if row.answer in answers]


class OperatorTable(Struct, frozen=True, forbid_unknown_fields=True):
    """``provider`` and ``soc`` are those that were asked; ``notes`` by operator are by hand."""

    provider: str
    qnn: str
    soc: str
    notes: dict[str, str]
    operator: tuple[Operator, ...]


@functools.cache
def read_operators() -> OperatorTable:
    """The table. Raises ManifestError."""
    return read_policy("onnx-operators", OperatorTable)


def join_ranks(ranks: Sequence[int]) -> str:
    """``1 to 4``, or ``2, 4``."""
    if len(ranks) > 2 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks))


def explain_operator(domain: str, op_type: str) -> str:
    """What the table says of an operator's limits and the way round; empty where it knows none."""
    table = read_operators()
    name = f"{domain}:{op_type}" if domain not in ("", "ai.onnx") else op_type
    note = table.notes.get(name, "")
    found = next((one for one in table.operator if one.name == name), None)
    if found is None or not (limits := found.rows_of(Answer.REFUSED, Answer.CRASHED)):
        return note
    if not found.rows_of(Answer.TAKEN, Answer.WRONG):
        seen = f"{op_type} is refused in every form: {limits[0].reason}"
    else:
        seen = f"{op_type} is refused as " + "; as ".join(f"{row.where}" for row in limits)
    return f"{seen}. {note}" if note else seen
