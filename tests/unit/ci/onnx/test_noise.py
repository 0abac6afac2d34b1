"""Predicted noise of ONNX models, and which indices and booleans it may change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")
from onnx import TensorProto, helper, numpy_helper, save

from ci.onnx.compile import find_ties


@pytest.mark.parametrize(
    ("bits", "gap", "tied"),
    [(8, 0.02, True), (8, 1.0, False), (16, 0.02, True), (16, 0.1, False), (0, 0.1, False)],
)
def test_an_argmax_is_a_tie_if_its_operands_differ_by_little(
    tmp_path: Path, bits: int, gap: float, tied: bool
) -> None:
    logits = np.array([[0.0, 1.0, 1.0 - gap, -1.0, -2.0]], np.float32)
    nodes = [
        helper.make_node("Mul", ["x", "one"], ["logits"]),
        helper.make_node("ArgMax", ["logits"], ["index"], axis=1, keepdims=0),
        helper.make_node("Greater", ["logits", "one"], ["above"]),
    ]
    kinds = {"logits": TensorProto.FLOAT, "index": TensorProto.INT64, "above": TensorProto.BOOL}
    model_input = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 5])
    model_outputs = [
        helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()
    ]
    constant_one = numpy_helper.from_array(np.float32(1), "one")
    graph = helper.make_graph(nodes, "choices", [model_input], model_outputs, [constant_one])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "m.onnx")
    right = [(logits, np.array([1]), logits > 1)]
    model, target = tmp_path / "m.onnx", tmp_path / "disturbed.onnx"
    low, high = find_ties(model, target, [(logits,)], right, bits)
    assert np.array_equal(low[0][0], logits)
    assert (low[0][1].tolist(), high[0][1].tolist()) == ([1], [2 if tied else 1])
    assert high[0][2][0, 1]  # it equals the bound
    assert low[0][2].dtype == bool
    assert not high[0][2][0, [0, 3, 4]].any()
