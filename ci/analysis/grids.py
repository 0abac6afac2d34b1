"""Finds the values that a quantized output can have."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from ci.graphs.graph import LITERT, ONNXRUNTIME, Array, Constants, Graph, Node
from ci.graphs.operators import CREATES, computes, is_dequantizer, is_quantizer, list_moved
from ci.models.tensors import TensorInfo

LEVELS_OF_8_BITS = 256
NEAR = 2**-6  # tolerance as a share of a step, because float32 rounds multiples of it
# Tolerance between a program's scale and its model's: QNN uses a scale of 1/65536 for the 16-bit
# result of a softmax, but ONNX Runtime's quantizer writes 1/65535.
SCALE = 2**-16


class Grid(NamedTuple):
    """The possible values of an output: the multiples of ``step`` from ``lowest`` to ``highest``.
    The step is 0 if other values are possible."""

    step: float
    lowest: int
    highest: int


NO_GRID = Grid(0.0, 0, 0)


class Rounding(NamedTuple):
    """The single scale and the zero point of a quantizer or dequantizer."""

    scale: float
    zero: int


def find_grids(graphs: Iterable[Graph], on_cpu: Collection[str] = ()) -> list[Grid]:
    """Return the grid of each output of a model, graph after graph.

    The grid is NO_GRID for an output that is not dequantized with a single scale, and for an output
    with elements that QNN does not compute, such as those of an input or a constant. ``on_cpu`` are
    the types of operators that QNN does not compute, as a file names them.
    """
    grids = []
    for graph in graphs:
        constants = Constants(graph)
        grids += [_find_grid(constants, output, on_cpu) for output in graph.outputs]
    return grids


def add_grids(infos: Sequence[TensorInfo], grids: Sequence[Grid]) -> tuple[TensorInfo, ...]:
    """Return the descriptions of outputs with their possible values. Raises ValueError unless there
    is a grid for each."""
    described = []
    for info, grid in zip(infos, grids, strict=True):
        added = structs.replace(info, step=grid.step, lowest=grid.lowest, highest=grid.highest)
        described.append(added)
    return tuple(described)


def find_impossible(output: Array, info: TensorInfo) -> Array:
    """Return which elements of an output a program cannot return: those out of its range, and those
    that are no multiple of its step. All are possible if the output has no step.

    If several products of two computed tensors (a batch of more than one) are multiplied by weights
    in 8 bits, with no operator between, QNN 2.49.40 rounds the scale of the result to float16, and
    returns one step more for each multiple of four steps: 256 for 255. None returned 257 or -1,
    even where the exact values were ten or a hundred times the range. A single product, other
    operators at the end, and 16 bits keep the scale (54 programs).
    """
    # Without a step, the CPU computes the output, or QNN moves values of another step into it.
    if not info.step or info.highest <= info.lowest:
        return np.zeros(output.shape, bool)
    impossible = _is_off(output, info.step, info.lowest, info.highest)
    if info.highest - info.lowest < LEVELS_OF_8_BITS and impossible.any():
        with np.errstate(over="ignore"):
            rounded_step = float(np.float16(info.step))
        if 0 < rounded_step < np.inf:
            impossible &= _is_off(output, rounded_step, info.lowest, info.highest + 1)
    return impossible


def _is_off(output: Array, step: float, lowest: int, highest: int) -> Array:
    steps = output.astype(np.float64) / step
    # The tolerance grows with the number of steps: a scale that is off by a share moves large
    # values most.
    near = NEAR + SCALE * np.abs(steps)
    off: Array = np.abs(steps - np.round(steps)) > near
    off |= (steps < lowest - near) | (steps > highest + near)
    return off


def find_step(values: Array) -> float:
    """Return the step of which all values are multiples, as those of a tensor that was rounded to 8
    bits, or 0 if there is none. It is taken from the numbers: an output that is joined from rounded
    tensors has the step of the last quantizer, which the graph does not show for all elements."""
    levels = np.unique(values.astype(np.float64))
    if len(levels) < 2 or not np.isfinite(levels).all():
        return 0.0
    step, largest = float(np.diff(levels).min()), float(np.abs(levels).max())
    count = round(largest / step)
    if not 0 < count < LEVELS_OF_8_BITS:
        return 0.0
    step = largest / count  # more exact than a difference of two numbers
    return 0.0 if _is_off(levels, step, -count, count).any() else step


def read_scale(constants: Constants, node: Node) -> Array | None:
    """Return the scale of a quantizer or dequantizer, which has it as a number or reads it; None if
    it is not constant."""
    if "scale" in node.numbers:
        return np.asarray(node.numbers["scale"])
    return constants.find(node.reads[1]) if len(node.reads) > 1 else None


def _find_grid(constants: Constants, output: str, on_cpu: Collection[str]) -> Grid:
    graph, end = constants.graph, constants.makers.get(output)
    if end is None or not is_dequantizer(end.operator):
        return NO_GRID
    rounding = _read_rounding(constants, end)
    has_limits = {"quant_min", "quant_max"} <= end.numbers.keys()
    # Floats of 8 bits have no steps. A quantizer of torch records no type.
    if rounding is None or not has_limits or "int" not in graph.dtypes.get(end.reads[0], "int"):
        return NO_GRID
    low, high = (int(end.numbers[name][0]) for name in ("quant_min", "quant_max"))
    # onnxruntime's provider gives 16-bit results of sigmoid and tanh the steps 1/65536 and 1/32768,
    # whatever the file says: right programs of 87 dB have values between the file's steps. The
    # results of sin, softmax and a linear layer lay on them. ExecuTorch changes no steps.
    has_own_steps = graph.front_end == ONNXRUNTIME and high - low >= LEVELS_OF_8_BITS
    # An output of a .tflite file is the integers themselves, whatever computes them.
    is_integer = graph.front_end == LITERT
    if has_own_steps or not (is_integer or _is_computed(constants, end, rounding, on_cpu)):
        return NO_GRID
    return Grid(rounding.scale, low - rounding.zero, high - rounding.zero)


def _read_rounding(constants: Constants, node: Node) -> Rounding | None:
    scale, zeros = read_scale(constants, node), node.numbers.get("zero_point", ())
    if scale is None or scale.size != 1 or len(zeros) != 1:
        return None
    return Rounding(float(scale.item()), int(zeros[0]))


def _is_computed(
    constants: Constants, end: Node, rounding: Rounding, on_cpu: Collection[str]
) -> bool:
    """Return whether QNN computes all elements that the dequantizer ``end`` reads, and rounds them
    in the same way, or moves elements that it computed and rounded so.

    The front ends do not round an output that only moves an input, such as x.unsqueeze(0), so its
    values need not be multiples of the step.
    """
    pending, visited = [end.reads[0]], set[str]()
    while pending:
        name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        node = constants.makers.get(name)
        if node is None or not node.reads:
            return False
        if is_quantizer(node.operator) or is_dequantizer(node.operator):
            if _read_rounding(constants, node) != rounding:
                return False
            pending.append(node.reads[0])
        elif computes(node.operator):
            kind = node.label.partition(" ")[0]
            if node.operator in CREATES or kind in on_cpu:
                return False
        else:
            operands = node.reads[: node.operands]
            pending += [operands[place] for place in list_moved(node.operator, len(operands))]
    return True
