"""What the table of operators says, and the advice of this lane's policy."""

from __future__ import annotations

import re

import pytest

from ci.cases.policy import read_emulator_policy
from ci.onnx.fallback import count_nodes, read_notes
from tests.qnn_provider.table import read_operators
from tests.stand_ins.reports import say


def test_a_node_on_the_cpu_has_its_reason_and_workaround() -> None:
    parts = [("CPUExecutionProvider", [("mask", "Trilu"), ("n1", "Acos")])]
    reasons = {"mask": "Operators of type `Trilu` are not supported by QNN EP."}
    first, second = count_nodes(parts, reasons).fallback_ops
    assert first.reason.startswith(reasons["mask"])
    assert first.reason.endswith(read_notes()["Trilu"])
    assert second.reason == "not offered to QNN"


def test_every_refusal_by_qnn_in_the_operator_table_has_a_remedy() -> None:
    policy = read_emulator_policy(lane="onnx")
    rows = [row for operator in read_operators().operator for row in operator.rows]
    codes = ("Cannot get shape", "error 3110", "Code: 1002", "Code: 1100", "are not supported by")
    says_a_code = re.compile("|".join(map(re.escape, codes))).search
    refusals = [row.reason for row in rows if says_a_code(row.reason)]
    assert len(refusals) > 100
    assert [reason for reason in refusals if not policy.advise(say(reason)).remedies] == []
    shared = "If branches share internal tensor name `i`; rename not supported."
    assert "the two branches" in str(policy.advise(say(shared)))
    assert "rank 5" in str(policy.advise(say("QNN refuses Tanh of float_32 (error 3110)")))


@pytest.mark.parametrize(
    "reason",
    [
        "QNN graph execute error. Error: QNN_COMMON_ERROR_SYSTEM_COMMUNICATION, Code: 30002",
        "NPU crashed. SSR detected. Caused QNN graph execute error. Error code: 30002",
    ],
)
def test_an_npu_crash_has_the_remedy_to_create_a_new_session(reason: str) -> None:
    advice = read_emulator_policy(lane="onnx").advise(say(reason))
    assert "create a new session" in advice.remedies[0].text
