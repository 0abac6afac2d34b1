"""What the log of QNN's provider says about the nodes that it takes. No session is opened."""

from __future__ import annotations

import pytest

pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

from ci.onnx.offers import AGAIN, list_decisions

START = "[V:onnxruntime:, qnn_execution_provider.cc:1481 LogNodeSupport] "


def tell(verdict: str, *nodes: tuple[str, str, int], reason: str = "") -> str:
    """A decision about a unit of nodes, as the provider logs it."""
    lines = [f"{START}Validation {verdict} for {len(nodes)} nodes in OrtNodeUnit (Add) :"]
    for operator, name, index in nodes:
        lines.append(f"\tOperator type: {operator} Node name: {name} Node index: {index}")
    if reason:
        lines.append(f"\tREASON : {reason}")
    return "\n".join([*lines, "", ""])


ADD, ERF, NAMELESS, OTHER = ("Add", "a", 0), ("Erf", "e", 1), ("Relu", "", 2), ("Relu", "", 3)
LOGS = {
    "nothing": ("", [], []),
    "one each": (
        tell("PASSED", ADD) + tell("FAILED", ERF, reason="no"),
        [("a", "Add")],
        [("e", "Erf")],
    ),
    "nodes without names": (
        tell("PASSED", NAMELESS) + tell("PASSED", OTHER),
        [("", "Relu"), ("", "Relu")],
        [],
    ),
    "a unit with quantizers": (
        tell("PASSED", ("DequantizeLinear", "q", 5), ADD),
        [("q", "DequantizeLinear"), ("a", "Add")],
        [],
    ),
    "asked again, for another layout": (
        tell("PASSED", ADD) + tell("FAILED", ERF) + f"{AGAIN}\n" + tell("FAILED", ADD),
        [],
        [("a", "Add")],
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_the_last_decision_about_each_node_counts(name: str) -> None:
    log, taken, left = LOGS[name]
    assert list_decisions(log) == (taken, left)
