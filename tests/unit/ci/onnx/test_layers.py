"""Where ONNX models lose most, and what their nodes give, on models written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")
pytest.importorskip("torch", reason="torch is not installed in this environment")
from onnx import TensorProto, helper, load, numpy_helper, save

from ci.models.numerics import THREADS
from ci.models.tensors import BEST_DB, MOST_LAYERS
from ci.onnx import layers
from ci.onnx.layers import (
    _compare,
    expose_layers,
    find_clipped,
    find_loss,
    find_rounded,
    infer,
    list_values,
)
from ci.onnx.session import WARNING, open_reference
from provisioning.errors import FailedError

GIVEN = np.random.default_rng(7).standard_normal((1, 16)).astype(np.float32)
WEIGHTS = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32) / 4


def list_labels(model: Path, target: Path) -> tuple[str, ...]:
    return tuple(one.label for one in expose_layers(model, target))


def lose(model: Path, scratch: Path, inputs: Any, reference: Any) -> Any:
    """The loss of a model of which the quantizer removed nothing."""
    return find_loss(model, model, scratch, inputs, reference)


def write_chain(
    path: Path, steps: tuple[float, ...], weights: Any = WEIGHTS, shape: Any = (1, 16)
) -> Path:
    """A chain of matrix products; ``steps`` are those of the input and of each product in 8 bits, 0
    for a value that is not quantized."""
    nodes = []
    constants = {"w": weights, "zero": np.uint8(128)}
    value = "x"
    for number, step in enumerate(steps):
        if number:
            nodes.append(helper.make_node("MatMul", [value, "w"], [f"y{number}"], f"layer{number}"))
            value = f"y{number}"
        if step:
            constants[f"step{number}"] = np.float32(step)
            grid = [f"step{number}", "zero"]
            names = f"{value}_levels", f"{value}_rounded"
            nodes.append(helper.make_node("QuantizeLinear", [value, *grid], [names[0]]))
            nodes.append(helper.make_node("DequantizeLinear", [names[0], *grid], [names[1]]))
            value = names[1]
    given, result = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name in ("x", value)
    )
    kept = [numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items()]
    graph = helper.make_graph(nodes, "chain", [given], [result], kept)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def run(model: Path) -> list[Any]:
    return list(open_reference(model).run(None, {"x": GIVEN}))


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        ((0.8, 0.01, 0.01), "input 'x'"),
        ((0.03, 0.002, 0.03), "layer1"),
        ((0.03, 0.03, 0.5), "layer2"),
    ],
)
def test_the_coarsest_or_clipped_range_is_where_most_is_lost(
    tmp_path: Path, steps: tuple[float, ...], place: str
) -> None:
    reference = run(write_chain(tmp_path / "float.onnx", (0, 0, 0)))
    found = lose(
        write_chain(tmp_path / "model.onnx", steps), tmp_path / "scratch.onnx", (GIVEN,), reference
    )
    assert found is not None
    assert place in found.name
    assert found.behind_db < 16 < found.before_db
    assert found.weights_db == 60


@pytest.mark.parametrize("coarse", ["x", "u"])
def test_the_range_of_each_input_may_lose_most(tmp_path: Path, coarse: str) -> None:
    def write(name: str, *, rounds: bool) -> Path:
        nodes = [helper.make_node("Add", [f"{one}_rounded" for one in "xu"], ["y"])]
        constants = [numpy_helper.from_array(np.uint8(128), "zero")]
        for one in "xu":
            step = np.float32(0.5 if one == coarse else 0.03)
            constants.append(numpy_helper.from_array(step, f"{one}_step"))
            grid = [f"{one}_step", "zero"]
            levels = helper.make_node("QuantizeLinear", [one, *grid], [f"{one}_levels"])
            back = helper.make_node(
                "DequantizeLinear", [f"{one}_levels", *grid], [f"{one}_rounded"]
            )
            plain = helper.make_node("Identity", [one], [f"{one}_rounded"])
            nodes = [*([levels, back] if rounds else [plain]), *nodes]
        ports = [helper.make_tensor_value_info(one, TensorProto.FLOAT, [1, 16]) for one in "xuy"]
        graph = helper.make_graph(nodes, "sum", ports[:2], ports[2:], constants)
        opset = [helper.make_opsetid("", 17)]
        save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / name)
        return tmp_path / name

    given = (GIVEN, GIVEN[:, ::-1].copy())
    session = open_reference(write("float.onnx", rounds=False))
    reference = session.run(None, dict(zip("xu", given, strict=True)))
    model = write("model.onnx", rounds=True)
    found = lose(model, tmp_path / "scratch.onnx", given, reference)
    assert found is not None
    assert f"input '{coarse}'" in found.name


def test_weights_are_told_from_activations(tmp_path: Path) -> None:
    reference = run(write_chain(tmp_path / "float.onnx", (0, 0, 0)))
    coarse = write_chain(tmp_path / "model.onnx", (0.03, 0.03, 0.03), np.round(WEIGHTS * 4) / 4)
    found = lose(coarse, tmp_path / "scratch.onnx", (GIVEN,), reference)
    assert found is not None
    assert found.weights_db < 20


def test_a_model_that_is_not_quantized_loses_nothing(tmp_path: Path) -> None:
    model = write_chain(tmp_path / "model.onnx", (0, 0, 0))
    assert lose(model, tmp_path / "scratch.onnx", (GIVEN,), run(model)) is None


@pytest.mark.parametrize("step", [0, 0.03])
def test_a_model_gives_what_its_nodes_give_behind_its_outputs(tmp_path: Path, step: float) -> None:
    model = write_chain(tmp_path / "model.onnx", (step,) * 4)
    names = list_labels(model, tmp_path / "exposed.onnx")
    output, *layers = run(tmp_path / "exposed.onnx")
    assert np.array_equal(output, run(model)[0])
    assert names == ("MatMul 'layer1'", "MatMul 'layer2'")
    assert len(layers) == 2
    for count, layer in enumerate(layers, 1):
        part = write_chain(tmp_path / "part.onnx", (step,) * (count + 1))
        assert np.array_equal(layer, run(part)[0])


def test_an_axis_of_scales_stays_with_the_result_of_its_node(tmp_path: Path) -> None:
    model = load(write_chain(tmp_path / "net.onnx", (0.03, 0.03, 0.03)))
    scales = numpy_helper.from_array(np.linspace(0.02, 0.1, 16, dtype=np.float32), "scales")
    zeros = numpy_helper.from_array(np.full(16, 128, np.uint8), "zeros")
    model.graph.initializer.extend([scales, zeros])
    for node in model.graph.node:
        if node.op_type != "MatMul" and node.input[0].startswith("y1"):
            node.input[1:] = ["scales", "zeros"]
            node.attribute.append(helper.make_attribute("axis", 1))
    save(model, tmp_path / "net.onnx")
    assert list_labels(tmp_path / "net.onnx", tmp_path / "exposed.onnx") == ("MatMul 'layer1'",)
    _, layer = run(tmp_path / "exposed.onnx")
    *_, added = load(tmp_path / "exposed.onnx").graph.node
    assert [helper.get_attribute_value(one) for one in added.attribute] == [1]
    steps = layer / np.linspace(0.02, 0.1, 16, dtype=np.float32)
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-4)


@pytest.mark.parametrize(
    ("nodes", "most_bytes", "every"),
    [
        (MOST_LAYERS, 1 << 20, 1),
        (MOST_LAYERS + 1, 1 << 20, 2),
        (2 * MOST_LAYERS + 1, 1 << 20, 3),
        (6, 6 * 64, 1),  # each result has 64 bytes
        (6, 6 * 64 - 1, 2),
        (6, 2 * 64, 3),
    ],
)
def test_of_many_or_large_results_every_nth_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, most_bytes: int, every: int
) -> None:
    monkeypatch.setattr(layers, "MOST_BYTES", most_bytes)
    model = write_chain(tmp_path / "model.onnx", (0,) * (nodes + 2))  # the last one is the output
    names = list_labels(model, tmp_path / "exposed.onnx")
    assert [*names] == [f"MatMul 'layer{n}'" for n in range(every, nodes + 1, every)]


def test_results_that_only_move_are_not_given_and_a_node_without_a_name_has_its_result_s(
    tmp_path: Path,
) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["a"], "first"),
        helper.make_node("Transpose", ["a"], ["b"], "moves"),
        helper.make_node("Sqrt", ["b"], ["c"]),
        helper.make_node("Abs", ["c"], ["y"], "last"),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)
        for name, sizes in (("x", [2, 3]), ("y", [3, 2]))
    )
    graph = helper.make_graph(nodes, "named", [x], [y])
    path = tmp_path / "net.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    assert list_labels(path, tmp_path / "exposed.onnx") == ("Abs 'first'", "Sqrt 'c'")


def test_a_model_with_too_many_values_or_values_of_unknown_size_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = run(write_chain(tmp_path / "float.onnx", (0, 0, 0)))
    model = write_chain(tmp_path / "model.onnx", (0.8, 0.01, 0.01))
    size = sum(list_values(load(model)).values())
    assert size == 5 * 16  # three rounded values and two products
    for most, searched in ((size, True), (size - 1, False)):
        monkeypatch.setattr(layers, "MOST_VALUES", most)
        loss = lose(model, tmp_path / "scratch.onnx", (GIVEN,), reference)
        assert (loss is not None) is searched
    free = write_chain(tmp_path / "free.onnx", (0.8, 0.01, 0.01), shape=("n", 16))
    assert lose(free, tmp_path / "scratch.onnx", (GIVEN,), reference) is None


def test_values_of_unknown_sizes_cannot_be_given(tmp_path: Path) -> None:
    model = write_chain(tmp_path / "model.onnx", (0, 0, 0), shape=("n", 16))
    with pytest.raises(FailedError):
        expose_layers(model, tmp_path / "exposed.onnx")


def test_a_reference_is_computed_as_the_file_says(tmp_path: Path) -> None:
    path = write_chain(tmp_path / "net.onnx", (0.03, 0.03))
    levels = [
        open_reference(path, optimize=one).get_session_options().graph_optimization_level.name
        for one in (False, True)
    ]
    assert levels == ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"]
    settings = open_reference(path).get_session_options()
    threads = settings.intra_op_num_threads, settings.inter_op_num_threads
    assert (threads, settings.log_severity_level) == ((THREADS, THREADS), WARNING)


def test_the_worst_output_tells_what_the_weights_lose(tmp_path: Path) -> None:
    """The second output of the model is compared with another reference."""
    model = load(write_chain(tmp_path / "chain.onnx", (0.8, 0.01, 0.01)))
    model.graph.output.append(helper.make_empty_tensor_value_info("y1"))
    save(infer(model), tmp_path / "two.onnx")
    first, second = run(tmp_path / "two.onnx")
    for reference in ([first, 2 * second], [2 * first, second]):
        loss = lose(tmp_path / "two.onnx", tmp_path / "scratch.onnx", [GIVEN], reference)
        assert loss is not None
        assert loss.weights_db < 10


def test_an_operator_is_not_blamed_for_its_worst_input(tmp_path: Path) -> None:
    """A tenth of the exact input is subtracted from the rounded one: 0.9 dB of the loss."""
    model = load(write_chain(tmp_path / "chain.onnx", (0.8,)))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.1), "tenth"))
    (output,) = model.graph.output
    made = helper.make_node("Mul", ["x", "tenth"], ["part"])
    model.graph.node.extend([made, helper.make_node("Sub", [output.name, "part"], ["left"])])
    output.name = "left"
    save(infer(model), tmp_path / "model.onnx")
    loss = lose(tmp_path / "model.onnx", tmp_path / "scratch.onnx", [GIVEN], [0.9 * GIVEN])
    assert loss is not None
    assert "input 'x'" in loss.name


def test_nothing_is_lost_by_rounding_that_changes_nothing(tmp_path: Path) -> None:
    """The input and each product are multiples of a half."""
    given = np.arange(16, dtype=np.float32)[None] / 2
    exact = np.eye(16, dtype=np.float32)
    model = write_chain(tmp_path / "model.onnx", (0.5, 0.5, 0.5), exact)
    assert lose(model, tmp_path / "scratch.onnx", (given,), [given]) is None


def test_what_only_moves_elements_loses_nothing(tmp_path: Path) -> None:
    """A slice has the worst elements alone, and so a lower SQNR than what it is a slice of."""
    model = load(write_chain(tmp_path / "chain.onnx", (0.03, 0.03)))
    for name, place in (("start", 0), ("end", 2)):
        model.graph.initializer.append(numpy_helper.from_array(np.int64([place]), name))
    axis = numpy_helper.from_array(np.int64([1]), "axis")
    model.graph.initializer.append(axis)
    (output,) = model.graph.output
    ends = [output.name, "start", "end", "axis"]
    model.graph.node.append(helper.make_node("Slice", ends, ["part"]))
    model.graph.output.append(helper.make_empty_tensor_value_info("part"))
    save(infer(model), tmp_path / "model.onnx")
    given = GIVEN * np.float32([0.01] * 2 + [1] * 14)
    diagonal = write_chain(tmp_path / "float.onnx", (0, 0))
    reference = open_reference(diagonal).run(None, {"x": given})
    reference.append(reference[0][:, :2])
    loss = lose(tmp_path / "model.onnx", tmp_path / "scratch.onnx", (given,), reference)
    assert loss is not None
    assert "Slice" not in loss.name


def test_an_output_of_integers_tells_nothing_of_the_weights(tmp_path: Path) -> None:
    model = load(write_chain(tmp_path / "chain.onnx", (0.8, 0.01, 0.01)))
    model.graph.node.append(helper.make_node("ArgMax", ["y1"], ["index"]))
    model.graph.output.append(helper.make_empty_tensor_value_info("index"))
    save(infer(model), tmp_path / "two.onnx")
    reference = run(tmp_path / "two.onnx")
    loss = lose(tmp_path / "two.onnx", tmp_path / "scratch.onnx", [GIVEN], reference)
    assert loss is not None
    assert "input 'x'" in loss.name


@pytest.mark.parametrize(
    ("given", "db"),
    [
        ([1, 2], BEST_DB),
        ([1, 2.2], 20 * np.log10(5**0.5 / 0.2)),
        ([1, -1e9], -BEST_DB),
        ([np.nan, 2], -BEST_DB),
    ],
)
def test_a_result_that_is_no_number_is_as_bad_as_can_be(given: list[float], db: float) -> None:
    assert _compare(np.float32([1, 2]), np.float32(given)) == pytest.approx(db, abs=1e-3)


def test_each_float_result_of_a_node_is_listed_with_its_size() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["integers"], to=TensorProto.INT64),
        helper.make_node("Split", ["a"], ["b", "c"], axis=1, num_outputs=2),
        helper.make_node("Sqrt", ["b"], ["y"]),
        helper.make_node("Sqrt", ["c"], ["z"]),
        helper.make_node("Shape", ["b"], ["sizes"]),  # from which the next shape is computed
        helper.make_node("Reshape", ["b", "sizes"], ["d"]),
    ]
    x, y, z = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 3, 4]), ("y", [2, 2, 4]), ("z", [2, 1, 4]))
    )
    graph = helper.make_graph(nodes, "several", [x], [y, z, x])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    assert list_values(model) == {"a": 24, "b": 16, "c": 8, "d": 16, "y": 16, "z": 8}


def test_only_what_a_quantizer_wrote_was_rounded() -> None:
    grid = ["step", "zero"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *grid], ["a"]),
        helper.make_node("DequantizeLinear", ["a", *grid], ["b"]),
        helper.make_node("Reshape", ["a", "shape"], ["c"]),
        helper.make_node("DequantizeLinear", ["c", *grid], ["d"]),  # of integers that were moved
        helper.make_node("DequantizeLinear", ["w", *grid], ["e"]),
        helper.make_node("Relu", ["a"], ["f"]),
    ]
    assert find_rounded(helper.make_graph(nodes, "graph", [], [])) == {"b": "x"}


def test_a_result_of_unknown_rank_or_size_has_no_elements_and_a_scalar_has_one() -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["unknown"]),
        helper.make_node("ReduceSum", ["x"], ["scalar"], keepdims=0),
        helper.make_node("Relu", ["w"], ["open"]),
    ]
    x, w, scalar, opened = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes)
        for name, sizes in (("x", [2, 3]), ("w", ["n", 3]), ("scalar", []), ("open", ["n", 3]))
    )
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, None)
    unknown = helper.make_tensor_value_info("unknown", TensorProto.FLOAT, None)
    outputs = [unknown, scalar, opened]
    graph = helper.make_graph(nodes, "unknown", [x, w, shape], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    assert list_values(model) == {"unknown": 0, "scalar": 1, "open": 0}


def write_relu(path: Path, low: float, high: float) -> Path:
    """Two products with a Clip between them or, quantized, with its range instead."""
    weights = {"w": WEIGHTS, "zero": np.uint8(0), "low": np.float32(low), "high": np.float32(high)}
    weights["step"] = np.float32((high - low) / 255)
    quantized = path.stem == "quantized"
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["b" if quantized else "a"]),
        *(
            [
                helper.make_node("QuantizeLinear", ["b", "step", "zero"], ["q"]),
                helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["c"]),
            ]
            if quantized
            else [helper.make_node("Clip", ["a", "low", "high"], ["b"])]
        ),
        helper.make_node("MatMul", ["c" if quantized else "b", "w"], ["y"]),
    ]
    given, result = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16]) for name in ("x", "y")
    )
    kept = [numpy_helper.from_array(np.asarray(one), name) for name, one in weights.items()]
    graph = helper.make_graph(nodes, "relu", [given], [result], kept)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), path)
    return path


def test_the_weights_alone_are_measured_with_the_clip_that_the_quantizer_removed(
    tmp_path: Path,
) -> None:
    plain = write_relu(tmp_path / "plain.onnx", 0.0, 0.5)
    model = write_relu(tmp_path / "quantized.onnx", 0.0, 0.5)
    loss = find_loss(model, plain, tmp_path / "scratch.onnx", (GIVEN,), run(plain))
    assert loss is not None
    assert loss.weights_db == BEST_DB  # no weight is quantized
    assert find_clipped(model, plain, tmp_path / "scratch.onnx", [(GIVEN,)]) == ()
    (one,) = find_clipped(model, model, tmp_path / "scratch.onnx", [(GIVEN,), (-2 * GIVEN,)])
    assert (one.is_input, one.low, round(one.high, 6)) == (False, 0.0, 0.5)
    assert one.seen_high > 1
    assert one.seen_low < 0


def test_quantizers_of_onnxruntime_have_results_as_those_of_onnx(tmp_path: Path) -> None:
    model = load(write_chain(tmp_path / "m.onnx", (0.1, 0.1, 0.1)))
    for node in model.graph.node:
        if node.op_type.endswith("Linear"):
            node.domain = "com.microsoft"
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    save(model, tmp_path / "own.onnx")
    own = expose_layers(tmp_path / "own.onnx", tmp_path / "exposed.onnx")
    assert own == expose_layers(tmp_path / "m.onnx", tmp_path / "other.onnx")
    exposed = load(tmp_path / "exposed.onnx").graph.node
    assert {one.domain for one in exposed if one.op_type.endswith("Linear")} == {"com.microsoft"}
