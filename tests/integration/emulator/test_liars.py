"""Runners that lie about right outputs: which wrong outputs the gate accepts, and how few."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from ci.cases.baselines import read_baselines
from ci.cases.policy import read_emulator_policy
from ci.facts.finding import Question
from ci.judging.materiality import RAISE_DB
from ci.report.schema import Report, Status
from ci.report.write import read_report
from provisioning.errors import ExitCode
from tests.integration.conftest import MakeOnce

# By day, test_emulator_session has a runner that returns zeros.
pytestmark = [pytest.mark.emulator, pytest.mark.nightly]
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

from tests.bench.gate import STRICT, Kept, accepts, count_accepted, read_kept, run_cases  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
LIARS = ROOT / "tests" / "stand_ins" / "liars.py"

CASES = sum(map(len, read_emulator_policy().suite.values()))

# Errors below the noise of a case (docs/findings/gate.md), and how many cases may accept each.
BELOW_THE_NOISE = {
    "a gain of 0.1 %": 8,
    "rounded to bfloat16": 8,
    "rounded to 8 bits": 1,
    "float32's": 8,
    "16a16w's": 2,
    "16a8w's": 1,
}


OTHERS = ("ours, rounded to its steps", "ExecuTorch's tolerance", "cosine 0.99")


@pytest.fixture(scope="module")
def suite(make_once: MakeOnce) -> tuple[Path, Report, list[Kept]]:
    """The suite, run once, with its outputs."""
    folder = make_once("suite", run_suite)
    report = read_report(folder / "test_emulator")
    baselines = read_baselines(report.toolchain)
    kept_cases = [
        read_kept(folder_of_case, baselines)
        for folder_of_case in sorted((folder / "kept").glob("*/"))
    ]
    return folder / "kept", report, kept_cases


def run_suite(folder: Path) -> None:
    """Lower and judge the suite. test_plain_script compares the same programs, in ``kept``."""
    run_cases(folder, "--keep-artifacts", str(folder / "kept"))


def test_right_outputs_pass_the_gate_in_every_case(suite: tuple[Path, Report, list[Kept]]) -> None:
    _, report, kept_cases = suite
    failed = [case for case in report.cases if case.judgement.status is not Status.PASSED]
    assert not failed
    assert len(kept_cases) == len(report.cases) == CASES
    policy = read_emulator_policy()
    assert all(accepts(case, case.outputs, policy, records=True) for case in kept_cases)


def test_the_gate_accepts_only_wrong_outputs_below_the_noise_other_tolerances_many_more(
    suite: tuple[Path, Report, list[Kept]],
) -> None:
    counts_of_lies = count_accepted(suite[2], "ours", STRICT, *OTHERS)
    assert counts_of_lies["wrong"] > 41 * CASES
    ours = {lie: len(names) for lie, names in counts_of_lies["accepted"][STRICT].items()}
    assert ours.keys() <= BELOW_THE_NOISE.keys()
    assert all(count <= BELOW_THE_NOISE[lie] for lie, count in ours.items()), ours
    assert len(counts_of_lies["added"]) < CASES
    for added_lie in counts_of_lies["added"]:
        assert added_lie["raised_db"] < RAISE_DB, added_lie
        assert added_lie["choices"][1] >= added_lie["choices"][0], added_lie
    counts = {
        name: sum(map(len, lies.values())) for name, lies in counts_of_lies["accepted"].items()
    }
    assert counts["ours, rounded to its steps"] < 7 * CASES
    assert min(counts["ExecuTorch's tolerance"], counts["cosine 0.99"]) > 11 * CASES
    assert counts_of_lies["right"]["ours"] == CASES


LIE_OF = {
    "fp16": ("a gain of 1 %", ""),
    "16a8w": ("the weakest channel zero", ""),
    "16a16w": ("another input's", "seen: the outputs of another"),
    "16a4w": ("one sixteenth", "(1/16)"),
}


def test_a_runner_that_returns_wrong_outputs_fails_its_case_as_not_faithful(
    suite: tuple[Path, Report, list[Kept]], tmp_path: Path
) -> None:
    """One session, in which the runner returns another kind of wrong outputs for each case."""
    lies = [f"mlp-{scheme}-SM8650={lie}" for scheme, (lie, _) in LIE_OF.items()]
    runner = shlex.join([sys.executable, str(LIARS), str(suite[0]), *lies])
    schemes = [word for scheme in LIE_OF for word in ("--scheme", scheme)]
    # No cause is compared: an experiment would ask the same runner.
    words = ["--model", "mlp", *schemes, "--runner", runner, "--diagnose", "0"]
    ended = run_cases(tmp_path, *words)
    assert ended.returncode == ExitCode.FAILED, ended.stderr
    assert "SQNR" in ended.stdout + ended.stderr
    report = read_report(tmp_path / "test_emulator")
    assert {case.scheme for case in report.cases} == LIE_OF.keys()
    for case in report.cases:
        lie, reason = LIE_OF[case.scheme]
        assert (case.judgement.status, case.question) == (Status.FAILED, Question.FAITHFUL), lie
        assert case.program.cached
        assert reason in case.reason, lie
