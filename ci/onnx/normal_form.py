"""A user's .onnx in the form that the tools want: weights that are constants, a recent opset."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import version_converter

OLDEST = 13  # the first whose DequantizeLinear has a scale a channel


def write_normal_form(path: Path, target: Path) -> Path:
    """The file itself where it has that form, else a copy at ``target`` that computes the same.

    Up to IR version 3 each initializer is an input, too, which a caller may replace: QNN takes no
    node whose weights are not constant. Raises what onnx raises for an opset it cannot convert.
    """
    model = onnx.load(path, load_external_data=False)
    constants = {one.name for one in model.graph.initializer}
    inputs = [one for one in model.graph.input if one.name not in constants]
    (opset,) = (one.version for one in model.opset_import if one.domain in {"", "ai.onnx"})
    if len(inputs) == len(model.graph.input) and opset >= OLDEST:
        return path
    model = onnx.load(path)
    if opset < OLDEST:
        model = version_converter.convert_version(model, OLDEST)
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    onnx.save(model, target)
    return target
