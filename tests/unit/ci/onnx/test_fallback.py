"""Where nodes run: out of the provider's log and a session's profile, as 2.5.0 writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.cases.engine import Delegation, Fallback
from ci.onnx import fallback
from ci.onnx.engine import Executed, find_lies
from ci.onnx.fallback import count_nodes, count_operators, name_operator, read_profile, read_reasons

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
NO_ERF = (
    "Operators of type `Erf` are not supported by QNN EP.Erf node `erf1` will not be assigned to"
    " QNN EP."
)
OFFER = f"""{HEAD}qnn_model_wrapper.cc:503 CreateQnnNode] Qnn_OpConfig node name: node_linear \
package_name: qti.aisw QNN_op_type: FullyConnected num_of_inputs: 2 num_of_outputs: 1
 node_inputs:
 name=x id=0 version=1 dataType=QNN_DATATYPE_UFIXED_POINT_16 rank=2
 name=w id=0 version=1 dataType=QNN_DATATYPE_UFIXED_POINT_8 rank=2
 node_outputs:
 name=y id=0 version=1 dataType=QNN_DATATYPE_UFIXED_POINT_16 rank=2
"""
EARLIER = OFFER.replace("UFIXED", "SFIXED").replace("FullyConnected", "Conv2d")
SAID = f"""{HEAD}qnn_model_wrapper.cc:511 CreateQnnNode] QNN.backendValidateOpConfig() failed for \
node `node_linear` of type `FullyConnected` with error code 3110
"""


def refuse(group: str, reason: str) -> str:
    """What the provider logs of a group of two nodes, flat and node_linear."""
    return (
        f"{HEAD}qnn_execution_provider.cc:1481 LogNodeSupport] Validation FAILED for 2 nodes in"
        f" {group} (Gemm) :\n\tOperator type: Reshape Node name: flat Node index: 9\n\tOperator"
        f" type: Gemm Node name: node_linear Node index: 12\n\tREASON : {reason}\n\n"
    )


FORM = refuse("OrtNodeUnit", "Failed to add node.")
FUSED = refuse(
    "ReshapeGemmFusionGroup", "QNN.backendValidateOpConfig() failed for node `node_linear`"
)
BARE = {"flat": "Failed to add node.", "node_linear": "Failed to add node."}
REFUSED = dict.fromkeys(
    BARE,
    "QNN refuses FullyConnected of ufixed_point_16, ufixed_point_8, ufixed_point_16 (error 3110)",
)
AGAIN = ERF.replace("FAILED", "PASSED").partition("\tREASON")[0] + "\n"
OTHERS = "".join(ERF.replace("erf1", f"erf{number}") for number in (2, 3))


@pytest.mark.parametrize(
    ("log", "reasons"),
    [
        (PASSED + ERF, {"erf1": NO_ERF}),
        # Nodes without a logged reason are reported with what was offered to QNN.
        (PASSED + EARLIER + OFFER + SAID + FORM + ERF, {**REFUSED, "erf1": NO_ERF}),
        (PASSED + EARLIER + OFFER + SAID + FUSED, REFUSED),
        (OFFER + SAID.replace("3110", "1002") + SAID + FORM, REFUSED),
        (FORM, BARE),
        (SAID + FORM, BARE),
        (OFFER + FORM, BARE),
        (refuse("OrtNodeUnit", "so it is \r"), dict.fromkeys(BARE, "so it is")),
        # A block ends with an empty line, and the last line about a node counts.
        (ERF + "\tOperator type: Relu Node name: relu9 Node index: 9\n\n", {"erf1": NO_ERF}),
        (ERF + AGAIN, {}),
        (AGAIN + ERF, {"erf1": NO_ERF}),
        (OTHERS + ERF + AGAIN, {f"erf{n}": NO_ERF.replace("erf1", f"erf{n}") for n in (2, 3)}),
    ],
    ids=range(12),
)
def test_reasons_of_nodes_are_read_from_the_providers_log(
    log: str, reasons: dict[str, str]
) -> None:
    assert read_reasons(log) == reasons


def test_nodes_except_quantize_are_counted_by_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes on the CPU have their reasons and the advice for their operators."""
    monkeypatch.setattr(fallback, "read_notes", lambda: {"Erf": "use Gelu", "x:Odd": "no"})
    not_an_onnx_operator = name_operator("com.microsoft", "DequantizeLinear")
    parts = [
        (QNN, [("q", "QuantizeLinear"), ("a", "Conv"), ("b", "Relu"), ("o", not_an_onnx_operator)]),
        (CPU, [("erf1", "Erf"), ("d", "DequantizeLinear"), ("", "Erf")]),
        ("DmlExecutionProvider", [("sin1", "Sin"), ("odd", "x:Odd"), ("f", "Conv")]),
        (QNN, [("c", "Conv"), ("e", "Relu")]),
    ]
    left = (
        Fallback("Erf", "no Erf; use Gelu", name="erf1"),
        Fallback("DequantizeLinear", "not offered to QNN", name="d"),
        Fallback("Erf", "not offered to QNN; use Gelu"),
        Fallback("Sin", "no Sin", name="sin1"),
        Fallback("x:Odd", "not offered to QNN; no", name="odd"),
        Fallback("Conv", "not offered to QNN", name="f"),
    )
    assert count_nodes(parts, {"erf1": "no Erf", "sin1": "no Sin"}) == Delegation(4, 6, 2, left)
    counts = {operator.op: (operator.npu, operator.cpu) for operator in count_operators(parts)}
    assert counts["Conv"] == (2, 1)
    assert (counts["Relu"], counts["Erf"], counts["x:Odd"]) == ((2, 0), (0, 2), (0, 1))
    named = [name_operator(domain, "Relu") for domain in ("", "ai.onnx", "com.microsoft")]
    assert named == ["Relu", "Relu", "com.microsoft:Relu"]


def test_a_profile_names_the_provider_of_each_kernel(tmp_path: Path) -> None:
    def event(name: str, provider: str, category: str = "Node") -> dict[str, object]:
        return {"cat": category, "name": name, "args": {"provider": provider}}

    events = [
        *(event(f"{name}_kernel_time", CPU) for name in "baa"),
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


NOTHING = "QNN executed nothing, according to the session's profile: "


@pytest.mark.parametrize(
    ("providers", "left", "lies"),
    [
        ({QNN: ("fused",)}, 0, ""),
        ({QNN: ("fused",), CPU: ("erf1",)}, 1, ""),
        ({QNN: ("fused",), CPU: ("erf1",)}, 3, ""),  # nodes may be joined to one
        ({QNN: ("fused",), CPU: ("a",)}, 0, f"1 node ran on other providers.*only 0.*{CPU} ran a"),
        ({QNN: ("f",), CPU: ("a", "b")}, 1, f"2 nodes ran on other.*only 1 was.*{CPU} ran a, b"),
        ({CPU: ("a",), "Dml": ("b", "c"), QNN: ("f",)}, 2, f"{CPU} ran a; Dml ran b, c"),
        ({CPU: ("a",)}, 0, f"{NOTHING}{CPU} ran a"),
        ({}, 0, f"{NOTHING}it lists no nodes"),
    ],
)
def test_a_profile_that_contradicts_the_compilation_is_reported(
    providers: dict[str, tuple[str, ...]], left: int, lies: str
) -> None:
    compiled: Any = SimpleNamespace(delegation=Delegation(1, left, 1))
    lies_found = [*find_lies(Executed(providers), compiled)]
    assert len(lies_found) == bool(lies)
    assert all(re.search(lies, text) for text in lies_found)
