"""Models of more than one node: flow and shapes that are not fixed, and ways round a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.qnn_provider.models import constant, tensor, write_model

SIZE = (1, 4)


def write_if(path: Path, *, fixed: bool, shared: bool = False) -> Path:
    """y = relu(x) if c else -x; with ``shared`` both branches call their value by one name."""
    branches = {}
    for name, op in (("then_branch", "Relu"), ("else_branch", "Neg")):
        inner = "i" if shared else f"{name}_i"
        nodes = [helper.make_node(op, ["x"], [inner])]
        branches[name] = helper.make_graph(nodes, name, [], [tensor(inner, SIZE)])
    node = helper.make_node("If", ["c"], ["y"], "choice", **branches)
    inputs = [tensor("x", SIZE)]
    constants = [constant("c", True, np.bool_)] if fixed else []
    if not fixed:
        inputs.append(tensor("c", [], TensorProto.BOOL))
    return write_model(path, [node], inputs, [tensor("y", SIZE)], constants)


def write_loop(path: Path) -> Path:
    """Three times v = relu(v)."""
    body = helper.make_graph(
        [helper.make_node("Relu", ["v"], ["w"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [tensor("n", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("v", SIZE)],
        [tensor("on", [], TensorProto.BOOL), tensor("w", SIZE)],
    )
    node = helper.make_node("Loop", ["times", "start", "x"], ["y"], "steps", body=body)
    constants = [constant("times", 3, np.int64), constant("start", True, np.bool_)]
    return write_model(path, [node], [tensor("x", SIZE)], [tensor("y", SIZE)], constants)


def write_dynamic(path: Path, batch: Any) -> Path:
    """A ReLU of ``batch`` rows: a name, a number, or None."""
    nodes = [helper.make_node("Relu", ["x"], ["y"], "n0")]
    return write_model(path, nodes, [tensor("x", (batch, 4))], [tensor("y", (batch, 4))])


def write_gelu(path: Path) -> Path:
    """The exact GELU, as PyTorch's exporter writes it with opset 19 and older."""
    make = helper.make_node
    nodes = [
        make("Div", ["x", "root"], ["a"]),
        make("Erf", ["a"], ["b"]),
        make("Add", ["b", "one"], ["c"]),
        make("Mul", ["x", "c"], ["d"]),
        make("Mul", ["d", "half"], ["y"]),
    ]
    constants = [constant("root", 2**0.5), constant("one", 1.0), constant("half", 0.5)]
    return write_model(path, nodes, [tensor("x", SIZE)], [tensor("y", SIZE)], constants)


def write_casts(path: Path) -> Path:
    """To int64 by way of int32."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.INT32),
        helper.make_node("Cast", ["a"], ["y"], to=TensorProto.INT64),
    ]
    return write_model(path, nodes, [tensor("x", SIZE)], [tensor("y", SIZE, TensorProto.INT64)])
