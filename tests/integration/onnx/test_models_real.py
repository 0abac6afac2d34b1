"""The reader of ONNX files against the onnx package, and the limits against ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import onnx
import onnxruntime

from ci.onnx.files.faults import BITS, NEWEST_IR, NEWEST_OPSET, STRING
from ci.onnx.models import check_model, external_files, read_model
from provisioning.console.process import run_process
from provisioning.errors import UsageError
from tests.qnn_provider import raw
from tests.qnn_provider.models import constant, tensor, write_conv, write_model

CPU = ["CPUExecutionProvider"]


def load(path: Path) -> str:
    """What ONNX Runtime says of a model; empty when it takes it."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(str(path), settings, providers=CPU)
    except Exception as error:  # noqa: BLE001 - of many kinds
        return str(error) or type(error).__name__
    return ""


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_the_newest_versions_are_those_of_onnxruntime(tmp_path: Path) -> None:
    for ir, opset, fits in (
        (NEWEST_IR, NEWEST_OPSET, True),
        (NEWEST_IR + 1, NEWEST_OPSET, False),
        (NEWEST_IR, NEWEST_OPSET + 1, False),
    ):
        path = write(tmp_path / "m.onnx", raw.model(raw.relu_graph(), ir=ir, opsets={"": opset}))
        assert (load(path) == "") == fits
        if fits:
            check_model(path)
        else:
            with pytest.raises(UsageError, match="ONNX Runtime takes 1 to"):
                check_model(path)


def test_sizes_of_elements_are_those_of_onnx() -> None:
    six_bits = {onnx.TensorProto.FLOAT6E2M3, onnx.TensorProto.FLOAT6E3M2}  # unlike all others
    kinds = {kind for kind in onnx.TensorProto.DataType.values() if kind} - {STRING, *six_bits}
    assert kinds == BITS.keys()
    for kind in kinds:
        weight = onnx.TensorProto(dims=[8], data_type=kind, raw_data=bytes(BITS[kind]))
        assert onnx.numpy_helper.to_array(weight).size == 8


def test_a_model_is_read_as_the_onnx_package_reads_it(tmp_path: Path) -> None:
    """Also with its weights beside it, and with every part that a test writes byte by byte."""
    path = write_conv(tmp_path / "conv.onnx")
    theirs, ours = onnx.load(path), check_model(path)
    assert [node.op_type for node in theirs.graph.node] == [one.op_type for one in ours.graph.nodes]
    assert {one.name: tuple(one.dims) for one in theirs.graph.initializer} == {
        one.name: one.dims for one in ours.graph.tensors
    }
    assert ours.opsets == {one.domain: one.version for one in theirs.opset_import}
    assert (ours.graph.inputs[0].dims, ours.graph.inputs[0].kind) == ((1, 3, 8, 8), 1)
    beside = tmp_path / "beside.onnx"
    onnx.save(theirs, beside, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert external_files(beside) == [tmp_path / "w.bin"]
    assert read_model(beside).graph.name == "graph"
    (tmp_path / "w.bin").write_bytes(b"")
    with pytest.raises(UsageError, match=r"which has 0"):
        check_model(beside)
    bytewise = onnx.load_from_string(raw.relu(inputs=[raw.port("x", ["batch", None, 3])]))
    (port,) = bytewise.graph.input
    assert [dim.dim_param or dim.dim_value for dim in port.type.tensor_type.shape.dim] == [
        "batch",
        0,
        3,
    ]


def test_models_of_other_kinds_are_let_through(tmp_path: Path) -> None:
    """A function of its own, a condition, a sparse weight, strings and half a byte."""
    make = onnx.helper.make_node
    own = onnx.helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [make("Add", ["a", "a"], ["b"])],
        [onnx.helper.make_opsetid("", 21)],
    )
    nodes = [make("Twice", ["x"], ["y"], domain="mine")]
    graph = onnx.helper.make_graph(nodes, "g", [tensor("x", [2])], [tensor("y", [2])])
    imports = [onnx.helper.make_opsetid(domain, 21) for domain in ("", "mine")]
    path = tmp_path / "function.onnx"
    onnx.save(
        onnx.helper.make_model(graph, functions=[own], opset_imports=imports, ir_version=10), path
    )
    check_model(path)
    assert load(path) == ""

    weights = [
        onnx.helper.make_tensor("text", onnx.TensorProto.STRING, [2], [b"a", b"b"]),
        onnx.helper.make_tensor("small", onnx.TensorProto.UINT4, [3], [1, 2, 3]),
        onnx.helper.make_tensor("typed", onnx.TensorProto.FLOAT, [2], [1.0, 2.0]),
        constant("none", [], "float32"),
    ]
    relu = [make("Relu", ["x"], ["y"])]
    write_model(path, relu, [tensor("x", [2])], [tensor("y", [2])], weights)
    check_model(path)
    assert load(path) == ""


def test_the_command_that_fixes_a_shape_does(tmp_path: Path) -> None:
    data = raw.relu(inputs=[raw.port("x", ["batch", 3])])
    path = write(tmp_path / "m.onnx", data)
    with pytest.raises(UsageError) as caught:
        check_model(path)
    words = caught.value.fix.split("python -m ")[1].split()
    run_process([sys.executable, "-m", *words], cwd=tmp_path)
    assert check_model(tmp_path / "fixed.onnx").graph.inputs[0].dims == (1, 3)


def test_a_link_out_of_the_directory_is_refused_by_both(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(12))
    (folder / "link").symlink_to(tmp_path / "secret")
    weight = raw.tensor("w", [1, 3], external={"location": "link"})
    data = raw.relu(nodes=[raw.node("Add", ["x", "w"], ["y"])], tensors=[weight])
    with pytest.raises(UsageError, match="symbolic link"):
        check_model(write(folder / "m.onnx", data))
    assert "escapes model directory" in load(folder / "m.onnx")
