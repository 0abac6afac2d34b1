"""What a compilation and a run tell besides the context and the outputs, without QNN."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ci.facts.finding import describe_error
from ci.facts.kinds import NOT_LOWERED

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import torch
from onnx import TensorProto, load, save
from onnx.helper import make_graph, make_node
from onnx.numpy_helper import to_array
from onnxruntime.capi.onnxruntime_pybind11_state import EngineError
from onnxruntime.quantization import QuantType

from ci.cases.engine import FLOAT, INPUTS, QUANTIZED, Compiled, Delegation, Staging
from ci.cases.qnn_files import PROFILE_CSV
from ci.cases.spec import CaseSpec
from ci.models.lowering_options import LOG_LEVELS
from ci.models.model import digest_weights
from ci.models.schemes import Scheme
from ci.models.tensors import Loss, digest_sets, read_sets
from ci.models.user_models import ReferencePolicy
from ci.models.user_models import Source as UserSource
from ci.onnx import compile as compiling
from ci.onnx import engine, export, session, stages
from ci.onnx.engine import Executed, note_execution
from ci.onnx.fallback import QNN
from ci.onnx.models import read_model
from ci.onnx.preparation import (
    OLDEST_IR,
    find_joined,
    find_weights,
    mend_constants,
    mend_names,
    override_weights,
    prepare_file,
    quantize_file,
    require_weights,
    write_normal_form,
)
from ci.onnx.session import (
    FATAL,
    RECORD_ASSIGNMENT,
    VERBOSE,
    WARNING,
    context_entries,
    name_severity,
)
from ci.onnx.source import from_file, list_inputs
from ci.onnx.stages import MOST_SAID, PROVIDER_LOG, TRACEBACK_LOG, StageError, describe_refusal
from ci.report.schema import Footprint
from provisioning.errors import FailedError, UsageError
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
    layers: bool = False,
    saver: str = "",
    delegation: Delegation = DELEGATION,
    data: UserSource | None = None,
    policy: ReferencePolicy | None = None,
    **told: Any,
) -> Compiled:
    """The record of a file's program; ``told`` is what its source tells."""

    def write_context(_: Path, directory: Path, *__: Any, embed: bool, **more: Any) -> Any:
        assert not more
        directory.mkdir()
        (directory / compiling.CONTEXT).write_bytes(bytes(100))
        if not embed:
            (directory / BINARY).write_bytes(bytes(2000))
        return delegation, FOOTPRINT

    monkeypatch.setattr(compiling, "write_context", write_context)
    data = data or UserSource(str(path))
    spec = CaseSpec("net", scheme, "SM8650", data, layers=layers)
    source = replace(from_file(path, read_model(path, data.shapes), [], data), **told)
    work = path.with_name(f"{path.stem}-{scheme.value}-{len(list(path.parent.iterdir()))}")
    work.mkdir()
    staging = Staging(work / "staging", work / "log", work, reference=policy)
    staging.directory.mkdir()
    options = {"soc_model": "57"}
    return compiling.compile_source(source, spec, staging, options, embed=embed, saver=saver)


def test_what_a_compiler_prints_is_in_its_log_whichever_stream_it_is_for(tmp_path: Path) -> None:
    with compiling.output_to(tmp_path / "log"):
        os.write(1, b"one\n")
        os.write(2, b"two\n")
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_an_output_may_be_a_single_number(tmp_path: Path) -> None:
    node = make_node("ReduceMax", ["x"], ["y"], keepdims=0)
    path = write_model(tmp_path / "m.onnx", [node], [tensor("x", (2,))], [tensor("y", ())])
    ((output,),) = compiling.run_reference(path, [(np.float32([1, 2]),)])
    assert (output.shape, output.item()) == ((), 2.0)


