"""Each rewrite of an ONNX model: the operators that it leaves, the same outputs in float32, and
look-alikes that it leaves alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")
import onnx
from onnx import numpy_helper, parser, shape_inference

from ci.graphs.onnx_session import open_reference
from ci.mend.graph_rewrites import DEFINITIONS
from ci.mend.onnx_rewrites import REWRITES
from ci.mend.table import read_rewrites

ATTENTION = "{} p = Softmax<axis=-1>(m) y = MatMul(p, v)"
TRIANGLE = np.triu(np.ones((12, 12), bool), 1)


class Row(NamedTuple):
    """A row of onnx_rewrites.toml."""

    rewrite: str
    shape: str
    constants: Mapping[str, Any]
    body: str
    left: str = ""
    opset: int = 17


def read_rows(kind: str) -> list[Row]:
    text = Path(__file__).with_name("onnx_rewrites.toml").read_text()
    return [Row(*fields) for fields in msgspec.toml.decode(text)[kind]]


def make_constant(description: Any) -> Any:
    if not isinstance(description, str):
        value = np.asarray(description)
    elif description == "triangle":
        value = TRIANGLE
    elif description.startswith("triangle"):
        value = np.where(TRIANGLE, *map(float, description.split()[1:]))
    else:
        shape, _, fill = description.partition("=")
        sizes = [*map(int, shape.split(","))]
        random = np.random.default_rng(len(description) + sum(sizes)).standard_normal(sizes) / 2
        value = np.full(sizes, float(fill)) if fill else random
    return value.astype(np.float32) if value.dtype == np.float64 else value


def make_model(row: Row) -> onnx.ModelProto:
    graph = parser.parse_graph(f"g (float[{row.shape}] x) => (float y) {{ {row.body} }}")
    values = ((name, make_constant(description)) for name, description in row.constants.items())
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values)
    graph.output[0].type.tensor_type.ClearField("shape")
    for node in graph.node:
        if "kept" in node.output:
            port = onnx.helper.make_tensor_value_info("kept", onnx.TensorProto.FLOAT, None)
            graph.output.append(port)
    imports = [onnx.helper.make_opsetid("", row.opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)
    return shape_inference.infer_shapes(model, data_prop=True)


def run(model: onnx.ModelProto, path: Any, x: Any) -> list[Any]:
    onnx.save(model, path)
    return list(open_reference(path).run(None, {"x": x}))


@pytest.mark.parametrize("row", read_rows("changed"), ids=lambda row: row.rewrite)
def test_an_onnx_rewrite_computes_the_same_function(row: Row, tmp_path: Any) -> None:
    model = make_model(row)
    shape = [*map(int, row.shape.split(","))]
    inputs = [np.random.default_rng(9).standard_normal(shape) * size for size in (1, 0, 5)]
    feeds = [array.astype(np.float32) for array in inputs]
    right = [run(model, tmp_path / "model.onnx", feed) for feed in feeds]
    ports = [output.SerializeToString() for output in model.graph.output]
    changes = REWRITES[row.rewrite](model)

    assert " ".join(node.op_type for node in model.graph.node) == row.left
    assert [output.SerializeToString() for output in model.graph.output] == ports
    assert len(changes) == 1
    for right_outputs, feed in zip(right, feeds, strict=True):
        outputs = run(model, tmp_path / "new.onnx", feed)
        for value, output in zip(right_outputs, outputs, strict=True):
            np.testing.assert_allclose(output, value, rtol=1e-5, atol=1e-5 * np.abs(value).max())


MASKED = [
    "m = Where(b, f, x)",
    "m = Where(k, x, f)",
    "m = Add(c, x)",
    "m = Sub(x, d)",
    "q = Mul(o, f) r = Unsqueeze(q, a) z = Reshape(r, s) m = Add(x, z)",
]


@pytest.mark.parametrize("fill", [-1e4, np.finfo(np.float32).min, -np.inf])
@pytest.mark.parametrize("body", MASKED)
def test_a_rewritten_attention_mask_has_size_30_and_still_masks(
    body: str, fill: float, tmp_path: Any
) -> None:
    values = {"b": "triangle", "k": ~TRIANGLE, "f": float(fill), "c": f"triangle {fill} 0"}
    values |= {"d": f"triangle {-fill} 0", "o": "triangle 1 0"}
    values |= {"a": [0], "s": [1, 12, 12], "v": "12,8"}
    if "Mul" in body and np.isinf(fill):
        return  # 0 * inf is not a number
    model = make_model(Row("", "1,12,12", values, ATTENTION.format(body)))
    x = np.random.default_rng(2).standard_normal((1, 12, 12)).astype(np.float32)
    (right,) = run(model, tmp_path / "model.onnx", x)
    (change,) = REWRITES["mask-of-30"](model)

    constants = map(numpy_helper.to_array, model.graph.initializer)
    sizes = [np.abs(constant).max() for constant in constants if constant.dtype == np.float32]
    assert max(sizes) == 30.0
    (rewritten,) = run(model, tmp_path / "new.onnx", x)
    np.testing.assert_allclose(rewritten, right, rtol=1e-5, atol=1e-5)
    assert change.after.endswith("30")


@pytest.mark.parametrize("row", read_rows("alike"), ids=lambda row: row.rewrite)
def test_onnx_graphs_that_only_resemble_a_pattern_are_left_unchanged(row: Row) -> None:
    model = make_model(row)
    before = model.SerializeToString()
    assert REWRITES[row.rewrite](model) == ()
    assert model.SerializeToString() == before


def test_a_shared_constant_keeps_its_value_for_others() -> None:
    body = ATTENTION.format("m = Add(x, c)") + " kept = Add(x, c)"
    model = make_model(Row("", "1,12,12", {"c": "triangle -1e4 0", "v": "12,8"}, body))
    assert REWRITES["mask-of-30"](model)
    sums = [node.input[1] for node in model.graph.node if node.op_type == "Add"]
    lowest = {
        initializer.name: numpy_helper.to_array(initializer).min()
        for initializer in model.graph.initializer
    }
    assert [lowest[name] for name in sums if name in lowest] == [-30.0, -1e4]


def test_each_row_has_a_function_and_each_function_a_row() -> None:
    names = {rewrite.name for rewrite in read_rewrites("onnx")}
    assert names <= REWRITES.keys()
    # A rewrite of both lanes may be of use in the other one only.
    only_there = {rewrite.name for rewrite in read_rewrites("torch")} & DEFINITIONS.keys()
    assert REWRITES.keys() <= names | only_there
