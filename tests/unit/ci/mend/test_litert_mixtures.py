"""Which operators of a quantized .tflite file its float model can compute, and the files in which
it does, on LiteRT's CPU, without QNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.analysis.steps import describe_steps
from ci.cases.spec import CaseSpec
from ci.faults.match import match_faults
from ci.graphs.channels_first import put_channels_first
from ci.graphs.graph import Array
from ci.graphs.litert_file import (
    list_entries,
    make_code,
    name_operator,
    pack_model,
    read_dtype,
    read_model,
    schema,
)
from ci.graphs.litert_program import LitertProgram
from ci.graphs.litert_session import Reference
from ci.litert.suite import RELU, Net, make_model
from ci.mend.litert_mixtures import MixableLitert, open_quantized
from ci.mend.mixture_search import measure_sqnr
from ci.mend.precision import FaultTrials, MixTrials
from ci.mend.trials import Trials
from ci.models.lowering_options import Choices, Part
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from ci.verbs.mend import check_quantized
from provisioning.errors import UsageError
from tests.build.litert_nets import make_wide_channel, write_quantized
from tests.build.litert_states import make_gru

IMAGE = (1, 6, 6, 4)
ALL = "layer wide narrow value_10"


def convolve(net: Net, x: int, activation: int = 0) -> int:
    reads = (x, net.draw(4, 3, 3, 4), net.draw(4, scale=0.1))
    strides = {"strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    options = {**strides, "fusedActivationFunction": activation}
    return net.call("CONV_2D", reads, IMAGE, "Conv2DOptions", **options)


def make_fused(net: Net) -> None:
    """A convolution that contains its ReLU, and a square root."""
    x = net.add_tensor(IMAGE, "x")
    net.end([x], [net.call("TANH", (convolve(net, x, RELU),), IMAGE)])
    rename(net, ["x", None, None, "positive", "y"])


def make_separate(net: Net) -> None:
    """The same with the ReLU as an operator."""
    x = net.add_tensor(IMAGE, "x")
    layer = convolve(net, x)
    net.end([x], [net.call("TANH", (net.call("RELU", (layer,), IMAGE),), IMAGE)])
    rename(net, ["x", None, None, "layer", "positive", "y"])


FACTORS = np.linspace(-2, 2, 4, dtype=np.float32)


def make_unfolded(net: Net) -> None:
    """The same with a factor for each channel between both."""
    x = net.add_tensor(IMAGE, "x")
    layer = convolve(net, x)
    scaled = net.call("MUL", (layer, net.add_constant(FACTORS)), IMAGE, "MulOptions")
    net.end([x], [net.call("TANH", (net.call("RELU", (scaled,), IMAGE),), IMAGE)])
    rename(net, ["x", None, None, "layer", None, "scaled", "positive", "y"])


def make_folded(net: Net) -> None:
    """The same with the factor in the weights, as quantizers fold it."""
    make_separate(net)
    weights, bias = (np.frombuffer(net.buffers[n].data, np.float32) for n in (1, 2))
    net.store(1, (weights.reshape(4, -1) * FACTORS[:, None]).astype(np.float32))
    net.store(2, (bias * FACTORS).astype(np.float32))
    rename(net, ["x", None, None, "scaled", "positive", "y"])


def make_other_weights(net: Net) -> None:
    net.random = np.random.default_rng(99)
    make_wide_channel(net)


NEAR_ONE = np.linspace(0.8, 1.2, 8, dtype=np.float32)
ROWS, COLUMNS = NEAR_ONE[:, None], NEAR_ONE[None]  # of weights: for each result, for each operand


def make_layers(*weights: Array, product: Array | None = None) -> Callable[[Net], None]:
    """A net of linear layers with these weights. A ``product`` is behind the first one, and its
    result has the layer's name."""

    def make(net: Net) -> None:
        x = value = net.add_tensor((4, 8), "x")
        for place, matrix in enumerate(weights):
            value = net.add_linear(value, (4, 8), 8)
            net.store(int(net.operators[-1].inputs[1]), matrix.astype(np.float32))
            net.store(int(net.operators[-1].inputs[2]), np.zeros(8, np.float32))
            if product is not None and not place:
                factors = net.add_constant(product.astype(np.float32))
                value = net.call("MUL", (value, factors), (4, 8), "MulOptions")
            net.tensors[value].name = f"layer{place}".encode()
        net.end([x], [value])

    return make


