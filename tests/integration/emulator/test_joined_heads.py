"""Heads that join parts of unlike ranges, in both lanes: a lost part is red and named, the same
parts apart are green, and look-alikes are green.

By default some of them in one lane; all in both with QNN_CI_NIGHTLY set.
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

from tests.realistic.joined import APART, LOST, RIGHT

ROOT = Path(__file__).resolve().parents[3]
pytestmark = [pytest.mark.emulator, pytest.mark.timeout(3600)]
LANES = {"test-emulator": "8a8w", "test-onnx": "u8"}
# ExecuTorch refuses to quantize the first, and clips the boxes of the second at the range of the
# scores, so that the whole output is lost.
OTHERWISE = {
    ("test-emulator", "assigned_joined"): "aten.copy_.default is not quantized",
    ("test-emulator", "rescaled_joined"): "the quantized model has 0.0 dB of SQNR",
}
DAILY = ("masks_joined", "masks_apart")


def run_heads(lane: str, names: tuple[str, ...], reports: Path) -> dict[str, Case]:
    rows = [
        f'[models.{name}]\npath = "{ROOT}/tests/realistic/joined.py:{name}"\n'
        f'schemes = ["{LANES[lane]}"]\n'
        for name in names
    ]
    policy = reports / f"{lane}.toml"
    policy.write_text('extends = "default"\n' + "".join(rows))
    argv = [sys.executable, "-m", "ci", lane, "--policy", str(policy), "--reports", str(reports)]
    argv += ["--diagnose", "0"]  # the verdicts are compared, and no cause
    if len(names) == len(DAILY):  # one worker imports torch once for both
        argv += ["--jobs", "1"]
    run_to_end(argv, timeout_s=3500, codes=JUDGED)
    report = read_report(reports / lane.replace("-", "_"))
    return {case.model: case for case in report.cases}


def require_verdicts(lane: str, cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        if name in LOST:
            part = f"in part {LOST[name]}, 15 dB required"
            assert case.judgement.status is Status.FAILED, name
            assert OTHERWISE.get((lane, name), part) in str(case.judgement.findings), (
                name,
                case.reason,
            )
        else:
            assert case.judgement.status is Status.PASSED, (name, case.reason)


@pytest.mark.parametrize(
    "lane", [pytest.param("test-emulator", marks=pytest.mark.nightly), "test-onnx"]
)
def test_a_lost_part_is_red_and_the_same_apart_is_green(lane: str, tmp_path: Path) -> None:
    require_verdicts(lane, run_heads(lane, DAILY, tmp_path))


@pytest.mark.nightly
@pytest.mark.parametrize("lane", LANES)
def test_every_lost_part_is_red_and_no_look_alike(lane: str, make_once: MakeOnce) -> None:
    names = (*LOST, *APART, *RIGHT)

    def run(folder: Path) -> None:
        run_heads(lane, names, folder)

    report = read_report(make_once(f"joined_{lane}", run) / lane.replace("-", "_"))
    cases = {case.model: case for case in report.cases}
    assert cases.keys() == set(names)
    require_verdicts(lane, cases)
