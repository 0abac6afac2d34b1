"""What is done to a model before QNN sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import numpy as np
import onnx
from onnx import TensorProto, helper

from ci.onnx.compile import run_reference
from ci.onnx.preparation import copy_file, write_normal_form


def make(nodes: list[onnx.NodeProto], shape: list[int], *, opset: int = 21) -> onnx.ModelProto:
    """From x [2, 3] to y, with weights w [3] that are an input, too, as before IR version 4."""
    ends = [("x", [2, 3]), ("w", [3]), ("y", shape)]
    x, w, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, one) for name, one in ends)
    weights = onnx.numpy_helper.from_array(np.arange(3, dtype="float32") + 1, "w")
    graph = helper.make_graph(nodes, "graph", [x, w], [y], [weights])
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=3 if opset < 9 else 10)


@pytest.mark.parametrize("opset", [8, 21, 28])
def test_weights_become_constants_and_the_opset_is_converted(tmp_path: Path, opset: int) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(make([helper.make_node("Mul", ["x", "w"], ["y"])], [2, 3], opset=opset), path)
    made = write_normal_form(path, tmp_path / "copy.onnx")
    model = onnx.load(made)
    assert [one.name for one in model.graph.input] == ["x"]
    assert model.opset_import[0].version == min(max(opset, 13), 21)
    assert model.ir_version >= 4
    x = np.array([[1, 2, 3], [-1, 0, 1]], "float32")
    ((got,),) = run_reference(made, [(x,)])
    np.testing.assert_array_equal(got, x * [1, 2, 3])
    assert write_normal_form(made, tmp_path / "again.onnx") == made
    assert not (tmp_path / "again.onnx").exists()


def test_external_weights_of_unknown_length_are_moved_into_the_model(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = make([helper.make_node("Mul", ["x", "w"], ["y"])], [2, 3])
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    held = onnx.load(path, load_external_data=False)
    del held.graph.input[1:]
    for one in [one for one in held.graph.initializer[0].external_data if one.key != "location"]:
        held.graph.initializer[0].external_data.remove(one)
    path.write_bytes(held.SerializeToString())
    made = write_normal_form(path, tmp_path / "copy.onnx")
    (weights,) = onnx.load(made, load_external_data=False).graph.initializer
    assert (made == path, len(weights.external_data)) == (False, 0)
    assert onnx.numpy_helper.to_array(weights).tolist() == [1, 2, 3]


@pytest.mark.parametrize(("opset", "to"), [(11, 13), (22, 21)])
def test_the_opset_of_a_model_with_functions_is_converted(
    tmp_path: Path, opset: int, to: int
) -> None:
    model = make([helper.make_node("Own", ["x"], ["y"], domain="own")], [2, 3], opset=opset)
    del model.graph.input[1:]
    own = [helper.make_opsetid("", opset)]
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    model.functions.append(helper.make_function("own", "Own", ["x"], ["y"], relu, own))
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, tmp_path / "net.onnx")
    made = write_normal_form(tmp_path / "net.onnx", tmp_path / "copy.onnx")
    assert onnx.load(made).opset_import[0].version == to
    ((got,),) = run_reference(made, [(np.full((2, 3), -1, "float32"),)])
    np.testing.assert_array_equal(got, np.zeros((2, 3)))


def test_a_copy_has_its_weights_in_one_file(tmp_path: Path) -> None:
    model = make([helper.make_node("Mul", ["x", "w"], ["y"])], [2, 3])
    onnx.save(
        model,
        tmp_path / "net.onnx",
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    made = copy_file(tmp_path / "net.onnx", tmp_path / "copy.onnx")
    assert made == tmp_path / "copy.onnx"
    (tmp_path / "w.bin").unlink()
    x = np.ones((2, 3), "float32")
    ((got,),) = run_reference(made, [(x,)])
    np.testing.assert_array_equal(got, x * [1, 2, 3])
