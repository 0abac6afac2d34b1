"""Each rewrite of a .tflite file: the operators that it leaves, the same outputs on LiteRT's CPU,
and what of the file stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.graphs.graph import Array
from ci.graphs.litert_file import (
    list_entries,
    list_numbers,
    name_operator,
    pack_model,
    read_model,
    read_shape,
    schema,
)
from ci.graphs.litert_session import Reference
from ci.litert.suite import Net, make_model
from ci.mend.litert_files import LitertFile, open_file
from ci.mend.litert_form import LitertSubject
from ci.mend.proof import RewriteProof
from ci.mend.table import read_rewrites
from ci.mend.trials import try_recipe
from provisioning.errors import UsageError
from tests.build.litert_states import make_gru

IMAGE = (1, 8, 8, 4)
VALID, RELU = 1, schema.ActivationFunctionType.RELU
PADS = np.array([[0, 0], [2, 2], [2, 2], [0, 0]], np.int32)


def finish(net: Net, source: int, result: int) -> bytes:
    net.end([source], [result])
    return net.pack()


def convolve(
    net: Net, source: int, shape: tuple[int, ...], kernel: int, kind: str = "CONV_2D", **values: Any
) -> int:
    channels = shape[3]
    depthwise = kind == "DEPTHWISE_CONV_2D"
    weights = net.draw(
        *((1, kernel, kernel, channels) if depthwise else (channels, kernel, kernel, 4))
    )
    options = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, **values}
    if depthwise:
        options["depthMultiplier"] = 1
    name = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
    return net.call(kind, (source, weights, net.draw(channels, scale=0.1)), shape, name, **options)


def make_padded_convolution() -> bytes:
    """A kernel that is as long as the padding in front of it, then a ReLU that it contains."""
    net = Net()
    x = net.add_tensor(IMAGE, "x")
    padded = net.call("PAD", (x, net.add_constant(PADS)), (1, 12, 12, 4), "PadOptions")
    shape = (1, 11, 11, 4)
    y = convolve(net, padded, shape, 2, padding=VALID, fusedActivationFunction=RELU)
    return finish(net, x, net.call("TANH", (y,), shape))


def make_strided_convolution() -> bytes:
    net = Net()
    x = net.add_tensor((1, 9, 9, 4), "x")
    options = {"strideH": 2, "strideW": 2, "dilationHFactor": 2, "dilationWFactor": 2, "padding": 0}
    return finish(net, x, convolve(net, x, (1, 5, 5, 4), 3, "DEPTHWISE_CONV_2D", **options))


def make_depthwise(
    image: tuple[int, ...], kernel: tuple[int, int], multiplier: int, result: tuple[int, ...]
) -> bytes:
    net = Net()
    x = net.add_tensor(image, "x")
    options = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    options |= {"padding": VALID, "depthMultiplier": multiplier}
    reads = (x, net.draw(1, *kernel, result[-1]), net.draw(result[-1], scale=0.1))
    name = "DepthwiseConv2DOptions"
    return finish(net, x, net.call("DEPTHWISE_CONV_2D", reads, result, name, **options))


def make_crowded_convolution() -> bytes:
    return make_depthwise((1, 1, 12, 1), (1, 4), 257, (1, 1, 9, 257))


def make_crowded_channels() -> bytes:
    return make_depthwise((1, 6, 6, 4), (3, 3), 64, (1, 4, 4, 256))


def make_pool() -> bytes:
    net = Net()
    x = net.add_tensor((1, 16, 4, 4), "x")
    options = {"strideH": 1, "strideW": 1, "filterHeight": 2, "filterWidth": 2, "padding": VALID}
    pooled = net.call("AVERAGE_POOL_2D", (x,), (1, 15, 3, 4), "Pool2DOptions", **options)
    return finish(net, x, convolve(net, pooled, (1, 13, 1, 4), 3, padding=VALID))


def make_padded_pool() -> bytes:
    net = Net()
    x = net.add_tensor((1, 8, 8, 4), "x")
    sides = net.add_constant(np.array([[0, 0], [1, 1], [1, 1], [0, 0]], np.int32))
    hidden = net.call("RELU", (x,), (1, 8, 8, 4))
    padded = net.call("PAD", (hidden, sides), (1, 10, 10, 4), "PadOptions")
    options = {"strideH": 2, "strideW": 2, "filterHeight": 2, "filterWidth": 2, "padding": VALID}
    pooled = net.call("AVERAGE_POOL_2D", (padded,), (1, 5, 5, 4), "Pool2DOptions", **options)
    return finish(net, x, pooled)


def make_transposed_convolution() -> bytes:
    net = Net()
    x = net.add_tensor((1, 4, 4, 8), "x")
    sizes = net.add_constant(np.array([1, 9, 9, 6], np.int32))
    options = {"strideH": 2, "strideW": 2, "padding": VALID}
    reads = (sizes, net.draw(6, 2, 2, 8), x)
    return finish(
        net, x, net.call("TRANSPOSE_CONV", reads, (1, 9, 9, 6), "TransposeConvOptions", **options)
    )


def make_positions(last: str = "LOGISTIC") -> bytes:
    net, shape = Net(), (2, 16, 64)
    x = net.add_tensor(shape, "x")
    total = net.call("ADD", (x, net.draw(16, 64)), shape, "AddOptions")
    return finish(net, x, net.call(last, (total,), shape))


def make_factor() -> bytes:
    net, shape = Net(), (1, 4, 5, 6)
    x = net.add_tensor(shape, "x")
    total = net.call("ADD", (x, net.draw(4, 1, 1)), shape, "AddOptions")
    return finish(net, x, net.call("MUL", (total, net.add_number(0.5)), shape, "MulOptions"))


def make_equal_sum() -> bytes:
    net, shape = Net(), (1, 1, 4, 8, 16)
    x = net.add_tensor(shape, "x")
    ones = net.add_constant(np.ones((1, 1, 4, 8, 1), np.float32))
    return finish(net, x, net.call("ADD", (x, ones), shape, "AddOptions"))


def make_column_sum() -> bytes:
    net = Net()
    x = net.add_tensor((34, 1), "x")
    axis = net.add_constant(np.array([1], np.int32))
    return finish(net, x, net.call("SUM", (x, axis), (34,), "ReducerOptions", keepDims=False))


def make_short_row() -> bytes:
    net = Net()
    x = net.add_tensor((1, 1, 16, 20), "x")
    weights, bias = net.draw(32, 1, 7, 20), net.draw(32, scale=0.1)
    options = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1, "padding": 0}
    shape = (1, 1, 16, 32)
    return finish(
        net, x, net.call("CONV_2D", (x, weights, bias), shape, "Conv2DOptions", **options)
    )


def make_silu() -> bytes:
    net, shape = Net(), (2, 8)
    x = net.add_tensor(shape, "x")
    layer = net.add_linear(x, shape, 8)
    gate = net.call("LOGISTIC", (layer,), shape)
    return finish(net, x, net.call("MUL", (layer, gate), shape, "MulOptions"))


def make_complement() -> bytes:
    net, shape = Net(), (2, 8)
    x = net.add_tensor(shape, "x")
    gate = net.call("LOGISTIC", (x,), shape)
    left = net.call("SUB", (net.add_number(1.0), gate), shape, "SubOptions")
    return finish(net, x, net.call("MUL", (gate, left), shape, "MulOptions"))


def make_floor() -> bytes:
    net, shape = Net(), (2, 8)
    x = net.add_tensor(shape, "x")
    raised = net.call("MAXIMUM", (x, net.add_number(1e-8)), shape, "MaximumMinimumOptions")
    return finish(net, x, net.call("LOG", (raised,), shape))


def make_exp() -> bytes:
    net, shape = Net(), (2, 8)
    x = net.add_tensor(shape, "x")
    return finish(net, x, net.call("EXP", (x,), shape))


def make_softmax(axis: int = 2) -> bytes:
    """A softmax that is written out, as exp(x) / exp(x).sum(axis)."""
    net, shape = Net(), (2, 3, 4)
    x = net.add_tensor(shape, "x")
    exp = net.call("EXP", (x,), shape)
    total = add_row_sum(net, exp, shape, axis)
    return finish(net, x, net.call("DIV", (exp, total), shape, "DivOptions"))


def add_row_sum(net: Net, source: int, shape: tuple[int, ...], axis: int) -> int:
    """Add a sum along an axis, which is kept."""
    axes = net.add_constant(np.array([axis], np.int32))
    sizes = [1 if place == axis else size for place, size in enumerate(shape)]
    return net.call("SUM", (source, axes), sizes, "ReducerOptions", keepDims=True)


def make_tanh() -> bytes:
    """A tanh that is written out, with exp(x) and exp(-x)."""
    net, shape = Net(), (2, 8)
    x = net.add_tensor(shape, "x")
    rising = net.call("EXP", (x,), shape)
    falling = net.call("EXP", (net.call("NEG", (x,), shape),), shape)
    difference = net.call("SUB", (rising, falling), shape, "SubOptions")
    total = net.call("ADD", (rising, falling), shape, "AddOptions")
    return finish(net, x, net.call("DIV", (difference, total), shape, "DivOptions"))


def make_sigmoid() -> bytes:
    """A sigmoid that is written out, as exp(x) / (1 + exp(x))."""
    net, shape = Net(), (2, 8)
    x = net.add_tensor(shape, "x")
    exp = net.call("EXP", (x,), shape)
    total = net.call("ADD", (exp, net.add_number(1.0)), shape, "AddOptions")
    return finish(net, x, net.call("DIV", (exp, total), shape, "DivOptions"))


def make_log_of_sum() -> bytes:
    """The logarithm of a sum of exps."""
    net, shape = Net(), (2, 3, 4)
    x = net.add_tensor(shape, "x")
    total = add_row_sum(net, net.call("EXP", (x,), shape), shape, 2)
    return finish(net, x, net.call("LOG", (total,), (2, 3, 1)))


def make_weighted_mean() -> bytes:
    """Products with the results of an exp, divided by their sum, as attention by hand."""
    net, shape = Net(), (2, 3, 4)
    x = net.add_tensor(shape, "x")
    exp = net.call("EXP", (x,), shape)
    weighted = net.call("BATCH_MATMUL", (exp, net.draw(2, 4, 5)), (2, 3, 5), "BatchMatMulOptions")
    total = add_row_sum(net, exp, shape, 2)
    return finish(net, x, net.call("DIV", (weighted, total), (2, 3, 5), "DivOptions"))


def make_windows() -> bytes:
    """Window attention's views of six axes."""
    net = Net()
    x = net.add_tensor((1, 8, 8, 4), "x")
    sizes = [1, 2, 4, 2, 4, 4]
    shape = net.add_constant(np.array(sizes, np.int32))
    split = net.call("RESHAPE", (x, shape), sizes, "ReshapeOptions")
    order = net.add_constant(np.array([0, 1, 3, 2, 4, 5], np.int32))
    moved = net.call("TRANSPOSE", (split, order), (1, 2, 2, 4, 4, 4), "TransposeOptions")
    flat = net.add_constant(np.array([4, 16, 4], np.int32))
    return finish(net, x, net.call("RESHAPE", (moved, flat), (4, 16, 4), "ReshapeOptions"))


