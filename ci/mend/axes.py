"""How axes of tensors are moved with fewer axes, and what an einsum multiplies and sums. The
rewrites of both lanes use it."""

from __future__ import annotations

import math
from collections.abc import Sequence

Order = tuple[list[int], list[int]]  # the shape before a permutation, and its order


def merge_axes(shape: Sequence[int], order: Sequence[int]) -> Order:
    """Return a shape and an order of axes that move elements in the same way with fewer axes: axes
    of size 1 are dropped, and axes that stay neighbours are one."""
    kept = [one for one in order if shape[one] > 1] or [0]
    numbers = {one: place for place, one in enumerate(sorted(kept))}
    sizes = [shape[one] for one in sorted(kept)]
    groups: list[list[int]] = []
    for one in map(numbers.__getitem__, kept):
        if groups and one == groups[-1][-1] + 1:
            groups[-1].append(one)
        else:
            groups.append([one])
    ranked = sorted(groups)
    return [math.prod(sizes[one] for one in group) for group in ranked], [
        ranked.index(group) for group in groups
    ]


def split_order(sizes: Sequence[int], order: Sequence[int], most: int) -> list[Order]:
    """Return steps of at most ``most`` axes, which together move axes of these ``sizes`` into this
    ``order``. If there are more axes, they are moved one after the other."""
    if len(order) <= most:
        return [([*sizes], [*order])]
    steps = []
    held = [*range(len(order))]
    for place, wanted in enumerate(order):
        found = held.index(wanted)
        if found == place:
            continue
        parts = (held[:place], held[place:found], [wanted], held[found + 1 :])
        steps.append(([math.prod(sizes[one] for one in part) for part in parts], [0, 2, 1, 3]))
        held = [*parts[0], wanted, *parts[1], *parts[3]]
    return steps


def plan_product(first: str, second: str, result: str) -> tuple[list[str], ...] | None:
    """Return the labels of an einsum of two operands in groups: those of the batch, those that are
    summed, and those of only the first and of only the second operand. Return None if it is no
    product of matrices."""
    shared = [one for one in first if one in second]
    batch, summed = ([one for one in shared if (one in result) == kept] for kept in (True, False))
    left, right = ([one for one in each if one not in shared] for each in (first, second))
    if {*left, *right, *batch} != {*result} or not summed:
        return None
    return batch, summed, left, right
