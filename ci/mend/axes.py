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


def read_equation(equation: str) -> tuple[list[str], str] | None:
    """Return the labels of the operands and of the result of an einsum, or None if the result is
    not stated, or if an operand has a label twice or axes without a label."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    labels = terms.split(",")
    is_unique = all(len({*one}) == len(one) for one in (*labels, result))
    return (labels, result) if arrow and "." not in equation and is_unique else None


LONGEST_SUM = 256  # elements that one product with a triangular matrix adds up


def choose_block(size: int) -> int:
    """Return how many elements of an axis of this ``size`` are added up by one product with a
    triangular matrix: all of them, or blocks near the root of ``size``, of which an axis has a
    whole number, if possible."""
    if size <= LONGEST_SUM:
        return size
    root = math.isqrt(size - 1) + 1
    divisors = (block for block in range(root // 2, 2 * root) if size % block == 0)
    return min(divisors, key=lambda block: abs(block - root), default=root)


def find_growth(size: int, step: int, pad: int, more: int, limit: float) -> int:
    """Return how many zeros to append to the kernel of a transposed convolution, of ``size`` along
    an axis, so that it reaches all rows of the result with as much less output padding, which is
    then below ``limit``. ``step`` is the stride, ``pad`` the padding and ``more`` the output
    padding."""
    counts = range(more + 1)
    reached = (one for one in counts if more - one - pad <= -(size + one) % step)
    return next(one for one in reached if more - one < limit)


def plan_product(first: str, second: str, result: str) -> tuple[list[str], ...] | None:
    """Return the labels of an einsum of two operands in groups: those of the batch, those that are
    summed, and those of only the first and of only the second operand. Return None if it is no
    product of matrices."""
    shared = [one for one in first if one in second]
    batch, summed = ([one for one in shared if (one in result) == kept] for kept in (True, False))
    left, right = ([one for one in each if one not in shared] for each in (first, second))
    is_product = {*left, *right, *batch} == {*result} and summed
    return (batch, summed, left, right) if is_product else None