def test_the_first_export_starts_no_thread_of_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    tqdm = SimpleNamespace(monitor_interval=10, set_lock=lambda _: None)
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=tqdm))
    monkeypatch.setattr(export, "export_module", lambda *_: seen.append(tqdm.monitor_interval))
    export.warm_exporter.__wrapped__()
    assert seen == [0]


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
    said = (
        "Validation FAILED for 1 nodes in OrtNodeUnit (Erf) :\n\tOperator type: Erf Node name: n2"
        " Node index: 2\n\tREASON : QNN has no Erf\n\n"
    )
    noise = b"\xff\n"  # a library may write anything

    def open_session(model: Path, options: object, entries: object, **more: object) -> Any:
        log.write_bytes(noise + said.encode())
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
    (left,) = delegation.fallback_ops
    assert (left.op, left.reason.partition(";")[0]) == ("Erf n2", "QNN has no Erf")
    assert [(one.op, one.npu, one.cpu) for one in given.pop("operators")] == [
        ("Relu", 2, 0),
        ("Erf", 0, 1),
    ]
    assert given.pop("peak").size_bytes > 0
    assert given == {
        "program_bytes": 50 + (place / compiling.CONTEXT).stat().st_size,
        "partitions": 1,
        "contexts": (),
        "log": f"\ufffd\n{said}",
    }


