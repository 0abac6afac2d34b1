"""Lists the operators of an ONNX model as steps, so that they can be compared with the patterns of
known faults. Arguments have torch's names, see ci.models.graph_steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ci.models.graph_steps import LARGEST, MOST_ELEMENTS, Operand, Step, measure_step
from ci.onnx.models import infer, read_attributes, read_constants

PASSES_ON = frozenset({"Identity", "Dropout", "Cast"})  # a pattern ignores them
NORMS = {"RMSNormalization": "rms_norm", "SimplifiedLayerNormalization": "rms_norm"}
# ONNX's attributes, torch's name and ONNX's default per axis.
ATTRIBUTES = (
    ("kernel_shape", "kernel_size", None),
    ("strides", "stride", 1),
    ("dilations", "dilation", 1),
    ("output_padding", "output_padding", 0),
    ("ceil_mode", "ceil_mode", None),
    ("count_include_pad", "count_include_pad", None),
    ("group", "groups", None),
    ("axis", "dim", None),
)
# The second operand of these operators, or an attribute in its place, under torch's name.
OPERANDS = {"Clip": "min", "CumSum": "dim"}
POOLS = frozenset({"AveragePool", "MaxPool"})
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})


def describe_steps(path: Path) -> tuple[Step, ...]:
    """Return the steps of a float model. Its shapes are inferred; unknown ones are empty."""
    model = onnx.load(path)
    constants = read_constants(model.graph)
    inferred = infer(model).graph
    shapes = {
        one.name: tuple(size.dim_value for size in one.type.tensor_type.shape.dim)
        for one in (*inferred.input, *inferred.value_info, *inferred.output)
        if all(size.HasField("dim_value") for size in one.type.tensor_type.shape.dim)
    }
    shapes |= {name: tuple(one.dims) for name, one in constants.items()}
    moved: dict[str, str] = {}  # results that equal another one
    made: set[str] = set()
    steps = []
    for node in model.graph.node:
        given = [moved.get(name, name) for name in node.input if name]
        if node.op_type in PASSES_ON and given:
            moved[node.output[0]] = given[0]
            continue
        if node.op_type == "Constant" or not node.output:
            continue
        operands = tuple(describe_operand(name, shapes, constants) for name in given)
        sources = tuple(name if name in made else "" for name in given)
        numbers = measure_step(operands, _list_numbers(node, operands, constants))
        made.add(node.output[0])
        shape = shapes.get(node.output[0], ())
        name = NORMS.get(node.op_type, str(node.op_type))
        if name == "MatMul" and operands[1:] and operands[1].constant:
            name = "linear"
        steps.append(Step(node.output[0], name, operands, sources, shape, numbers))
    return tuple(steps)


def describe_operand(
    name: str, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Any]
) -> Operand:
    """Return an operand of a node. The magnitude of a constant with more than MOST_ELEMENTS
    elements, or without numbers, is unknown."""
    shape = shapes.get(name, ())
    if name not in constants:
        return Operand(shape)
    value = numpy_helper.to_array(constants[name]) if math.prod(shape) <= MOST_ELEMENTS else None
    if value is None or not value.size or value.dtype.kind not in "fiub":
        return Operand(shape, constant=True)
    largest = float(np.abs(value.astype(np.float64)).max())
    uniform = value.ndim > 0 and bool((value == value.flat[0]).all())
    magnitude = 0.0 if math.isnan(largest) else min(largest, LARGEST)
    return Operand(shape, True, magnitude, uniform, least=float(value.min()))


def _list_numbers(
    node: Any, operands: tuple[Operand, ...], constants: Mapping[str, Any]
) -> dict[str, tuple[float, ...]]:
    """Return the arguments of a node that patterns may limit, under torch's names."""
    given = read_attributes(node)
    axes = len(operands[0].shape) - 2 if operands else 0
    found = dict(_read_operand(node, given, constants))
    spatial = node.op_type in POOLS | CONVOLUTIONS
    for name, torchs, usual in ATTRIBUTES:
        value = given.get(name, [usual] * axes if spatial and usual is not None else None)
        if value is not None:
            found[torchs] = tuple(
                map(float, value if isinstance(value, (list, tuple)) else [value])
            )
    if spatial:
        pads = given.get("pads", [0] * 2 * axes)
        ends = zip(pads[:axes], pads[axes:], strict=True)
        found["padding"] = tuple(
            float(end if node.op_type == "ConvTranspose" else max(begin, end))
            for begin, end in ends
        )
    if node.op_type in CONVOLUTIONS:
        found.setdefault("groups", (1.0,))
    if node.op_type != "ConvTranspose" or "output_shape" in given:
        found.pop("output_padding", None)
    if node.op_type in POOLS:
        found.setdefault("ceil_mode", (0.0,))
    if node.op_type == "AveragePool":
        found.setdefault("count_include_pad", (0.0,))
    if node.op_type == "Pad":
        pads = _read_array(node, 1, constants) if "pads" not in given else given["pads"]
        half = len(pads) // 2
        pairs = zip(reversed(pads[:half]), reversed(pads[half:]), strict=True)
        found["pad"] = tuple(float(size) for pair in pairs for size in pair)
        if given.get("mode", b"constant") in {b"constant", "constant"}:
            found["value"] = (float(_read_number(node, 2, constants) or 0.0),)
    return found


def _read_operand(
    node: Any, given: Mapping[str, Any], constants: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the number that the second operand of some operators is, or the attribute for it."""
    if name := OPERANDS.get(node.op_type):
        value = given[name] if name in given else _read_number(node, 1, constants)
        if value is not None:
            yield name, (float(value),)


def _read_array(node: Any, index: int, constants: Mapping[str, Any]) -> list[float]:
    name = node.input[index] if index < len(node.input) else ""
    found = numpy_helper.to_array(constants[name]) if name in constants else np.zeros(0)
    return [float(one) for one in found.reshape(-1)]


def _read_number(node: Any, index: int, constants: Mapping[str, Any]) -> float | None:
    return next(iter(_read_array(node, index, constants)), None)
