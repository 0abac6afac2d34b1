"""Predicted noise of ONNX models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")
from onnx import TensorProto, helper, numpy_helper, save

from ci.onnx.noise import predict_noise


def test_the_state_of_an_lstm_errs_by_its_size(tmp_path: Path) -> None:
    gates = np.zeros((1, 16), np.float32)
    gates[0, 4:6] = 9  # the forget gate keeps the state
    constants = {
        "w": np.zeros((1, 8, 1), np.float32),
        "r": np.zeros((1, 8, 2), np.float32),
        "b": gates,
        "h": np.zeros((1, 1, 2), np.float32),
    }
    names = ["x", "w", "r", "b", "", "h", "c"]
    node = helper.make_node("LSTM", names, ["", "hidden", "state"], hidden_size=2)
    kinds = {name: (TensorProto.FLOAT, [1, 1, 2]) for name in ("c", "hidden", "state")}
    values = {name: helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()}
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1])
    graph = helper.make_graph(
        [node],
        "lstm",
        [given, values["c"]],
        [values["hidden"], values["state"]],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    file = tmp_path / "lstm.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    sets = [(np.ones((1, 1, 1), np.float32), np.asarray([[[64, 0.5]]], np.float32))] * 20
    right = [(np.zeros((1, 1, 2), np.float32), sets[0][1])] * 20
    hidden, state = predict_noise(file, tmp_path / "noisy.onnx", sets, right)
    large, small = np.std(state, axis=(0, 1, 2, 3))
    assert 20 < large / small < 80
    assert np.abs(hidden - hidden.mean(1, keepdims=True)).max() < 2**-7
