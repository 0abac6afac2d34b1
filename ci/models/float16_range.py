"""Finds the values of a model that float16 loses, and of these the first that does not fit into
its range, if that spoils the outputs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

# Rounds a float32 to as many significant bits as float16 has, in x * SPLIT - (x * SPLIT - x).
SPLIT = 2.0**13 + 1
MOST_RANGED = 8  # samples in which numbers beyond the range are searched
RANGE_DB = 10.0  # what the range of float16 costs an output if it is a cause
LOST_DB = 30.0  # a value with less is lost


def find_spoiling(
    reached_db: Mapping[str, float],
    readers: Mapping[str, Collection[str]],
    ends: Collection[str],
) -> set[str]:
    """Return the values that are lost and spoil an output by it: each is one, or a value that is
    made from it spoils one. The arguments are the fields of RangeLoss."""
    lost = {name for name, db in reached_db.items() if db < LOST_DB}
    spoiling: set[str] = set()
    for name in reversed([*reached_db]):
        reaches = name in ends or not spoiling.isdisjoint(readers.get(name, ()))
        if name in lost and reaches:
            spoiling.add(name)
    return spoiling


@dataclass(frozen=True)
class RangeLoss:
    """How accurate the values of a graph are that are rounded to float16, compared with values of
    as many significant bits and the range of float32. ``reached_db`` are the SQNR in dB by name, in
    execution order, and ``readers`` the names of the values made from each. ``ends`` are the
    outputs. ``output_db`` is the least SQNR of an output with float16, and ``wide_db`` with the
    range of float32."""

    reached_db: Mapping[str, float]
    readers: Mapping[str, Collection[str]]
    ends: Collection[str]
    output_db: float
    wide_db: float

    def find_first(self) -> str:
        """Return the first value that does not fit into the range of float16 and spoils an output
        by it, or "" if there is none. A mask of -1e9 does not fit, but spoils nothing, because it
        is zero behind the softmax."""
        if self.wide_db - self.output_db < RANGE_DB:
            return ""
        spoiling = find_spoiling(self.reached_db, self.readers, self.ends)
        return next((name for name in self.reached_db if name in spoiling), "")
