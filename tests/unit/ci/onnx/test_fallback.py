"""Where nodes run: out of the provider's log and a session's profile, as 2.5.0 writes them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ci.cases.engine import Compiled, Delegation, Fallback, Program
from ci.cases.qnn_files import PROFILE_CSV
from ci.cases.spec import CaseSpec
from ci.models.schemes import Scheme
from ci.onnx import fallback
from ci.onnx.engine import (
    PROFILE,
    Executed,
    OnnxEngine,
    find_lies,
    make_runner,
    note_execution,
    open_program,
)
from ci.onnx.fallback import (
    count_nodes,
    count_operators,
    name_operator,
    read_profile,
    read_reasons,
)
from provisioning.errors import QnnCiError

QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"
HEAD = "2026-11-20 20:32:20.849643620 [V:onnxruntime:, "
PASSED = (
    f"{HEAD}qnn_execution_provider.cc:1481 LogNodeSupport] Validation PASSED for 1 nodes in"
    " OrtNodeUnit (Relu) :\n\tOperator type: Relu Node name: relu1 Node index: 0\n\n"
)
ERF = (
    f"{HEAD}qnn_execution_provider.cc:1481 LogNodeSupport] Validation FAILED for 1 nodes in"
    " OrtNodeUnit (Erf) :\n\tOperator type: Erf Node name: erf1 Node index: 1\n\tREASON : Operators"
    " of type `Erf` are not supported by QNN EP.Erf node `erf1` will not be assigned to QNN EP.\n\n"
)
OFFER = f"""{HEAD}qnn_model_wrapper.cc:503 CreateQnnNode] Qnn_OpConfig node name: node_linear \
package_name: qti.aisw QNN_op_type: FullyConnected num_of_inputs: 2 num_of_outputs: 1
 node_inputs:
 name=x id=0 version=1 dataType=QNN_DATATYPE_UFIXED_POINT_16 rank=2
 name=w id=0 version=1 dataType=QNN_DATATYPE_UFIXED_POINT_8 rank=2
 node_outputs:
 name=y id=0 version=1 dataType=QNN_DATATYPE_UFIXED_POINT_16 rank=2
