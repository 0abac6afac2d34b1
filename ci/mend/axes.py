"""How axes of tensors are moved with fewer axes, and what an einsum multiplies and sums. The
rewrites of both lanes use it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

Order = tuple[list[int], list[int]]  # the shape before a permutation, and its order


def merge_sizes(sizes: Any, groups: Iterable[Iterable[Any]]) -> list[int]:
    """Return the size of each group of axes if it becomes one axis. ``sizes`` are those of all axes
    by number or by label, as in ``groups``."""
    return [math.prod(map(sizes.__getitem__, group)) for group in groups]


def merge_axes(shape: Sequence[int], order: Sequence[int]) -> Order:
    """Return a shape and an order of axes that move elements in the same way with fewer axes: axes
    of size 1 are dropped, and axes that stay neighbours are one."""
    long_axes = [axis for axis in order if shape[axis] > 1] or [0]
    numbers = {axis: number for number, axis in enumerate(sorted(long_axes))}
    sizes = [shape[axis] for axis in sorted(long_axes)]
    groups: list[list[int]] = []  # of axes that stay neighbours, in the new order
    for number in map(numbers.__getitem__, long_axes):
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    groups_before = sorted(groups)
    return merge_sizes(sizes, groups_before), [groups_before.index(group) for group in groups]


def split_order(sizes: Sequence[int], order: Sequence[int], most: int) -> list[Order]:
    """Return steps of at most ``most`` axes, which together move axes of these ``sizes`` into this
    ``order``. If there are more axes, they are moved one after the other."""
    if len(order) <= most:
        return [([*sizes], [*order])]
    steps = []
    current = [*range(len(order))]  # the order of the axes after the steps so far
    for place, axis in enumerate(order):
        position = current.index(axis)
        if position == place:
            continue
        done, skipped, behind = current[:place], current[place:position], current[position + 1 :]
        steps.append((merge_sizes(sizes, [done, skipped, [axis], behind]), [0, 2, 1, 3]))
        current = [*done, axis, *skipped, *behind]
    return steps


def read_equation(equation: str) -> tuple[list[str], str] | None:
    """Return the labels of the operands and of the result of an einsum, or None if the result is
    not stated, or if an operand has a label twice or axes without a label."""
    terms, arrow, result = equation.replace(" ", "").partition("->")
    labels = terms.split(",")
    is_unique = all(len(set(term)) == len(term) for term in (*labels, result))
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


# QNN 2.49.40 does not write rows that no kernel reaches, or writes beyond them: those of which
# output_pad - pad exceeds ceil(size / step) * step - size. Compiler or program may crash.
def find_growth(size: int, step: int, pad: int, output_pad: int, limit: float) -> int:
    """Return how many zeros to append to the kernel of a transposed convolution, of ``size`` along
    an axis, so that it reaches all rows of the result with as much less ``output_pad``, its output
    padding, which is then below ``limit``. ``step`` is the stride and ``pad`` the padding."""
    counts = range(output_pad + 1)  # the last one leaves no output padding, which always suffices
    reaching = (zeros for zeros in counts if output_pad - zeros - pad <= -(size + zeros) % step)
    return next(zeros for zeros in reaching if output_pad - zeros < limit)


def plan_product(first: str, second: str, result: str) -> tuple[list[str], ...] | None:
    """Return the labels of an einsum of two operands in groups: those of the batch, those that are
    summed, and those of only the first and of only the second operand. Return None if it is no
    product of matrices."""
    shared = [label for label in first if label in second]
    batch = [label for label in shared if label in result]
    summed = [label for label in shared if label not in result]
    left = [label for label in first if label not in shared]
    right = [label for label in second if label not in shared]
    is_product = {*left, *right, *batch} == {*result} and summed
    return (batch, summed, left, right) if is_product else None