def make_running_sum() -> bytes:
    net, shape = Net(), (1, 12, 4)
    x = net.add_tensor(shape, "x")
    axis = net.add_constant(np.array(1, np.int32))
    return finish(net, x, net.call("CUMSUM", (x, axis), shape, "CumsumOptions"))


def make_product() -> bytes:
    """A product of rank 5 with a constant that is broadcast."""
    net = Net()
    x = net.add_tensor((1, 2, 3, 4, 8), "x")
    matrices = net.add_constant(np.arange(48, dtype=np.float32).reshape(1, 1, 3, 8, 2))
    shape = (1, 2, 3, 4, 2)
    return finish(net, x, net.call("BATCH_MATMUL", (x, matrices), shape, "BatchMatMulOptions"))


def make_longer_rows(shape: tuple[int, ...] = (1, 8, 8, 8)) -> bytes:
    """A padding at the end of the last two axes."""
    net = Net()
    x = net.add_tensor(shape, "x")
    counts = np.zeros((len(shape), 2), np.int32)
    counts[-2:, 1] = 1
    wide = (*shape[:-2], shape[-2] + 1, shape[-1] + 1)
    return finish(net, x, net.call("PAD", (x, net.add_constant(counts)), wide, "PadOptions"))


class Row(NamedTuple):
    """A rewrite of a model, and the operators of the rewritten file."""

    rewrite: str
    make: Callable[[], bytes]
    operators: str


