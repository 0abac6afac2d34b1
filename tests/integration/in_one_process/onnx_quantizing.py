"""What onnxruntime's quantizer makes of models as people export them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

import numpy as np
import onnx
from onnx import helper

from ci.models.schemes import ONNX, Scheme
from ci.onnx.compile import run_reference
from ci.onnx.fallback import StageError
from ci.onnx.preparation import (
    find_weights,
    quantize_file,
    write_normal_form,
)
from ci.onnx.source import list_inputs
from provisioning.errors import FailedError
from tests.qnn_provider.models import constant, tensor, write_model

SCHEMES = [scheme for scheme in ONNX.schemes if scheme.quantized and scheme is not Scheme.ASIS]
RANDOM = np.random.default_rng(0)
KERNEL = RANDOM.standard_normal((4, 2, 3, 3))
MATRIX = RANDOM.standard_normal((4, 5))
GATES = [RANDOM.standard_normal((1, 12, columns)) for columns in (5, 3)]
INPUTS = [(RANDOM.standard_normal((1, 2, 6, 6)).astype("float32"),) for _ in range(3)]


def write_net(path: Path, *, constants: bool = False) -> Path:
    """A convolution whose kernel is reshaped, a matrix product and an LSTM. With ``constants``
    weights are Constant nodes, as the exporters of PyTorch 1 and Paddle write them."""
    weights = [
        constant("flat", KERNEL.reshape(4, 18)),
        constant("shape", KERNEL.shape, np.int64),
        constant("matrix", MATRIX),
        constant("gates", GATES[0]),
        constant("recurrent", GATES[1]),
        constant("steps", [1, 16, 4], np.int64),
    ]
    nodes = [
        helper.make_node("Reshape", ["flat", "shape"], ["kernel"]),
        helper.make_node("Conv", ["x", "kernel"], ["a"], "conv"),
        helper.make_node("Reshape", ["a", "steps"], ["b"]),
        helper.make_node("MatMul", ["b", "matrix"], ["c"], "product"),
        helper.make_node("LSTM", ["c", "gates", "recurrent"], ["y"], "lstm", hidden_size=3),
    ]
    if constants:
        constant_nodes = [
            helper.make_node("Constant", [], [weight.name], value=weight) for weight in weights
        ]
        nodes, weights = [*constant_nodes, *nodes], []
    ends = [tensor("x", (1, 2, 6, 6))], [tensor("y", (1, 1, 16, 3))]
    return write_model(path, nodes, *ends, weights)


@pytest.mark.parametrize("constants", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_onnx_weight_has_the_type_of_its_scheme(
    tmp_path: Path, scheme: Scheme, constants: bool
) -> None:
    path = write_net(tmp_path / "net.onnx", constants=constants)
    quantize_file(path, tmp_path / "quantized.onnx", scheme, INPUTS)
    weight_types = dict(find_weights(onnx.load(tmp_path / "quantized.onnx")))
    expected_type = scheme.recipe.weights.upper().removeprefix("Q")
    assert len(weight_types) == 4
    names = {onnx.TensorProto.DataType.Name(type_number) for type_number in weight_types.values()}
    assert names == {expected_type}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "quantized.onnx"]


def read_scales(path: Path) -> dict[str, Any]:
    """The scales by which a quantized model's constants are dequantized, and their types."""
    graph = onnx.load(path).graph
    constants_by_name = {
        initializer.name: onnx.numpy_helper.to_array(initializer)
        for initializer in graph.initializer
    }
    return {
        node.input[0]: (constants_by_name[node.input[1]], constants_by_name[node.input[0]].dtype)
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in constants_by_name
    }


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme.recipe.per_channel])
def test_the_scale_of_a_layer_norm_is_unsigned_and_has_one_step(
    tmp_path: Path, scheme: Scheme
) -> None:
    weights = [constant("gain", np.arange(1, 7)), constant("bias", np.zeros(6))]
    node = helper.make_node("LayerNormalization", ["x", "gain", "bias"], ["y"], axis=-1)
    ends = [tensor("x", (1, 2, 6, 6))], [tensor("y", (1, 2, 6, 6))]
    path = write_model(tmp_path / "net.onnx", [node], *ends, weights)
    quantize_file(path, tmp_path / "quantized.onnx", scheme, INPUTS)
    scales = read_scales(tmp_path / "quantized.onnx")
    ((scale, kind),) = [row for name, row in scales.items() if name.startswith("gain")]
    assert (scale.size, kind) == (1, np.uint8)


