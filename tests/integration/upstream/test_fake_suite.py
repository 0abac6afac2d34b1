"""A suite with the shape of upstream's in real workers: every outcome, and what pytest selects."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.__main__ import main
from ci.report.schema import Case, Report
from ci.report.write import read_report
from provisioning.errors import ExitCode

FAKE = Path(__file__).resolve().parents[2] / "stand_ins" / "upstream_suite"
ENDS = {
    "right": "both",
    "zeros": "theirs only",
    "too_far": "failed",
    "dies": "failed",
    "hangs": "failed",
    "needs_package": "unsupported",
    "skipped": "unsupported",
    "runner": "unsupported",
}


def run(folder: Path, *words: str) -> Report:
    arguments = ["test-upstream", "--source", str(FAKE), "--reports", str(folder), "--jobs", "2"]
    assert main([*arguments, "--timeout-s", "30", *words]) == ExitCode.FAILED
    return read_report(folder / "upstream")


def by_name(report: Report) -> dict[str, Case]:
    return {case.model.rpartition("test_")[2]: case for case in report.cases}


@pytest.mark.nightly
@pytest.mark.emulator
def test_a_fake_suite_has_every_outcome_and_the_failed_ones_run_again(tmp_path: Path) -> None:
    report = run(tmp_path, "-k", "not draws")
    cases = by_name(report)
    assert {name: case.judgement.outcome for name, case in cases.items()} == ENDS
    assert "crashed" in cases["dies"].reason
    assert "Timeout" in cases["hangs"].reason
    assert "torchvision" in cases["needs_package"].reason
    assert "--etdump_path" in cases["runner"].reason
    (control,) = report.controls
    assert (control.model, control.rejected) == (cases["right"].model, True)
    rerun = run(tmp_path, "--last-failed", "--filter", "*_zeros", "--filter", "*_right")
    assert {*by_name(rerun)} == {"zeros"}
