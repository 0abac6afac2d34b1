"""What is known of the numbers in a graph without running it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from ci.graphs.graph import Array, Node

# The number below which no result of these operators is, whatever they read.
LEAST: Final[Mapping[str, float]] = {
    **dict.fromkeys(("abs", "exp", "hardsigmoid", "relu", "relu6"), 0.0),
    **dict.fromkeys(("sigmoid", "softmax", "_softmax", "softplus", "sqrt", "square"), 0.0),
    **dict.fromkeys(("cos", "erf", "gelu", "hardswish", "sin", "silu", "softsign", "tanh"), -1.0),
}
CLAMPS: Final = frozenset({"clamp", "clamp_min", "clamp_max", "hardtanh"})
MOVES: Final = frozenset(
    {"clone", "expand", "permute", "reshape", "select", "slice", "squeeze", "to", "transpose"}
    | {"unsqueeze", "view"}
)
DEEPEST: Final = 16  # operators that are followed
# The least number whose exp QNN 2.49.40 computes right in float16: of -88.12, it is -131008.
LEAST_RIGHT_EXPONENT: Final = -88.0


def find_least(
    name: str,
    makers: Mapping[str, Node],
    find_value: Callable[[str], Array | None],
    depth: int = DEEPEST,
) -> float:
    """Return a number below which no element of a value is, or minus infinity if none is known.
    ``makers`` has the node of each computed value, and ``find_value`` returns the array of a
    constant one."""
    value = find_value(name)
    if value is not None:
        is_number = value.dtype.kind in "fiu" and value.size > 0
        return float(value.min()) if is_number else -math.inf
    node = makers.get(name)
    if node is None or not depth:
        return -math.inf
    if node.operator in LEAST:
        return LEAST[node.operator]
    reads = node.reads[:2] if node.operator in {"maximum", "minimum"} else node.reads[:1]
    lower_bounds = [find_least(read, makers, find_value, depth - 1) for read in reads]
    if node.operator in CLAMPS:
        floor, ceiling = (
            next(iter(node.numbers.get(end) or node.numbers.get(f"{end}_val", ())), unlimited)
            for end, unlimited in (("min", -math.inf), ("max", math.inf))
        )
        return min(max(lower_bounds[0], floor), ceiling)
    if node.operator == "maximum":
        return max(lower_bounds)
    return min(lower_bounds) if node.operator in {"minimum", *MOVES} else -math.inf
