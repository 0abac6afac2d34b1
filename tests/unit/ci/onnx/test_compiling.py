"""What a compilation and a run tell besides the context and the outputs, without QNN."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("torch", reason="torch is not installed")

from onnx import load, save
from onnx.helper import make_node
from onnx.numpy_helper import to_array
from onnxruntime.quantization import QuantType

from ci.cases.engine import Compiled, Delegation, Staging
from ci.cases.qnn_files import PROFILE_CSV
from ci.cases.spec import CaseSpec
from ci.models.lowering_options import LOG_LEVELS
from ci.models.schemes import Scheme
from ci.models.tensors import Loss
from ci.models.user_models import Source as UserSource
from ci.onnx import compile as compiling
from ci.onnx import engine, stages
from ci.onnx.engine import Executed, note_execution
from ci.onnx.fallback import QNN
from ci.onnx.models import read_model
from ci.onnx.preparation import (
    find_joined,
    find_weights,
    mend_constants,
    mend_names,
    override_weights,
    quantize_file,
    require_weights,
    write_normal_form,
)
from ci.onnx.session import FATAL, VERBOSE, WARNING, name_severity
from ci.onnx.source import from_file
from ci.onnx.stages import MOST_SAID, PROVIDER_LOG, TRACEBACK_LOG, StageError, describe_refusal
from ci.report.schema import Footprint
from provisioning.errors import FailedError
from tests.qnn_provider.models import (
    build_model,
    constant,
    tensor,
    write_conv,
    write_model,
    write_relu,
)

BINARY = "model_qnn.bin"
DELEGATION, FOOTPRINT = Delegation(1, 2, 3), Footprint(program_bytes=4)


def compile_file(
    path: Path,
    scheme: Scheme,
    monkeypatch: pytest.MonkeyPatch,
    *,
    embed: bool = True,
    **told: str,
) -> Compiled:
    """The record of a file's program; ``told`` is what its source tells."""

    def write_context(_: Path, directory: Path, *__: Any, embed: bool, **more: Any) -> Any:
        assert not more
        directory.mkdir()
        (directory / compiling.CONTEXT).write_bytes(bytes(100))
        if not embed:
            (directory / BINARY).write_bytes(bytes(2000))
        return DELEGATION, FOOTPRINT

    monkeypatch.setattr(compiling, "write_context", write_context)
    spec = CaseSpec("net", scheme, "SM8650", UserSource(str(path)))
    source = replace(from_file(path, read_model(path), [], spec.source), **told)
    work = path.with_name(f"{path.stem}-{scheme.value}-{len(list(path.parent.iterdir()))}")
    work.mkdir()
    staging = Staging(work / "staging", work / "log", work)
    staging.directory.mkdir()
    return compiling.compile_source(source, spec, staging, {}, embed=embed, saver="")


@pytest.mark.parametrize("scheme", [Scheme.ASIS, Scheme.U8])
def test_the_values_of_a_quantized_output_are_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    path = (write_conv if scheme is Scheme.ASIS else write_relu)(tmp_path / "net.onnx")
    (output,) = compile_file(path, scheme, monkeypatch).outputs
    assert output.step > 0
    assert output.highest - output.lowest == 255


def test_what_the_compiler_tells_is_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compile_file(write_relu(tmp_path / "net.onnx"), Scheme.FP16, monkeypatch)
    assert (found.delegation, found.footprint) == (DELEGATION, FOOTPRINT)
    assert (found.loss, found.layers) == (None, ())


