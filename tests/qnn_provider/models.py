"""Small ONNX models, written with the onnx package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

OPSET, IR = 21, 10


def build_model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    initializers: Sequence[Any] = (),
    *,
    opset: int = OPSET,
    ir: int = IR,
    inner_values: Sequence[Any] = (),
) -> onnx.ModelProto:
    """``inner_values`` are values inside of the graph whose shapes are stated."""
    graph = helper.make_graph(
        nodes, "graph", inputs, outputs, initializers, value_info=inner_values
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir)


def write_model(path: Path, *parts: Sequence[Any], **options: Any) -> Path:
    """A model of the same arguments in a file."""
    path.write_bytes(build_model(*parts, **options).SerializeToString())
    return path


def tensor(name: str, shape: Sequence[int | str | None], kind: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def constant(name: str, values: Any, dtype: Any = np.float32) -> Any:
    return onnx.numpy_helper.from_array(np.asarray(values, dtype), name)


def write_relu(path: Path) -> Path:
    """x + x of a ReLU, [1, 3, 8, 8]."""
    shape = (1, 3, 8, 8)
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "n0"),
        helper.make_node("Add", ["a", "a"], ["y"]),
    ]
    return write_model(path, nodes, [tensor("x", shape)], [tensor("y", shape)])


def write_conv(path: Path, *, seed: int = 0, size: int = 8) -> Path:
    """A convolution and a ReLU, quantized to uint8, [1, 3, size, size]; weights by the seed."""
    weights = np.random.default_rng(seed).integers(0, 255, (8, 3, 3, 3))
    steps = {"s": 0.02, "ws": 0.01, "os": 0.05}
    zeros = ["z", "wz"]
    constants = [constant(name, value) for name, value in steps.items()]
    constants += [constant(name, 128, np.uint8) for name in zeros]
    constants.append(constant("w", weights, np.uint8))
    make = helper.make_node
    nodes = [
        make("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        make("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        make("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        make("Conv", ["xd", "wd"], ["c"], "n0"),
        make("QuantizeLinear", ["c", "os", "z"], ["cq"]),
        make("DequantizeLinear", ["cq", "os", "z"], ["y"]),
    ]
    inputs, outputs = [tensor("x", (1, 3, size, size))], [tensor("y", (1, 8, size - 2, size - 2))]
    return write_model(path, nodes, inputs, outputs, constants)
