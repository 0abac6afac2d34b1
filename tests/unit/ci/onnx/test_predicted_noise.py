"""The errors that are predicted of an ONNX model: how large they are, and what has none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from onnx import TensorProto, helper, numpy_helper, printer

from ci.analysis import noise
from ci.analysis.noise import find_errors, predict_noise
from ci.graphs.onnx_program import (
    METHOD,
    OnnxProgram,
    OnnxWriter,
    read_onnx,
    write_changes,
)
from ci.graphs.onnx_session import open_reference
from ci.graphs.run import Change, Recipe
from ci.models.rounding import (
    CARRY_SHARE,
    CARRY_STEPS,
    CELL,
    RELATIVE,
    RUNS,
    WEIGHT_GAIN,
    WEIGHT_STEPS,
)
from tests.qnn_provider.models import build_model, constant, tensor, write_model
from tests.stand_ins.snapshots import check_snapshot
from tests.stand_ins.terms import SOFTMAX, TERMS

SNAPSHOTS = Path(__file__).with_name("snapshots")
RANDOM = np.random.default_rng(4)
SHAPE = (40, 64)
EXACT = RANDOM.integers(-64, 64, SHAPE).astype(np.float32) / 16  # what float16 holds
ANY = RANDOM.standard_normal(SHAPE).astype(np.float32)
UNIT = np.eye(64, dtype=np.float32)
Nodes = Sequence[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def terms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "read_terms", lambda *_: TERMS)


def predict(
    folder: Path,
    nodes: Nodes,
    values: Any = EXACT,
    weights: Sequence[Any] = (),
    *,
    sets: int = 2,
    kind: int = TensorProto.FLOAT,
    result: int = TensorProto.FLOAT,
    shape: Sequence[int] = SHAPE,
) -> Any:
    """The error of output ``y`` of these nodes, [run, sample, *shape], and its right values."""
    built_nodes = [
        helper.make_node(op, list(before), list(after), **(attributes[0] if attributes else {}))
        for op, before, after, *attributes in nodes
    ]
    ends = [tensor("x", values.shape, kind)], [tensor("y", shape, result)]
    model = write_model(folder / "model.onnx", built_nodes, *ends, list(weights))
    session = open_reference(model)
    feeds = [(values,) for _ in range(sets)]
    right = [session.run(None, {"x": x}) for (x,) in feeds]
    (noise,) = predict_noise(read_onnx(model, folder / "noisy.onnx"), feeds, right)
    return noise, right[0][0]


def is_uniform(values: Any, limit: float) -> bool:
    """Whether values are spread evenly from -limit to limit."""
    within = np.abs(values).max() <= limit * 1.001
    ends = values.max() > 0.95 * limit and values.min() < -0.95 * limit
    even = abs(np.abs(values).mean() - limit / 2) < 0.05 * limit
    return bool(within and ends and even)


# -- float16 --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "values", "relative"),
    [
        ([("Identity", ["x"], ["a"]), ("Transpose", ["a"], ["y"], {"perm": [0, 1]})], EXACT, 0.0),
        ([("Identity", ["x"], ["y"])], ANY, RELATIVE),
        ([("MatMul", ["x", "w"], ["y"])], EXACT, RELATIVE),
        ([("Softmax", ["x"], ["y"], {"axis": -1})], EXACT, SOFTMAX),
    ],
)
def test_in_float16_the_noise_of_an_onnx_node_is_relative_to_its_value(
    tmp_path: Path, nodes: Nodes, values: Any, relative: float
) -> None:
    weights = [constant("w", UNIT)]
    noise, right = predict(tmp_path, nodes, values, weights)
    assert noise.shape == (RUNS, 2, *SHAPE)
    assert not noise[:, :, right == 0].any()
    if not relative:
        assert not noise.any()
        return
    assert is_uniform(noise[:, :, right != 0] / right[right != 0], relative)
    assert len({sample.tobytes() for sample in noise.reshape(RUNS * 2, -1)}) == RUNS * 2
    assert (predict(tmp_path, nodes, values, weights)[0] == noise).all()


def test_a_model_in_float16_has_the_noise_of_the_same_model_in_float32(tmp_path: Path) -> None:
    def nodes(to: int) -> Nodes:
        cast = [("Cast", ["x"], ["a"], {"to": to}), ("MatMul", ["a", "w"], ["b"])]
        return [*cast, ("Cast", ["b"], ["y"], {"to": TensorProto.FLOAT})]

    single, _ = predict(tmp_path, nodes(TensorProto.FLOAT), EXACT, [constant("w", UNIT)])
    weights = [constant("w", UNIT, np.float16)]
    for values, kind in (
        (EXACT, TensorProto.FLOAT),
        (EXACT.astype(np.float16), TensorProto.FLOAT16),
    ):
        half, _ = predict(tmp_path, nodes(TensorProto.FLOAT16), values, weights, kind=kind)
        np.testing.assert_array_equal(half, single)


def test_a_result_of_rank_0_has_the_noise_of_a_single_element(tmp_path: Path) -> None:
    weights = [constant("s", 0.01), constant("z", 0, np.uint16)]
    nodes = [
        ("ReduceMean", ["x"], ["a"], {"keepdims": 0}),
        ("Exp", ["a"], ["b"]),
        ("QuantizeLinear", ["b", "s", "z"], ["c"]),
        ("DequantizeLinear", ["c", "s", "z"], ["y"]),
    ]
    noise, _ = predict(tmp_path, nodes, weights=weights, shape=())
    assert 0 < np.abs(noise).max() <= 0.021


def test_a_sum_of_two_tensors_with_few_rows_is_fused(tmp_path: Path) -> None:
    nodes = [("Add", ["x", "x"], ["a"]), ("Reshape", ["a", "s"], ["b"]), ("Tanh", ["b"], ["y"])]
    shape = [constant("s", [1, 7, 64], np.int64)]
    zeros = np.zeros((7, 64), np.float32)
    noise, _ = predict(tmp_path, nodes, zeros, shape, shape=(1, 7, 64))
    assert float(np.abs(noise).max()) == pytest.approx(2**-6, rel=0.05)


@pytest.mark.parametrize("domain", [None, "", "com.microsoft"])
@pytest.mark.parametrize(("kind", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_the_cells_of_a_recurrent_layer_have_an_absolute_error(
    tmp_path: Path, kind: str, gates: int, domain: str | None
) -> None:
    """QNN computes them in float16 if the result is quantized, too. In opsets before 21,
    quantizers of 16 bits are onnxruntime's own."""
    quantized, qdq_domain = domain is not None, {"domain": domain}
    nodes: Nodes = [(kind, ["i", "w", "r"], ["a" if quantized else "y"], {"hidden_size": 64})]
    sizes = {"w": (1, gates * 64, 8), "r": (1, gates * 64, 64)}
    weights = [constant(name, np.zeros(shape)) for name, shape in sizes.items()]
    if quantized:
        weights += [constant("s", 1e-6), constant("z", 32768, np.uint16)]
        nodes = [
            ("QuantizeLinear", ["x", "s", "z"], ["q"], qdq_domain),
            ("DequantizeLinear", ["q", "s", "z"], ["i"], qdq_domain),
            *nodes,
            ("QuantizeLinear", ["a", "s", "z"], ["b"], qdq_domain),
            ("DequantizeLinear", ["b", "s", "z"], ["y"], qdq_domain),
        ]
    else:
        nodes = [("Identity", ["x"], ["i"]), *nodes]
    zeros = np.zeros((10, 1, 8), np.float32)
    noise, right = predict(tmp_path, nodes, zeros, weights, shape=(10, 1, 1, 64))
    assert not right.any()
    assert is_uniform(noise, CELL)


