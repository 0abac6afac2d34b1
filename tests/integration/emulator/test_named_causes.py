"""What loses the accuracy of a red model is named, in both lanes and in each scheme.

By default some of them; all with QNN_CI_NIGHTLY set.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci.report.schema import Case, Status
from ci.report.write import read_report
from tests.integration.conftest import MakeOnce
from tests.stand_ins.runs import JUDGED, run_to_end

pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")
pytest.importorskip("onnxscript", reason="onnxscript is not installed in this environment")
pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
INDICES, ANGLES = "the indices of topk", "large angles: numbers up to"
SHORT_ROW, SUM = "conv-of-a-short-row", "cumsum-of-many-steps"
# The words that name the cause; a case without any is green.
CAUSES = {
    "test-emulator": {
        "short_row": {"fp16": SHORT_ROW, "8a8w": ""},
        "top_boxes": {"fp16": INDICES, "8a8w": INDICES},
        "running_sum": {"fp16": SUM, "8a8w": "cumsum-in-8-bits"},
        "angles": {"fp16": ANGLES, "8a8w": ANGLES, "16a8w": ""},
        "masked": {"fp16": "", "16a8w": "mask-too-large-in-16-bits"},
        "masked_by_fill": {"8a8w": "a mask: numbers", "16a8w": "a mask: numbers"},
        "masked_slightly": {"8a8w": "", "16a8w": ""},
        "squares": {"fp16": "overflow: numbers up to", "16a8w": ""},
        "skipped": {"8a8w": "batch-norm-folded-in-use"},
        "packed": {"8a8w": "joint-projection-of-batch"},
        "gaussians": {"8a8w": "the output has steps of"},
        "massive": {"8a8w": "the output has steps of"},
        "projected": {"fp16": "multiply-lower-rank"},
        "decay": {"fp16": "computed-column-and-row"},
    },
    "test-onnx": {
        "short_row": {"fp16": SHORT_ROW, "u8": ""},
        "running_sum": {"fp16": SUM, "u8": "cumsum-in-8-bits"},
        "angles": {"fp16": ANGLES, "u8": ANGLES, "u16a8w": ""},
        "masked": {
            "u8": "mask-too-large",
            "u16a8w": "mask-too-large-in-16-bits",
        },
        "squares": {"fp16": "overflow: numbers up to"},
        "feed_forward": {"u8": "norm-before-feed-forward"},
        "decay": {"fp16": "computed-column-and-row"},
    },
}


def run_models(lane: str, reports: Path) -> None:
    rows = [
        f'[models.{name}]\npath = "{ROOT}/tests/realistic/causes.py:{name}"\n'
        f"schemes = {[*schemes]}\n"
        for name, schemes in CAUSES[lane].items()
    ]
    policy = reports / "policy.toml"
    policy.write_text('extends = "default"\n' + "".join(rows))
    argv = [sys.executable, "-m", "ci", lane, "--policy", str(policy), "--reports", str(reports)]
    run_to_end(argv, timeout_s=1700, codes=JUDGED)


@pytest.mark.parametrize("lane", CAUSES)
def test_what_loses_the_accuracy_of_a_model_is_named(lane: str, make_once: MakeOnce) -> None:
    reports = make_once(f"causes-{lane}", lambda folder: run_models(lane, folder))
    cases: dict[tuple[str, str], Case] = {
        (case.model, case.scheme): case
        for case in read_report(reports / lane.replace("-", "_")).cases
    }
    wrong = {}
    for name, schemes in CAUSES[lane].items():
        for scheme, words in schemes.items():
            case = cases[name, scheme]
            is_red = case.judgement.status is Status.FAILED
            if is_red is not bool(words) or words not in case.reason:
                wrong[name, scheme] = case.reason
    assert wrong == {}
