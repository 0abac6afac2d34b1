"""Which parts of its outputs an ONNX file joins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

from onnx.helper import make_graph, make_node
from onnx.numpy_helper import from_array

from ci.analysis.parts import find_parts
from ci.graphs.onnx_reader import name_operator, read_file
from tests.qnn_provider.models import tensor, write_model

ROWS = ["0:4 along axis 1", "4:6 along axis 1"]
JOINED = make_node("Concat", ["x", "y"], ["j"], axis=1)
WEIGHTS = {
    "two": np.array(2.0, np.float32),
    "flat": np.array([1, -1], np.int64),
    "places": np.array([5, 0, 1], np.int64),
    "mask": np.array([True, True, False, False]).reshape(1, 4, 1),
    "pads": np.array([0, 0, 0, 0, 2, 0], np.int64),
    "below": np.array([0, 0, 0, 0, 2, 0], np.int64),
    "above": np.array([0, 4, 0, 0, 0, 0], np.int64),
    "rows": np.repeat([[[2], [3]]], 6, 2).astype(np.int64),
    "image": np.array([1, 8, 2, 3], np.int64),
    "ends": np.array([[[0, 0], [0, 1]]], np.int64),
    "halves": np.array([2, 2], np.int64),
    "last": np.array([-1], np.int64),
    "scale": np.array(0.1, np.float32),
    "zero": np.array(0, np.uint8),
    "yes": np.array(True),
}


def list_parts(folder: Path, nodes: list[Any], shape: tuple[Any, ...]) -> list[str]:
    """Return the parts of the last node's result; x is [1, 4, 6] and y [1, 2, 6]."""
    inputs = [tensor("x", (1, 4, 6)), tensor("y", (1, 2, 6))]
    weights = [from_array(value, name) for name, value in WEIGHTS.items()]
    outputs = [tensor(nodes[-1].output[0], shape)]
    path = write_model(folder / "model.onnx", nodes, inputs, outputs, weights)
    return [str(part) for part in find_parts(read_file(path))[0]]


@pytest.mark.parametrize(
    ("nodes", "shape", "parts"),
    [
        ([JOINED], (1, 6, 6), ROWS),
        ([JOINED, make_node("Mul", ["j", "two"], ["z"])], (1, 6, 6), ROWS),
        ([JOINED, make_node("Clip", ["j"], ["z"])], (1, 6, 6), ROWS),
        ([JOINED, make_node("LeakyRelu", ["j"], ["z"])], (1, 6, 6), ROWS),
        ([JOINED, make_node("Softmax", ["j"], ["z"], axis=-1)], (1, 6, 6), ROWS),
        (
            [JOINED, make_node("ReduceMax", ["j", "last"], ["z"], keepdims=0)],
            (1, 6),
            ["0:4 along axis 1", "4:6 along axis 1"],
        ),
        (
            [
                make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
                make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
                make_node("Concat", ["d", "y"], ["j"], axis=-2),
                make_node("Transpose", ["j"], ["t"], perm=[0, 2, 1]),
                make_node("Identity", ["t"], ["z"]),
            ],
            (1, 6, 6),
            ["0:4 along axis 2", "4:6 along axis 2"],
        ),
        (
            [JOINED, make_node("Einsum", ["j"], ["z"], equation="abc->acb")],
            (1, 6, 6),
            ["0:4 along axis 2", "4:6 along axis 2"],
        ),
        (
            [
                JOINED,
                make_node("Transpose", ["j"], ["t"], perm=[0, 2, 1]),
                make_node("Reshape", ["t", "flat"], ["z"]),
            ],
            (1, 36),
            ["0:34 (4 of every 6) along axis 1", "4:36 (2 of every 6) along axis 1"],
        ),
        (
            [JOINED, make_node("Gather", ["j", "places"], ["z"], axis=1)],
            (1, 3, 6),
            ["0:1 along axis 1", "1:3 along axis 1"],
        ),
        (
            [make_node("Relu", ["x"], ["r"]), make_node("Where", ["mask", "r", "x"], ["z"])],
            (1, 4, 6),
            ["0:2 along axis 1", "2:4 along axis 1"],
        ),
        (
            [make_node("Relu", ["x"], ["r"]), make_node("ScatterND", ["r", "ends", "y"], ["z"])],
            (1, 4, 6),
            ["0:2 along axis 1", "2:4 along axis 1"],
        ),
        (
            [
                make_node("Split", ["x", "halves"], ["a", "b"], axis=1),
                make_node("Exp", ["a"], ["c"]),
                make_node("Concat", ["c", "b"], ["z"], axis=1),
            ],
            (1, 4, 6),
            ["0:2 along axis 1", "2:4 along axis 1"],
        ),
        (
            [make_node("Relu", ["x"], ["r"]), make_node("Pad", ["r", "pads", "two"], ["z"])],
            (1, 6, 6),
            ROWS,
        ),
        (
            [
                make_node("Pad", ["x", "below"], ["a"]),
                make_node("Pad", ["y", "above"], ["b"]),
                make_node("Add", ["a", "b"], ["z"]),
            ],
            (1, 6, 6),
            ROWS,
        ),
        (
            [
                make_node("Relu", ["x"], ["r"]),
                make_node("ScatterElements", ["r", "rows", "y"], ["z"], axis=1),
            ],
            (1, 4, 6),
            ["0:2 along axis 1", "2:4 along axis 1"],
        ),
        (
            [
                make_node("Relu", ["x"], ["r"]),
                make_node("Concat", ["x", "r"], ["c"], axis=1),
                make_node("Reshape", ["c", "image"], ["i"]),
                make_node("DepthToSpace", ["i"], ["z"], blocksize=2, mode="CRD"),
            ],
            (1, 2, 4, 6),
            ["0:1 along axis 1", "1:2 along axis 1"],
        ),
        ([make_node("Relu", ["x"], ["z"])], (1, 4, 6), []),
        ([make_node("Add", ["x", "two"], ["z"])], (1, 4, 6), []),
        ([JOINED, make_node("MatMul", ["x", "j"], ["z"])], (1, 4, 6), []),
        (
            [
                make_node("Split", ["x", "halves"], ["a", "b"], axis=1),
                make_node("Concat", ["b", "a"], ["z"], axis=1),
            ],
            (1, 4, 6),
            [],
        ),
        ([make_node("Concat", ["gone", "y"], ["z"], axis=1)], (1, "n", 6), []),
    ],
)
def test_a_part_is_found_through_whatever_moves_or_scales_it(
    tmp_path: Path, nodes: list[Any], shape: tuple[Any, ...], parts: list[str]
) -> None:
    assert list_parts(tmp_path, nodes, shape) == parts


def test_a_choice_between_graphs_is_a_single_part(tmp_path: Path) -> None:
    bodies = {
        name: make_graph([make_node(kind, ["j"], ["b"])], name, [], [tensor("b", (1, 6, 6))])
        for name, kind in (("then_branch", "Relu"), ("else_branch", "Sigmoid"))
    }
    nodes = [JOINED, make_node("If", ["yes"], ["z"], **bodies)]
    assert list_parts(tmp_path, nodes, (1, 6, 6)) == []


def test_operators_have_the_names_of_torch() -> None:
    kinds = ("LeakyRelu", "Concat", "DepthToSpace", "ScatterND", "Sigmoid", "GatherElements")
    names = [name_operator(make_node(kind, [], [])) for kind in kinds]
    assert names == ["leaky_relu", "cat", "pixel_shuffle", "scatter_nd", "sigmoid", "gather"]
