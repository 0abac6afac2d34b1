"""The advice of this lane's policy, for errors in the provider's own words."""

from __future__ import annotations

import pytest

from ci.cases.policy import read_emulator_policy
from tests.stand_ins.reports import say


@pytest.mark.parametrize(
    "reason",
    [
        "QNN graph execute error. Error: QNN_COMMON_ERROR_SYSTEM_COMMUNICATION, Code: 30002",
        "Failed to finalize QNN graph. Error: a link of the system, Code:30002",
        "NPU crashed. SSR detected. Caused QNN graph execute error. Error code: 30002",
        "Failed to create QNN device. Error: Unknown error. QNN error handle: 30002",
        "QnnGraph_finalize failed with error 30002",
    ],
)
def test_a_lost_link_to_the_npu_is_explained(reason: str) -> None:
    advice = read_emulator_policy(lane="onnx").advise(say(reason))
    assert "create a new session" in advice.remedies[0].text
    assert "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION" in advice.causes[0].text