CHANGED = {
    "surround-kernel": Row("surround-kernel", make_padded_convolution, "PAD CONV_2D TANH"),
    "repeat-channel": Row("repeat-channel", make_crowded_convolution, "CONV_2D"),
    "join-crowded-groups": Row("join-crowded-groups", make_crowded_channels, "CONV_2D"),
    "stride-by-pool": Row(
        "stride-by-pool", make_strided_convolution, "DEPTHWISE_CONV_2D MAX_POOL_2D"
    ),
    "convolve-average": Row("convolve-average", make_pool, "PAD DEPTHWISE_CONV_2D CONV_2D"),
    "convolve-average of a padding": Row(
        "convolve-average", make_padded_pool, "RELU PAD DEPTHWISE_CONV_2D"
    ),
    "reach-rows": Row("reach-rows", make_transposed_convolution, "TRANSPOSE_CONV"),
    "concatenate-padding": Row(
        "concatenate-padding", make_longer_rows, "CONCATENATION CONCATENATION"
    ),
    "concatenate-padding of rank 3": Row(
        "concatenate-padding",
        partial(make_longer_rows, (8, 8, 8)),
        "CONCATENATION CONCATENATION",
    ),
    "expand-constant": Row("expand-constant", make_positions, "ADD LOGISTIC"),
    "multiply-before-add": Row("multiply-before-add", make_factor, "MUL ADD"),
    "subtract-negative": Row("subtract-negative", make_equal_sum, "SUB"),
    "reshape-single": Row("reshape-single", make_column_sum, "RESHAPE"),
    "convolve-longer-row": Row(
        "convolve-longer-row", make_short_row, "PAD CONV_2D TRANSPOSE SLICE TRANSPOSE"
    ),
    "separate-activation": Row(
        "separate-activation", make_silu, "FULLY_CONNECTED TRANSPOSE LOGISTIC TRANSPOSE MUL"
    ),
    "limit-before-activation": Row(
        "limit-before-activation", make_silu, "FULLY_CONNECTED MAXIMUM LOGISTIC MUL"
    ),
    "complement-by-sigmoid": Row(
        "complement-by-sigmoid", make_complement, "LOGISTIC NEG LOGISTIC MUL"
    ),
    "silu-by-tanh": Row("silu-by-tanh", make_silu, "FULLY_CONNECTED MUL TANH MUL ADD"),
    "scale-log-floor": Row(
        "scale-log-floor", make_floor, "MINIMUM MUL MUL MAXIMUM LOG MAXIMUM LOG ADD ADD"
    ),
    "raise-log-floor": Row("raise-log-floor", make_floor, "MAXIMUM LOG"),
    "limit-exp": Row("limit-exp", make_exp, "MAXIMUM EXP"),
    "name-softmax": Row("name-softmax", make_softmax, "SOFTMAX"),
    "name-softmax of another axis": Row(
        "name-softmax", partial(make_softmax, 1), "TRANSPOSE SOFTMAX TRANSPOSE"
    ),
    "name-tanh": Row("name-tanh", make_tanh, "TANH"),
    "name-sigmoid": Row("name-sigmoid", make_sigmoid, "LOGISTIC"),
    "subtract-maximum": Row(
        "subtract-maximum", make_log_of_sum, "REDUCE_MAX SUB MAXIMUM EXP SUM LOG ADD"
    ),
    "subtract-maximum of weights": Row(
        "subtract-maximum",
        make_weighted_mean,
        "REDUCE_MAX SUB MAXIMUM EXP BATCH_MATMUL SUM DIV",
    ),
    "multiply-cumulative": Row(
        "multiply-cumulative", make_running_sum, "TRANSPOSE BATCH_MATMUL TRANSPOSE"
    ),
    "lower-rank": Row("lower-rank", make_windows, "RESHAPE TRANSPOSE RESHAPE"),
    "multiply-lower-rank": Row("multiply-lower-rank", make_product, "RESHAPE BATCH_MATMUL RESHAPE"),
}


