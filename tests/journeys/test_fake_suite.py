"""A suite with the shape of upstream's in real workers: every outcome, and what pytest selects."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.__main__ import main
from ci.report.schema import Case, Report
from ci.report.write import read_report
from provisioning.errors import ExitCode

FAKE = Path(__file__).resolve().parents[1] / "stand_ins" / "upstream_suite"
ENDS = {
    "right": "both",
    **dict.fromkeys(("noisy", "given_input", "given_buffer", "given_random_state"), "both"),
    "zeros": "theirs only",
    "too_far": "failed",
    "dies": "failed",
    "hangs": "failed",
    "needs_package": "unsupported",
    "skipped": "unsupported",
    "runner": "unsupported",
}


def list_words(folder: Path, *words: str) -> list[str]:
    arguments = ["test-upstream", "--source", str(FAKE), "--reports", str(folder), "--jobs", "2"]
    return [*arguments, "--timeout-s", "30", *words]


def run(folder: Path, *words: str) -> Report:
    assert main(list_words(folder, *words)) == ExitCode.FAILED
    return read_report(folder / "upstream")


def by_name(report: Report) -> dict[str, Case]:
    return {case.model.rpartition("test_")[2]: case for case in report.cases}


@pytest.mark.nightly
@pytest.mark.emulator
def test_a_fake_suite_has_every_outcome_and_the_failed_ones_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    report = run(tmp_path, "-k", "not draws")
    cases = by_name(report)
    assert {name: case.judgement.outcome for name, case in cases.items()} == ENDS
    assert "crashed" in cases["dies"].reason
    assert "Timeout" in cases["hangs"].reason
    assert "torchvision" in cases["needs_package"].reason
    assert "--etdump_path" in cases["runner"].reason
    rejected = {control.model: control.rejected for control in report.controls}
    passed = [name for name, outcome in ENDS.items() if outcome == "both"]
    assert rejected == {cases[name].model: True for name in passed}
    assert main(list_words(tmp_path, "--last-failed", "--filter", "gone")) == ExitCode.USAGE
    assert "fix: check --filter, -k and --deselect; names are such as" in capfd.readouterr().err
    rerun = run(tmp_path, "--last-failed", "--filter", "*_zeros", "--filter", "*_right")
    assert {*by_name(rerun)} == {"zeros"}


@pytest.mark.emulator
def test_references_and_program_get_what_the_test_gave(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Tests whose model changes its input, its buffer or the random numbers that follow. Neither
    their packages' lines nor pytest's reach the terminal."""
    words = ["test-upstream", "--source", str(FAKE), "--reports", str(tmp_path), "--jobs", "2"]
    assert main([*words, "-k", "given or noisy"]) == ExitCode.OK
    cases = by_name(read_report(tmp_path / "upstream"))
    assert {name: case.judgement.outcome for name, case in cases.items()} == {
        "given_input": "both",
        "given_buffer": "both",
        "given_random_state": "both",
        "noisy": "both",
    }
    assert not any(case.judgement.warnings for case in cases.values())
    log = (tmp_path / "upstream" / "log.txt").read_text("utf-8")
    printed = "".join(capfd.readouterr())
    assert "passed" in log
    assert f"what other packages printed: {tmp_path / 'upstream' / 'log.txt'}\n" in printed
    ours = ("1/4", "2/4", "3/4", "4/4", "doctor:", "report:", "what other", "4 tests:", "passed")
    foreign_lines = [
        line for line in printed.splitlines() if not line.startswith((*ours, "  tests "))
    ]
    assert foreign_lines == []
    assert main([*words, "--last-failed"]) == ExitCode.USAGE
    assert "no test is to be run: in the last run, none failed" in capfd.readouterr().err
