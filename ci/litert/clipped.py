"""Finds the values of a quantized .tflite file that leave their ranges, by its float model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ci.analysis.clipping import Bounds, choose_clipped, describe_clipped
from ci.graphs.graph import Array
from ci.graphs.litert_file import Levels, read_dtype, read_levels
from ci.graphs.litert_pairs import Side, find_counterparts
from ci.graphs.litert_program import LitertProgram, name_method
from ci.graphs.litert_reader import COMPUTED
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
    the same of the float model. Values of operators without a counterpart are left out."""
    if quantized.entry.subgraph or plain.entry.subgraph:
        return ()  # an interpreter returns inner values of the first one only
    counterparts = find_counterparts(quantized, plain, (sets[0], float_sets[0]))
    pairs = [pair for counterpart in counterparts for pair in counterpart.results]
    interpreter = open_interpreter(plain.data, keeps_tensors=True)
    computed_bounds: dict[int, Bounds] = {}
    for arrays in float_sets:
        run_interpreter(interpreter, arrays)
        for _, plain_number in pairs:
            values = interpreter.get_tensor(plain_number)
            before = computed_bounds.get(plain_number, Bounds(np.inf, -np.inf))
            low, high = float(values.min()), float(values.max())
            computed_bounds[plain_number] = Bounds(min(low, before.low), max(high, before.high))
    program = LitertProgram(quantized.data, keeps_operators=True)
    parsed = program.parsed[name_method(quantized.entry)]
    clipped: list[tuple[float, Clipped]] = []
    for number, plain_number in pairs:
        tensor = quantized.tensors[number]
        levels = read_levels(tensor)
        if levels is not None:
            calibrated = find_bounds(levels, read_dtype(tensor))
            name = COMPUTED.format(parsed.names[number])
            clipped += describe_clipped(
                parsed.graph, name, calibrated, computed_bounds[plain_number]
            )
    return choose_clipped(clipped)


def find_bounds(levels: Levels, dtype: str) -> Bounds:
    """Return the lowest and the highest number for which integers of a type can stand."""
    limits = np.iinfo(dtype)
    lowest = (limits.min - levels.zero_points) * levels.scales
    highest = (limits.max - levels.zero_points) * levels.scales
    return Bounds(float(lowest.min()), float(highest.max()))