"""
SAID = f"""{HEAD}qnn_model_wrapper.cc:511 CreateQnnNode] QNN.backendValidateOpConfig() failed for \
node `node_linear` of type `FullyConnected` with error code 3110
"""
FORM = (
    f"{HEAD}qnn_execution_provider.cc:1481 LogNodeSupport] Validation FAILED for 2 nodes in"
    " {} (Gemm) :\n\tOperator type: Reshape Node name: flat Node index: 9\n"
    "\tOperator type: Gemm Node name: node_linear Node index: 12\n\tREASON : {}\n\n"
)
REFUSED = (
    "QNN refuses FullyConnected of ufixed_point_16, ufixed_point_8, ufixed_point_16 (error 3110)"
)


def test_the_providers_words_are_the_reason_of_a_node() -> None:
    said = read_reasons(PASSED + ERF)
    assert list(said) == ["erf1"]
    assert said["erf1"].startswith("Operators of type `Erf` are not supported by QNN EP")


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ("OrtNodeUnit", "Failed to add node."),
        ("ReshapeGemmFusionGroup", "QNN.backendValidateOpConfig() failed for node `node_linear`"),
    ],
)
def test_what_qnn_was_offered_is_told_where_nobody_says_why(group: str, reason: str) -> None:
    earlier = OFFER.replace("UFIXED", "SFIXED").replace("FullyConnected", "Conv2d")
    said = read_reasons(PASSED + earlier + OFFER + SAID + FORM.format(group, reason) + ERF)
    assert said["flat"] == said["node_linear"] == REFUSED
    assert said["erf1"].startswith("Operators of type")


def test_of_several_errors_of_a_node_the_last_is_told() -> None:
    log = (
        OFFER
        + SAID.replace("3110", "1002")
        + SAID
        + FORM.format("OrtNodeUnit", "Failed to add node.")
    )
    assert read_reasons(log)["flat"] == REFUSED


def test_a_unit_ends_with_an_empty_line() -> None:
    later = "\tOperator type: Relu Node name: relu9 Node index: 9\n\n"
    assert list(read_reasons(ERF + later)) == ["erf1"]


@pytest.mark.parametrize("before", ["", SAID, OFFER])
def test_without_an_offer_that_qnn_refused_the_words_stay(before: str) -> None:
    log = before + FORM.format("OrtNodeUnit", "Failed to add node.")
    assert read_reasons(log)["flat"] == "Failed to add node."


def test_the_last_word_about_a_node_counts() -> None:
    again = ERF.replace("FAILED", "PASSED").partition("\tREASON")[0] + "\n"
    assert read_reasons(ERF + again) == {}
    assert list(read_reasons(again + ERF)) == ["erf1"]
    others = "".join(ERF.replace("erf1", f"erf{number}") for number in (2, 3))
    assert list(read_reasons(others + ERF + again)) == ["erf2", "erf3"]


def test_nodes_are_counted_but_for_those_that_quantize() -> None:
    parts = [
        (QNN, [("q", "QuantizeLinear"), ("a", "Conv"), ("b", "Relu")]),
        (CPU, [("erf1", "Erf"), ("d", "DequantizeLinear")]),
        (QNN, [("c", "Conv"), ("e", "com.microsoft:DequantizeLinear")]),
    ]
    found = count_nodes(parts, {"erf1": "no Erf"})
    assert (found.delegated_nodes, found.fallback_nodes, found.partitions) == (3, 2, 2)
    first, second = found.fallback_ops
    assert first.op == "Erf erf1"
    assert first.reason.startswith("no Erf")
    assert second.reason.startswith("not offered to QNN")


def test_a_node_that_is_left_has_its_reason_and_the_advice_on_its_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fallback, "read_notes", lambda: {"Erf": "use Gelu", "x:Odd": "no"})
    left = [("erf1", "Erf"), ("", "Erf"), ("sin1", "Sin")]
    found = count_nodes([(CPU, left)], {"erf1": "no Erf", "sin1": "no Sin"})
    assert found.fallback_ops == (
        Fallback("Erf erf1", "no Erf; use Gelu"),
        Fallback("Erf", "not offered to QNN; use Gelu"),
        Fallback("Sin sin1", "no Sin"),
    )
    assert read_reasons(FORM.format("OrtNodeUnit", "so it is \r"))["flat"] == "so it is"


def test_an_operator_is_named_with_its_domain_unless_that_is_onnx_s() -> None:
    domains = ("", "ai.onnx", "com.microsoft")
    named = [name_operator(one, "Relu") for one in domains]
    assert named == ["Relu", "Relu", "com.microsoft:Relu"]


def test_a_node_of_any_other_provider_is_left() -> None:
    parts = [
        (QNN, [("a", "Relu")]),
        ("DmlExecutionProvider", [("b", "Erf")]),
        (CPU, [("c", "Erf")]),
    ]
    found = count_nodes(parts, {})
    assert (found.delegated_nodes, found.fallback_nodes, found.partitions) == (1, 2, 1)
    assert [one.op for one in found.fallback_ops] == ["Erf b", "Erf c"]


def test_operators_are_counted_where_they_run() -> None:
    parts = [
        (QNN, [("a", "Conv"), ("b", "Relu"), ("c", "Conv")]),
        (CPU, [("d", "Conv"), ("e", "Erf")]),
        ("DmlExecutionProvider", [("f", "Erf")]),
        (QNN, [("g", "Relu")]),
    ]
    found = {one.op: (one.npu, one.cpu) for one in count_operators(parts)}
    assert found == {"Conv": (2, 1), "Relu": (2, 0), "Erf": (0, 2)}


def test_a_profile_names_the_provider_of_each_kernel(tmp_path: Path) -> None:
    def event(name: str, provider: str, category: str = "Node") -> dict[str, object]:
        return {"cat": category, "name": name, "args": {"provider": provider}}

    events = [
        event("b_kernel_time", CPU),
        event("a_kernel_time", CPU),
        event("a_kernel_time", CPU),
        event("fused_kernel_time", QNN),
        event("other_kernel_time", "Another"),
        event("a_fence_before", CPU),
        event("model_run", QNN, "Session"),
        event("planned_kernel_time", CPU, "Session"),
        {"cat": "Node", "name": "c_kernel_time", "args": None},
        {"cat": "Node", "name": "d_kernel_time"},
        {},
    ]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(events))
    assert [*read_profile(path).items()] == [
        ("Another", ("other",)),
        (CPU, ("a", "b")),
        (QNN, ("fused",)),
    ]


OTHERS = (
    "3 nodes ran on other providers, but only 2 were compiled for them: CPUExecutionProvider ran a;"
    " Dml ran b, c"
)


@pytest.mark.parametrize(
    ("providers", "left", "told"),
    [
        ({QNN: ("fused",)}, 0, ""),
        ({QNN: ("fused",), CPU: ("erf1",)}, 1, ""),
        ({QNN: ("fused",), CPU: ("a",)}, 0, "1 node ran on other providers, but only 0"),
        ({QNN: ("fused",), CPU: ("erf1",)}, 3, ""),  # nodes may be joined to one
        ({QNN: ("fused",), CPU: ("a", "b")}, 1, "2 nodes ran on other providers, but only 1"),
        ({CPU: ("a",)}, 0, "QNN executed nothing, according to the session's profile: CPU"),
        (
            {CPU: ("a",), "Dml": ("b", "c"), QNN: ("fused",)},
            2,
            OTHERS,
        ),
        ({}, 0, "QNN executed nothing, according to the session's profile: it lists no nodes"),
    ],
)
def test_a_profile_that_contradicts_the_compilation_is_a_lie(
    providers: dict[str, tuple[str, ...]], left: int, told: str
) -> None:
    compiled = Compiled(
        program="p",
        binary="p",
        size_bytes=1,
        sets=4,
        inputs=(),
        outputs=(),
        delegation=Delegation(1, left, 1),
    )
    lies = list(find_lies(Executed(providers), compiled))
    assert len(lies) == bool(told)
    assert all(lie.startswith(told) for lie in lies)


def test_a_context_is_checked_for_its_soc_before_a_session_opens_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed in this environment")
    opened: list[dict[str, str]] = []

    def open_session(path: Path, options: Any, entries: dict[str, str], **more: Any) -> None:
        assert (path, more) == (program.path, {"profile": tmp_path / PROFILE, "severity": 7})
        opened.append(entries)
        told.append(options)

    told: list[dict[str, str]] = []
    strict = {"fallback": "none"}
    sessions = SimpleNamespace(
        NO_FALLBACK=strict, name_severity={"info": 7}.get, open_session=open_session
    )
    monkeypatch.setitem(sys.modules, "ci.onnx.session", sessions)
    engine = OnnxEngine(toolchain=(), sdk=tmp_path, log_level="info")
    compiled = Compiled(
        program="net.onnx",
        binary="net.onnx",
        size_bytes=9,
        sets=4,
        inputs=(),
        outputs=(),
        delegation=Delegation(3, 0, 2),
    )
    spec = CaseSpec("net", Scheme.U8, "SM8650")
    program = Program(spec, tmp_path / "net.onnx", compiled, tmp_path, tmp_path / "run.log")
    with pytest.raises(QnnCiError):  # it is not there, and so for no SoC
        open_program(program, engine, "")
    assert not opened
    engine = replace(engine, direct=True)
    open_program(program, engine, "")
    left = msgspec.structs.replace(
        compiled, delegation=Delegation(3, 1, 2, (Fallback("Erf", "no"),))
    )
    open_program(replace(program, compiled=left), engine, "")
    assert opened == [strict, {}]
    open_program(replace(program, compiled=left), engine, "detailed")
    plain, _, profiled = told
    assert {name: profiled[name] for name in profiled.keys() - plain.keys()} == {
        "profiling_level": "detailed",
        "profiling_file_path": str(tmp_path / PROFILE_CSV),
    }


@pytest.mark.parametrize("level", ["", "detailed"])
def test_each_program_runs_in_a_process_of_its_own(level: str) -> None:
    pool: Any = object()
    engine = OnnxEngine(toolchain=(), sdk=Path("/sdk"))
    runner = make_runner(engine, pool, *[level] * bool(level))
    assert (runner.name, runner.pool, runner.alone) == ("onnxruntime", pool, True)
    assert runner.note is note_execution
    opening: Any = runner.opening
    assert (opening.func, opening.keywords) == (open_program, {"engine": engine, "level": level})