def list_kinds(data: bytes) -> str:
    model = read_model(data)
    return " ".join(name_operator(model, operator) for operator in model.subgraphs[0].operators)


def draw(data: bytes, count: int = 2) -> list[list[Array]]:
    random, model = np.random.default_rng(3), read_model(data)
    (entry,) = list_entries(model)
    tensors = model.subgraphs[0].tensors
    return [
        [
            np.abs(random.standard_normal(read_shape(tensors[n]))).astype(np.float32)
            for n in entry.inputs
        ]
        for _ in range(count)
    ]


def run(data: bytes, sets: list[list[Array]]) -> list[tuple[Array, ...]]:
    model = read_model(data)
    return Reference(data, model, list_entries(model)).run(sets)


def test_each_rewrite_of_the_table_has_a_row() -> None:
    rewrites = {row.rewrite for row in CHANGED.values()}
    assert sorted(row.name for row in read_rewrites("litert")) == sorted(rewrites)


@pytest.mark.parametrize("name", CHANGED)
def test_a_rewrite_leaves_operators_that_compute_the_same(name: str) -> None:
    rewrite, make, operators = CHANGED[name]
    data = make()
    sets = draw(data)
    proof = RewriteProof(LitertSubject(LitertFile(Path("net.tflite"), data), sets))
    (row,) = [each for each in read_rewrites("litert") if each.name == rewrite]
    attempt = try_recipe(proof, [row])
    assert (attempt.applies, attempt.fault) == (True, "")
    rewritten, _ = proof.rewrite([rewrite])
    assert list_kinds(rewritten) == operators
    for before, after in zip(run(data, sets), run(rewritten, sets), strict=True):
        np.testing.assert_allclose(after[0], before[0], rtol=1e-4, atol=1e-5)
    old, new = list_entries(read_model(data)), list_entries(read_model(rewritten))
    assert [(e.key, e.input_names, e.output_names) for e in old] == [
        (e.key, e.input_names, e.output_names) for e in new
    ]


