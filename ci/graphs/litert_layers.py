"""Compares the layers that compute a value in a quantized LiteRT model with those of its float
model, where one of both has the factors of channels in its weights, as with a batch norm.

A factor behind a layer may also be in the weights of the next one: tools that equalise the ranges
of channels move it there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ci.graphs.graph import Array
from ci.graphs.rounding import find_factors, is_rounded, shape_channels

if TYPE_CHECKING:
    from ci.graphs.litert_pairs import Operation, Side


class Axes(NamedTuple):
    """The axes of a layer's weights along which its results' and its operand's channels are."""

    results: int
    operand: int


LAYERS = {
    "BATCH_MATMUL": Axes(-1, -2),
    "CONV_2D": Axes(0, 3),
    "CONV_3D": Axes(4, 3),
    "DEPTHWISE_CONV_2D": Axes(3, 3),
    "FULLY_CONNECTED": Axes(0, 1),
    "TRANSPOSE_CONV": Axes(0, 3),
}
WEIGHTS = 1  # the place of the weights among what a layer reads
POWERS = {"MUL": 1.0, "DIV": -1.0}  # operators that multiply by this power of their constant
LARGEST_DEVIATION = 0.05  # of factors with which two values count as the same
NEUTRAL = np.ones(1)


class Chain(NamedTuple):
    """Layers in order, and the factors of channels in front of the first one and behind each."""

    layers: list[Operation]
    factors: list[Array]


def have_same_layers(
    quantized: Side,
    plain: Side,
    calls: Sequence[Operation],
    plain_calls: Sequence[Operation],
) -> bool:
    """Return whether the layers among both models' ``calls`` have the same weights up to factors of
    channels, and whether all factors together leave the result as it is. Without layers, only the
    factors count."""
    chain, plain_chain = _split_at_layers(quantized, calls), _split_at_layers(plain, plain_calls)
    if chain is None or plain_chain is None or len(chain.layers) != len(plain_chain.layers):
        return False
    # What the quantized model's value has to be multiplied by, for the float model's.
    remaining = _multiply(plain_chain.factors[0], chain.factors[0], -1)
    for place, layer in enumerate(chain.layers, 1):
        if remaining is None:
            return False
        plain_layer = plain_chain.layers[place - 1]
        factors = find_layer_factors(quantized, plain, layer, plain_layer, remaining)
        if factors is None:
            return False
        behind = _multiply(plain_chain.factors[place], chain.factors[place], -1)
        remaining = None if behind is None else _multiply(behind, factors, -1)
    return remaining is not None and is_neutral(remaining)


def find_layer_factors(
    quantized: Side, plain: Side, layer: Operation, plain_layer: Operation, operand: Array = NEUTRAL
) -> Array | None:
    """Return the factors of the channels of a layer's result, of which the float model's has none.
    The float model's operand is ``operand`` times the quantized one's. None if they are not the
    same kind of layer with the same weights."""
    number = find_layer_weights(quantized, layer)
    plain_number = find_layer_weights(plain, plain_layer)
    if layer.kind != plain_layer.kind or number < 0 or plain_number < 0:
        return None
    rounded, exact = quantized.read_constant(number), plain.read_constant(plain_number)
    if rounded is None or exact is None or exact.dtype.kind != "f":
        return None
    if rounded.dtype.kind != "f":  # the scales of blocks, which are not read
        return NEUTRAL
    axes = LAYERS[layer.kind]
    if not is_neutral(operand):
        if operand.size not in {1, exact.shape[axes.operand]}:
            return None
        exact = exact * shape_channels(operand, exact.ndim, axes.operand)
    steps = quantized.find_steps(number)
    if is_rounded(rounded, exact, steps):
        return NEUTRAL
    return find_factors(rounded, exact, steps, axes.results)


def is_neutral(factors: Array) -> bool:
    """Return whether all factors are about 1."""
    return bool(np.all(np.abs(factors - 1) <= LARGEST_DEVIATION))


def find_layer_weights(side: Side, call: Operation) -> int:
    """Return the constant with the weights of a layer; -1 for other operators."""
    number = call.reads[WEIGHTS] if len(call.reads) > WEIGHTS else -1
    is_layer = call.kind in LAYERS and number >= 0 and side.is_constant(number)
    return number if is_layer else -1


def _split_at_layers(side: Side, calls: Sequence[Operation]) -> Chain | None:
    """Return the layers and the factors of ``calls``; None if these have other sizes."""
    chain = Chain([], [NEUTRAL])
    for call in calls:
        if find_layer_weights(side, call) >= 0:
            chain.layers.append(call)
            chain.factors.append(NEUTRAL)
        else:
            behind, power = _read_factors(side, call)
            factors = _multiply(chain.factors[-1], behind, power)
            if factors is None:
                return None
            chain.factors[-1] = factors
    return chain


def _read_factors(side: Side, call: Operation) -> tuple[Array, float]:
    """Return the numbers, by which power of them a call multiplies its channels."""
    constants = [n for n in call.reads if n >= 0 and side.is_constant(n)]
    numbers = side.read_constant(constants[0]) if len(constants) == 1 else None
    power = POWERS.get(call.kind, 0)
    # A constant with another number for each element has no factors of channels.
    is_factor = numbers is not None and numbers.size in {1, *numbers.shape[-1:]}
    if numbers is None or not power or not is_factor or numbers.dtype.kind != "f":
        return NEUTRAL, 1.0
    return numbers.ravel().astype(np.float64), power


def _multiply(factors: Array, others: Array, power: float) -> Array | None:
    """Return the factors times a power of others; None if they belong to other numbers of channels,
    or if 0 would be a divisor."""
    if factors.size != others.size and 1 not in {factors.size, others.size}:
        return None
    if power < 0 and not np.all(others):
        return None
    return np.asarray(factors * others**power)
