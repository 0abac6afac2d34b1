"""Cases in shards: the same every time, near to equal in expected duration, each case in one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from provisioning.errors import UsageError

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """``index`` of ``count``, from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(text: str) -> Shard:
    """``2/3``. Raises UsageError."""
    match = re.fullmatch(r"([1-9]\d{0,2})/([1-9]\d{0,2})", text, re.ASCII)
    if not match or int(match[1]) > int(match[2]):
        raise UsageError(f"{text!r} is not a shard", fix="write 2/3 for the second of three")
    return Shard(int(match[1]), int(match[2]))


def split_cases(
    cases: Sequence[T], count: int, expect_s: Callable[[T], float]
) -> tuple[tuple[T, ...], ...]:
    """``count`` shards; the longest cases are dealt first, each to the shard that has least.

    The order within a shard is that of ``cases``. Raises UsageError when a shard would be empty.
    """
    if count > len(cases):
        raise UsageError(
            f"{len(cases)} cases do not fill {count} shards", fix=f"ask for {len(cases)} at most"
        )
    loads = [0.0] * count
    owner: dict[int, int] = {}
    order = sorted(range(len(cases)), key=lambda one: (-expect_s(cases[one]), one))
    for one in order:
        shard = min(range(count), key=lambda index: (loads[index], index))
        loads[shard] += max(expect_s(cases[one]), 1e-6)
        owner[one] = shard
    return tuple(
        tuple(case for one, case in enumerate(cases) if owner[one] == shard)
        for shard in range(count)
    )


def count_shards(durations_s: Sequence[float], shard_s: float, most: int) -> int:
    """How many shards keep each near ``shard_s``; no more than cases, at least one."""
    wanted = math.ceil(sum(durations_s) / shard_s)
    return max(1, min(wanted, most, len(durations_s)))
