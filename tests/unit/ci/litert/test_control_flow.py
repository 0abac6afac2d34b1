"""Models with IF and WHILE, which run other subgraphs of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.analysis.layers import find_float16_loss
from ci.analysis.noise import predict_noise
from ci.graphs.litert_file import list_entries, pack_model, read_model
from ci.graphs.litert_program import LitertProgram
from ci.graphs.litert_session import Reference
from ci.litert.compile import note_control_flow
from ci.litert.compiled import CompiledModel, CpuStep
from ci.litert.execution import Execution
from ci.litert.suite import Net
from provisioning.errors import FailedError
from tests.build.litert_nets import SIZES, make_composite, make_if, make_while

MODELS = {
    "if": make_if(),
    "nested if": make_if(nested=True),
    "if in the second signature": make_if(is_second=True),
    "while": make_while(),
    "composite": make_composite(),
    "nested composite": make_composite("nested"),
}


def draw_sets(inputs: int = 1) -> list[list[Any]]:
    """Samples of which some take the first branch, and some the other."""
    random = np.random.default_rng(1)
    sets = []
    for shift in (-1, 0.5, 1, -0.5):
        arrays = [random.standard_normal(SIZES) + shift for _ in range(inputs)]
        sets.append([array.astype(np.float32) for array in arrays])
    return sets


@pytest.mark.parametrize("name", MODELS)
def test_control_flow_runs_as_the_interpreter_runs_it(name: str, tmp_path: Path) -> None:
    data = MODELS[name]
    path = tmp_path / "net.tflite"
    path.write_bytes(data)
    compiled = CompiledModel(path)
    model = read_model(data)
    entries = list_entries(model)
    sets = draw_sets(len(entries))
    execution = Execution(compiled, model, tmp_path, {})
    calls = execution.list_calls(entries)
    expected = Reference(data, model, entries).run(sets)
    for arrays, outputs in zip(sets, expected, strict=True):
        results = [
            output
            for call, array in zip(calls, arrays, strict=True)
            for output in call.run([array])
        ]
        for result, output in zip(results, outputs, strict=True):
            np.testing.assert_array_equal(result, output)
    steps = execution.steps[entries[-1].subgraph]
    assert len([step for step in steps if isinstance(step, CpuStep) and step.control]) == 1


# In dB. The emulator's programs had 42.9, 42.9, 41.1, 34.7 and 44.3 dB. Without the roundings
# inside of other subgraphs, 62 to 65 dB would be predicted.
PREDICTED = {
    "if": [49],
    "nested if": [48],
    "if in the second signature": [65, 49],
    "while": [39],
    "composite": [48],
    "nested composite": [48],
}


@pytest.mark.parametrize("name", MODELS)
def test_the_noise_inside_of_other_subgraphs_is_predicted(name: str) -> None:
    program = LitertProgram(MODELS[name])
    sets = draw_sets(len(program.entries))
    reference = program.run(sets)
    predicted_db = []
    for place, noise in enumerate(predict_noise(program, sets, reference, qnn="2.51.0")):
        exact = np.stack([outputs[place] for outputs in reference])
        power = np.mean(np.square(exact, dtype=np.float64))
        predicted_db.append(10 * np.log10(power / np.mean(np.square(noise, dtype=np.float64))))
    assert predicted_db == pytest.approx(PREDICTED[name], abs=1.5)


@pytest.mark.parametrize("name", ["if", "while"])
def test_activations_inside_of_other_subgraphs_are_named(name: str) -> None:
    """HTP computes them less accurately, together with the layer before them."""
    loss = find_float16_loss(LitertProgram(MODELS[name]), draw_sets(), is_lossy=True)
    assert loss is not None
    assert loss.fused is not None
    (activation,) = loss.fused.activations
    assert activation.name.startswith("TANH ")


def test_operators_in_a_wrong_order_are_an_error(tmp_path: Path) -> None:
    """LiteRT's plugin writes the operators around a nested composite in such an order."""
    model = read_model(MODELS["composite"])
    before, composite, behind = model.subgraphs[0].operators
    model.subgraphs[0].operators = [before, behind, composite]
    path = tmp_path / "net.tflite"
    path.write_bytes(pack_model(model))
    compiled = CompiledModel(path)
    execution = Execution(compiled, compiled.model, tmp_path, {})
    (call,) = execution.list_calls(list_entries(compiled.model))
    with pytest.raises(FailedError, match="is read before STABLEHLO_COMPOSITE computes it"):
        call.run(draw_sets()[0])


def make_call() -> bytes:
    """A model with a CALL, which LiteRT's converters do not write."""
    net = Net()
    source = net.add_tensor(SIZES, "x")
    net.end([source], [net.call("CALL", (source,), SIZES)])
    return net.pack()


@pytest.mark.parametrize(
    ("data", "kinds"),
    [(make_call(), ["CALL"]), *((data, []) for data in MODELS.values())],
)
def test_what_is_not_read_of_control_flow_is_noted(data: bytes, kinds: list[str]) -> None:
    notes = note_control_flow(LitertProgram(data))
    assert [note.partition(" runs ")[0] for note in notes] == kinds


@pytest.mark.parametrize(
    ("inside", "operators"),
    [
        ("layer", ["linear", "linear", "tanh", "linear"]),
        ("nested", ["linear", "linear", "tanh", "linear"]),
        ("input", ["linear", "stablehlo_composite", "linear"]),
        ("itself", ["linear", "stablehlo_composite", "linear"]),
    ],
)
def test_a_composite_is_read_as_what_it_consists_of(inside: str, operators: list[str]) -> None:
    program = LitertProgram(make_composite(inside))
    graph = next(iter(program.graphs.values()))
    assert [node.operator for node in graph.nodes] == operators


def test_a_loop_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.graphs.litert_file.MOST_LOOPS", 2)
    path = tmp_path / "net.tflite"
    path.write_bytes(MODELS["while"])
    compiled = CompiledModel(path)
    execution = Execution(compiled, read_model(MODELS["while"]), tmp_path, {})
    (call,) = execution.list_calls(list_entries(compiled.model))
    with pytest.raises(FailedError, match="WHILE did not end within 2 rounds"):
        call.run(draw_sets()[0])
