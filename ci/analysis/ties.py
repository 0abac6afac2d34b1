"""Finds which integers and booleans a correct program may return: small errors change an index or a
comparison where two numbers are nearly equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ci.analysis.noise import is_narrow
from ci.graphs.graph import Array
from ci.graphs.run import Program
from ci.models.rounding import TIE_RUNS, TIE_SHARES
from provisioning.errors import FailedError

Outputs = list[tuple[Array, ...]]


def find_ties(
    program: Program, sets: Sequence[Any], outputs: Sequence[Sequence[Any]], bits: int
) -> tuple[Outputs, Outputs]:
    """Return the minimum and the maximum of each integer or boolean element, over ``outputs``,
    which are the program's for each sample, and several runs in which the operands of choices have
    errors. Floating-point outputs are returned unchanged. ``bits`` are those of an activation, 0 if
    they are unknown. Raises FailedError if errors change the shape of an output."""
    low = [list(map(np.asarray, arrays)) for arrays in outputs]
    high = [[*arrays] for arrays in low]
    places = [place for place, array in enumerate(low[0]) if array.dtype.kind != "f"]
    if places:
        shaken = program.shake_choices(TIE_SHARES[bits or guess_bits(program)])
        for _ in range(TIE_RUNS):
            for sample, arrays in enumerate(shaken.run(sets)):
                for place in places:
                    require_shape(place, low[sample][place], arrays[place])
                    low[sample][place] = np.minimum(low[sample][place], arrays[place])
                    high[sample][place] = np.maximum(high[sample][place], arrays[place])
    return [tuple(arrays) for arrays in low], [tuple(arrays) for arrays in high]


def require_shape(place: int, array: Array, shaken_array: Array) -> None:
    """Raise FailedError if an output has another shape with small errors."""
    if array.shape != shaken_array.shape:
        raise FailedError(
            f"the shape of output {place} depends on the data",
            why=f"it is {[*array.shape]}, and {[*shaken_array.shape]} with small errors in the"
            " model",
            fix="a program for QNN has fixed shapes: return a mask, or the first k of torch.topk",
        )


def guess_bits(program: Program) -> int:
    """Return 8 if the program quantizes a value to 8 bits or fewer, and otherwise 16."""
    nodes = [node for graph in program.graphs.values() for node in graph.nodes]
    return 8 if any(map(is_narrow, nodes)) else 16