def test_a_footprint_is_made_of_the_files_the_log_and_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    nodes = [
        SimpleNamespace(name=f"n{number}", domain="", op_type=kind)
        for number, kind in enumerate(("Relu", "Relu", "Erf"))
    ]
    parts = [
        SimpleNamespace(ep_name=QNN, get_nodes=lambda: nodes[:2]),
        SimpleNamespace(ep_name="CPUExecutionProvider", get_nodes=lambda: nodes[2:]),
    ]

    def open_session(model: Path, options: object, entries: object, **more: object) -> Any:
        log.write_text("what QNN printed", encoding="utf-8")
        (model.parent / BINARY).write_bytes(bytes(50))
        return SimpleNamespace(get_provider_graph_assignment_info=lambda: parts)

    monkeypatch.setattr(compiling, "open_session", open_session)
    monkeypatch.setattr(compiling, "make_footprint", lambda **more: given.update(more) or FOOTPRINT)
    log = tmp_path / PROVIDER_LOG
    model = write_relu(tmp_path / "net.onnx")
    place = tmp_path / "program"
    delegation, footprint = compiling.write_context(
        model, place, tmp_path / "run.log", "SM8650", {}, embed=None
    )
    assert footprint is FOOTPRINT
    assert (delegation.delegated_nodes, delegation.partitions) == (2, 1)
    assert [(one.op, one.npu, one.cpu) for one in given.pop("operators")] == [
        ("Relu", 2, 0),
        ("Erf", 0, 1),
    ]
    assert given.pop("peak").size_bytes > 0
    assert given == {
        "program_bytes": 50 + (place / compiling.CONTEXT).stat().st_size,
        "partitions": 1,
        "contexts": (),
        "log": "what QNN printed",
    }


def test_a_float_output_has_no_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (output,) = compile_file(write_relu(tmp_path / "net.onnx"), Scheme.FP16, monkeypatch).outputs
    assert output.step == 0


@pytest.mark.parametrize(
    ("scheme", "made", "calibration", "wanted"),
    [
        (Scheme.U8, "", "random inputs", "calibrated on random inputs"),
        (Scheme.U8, "random inputs", "", "random inputs"),
        (Scheme.U8, "", "", ""),
        (Scheme.FP16, "", "random inputs", ""),
        (Scheme.FP16, "random inputs", "", "random inputs"),
    ],
)
def test_what_was_made_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: Scheme,
    made: str,
    calibration: str,
    wanted: str,
) -> None:
    told = {"made": made, "calibration_made": calibration}
    path = write_relu(tmp_path / "net.onnx")
    assert compile_file(path, scheme, monkeypatch, **told).made_inputs == wanted


@pytest.mark.parametrize("scheme", [Scheme.ASIS, Scheme.U8, Scheme.FP16])
def test_only_a_program_that_was_calibrated_tells_on_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    path = (write_conv if scheme is Scheme.ASIS else write_relu)(tmp_path / "net.onnx")
    assert bool(compile_file(path, scheme, monkeypatch).calibration) is (scheme is Scheme.U8)


@pytest.mark.parametrize(
    ("embed", "binary", "size_bytes"), [(True, compiling.CONTEXT, 100), (False, BINARY, 2100)]
)
def test_a_program_is_the_model_with_its_context_wherever_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embed: bool, binary: str, size_bytes: int
) -> None:
    made = compile_file(write_relu(tmp_path / "net.onnx"), Scheme.FP16, monkeypatch, embed=embed)
    assert made.program == f"{compiling.PROGRAM}/{compiling.CONTEXT}"
    assert (made.binary, made.size_bytes) == (f"{compiling.PROGRAM}/{binary}", size_bytes)


def test_where_accuracy_is_lost_is_only_looked_for_in_what_was_calibrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = []

    def find_loss(*_: Any) -> None:
        looked.append(1)

    monkeypatch.setattr(compiling, "find_loss", find_loss)
    for scheme, times in ((Scheme.ASIS, 0), (Scheme.FP16, 0), (Scheme.U8, 1)):
        path = (write_conv if scheme is Scheme.ASIS else write_relu)(tmp_path / "net.onnx")
        compile_file(path, scheme, monkeypatch)
        assert len(looked) == times


def test_weights_are_known_by_their_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, same, other = (
        compile_file(write_conv(tmp_path / f"{name}.onnx", seed=seed), Scheme.ASIS, monkeypatch)
        for name, seed in (("one", 0), ("same", 0), ("other", 1))
    )
    assert one.weights == same.weights != other.weights