def test_weights_that_the_quantizer_does_not_reach_are_an_error(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["a"], "inner"),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("ReduceSum", ["r"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["is"], to=9),
    ]
    out = [tensor("a", (1, 4, 4, 4))]
    body = helper.make_graph(nodes[:1], "body", [], out, [constant("kernel", KERNEL)])
    choice = helper.make_node("If", ["is"], ["y"], then_branch=body, else_branch=body)
    ends = [tensor("x", (1, 2, 6, 6))], [tensor("y", (1, 4, 4, 4))]
    path = write_model(tmp_path / "net.onnx", [*nodes[1:], choice], *ends)
    with pytest.raises(StageError, match="quantizer") as caught:
        quantize_file(path, tmp_path / "quantized.onnx", Scheme.U16A4W, INPUTS)
    assert isinstance(caught.value.__cause__, FailedError)
    assert "Conv 'inner' input 1 float" in caught.value.__cause__.what


def test_inputs_without_sizes_get_those_that_are_given(tmp_path: Path) -> None:
    path = write_net(tmp_path / "net.onnx")
    model = onnx.load(path)
    for place in (0, 2, 3):
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_param = "?"
    onnx.save(model, path)
    fixed = write_normal_form(path, tmp_path / "fixed.onnx", [("x", (1, 2, 6, 6))])
    assert fixed == tmp_path / "fixed.onnx"
    assert list_inputs(onnx.load(fixed)) == {"x": (np.dtype("float32"), (1, 2, 6, 6))}
    quantize_file(fixed, tmp_path / "quantized.onnx", Scheme.U8, INPUTS)


def test_a_bias_shared_by_several_nodes_gets_no_name_of_another_value(tmp_path: Path) -> None:
    """The quantizer calls copies of ``bias`` bias1, bias2 ..."""
    edges = [("x", "bias3"), ("bias3", "bias1"), ("bias1", "bias2"), ("bias2", "y")]
    nodes = [helper.make_node("Conv", [source, "w", "bias"], [target]) for source, target in edges]
    weights = [constant("w", RANDOM.standard_normal((2, 2, 1, 1))), constant("bias", [1, 2])]
    ends = [tensor("x", (1, 2, 6, 6))], [tensor("y", (1, 2, 6, 6))]
    path = write_model(tmp_path / "net.onnx", nodes, *ends, weights)
    quantize_file(path, tmp_path / "quantized.onnx", Scheme.U16A16W, INPUTS)
    expected, got = (
        run_reference(model_path, INPUTS) for model_path in (path, tmp_path / "quantized.onnx")
    )
    np.testing.assert_allclose(got[0][0], expected[0][0], atol=0.01)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_infinity_and_a_bias_of_two_dimensions_are_quantized(
    tmp_path: Path, scheme: Scheme
) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "bias"], ["a"]),
        helper.make_node("Max", ["a", "least"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    weights = [
        constant("w", RANDOM.standard_normal((4, 5)) / 8),
        constant("bias", [[1, 2, 3, 4, 5]]),
        constant("least", -np.inf),
    ]
    ends = [tensor("x", (3, 4))], [tensor("y", (3, 5))]
    path = write_model(tmp_path / "net.onnx", nodes, *ends, weights)
    sets = [(RANDOM.uniform(-1, 1, (3, 4)).astype("float32"),) for _ in range(3)]
    quantize_file(path, tmp_path / "quantized.onnx", scheme, sets)
    expected, got = (
        run_reference(model_path, sets) for model_path in (path, tmp_path / "quantized.onnx")
    )
    np.testing.assert_allclose(got[0][0], expected[0][0], atol=0.3)


def write_convolution(path: Path) -> Path:
    """A convolution whose kernel stays as it is."""
    nodes = [helper.make_node("Conv", ["x", "kernel"], ["y"], "conv")]
    ends = [tensor("x", (1, 2, 6, 6))], [tensor("y", (1, 4, 4, 4))]
    return write_model(path, nodes, *ends, [constant("kernel", KERNEL)])


@pytest.mark.parametrize("write", [write_net, write_convolution])
def test_weights_in_another_file_are_quantized(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    path = write(tmp_path / "net.onnx")
    outputs = []
    for name in ("inside.onnx", "outside.onnx"):
        model = onnx.load(path)
        outside = name == "outside.onnx"
        onnx.save(
            model,
            tmp_path / name,
            save_as_external_data=outside,
            location="w.bin",
            size_threshold=0,
        )
        quantize_file(tmp_path / name, tmp_path / f"q-{name}", Scheme.U8_CHANNEL, INPUTS)
        outputs.append(run_reference(tmp_path / f"q-{name}", INPUTS)[0][0])
    np.testing.assert_array_equal(*outputs)