def draw_weights(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((2, 8, 8)) / 3


FIRST, SECOND = draw_weights(5)
TRAINED = [FIRST, SECOND] + 0.1 * draw_weights(6)


def make_transposed(weights: Array) -> Callable[[Net], None]:
    """A linear layer behind a transpose."""

    def make(net: Net) -> None:
        x = net.add_tensor((8, 4), "x")
        order = net.add_constant(np.array([1, 0], np.int32))
        turned = net.call("TRANSPOSE", (x, order), (4, 8), "TransposeOptions")
        value = net.add_linear(turned, (4, 8), 8)
        net.store(int(net.operators[-1].inputs[1]), weights.astype(np.float32))
        net.end([x], [value])

    return make


STATES = {  # the quantized and the float net, the operators that are paired, and those only about
    "the same state": (make_layers(FIRST, SECOND), make_layers(FIRST, SECOND), "layer0 layer1", ""),
    "another state": (make_layers(*draw_weights(6)), make_layers(FIRST, SECOND), "", ""),
    "another state behind what has no weights": (
        *(make_transposed(SECOND), make_transposed(FIRST)),
        *("", ""),
    ),
    "layers exchanged": (make_layers(SECOND, FIRST), make_layers(FIRST, SECOND), "", ""),
    "one other layer": (make_layers(FIRST, FIRST), make_layers(FIRST, SECOND), "layer0", ""),
    "training with quantization": (
        *(make_layers(*TRAINED), make_layers(FIRST, SECOND)),
        *("layer0 layer1", "layer0 layer1"),
    ),
    "a product in the weights": (
        *(make_layers(ROWS * FIRST, SECOND), make_layers(FIRST, SECOND, product=NEAR_ONE)),
        *("layer0 layer1", ""),
    ),
    "a product in the next weights": (
        *(make_layers(FIRST, COLUMNS * SECOND), make_layers(FIRST, SECOND, product=NEAR_ONE)),
        *("layer0 layer1", ""),
    ),
    "a product that is lost": (  # the layer's result is that in front of the product
        *(make_layers(FIRST, SECOND), make_layers(FIRST, SECOND, product=NEAR_ONE)),
        *("layer0", ""),
    ),
    "equalised layers": (  # the first one has another result
        *(make_layers(ROWS * FIRST, SECOND / COLUMNS), make_layers(FIRST, SECOND)),
        *("layer1", ""),
    ),
    "factors that nothing takes back": (
        *(make_layers(ROWS * FIRST, SECOND), make_layers(FIRST, SECOND)),
        *("", ""),
    ),
}


def make_renamed(net: Net) -> None:
    make_wide_channel(net)
    rename(net, [f"model/{number}" for number in range(len(net.tensors))])


def rename(net: Net, names: list[str | None] | list[str]) -> None:
    for tensor, name in zip(net.tensors, names, strict=True):
        if name:
            tensor.name = name.encode()


class Pair(NamedTuple):
    """How the quantized and the float file are made, and the operators that can be computed in
    float."""

    quantized: Callable[[Net], None]
    plain: Callable[[Net], None]
    names: str


PAIRS = {
    "the same graph": Pair(make_wide_channel, make_wide_channel, ALL),
    "other names": Pair(make_wide_channel, make_renamed, ALL),
    "other weights": Pair(make_wide_channel, make_other_weights, ""),
    "another graph": Pair(make_fused, make_unfolded, ""),
    "a ReLU contained in the quantized one": Pair(make_fused, make_separate, "positive y"),
    # Only both together have a result that the float model has.
    "a ReLU contained in the float one": Pair(make_separate, make_fused, "positive y"),
    "factors folded into weights": Pair(make_folded, make_unfolded, "scaled positive y"),
}


def write_pair(
    folder: Path,
    quantized: Callable[[Net], None] = make_wide_channel,
    plain: Callable[[Net], None] | None = None,
    bits: int = 8,
) -> CaseSpec:
    path, float_path = write_quantized(folder, quantized, bits)
    if plain:
        net = Net()
        plain(net)
        float_path.write_bytes(net.pack())
    return CaseSpec("net", Scheme.ASIS, "SM8650", Source(str(path), float_model=str(float_path)))


def run(data: bytes, sets: Sequence[Sequence[Array]]) -> list[tuple[Array, ...]]:
    model = read_model(data)
    return Reference(data, model, list_entries(model)).run(sets)


def list_calls(data: bytes) -> list[str]:
    """The operators, with the types of what they return."""
    model = read_model(data)
    tensors = model.subgraphs[0].tensors
    return [
        f"{name_operator(model, operator)} {read_dtype(tensors[int(operator.outputs[0])])}"
        for operator in model.subgraphs[0].operators
    ]


def open_pair(
    folder: Path,
    quantized: Callable[[Net], None],
    plain: Callable[[Net], None] | None,
    *,
    matches: bool,
) -> MixableLitert | None:
    """The quantized file with its float model; None if this is refused because it is another one,
    which a file that ``matches`` must not be."""
    spec = write_pair(folder, quantized, plain)
    if matches:
        return open_quantized(spec)
    with pytest.raises(UsageError, match=r"float\.tflite does not match the quantized model"):
        open_quantized(spec)
    return None


def choose(*names: str) -> Choices:
    return Choices(parts=tuple(Part(Scheme.FP16, tensor=name) for name in names))


@pytest.mark.parametrize("name", PAIRS)
def test_operators_are_paired_by_what_they_read_and_by_their_weights(
    name: str, tmp_path: Path
) -> None:
    quantized, plain, names = PAIRS[name]
    model = open_pair(tmp_path, quantized, plain, matches=bool(names))
    if model is None:
        return
    assert " ".join(model.counterparts) == names
    # With all of them in float, only the input and the output are rounded.
    assert model.measure(choose(*model.counterparts)) > 30
    assert [unit.nodes for unit in model.units] == [(each,) for each in names.split()]


@pytest.mark.parametrize("name", STATES)
def test_layers_are_paired_with_those_of_the_same_weights_and_not_of_another_state(
    name: str, tmp_path: Path
) -> None:
    quantized, plain, names, drifted = STATES[name]
    model = open_pair(tmp_path, quantized, plain, matches=bool(names))
    if model is None:
        return
    assert (" ".join(model.counterparts), " ".join(model.drifted)) == (names, drifted)
    if names == "layer0 layer1" and not drifted:
        assert model.measure(choose(*model.counterparts)) > 30


def test_the_measure_is_that_of_the_written_file(tmp_path: Path) -> None:
    model = open_quantized(write_pair(tmp_path))
    assert model.measure(choose()) < 10 < 25 < model.measure(choose("wide", "narrow"))
    outputs = run(model.write(choose("wide", "narrow").parts), model.judged.sets)
    measured = measure_sqnr(model.exact_outputs, outputs)
    assert model.measure(choose("wide", "narrow")) == measured
    assert [unit.cost for unit in model.units] == [4 * 16 * 16, 64, 64, 4 * 8 * 16]


def test_operators_in_float_are_between_a_dequantize_and_a_quantize(tmp_path: Path) -> None:
    model = open_quantized(write_pair(tmp_path))

    def write(*names: str) -> list[str]:
        return list_calls(model.write(choose(*names).parts))

    first, last = "FULLY_CONNECTED int8", "FULLY_CONNECTED int8"
    assert write() == [first, "MUL int8", "MUL int8", last]
    middle = ["DEQUANTIZE float32", "MUL float32", "MUL float32", "QUANTIZE int8"]
    assert write("wide", "narrow") == [first, *middle, last]
    # What is computed in float is read in float, too, and no operator is left that nothing reads.
    assert write("narrow", "value_10") == [
        *(first, "MUL int8", "DEQUANTIZE float32"),
        *("MUL float32", "FULLY_CONNECTED float32", "QUANTIZE int8"),
    ]


def test_ports_signatures_and_metadata_stay(tmp_path: Path) -> None:
    spec = write_pair(tmp_path)
    model = read_model(Path(spec.reference).read_bytes())
    note, buffer = schema.MetadataT(), schema.BufferT()
    note.name, note.buffer = b"labels", len(model.buffers)
    buffer.data = np.frombuffer(b"cat dog", np.uint8)
    model.buffers.append(buffer)
    model.metadata = [note]
    Path(spec.reference).write_bytes(pack_model(model))
    after = read_model(open_quantized(spec).write(choose("wide").parts))
    (kept_note,) = after.metadata
    assert bytes(after.buffers[kept_note.buffer].data) == b"cat dog"
    assert describe_ports(after) == describe_ports(model)


def describe_ports(model: Any) -> list[Any]:
    (entry,) = list_entries(model)
    tensors = model.subgraphs[0].tensors
    described = [
        (tensors[n].name, read_dtype(tensors[n]), tensors[n].quantization.scale.tolist())
        for n in (*entry.inputs, *entry.outputs)
    ]
    return [entry.key, entry.input_names, entry.output_names, described]


def give_float_ports(data: bytes) -> bytes:
    """The file with its input and its output in float, between a QUANTIZE and a DEQUANTIZE."""
    model = read_model(data)
    subgraph, signature = model.subgraphs[0], model.signatureDefs[0]
    for kind, port in (("QUANTIZE", signature.inputs[0]), ("DEQUANTIZE", signature.outputs[0])):
        inner = int(port.tensorIndex)
        outer = copy(subgraph.tensors[inner])
        outer.name, outer.type, outer.quantization = kind.encode(), schema.TensorType.FLOAT32, None
        port.tensorIndex = len(subgraph.tensors)
        subgraph.tensors.append(outer)
        numbers = [np.array([number], np.int32) for number in (port.tensorIndex, inner)]
        operator = schema.OperatorT()
        operator.opcodeIndex = len(model.operatorCodes)
        model.operatorCodes.append(make_code(kind))
        operator.inputs, operator.outputs = numbers if kind == "QUANTIZE" else numbers[::-1]
        if kind == "QUANTIZE":
            subgraph.operators.insert(0, operator)
            subgraph.inputs = numbers[0]
        else:
            subgraph.operators.append(operator)
            subgraph.outputs = numbers[0]
    return pack_model(model)


def test_a_model_with_float_ports_is_not_rounded_at_its_ends(tmp_path: Path) -> None:
    spec = write_pair(tmp_path)
    path = Path(spec.reference)
    path.write_bytes(give_float_ports(path.read_bytes()))
    path.with_suffix(".npz").unlink()
    model = open_quantized(spec)
    assert " ".join(model.counterparts) == ALL
    parts = choose(*model.counterparts)
    calls = ["FULLY_CONNECTED float32", "MUL float32", "MUL float32", "FULLY_CONNECTED float32"]
    assert list_calls(model.write(parts.parts)) == calls
    assert model.measure(parts) > 120


@pytest.mark.parametrize(
    ("target_db", "limit_s", "tensors"),
    [
        (20, 60, "narrow wide"),
        (90, 60, ""),  # float does not suffice, because the output is rounded
        (20, 0, ""),  # no time
    ],
)
def test_a_mixture_has_the_operators_that_lose_all_in_8_bits(
    target_db: float, limit_s: float, tensors: str, tmp_path: Path
) -> None:
    spec = write_pair(tmp_path)
    trials = MixTrials(
        *(spec.reference, spec.source, (), Scheme.ASIS),
        *(Scheme.FP16, "SM8650", target_db, limit_s),
        path=Path(spec.reference),
    )
    cheapest = next(iter(trials()), ())
    assert " ".join(part.tensor for part in cheapest) == tensors
    assert {part.scheme for part in cheapest} <= {Scheme.FP16}


def make_sixteen_rows(net: Net) -> None:
    """The known fault tanh-of-sixteen-rows-in-litert, in int16."""
    x = net.add_tensor((16, 8), "x")
    layer = net.add_linear(x, (16, 8), 8, RELU)
    net.end([x], [net.call("TANH", (layer,), (16, 8))])


def test_operators_with_a_known_fault_are_computed_in_float(tmp_path: Path) -> None:
    spec = write_pair(tmp_path, make_sixteen_rows, bits=16)
    schemes = (Scheme.ASIS, "SM8650", (Scheme.FP16,), ())
    trials = FaultTrials(spec.reference, spec.source, (), *schemes, Path(spec.reference))
    layer, tanh = open_quantized(spec).counterparts
    assert [{part.tensor for part in parts} for parts in trials()] == [{tanh}, {layer, tanh}]


@pytest.mark.parametrize(
    ("in_float", "faults"), [([], ["tanh-of-sixteen-rows-in-litert"]), ([1], []), ([0, 1], [])]
)
def test_operators_in_float_have_no_known_fault_of_integers(
    in_float: list[int], faults: list[str], tmp_path: Path
) -> None:
    model = open_quantized(write_pair(tmp_path, make_sixteen_rows, bits=16))
    names = [*model.counterparts]
    data = model.write(choose(*(names[place] for place in in_float)).parts)
    (graph,) = LitertProgram(data).graphs.values()
    steps = describe_steps(put_channels_first(graph))
    matches = match_faults(steps, Scheme.ASIS.value, "2.51.0", compiled=True)
    assert [match.fault for match in matches] == faults


def make_positions(net: Net) -> None:
    """The known fault broadcast-before-sigmoid-in-litert, of float files."""
    shape = (2, 4, 8)
    x = net.add_tensor(shape, "x")
    total = net.call("ADD", (x, net.draw(4, 8)), shape, "AddOptions")
    net.end([x], [net.call("LOGISTIC", (total,), shape)])


def test_what_a_rewrite_changes_in_the_float_model_is_computed_in_float(tmp_path: Path) -> None:
    spec = write_pair(tmp_path, make_positions)
    total, _ = open_quantized(spec).counterparts
    model = open_quantized(spec, ["expand-constant"])
    data = model.write(())
    in_float = ["DEQUANTIZE float32", "ADD float32", "QUANTIZE int8"]
    assert list_calls(data) == [*in_float, "LOGISTIC int8"]
    after = read_model(data)
    (added,) = (call for call in after.subgraphs[0].operators if len(call.inputs) == 2)
    shapes = [after.subgraphs[0].tensors[number].shape.tolist() for number in added.inputs]
    assert shapes == [[2, 4, 8], [2, 4, 8]]
    unchanged = open_quantized(spec).write(choose(total).parts)
    outputs = [run(written, model.judged.sets) for written in (data, unchanged)]
    np.testing.assert_array_equal(*outputs)
    # A part is computed in float beside it, and is one of what the rewrite changed only once.
    result = model.graph.names[int(model.entry.outputs[0])]
    both = [*in_float[:-1], "LOGISTIC float32", "QUANTIZE int8"]
    assert list_calls(model.write(choose(total, result).parts)) == both


def test_a_rewrite_of_a_quantized_file_is_proven_on_its_float_model(tmp_path: Path) -> None:
    spec = write_pair(tmp_path, make_positions)
    recipes = (("expand-constant",), ("reach-rows",))
    applied, absent = Trials(spec.reference, spec.source, recipes)()
    assert (applied.applies, applied.fault, applied.difference) == (True, "", 0.0)
    assert [change.rewrite for change in applied.changes] == ["expand-constant"]
    assert not absent.applies


KEEPS = "keeps values between its runs"
REFUSED = {
    "no float model": (make_model("dense_int16"), b"", "its float model is not known"),
    "two signatures": (make_model("signatures"), b"float", "has 2 signatures"),
    "states": (make_gru(), b"float", KEEPS),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_is_refused_before_it_is_judged(name: str, tmp_path: Path) -> None:
    data, float_data, message = REFUSED[name]
    path, float_path = tmp_path / "net.tflite", tmp_path / "float.tflite"
    path.write_bytes(data)
    float_path.write_bytes(float_data)
    source = Source(str(path), float_model=str(float_path) if float_data else "")
    spec = CaseSpec("net", Scheme.ASIS, "SM8650", source)
    with pytest.raises(UsageError, match=message):
        check_quantized([spec], 60)


def test_an_soc_without_float16_is_refused() -> None:
    source = Source("/net.tflite", float_model="/float.tflite")
    with pytest.raises(UsageError, match="can be computed in float for SM6650"):
        check_quantized([CaseSpec("net", Scheme.ASIS, "SM6650", source)], 60)
