"""The inputs of a user's .onnx: next to the model, in a policy, or made; which have to fit it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="onnx is not installed")

import numpy as np
import onnx
from onnx import TensorProto, helper

from ci.models import user_models
from ci.models.file_samples import RANDOM_IDS, fit_sets, make_sets
from ci.models.user_models import RANDOM, SHUFFLED
from ci.onnx.source import (
    Source,
    find_rates,
    from_file,
    list_inputs,
    read_beside,
    read_float,
)
from provisioning.errors import UsageError
from tests.qnn_provider.models import tensor
from tests.stand_ins.snapshots import check_results

SNAPSHOTS = Path(__file__).with_name("snapshots")

INPUTS = {"x": (np.dtype("float32"), (2, 3)), "ids": (np.dtype("int64"), (4,))}


def write(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path.with_suffix(".npz"), **arrays)
    return path


def count(sets: int, start: float = 0) -> np.ndarray:
    """Samples of x [2, 3] whose first elements are ``start``, ``start`` + 1 ..."""
    rows = np.arange(6, dtype="float32").reshape(2, 3) / 10
    return np.stack([rows + start + number for number in range(sets)])


def first(sets: tuple[tuple[np.ndarray, ...], ...]) -> list[float]:
    return [float(arrays[0].flat[0]) for arrays in sets]


def load(folder: Path, *nodes: onnx.NodeProto, rate: str = "", **data: str) -> Source:
    """A model of x [2, 3] and, if it has one, a sampling rate."""
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])]
    if rate:
        ports.append(helper.make_tensor_value_info(rate, TensorProto.INT64, []))
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    body = [helper.make_node("Relu", ["x"], ["y"]), *nodes]
    graph = helper.make_graph(body, "graph", ports, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model.metadata_props.extend(
        onnx.StringStringEntryProto(key=key, value=value)
        for key, value in data.items()
        if key not in {"calibration", "inputs"}
    )
    onnx.save(model, folder / "net.onnx")
    policy_source = user_models.Source("", data.get("calibration", ""), data.get("inputs", ""))
    return from_file(folder / "net.onnx", model, [], policy_source)


def test_the_inputs_and_calibration_of_a_policy_replace_the_sets_next_to_the_model(
    tmp_path: Path,
) -> None:
    write(tmp_path / "net.onnx", x=count(9, 500))
    np.save(tmp_path / "images.npy", count(6, 100))
    np.savez(tmp_path / "ranges.npz", x=count(3, 200))
    images, ranges = str(tmp_path / "images.npy"), str(tmp_path / "ranges.npz")
    with_both = load(tmp_path, inputs=images, calibration=ranges)
    assert first(with_both.evaluation) == [100, 101, 102, 103, 104, 105]
    assert first(with_both.calibration) == [200, 201, 202]
    assert (with_both.made_inputs, with_both.made_calibration) == ("", "")
    judged = load(tmp_path, inputs=images)
    assert first(judged.evaluation) == first(with_both.evaluation)
    assert first(judged.calibration) == list(range(500, 509))
    calibrated = load(tmp_path, calibration=ranges)
    assert first(calibrated.evaluation) == [500, 501, 502, 503]
    assert first(calibrated.calibration) == [200, 201, 202]
    assert len({source.digest for source in (with_both, judged, calibrated)}) == 3


@pytest.mark.parametrize(
    ("put", "why"),
    [
        (os.mkfifo, "it is a pipe"),
        (Path.mkdir, "it is a directory"),
        (lambda path: path.symlink_to("not-fetched"), "No such file"),
    ],
)
def test_samples_that_cannot_be_read_are_refused_and_not_replaced_by_random_ones(
    tmp_path: Path, put: Callable[[Path], object], why: str
) -> None:
    put(tmp_path / "net.npz")
    with pytest.raises(UsageError, match=r"net\.npz") as refusal:
        load(tmp_path)
    assert why in refusal.value.why


def test_a_judged_set_is_calibrated_on_only_if_the_policy_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "net.onnx", x=count(6)).with_suffix(".npz")
    split = load(tmp_path)
    assert (first(split.evaluation), first(split.calibration)) == ([0, 1, 2, 3], [4, 5])
    by_policy = load(tmp_path, inputs=str(path))
    assert len(by_policy.evaluation) == 6
    assert by_policy.made_calibration == SHUFFLED
    np.save(tmp_path / "others.npy", count(4, 100))
    other_inputs = load(tmp_path, inputs=str(tmp_path / "others.npy"))
    assert first(other_inputs.calibration) == [0, 1, 2, 3, 4, 5]
    twice = count(6)
    twice[4] = twice[1]  # a set that is judged, again
    write(tmp_path / "net.onnx", x=twice)
    assert first(load(tmp_path).calibration) == [5]
    write(tmp_path / "net.onnx", x=count(6))
    calibrated = load(tmp_path, inputs=str(path), calibration=str(path))
    assert first(calibrated.calibration) == first(calibrated.evaluation)
    assert calibrated.made_calibration == ""


@pytest.mark.parametrize(
    ("sets", "made_inputs", "made_calibration"),
    [(0, RANDOM, RANDOM), (2, SHUFFLED, SHUFFLED), (4, "", SHUFFLED), (5, "", "")],
)
def test_a_source_records_that_inputs_were_random_or_shuffled(
    tmp_path: Path, sets: int, made_inputs: str, made_calibration: str
) -> None:
    if sets:
        write(tmp_path / "net.onnx", x=count(sets, 100))
    source = load(tmp_path)
    assert (source.made_inputs, source.made_calibration) == (made_inputs, made_calibration)
    assert len(source.evaluation) == 4
    assert len(source.calibration) == (1 if sets == 5 else 8)
    judged = {arrays[0].tobytes() for arrays in source.evaluation}
    assert not judged & {arrays[0].tobytes() for arrays in source.calibration}
    if sets:
        assert all(arrays[0].min() >= 100 for arrays in (*source.evaluation, *source.calibration))
    assert load(tmp_path).digest == source.digest


def test_sampling_rate_is_read_from_the_model_unless_the_caller_gives_it(tmp_path: Path) -> None:
    value = helper.make_tensor("c", TensorProto.INT64, [], [16000])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=value),
        helper.make_node("Cast", ["samplingRate"], ["rate"], to=TensorProto.INT64),
        helper.make_node("Equal", ["rate", "c"], ["is"]),
    ]
    compared = load(tmp_path, *nodes, rate="samplingRate")
    assert {arrays[1].item() for arrays in compared.evaluation} == {16000}
    overridden = load(tmp_path, *nodes, rate="samplingRate", sample_rate="22050")
    assert {arrays[1].item() for arrays in (*overridden.evaluation, *overridden.calibration)} == {
        22050
    }


def test_the_error_for_an_unknown_sampling_rate_says_how_to_give_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'sr'.* sampling rate") as caught:
        load(tmp_path, rate="sr")
    npz_arguments = caught.value.fix.partition("np.savez(")[2].partition("), with")[0]
    names = {"np": np, "X": count(8)}
    eval(f"np.savez({npz_arguments})", names)  # noqa: S307 - of our own message
    (tmp_path / "net.npz").rename(tmp_path / "sets.npz")
    source = load(tmp_path, rate="sr", calibration=str(tmp_path / "sets.npz"))
    assert {arrays[1].item() for arrays in source.evaluation} == {16000}
    (tmp_path / "sets.npz").rename(tmp_path / "net.npz")
    source = load(tmp_path, rate="sr")
    assert {arrays[1].item() for arrays in source.evaluation} == {16000}
    assert (source.made_inputs, source.evaluation[0][1].shape) == ("", ())


def test_generated_sets_fit_the_input_types_and_shuffled_ones_keep_their_elements() -> None:
    ports = {
        "x": (np.dtype("float32"), (50,)),
        "ids": (np.dtype("int64"), (50,)),
        "mask": (np.dtype("bool"), (50,)),
        "sr": (np.dtype("int64"), ()),
        "half": (np.dtype("float16"), (2,)),
    }
    (first_set, second_set) = make_sets(ports, [], {"sr": 16000}, 2, 1)
    assert [(array.dtype, array.shape) for array in first_set] == [*ports.values()]
    x, ids, mask, rate, half = first_set
    assert x.min() < 0 < x.max() < 5
    assert 0 <= ids.min() < ids.max() < RANDOM_IDS
    assert 16 < mask.sum() < 34
    assert rate == second_set[3] == 16000
    flat = (np.full(50, 2, "float32"), ids, mask, rate, np.full_like(half, 2))
    (shuffled,) = make_sets(ports, [flat], {}, 1, 1)
    assert [array.dtype for array in shuffled] == [kind for kind, _ in ports.values()]
    assert shuffled[0].min() < 2 < shuffled[0].max()
    assert (shuffled[4] != 2).all()
    assert (sorted(shuffled[1]), shuffled[3]) == (sorted(ids), 16000)


def test_every_weight_file_and_input_set_folder_changes_the_digest(tmp_path: Path) -> None:
    load(tmp_path)
    model, files = onnx.load(tmp_path / "net.onnx"), [tmp_path / name for name in "ab"]
    digests = set()
    for content in ((b"one", b"two"), (b"one", b"six"), (b"ten", b"two")):
        for file, data in zip(files, content, strict=True):
            file.write_bytes(data)
        digests.add(from_file(tmp_path / "net.onnx", model, files).digest)
    assert len(digests) == 3
    for number in (0, 2, 10):  # in the order of their numbers
        folder = tmp_path / f"test_data_set_{number}"
        folder.mkdir()
        sets = np.full((2, 3), number, "float32"), np.full(4, number)
        for index, array in enumerate(sets):
            tensor = onnx.numpy_helper.from_array(array)
            (folder / f"input_{index}.pb").write_bytes(tensor.SerializeToString())
    read = [(x[0, 0], ids[0]) for x, ids in read_beside(tmp_path / "net.onnx", INPUTS)]
    assert read == [(0.0, 0), (2.0, 2), (10.0, 10)]
    packed = {"x": np.ones((1, 2, 3), "float32"), "ids": np.ones((1, 4), "int64")}
    read = [ids[0] for _, ids in read_beside(write(tmp_path / "net.onnx", **packed), INPUTS)]
    assert read == [1, 0, 2, 10]


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir, lambda file: file.write_bytes(b"no")])
def test_an_input_set_that_is_no_regular_tensor_file_is_refused(
    plant: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / "test_data_set_0").mkdir()
    plant(tmp_path / "test_data_set_0" / "input_0.pb")
    with pytest.raises(UsageError, match=r"input_0\.pb"):
        list(read_beside(tmp_path / "net.onnx", INPUTS))


def test_each_set_is_put_in_the_order_of_the_inputs() -> None:
    x, ids = np.ones((2, 3), np.float32), np.arange(4)
    user_sets: list[Any] = [
        *([{"ids": ids, "x": x}], [{"x": 2 * x, "ids": ids + 2}]),
        *([np.asfortranarray(3 * x), ids + 3], [{"a": 4 * x, "b": ids + 4}]),
    ]
    fitted = fit_sets("sets.npz", user_sets, INPUTS)
    assert [(a[0, 0], b[0]) for a, b in fitted] == [(1, 0), (2, 2), (3, 3), (4, 4)]
    assert all(a.flags.c_contiguous for a, _ in fitted)
    with pytest.raises(UsageError, match=r"sets\.npz does not match the model") as caught:
        fit_sets("sets.npz", [*user_sets, [{"b": ids, "a": x}]], INPUTS)
    assert caught.value.why == "its set 4 has int64[4], float32[2, 3]"
    assert caught.value.fix == "provide one array per input: x float32[2, 3], ids int64[4]"
    for odd in ([{"x": x, "ids": ids}, ids], []):
        with pytest.raises(UsageError, match="does not match the model"):
            fit_sets("sets.npz", [odd], INPUTS)


@pytest.mark.parametrize(
    ("sample", "count", "why", "fix"),
    [
        ((3, 8, 8), 16, "float32[16, 3, 8, 8], and needs x float32[16, 1, 3, 8, 8]", "[:, None]"),
        ((8, 8), 3, "float32[3, 8, 8], and needs x float32[1, 1, 3, 8, 8]", "[None, None]"),
    ],
)
def test_samples_that_lack_an_axis_are_refused_with_both_shapes(
    sample: tuple[int, ...], count: int, why: str, fix: str
) -> None:
    ports = {"x": (np.dtype("float32"), (1, 3, 8, 8))}
    with pytest.raises(UsageError, match="without the") as caught:
        fit_sets("sets.npz", [[np.ones(sample, "float32")]] * count, ports)
    assert f"it has {why}" in caught.value.why
    assert fix in caught.value.fix


def test_input_and_calibration_files_with_a_fault_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "name.npz", image=np.ones((4, 2, 3), "float32"))
    np.savez(tmp_path / "shape.npz", x=np.ones((4, 3, 2), "float32"))
    np.savez(tmp_path / "type.npz", x=np.ones((4, 2, 3), "uint8"))
    np.save(tmp_path / "few.npy", count(3))
    (tmp_path / "text.npy").write_bytes(b"hello")
    names = ("name.npz", "shape.npz", "type.npz", "few.npy", "text.npy")
    calls: dict[str, Callable[[], object]] = {
        f"{key} {name}": partial(load, tmp_path, **{key: str(tmp_path / name)})
        for key in ("inputs", "calibration")
        for name in names
        if (key, name) != ("calibration", "few.npy")
    }
    load(tmp_path)
    plain = onnx.load(tmp_path / "net.onnx")

    def change(edit: Callable[[Any], object] | None = None, *, quantized: bool = True) -> Any:
        model = onnx.ModelProto.FromString(plain.SerializeToString())
        if quantized:
            model.graph.node.add(op_type="QuantizeLinear")
        if edit:
            edit(model.graph)
        return model

    def name_input(graph: Any) -> None:
        graph.input[0].name = "z"

    def retype(graph: Any) -> None:
        graph.output[0].type.tensor_type.elem_type = TensorProto.UINT8

    def free(graph: Any) -> None:
        graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"

    extra_input = tensor("more", [3], 7)
    wider = change(lambda graph: graph.input.add().CopyFrom(extra_input))
    onnx.save(change(), tmp_path / "quantized.onnx")
    onnx.save(change(free, quantized=False), tmp_path / "free.onnx")
    rows = {"same": ("net", change()), "float": ("net", plain), "two": ("quantized", change())}
    rows |= {"wider": ("net", wider), "name": ("net", change(name_input))}
    rows |= {"type": ("net", change(retype)), "free": ("free", change())}
    rows["outputs"] = ("net", change(lambda graph: graph.output.append(plain.graph.output[0])))
    for name, (file, model) in rows.items():
        calls[f"float model, {name}"] = partial(read_ports, tmp_path / f"{file}.onnx", model)
    fixed = [("x", (2, 3))]
    calls["shape"] = partial(read_ports, tmp_path / "free.onnx", change(), fixed)
    (tmp_path / "beside/test_data_set_0").mkdir(parents=True)
    beside = tmp_path / "beside/a.onnx"
    calls["beside"] = lambda: list(read_beside(beside, list_inputs(wider)))
    ids = np.zeros((1, 4), "int64")
    archives = {
        "no ids": {"x": np.zeros((1, 2, 3), "float32")},
        "double": {"x": np.zeros((1, 2, 3)), "ids": ids},
        "lengths": {"x": np.zeros((2, 2, 3), "float32"), "ids": ids},
    }
    for name, arrays in archives.items():
        path = write(tmp_path / f"{name}.onnx", **arrays)
        calls[f"archive, {name}"] = lambda path=path: list(  # type: ignore[misc]
            read_beside(path, INPUTS)
        )
    for number, data in enumerate((b"", b"PK\x03\x04", b"hello")):
        (tmp_path / f"{number}.npz").write_bytes(data)
        calls[f"archive {number}"] = lambda number=number: list(  # type: ignore[misc]
            read_beside(tmp_path / f"{number}.onnx", INPUTS)
        )
    ports = {**list_inputs(wider), "sr": (np.dtype("int64"), (1,))}
    calls["rate"] = lambda: find_rates(tmp_path / "a.onnx", plain, ports)
    check_results(SNAPSHOTS / "data.txt", calls, tmp_path)


def read_ports(path: Path, quantized: Any, shapes: Any = ()) -> str:
    read_float(path, quantized, shapes)
    return "matches"
