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
    x, w, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in ends)
    weights = onnx.numpy_helper.from_array(np.arange(3, dtype="float32") + 1, "w")
    graph = helper.make_graph(nodes, "graph", [x, w], [y], [weights])
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=3 if opset < 9 else 10)


@pytest.mark.parametrize("opset", [8, 21, 28])
def test_weights_become_constants_and_the_opset_is_converted(tmp_path: Path, opset: int) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(make([helper.make_node("Mul", ["x", "w"], ["y"])], [2, 3], opset=opset), path)
    copy = write_normal_form(path, tmp_path / "copy.onnx")
    model = onnx.load(copy)
    assert [graph_input.name for graph_input in model.graph.input] == ["x"]
    assert model.opset_import[0].version == min(max(opset, 13), 21)
    assert model.ir_version >= 4
    x = np.array([[1, 2, 3], [-1, 0, 1]], "float32")
    ((got,),) = run_reference(copy, [(x,)])
    np.testing.assert_array_equal(got, x * [1, 2, 3])
    assert write_normal_form(copy, tmp_path / "again.onnx") == copy
    assert not (tmp_path / "again.onnx").exists()


def test_external_weights_of_unknown_length_are_moved_into_the_model(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    model = make([helper.make_node("Mul", ["x", "w"], ["y"])], [2, 3])
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    net = onnx.load(path, load_external_data=False)
    del net.graph.input[1:]
    entries = net.graph.initializer[0].external_data
    for entry in list(entries):
        if entry.key != "location":
            entries.remove(entry)
    path.write_bytes(net.SerializeToString())
    copy = write_normal_form(path, tmp_path / "copy.onnx")
    (weights,) = onnx.load(copy, load_external_data=False).graph.initializer
    assert (copy == path, len(weights.external_data)) == (False, 0)
    assert onnx.numpy_helper.to_array(weights).tolist() == [1, 2, 3]


@pytest.mark.parametrize(("opset", "to"), [(11, 13), (22, 21)])
def test_the_opset_of_a_model_with_functions_is_converted(
    tmp_path: Path, opset: int, to: int
) -> None:
    model = make([helper.make_node("Own", ["x"], ["y"], domain="own")], [2, 3], opset=opset)
    del model.graph.input[1:]
    opsets = [helper.make_opsetid("", opset)]
    relu = [helper.make_node("Relu", ["x"], ["y"])]
    model.functions.append(helper.make_function("own", "Own", ["x"], ["y"], relu, opsets))
    model.opset_import.append(helper.make_opsetid("own", 1))
    onnx.save(model, tmp_path / "net.onnx")
    copy = write_normal_form(tmp_path / "net.onnx", tmp_path / "copy.onnx")
    assert onnx.load(copy).opset_import[0].version == to
    ((got,),) = run_reference(copy, [(np.full((2, 3), -1, "float32"),)])
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
    copy = copy_file(tmp_path / "net.onnx", tmp_path / "copy.onnx")
    assert copy == tmp_path / "copy.onnx"
    (tmp_path / "w.bin").unlink()
    x = np.ones((2, 3), "float32")
    ((got,),) = run_reference(copy, [(x,)])
    np.testing.assert_array_equal(got, x * [1, 2, 3])