def test_integers_have_no_error_and_large_outputs_fewer_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [("Mul", ["x", "x"], ["y"])]
    integers = np.arange(12, dtype=np.int64).reshape(3, 4)
    kinds = {"kind": TensorProto.INT64, "result": TensorProto.INT64, "shape": (3, 4)}
    noise, _ = predict(tmp_path, nodes, integers, **kinds)
    assert noise.shape == (0,)
    size = 4 * EXACT.size * 2
    for most, runs in ((size * 5, 5), (size * 5 - 1, 4), (size, 2), (0, 2), (size * 99, RUNS)):
        monkeypatch.setattr("ci.models.rounding.MAX_BYTES", most)
        noise, _ = predict(tmp_path, nodes)
        assert len(noise) == runs


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


def count_steps(folder: Path, nodes: Nodes, weights: list[Any], values: Any = EXACT) -> Any:
    noise, _ = predict(folder, nodes, values, weights)
    steps = noise / SCALE
    assert (steps == np.round(steps)).all()
    return steps


@pytest.mark.parametrize(("kind", "zero", "share"), [("uint8", 100, 0.1), ("uint16", 3000, 1.0)])
def test_a_share_of_quantized_elements_moves_by_a_step_within_the_type(
    tmp_path: Path, kind: str, zero: int, share: float
) -> None:
    steps = count_steps(tmp_path, *quantized(kind, zero=zero))
    assert {*np.unique(np.abs(steps))} <= {0.0, 1.0}
    assert np.mean(steps != 0) == pytest.approx(share, rel=0.1)
    assert np.mean(steps > 0) == pytest.approx(share / 2, rel=0.15)
    for value, only in ((-1e6, 1.0), (1e6, -1.0)):
        ends = count_steps(tmp_path, *quantized(kind, zero=zero), np.full(SHAPE, value, np.float32))
        assert {*np.unique(ends)} == {0.0, only}


