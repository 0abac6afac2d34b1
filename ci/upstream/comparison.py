"""What the gate needs of a comparison in a test."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from ci.judging.figures import Array
from ci.models.tensors import TensorInfo


class Member(str, Enum):
    """The kinds of arrays in a comparison. Each of them has one array per output."""

    OUTPUT = "output"
    UPSTREAM = "upstream"  # the values with which upstream compares the output
    FLOAT = "float"
    QUANTIZED = "quantized"
    NOISE = "noise"  # [run, sample, *shape]; empty without a prediction
    LOW, HIGH = "low", "high"  # bounds of the outputs, if one of them is not floating-point


class Comparison(Struct, frozen=True, kw_only=True):
    """A comparison without its arrays."""

    scheme: str  # empty if no scheme has the types of the test's model
    outputs: tuple[TensorInfo, ...]
    lacks: tuple[str, ...] = ()  # what could not be computed for the gate, and why


Arrays = Mapping[Member, list[Array]]
