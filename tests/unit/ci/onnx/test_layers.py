"""Where ONNX models lose most, and what their nodes give, on models written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed in this environment")
pytest.importorskip("torch", reason="torch is not installed in this environment")
from onnx import TensorProto, helper, load, numpy_helper, save

from ci.analysis import layers as loss_module
from ci.analysis.clipping import find_clipped
from ci.analysis.layers import find_float16_loss, find_loss
from ci.graphs.onnx_file import infer
from ci.graphs.onnx_program import read_onnx
from ci.graphs.onnx_session import open_reference
from ci.models.tensors import BEST_DB, MOST_LAYERS
from ci.onnx.layers import expose_layers
from provisioning.errors import FailedError
from tests.qnn_provider.models import constant, tensor, write_model

GIVEN = np.random.default_rng(7).standard_normal((1, 16)).astype(np.float32)
WEIGHTS = np.random.default_rng(3).standard_normal((16, 16)).astype(np.float32) / 4
make = helper.make_node


def list_labels(model: Path) -> list[str]:
    return [layer.label for layer in expose_layers(model, model.with_name("exposed.onnx"))]


def lose(model: Path, reference: Any, inputs: Any = (GIVEN,), plain: Path | None = None) -> Any:
    """The loss of a model of which the quantizer removed nothing, unless ``plain`` is another."""
    scratch = model.with_name("scratch.onnx")
    return find_loss(read_onnx(model, scratch, plain or model), inputs, reference)


def quantize(value: str, step: str) -> tuple[list[Any], str]:
    """Nodes that round a value, and the name of their result."""
    names = f"{value}_levels", f"{value}_rounded"
    return [
        make("QuantizeLinear", [value, step, "zero"], [names[0]]),
        make("DequantizeLinear", [names[0], step, "zero"], [names[1]]),
    ], names[1]


def write_chain(
    path: Path, steps: tuple[float, ...], weights: Any = WEIGHTS, shape: Any = (1, 16)
) -> Path:
    """A chain of matrix products; ``steps`` are those of the input and of each product in 8 bits, 0
    for a value that is not quantized."""
    nodes = []
    constants = [constant("w", weights), constant("zero", 128, np.uint8)]
    value = "x"
    for number, step in enumerate(steps):
        if number:
            nodes.append(make("MatMul", [value, "w"], [f"y{number}"], f"layer{number}"))
            value = f"y{number}"
        if step:
            constants.append(constant(f"step{number}", step))
            rounding, value = quantize(value, f"step{number}")
            nodes += rounding
    return write_model(path, nodes, [tensor("x", shape)], [tensor(value, shape)], constants)


def run(model: Path, *inputs: Any) -> list[Any]:
    return list(open_reference(model).run(None, dict(zip("xu", inputs or (GIVEN,), strict=False))))


@pytest.fixture
def float_outputs(tmp_path: Path) -> list[Any]:
    """The outputs of a chain of two products that is not quantized."""
    return run(write_chain(tmp_path / "float.onnx", (0, 0, 0)))


@pytest.mark.parametrize(
    ("steps", "place"),
    [
        ((0.8, 0.01, 0.01), "input 'x'"),
        ((0.03, 0.002, 0.03), "layer1"),
        ((0.03, 0.03, 0.5), "layer2"),
    ],
)
def test_the_largest_loss_is_at_the_coarsest_or_clipped_onnx_range(
    tmp_path: Path, steps: tuple[float, ...], place: str, float_outputs: list[Any]
) -> None:
    loss = lose(write_chain(tmp_path / "model.onnx", steps), float_outputs)
    assert place in loss.name
    assert loss.behind_db < 16 < loss.before_db
    assert loss.weights_db == 60
    coarse = write_chain(tmp_path / "coarse.onnx", (0.03, 0.03, 0.03), np.round(WEIGHTS * 4) / 4)
    assert lose(coarse, float_outputs).weights_db < 20
    multiples = (
        np.arange(16, dtype=np.float32)[None] / 2
    )  # it and each product are multiples of a half
    exact = write_chain(tmp_path / "exact.onnx", (0.5, 0.5, 0.5), np.eye(16))
    assert lose(exact, [multiples], (multiples,)) is None


def test_a_model_with_too_many_values_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, float_outputs: list[Any]
) -> None:
    model = write_chain(tmp_path / "model.onnx", (0.8, 0.01, 0.01))
    size = 6 * 16  # the input, three rounded values and two products
    for most, searched in ((size, True), (size - 1, False)):
        monkeypatch.setattr(loss_module, "MOST_VALUES", most)
        assert (lose(model, float_outputs) is not None) is searched
    free = write_chain(tmp_path / "free.onnx", (0.8, 0.01, 0.01), shape=("n", 16))
    assert lose(free, float_outputs) is not None  # the sample shows the sizes
    with pytest.raises(FailedError):
        list_labels(free)


def add(path: Path, nodes: list[Any], *outputs: str, **constants: Any) -> Path:
    """Add nodes to a model, with outputs of their own."""
    model = load(path)
    weights = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    ]
    model.graph.initializer.extend(weights)
    model.graph.node.extend(nodes)
    model.graph.output.extend(map(helper.make_empty_tensor_value_info, outputs))
    save(infer(model), path)
    return path


def test_the_worst_output_tells_what_the_weights_lose(tmp_path: Path) -> None:
    """The second output has another reference. An output of integers shows nothing about the
    weights."""
    model = add(write_chain(tmp_path / "two.onnx", (0.8, 0.01, 0.01)), [], "y1")
    first, second = run(model)
    for reference in ([first, 2 * second], [2 * first, second]):
        assert lose(model, reference).weights_db < 10
    index = make("ArgMax", ["y1"], ["index"])
    model = add(write_chain(tmp_path / "index.onnx", (0.8, 0.01, 0.01)), [index], "index")
    assert "input 'x'" in lose(model, run(model)).name


def test_operators_that_only_move_elements_are_not_named_as_a_loss(tmp_path: Path) -> None:
    """A slice that contains only the worst elements has a lower SQNR than its input."""
    part = make("Slice", ["y1_rounded", "start", "end", "axis"], ["part"])
    ends = {name: np.int64([place]) for name, place in (("start", 0), ("end", 2), ("axis", 1))}
    model = add(write_chain(tmp_path / "m.onnx", (0.03, 0.03)), [part], "part", **ends)
    uneven = GIVEN * np.float32([0.01] * 2 + [1] * 14)
    (right,) = run(write_chain(tmp_path / "float.onnx", (0, 0)), uneven)
    assert "Slice" not in lose(model, [right, right[:, :2]], (uneven,)).name


def write_clip(path: Path, low: float, high: float) -> Path:
    """Two products with a Clip between them or, quantized, with its range instead."""
    if path.stem == "quantized":
        inner, result = quantize("b", "step")
        nodes = [make("MatMul", ["x", "w"], ["b"]), *inner, make("MatMul", [result, "w"], ["y"])]
    else:
        nodes = [make("MatMul", ["x", "w"], ["a"]), make("Clip", ["a", "low", "high"], ["b"])]
        nodes.append(make("MatMul", ["b", "w"], ["y"]))
    values = {"w": WEIGHTS, "low": low, "high": high, "step": (high - low) / 255}
    weights = [constant(name, value) for name, value in values.items()]
    weights.append(constant("zero", 0, np.uint8))
    return write_model(path, nodes, [tensor("x", (1, 16))], [tensor("y", (1, 16))], weights)


def test_the_weights_alone_are_measured_with_the_clip_that_the_quantizer_removed(
    tmp_path: Path,
) -> None:
    plain = write_clip(tmp_path / "plain.onnx", 0.0, 0.5)
    model = write_clip(tmp_path / "quantized.onnx", 0.0, 0.5)
    assert lose(model, run(plain), plain=plain).weights_db == BEST_DB  # no weight is quantized
    scratch = tmp_path / "scratch.onnx"
    assert find_clipped(read_onnx(model, scratch, plain), [(GIVEN,)]) == ()
    (clipped,) = find_clipped(read_onnx(model, scratch, model), [(GIVEN,), (-2 * GIVEN,)])
    assert (clipped.is_input, clipped.low, round(clipped.high, 6)) == (False, 0.0, 0.5)
    assert clipped.seen_low < 0 < 1 < clipped.seen_high


# -- what the nodes give ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 0.03])
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
def test_an_onnx_model_with_exposed_nodes_returns_their_results_after_its_outputs(
    tmp_path: Path, step: float, domain: str
) -> None:
    """Quantizers of ONNX Runtime's domain and of ONNX's are treated alike."""
    path = write_chain(tmp_path / "model.onnx", (step,) * 4)
    model = load(path)
    for node in model.graph.node:
        node.domain = domain if node.op_type.endswith("Linear") else ""
    save(model, path)
    assert list_labels(path) == ["MatMul 'layer1'", "MatMul 'layer2'"]
    output, *results = run(tmp_path / "exposed.onnx")
    assert np.array_equal(output, run(path)[0])
    assert len(results) == 2
    for count, layer in enumerate(results, 1):
        part = write_chain(tmp_path / "part.onnx", (step,) * (count + 1))
        assert np.array_equal(layer, run(part)[0])
    exposed = load(tmp_path / "exposed.onnx").graph.node
    assert {node.domain for node in exposed if node.op_type.endswith("Linear")} <= {domain}


@pytest.mark.parametrize(
    ("nodes", "most_bytes", "step"),
    [
        (MOST_LAYERS, 1 << 20, 1),
        (2 * MOST_LAYERS + 1, 1 << 20, 3),
        (6, 6 * 64 - 1, 2),  # each result has 64 bytes
        (6, 20, 6),
    ],
)
def test_many_or_large_results_are_exposed_only_every_nth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: int, most_bytes: int, step: int
) -> None:
    monkeypatch.setattr(loss_module, "MOST_BYTES", most_bytes)
    model = write_chain(tmp_path / "model.onnx", (0,) * (nodes + 2))  # the last one is the output
    labels = [f"MatMul 'layer{n}'" for n in range(step, nodes + 1, step)]
    assert list_labels(model) == labels


def lose_float16(path: Path, nodes: list[Any], values: Any, constants: Any = ()) -> Any:
    model = write_model(
        path, nodes, [tensor("x", values.shape)], [tensor("y", values.shape)], constants
    )
    return find_float16_loss(read_onnx(model, path.with_name("scratch.onnx")), [(values,)])


def test_float16_loses_the_most_at_the_sine_of_a_large_angle(tmp_path: Path) -> None:
    nodes = [make("Mul", ["x", "far"], ["angle"], "scale"), make("Sin", ["angle"], ["y"], "wave")]
    fractions = np.linspace(0, 1, 32, dtype=np.float32)[None]
    lost = lose_float16(tmp_path / "m.onnx", nodes, fractions, [constant("far", 2000.0)])
    assert (lost.name, lost.is_float16, lost.beyond) == ("Sin 'wave'", True, None)
    assert lost.behind_db < 30 < lost.before_db
    assert lost.largest == pytest.approx(2000)
    assert [(reading.name, reading.largest) for reading in lost.readings] == [
        ("Sin 'wave'", pytest.approx(2000))
    ]


def test_numbers_that_a_logarithm_reads_are_lost_in_what_they_are_summed_from(
    tmp_path: Path,
) -> None:
    sample = np.linspace(-6, 6, 16, dtype=np.float32)[None]
    sums = np.tril(np.ones((16, 16), np.float32)).T
    first, powers = quantize("power", "step")
    second, totals = quantize("sum", "step")
    nodes = [make("Exp", ["x"], ["power"], "exp"), *first]
    nodes += [make("MatMul", [powers, "below"], ["sum"], "sums"), *second]
    nodes += [make("Log", [totals], ["y"], "log")]
    constants = [constant("step", 4.0), constant("zero", 0, np.uint8), constant("below", sums)]
    model = write_model(
        tmp_path / "m.onnx", nodes, [tensor("x", (1, 16))], [tensor("y", (1, 16))], constants
    )
    (_, reading) = lose(model, [np.log(np.exp(sample) @ sums)], (sample,)).readings
    assert reading.name == "Log 'log'"
    assert reading.kept_db == BEST_DB  # and not only without the second rounding


@pytest.mark.parametrize(
    ("factor", "place"), [(1e3, "Mul 'square'"), (1.0, ""), (1e-4, "Mul 'square'")]
)
def test_numbers_of_an_onnx_model_that_float16_cannot_hold_are_found(
    factor: float, place: str, tmp_path: Path
) -> None:
    nodes = [
        make("Mul", ["x", "factor"], ["z"], "scale"),
        make("Mul", ["z", "z"], ["zz"], "square"),
        make("ReduceMean", ["zz", "axes"], ["mean"], "mean"),
        make("Add", ["mean", "eps"], ["more"], "add"),
        make("Sqrt", ["more"], ["root"], "root"),
        make("Div", ["z", "root"], ["y"], "norm"),
    ]
    constants = [
        constant("factor", factor),
        constant("eps", 1e-12),
        constant("axes", [-1], np.int64),
    ]
    lost = lose_float16(tmp_path / "m.onnx", nodes, GIVEN, constants)
    assert (lost.beyond.name if lost and lost.beyond else "") == place


def test_sums_of_whole_numbers_are_compared_with_the_errors_of_float16(tmp_path: Path) -> None:
    nodes = [
        make("MatMul", ["x", "below"], ["sum"], "sums"),
        make("Equal", ["sum", "three"], ["same"], "compare"),
        make("Where", ["same", "sum", "none"], ["y"], "choose"),
    ]
    below = np.tril(np.ones((16, 16), np.float32)).T
    constants = [constant("below", below), constant("three", 3.0), constant("none", 0.0)]
    lost = lose_float16(tmp_path / "m.onnx", nodes, np.ones((1, 16), np.float32), constants)
    assert [decision.name for decision in lost.decided.decisions] == ["Equal 'compare'"]
    assert lost.decided.kept_db > lost.decided.reached_db + 3


DECIDERS = {
    "ArgMin": [make("ArgMin", ["near"], ["ids"], "pick", axis=-1, keepdims=0)],
    "TopK": [make("TopK", ["near", "two"], ["best", "ids"], "pick")],
    "Cast": [
        make("Mul", ["near", "wide"], ["place"]),
        make("Cast", ["place"], ["ids"], "pick", to=TensorProto.INT64),
    ],
    "": [make("ArgMin", ["x"], ["ids"], "pick", axis=-1, keepdims=0)],  # of exact numbers
}


@pytest.mark.parametrize("operator", DECIDERS)
def test_decisions_of_an_onnx_model_on_rounded_numbers_are_found(
    operator: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(5)
    sample = rng.random((8, 64), np.float32)
    rounding, near = quantize("x", "step")
    nodes = [*rounding, make("Identity", [near], ["near"]), *DECIDERS[operator]]
    nodes += [make("Gather", ["table", "ids"], ["y"], "look")]
    constants = [
        *(constant("step", 0.1), constant("zero", 128, np.uint8), constant("wide", 60.0)),
        *(constant("two", [2], np.int64), constant("table", rng.standard_normal((64, 4)))),
    ]
    shape = (8, 2, 4) if operator == "TopK" else (8, 64, 4) if operator == "Cast" else (8, 4)
    model = write_model(
        tmp_path / "m.onnx", nodes, [tensor("x", sample.shape)], [tensor("y", shape)], constants
    )
    lost = lose(model, run(model, sample), (sample,))
    decided = lost.decided if lost else None
    names = [decision.name for decision in (decided.decisions if decided else ())]
    assert names == [f"{operator} 'pick'"] * bool(operator)
    if decided:
        assert decided.kept_db > decided.reached_db + 3
        assert 0 < decided.decisions[0].share <= 1
