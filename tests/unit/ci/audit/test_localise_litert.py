"""Parts of a .tflite file compute what they compute in the whole model, and a search among them
names an operator that is spoiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.audit.localise import find_suspect
from ci.audit.localise_graph import Division
from ci.audit.localise_litert import divide_litert, read_litert_steps, write_litert
from ci.audit.localise_search import Cut, Departure, Laboratory, Located, Mend, Search, Trial
from ci.cases.spec import CaseSpec
from ci.faults.match import match_faults
from ci.graphs.litert_file import name_operator, pack_model, read_levels, read_model
from ci.graphs.litert_session import Reference
from ci.judging.figures import measure_pooled
from ci.litert.suite import RELU, Net, make_model, quantize
from ci.models.schemes import Scheme
from ci.models.user_models import Source
from provisioning.errors import UsageError
from tests.build.litert_nets import make_composite, make_if, make_while

SHAPE = (4, 16)


def make_net() -> Net:
    """Layers, of which one contains an activation, and a SPLIT whose results lead to two
    outputs."""
    net = Net()
    source = net.add_tensor(SHAPE, "x")
    hidden = net.add_linear(source, SHAPE, 16, RELU)
    axis = net.add_constant(np.array(1, np.int32))
    left = net.call("SPLIT", (axis, hidden), (4, 8), "SplitOptions", numSplits=2)
    right = net.add_tensor((4, 8), "right")
    net.operators[-1].outputs = np.array([left, right], np.int32)
    scaled = net.call("MUL", (right, net.draw(8)), (4, 8), "MulOptions")
    outputs = [net.call("LOGISTIC", (left,), (4, 8)), net.add_linear(scaled, (4, 8), 4)]
    net.end([source], outputs)
    return net


def make_fused() -> Net:
    """relu(x * 0.5) + 0.3 in front of a layer, with the activation in the product."""
    net, shape = Net(), (1, 8, 8, 16)
    source = net.add_tensor(shape, "x")
    reads = (source, net.add_number(0.5))
    product = net.call("MUL", reads, shape, "MulOptions", fusedActivationFunction=RELU)
    added = net.call("ADD", (product, net.add_number(0.3)), shape, "AddOptions")
    net.end([source], [net.add_linear(added, shape, 8)])
    return net


MODELS: dict[str, Callable[[], bytes]] = {
    "float": lambda: make_net().pack(),
    "transformer": lambda: make_model("transformer"),
    "int8": lambda: make_model("convolution_int8"),
    "int16": lambda: make_model("dense_int16"),
    "activation in int8": lambda: quantize(make_fused(), 8),
    "composite": make_composite,
    "if": make_if,
    "while": make_while,
}


def make_spec(path: Path, data: bytes, *signatures: str) -> CaseSpec:
    path.write_bytes(data)
    return CaseSpec(path.name, Scheme.ASIS, "SM8650", Source(str(path), signatures=signatures))


def divide(tmp_path: Path, data: bytes, *signatures: str) -> Division:
    return divide_litert(make_spec(tmp_path / "net.tflite", data, *signatures))


def run_part(division: Division, cut: Cut) -> list[tuple[Any, ...]]:
    part = write_litert(division, cut, "part.tflite")
    return Reference(part.data, part.model, part.entries).run(part.evaluation)


@pytest.mark.parametrize("name", MODELS)
def test_each_operator_alone_computes_what_the_whole_model_does(name: str, tmp_path: Path) -> None:
    data = MODELS[name]()
    division = divide(tmp_path, data)
    recorded = [*division.record(division.operators)]
    (model, *_) = [read_model(data)]
    assert {division.operators[each].label.split()[0] for each in division.operators} == {
        name_operator(model, operator) for operator in model.subgraphs[0].operators
    }
    for operator in division.operators:
        outputs_of_samples = run_part(division, Cut((operator,), (operator,)))
        for values, (output,) in zip(recorded, outputs_of_samples, strict=True):
            np.testing.assert_array_equal(output, values[operator])
    whole_cut = Cut((*division.operators,), division.outputs)
    entries = write_litert(division, whole_cut, "net.tflite").entries
    assert [entry.key for entry in entries] == ["serve"]
    expected = Reference(data, model, entries).run(division.sets)
    for outputs, right_outputs in zip(run_part(division, whole_cut), expected, strict=True):
        for output, right_output in zip(outputs, right_outputs, strict=True):
            np.testing.assert_array_equal(output, right_output)


def test_a_part_has_the_constants_and_the_scales_of_the_model(tmp_path: Path) -> None:
    division = divide(tmp_path, make_model("convolution_int8"))
    program: Any = division.program
    (first, *_) = division.operators
    part = write_litert(division, Cut((first,), (first,)), "part.tflite")
    tensors = {tensor.name: tensor for tensor in part.model.subgraphs[0].tensors}
    assert len(part.model.buffers) < len(program.model.buffers)
    for tensor in program.model.subgraphs[0].tensors:
        levels = read_levels(tensor)
        if tensor.name in tensors and levels:
            part_levels = read_levels(tensors[tensor.name])
            assert part_levels is not None
            np.testing.assert_array_equal(part_levels.scales, levels.scales)
    assert {array.dtype for arrays in part.evaluation for array in arrays} == {np.dtype("int8")}


@pytest.mark.parametrize("bits", [0, 8, 16])
@pytest.mark.parametrize("kind", ["MUL", "LOGISTIC"])
def test_localise_names_a_planted_faulty_operator(tmp_path: Path, kind: str, bits: int) -> None:
    division = divide(tmp_path, quantize(make_net(), bits) if bits else make_net().pack())
    located = search(division, kind)
    assert located.first is not None
    assert [operator.kind for operator in (located.first, *located.part)] == [kind, kind]
    assert [output.wrong for output in located.outputs] == [kind == "LOGISTIC", kind == "MUL"]


def search(division: Division, spoiled: str) -> Located:
    """What a search finds on a machine that exchanges elements of the results of operators of one
    kind."""

    def try_cut(cut: Cut) -> Trial:
        right = run_part(division, cut)
        changed = {name for name in cut.operators if operators[name].kind == spoiled}
        departures = []
        for place, name in enumerate(cut.outputs):
            arrays = [outputs[place] for outputs in right]
            reached = 120.0
            if changed & find_sources(name, {*cut.operators}):
                reached = min(measure_pooled(array, array[::-1]) for array in arrays)
            departure = Departure(
                operator=name,
                reached_db=min(reached, 120.0),
                predicted_db=60.0,
                faithful=reached > 50.0,
            )
            departures.append(departure)
        return Trial(tuple(departures))

    def find_sources(name: str, allowed: set[str]) -> set[str]:
        sources, waiting = set[str](), [name]
        while waiting:
            source = waiting.pop()
            if source in allowed and source not in sources:
                sources.add(source)
                waiting += operators[source].inputs
        return sources

    operators = {operator.name: operator for operator in division.describe()}
    return Search(operators, division.outputs, Laboratory(try_cut, 60)).run()


def test_the_operators_of_a_known_fault_are_tried_first(tmp_path: Path) -> None:
    spec = make_spec(tmp_path / "net.tflite", quantize(make_fused(), 8))
    faults = match_faults(read_litert_steps(spec), "asis", "2.51.0")
    division = divide_litert(spec)
    operators = {operator.name: operator for operator in division.describe()}
    suspects = [find_suspect(operators, fault, division.aliases) for fault in faults]
    kinds = [[operators[name].kind for name in names] for names in suspects]
    assert ["MUL", "ADD"] in kinds


def test_a_bias_gets_the_scale_of_the_input_and_the_weights(tmp_path: Path) -> None:
    model = read_model(make_model("convolution_int8"))
    layer = model.subgraphs[0].operators[0]
    bias = model.subgraphs[0].tensors[layer.inputs[2]]
    bias.quantization.scale = np.asarray(bias.quantization.scale) * np.float32(1.001)
    division = divide(tmp_path, pack_model(model))
    (first, *_) = division.describe()
    assert first.bias_off == pytest.approx(0.001, rel=0.01)
    part = write_litert(division, Cut((first.name,), (first.name,), (Mend.BIASES,)), "part.tflite")
    mended_path = tmp_path / "part.tflite"
    (mended, *_) = divide_litert(make_spec(mended_path, part.data)).describe()
    assert mended.bias_off < 1e-6
    assert run_part(division, Cut((first.name,), (first.name,), (Mend.BIASES,)))


@pytest.mark.parametrize(
    ("data", "signatures", "message"),
    [
        (make_model("signatures"), (), "several signatures (encode, decode)"),
        (make_model("signatures"), ("decode",), ""),
        (make_if(is_second=True), ("serve",), ""),
    ],
)
def test_a_model_with_several_signatures_is_divided_if_one_is_named(
    tmp_path: Path, data: bytes, signatures: Sequence[str], message: str
) -> None:
    if message:
        with pytest.raises(UsageError) as caught:
            divide(tmp_path, data, *signatures)
        assert message in f"{caught.value}"
        return
    division = divide(tmp_path, data, *signatures)
    for operator in division.operators:
        part = write_litert(division, Cut((operator,), (operator,)), "part.tflite")
        assert [entry.key for entry in part.entries] == [*signatures]
        assert Reference(part.data, part.model, part.entries).run(part.evaluation)


@pytest.mark.parametrize(("factor", "low"), [(-1.0, False), (-40.0, True)])
def test_an_exp_reads_low_numbers_only_if_a_sample_has_them(
    factor: float, low: bool, tmp_path: Path
) -> None:
    net = Net()
    source = net.add_tensor(SHAPE, "x")
    square = net.call("MUL", (source, source), SHAPE, "MulOptions")
    scaled = net.call("MUL", (square, net.add_number(factor)), SHAPE, "MulOptions")
    net.end([source], [net.call("EXP", (scaled,), SHAPE)])
    spec = make_spec(tmp_path / "net.tflite", net.pack())
    np.savez(tmp_path / "net.npz", np.linspace(-2, 2, 64, dtype=np.float32).reshape(1, *SHAPE))
    (exp,) = (step for step in read_litert_steps(spec) if step.operator == "exp")
    assert ("low" in exp.numbers) == low