def test_what_no_rewrite_changes_is_written_as_it_was() -> None:
    """Also the operator that contains a ReLU, and the metadata."""
    model = read_model(make_padded_convolution())
    note, buffer = schema.MetadataT(), schema.BufferT()
    note.name, note.buffer = b"labels", len(model.buffers)
    buffer.data = np.frombuffer(b"cat dog", np.uint8)
    model.buffers.append(buffer)
    model.metadata = [note]
    rewritten, _ = LitertFile(Path("net.tflite"), pack_model(model)).rewrite(["surround-kernel"])
    rewritten_model = read_model(rewritten)
    (kept_entry,) = rewritten_model.metadata
    assert bytes(rewritten_model.buffers[kept_entry.buffer].data) == b"cat dog"
    layer = rewritten_model.subgraphs[0].operators[1]
    assert layer.builtinOptions.fusedActivationFunction == RELU
    results = [rewritten_model.subgraphs[0].tensors[n].name for n in list_numbers(layer.outputs)]
    assert results == [model.subgraphs[0].tensors[5].name]


def test_a_wrong_rewrite_is_found() -> None:
    data = make_factor()
    proof = RewriteProof(LitertSubject(LitertFile(Path("net.tflite"), data), draw(data)))
    (row,) = [each for each in read_rewrites("litert") if each.name == "multiply-before-add"]
    wrong = read_model(data)
    wrong.buffers[-1].data = np.frombuffer(np.float32(0.4).tobytes(), np.uint8)
    proof.rewrite = lambda names: (pack_model(wrong), LitertFile(Path("x"), data).rewrite(names)[1])  # type: ignore[method-assign]
    assert "differs by" in try_recipe(proof, [row]).fault


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (make_model("dense_int16"), "is quantized"),
        (make_model("signatures"), "has 2 signatures"),
    ],
)
def test_files_that_are_not_rewritten_are_refused(
    data: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=message):
        open_file(path)


def test_a_model_with_variables_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "net.tflite"
    path.write_bytes(make_gru())
    with pytest.raises(UsageError, match="keeps values between its runs"):
        open_file(path)