def test_the_figures_of_a_profile_are_those_of_its_runs_and_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def read(profile: Path, runs: int, partitions: int) -> dict[str, int]:
        asked.append((profile, runs, partitions))
        return {"cycles": 9}

    monkeypatch.setattr(engine, "read_accelerator", read)
    compiled = SimpleNamespace(sets=5, delegation=Delegation(8, 0, 2))
    opened: Any = SimpleNamespace(program=SimpleNamespace(directory=tmp_path, compiled=compiled))
    notes = note_execution(opened, Executed({QNN: ("a",)}))
    assert asked == [(tmp_path / PROFILE_CSV, 5, 2)]
    assert (notes.accelerator, notes.files, notes.faults) == ({"cycles": 9}, (), ())
    (tmp_path / PROFILE_CSV).touch()
    assert note_execution(opened, Executed({QNN: ("a",)})).files == (tmp_path / PROFILE_CSV,)


def test_each_level_of_qnns_log_is_a_severity() -> None:
    assert name_severity("") == WARNING
    found = [name_severity(level) for level in LOG_LEVELS]
    assert found == [FATAL, 3, WARNING, 1, VERBOSE, VERBOSE]


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (2, 1)])
def test_an_export_is_compared_in_each_output_of_each_set(place: tuple[int, int]) -> None:
    wanted = [[np.ones(4, np.float32) * (1 + n), np.ones(4, np.float32)] for n in range(3)]
    source: Any = SimpleNamespace(reference=wanted)
    compiling.require_export(source, wanted)
    number, index = place
    made = [[*one] for one in wanted]
    made[number][index] = 1.1 * made[number][index]
    with pytest.raises(FailedError, match=rf"output {index} .* 20\.0 dB .* 60 dB"):
        compiling.require_export(source, made)


def test_the_layer_that_loses_most_is_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Loss("Relu 'r'", 50.0, 40.0, 60.0)
    monkeypatch.setattr(compiling, "find_loss", lambda *_: loss)
    made = compile_file(write_relu(tmp_path / "net.onnx"), Scheme.U8, monkeypatch)
    assert (made.loss, made.layers, made.sets) == (loss, (), 4)


@pytest.mark.parametrize("lines", [0, 1, MOST_SAID, MOST_SAID + 1, MOST_SAID + 5])
def test_lines_of_the_provider_are_told_up_to_a_number(tmp_path: Path, lines: int) -> None:
    text = "".join(
        f"2026-11-20 20:32:20.8 [E:onnxruntime:, qnn.cc:9 F] line {number}\n"
        for number in (*range(lines), *range(min(lines, 1)))  # the first one twice
    )
    (tmp_path / PROVIDER_LOG).write_text(text)
    error = StageError(stages.QNN)
    error.__cause__ = ValueError("no such thing")
    told = describe_refusal(error, tmp_path / "lower.log")
    shown = [f"line {number}" for number in range(min(lines, MOST_SAID))]
    left = lines - MOST_SAID
    shown += [f"and {left} more in {PROVIDER_LOG}"] if left > 0 else []
    raised = "ValueError: no such thing"
    assert told == f"QNN: {'; '.join(shown)} ({raised})" if lines else told == f"QNN: {raised}"
    kept = (tmp_path / TRACEBACK_LOG).read_text()
    assert kept.splitlines()[-lines:] == [f"line {number}" for number in range(lines)] or not lines


def test_a_recent_model_with_constant_weights_stays_as_it_is(tmp_path: Path) -> None:
    """Versions of other domains do not count."""
    parts = [make_node("Relu", ["x"], ["y"])], [tensor("x", (1, 3))], [tensor("y", (1, 3))]
    for opset, same in ((12, False), (13, True), (21, True)):
        path = write_model(tmp_path / f"{opset}.onnx", *parts, opset=opset)
        model = load(path)
        model.opset_import.reverse()
        save(model, path)
        assert (write_normal_form(path, tmp_path / "other.onnx") == path) is same
        assert load(write_normal_form(path, tmp_path / "other.onnx")).opset_import[-1].version >= 13