def test_a_written_context_is_checked_sealed_and_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If QNN executes no node, there is none."""
    done: list[Any] = []
    target = tmp_path / "program" / compiling.CONTEXT
    written = [True]

    def open_session(model: Path, options: Any, entries: Any, *, severity: int) -> Any:
        done.append((model, options, entries, severity))
        print("to the log")
        if written[0]:
            target.write_bytes(b"context")
        return SimpleNamespace(get_provider_graph_assignment_info=list)

    monkeypatch.setattr(compiling, "open_session", open_session)
    monkeypatch.setattr(compiling, "check_context", lambda *given: done.append(given))
    monkeypatch.setattr(compiling, "seal_context", done.append)
    monkeypatch.setattr(compiling, "open_context", lambda path: (None, None, path.read_bytes()))
    monkeypatch.setattr(compiling, "list_context_binaries", lambda blob: ["listed", bytes(blob)])
    monkeypatch.setattr(compiling, "make_footprint", lambda **more: more)
    model = write_relu(tmp_path / "net.onnx")
    for embed in (True, False):
        options = {"soc_model": "57"}
        call = (model, target.parent, tmp_path / "run.log", "SM8650", options)
        _, footprint = compiling.write_context(*call, embed=embed)
        found: Any = footprint
        assert (found["contexts"], found["program_bytes"]) == (["listed", b"context"], 7)
        opened, *others = done
        assert opened[:2] == (model, options)
        assert opened[2] == context_entries(target, embed=embed) | RECORD_ASSIGNMENT
        assert opened[3] == VERBOSE
        assert others == [(target, "SM8650"), target]
        target.unlink()
        target.parent.rmdir()
        done.clear()
    written[0] = False
    _, footprint = compiling.write_context(*call, embed=True)
    found = footprint
    assert (found["contexts"], found["program_bytes"], len(done)) == ((), 0, 1)


@pytest.mark.parametrize("loads", [False, True])
def test_a_model_that_the_cpu_cannot_load_either_is_no_fault_of_qnn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, loads: bool
) -> None:
    asked: list[Any] = []
    model = write_relu(tmp_path / "net.onnx")

    def fail(*_: Any, **more: Any) -> None:
        asked.append(more)
        raise ValueError("no")

    def load(path: Path, **more: Any) -> None:
        assert path == model
        asked.append(more)

    monkeypatch.setattr(compiling, "open_session", fail)
    monkeypatch.setattr(compiling, "open_reference", load if loads else fail)
    call = (model, tmp_path / "program", tmp_path / "run.log", "SM8650", {})
    with pytest.raises(StageError) as caught:
        compiling.write_context(*call, embed=True)
    assert str(caught.value) == (stages.QNN if loads else stages.ONNXRUNTIME)
    assert asked == [{"severity": VERBOSE}, {"optimize": True}]


def write_sigmoid(path: Path) -> Path:
    nodes = [make_node("Sigmoid", ["x"], ["a"], "inner"), make_node("Add", ["a", "x"], ["y"])]
    return write_model(path, nodes, [tensor("x", (1, 3, 8, 8))], [tensor("y", (1, 3, 8, 8))])


def write_given(path: Path) -> Path:
    """The model of ``write_sigmoid``, quantized to uint8."""
    pairs = [("x", "i"), ("a", "b"), ("c", "y")]
    nodes = [
        make_node(*one)
        for source, made in pairs
        for one in (
            ("QuantizeLinear", [source, "s", "z"], [f"{source}_q"]),
            ("DequantizeLinear", [f"{source}_q", "s", "z"], [made]),
        )
    ]
    nodes.insert(2, make_node("Sigmoid", ["i"], ["a"], "inner"))
    nodes.insert(5, make_node("Add", ["b", "i"], ["c"]))
    grid = [constant("s", 0.05), constant("z", 128, np.uint8)]
    ends = [tensor("x", (1, 3, 8, 8))], [tensor("y", (1, 3, 8, 8))]
    return write_model(path, nodes, *ends, grid)


@pytest.mark.parametrize(
    ("scheme", "layers"),
    [
        (Scheme.ASIS, ()),
        (Scheme.ASIS, ("Sigmoid 'inner'",)),
        (Scheme.U8, ()),
        (Scheme.U8, ("Sigmoid 'inner'",)),
        (Scheme.FP16, ()),
        (Scheme.FP16, ("Sigmoid 'inner'",)),
    ],
)
def test_all_that_a_program_is_judged_by_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: Scheme, layers: tuple[str, ...]
) -> None:
    path = (write_given if scheme is Scheme.ASIS else write_sigmoid)(tmp_path / "net.onnx")
    made = compile_file(path, scheme, monkeypatch, layers=bool(layers))
    (staging,) = tmp_path.glob("net-*/staging")
    names = {str(one.relative_to(staging)) for one in staging.rglob("*.*")}
    outputs, numbers = range(1 + len(layers)), range(4)
    kinds = ["float", *["quantized"] * scheme.quantized]
    wanted = {f"{kind}/{n}_{one}.raw" for kind in kinds for n in numbers for one in outputs}
    wanted |= {f"inputs/{n}_0.raw" for n in numbers} | {f"noise/{one}.npy" for one in outputs}
    wanted |= {compiling.QUANTIZED_MODEL} if scheme.quantized else set()
    assert names == wanted | {made.program}
    labels = tuple(one.label for one in made.layers)
    assert (labels, len(made.outputs)) == (layers, len(outputs))
    assert [one.step > 0 for one in made.outputs] == [scheme.quantized] * len(outputs)


def test_a_model_that_its_export_changed_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference: Any = [[np.ones((1, 3, 8, 8), np.float32)]] * 4
    with pytest.raises(FailedError, match=r"torch\.onnx\.export changed the model"):
        compile_file(
            write_relu(tmp_path / "net.onnx"), Scheme.FP16, monkeypatch, reference=reference
        )


@pytest.mark.parametrize(
    ("saver", "partitions", "written"),
    [("", 1, False), ("libQnnSaver.so", 0, False), ("libQnnSaver.so", 1, True)],
)
def test_calls_are_recorded_if_asked_for_and_if_qnn_executes_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saver: str, partitions: int, *, written: bool
) -> None:
    opened: list[Any] = []

    def open_session(model: Path, options: Any, entries: Any) -> None:
        opened.append((model, options, entries, Path.cwd().name))
        print("what Saver printed", flush=True)

    monkeypatch.setattr(compiling, "open_session", open_session)
    path, delegation = write_relu(tmp_path / "net.onnx"), Delegation(1, 0, partitions)
    compile_file(path, Scheme.FP16, monkeypatch, saver=saver, delegation=delegation)
    options = {"soc_model": "57", "qnn_saver_path": saver}
    assert opened == [(path, options, {}, "staging")] * written
    assert len([*tmp_path.glob(f"*/{compiling.SAVER_LOG}")]) == written


class Restarting:
    """A session after which the subsystem restarts, for the first ``times`` runs of all."""

    left = 0

    def get_inputs(self) -> Any:
        return [SimpleNamespace(name="x"), SimpleNamespace(name="z")]

    def run(self, names: None, feed: dict[str, int]) -> tuple[int, ...]:
        if Restarting.left:
            Restarting.left -= 1
            raise EngineError("crashed.\n  SSR detected.")
        return feed["x"], feed["z"]

    def end_profiling(self) -> str:
        return "profile.json"


@pytest.mark.parametrize("times", [0, 1, engine.MAX_RESTARTS, engine.MAX_RESTARTS + 1])
def test_a_session_is_made_again_when_the_subsystem_restarts(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(Restarting, "left", times)
    monkeypatch.setattr(engine, "read_profile", lambda path: {str(path): ("a",)})
    made: list[Restarting] = []

    def make() -> Restarting:
        made.append(Restarting())
        return made[-1]

    session = engine.RecoveringSession(make)
    sets: Any = [(1, 2), (3, 4)]
    if times > engine.MAX_RESTARTS:
        with pytest.raises(FailedError, match="restarted 4 times") as caught:
            session.run(sets)
        assert caught.value.why == "crashed. SSR detected."
        return
    assert session.run(sets) == [[1, 2], [3, 4]]
    assert len(made) == 1 + times
    assert session.session is made[-1]
    assert session.finish() == Executed({"profile.json": ("a",)}, times)


def test_a_recreated_session_is_told() -> None:
    compiled = SimpleNamespace(sets=4, delegation=Delegation(8, 0, 1))
    program = SimpleNamespace(directory=Path("none"), compiled=compiled)
    opened: Any = SimpleNamespace(program=program)
    remarks = [
        note_execution(opened, Executed({QNN: ("a",)}, restarts)).remark for restarts in (0, 1, 2)
    ]
    assert not remarks[0]
    assert ("1 restart " in remarks[1], "2 restarts " in remarks[2]) == (True, True)


@pytest.mark.parametrize("profile", [None, Path("profile")])
def test_a_session_has_its_entries_options_and_no_fallback(
    monkeypatch: pytest.MonkeyPatch, profile: Path | None
) -> None:
    entries: dict[str, str] = {}
    devices: list[Any] = []
    settings = SimpleNamespace(
        enable_profiling=False,
        profile_file_prefix="",
        add_session_config_entry=entries.__setitem__,
        add_provider_for_devices=lambda *given: devices.append(given),
    )
    stand_in = SimpleNamespace(
        SessionOptions=lambda: settings, InferenceSession=lambda *given, **more: (given, more)
    )
    monkeypatch.setattr(session, "onnxruntime", stand_in)
    monkeypatch.setattr(session, "find_device", lambda: "device")
    asked = session.context_entries(Path("c.onnx"), embed=False)
    options = {"soc_model": "57"}
    more = {"profile": profile, "severity": VERBOSE} if profile else {}
    made: Any = session.open_session(Path("m.onnx"), options, asked, **more)
    assert made == (("m.onnx",), {"sess_options": settings, "enable_fallback": 0})
    assert entries == {
        "ep.context_enable": "1",
        "ep.context_file_path": "c.onnx",
        "ep.context_embed_mode": "0",
    }
    assert session.context_entries(Path("c"), embed=True)["ep.context_embed_mode"] == "1"
    assert devices == [(["device"], options)]
    assert settings.log_severity_level == (VERBOSE if profile else WARNING)
    prefix = "profile" if profile else ""
    assert (settings.enable_profiling, settings.profile_file_prefix) == (bool(profile), prefix)


def test_a_provider_without_a_device_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    found = [SimpleNamespace(ep_name=name) for name in (session.CPU, session.PROVIDER)]
    stand_in = SimpleNamespace(
        register_execution_provider_library=lambda *given: registered.append(given),
        get_ep_devices=lambda: found,
    )
    monkeypatch.setattr(session, "onnxruntime", stand_in)
    assert session.find_device.__wrapped__() is found[1]
    assert registered == [(session.PROVIDER, session.onnxruntime_qnn.get_library_path())]
    found.pop()
    with pytest.raises(FailedError, match="no device for QNN's provider") as caught:
        session.find_device.__wrapped__()
    assert caught.value.fix


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
        (Scheme.ASIS, "", "random inputs", ""),
        (Scheme.ASIS, "random inputs", "", "random inputs"),
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
    told: dict[str, Any] = {"made": made, "calibration_made": calibration}
    path = (write_conv if scheme is Scheme.ASIS else write_relu)(tmp_path / "net.onnx")
    assert compile_file(path, scheme, monkeypatch, **told).made_inputs == wanted


@pytest.mark.parametrize("scheme", [Scheme.ASIS, Scheme.U8, Scheme.FP16])
def test_only_a_program_that_was_calibrated_tells_on_what(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    path = (write_conv if scheme is Scheme.ASIS else write_relu)(tmp_path / "net.onnx")
    assert bool(compile_file(path, scheme, monkeypatch).calibration) is (scheme is Scheme.U8)
    own = from_file(path, read_model(path), [], UserSource(str(path))).calibration[:1]
    told = compile_file(path, scheme, monkeypatch, calibration=own).calibration
    assert told == (digest_sets(own) if scheme is Scheme.U8 else "")


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
    compile_file(write_sigmoid(tmp_path / "net.onnx"), Scheme.U8, monkeypatch, layers=True)
    assert len(looked) == 1


def test_names_types_shapes_and_values_of_all_weights_are_in_their_digest(tmp_path: Path) -> None:
    """In a branch, too; their order in the file is not."""

    def digest(*weights: Any, inner: Any = (1, 1, 1)) -> str:
        body = [make_node("Identity", ["v"], ["b"])]
        bodies = [make_graph(body, "g", [], [tensor("b", (3,))], [constant("v", inner)])] * 2
        kept = dict(zip(("then_branch", "else_branch"), bodies, strict=True))
        nodes = [make_node("If", ["is"], ["c"], **kept), make_node("Relu", ["x"], ["y"])]
        ends = [tensor("x", (1, 3)), tensor("is", (), TensorProto.BOOL)], [tensor("y", (1, 3))]
        path = write_model(tmp_path / "m.onnx", nodes, *ends, weights)
        return compiling.digest_source(cast(Any, SimpleNamespace(origin=path)))

    a, b = constant("a", [[1, 2]]), constant("b", [3, 4])
    plain = digest(a, b)
    assert digest(b, a) == plain
    others = [
        digest(a),
        digest(b),
        digest(a, constant("c", [3, 4])),
        digest(a, constant("b", [[3, 4]])),
        digest(a, constant("b", [3, 5])),
        digest(a, constant("b", np.float32([3, 4]).view(np.int32), np.int32)),
        digest(a, b, inner=(1, 0, 1)),
    ]
    assert len({plain, *others}) == 8


QUANTIZERS = [
    make_node("QuantizeLinear", ["a", "s", "z"], ["q"]),
    make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
]


def write_pair(folder: Path, *values: float) -> UserSource:
    """A quantized model and its float model, which add a weight of these values in another file.
    Their shapes are given; they are free in the files."""
    paths = []
    rows = (("net", QUANTIZERS), ("float", [make_node("Relu", ["a"], ["y"])]))
    for (name, nodes), value in zip(rows, values, strict=True):
        ends = [tensor("x", ("n", 3))], [tensor("y", ("n", 3))]
        weights = [constant("w", [value] * 3), constant("s", 0.5), constant("z", 7, np.uint8)]
        model = build_model([make_node("Add", ["x", "w"], ["a"]), *nodes], *ends, weights)
        external = {"save_as_external_data": True, "location": f"{name}.bin", "size_threshold": 9}
        (folder / f"{name}.bin").unlink(missing_ok=True)  # it would be appended to
        save(model, folder / f"{name}.onnx", **external)
        paths.append(str(folder / f"{name}.onnx"))
    return UserSource(paths[0], float_model=paths[1], shapes=(("x", (2, 3)),))


def test_a_quantized_model_is_compared_with_its_float_model_in_the_given_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_pair(tmp_path, 10, 20)
    made = compile_file(Path(data.reference), Scheme.ASIS, monkeypatch, data=data)
    (staging,) = tmp_path.glob("net-*/staging")
    assert [one.shape for one in (*made.inputs, *made.outputs)] == [(2, 3), (2, 3)]
    inputs, float32, quantized = (
        read_sets(staging / kind, made.outputs, made.sets) for kind in (INPUTS, FLOAT, QUANTIZED)
    )
    for model in (staging / compiling.QUANTIZED_MODEL, staging.with_name("plain.onnx")):
        assert list_inputs(load(model)) == {"x": (np.dtype(np.float32), (2, 3))}
    assert len(inputs) == 4
    for (x,), (right,), (own,) in zip(inputs, float32, quantized, strict=True):
        np.testing.assert_allclose(right, np.maximum(x + 20, 0), rtol=1e-6)
        np.testing.assert_array_equal(own, np.round((x + 10) / 0.5) * 0.5)


def test_a_float_model_that_proves_nothing_may_do_so_because_of_made_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_pair(tmp_path, 10, -1e9)
    path, policy = Path(data.reference), ReferencePolicy(min_rms=1.0, min_spread=0.1)
    with pytest.raises(FailedError, match="proves nothing") as caught:
        compile_file(path, Scheme.ASIS, monkeypatch, data=data, policy=policy, made="random inputs")
    assert "random inputs" in caught.value.why


def test_the_source_of_a_case_has_the_shapes_and_the_float_model_that_are_given(
    tmp_path: Path,
) -> None:
    def load_digest(*values: float) -> str:
        source = write_pair(tmp_path, *values)
        path = source.reference
        spec = CaseSpec("net", Scheme.ASIS, "SM8650", source)
        found = compiling.load_source(spec)
        assert found.evaluation[0][0].shape == (2, 3)
        free = CaseSpec("net", Scheme.ASIS, "SM8650", UserSource(path))
        with pytest.raises(UsageError) as caught:
            compiling.load_source(free)
        assert caught.value.fix.endswith("\n    --shape x=1,3")
        return found.digest

    digests = [load_digest(*values) for values in ((1, 2), (1, 3), (4, 2), (1, 2))]
    assert len({*digests}) == 3
    assert digests[0] == digests[3]


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
    made[number][index] = made[number][index] * np.float32(np.nan)
    with pytest.raises(FailedError, match=rf"output {index} has an SQNR of nan dB"):
        compiling.require_export(source, made)


def test_the_layer_that_loses_most_is_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = Loss("Relu 'r'", 50.0, 40.0, 60.0)
    monkeypatch.setattr(compiling, "find_loss", lambda *_: loss)
    made = compile_file(write_relu(tmp_path / "net.onnx"), Scheme.U8, monkeypatch)
    assert (made.loss, made.layers, made.sets) == (loss, (), 4)


def test_an_error_of_ours_is_told_as_it_is(tmp_path: Path) -> None:
    """Without a stage, too; the provider's log belongs to QNN's stage alone."""
    (tmp_path / PROVIDER_LOG).write_text("2026-11-20 [E:onnxruntime:, a.cc:9 F] not told\n")
    cause = FailedError("one", why="a cause", fix="a remedy")
    staged = StageError(stages.QUANTIZER)
    staged.__cause__ = cause
    cause.__cause__ = KeyError("what it was made of")
    for error, told in (
        (staged, NOT_LOWERED.find("quantizer: one", advice=describe_error(cause))),
        (cause, NOT_LOWERED.find("one", advice=describe_error(cause))),
        (ValueError(" a\n  b "), NOT_LOWERED.find("ValueError: a b")),
        (ValueError(), NOT_LOWERED.find("ValueError")),
    ):
        assert describe_refusal(error, tmp_path / "lower.log") == told


def test_a_model_of_torch_is_loaded_digested_and_exported_with_its_first_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = torch.nn.Linear(2, 2)
    model: Any = SimpleNamespace(module=module, evaluation=[("first",), ("second",)])
    asked: list[Any] = []
    monkeypatch.setattr("ci.models.model.load_digested", lambda *words: (*words, "loaded"))
    monkeypatch.setattr(compiling, "from_torch", lambda *words: words)
    monkeypatch.setattr(export, "export_module", lambda *words: asked.append(words))
    spec = CaseSpec("mlp", Scheme.FP16, "SM8650")
    assert cast(Any, compiling.load_source(spec)) == (spec.reference, spec.source, "loaded")
    source: Any = SimpleNamespace(origin=model)
    assert compiling.digest_source(source) == digest_weights(module)
    target = tmp_path / "m.onnx"
    assert compiling.write_float(source, target, [("x", (1,))]) == target
    assert asked == [(module, ("first",), target)]


@pytest.mark.parametrize("lines", [0, 1, MOST_SAID, MOST_SAID + 1, MOST_SAID + 5])
def test_lines_of_the_provider_are_told_up_to_a_number(tmp_path: Path, lines: int) -> None:
    text = "".join(
        f"2026-11-20 20:32:20.8 [E:onnxruntime:, qnn.cc:9 F] line {number} \n"
        for number in (*range(lines), *range(min(lines, 1)))  # the first one twice
    )
    (tmp_path / PROVIDER_LOG).write_text(text)
    error = StageError(stages.QNN)
    error.__cause__ = ValueError("no such thing")
    told = describe_refusal(error, tmp_path / "lower.log")
    shown = [f"line {number}" for number in range(min(lines, MOST_SAID))]
    left = lines - MOST_SAID
    shown += (
        [f"and {left} more, which --keep-artifacts keeps in {PROVIDER_LOG}"] if left > 0 else []
    )
    raised = "ValueError: no such thing"
    assert told.headline == f"refused: QNN: {[*shown, raised][0]}"
    assert told.evidence.splitlines() == ([*shown, raised] if lines else [])
    kept = (tmp_path / TRACEBACK_LOG).read_text()
    assert kept.startswith(f"{raised}\n")
    assert kept.splitlines()[-lines:] == [f"line {number}" for number in range(lines)] or not lines
    error.__cause__ = ValueError("line 0")  # what the exception has is told once
    again = describe_refusal(error, tmp_path / "lower.log")
    assert again.text.count("line 0") == 1


def test_a_recent_model_with_constant_weights_stays_as_it_is(tmp_path: Path) -> None:
    """Versions of other domains do not count."""
    parts = [make_node("Relu", ["x"], ["y"])], [tensor("x", (1, 3))], [tensor("y", (1, 3))]
    for opset, same in ((12, False), (13, True), (21, True), (22, False)):
        path = write_model(tmp_path / f"{opset}.onnx", *parts, opset=opset)
        model = load(path)
        model.opset_import.reverse()
        model.opset_import[0].version = 30
        save(model, path)
        assert (write_normal_form(path, tmp_path / "other.onnx") == path) is same
        for shapes in ((), [("x", (1, 3))]):
            made = load(write_normal_form(path, tmp_path / "other.onnx", shapes))
            assert made.opset_import[-1].version == min(max(opset, 13), 21)
            assert made.ir_version == model.ir_version > OLDEST_IR
        model.opset_import[-1].domain = "ai.onnx"
        save(model, path)
        assert (write_normal_form(path, tmp_path / "other.onnx") == path) is same
        del model.opset_import[-1]
        save(model, path)
        assert write_normal_form(path, tmp_path / "other.onnx") == path


def test_a_recent_model_whose_weights_a_caller_may_replace_is_written_anew(tmp_path: Path) -> None:
    model = build_model(
        [make_node("Add", ["x", "w"], ["y"])],
        [tensor("x", (1, 3)), tensor("w", (1, 3))],
        [tensor("y", (1, 3))],
        [constant("w", np.ones((1, 3), np.float32))],
    )
    assert model.opset_import[0].version >= 13
    save(model, tmp_path / "m.onnx")
    made = load(write_normal_form(tmp_path / "m.onnx", tmp_path / "other.onnx"))
    assert [one.name for one in made.graph.input] == ["x"]
    assert [one.name for one in made.graph.initializer] == ["w"]


def test_weights_of_a_branch_have_the_type_before_they_are_dequantized() -> None:
    nodes = [
        make_node("DequantizeLinear", ["levels", "step"], ["w"]),
        make_node("MatMul", ["x", "w"], ["z"], "inner"),
    ]
    weights = [constant("levels", np.ones((3, 3)), np.int8), constant("step", np.float32(1))]
    branch = build_model(nodes, [], [tensor("z", (1, 3))], weights).graph
    choice = make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    model = build_model([choice], [tensor("x", (1, 3))], [tensor("y", (1, 3))], [])
    found = {name: int(kind) for name, kind in find_weights(model)}
    assert found == {"MatMul 'inner' input 1": int(TensorProto.INT8)}


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
        make_node("Abs", ["x"], ["inner"]),
        make_node("Concat", ["inner", "w"], ["i"], axis=0),
        make_node("Concat", ["gone", "gone"], ["j"], axis=0),
        make_node("Concat", ["x", "free"], ["k"], axis=0),
        make_node("Concat", ["x", "v"], ["l"], axis=0),  # of other ranks
        make_node("Concat", ["cube", "cube"], ["m"], axis=0),
        make_node("Transpose", ["m"], ["n"], perm=[1, 2, 0]),
        make_node("Transpose", ["n"], ["o"], perm=[1, 0, 2]),
    ]
    shapes = [(2, 6), (2, 3), (3, 6), (3, 6), (6, 3), (2, 3), (2, 6), (6, 3), (2, 3), ("m", 3)]
    shapes += [(5, 3), (3, 2, 8)]
    outputs = [tensor(name, shape) for name, shape in zip("abdefghijklo", shapes, strict=True)]
    inputs = [tensor("x", (2, 3)), tensor("free", ("n", 3)), tensor("cube", (4, 2, 3))]
    weights = [constant("w", np.ones((4, 3))), constant("v", np.ones(3))]
    model = build_model(nodes, inputs, outputs, weights)
    rows = [(1, (3, 3)), (0, ()), (1, (2, 2, 2)), (1, (2, 2, 2)), (0, (2, 2, 2))]
    rows += [(0, ()), (1, (3, 3)), (0, (2, 4)), (0, ()), (0, ()), (0, ()), (2, (4, 4))]
    assert find_joined(model) == rows


def test_names_that_the_quantizer_would_make_are_changed_for_each_constant() -> None:
    weights = [constant(name, np.ones((1, 3))) for name in ("a", "b", "c", "d1")]
    nodes = [
        make_node("Sum", ["x", "a", "b", "c", "d1"], ["a1"]),
        make_node("Relu", ["x"], ["d12"]),
        make_node("Gemm", ["x", "w", "b"], ["b22"]),
    ]
    graph = build_model(nodes, [tensor("x", (1, 3))], [tensor("b22", (1, 3))], weights).graph
    mend_names(graph)
    renamed = ["a_weight", "b_weight", "c", "d1_weight"]
    assert [one.name for one in graph.initializer] == renamed
    read = [[*node.input] for node in graph.node]
    assert read == [["x", *renamed], ["x"], ["x", "w", "b_weight"]]


def test_infinite_constants_and_each_flat_bias_are_mended() -> None:
    rows: dict[str, Any] = {"a": [[1.0, np.inf]], "b": [[-np.inf, 2.0]], "c": [[3.0, 4.0]]}
    rows |= {"d": [[5.0], [6.0]], "e": [7.0], "f": [[8.0, 9.0]]}
    nodes = [
        make_node("Gemm", ["x", "w"], ["p"]),
        make_node("Gemm", ["p", "w", "b"], ["q"]),
        make_node("Gemm", ["q", "w", "c"], ["r"]),
        make_node("Gemm", ["r", "w", "d"], ["t"]),
        make_node("Gemm", ["t", "w", "e"], ["s"]),
        make_node("Where", ["is", "s", "f"], ["last"]),
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
        "f": [[8.0, 9.0]],
    }


def test_a_model_is_mended_and_rewritten_for_qnn_before_it_is_quantized(tmp_path: Path) -> None:
    """What an L2 norm is exported as becomes one node, if there is any; the metadata stays."""
    nodes = [make_node("Gemm", ["x", "w", "bias"], ["bias1"], "layer")]
    last = {
        "LpNormalization": [
            make_node("ReduceL2", ["bias1", "axes"], ["a"], "n1", keepdims=1),
            make_node("Clip", ["a", "least"], ["b"], "n2"),
            make_node("Expand", ["b", "shape"], ["c"], "n3"),
            make_node("Div", ["bias1", "c"], ["y"], "n4"),
        ],
        "Relu": [make_node("Relu", ["bias1"], ["y"], "n1")],
    }
    values = {"w": np.eye(3), "bias": [[1.0, np.inf, 2.0]], "least": 1e-12}
    weights = [constant(name, value) for name, value in values.items()]
    weights += [constant("axes", [-1], np.int64), constant("shape", [2, 3], np.int64)]
    for kind, tail in last.items():
        ends = [tensor("x", (2, 3))], [tensor("y", (2, 3))]
        model = build_model([*nodes, *tail], *ends, weights[: 2 if kind == "Relu" else None])
        model.metadata_props.add(key="author", value="x")
        model.metadata_props.add(key="licence", value="y")
        save(model, tmp_path / "m.onnx")
        made = prepare_file(tmp_path / "m.onnx")
        assert [one.op_type for one in made.graph.node] == ["Gemm", kind]
        told = {one.key: one.value for one in made.metadata_props}
        assert (told["author"], told["licence"]) == ("x", "y")
        held = {one.name: to_array(one).tolist() for one in made.graph.initializer}
        assert held["bias_weight"] == [1.0, 65504.0, 2.0]


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
        FailedError,
        match=r"9 weights do not .* type uint8, which u8 requires: MatMul 'f.*MatMul 's.*Conv 't",
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
