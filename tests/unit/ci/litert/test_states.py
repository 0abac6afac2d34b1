"""Models that keep values between their runs: their states as inputs and outputs are the same model
over many runs, and begin anew with each sequence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert", reason="ai-edge-litert is not installed in this environment")

from ci.graphs.graph import Array
from ci.graphs.litert_file import STARTS, list_entries, name_operator, pack_model, read_model
from ci.graphs.litert_program import LitertProgram
from ci.graphs.litert_session import Reference
from ci.graphs.litert_states import OF_VARIABLES, expose_states, has_states
from ci.litert.source import make_source
from ci.models.user_models import NO_SOURCE, Source
from provisioning.errors import UsageError
from tests.build.litert_states import (
    draw_steps,
    make_decoder,
    make_gru,
    make_lstm,
    make_svdf,
)

# Each model, and the names of its states.
MODELS: dict[str, tuple[Callable[[], bytes], list[str]]] = {
    "decoder": (make_decoder, ["state/keys", "state/values"]),
    "gru": (make_gru, ["state/hidden"]),
    "lstm": (make_lstm, ["state/output_state", "state/cell_state"]),
    "svdf": (make_svdf, ["state/state"]),
}


def list_steps(name: str) -> list[list[Array]]:
    steps = draw_steps(name)
    return [[column[place] for column in steps.values()] for place in range(16)]


def run(data: bytes, sets: list[list[Array]]) -> list[Array]:
    """The first output of each run on LiteRT's CPU."""
    model = read_model(data)
    return [outputs[0] for outputs in Reference(data, model, list_entries(model)).run(sets)]


def list_kinds(data: bytes) -> set[str]:
    model = read_model(data)
    return {
        name_operator(model, operator)
        for subgraph in model.subgraphs
        for operator in subgraph.operators
    }


@pytest.mark.parametrize("name", MODELS)
def test_states_as_inputs_are_the_same_model_over_sixteen_runs(name: str) -> None:
    make, states = MODELS[name]
    data, sets = make(), list_steps(name)
    exposed = expose_states(name, data)
    assert has_states(read_model(data))
    assert not has_states(read_model(exposed))
    assert not list_kinds(exposed) & {*OF_VARIABLES, "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM"}
    model = read_model(exposed)
    (entry,) = list_entries(model)
    tensors = model.subgraphs[0].tensors
    assert [tensors[state.read].name.decode() for state in entry.states] == states
    assert [tensors[state.write].name.decode() for state in entry.states] == [
        f"{state}/next" for state in states
    ]
    expected = run(data, sets)
    np.testing.assert_allclose(run(exposed, sets), expected, atol=2e-6)
    # A second sequence begins anew, and a program that runs node after node carries them, too.
    program = LitertProgram(exposed)
    for _ in range(2):
        computed = [outputs[0] for outputs in program.run(sets)]
        np.testing.assert_allclose(computed, expected, atol=2e-6)


@pytest.mark.parametrize("name", MODELS)
def test_outputs_differ_if_a_state_is_not_carried(name: str) -> None:
    make, *_ = MODELS[name]
    exposed, sets = expose_states(name, make()), list_steps(name)
    expected = np.stack(run(exposed, sets))
    alone = np.stack([run(exposed, [inputs])[0] for inputs in sets])
    np.testing.assert_array_equal(alone[0], expected[0])
    lost = np.mean(np.square(alone[1:] - expected[1:])) / np.mean(np.square(expected[1:]))
    assert lost > 0.01


def test_a_start_is_that_of_the_first_run() -> None:
    sets = list_steps("gru")
    for start in (0.0, 0.5):
        data = make_gru(start)
        exposed = expose_states("gru", data)
        np.testing.assert_allclose(run(exposed, sets), run(data, sets), atol=1e-6)
        model = read_model(exposed)
        (state,) = list_entries(model)[0].states
        assert set(np.frombuffer(state.start, np.float32)) == {np.float32(start)}


def test_a_variable_that_nobody_writes_stays() -> None:
    data, sets = make_gru(forgets=True), list_steps("gru")
    np.testing.assert_allclose(run(expose_states("gru", data), sets), run(data, sets), atol=1e-6)


@pytest.mark.parametrize("steps", [1, 3])
def test_an_lstm_of_several_steps_is_written_out(steps: int) -> None:
    data = make_lstm(steps=steps)
    random = np.random.default_rng(0)
    sets = [[random.standard_normal((1, steps, 16)).astype(np.float32)] for _ in range(5)]
    np.testing.assert_allclose(run(expose_states("lstm", data), sets), run(data, sets), atol=2e-6)


def drop_options(model: Any) -> None:
    for subgraph in model.subgraphs:
        for operator in subgraph.operators:
            if name_operator(model, operator) == "VAR_HANDLE":
                operator.builtinOptions, operator.builtinOptionsType = None, 0


def test_a_variable_without_a_name_is_a_state() -> None:
    model = read_model(make_gru())
    drop_options(model)
    exposed = read_model(expose_states("gru", pack_model(model)))
    (state,) = list_entries(exposed)[0].states
    assert exposed.subgraphs[0].tensors[state.read].name == b"state/variable"


def lengthen(model: Any) -> None:
    """Let the last operator assign a value of another shape."""
    subgraph = model.subgraphs[0]
    (assign,) = (o for o in subgraph.operators if name_operator(model, o) == "ASSIGN_VARIABLE")
    assign.inputs = np.array([assign.inputs[0], subgraph.inputs[0]], np.int32)


def test_a_state_that_changes_its_shape_is_refused() -> None:
    model = read_model(make_gru())
    lengthen(model)
    with pytest.raises(UsageError, match="changes the shape or the type of hidden"):
        expose_states("gru", pack_model(model))


def cut_starts(model: Any) -> None:
    for entry in model.metadata:
        if entry.name == STARTS:
            buffer = model.buffers[entry.buffer]
            buffer.data = np.asarray(buffer.data)[:-4]


def drop_output(model: Any) -> None:
    model.subgraphs[0].outputs = model.subgraphs[0].outputs[:1]


@pytest.mark.parametrize("change", [cut_starts, drop_output])
def test_notes_that_do_not_fit_the_file_are_no_states(change: Callable[[Any], None]) -> None:
    model = read_model(expose_states("gru", make_gru()))
    model.signatureDefs = None
    change(model)
    (entry,) = list_entries(read_model(pack_model(model)))
    assert entry.states == ()


def test_the_samples_of_a_model_with_states_are_successive_runs(tmp_path: Path) -> None:
    path = tmp_path / "gru.tflite"
    path.write_bytes(make_gru())
    np.savez(path.with_suffix(".npz"), **draw_steps("gru"))
    source = make_source(path.name, path.read_bytes(), Source(str(path)), path=path)
    assert len(source.evaluation) == 16
    assert [array.shape for array in source.evaluation[0]] == [(1, 16)]
    (remark,) = source.remarks
    assert "state/hidden" in remark
    second_source = make_source(path.name, source.data, NO_SOURCE)  # the file that is compiled
    assert len(second_source.entries[0].states) == 1
