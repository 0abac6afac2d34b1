"""Finds which exponential functions of a model read numbers so low that QNN computes them wrongly
in float16. A graph alone shows only where that may be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np
from msgspec import structs

from ci.analysis.clipping import watch
from ci.analysis.steps import Step
from ci.graphs.bounds import LEAST_RIGHT_EXPONENT
from ci.graphs.run import Program, Recipe

EXP: Final = "exp"
LOW: Final = "low"  # a number of steps, see ci.analysis.steps.measure_step


def measure_low(
    steps: Sequence[Step], read: Callable[[], Program], sets: Sequence[Any]
) -> tuple[Step, ...]:
    """Return the steps of a float model, of which an exp has the number ``low`` only if it reads a
    number below LEAST_RIGHT_EXPONENT in one of ``sets``: a radial basis, exp(-d * d), is wrong for
    large distances only. An exp that the program lacks keeps its number. ``read`` returns the
    program, and is called only if there is such an exp."""
    suspects = {step.name for step in steps if LOW in step.numbers}
    if not suspects or not sets:
        return tuple(steps)
    program = read()
    recipes: dict[str, Recipe] = {}
    operands: dict[str, tuple[str, str]] = {}  # method and value that each exp reads
    own_names = name_exps(steps, program)
    for method, graph in program.graphs.items():
        for node in graph.nodes:
            name = own_names.get((method, node.results[0]), "")
            if name in suspects:
                operands[name] = method, node.reads[0]
        names = dict.fromkeys(value for owner, value in operands.values() if owner == method)
        if names:
            recipes[method] = Recipe(watched=[*names], watch=watch)
    smallest_operands: dict[tuple[str, str], float] = {}
    for records in program.prepare(recipes).record(sets) if recipes else ():
        for method, record in records.items():
            for value, extremes in record.values.items():
                smallest_so_far = smallest_operands.get((method, value), np.inf)
                smallest_operands[method, value] = float(
                    np.minimum(smallest_so_far, np.min(extremes))
                )
    return tuple(
        _without_low(step)
        if step.name in operands
        and smallest_operands.get(operands[step.name], np.nan) >= LEAST_RIGHT_EXPONENT
        else step
        for step in steps
    )


def name_exps(steps: Sequence[Step], program: Program) -> dict[tuple[str, str], str]:
    """Return the name of the step of each exp of a program, by its method and its result. A graph
    that torch.export traced again, as that of a model that mend rewrote, has other names: its exps
    are in the same order then."""
    names = {
        (method, node.results[0]): node.name or node.results[0]
        for method, graph in program.graphs.items()
        for node in graph.nodes
        if node.operator == EXP
    }
    of_steps = [step.name for step in steps if step.operator == EXP]
    if {*names.values()} != {*of_steps} and len(names) == len(of_steps):
        return dict(zip(names, of_steps, strict=True))
    return names


def try_to_measure_low(
    steps: Sequence[Step], read: Callable[[], Program], sets: Sequence[Any]
) -> tuple[Step, ...]:
    """Return the result of measure_low, or the steps as they are if the program cannot be read or
    run. This is for what is not judged, such as an audit: a verdict reports the reason."""
    with suppress(Exception):  # any that torch.export, onnxruntime or a user's model raises
        return measure_low(steps, read, sets)
    return tuple(steps)


def _without_low(step: Step) -> Step:
    numbers = {name: values for name, values in step.numbers.items() if name != LOW}
    return structs.replace(step, numbers=numbers)
