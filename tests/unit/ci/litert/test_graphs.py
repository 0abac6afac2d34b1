"""LiteRT models as graphs: the operators under torch's names, and runs with changed values."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.analysis.noise import predict_noise
from ci.analysis.steps import describe_steps
from ci.analysis.ties import find_ties
from ci.faults.match import match_faults
from ci.graphs.channels_first import put_channels_first
from ci.graphs.graph import Array, Graph
from ci.graphs.litert_file import read_dtype, read_model, read_shape
from ci.graphs.litert_part import find_operators
from ci.graphs.litert_program import LitertProgram
from ci.graphs.litert_session import Reference
from ci.graphs.run import Change, Recipe
from ci.litert.suite import SUITE, Net, make_model, quantize
from ci.models.suite import LITERT_SUITE

LEAST_DB = {"convolution_int8": 40.0, "dense_int16": 55.0, "cpu_middle": 30.0}
OPERATORS = {
    "dense": {"linear": 2, "relu": 1},
    "convolution": {"conv2d": 2, "relu": 2, "mean": 1, "linear": 1},
    "cpu_middle": {"linear": 2, "add": 1, "remainder": 1, "sub": 1},
}


def net_of(net: Net, source: int, result: int) -> Net:
    net.end([source], [result])
    return net


def draw_sets(program: LitertProgram, count: int = 2) -> list[list[Array]]:
    random = np.random.default_rng(1)
    sets = []
    for _ in range(count):
        arrays = []
        for entry in program.entries:
            for number in entry.inputs:
                tensor = program.model.subgraphs[entry.subgraph].tensors[number]
                dtype, shape = np.dtype(read_dtype(tensor)), read_shape(tensor)
                if dtype.kind == "f":
                    arrays.append(random.standard_normal(shape).astype(dtype))
                else:
                    arrays.append(random.integers(-100, 100, shape).astype(dtype))
        sets.append(arrays)
    return sets


def run_reference(data: bytes, sets: list[list[Array]]) -> list[tuple[Array, ...]]:
    model = read_model(data)
    return Reference(data, model, LitertProgram(data).entries).run(sets)


def test_the_suite_has_a_description_of_each_model() -> None:
    assert [*SUITE] == [*LITERT_SUITE]


@pytest.mark.parametrize("name", SUITE)
def test_operator_after_operator_gives_the_numbers_of_the_whole_model(name: str) -> None:
    data = make_model(name)
    program = LitertProgram(data)
    sets = draw_sets(program)
    for reference, outputs in zip(run_reference(data, sets), program.run(sets), strict=True):
        for expected, array in zip(reference, outputs, strict=True):
            np.testing.assert_array_equal(array, expected)
            assert array.dtype == np.float32  # what quantized numbers stand for


@pytest.mark.parametrize("name", SUITE)
def test_a_right_program_is_predicted_to_be_near_its_model(name: str) -> None:
    program = LitertProgram(make_model(name))
    sets = draw_sets(program)
    outputs = program.run(sets)
    for index, errors in enumerate(predict_noise(program, sets, outputs)):
        power = np.mean(np.square([output[index] for output in outputs]))
        noise_db = 10 * np.log10(power / np.mean(np.square(errors)))
        assert LEAST_DB.get(name, 50.0) < noise_db < 90.0


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_have_torchs_names(name: str) -> None:
    (graph,) = LitertProgram(make_model(name)).graphs.values()
    assert Counter(node.operator for node in graph.nodes) == OPERATORS[name]


def test_each_signature_is_a_method() -> None:
    assert [*LitertProgram(make_model("signatures")).graphs] == ["encode", "decode"]


def find_node(graph: Graph, operator: str) -> Any:
    return next(node for node in graph.nodes if node.operator == operator)


def test_an_operator_of_integers_reads_and_returns_what_they_stand_for() -> None:
    (graph,) = LitertProgram(make_model("convolution_int8")).graphs.values()
    convolution = find_node(graph, "conv2d")
    image, weights, _ = convolution.reads
    makers = graph.list_makers()
    assert makers[image].operator == makers[weights].operator == "dequantize"
    assert len(makers[weights].numbers["scale"]) == graph.shapes[weights][0]
    quantizer = next(node for node in graph.nodes if node.reads == convolution.results)
    assert quantizer.operator == "quantize"
    assert quantizer.numbers["quant_min"] == (-128.0,)
    assert convolution.numbers["stride"] == (2.0, 2.0)
    assert convolution.numbers["padding"] == (0.0, 0.0)  # one row at the end of an even image
    assert makers[graph.outputs[0]].operator == "dequantize"


def test_a_run_records_changes_and_fixes_results_of_nodes() -> None:
    program = LitertProgram(make_model("dense"))
    (graph,) = program.graphs.values()
    sets, hidden = draw_sets(program, 1), find_node(graph, "relu").results[0]
    double = Change(lambda value, _operand, _tools: value * 2)
    recipes = {
        "plain": Recipe(watched=[hidden]),
        "doubled": Recipe(changes={hidden: double}, watched=[hidden]),
        "fixed": Recipe(fixed={hidden: np.zeros((4, 128), np.float32)}, watched=[hidden]),
    }
    recorded = {}
    for name, recipe in recipes.items():
        (record,) = program.prepare({"serve": recipe}).record(sets)
        recorded[name] = record["serve"].values[hidden]
    np.testing.assert_array_equal(recorded["doubled"], 2 * recorded["plain"])
    assert not recorded["fixed"].any()


def test_an_error_of_a_weight_reaches_the_output() -> None:
    program = LitertProgram(make_model("dense"))
    (graph,) = program.graphs.values()
    weights = find_node(graph, "linear").reads[1]
    changes = {weights: Change(lambda value, _operand, _tools: value * 0)}
    sets = draw_sets(program, 1)
    (changed,) = program.prepare({"serve": Recipe(changes=changes)}).run(sets)
    (plain,) = program.run(sets)
    assert not np.array_equal(changed[0], plain[0])


def test_a_run_without_rounding_is_refused() -> None:
    program = LitertProgram(make_model("convolution_int8"))
    with pytest.raises(ValueError, match="without rounding"):
        program.prepare({"serve": Recipe(unrounded=["x"])})


@pytest.mark.parametrize("bits", [0, 8])
def test_an_index_may_be_another_where_numbers_are_nearly_equal(bits: int) -> None:
    net = Net()
    source = net.add_tensor((1, 4), "x")
    layer = net.add_linear(source, (1, 4), 4)
    axis = net.add_constant(np.array(1, np.int32))
    if bits:
        quantize(net_of(net, source, layer), bits)
    largest = net.call("ARG_MAX", (layer, axis), (1,), "ArgMaxOptions", outputType=2)
    net.tensors[largest].type = 2  # INT32
    net.ports.clear()
    net.spans.clear()
    net.end([source], [largest])
    program = LitertProgram(net.pack())
    sets = draw_sets(program, 8)
    outputs = program.run(sets)
    low, high = find_ties(program, sets, outputs, bits)
    assert all((a[0] <= b[0]).all() for a, b in zip(low, outputs, strict=True))
    assert all((a[0] >= b[0]).all() for a, b in zip(high, outputs, strict=True))


def test_images_and_weights_get_the_shapes_that_torch_has() -> None:
    (graph,) = LitertProgram(make_model("convolution_int8")).graphs.values()
    steps = describe_steps(put_channels_first(graph))
    convolution = next(step for step in steps if step.operator == "conv2d")
    shapes = [operand.shape for operand in convolution.operands]
    assert shapes == [(1, 3, 16, 16), (16, 3, 3, 3), (16,)]
    assert convolution.shape == (1, 16, 8, 8)
    mean = find_node(put_channels_first(graph), "mean")
    assert mean.axes == (2, 3)


def make_positions(batch: int) -> Net:
    """A sum with a constant that has no batch, before a sigmoid."""
    net, shape = Net(), (batch, 16, 64)
    source = net.add_tensor(shape, "x")
    added = net.call("ADD", (source, net.draw(16, 64)), shape, "AddOptions")
    return net_of(net, source, net.call("LOGISTIC", (added,), shape))


def make_product_and_sum() -> Net:
    net, shape = Net(), (1, 8, 8, 16)
    source = net.add_tensor(shape, "x")
    product = net.call("MUL", (source, net.add_number(0.5)), shape, "MulOptions")
    activated = net.call("RELU", (product,), shape)
    return net_of(net, source, net.call("ADD", (activated, net.add_number(0.3)), shape))


def make_prelu() -> Net:
    net, shape = Net(), (1, 8, 8, 8)
    source = net.add_tensor(shape, "x")
    return net_of(net, source, net.call("PRELU", (source, net.draw(1, 1, 8)), shape))


def make_padded(size: int, then: str, *, before: str = "", kernel: int = 2) -> Net:
    """A padding of an image, or of the result of an operator, by ``size`` on each side, and a pool
    or a convolution with this kernel."""
    net, after = Net(), 8 + 2 * size
    source = value = net.add_tensor((1, 8, 8, 4), "x")
    if before:
        value = net.call(before, (source,), (1, 8, 8, 4))
    sides = net.add_constant(np.array([[0, 0], [size, size], [size, size], [0, 0]], np.int32))
    padded = net.call("PAD", (value, sides), (1, after, after, 4), "PadOptions")
    if then == "pool":
        strides = {"strideW": 2, "strideH": 2, "filterWidth": kernel, "filterHeight": kernel}
        shape = (1, (after - kernel) // 2 + 1, (after - kernel) // 2 + 1, 4)
        last = net.call("AVERAGE_POOL_2D", (padded,), shape, "Pool2DOptions", padding=1, **strides)
        return net_of(net, source, last)
    reads, shape = (padded, net.draw(4, 2, 2, 4), net.draw(4)), (1, after - 1, after - 1, 4)
    settings = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    return net_of(
        net, source, net.call("CONV_2D", reads, shape, "Conv2DOptions", padding=1, **settings)
    )


def make_tall_pool() -> Net:
    net = Net()
    source = net.add_tensor((1, 16, 4, 4), "x")
    sizes = {"strideW": 1, "strideH": 1, "filterWidth": 2, "filterHeight": 2}
    pooled = net.call(
        "AVERAGE_POOL_2D", (source,), (1, 15, 3, 4), "Pool2DOptions", padding=1, **sizes
    )
    return net_of(net, source, pooled)


def make_layer(rows: int) -> Net:
    net = Net()
    source = net.add_tensor((rows, 64), "x")
    hidden = net.add_linear(source, (rows, 64), 64)
    return net_of(net, source, net.call("TANH", (hidden,), (rows, 64)))


def make_merged_norm(batch: int) -> Net:
    """Positions are added, then a layer norm without weights, as litert-torch writes both."""
    net, shape, rows = Net(), (batch, 16, 64), batch * 16
    merged, columns, flat = (1, rows, 64), (1, rows, 1), (rows,)

    def reshape(value: int, sizes: tuple[int, ...]) -> int:
        return net.call("RESHAPE", (value, net.add_constant(np.array(sizes, np.int32))), sizes)

    def average(value: int) -> int:
        axes = net.add_constant(np.array([2], np.int32))
        return net.call("MEAN", (value, axes), flat, "ReducerOptions")

    source = net.add_tensor(shape, "x")
    added = net.call("ADD", (source, net.draw(1, 16, 64)), shape, "AddOptions")
    value = reshape(added, merged)
    mean = average(value)
    differences = net.call("SQUARED_DIFFERENCE", (value, reshape(mean, columns)), merged)
    power = net.call("ADD", (average(differences), net.add_number(1e-5)), flat, "AddOptions")
    factor = net.call("RSQRT", (power,), flat)
    product = net.call("MUL", (mean, factor), flat, "MulOptions")
    shift = net.call("SUB", (net.add_number(0.0), product), flat, "SubOptions")
    scaled = net.call("MUL", (value, reshape(factor, columns)), merged, "MulOptions")
    normed = net.call("ADD", (scaled, reshape(shift, columns)), merged, "AddOptions")
    return net_of(net, source, reshape(normed, shape))


def test_a_padding_has_torchs_order_of_axes() -> None:
    net = Net()
    source = net.add_tensor((1, 4, 4, 2), "x")
    sides = net.add_constant(np.array([[0, 0], [1, 2], [3, 4], [0, 0]], np.int32))
    padded = net.call("PAD", (source, sides), (1, 7, 11, 2), "PadOptions")
    sizes = {"strideW": 1, "strideH": 1, "filterWidth": 2, "filterHeight": 2}
    net_of(net, source, net.call("MAX_POOL_2D", (padded,), (1, 6, 10, 2), "Pool2DOptions", **sizes))
    (graph,) = LitertProgram(net.pack()).graphs.values()
    node = find_node(put_channels_first(graph), "pad")
    assert node.numbers["pad"] == (3, 4, 1, 2, 0, 0, 0, 0)
    assert find_node(graph, "pad").numbers["pad"] == (0, 0, 3, 4, 1, 2, 0, 0)


def make_end(axis: int, before: str = "RELU") -> Net:
    """A ReLU, of a convolution or alone, and two zeros at the end of an axis."""
    net, shape = Net(), (1, 8, 8, 16)
    source = net.add_tensor(shape, "x")
    if before == "CONV_2D":
        hidden = net.call("RELU", (net.add_convolution(source, shape, 16),), shape)
    else:
        hidden = net.call(before, (source,), shape)
    counts = np.zeros((4, 2), np.int32)
    counts[axis, 1] = 2
    after = tuple(size + added for size, added in zip(shape, counts[:, 1].tolist(), strict=True))
    net.end([source], [net.call("PAD", (hidden, net.add_constant(counts)), after, "PadOptions")])
    return net


@pytest.mark.parametrize(
    ("net", "bits", "faults"),
    [
        (make_positions(2), 0, ["broadcast-before-sigmoid-in-litert"]),
        (make_positions(1), 0, []),
        (make_positions(2), 8, []),
        (make_positions(2), 16, []),  # wrong through ExecuTorch
        (make_product_and_sum(), 0, []),
        (make_product_and_sum(), 8, ["relu-between-product-and-sum"]),  # quantizers between
        (make_product_and_sum(), 16, []),
        (make_layer(16), 8, []),
        (make_layer(16), 16, ["tanh-of-sixteen-rows-in-litert"]),
        (make_layer(17), 16, []),
        (make_merged_norm(2), 0, ["broadcast-before-merged-norm"]),
        (make_merged_norm(1), 0, []),
        (make_prelu(), 8, []),
        (make_prelu(), 16, ["prelu-in-16-bits"]),
        (make_padded(1, "pool"), 0, []),
        (make_padded(1, "pool"), 8, ["avg-pool-of-2-padded-apart"]),
        (make_padded(2, "pool"), 8, []),
        (make_padded(1, "pool", before="RELU"), 0, ["avg-pool-of-2-behind-padding"]),
        (make_padded(1, "pool", before="RELU", kernel=3), 0, []),
        (make_padded(2, "convolution"), 0, ["conv-padded-by-its-kernel-apart"]),
        (make_padded(1, "convolution"), 0, []),
        (make_padded(2, "convolution"), 8, []),
        (make_end(3), 0, ["pad-right-of-activation"]),  # 8.4 dB
        (make_end(2), 0, []),  # 73 dB
        (make_end(2, "CONV_2D"), 0, []),  # of an image, whose last axis in torch's order this is
        (make_tall_pool(), 0, ["avg-pool-of-tall-picture"]),
        (make_tall_pool(), 8, []),  # right through LiteRT, and wrong through onnxruntime
    ],
)
def test_known_faults_are_found_in_files_of_each_kind(
    net: Net, bits: int, faults: list[str]
) -> None:
    data = quantize(net, bits) if bits else net.pack()
    (graph,) = LitertProgram(data).graphs.values()
    steps = describe_steps(put_channels_first(graph))
    scheme = "asis" if bits else "fp16"
    matches = match_faults(steps, scheme, "2.51.0", compiled=True)
    assert [match.fault for match in matches] == faults


def test_a_part_has_the_operators_between_its_inputs_and_outputs() -> None:
    data = read_model(make_model("dense"))
    (subgraph,) = data.subgraphs
    last = len(subgraph.operators) - 1
    (result,) = subgraph.operators[last].outputs
    assert find_operators(subgraph, [int(subgraph.inputs[0])], [int(result)]) == [0, 1]
    hidden = int(subgraph.operators[last].inputs[0])
    assert find_operators(subgraph, [hidden], [int(result)]) == [last]
