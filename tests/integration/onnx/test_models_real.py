"""Which models are refused before ONNX Runtime sees them, and which it refuses itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import onnx
import onnxruntime
from onnx import TensorProto, helper

from ci.onnx.models import NEWEST_IR, NEWEST_OPSET, external_files, read_model
from provisioning.errors import UsageError
from tests.qnn_provider.models import build_model, constant, tensor, write_conv, write_model

CPU = ["CPUExecutionProvider"]
SHAPE = (1, 3)
ENDS = [tensor("x", SHAPE)], [tensor("y", SHAPE)]
make = helper.make_node
RELU = make("Relu", ["x"], ["y"])
SUM = make("Add", ["x", "w"], ["y"])


def load(path: Path) -> str:
    """What ONNX Runtime says of a model; empty when it takes it."""
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(str(path), settings, providers=CPU)
    except Exception as error:  # noqa: BLE001 - of many kinds
        return str(error) or type(error).__name__
    return ""


@pytest.mark.parametrize(("ir", "opset"), [(0, 0), (1, 0), (0, 1)])
def test_the_newest_accepted_ir_and_opset_are_those_of_onnxruntime(
    tmp_path: Path, ir: int, opset: int
) -> None:
    """``ir`` and ``opset`` are added to the newest accepted versions."""
    versions = {"ir": NEWEST_IR + ir, "opset": NEWEST_OPSET + opset}
    path = write_model(tmp_path / "m.onnx", [RELU], *ENDS, **versions)
    if ir or opset:
        assert load(path)
        with pytest.raises(UsageError):
            read_model(path)
    else:
        assert load(path) == ""
        read_model(path)


def weight(location: str = "", dims: Sequence[int] = SHAPE, **fields: Any) -> TensorProto:
    """w, with its data in a file if a ``location`` is given."""
    proto = TensorProto(name="w", dims=dims, data_type=1, **fields)
    if location:
        proto.data_location = TensorProto.EXTERNAL
        proto.external_data.add(key="location", value=location)
    return proto


def test_models_that_onnxruntime_loads_are_accepted(tmp_path: Path) -> None:
    """A function, nodes in any order, an output without a shape, weights of many kinds."""
    path = tmp_path / "m.onnx"
    opset = helper.make_opsetid("", 21)
    function = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [make("Add", "aa", "b")], [opset]
    )
    model = build_model([make("Twice", ["x"], ["y"], domain="mine")], *ENDS)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("mine", 1))
    weights = [
        helper.make_tensor("text", TensorProto.STRING, [2], [b"a", b"b"]),
        helper.make_tensor("small", TensorProto.UINT4, [3], [1, 2, 3]),
        helper.make_tensor("typed", TensorProto.FLOAT, [2], [1.0, 2.0]),
        constant("none", [], "float32"),
    ]
    shapeless = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    unsorted = [make("Relu", ["a"], ["y"]), make("Relu", ["x"], ["a"])]
    for taken in (
        model,
        build_model([RELU], *ENDS, weights),
        build_model(unsorted, *ENDS),
        build_model([RELU], ENDS[0], shapeless),
    ):
        path.write_bytes(taken.SerializeToString())
        read_model(path)
        assert load(path) == ""


def test_external_weight_files_of_a_model_are_listed_or_reported_missing(tmp_path: Path) -> None:
    conv = onnx.load(write_conv(tmp_path / "conv.onnx"))
    path = tmp_path / "two.onnx"
    onnx.save(conv, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert external_files(read_model(path), path) == [tmp_path / "w.bin"]
    assert load(path) == ""
    (tmp_path / "w.bin").unlink()
    with pytest.raises(UsageError, match=r"w\.bin"):
        read_model(path)


def test_a_weight_file_linked_out_of_the_directory_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(12))
    (folder / "link").symlink_to(tmp_path / "secret")
    path = write_model(folder / "m.onnx", [SUM], *ENDS, [weight("link")])
    with pytest.raises(UsageError, match="symbolic link"):
        read_model(path)
    assert "escapes model directory" in load(path)
