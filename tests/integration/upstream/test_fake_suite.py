"""A suite with the shape of upstream's in real workers: every outcome, resume and repeats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from ci.cases.policy import read_emulator_policy
from ci.cases.pool import Pool, open_scratch_pool
from ci.facts.finding import Question
from ci.models.schemes import Scheme
from ci.report.schema import Threshold
from ci.upstream.expectations import Ratchet
from ci.upstream.journal import Entry, Header, kept_directory, read_comparisons
from ci.upstream.judged import Ending, Judged, judge_test, merge_repeats
from ci.upstream.session import SuiteRun, list_tests
from ci.upstream.suites import SUITES
from ci.verbs.upstream import IMPORTS, WRONG, name_variables
from provisioning.artifacts.environment import provision_profile
from provisioning.console.progress import Progress

FAKE = Path(__file__).resolve().parents[2] / "stand_ins" / "upstream_suite"
ENDS = {
    "right": Ending.PASSED,
    "zeros": Ending.ONE_SIDED,
    "too_far": Ending.FAILED,
    "dies": Ending.FAILED,
    "hangs": Ending.LATE,
    "needs_package": Ending.UNSUPPORTED,
    "skipped": Ending.UNSUPPORTED,
    "runner": Ending.UNSUPPORTED,
}
TIMEOUT_S = 60.0
SHORT_S = 5.0  # for the test that hangs
POLICY = read_emulator_policy()


def limits(scheme: Scheme) -> Threshold:
    return POLICY.limits_of("", scheme)


def judge(place: Path, entries: list[Entry], wrong: str = "outputs") -> Mapping[str, Judged]:
    judged_repeats = {}
    for entry in entries:
        comparisons = read_comparisons(kept_directory(place, entry.test, entry.repeat))
        judged_repeats.setdefault(entry.test, []).append(
            judge_test(entry, comparisons, limits, WRONG[wrong])
        )
    return {
        name.rpartition("test_")[2]: merge_repeats(repeats)
        for name, repeats in judged_repeats.items()
    }


@pytest.mark.nightly
@pytest.mark.emulator
def test_a_fake_suite_has_every_outcome_and_is_resumed_and_repeated(
    tmp_path: Path,
) -> None:
    environment = provision_profile("emulator", Progress())
    suite_variables = name_variables(SUITES["upstream"], "SM8650", FAKE)
    variables = environment.apply({**os.environ, **suite_variables})
    with open_scratch_pool(IMPORTS) as scratch:
        pool = scratch.open(variables)
        tests = list_tests(pool, tmp_path)
        assert {test.rpartition("test_")[2] for test in tests} == {*ENDS, "draws"}
        (draws,) = (test for test in tests if test.endswith("draws"))
        (hangs,) = (test for test in tests if test.endswith("hangs"))
        other_tests = tuple(test for test in tests if test not in {draws, hangs})
        entries = run(pool, tmp_path / "all", tests, other_tests)
        hung = run(pool, tmp_path / "hangs", tests, (hangs,), timeout_s=SHORT_S)
        resumed = run(pool, tmp_path / "all", tests, other_tests, resume=True)
        drawn = run(pool, tmp_path / "draws", tests, (draws,), repeat=10)
    judged = {**judge(tmp_path / "all", entries), **judge(tmp_path / "hangs", hung)}
    assert {name: judged_test.outcome for name, judged_test in judged.items()} == ENDS
    assert resumed == entries
    assert "SIGABRT" in judged["dies"].reason
    assert judged["zeros"].findings[0].question is Question.FAITHFUL
    assert "torchvision" in judged["needs_package"].reason
    assert "--etdump_path" in judged["runner"].reason
    for wrong in ("zeros", "noise"):
        judged_wrong = judge(tmp_path / "all", entries, wrong)
        assert judged_wrong["right"].outcome is Ending.ONE_SIDED, wrong
    assert judge(tmp_path / "draws", drawn)["draws"].reason.startswith("flaky: ")


def run(
    pool: Pool,
    place: Path,
    all_tests: tuple[str, ...],
    tests: tuple[str, ...],
    *,
    resume: bool = False,
    repeat: int = 1,
    timeout_s: float = TIMEOUT_S,
) -> list[Entry]:
    header = Header(
        suite="upstream",
        soc="SM8650",
        identity="",
        suite_tests=all_tests,
        tests=tests,
        repeat=repeat,
    )
    ratchet = Ratchet(run=0, unsupported=9, timeout_s=timeout_s)
    return SuiteRun(
        directory=place, header=header, ratchet=ratchet, timeout_s=timeout_s, jobs=2, resume=resume
    ).run(pool, Progress())