def test_the_parts_of_each_output_are_found(tmp_path: Path) -> None:
    nodes = [
        make_node("Concat", ["x", "x"], ["a"], axis=1),
        make_node("Relu", ["x"], ["b"]),
        make_node("Concat", ["x", "b", "x"], ["c"], axis=0),
        make_node("Transpose", ["c"], ["d"], perm=[1, 0]),
        make_node("Identity", ["d"], ["e"]),
        make_node("Transpose", ["e"], ["f"]),  # reverses the axes
        make_node("Concat", ["x"], ["g"], axis=0),
        make_node("Concat", ["x", "b"], ["h"], axis=-1),
    ]
    shapes = [(2, 6), (2, 3), (3, 6), (3, 6), (6, 3), (2, 3), (2, 6)]
    outputs = [tensor(name, shape) for name, shape in zip("abdefgh", shapes, strict=True)]
    model = build_model(nodes, [tensor("x", (2, 3))], outputs)
    rows = [(1, (3, 3)), (0, ()), (1, (2, 2, 2)), (1, (2, 2, 2)), (0, (2, 2, 2))]
    assert find_joined(model) == [*rows, (0, ()), (1, (3, 3))]


def test_names_that_the_quantizer_would_make_are_changed_for_each_constant() -> None:
    weights = [constant(name, np.ones((1, 3))) for name in ("a", "b", "c")]
    nodes = [
        make_node("Sum", ["x", "a", "b", "c"], ["a1"]),
        make_node("Gemm", ["x", "w", "b"], ["b22"]),
    ]
    graph = build_model(nodes, [tensor("x", (1, 3))], [tensor("b22", (1, 3))], weights).graph
    mend_names(graph)
    assert [one.name for one in graph.initializer] == ["a_weight", "b_weight", "c"]
    read = [[*node.input] for node in graph.node]
    assert read == [["x", "a_weight", "b_weight", "c"], ["x", "w", "b_weight"]]


def test_infinite_constants_and_each_flat_bias_are_mended() -> None:
    rows: dict[str, Any] = {"a": [[1.0, np.inf]], "b": [[-np.inf, 2.0]], "c": [[3.0, 4.0]]}
    rows |= {"d": [[5.0], [6.0]], "e": [7.0]}
    nodes = [
        make_node("Gemm", ["x", "w"], ["p"]),
        make_node("Gemm", ["p", "w", "b"], ["q"]),
        make_node("Gemm", ["q", "w", "c"], ["r"]),
        make_node("Gemm", ["r", "w", "d"], ["t"]),
        make_node("Gemm", ["t", "w", "e"], ["s"]),
    ]
    weights = [constant(name, values) for name, values in rows.items()]
    graph = build_model(nodes, [tensor("x", (1, 2))], [tensor("s", (1, 2))], weights).graph
    mend_constants(graph)
    held = {one.name: to_array(one).tolist() for one in graph.initializer}
    assert held == {
        "a": [[1.0, 65504.0]],
        "b": [-65504.0, 2.0],
        "c": [3.0, 4.0],
        "d": [[5.0], [6.0]],
        "e": [7.0],
    }


