"""Finds the operator whose results are NaN or infinite if what it reads has QNN's rounding errors,
as of a logarithm of 0."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ci.analysis.layers import list_watched
from ci.analysis.noise import find_errors_of
from ci.graphs.graph import Array, Node
from ci.graphs.run import Program, Recipe


def name_undefined(
    program: Program,
    sets: Sequence[Any],
    *,
    qnn: str = "",
    on_cpu: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> str:
    """Return the first operator with such results, and the numbers that it reads then; "" if there
    is none. The arguments are those of ci.analysis.noise.predict_noise."""
    recipes = {
        name: Recipe(errors, watched=list_watched(program.graphs[name]))
        for name, errors in find_errors_of(program, qnn, on_cpu).items()
    }
    run = program.prepare(recipes)

    def describe(node: Node, method: str, values: Mapping[str, Array], inputs: Any) -> str:
        exact = program.prepare({method: Recipe(watched=list_watched(program.graphs[method]))})
        (records,) = exact.record([inputs])
        return _describe(node, values, records[method].values)

    infinite = ""
    for inputs in sets:  # one after another, because each records all values of the model
        (records,) = run.record([inputs])
        for method, record in records.items():
            for node in program.graphs[method].nodes:
                results = [record.values[name] for name in node.results if name in record.values]
                if any(np.isnan(result).any() for result in results):
                    return describe(node, method, record.values, inputs)
                # This may be right, because a sigmoid of it is 1.
                if not infinite and any(np.isinf(result).any() for result in results):
                    infinite = describe(node, method, record.values, inputs)
    return infinite


def _describe(node: Node, values: Mapping[str, Array], exact: Mapping[str, Array]) -> str:
    """Return an operator, the numbers that it reads, and the least of those ``exact`` ones that the
    errors make zero."""
    reads = [name for name in node.reads if name in values and values[name].size]
    ranges = " and ".join(
        f"{np.nanmin(values[name]):.3g} to {np.nanmax(values[name]):.3g}" for name in reads
    )
    read_numbers = f", which reads numbers from {ranges}" if ranges else ""
    lost = [
        np.abs(exact[name][(values[name] == 0) & (exact[name] != 0)])
        for name in reads
        if name in exact and exact[name].shape == values[name].shape
    ]
    least = min((numbers.min() for numbers in lost if numbers.size), default=None)
    underflow = "" if least is None else f": numbers as small as {least:.3g} underflow to 0"
    return f"{node.label}{node.place.mark}{read_numbers}{underflow}"
