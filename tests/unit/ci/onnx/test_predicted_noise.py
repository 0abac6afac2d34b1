"""The errors that are predicted of an ONNX model: how large they are, and what has none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from onnx import TensorProto, helper, load, numpy_helper, printer, save

from ci.models.rounding import (
    CARRY_SHARE,
    CARRY_STEPS,
    RELATIVE,
    RUNS,
    WEIGHT_GAIN,
    WEIGHT_STEPS,
)
from ci.onnx import noise
from ci.onnx.models import read_constants
from ci.onnx.noise import CELL, find_float16, find_grids, predict_noise, read_constant
from ci.onnx.session import open_reference
from provisioning.errors import FailedError
from tests.qnn_provider.models import build_model, constant, tensor, write_model
from tests.stand_ins.snapshots import check_snapshot
from tests.stand_ins.terms import ACTIVATIONS, SOFTMAX, TERMS

SNAPSHOTS = Path(__file__).with_name("snapshots")
RANDOM = np.random.default_rng(4)
SHAPE = (40, 64)
EXACT = RANDOM.integers(-64, 64, SHAPE).astype(np.float32) / 16  # what float16 holds
ANY = RANDOM.standard_normal(SHAPE).astype(np.float32)
UNIT = np.eye(64, dtype=np.float32)
Nodes = Sequence[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "read_terms", lambda _: TERMS)


def predict(
    folder: Path,
    nodes: Nodes,
    given: Any = EXACT,
    weights: Sequence[Any] = (),
    *,
    sets: int = 2,
    kind: int = TensorProto.FLOAT,
    result: int = TensorProto.FLOAT,
    shape: Sequence[int] = SHAPE,
) -> Any:
    """The error of output ``y`` of these nodes, [run, input set, *shape], and its right values."""
    made = [
        helper.make_node(op, list(before), list(after), **(more[0] if more else {}))
        for op, before, after, *more in nodes
    ]
    ends = [tensor("x", given.shape, kind)], [tensor("y", shape, result)]
    model = write_model(folder / "model.onnx", made, *ends, list(weights))
    session = open_reference(model)
    feeds = [(given,) for _ in range(sets)]
    right = [session.run(None, {"x": one}) for (one,) in feeds]
    found = predict_noise(model, folder / "noisy.onnx", feeds, right)
    assert len(found) == 1
    return found[0], right[0][0]


def is_uniform(values: Any, limit: float) -> bool:
    """Whether values are spread evenly from -limit to limit."""
    within = np.abs(values).max() <= limit * 1.001
    ends = values.max() > 0.95 * limit and values.min() < -0.95 * limit
    even = abs(np.abs(values).mean() - limit / 2) < 0.05 * limit
    return bool(within and ends and even)


# -- float16 --------------------------------------------------------------------------------------


def test_what_float16_holds_and_is_only_moved_has_no_error(tmp_path: Path) -> None:
    nodes = [("Identity", ["x"], ["a"]), ("Transpose", ["a"], ["y"])]
    found, _ = predict(tmp_path, nodes, shape=SHAPE[::-1])
    assert found.shape == (RUNS, 2, 64, 40)
    assert not found.any()


def test_float16_is_what_is_not_quantized_behind_moves_either() -> None:
    rows = (
        ("DequantizeLinear", "a", "b"),
        ("Reshape", "b", "c"),
        ("Conv", "c", "d"),
        ("Transpose", "d", "e"),
        ("QuantizeLinear", "e", "f"),
        ("DequantizeLinear", "f", "g"),
        ("Reshape", "g", "h"),
        ("Conv", "h", "i"),
    )
    nodes = [helper.make_node(op, [before], [after]) for op, before, after in rows]
    assert find_float16(nodes) == {"g", "i"}


def test_an_input_that_float16_rounds_has_an_error_relative_to_it(tmp_path: Path) -> None:
    found, right = predict(tmp_path, [("Identity", ["x"], ["y"])], ANY)
    assert is_uniform(found / right, RELATIVE)
    assert len({one.tobytes() for one in found.reshape(RUNS * 2, -1)}) == RUNS * 2
    again, _ = predict(tmp_path, [("Identity", ["x"], ["y"])], ANY)
    assert (again == found).all()


def test_each_set_errs_from_its_own_outputs(tmp_path: Path) -> None:
    ends = [tensor("x", SHAPE)], [tensor("y", SHAPE)]
    model = write_model(tmp_path / "model.onnx", [helper.make_node("Relu", ["x"], ["y"])], *ends)
    sets = [np.abs(ANY), 100 * np.abs(ANY[::-1])]
    found = predict_noise(
        model, tmp_path / "noisy.onnx", [(one,) for one in sets], [(one,) for one in sets]
    )
    for number, right in enumerate(sets):
        assert 0 < np.abs(found[0][:, number] / right).max() <= RELATIVE * 2.01


def test_what_computes_has_a_relative_error(tmp_path: Path) -> None:
    nodes = [("MatMul", ["x", "w"], ["y"])]
    found, right = predict(tmp_path, nodes, weights=[constant("w", UNIT)])
    assert (right == EXACT).all()
    assert not found[:, :, EXACT == 0].any()
    assert is_uniform(found[:, :, EXACT != 0] / EXACT[EXACT != 0], RELATIVE)


def test_a_constant_that_float16_rounds_is_read_with_an_error(tmp_path: Path) -> None:
    nodes = [("Mul", ["w", "x"], ["a"]), ("Identity", ["a"], ["y"])]
    ones = np.ones(SHAPE, np.float32)
    for value, limits in ((0.5, (0.9, 1.01)), (0.1, (1.5, 2.01))):
        found, right = predict(tmp_path, nodes, ones, [constant("w", np.full(SHAPE, value))])
        low, high = limits
        assert low < np.abs(found / right).max() / RELATIVE < high
    found, right = predict(tmp_path, nodes, ones, [constant("w", np.full(SHAPE, 1e9))])
    assert np.abs(found).max() < 65504 * RELATIVE * 2.01  # beyond float16, as at its end
    mixed = np.full(SHAPE, 0.1)
    mixed[0] = 0.5  # exact, next to elements that are not
    found, right = predict(tmp_path, nodes, ones, [constant("w", mixed)])
    shares = np.abs(found / right).max((0, 1)) / RELATIVE
    assert shares[0].max() < 1.01 < 1.5 < shares[1:].max()
    assert np.isfinite(found).all()


def test_a_softmax_has_a_larger_error(tmp_path: Path) -> None:
    found, right = predict(tmp_path, [("Softmax", ["x"], ["y"], {"axis": -1})])
    assert is_uniform(found / right, SOFTMAX)


@pytest.mark.parametrize("name", ["Sigmoid", "Tanh", "Elu"])
def test_an_activation_that_follows_a_layer_has_an_absolute_error(
    tmp_path: Path, name: str
) -> None:
    zeros, w = np.zeros(SHAPE, np.float32), [constant("w", UNIT)]
    layer, last = ("MatMul", ["x", "w"], ["a"]), (name, ["b"], ["y"])
    flat = [constant("s", [64, 40], np.int64)]

    def measure(nodes: Nodes, *more: Any, shape: Sequence[int] = SHAPE) -> float:
        found, right = predict(tmp_path, nodes, zeros, [*w, *more], shape=shape)
        own = RELATIVE * float(np.abs(right).max())  # of sigmoid, whose value is 0.5
        return float(np.abs(found).max()) / (ACTIVATIONS[name.lower()] + own)

    bias = [constant("c", np.zeros(64))]
    assert 0.9 < measure([layer, ("Identity", ["a"], ["b"]), last]) < 1.001
    assert 0.9 < measure([layer, ("Add", ["a", "c"], ["b"]), last], *bias) < 1.001
    assert 0.9 < measure([layer, ("Add", ["c", "a"], ["b"]), last], *bias) < 1.001
    ones = [constant("k", np.ones(64))]
    assert 0.9 < measure([layer, ("Mul", ["a", "k"], ["b"]), last], *ones) < 1.001
    assert 0.9 < measure([layer, ("Flatten", ["a"], ["b"]), last]) < 1.001
    joined = [layer, ("Concat", ["a", "a"], ["b"], {"axis": 0}), last]
    assert 0.9 < measure(joined, shape=(80, 64)) < 1.001
    shaped = [layer, ("Reshape", ["a", "s"], ["b"]), last]
    assert 0.9 < measure(shaped, *flat, shape=(64, 40)) < 1.001
    assert measure([layer, ("Relu", ["a"], ["b"]), last]) < 0.2
    assert measure([layer, ("Add", ["a", "a"], ["b"]), last]) < 0.2  # too many rows
    assert measure([layer, ("Sub", ["a", "c"], ["b"]), last], *bias) < 0.2
    assert measure([("Identity", ["x"], ["b"]), last]) < 0.2


def test_a_sum_of_two_tensors_with_few_rows_is_fused(tmp_path: Path) -> None:
    nodes = [("Add", ["x", "x"], ["a"]), ("Reshape", ["a", "s"], ["b"]), ("Tanh", ["b"], ["y"])]
    shape = [constant("s", [1, 7, 64], np.int64)]
    zeros = np.zeros((7, 64), np.float32)
    found, _ = predict(tmp_path, nodes, zeros, shape, shape=(1, 7, 64))
    assert float(np.abs(found).max()) == pytest.approx(2**-6, rel=0.05)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [("Conv", (4, 4, 1, 1)), ("ConvTranspose", (4, 4, 1, 1)), ("Gemm", (8, 8)), ("MatMul", (8, 8))],
)
def test_an_activation_follows_a_layer_of_any_kind(
    tmp_path: Path, layer: str, shape: tuple[int, ...]
) -> None:
    given = np.zeros((1, 4, 8, 8) if len(shape) == 4 else (400, 8), np.float32)
    nodes = [(layer, ["x", "w"], ["a"]), ("Tanh", ["a"], ["y"])]
    weights = [constant("w", np.ones(shape))]
    found, _ = predict(tmp_path, nodes, given, weights, shape=given.shape)
    assert 0.9 < float(np.abs(found).max()) / ACTIVATIONS["tanh"] < 1.001


def test_integers_are_read_exactly(tmp_path: Path) -> None:
    """float16 has no 2457, the size of a shape."""
    given = EXACT[:39, :63]
    size = [constant("size", [given.size], np.int64)]
    found, right = predict(
        tmp_path, [("Reshape", ["x", "size"], ["y"])], given, size, shape=(given.size,)
    )
    assert int(np.float16(given.size)) != given.size
    assert (right.shape, found.any()) == ((given.size,), False)


@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_the_cells_of_a_recurrent_layer_have_an_absolute_error(
    tmp_path: Path, kind: str, gates: int
) -> None:
    nodes = [(kind, ["x", "w", "r"], ["y"], {"hidden_size": 64})]
    sizes = {"w": (1, gates * 64, 8), "r": (1, gates * 64, 64)}
    weights = [constant(name, np.zeros(shape)) for name, shape in sizes.items()]
    given = np.zeros((10, 1, 8), np.float32)
    found, right = predict(tmp_path, nodes, given, weights, shape=(10, 1, 1, 64))
    assert not right.any()
    assert is_uniform(found, CELL)


def test_integers_have_no_error_and_large_outputs_fewer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [("Mul", ["x", "x"], ["y"])]
    whole = np.arange(12, dtype=np.int64).reshape(3, 4)
    kinds = {"kind": TensorProto.INT64, "result": TensorProto.INT64, "shape": (3, 4)}
    found, _ = predict(tmp_path, nodes, whole, **kinds)
    assert found.shape == (0,)
    size = 4 * EXACT.size * 2
    for most, runs in ((size * 5, 5), (size * 5 - 1, 4), (size, 2), (0, 2), (size * 99, RUNS)):
        monkeypatch.setattr("ci.models.rounding.MAX_BYTES", most)
        found, _ = predict(tmp_path, nodes)
        assert len(found) == runs


# -- quantized ------------------------------------------------------------------------------------

SCALE = 0.25


def quantized(
    kind: str, weight: Any = None, zero: int = 0, scale: float = 1.0
) -> tuple[Nodes, list[Any]]:
    """A layer whose result is quantized to ``kind``; its weight is quantized, too, if it is one
    of integers."""
    kinds = [numpy_helper.from_array(np.asarray(zero, kind), "z"), constant("s", SCALE)]
    nodes: list[tuple[Any, ...]] = [("MatMul", ["x", "w"], ["a"])]
    if weight is None:
        kinds.append(constant("w", UNIT))
    else:
        kinds += [numpy_helper.from_array(weight, "q"), constant("one", scale)]
        kinds.append(numpy_helper.from_array(np.zeros((), weight.dtype), "nought"))
        nodes.insert(0, ("DequantizeLinear", ["q", "one", "nought"], ["w"]))
    ends = [
        ("QuantizeLinear", ["a", "s", "z"], ["b"]),
        ("DequantizeLinear", ["b", "s", "z"], ["y"]),
    ]
    return [*nodes, *ends], kinds


def count_steps(folder: Path, nodes: Nodes, weights: list[Any], given: Any = EXACT) -> Any:
    found, _ = predict(folder, nodes, given, weights)
    steps = found / SCALE
    assert (steps == np.round(steps)).all()
    return steps


@pytest.mark.parametrize(("kind", "share"), [("uint8", 0.1), ("int8", 0.1)])
def test_a_share_of_what_is_quantized_in_8_bits_moves_by_a_step(
    tmp_path: Path, kind: str, share: float
) -> None:
    steps = count_steps(tmp_path, *quantized(kind, zero=100 if kind == "uint8" else 5))
    assert {*np.unique(steps)} == {-1.0, 0.0, 1.0}
    assert np.mean(steps != 0) == pytest.approx(share, rel=0.1)
    assert np.mean(steps > 0) == pytest.approx(share / 2, rel=0.15)


def test_every_16_bit_element_moves_and_none_leaves_its_type(tmp_path: Path) -> None:
    steps = count_steps(tmp_path, *quantized("uint16", zero=3000))
    assert {*np.unique(np.abs(steps))} <= {0.0, 1.0}
    assert np.mean(steps != 0) == pytest.approx(1.0, rel=0.01)
    for value, only in ((-1e6, 1.0), (1e6, -1.0)):
        given = np.full(SHAPE, value, np.float32)
        ends = count_steps(tmp_path, *quantized("uint16", zero=3000), given)
        assert {*np.unique(ends)} == {0.0, only}


@pytest.mark.parametrize(
    ("weight", "scale"), [("int16", 1), ("uint16", 1), ("int4", 256), ("uint4", 256)]
)
def test_wide_weights_have_an_error_relative_to_the_signal(
    tmp_path: Path, weight: str, scale: int
) -> None:
    """Of 16 bits, and of 4, which are computed as wide ones."""
    kind = TensorProto.DataType.Value(weight.upper())
    held = (1024 // scale * UNIT).astype(helper.tensor_dtype_to_np_dtype(kind))
    layer = quantized("uint16", held, zero=30_000, scale=scale)
    given = EXACT * 2
    signal = given * 1024 / SCALE
    steps = count_steps(tmp_path, *layer, given)
    most = np.abs(signal) * 2 * WEIGHT_GAIN + WEIGHT_STEPS + 1.5
    assert (np.abs(steps) <= most).all()
    quiet, loud = np.abs(signal) < 1, np.abs(signal) > 20_000
    assert 0.9 * WEIGHT_STEPS < np.abs(steps[:, :, quiet]).max() <= WEIGHT_STEPS + 1.5
    relative = np.abs(steps[:, :, loud] / signal[loud])
    assert relative.max() == pytest.approx(2 * WEIGHT_GAIN, rel=0.1)


def test_unsigned_weights_lose_a_carry_of_some_elements(tmp_path: Path) -> None:
    layer = quantized("uint16", UNIT.astype("uint8"), zero=30_000)
    steps = count_steps(tmp_path, *layer)
    far = np.abs(steps) > 2
    assert np.mean(far) == pytest.approx(CARRY_SHARE, rel=0.1)
    assert 0.95 * CARRY_STEPS < np.abs(steps).max() <= CARRY_STEPS + 1
    assert np.mean(steps[far] > 0) == pytest.approx(0.5, abs=0.1)
    narrow = count_steps(tmp_path, *quantized("uint8", UNIT.astype("uint8"), zero=100))
    assert np.abs(narrow).max() == 1
    signed = count_steps(tmp_path, *quantized("uint16", UNIT.astype("int8"), zero=30_000))
    assert np.abs(signed).max() == 1


def test_a_product_of_two_activations_loses_carries_too(tmp_path: Path) -> None:
    nodes, weights = quantized("uint16", zero=30_000)
    pair = [
        ("Transpose", ["x"], ["t"]),
        ("QuantizeLinear", ["t", "s", "z"], ["p"]),
        ("DequantizeLinear", ["p", "s", "z"], ["u"]),
        ("MatMul", ["x", "u"], ["a"]),
    ]
    found, _ = predict(tmp_path, [*pair, *nodes[1:]], EXACT / 16, weights[:2], shape=(40, 40))
    steps = np.abs(found / SCALE)
    assert np.mean(steps > 2) == pytest.approx(CARRY_SHARE, rel=0.15)


def test_what_only_moves_is_quantized_without_an_error(tmp_path: Path) -> None:
    _, (zero, *_) = quantized("uint8", zero=100)
    nodes = [
        ("Reshape", ["x", "shape"], ["a"]),
        ("QuantizeLinear", ["a", "s", "z"], ["b"]),
        ("DequantizeLinear", ["b", "s", "z"], ["y"]),
    ]
    weights = [zero, constant("shape", SHAPE, np.int64)]
    for scale in (SCALE, 0.1):  # float16 does not hold the second, but no scale is rounded
        assert not count_steps(tmp_path, nodes, [*weights, constant("s", scale)]).any()


def test_an_input_is_quantized_to_8_bits_as_float16_holds_it_and_to_16_exactly(
    tmp_path: Path,
) -> None:
    direct = [
        ("QuantizeLinear", ["x", "s", "z"], ["b"]),
        ("DequantizeLinear", ["b", "s", "z"], ["y"]),
    ]
    wide = quantized("uint16", zero=30_000)[1][:2]
    assert not count_steps(tmp_path, direct, wide, ANY).any()
    narrow = quantized("uint8", zero=100)[1][:2]
    found = count_steps(tmp_path, direct, narrow, 7 * ANY)
    moved = found.any((0, 1))
    assert {*np.unique(found)} == {-1.0, 0.0, 1.0}
    levels = 7 * ANY / SCALE
    off = np.abs(np.abs(levels - np.floor(levels)) - 0.5)  # from where rounding turns
    assert off[moved].max() <= RELATIVE * np.abs(levels).max() * 1.01
    assert 0.005 < moved.mean() < 0.05


def test_a_quantizer_without_a_zero_point_is_of_unsigned_bytes(tmp_path: Path) -> None:
    nodes, weights = quantized("uint8")
    ends = [("QuantizeLinear", ["a", "s"], ["b"]), ("DequantizeLinear", ["b", "s"], ["y"])]
    given = np.full_like(EXACT, 200 * SCALE)  # more than a signed byte holds
    steps = count_steps(tmp_path, [nodes[0], *ends], weights[1:], given)
    assert {*np.unique(steps)} == {-1.0, 0.0, 1.0}


def test_a_zero_point_may_be_made_by_a_node(tmp_path: Path) -> None:
    nodes, (zero, *weights) = quantized("int8", zero=5)
    made = [("Constant", [], ["z"], {"value": zero}), *nodes]
    assert (
        count_steps(tmp_path, made, weights) == count_steps(tmp_path, nodes, [zero, *weights])
    ).all()


def test_what_a_quantized_model_computes_in_float_is_rounded(tmp_path: Path) -> None:
    """A layer between quantizers is not, nor is a scale; weights that are dequantized are."""
    layer, weights = quantized("uint8", UNIT.astype("int8"), zero=100)
    assert count_steps(tmp_path, layer, weights).any()
    tail = [*layer[:-1], (layer[-1][0], layer[-1][1], ["b1"]), ("Sqrt", ["b2"], ["y"])]
    tail.insert(-1, ("Abs", ["b1"], ["b2"]))
    found, right = predict(tmp_path, tail, EXACT + 20, weights)
    same = np.abs(found / right) < 2 * RELATIVE  # where the quantizer has moved nothing
    assert same.mean() == pytest.approx(0.9, abs=0.02)
    assert np.abs((found / right)[same]).max() > 0.9 * RELATIVE
    assert (found != 0).mean() > 0.99
    alone = [
        ("DequantizeLinear", ["w", "s", "z"], ["d"]),
        ("MatMul", ["x", "d"], ["y"]),
    ]
    whole = [
        numpy_helper.from_array(UNIT.astype("int8"), "w"),
        constant("s", 1.0),
        numpy_helper.from_array(np.int8(0), "z"),
    ]
    found, right = predict(tmp_path, alone, weights=whole)
    assert np.abs(found[:, :, EXACT != 0] / EXACT[EXACT != 0]).max() > 1.5 * RELATIVE


# -- grids and constants --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "zero", "scale", "grid"),
    [
        ("uint8", 100, 0.5, (0.5, -100, 155)),
        ("int8", -3, 0.25, (0.25, -125, 130)),
        ("uint16", 9, 0.5, (0.0, 0, 0)),
        ("uint8", 100, [0.5] * 64, (0.0, 0, 0)),
    ],
)
def test_the_values_of_an_output_that_is_dequantized_are_known(
    tmp_path: Path, kind: str, zero: int, scale: Any, grid: tuple[float, int, int]
) -> None:
    zeros = np.full(np.shape(scale), zero, kind)
    weights = [numpy_helper.from_array(zeros, "z"), constant("s", scale)]
    nodes = [
        helper.make_node("Sin", ["x"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "s", "z"], ["b"]),
        helper.make_node("DequantizeLinear", ["b", "s", "z"], ["y"]),
        helper.make_node("Relu", ["y"], ["plain"]),
        helper.make_node("DequantizeLinear", ["b", "s"], ["short"]),
    ]
    if kind != "uint8":
        del nodes[4]
    outputs = [tensor("y", SHAPE), tensor("plain", SHAPE), tensor("short", SHAPE)][: len(nodes) - 2]
    model = write_model(tmp_path / "m.onnx", nodes, [tensor("x", SHAPE)], outputs, weights)
    none = (0.0, 0, 0)
    assert find_grids(model) == [grid, none, none][: len(outputs)]


@pytest.mark.parametrize(
    ("nodes", "left", "known"),
    [
        ([("Sin", ["x"], ["a"])], (), True),
        ([("Sin", ["x"], ["a"])], ("Sin",), False),  # the CPU computes it
        ([("Flatten", ["x"], ["a"])], (), False),
        ([("Sin", ["x"], ["c"]), ("Concat", ["c", "k"], ["a"], {"axis": 0})], (), False),
        ([("Sin", ["x"], ["c"]), ("Concat", ["c", "c"], ["a"], {"axis": 0})], (), True),
        (
            [
                ("Sin", ["x"], ["c"]),
                ("QuantizeLinear", ["c", "other", "z"], ["d"]),
                ("DequantizeLinear", ["d", "other", "z"], ["e"]),
                ("Flatten", ["e"], ["a"]),  # QNN keeps the grid of the sine
            ],
            (),
            False,
        ),
    ],
)
def test_only_what_qnn_computes_into_a_grid_has_it(
    tmp_path: Path, nodes: Any, left: tuple[str, ...], known: bool
) -> None:
    weights = [numpy_helper.from_array(np.uint8(3), "z"), constant("s", 0.5)]
    weights += [constant("other", 0.25), constant("k", ANY)]
    ends = [
        ("QuantizeLinear", ["a", "s", "z"], ["b"]),
        ("DequantizeLinear", ["b", "s", "z"], ["y"]),
    ]
    made = [
        helper.make_node(kind, given, result, **dict(*more))
        for kind, given, result, *more in [*nodes, *ends]
    ]
    outputs = [tensor("y", None)]
    model = write_model(tmp_path / "m.onnx", made, [tensor("x", SHAPE)], outputs, weights)
    assert find_grids(model, left) == [(0.5, -3, 252) if known else (0.0, 0, 0)]


def test_an_output_of_another_operator_with_constants_has_no_grid(tmp_path: Path) -> None:
    bounds = [constant("low", 0.0), constant("high", 6.0)]
    clip = helper.make_node("Clip", ["x", "low", "high"], ["y"])
    files = tmp_path / "m.onnx", [clip], [tensor("x", SHAPE)], [tensor("y", SHAPE)], bounds
    assert find_grids(write_model(*files)) == [(0.0, 0, 0)]


def test_an_output_that_is_an_input_or_whose_weights_are_elsewhere_has_a_grid_or_none(
    tmp_path: Path,
) -> None:
    weights = [numpy_helper.from_array(np.uint8(100), "z"), constant("s", 0.5)]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "s", "z"], ["b"]),
        helper.make_node("DequantizeLinear", ["b", "s", "z"], ["y"]),
    ]
    outputs = [tensor("y", SHAPE), tensor("x", SHAPE)]
    model = write_model(
        tmp_path / "m.onnx", nodes, [tensor("x", SHAPE)], outputs, [*weights, constant("w", UNIT)]
    )
    save(
        load(model),
        model,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=1024,
    )
    (tmp_path / "w.bin").unlink()
    assert find_grids(model) == [(0.5, -100, 155), (0.0, 0, 0)]


def test_input_sets_of_another_model_are_an_error(tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    ends = [tensor("x", SHAPE)], [tensor("y", SHAPE)]
    model = write_model(tmp_path / "m.onnx", [node], *ends)
    with pytest.raises(ValueError, match="argument"):
        predict_noise(model, tmp_path / "noisy.onnx", [(EXACT, EXACT)], [(EXACT,)])


def test_a_constant_is_an_initializer_or_a_node(tmp_path: Path) -> None:
    held = constant("held", [1.0, 2.0])
    node = helper.make_node("Constant", [], ["made"], value=constant("inner", 3.0))
    other = helper.make_node("Relu", ["x"], ["y"])
    chain = [
        helper.make_node("Identity", ["held"], ["same"]),
        helper.make_node("Cast", ["same"], ["halves"], to=TensorProto.FLOAT16),
        helper.make_node("Unsqueeze", ["halves", "axis"], ["row"]),
        helper.make_node("Squeeze", ["row"], ["folded"]),
    ]
    axis = numpy_helper.from_array(np.zeros(1, np.int64), "axis")
    graph = helper.make_graph([node, other, *chain], "g", [], [], [held, axis])
    constants = read_constants(graph)
    made_by = {name: one for one in graph.node for name in one.output}
    assert read_constant("held", constants, made_by).tolist() == [1.0, 2.0]
    assert read_constant("made", constants, made_by) == 3.0
    folded = read_constant("folded", constants, made_by)
    assert (folded.tolist(), folded.dtype) == ([1.0, 2.0], np.float16)
    for name, missing in (("y", "x"), ("gone", "gone")):
        with pytest.raises(FailedError, match=f"{missing}, a scale"):
            read_constant(name, constants, made_by)


# -- whole graphs ---------------------------------------------------------------------------------

LAYER = [
    ("MatMul", ["x", "w"], ["a"]),
    ("Add", ["a", "bias"], ["b"]),
    ("Reshape", ["b", "shape"], ["c"]),
    ("Sigmoid", ["c"], ["d"]),
    ("Softmax", ["d"], ["e"]),
    ("Tanh", ["e"], ["y"]),
]
WEIGHTS = [constant("w", UNIT), constant("bias", ANY[0]), constant("shape", SHAPE, np.int64)]
CELLS = [("LSTM", ["x", "w", "r"], ["h", "y", "c"], {"hidden_size": 3})]
STATES = [constant(name, np.ones((1, 12, size)) / 3) for name, size in (("w", 64), ("r", 3))]


@pytest.mark.parametrize(
    ("name", "nodes", "weights"),
    [
        ("float16", LAYER, WEIGHTS),
        ("recurrent", CELLS, STATES),
        ("u8", *quantized("uint8", zero=100)),
        ("u16 by int16", *quantized("uint16", UNIT.astype("int16"))),
        ("u16 by uint8", *quantized("uint16", UNIT.astype("uint8"))),
    ],
)
def test_a_disturbed_graph_draws_where_it_did(name: str, nodes: Nodes, weights: list[Any]) -> None:
    made = [
        helper.make_node(op, list(before), list(after), **(more[0] if more else {}))
        for op, before, after, *more in nodes
    ]
    model = build_model(made, [tensor("x", SHAPE)], [tensor("y", SHAPE)], weights)
    graph = noise.disturb(model, TERMS).graph
    drawn = (
        f"{one.name} = {numpy_helper.to_array(one).dtype} {numpy_helper.to_array(one)}"
        for one in graph.initializer
        if one.name.startswith("noise/")
    )
    lines = [printer.to_text(one).strip() for one in graph.node] + sorted(drawn)
    check_snapshot(SNAPSHOTS / f"disturbed {name}.txt", "".join(f"{one}\n" for one in lines))
