"""What is done to an ONNX file before QNN sees it: a form that the tools take, quantization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import (
    get_qnn_qdq_config,
    qnn_preprocess_model,
)

from ci.models.schemes import Scheme
from ci.onnx.source import Arrays, list_inputs

OLDEST_OPSET = 13  # the first whose DequantizeLinear has a scale per channel
OLDEST_IR = 4  # the first whose initializers are not inputs
PREPARED = "prepared.onnx"


def write_normal_form(path: Path, target: Path) -> Path:
    """The file itself where its weights are constants and its opset is recent, else a copy at
    ``target`` that computes the same.

    Up to IR version 3 each initializer is an input, too, which a caller may replace: QNN takes no
    node whose weights are not constant. Raises what onnx raises for an opset it cannot convert.
    """
    model = onnx.load(path, load_external_data=False)
    kept = list_inputs(model)
    opsets = [one.version for one in model.opset_import if one.domain in {"", "ai.onnx"}]
    opset = max(opsets, default=OLDEST_OPSET)
    if len(kept) == len(model.graph.input) and opset >= OLDEST_OPSET:
        return path
    model = onnx.load(path)
    if opset < OLDEST_OPSET:
        model = version_converter.convert_version(model, OLDEST_OPSET)
    inputs = [one for one in model.graph.input if one.name in kept]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, OLDEST_IR)
    onnx.save(model, target)
    return target


class SetReader(CalibrationDataReader):
    """Calibration sets, one after the other."""

    def __init__(self, names: Sequence[str], sets: Sequence[Arrays]) -> None:
        self.feeds: Iterator[Mapping[str, Any]] = (
            dict(zip(names, arrays, strict=True)) for arrays in sets
        )

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self.feeds, None)


def quantize_file(source: Path, target: Path, scheme: Scheme, sets: Sequence[Arrays]) -> None:
    """Write the quantized model of ``source`` to ``target``, with QuantizeLinear and
    DequantizeLinear as QNN's provider wants them; ranges cover all of ``sets``.

    Raises what onnxruntime's quantizer raises.
    """
    prepared = target.with_name(PREPARED)
    changed = qnn_preprocess_model(str(source), str(prepared))
    chosen = prepared if changed else source
    recipe = scheme.recipe
    names = [one.name for one in onnx.load(chosen, load_external_data=False).graph.input]
    config = get_qnn_qdq_config(
        chosen,
        SetReader(names, sets),
        activation_type=QuantType[recipe.activations],
        weight_type=QuantType[recipe.weights],
        per_channel=recipe.per_channel,
    )
    quantize(str(chosen), str(target), config)
    prepared.unlink(missing_ok=True)


def find_joined(model: onnx.ModelProto) -> list[tuple[int, tuple[int, ...]]]:
    """Of each output: the axis along which it is a concatenation, as it is or seen through
    transposes, and the sizes of its parts, which are judged as separate tensors; 0 and none of
    an output that is not one, or whose shapes are not known.
    """
    graph = onnx.shape_inference.infer_shapes(model).graph
    makers = {name: node for node in graph.node for name in node.output}
    shapes = {
        one.name: tuple(size.dim_value for size in one.type.tensor_type.shape.dim)
        for one in (*graph.input, *graph.value_info, *graph.output)
    }
    shapes |= {one.name: tuple(one.dims) for one in graph.initializer}
    return [_find_parts(one.name, makers, shapes) for one in graph.output]


def _find_parts(
    name: str, makers: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, tuple[int, ...]]:
    orders = []
    node = makers.get(name)
    while node is not None and node.op_type in {"Transpose", "Identity"}:
        default = tuple(reversed(range(len(shapes.get(node.output[0], ())))))
        if node.op_type == "Transpose":
            orders.append(_attributes(node).get("perm", default))
        node = makers.get(node.input[0])
    if node is None or node.op_type != "Concat":
        return 0, ()
    parts = [shapes.get(part, ()) for part in node.input]
    rank = len(parts[0])
    if len(parts) < 2 or not rank or any(len(part) != rank or not all(part) for part in parts):
        return 0, ()
    axis = _attributes(node)["axis"] % rank
    sizes = tuple(part[axis] for part in parts)
    for order in reversed(orders):
        axis = list(order).index(axis)
    return axis, sizes


def _attributes(node: Any) -> dict[str, Any]:
    return {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
