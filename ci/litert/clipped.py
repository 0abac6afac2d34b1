"""Finds the values of a quantized .tflite file that leave their ranges, by its float model."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from ci.analysis.clipping import Bounds, choose_clipped, describe_clipped
from ci.graphs.graph import Array
from ci.graphs.litert_file import Levels, read_dtype, read_levels
from ci.graphs.litert_pairs import Side, list_rounded
from ci.graphs.litert_program import LitertProgram, name_method
from ci.graphs.litert_reader import COMPUTED, LitertGraph
from ci.graphs.litert_session import open_interpreter, run_interpreter
from ci.report.schema import Clipped


def find_clipped_values(
    quantized: Side,
    plain: Side,
    sets: Sequence[Sequence[Array]],
    float_sets: Sequence[Sequence[Array]],
) -> tuple[Clipped, ...]:
    """Return the values that are clipped in the judged samples, see
    ci.analysis.clipping.find_clipped: what the float model, ``plain``, computes for them is outside
    of what the integers stand for. ``sets`` are inputs of the quantized model, and ``float_sets``
    the same of the float model. Values that the float model does not have are left out, and so are
    those without elements."""
    if quantized.entry.subgraph or plain.entry.subgraph:
        return ()  # an interpreter returns inner values of the first one only
    rounded = list_rounded(quantized, plain, (sets[0], float_sets[0]))
    computed_bounds = find_computed_bounds(plain, float_sets, {value.plain for value in rounded})
    program = LitertProgram(quantized.data, keeps_operators=True)
    parsed = program.parsed[name_method(quantized.entry)]
    clipped: list[tuple[float, Clipped]] = []
    for number, source, plain_number in rounded:
        tensor = quantized.tensors[number]
        levels = read_levels(tensor)
        if levels is not None and plain_number in computed_bounds:
            calibrated = find_bounds(levels, read_dtype(tensor))
            name = name_value(parsed, source)
            clipped += describe_clipped(
                parsed.graph, name, calibrated, computed_bounds[plain_number]
            )
    return choose_clipped(clipped)


def name_value(parsed: LitertGraph, number: int) -> str:
    """Return the name of the value that an operator computes for a tensor, before it is rounded to
    the tensor's integers."""
    name = parsed.names[number]
    computed = COMPUTED.format(name)
    is_rounded = computed in parsed.graph.shapes  # else it is float, or an input
    return computed if is_rounded else name


def find_computed_bounds(
    plain: Side, float_sets: Sequence[Sequence[Array]], numbers: Collection[int]
) -> dict[int, Bounds]:
    """Return the lowest and the highest element of tensors of the float model for all samples, by
    the tensors' numbers. A tensor without elements has none."""
    interpreter = open_interpreter(plain.data, keeps_tensors=True)
    bounds: dict[int, Bounds] = {}
    for arrays in float_sets:
        run_interpreter(interpreter, arrays)
        for number in numbers:
            values = interpreter.get_tensor(number)
            if not values.size:
                continue
            before = bounds.get(number, Bounds(np.inf, -np.inf))
            low, high = float(values.min()), float(values.max())
            bounds[number] = Bounds(min(low, before.low), max(high, before.high))
    return bounds


def find_bounds(levels: Levels, dtype: str) -> Bounds:
    """Return the lowest and the highest number for which integers of a type can stand."""
    limits = np.iinfo(dtype)
    lowest = (limits.min - levels.zero_points) * levels.scales
    highest = (limits.max - levels.zero_points) * levels.scales
    return Bounds(float(lowest.min()), float(highest.max()))
