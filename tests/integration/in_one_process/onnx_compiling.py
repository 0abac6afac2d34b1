"""What is done to a model before QNN sees it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import numpy as np
import onnx
from onnx import TensorProto, helper

from ci.cases.engine import FLOAT, QUANTIZED, Delegation, Staging
from ci.cases.spec import CaseSpec
from ci.models.schemes import Scheme
from ci.models.tensors import digest_sets, read_sets
from ci.models.user_models import Source
from ci.onnx import compile as compiling
from ci.onnx.compile import compile_source, digest_source, require_export, run_reference
from ci.onnx.preparation import copy_file, find_joined, write_normal_form
from ci.onnx.source import from_file, list_inputs, make_sets
from ci.report.schema import Footprint
from provisioning.errors import FailedError, UsageError


def make(nodes: list[onnx.NodeProto], shape: list[int], *, opset: int = 21) -> onnx.ModelProto:
    """From x [2, 3] to y, with weights w [3] that are an input, too, as before IR version 4."""
    ends = [("x", [2, 3]), ("w", [3]), ("y", shape)]
    x, w, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, one) for name, one in ends)
    weights = onnx.numpy_helper.from_array(np.arange(3, dtype="float32") + 1, "w")
    graph = helper.make_graph(nodes, "graph", [x, w], [y], [weights])
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=3 if opset < 9 else 10)


@pytest.mark.parametrize("opset", [8, 21, 28])
def test_weights_become_constants_and_another_opset_one_that_runs(
    tmp_path: Path, opset: int
) -> None:
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


def test_weights_whose_length_is_not_stated_become_part_of_the_model(tmp_path: Path) -> None:
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
def test_another_opset_alone_is_converted_with_functions(
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


@pytest.mark.parametrize(
    ("nodes", "shape", "joined"),
    [
        ([helper.make_node("Concat", ["x", "x"], ["y"], axis=-1)], [2, 6], (1, (3, 3))),
        (
            [
                helper.make_node("Concat", ["x", "x", "x"], ["a"], axis=0),
                helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0]),
                helper.make_node("Identity", ["b"], ["y"]),
            ],
            [3, 6],
            (1, (2, 2, 2)),
        ),
        (
            [
                helper.make_node("Constant", [], ["s"], value_ints=[1, 2, 3]),
                helper.make_node("Reshape", ["x", "s"], ["a"]),
                helper.make_node("Concat", ["a", "a"], ["b"], axis=0),
                helper.make_node("Transpose", ["b"], ["c"], perm=[1, 2, 0]),
                helper.make_node("Transpose", ["c"], ["y"], perm=[1, 0, 2]),
            ],
            [3, 2, 2],
            (2, (1, 1)),
        ),
        ([helper.make_node("Mul", ["x", "w"], ["y"])], [2, 3], (0, ())),
    ],
)
def test_outputs_that_are_concatenations_are_found(
    nodes: list[onnx.NodeProto], shape: list[int], joined: tuple[int, tuple[int, ...]]
) -> None:
    assert find_joined(make(nodes, shape)) == [joined]


@pytest.mark.parametrize(
    ("nodes", "joined"),
    [
        ([("Concat", ["x", "x"], ["y"], 0)], (0, (2, 2))),
        ([("Concat", ["x"], ["y"], 0)], (0, ())),
        ([("Concat", ["x", "w"], ["y"], 0)], (0, ())),  # of other ranks
        ([("Concat", ["x", "x"], ["a"], 0), ("Relu", ["a"], ["y"], None)], (0, ())),
        ([("Concat", ["x", "x"], ["a"], 1), ("Transpose", ["a"], ["y"], None)], (0, (3, 3))),
        ([("Concat", ["x", "x"], ["a"], 1), ("Identity", ["a"], ["y"], None)], (1, (3, 3))),
        ([("Transpose", ["x"], ["y"], None)], (0, ())),
        ([("Concat", ["x", "gone"], ["y"], 0)], (0, ())),  # of no known shape
    ],
)
def test_what_counts_as_a_concatenation(
    nodes: list[Any], joined: tuple[int, tuple[int, ...]]
) -> None:
    made = [
        helper.make_node(kind, before, after, **({} if axis is None else {"axis": axis}))
        for kind, before, after, axis in nodes
    ]
    model = make(made, [1])
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert find_joined(model) == [joined]


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


def test_data_beside_a_file_has_to_fit_it_and_decides_its_digest(tmp_path: Path) -> None:
    model = make([helper.make_node("Mul", ["x", "w"], ["y"])], [2, 3])
    path, folder = tmp_path / "net.onnx", tmp_path / "test_data_set_0"
    onnx.save(model, path)
    alone = from_file(path, model, [])
    assert len(alone.evaluation) == 4
    folder.mkdir()
    row = np.ones((2, 3), "float32")

    def write(array: np.ndarray) -> None:
        data = onnx.numpy_helper.from_array(array, "x").SerializeToString()
        (folder / "input_0.pb").write_bytes(data)

    write(row)
    given = from_file(path, model, [])
    np.testing.assert_array_equal(given.evaluation[0][0], row)
    assert given.digest != alone.digest
    write(row.astype("float64"))
    with pytest.raises(UsageError, match="test_data_set_0 does not match the model") as caught:
        from_file(path, model, [])
    assert "float64[2, 3]" in caught.value.why
    assert "x float32[2, 3]" in caught.value.fix
    (folder / "input_0.pb").unlink()
    with pytest.raises(UsageError, match=r"cannot read the input .*input_0\.pb"):
        from_file(path, model, [])


def test_the_weights_of_a_file_have_a_digest_that_its_inputs_do_not_change(tmp_path: Path) -> None:
    digests = []
    for name, weight, start in (("a", 1, 0), ("b", 1, 5), ("c", 1.05, 0)):
        path = tmp_path / f"{name}.onnx"
        model = make([helper.make_node("Mul", ["x", "w"], ["y"])], [2, 3])
        (held,) = model.graph.initializer
        values = onnx.numpy_helper.to_array(held) * np.float32(weight)
        held.CopyFrom(onnx.numpy_helper.from_array(values, "w"))
        onnx.save(model, path)
        np.savez(path.with_suffix(".npz"), x=np.full((4, 2, 3), start, "float32"))
        source = from_file(path, model, [])
        digests.append((digest_source(source), digest_sets(source.evaluation)))
    assert digests[0][0] == digests[1][0] != digests[2][0]
    assert digests[0][1] == digests[2][1] != digests[1][1]


def test_random_inputs_are_seeded_and_integers_small() -> None:
    inputs = list_inputs(make([helper.make_node("Mul", ["x", "w"], ["y"])], [2, 3]))
    assert list(inputs) == ["x"]
    wanted = {**inputs, "ids": (np.dtype("int64"), (9,)), "mask": (np.dtype("bool"), (9,))}
    first, again = (make_sets(wanted, (), {}, 2, 1) for _ in range(2))
    for one, other in zip(first[1], again[1], strict=True):
        np.testing.assert_array_equal(one, other)
    assert [array.dtype.name for array in first[0]] == ["float32", "int64", "bool"]
    assert 0 <= first[0][1].min() <= first[0][1].max() < 4


@pytest.mark.parametrize("off", [0.1, float("nan")])
def test_an_export_that_gives_anything_else_is_refused(off: float) -> None:
    right = (np.arange(6, dtype="float32").reshape(2, 3),)
    source: Any = SimpleNamespace(reference=(right, right))
    require_export(source, [right, right])
    with pytest.raises(FailedError):
        require_export(source, [right, (right[0] + np.float32(off),)])


def test_a_quantized_file_is_judged_by_the_float_model_that_it_was_made_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def write_context(model: Path, directory: Path, *_: Any, **__: Any) -> Any:
        directory.mkdir()
        (directory / compiling.CONTEXT).write_bytes(model.read_bytes())
        return Delegation(1, 0, 1), Footprint()

    monkeypatch.setattr(compiling, "write_context", write_context)
    own, plain = tmp_path / "own.onnx", tmp_path / "float.onnx"
    for path, operator in ((own, "Mul"), (plain, "Add")):
        onnx.save(make([helper.make_node(operator, ["x", "w"], ["y"])], [2, 3]), path)
    for given, add in (("", False), (str(plain), True)):
        spec = CaseSpec("net", Scheme.ASIS, "SM8650", Source(str(own), float_model=given))
        source = from_file(own, onnx.load(own), [], spec.source)
        work = tmp_path / f"work{add}"
        work.mkdir()
        staging = Staging(work / "staging", work / "log", tmp_path)
        staging.directory.mkdir()
        made = compile_source(source, spec, staging, {}, embed=True, saver="")
        (x,), *_ = source.evaluation
        weights = np.float32([1, 2, 3])
        wanted = x + weights if add else x * weights
        ((float32,), *_), ((quantized,), *_) = (
            read_sets(staging.directory / kind, made.outputs, made.sets)
            for kind in (FLOAT, QUANTIZED)
        )
        np.testing.assert_allclose(float32, wanted, rtol=1e-6)
        np.testing.assert_allclose(quantized, x * weights, rtol=1e-6)


def test_ranges_are_of_the_calibration_and_outputs_of_the_other_sets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def quantize_file(model: Path, quantized: Path, scheme: Scheme, sets: Any) -> None:
        asked.append((scheme, sets))
        quantized.write_bytes(model.read_bytes())

    def write_context(model: Path, directory: Path, *_: Any, **__: Any) -> Any:
        directory.mkdir()
        (directory / compiling.CONTEXT).write_bytes(model.read_bytes())
        return Delegation(1, 0, 1), Footprint()

    monkeypatch.setattr(compiling, "quantize_file", quantize_file)
    monkeypatch.setattr(compiling, "write_context", write_context)
    path = tmp_path / "net.onnx"
    onnx.save(make([helper.make_node("Mul", ["x", "w"], ["y"])], [2, 3]), path)
    spec = CaseSpec("net", Scheme.U8, "SM8650", Source(str(path)))
    source = from_file(path, onnx.load(path), [], spec.source)
    calibration = [(np.full((2, 3), 9, "float32"),)]
    source = replace(source, calibration=calibration)
    staging = Staging(tmp_path / "staging", tmp_path / "log", tmp_path)
    staging.directory.mkdir()
    made = compile_source(source, spec, staging, {}, embed=True, saver="")
    assert asked == [(Scheme.U8, calibration)]
    assert made.sets == len(source.evaluation)
