"""The types of a model's tensors: what was requested, and what QNN compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from ci.facts.finding import NOWHERE, Origin
from ci.report.schema import TypeShare

FLOAT_BITS = 32  # stands for float16 and float32
RESULT, WEIGHTS = "result", "weights"


class Asked(Struct, frozen=True):
    """The least numbers of bits that were requested for the result and the weights of a node. 0 if
    nothing was requested. ``name`` is the node's name as the user knows it."""

    name: str
    result: int = 0
    weights: int = 0


class TypedTensor(Struct, frozen=True):
    """A tensor of a compiled graph. ``node`` is the node of the quantized model that computes it
    or whose weights it contains, or "" if it is unknown. ``weight_bytes`` is 0 for a result."""

    node: str
    bits: int
    weight_bytes: int = 0
    origin: Origin = NOWHERE

    @property
    def kind(self) -> str:
        return WEIGHTS if self.weight_bytes else RESULT


class Retyped(Struct, frozen=True):
    """A tensor with fewer bits than requested. ``kind`` is RESULT or WEIGHTS."""

    node: str
    kind: str
    asked: str
    compiled: str
    origin: Origin = NOWHERE

    def __str__(self) -> str:
        return (
            f"the {self.kind} of {self.node}: {self.asked} requested, {self.compiled} compiled"
            f"{self.origin.mark}"
        )


def name_type(bits: int) -> str:
    return "float" if bits == FLOAT_BITS else f"{bits} bit"


def find_retyped(asked: Mapping[str, Asked], tensors: Iterable[TypedTensor]) -> tuple[Retyped, ...]:
    """Return the nodes of which no tensor has as many bits as requested. The keys of ``asked`` are
    the names in ``tensors``; nodes that have no tensor there are left out."""
    most: dict[tuple[str, str], TypedTensor] = {}
    for one in tensors:
        known = most.get((one.node, one.kind))
        if known is None or one.bits > known.bits:
            most[one.node, one.kind] = one

    def compare() -> Iterator[Retyped]:
        for (node, kind), one in most.items():
            wanted = getattr(asked[node], kind) if node in asked else 0
            if one.bits < wanted:
                yield Retyped(
                    asked[node].name, kind, name_type(wanted), name_type(one.bits), one.origin
                )

    return tuple(dict.fromkeys(compare()))


def count_types(tensors: Iterable[TypedTensor]) -> tuple[TypeShare, ...]:
    """Return the number of results and the bytes of weights of each type, the fewest bits first."""
    operators, weights = Counter[int](), Counter[int]()
    for one in tensors:
        if one.kind == WEIGHTS:
            weights[one.bits] += one.weight_bytes
        else:
            operators[one.bits] += 1
    return tuple(
        TypeShare(type=name_type(bits), operators=operators[bits], weight_bytes=weights[bits])
        for bits in sorted({*operators, *weights})
    )