def test_weights_of_every_node_and_operand_have_the_type_of_the_scheme() -> None:
    names = ("a", "b", "c", "norm", "w", "r", "bias")
    weights = [constant(name, np.ones((3, 3))) for name in names]
    nodes = [
        make_node("MatMul", ["x", "a"], ["p"], "first"),
        make_node("MatMul", ["b", "p"], ["q"], "second"),
        make_node("Conv", ["q", "c"], ["s"], "third"),
        make_node("LayerNormalization", ["s", "norm"], ["t"], "fourth"),
        make_node("LSTM", ["t", "w", "r", "bias"], ["u"], "fifth"),
        make_node("Gemm", ["u", "a"], ["v"], "sixth"),
        make_node("ConvTranspose", ["v", "c"], ["z"], "seventh"),
        make_node("GRU", ["z", "w", "r"], ["y"], "eighth"),
        make_node("Add", ["bias", "a"], ["other"]),
        make_node("Relu", ["a"], ["positive"]),
        make_node("MatMul", ["x", "positive"], ["unused"], "ninth"),  # its weight is no constant
    ]
    model = build_model(nodes, [tensor("x", (3, 3))], [tensor("y", (3, 3))], weights)
    plain = {*"abwr"}
    for scheme, kind, symmetric in (
        (Scheme.U16A8W, QuantType.QUInt8, False),
        (Scheme.U16A16W, QuantType.QInt16, True),
        (Scheme.U16A8W_CHANNEL, QuantType.QInt8, True),
    ):
        found = override_weights(model.graph, scheme.recipe)
        own = [{"quant_type": kind, "symmetric": symmetric}]
        assert {name: found[name] for name in plain} == dict.fromkeys(plain, own)
        unsigned = [{"quant_type": QuantType.QUInt8, "symmetric": False}]
        others = {"norm": unsigned} if scheme.recipe.per_channel else {}
        assert {name: one for name, one in found.items() if name not in plain} == others
    told = dict(find_weights(model))
    assert [*told] == [
        *("MatMul 'first' input 1", "MatMul 'second' input 0", "Conv 'third' input 1"),
        *("LSTM 'fifth' input 1", "LSTM 'fifth' input 2", "Gemm 'sixth' input 1"),
        *("ConvTranspose 'seventh' input 1", "GRU 'eighth' input 1", "GRU 'eighth' input 2"),
    ]
    with pytest.raises(
        FailedError, match="9 weights do not have type uint8, which u8 requires: MatMul"
    ):
        require_weights(model, Scheme.U8)


def write_product(path: Path) -> Path:
    """y = x w and z = x / u: two inputs, two outputs and a weight."""
    nodes = [make_node("Gemm", ["x", "w"], ["y"], "first"), make_node("Div", ["x", "u"], ["z"])]
    weights = [constant("w", np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32))]
    inputs = [tensor(name, (2, 4)) for name in ("x", "u")]
    save(build_model(nodes, inputs, [tensor("y", (2, 3)), tensor("z", (2, 4))], weights), path)
    return path


def ramp(top: float) -> Any:
    return np.linspace(-top, top, 8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize(
    ("scheme", "activations", "weights", "scales"),
    [
        (Scheme.U8, "uint8", "uint8", 1),
        (Scheme.U8_CHANNEL, "uint8", "int8", 3),
        (Scheme.U16A8W, "uint16", "uint8", 1),
        (Scheme.U16A8W_CHANNEL, "uint16", "int8", 3),
        (Scheme.U16A16W, "uint16", "int16", 1),
        (Scheme.U16A4W, "uint16", "int4", 3),
    ],
)
def test_a_quantized_model_has_the_types_of_its_scheme_and_the_ranges_of_every_set(
    tmp_path: Path, scheme: Scheme, activations: str, weights: str, scales: int
) -> None:
    sets = [(ramp(1), ramp(20)), (ramp(4), ramp(2))]
    quantize_file(write_product(tmp_path / "m.onnx"), tmp_path / "q.onnx", scheme, sets)
    made = {one.name: to_array(one) for one in load(tmp_path / "q.onnx").graph.initializer}
    assert made["w_scale"].size == scales
    assert made["w_quantized"].dtype.name == weights
    levels = 255 if activations == "uint8" else 65535
    for name, top in (("x", 4), ("u", 20)):
        assert made[f"{name}_zero_point"].dtype.name == activations
        assert made[f"{name}_scale"] == pytest.approx(2 * top / levels, rel=1e-3)


def test_the_reference_takes_every_input_of_every_set_and_gives_every_output(
    tmp_path: Path,
) -> None:
    model = write_product(tmp_path / "m.onnx")
    sets = [(ramp(1), ramp(20)), (ramp(4), ramp(2))]
    (weight,) = map(to_array, load(model).graph.initializer)
    for (y, z), (x, u) in zip(compiling.run_reference(model, sets), sets, strict=True):
        np.testing.assert_allclose(y, x @ weight, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(z, x / u, rtol=1e-6)