@pytest.mark.parametrize(("weight", "scale"), [("int16", 1), ("int4", 256)])
def test_wide_weights_have_an_error_relative_to_the_signal(
    tmp_path: Path, weight: str, scale: int
) -> None:
    """Weights of 16 bits, and of 4 bits, which are computed like wide ones."""
    kind = TensorProto.DataType.Value(weight.upper())
    integers = (1024 // scale * UNIT).astype(helper.tensor_dtype_to_np_dtype(kind))
    values = EXACT * 2
    signal = values * 1024 / SCALE
    layer = quantized("uint16", integers, zero=30_000, scale=scale)
    steps = np.abs(count_steps(tmp_path, *layer, values))
    assert (steps <= np.abs(signal) * WEIGHT_GAIN + WEIGHT_STEPS + 1.5).all()
    quiet, loud = np.abs(signal) < 1, np.abs(signal) > 20_000
    assert 0.9 * WEIGHT_STEPS < steps[:, :, quiet].max() <= WEIGHT_STEPS + 1.5
    relative = steps[:, :, loud] / np.abs(signal[loud])
    assert relative.max() == pytest.approx(WEIGHT_GAIN, rel=0.2)


def test_with_unsigned_weights_some_16_bit_elements_are_off_by_a_carry(tmp_path: Path) -> None:
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
def test_a_graph_with_inserted_noise_reads_as_its_snapshot(
    name: str, nodes: Nodes, weights: list[Any]
) -> None:
    built_nodes = [
        helper.make_node(op, list(before), list(after), **(attributes[0] if attributes else {}))
        for op, before, after, *attributes in nodes
    ]
    model = build_model(built_nodes, [tensor("x", SHAPE)], [tensor("y", SHAPE)], weights)
    program = OnnxProgram(model, Path())
    graph = program.graphs[METHOD]
    writer = OnnxWriter(graph)
    recipe = Recipe(find_errors(graph, TERMS))
    written, _ = write_changes(program.model.graph, recipe, writer)
    drawn = (
        f"{tensor_proto.name} = {value.dtype} {value}"
        for tensor_proto in writer.constants.values()
        for value in [numpy_helper.to_array(tensor_proto)]
    )
    lines = [printer.to_text(node).strip() for node in written] + sorted(drawn)
    check_snapshot(SNAPSHOTS / f"disturbed {name}.txt", "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("opset", [21, 22, 25])
def test_errors_are_uniform_in_each_opset(opset: int, tmp_path: Path) -> None:
    """onnxruntime has no RandomUniformLike from opset 22 on."""
    size = 0.75
    node = helper.make_node("Identity", ["x"], ["y"])
    model = build_model([node], [tensor("x", (64, 256))], [tensor("y", (64, 256))], [])
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", opset))
    change = Change(lambda value, _, tools: value + tools.draw(value, size))
    program = OnnxProgram(model, tmp_path / "changed.onnx")
    first, second = (program.prepare({METHOD: Recipe({"y": change})}) for _ in range(2))
    zeros = np.zeros((64, 256), np.float32)
    (drawn,), (further,) = first.run([[zeros]] * 2)
    (repeated,) = second.run([[zeros]])[0]
    np.testing.assert_array_equal(repeated, drawn)
    assert np.abs(np.corrcoef(drawn.ravel(), further.ravel())[0, 1]) < 0.03
    assert np.abs(drawn).max() <= size * (1 + 1e-6)
    shares, _ = np.histogram(drawn, 4, (-size, size))
    np.testing.assert_allclose(shares / drawn.size, 0.25, atol=0.02)
    np.testing.assert_allclose(drawn.std(), size / np.sqrt(3), rtol=0.02)
    neighbours = drawn[:, 1:].ravel(), drawn[:, :-1].ravel()
    assert np.abs(np.corrcoef(*neighbours)[0, 1]) < 0.03
