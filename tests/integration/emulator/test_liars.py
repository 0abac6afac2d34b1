"""Runners that lie about right outputs: which wrong outputs the gate lets pass, and how few."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ci.cases.baselines import find_changes, name_case, read_baselines
from ci.cases.cache import RECORD, Artifact
from ci.cases.outputs import read_outputs, read_references, stack_outputs
from ci.cases.policy import read_emulator_policy
from ci.judging.figures import Array
from ci.judging.gate import References, judge
from ci.judging.verdict import summarize_figures
from ci.models.schemes import Scheme
from ci.report.schema import Report, Status
from ci.report.write import read_report
from tests.integration.conftest import MakeOnce
from tests.stand_ins.liars import LIES

ROOT = Path(__file__).resolve().parents[3]
LIARS = ROOT / "tests" / "stand_ins" / "liars.py"
pytestmark = [pytest.mark.emulator, pytest.mark.timeout(1800)]  # the suite is lowered once
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

EIGHT_BITS = {"decoder", "deeplab", "lstm", "mlp", "mobilenet", "resnet", "superres", "transformer"}
# What is below the noise of a case, as docs/emulator.md says with figures: by lie, MODEL SCHEME.
BELOW_THE_NOISE: dict[str, set[str]] = {
    "a gain of 1 %": {"decoder 8a8w", "mlp 8a8w", "transformer 8a8w", "mlp 16a4w_block"},
    "clipped at 0.8": {"deeplab 8a8w", "mobilenet 8a8w"},
    "rounded to 8 bits": {
        *(f"{model} 8a8w" for model in EIGHT_BITS),
        *("mlp 16a4w_block", "transformer 16a4w_block"),
    },
    "rounded to 6 bits": {"decoder 8a8w", "lstm 8a8w", "mlp 16a4w_block"},
    "fp16's": {"transformer 16a16w"},
}


class Kept(msgspec.Struct, frozen=True):
    """A case of the suite that was run: what is expected, and what came out."""

    directory: Path
    artifact: Artifact
    references: References
    outputs: list[Array]

    @property
    def name(self) -> str:
        return f"{self.artifact.model} {self.artifact.scheme}"


def run_suite(reports: Path, *words: str) -> Report:
    argv = [sys.executable, "-m", "ci", "test-emulator", "--reports", str(reports), *words]
    subprocess.run(
        argv, cwd=ROOT, env=dict(os.environ), capture_output=True, timeout=1700, check=False
    )
    return read_report(reports / "test_emulator")


@pytest.fixture(scope="module")
def suite(make_once: MakeOnce) -> tuple[Report, list[Kept]]:
    """The whole suite, run once, with its outputs."""
    folder = make_once("suite", lambda one: run_suite(one, "--keep-artifacts", str(one / "kept")))
    report = read_report(folder / "test_emulator")
    return report, [read_kept(directory) for directory in sorted((folder / "kept").iterdir())]


def read_kept(directory: Path) -> Kept:
    artifact = directory / "artifact"
    record = msgspec.json.decode((artifact / RECORD).read_bytes(), type=Artifact)
    compiled = record.compiled
    made = read_outputs(directory / "outputs", compiled, compiled.sets)
    outputs = stack_outputs(made, compiled)
    return Kept(directory, record, read_references(artifact, compiled), outputs)


def is_let_pass(case: Kept, wrong: list[Array], report: Report) -> bool:
    """Whether the gate and the recorded figures accept outputs."""
    record = case.artifact
    limits = read_emulator_policy().limits_of(record.model, Scheme(record.scheme))
    with np.errstate(all="ignore"):
        judgement = judge(case.references, wrong, record.compiled.outputs, limits)
    if judgement.reasons:
        return False
    baseline = read_baselines(report.toolchain)[name_case(record.model, record.scheme, record.soc)]
    return not list(find_changes(summarize_figures(judgement), baseline))


def test_right_outputs_pass_in_every_case(suite: tuple[Report, list[Kept]]) -> None:
    report, kept = suite
    failed = [case for case in report.cases if case.status is not Status.PASSED]
    assert not failed
    assert len(kept) == len(report.cases) == 32
    assert all(is_let_pass(case, case.outputs, report) for case in kept)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_told_in_every_case_but_where_it_is_below_the_noise(
    suite: tuple[Report, list[Kept]], lie: str
) -> None:
    report, kept = suite
    passing = {
        case.name
        for case in kept
        if is_let_pass(case, [LIES[lie](one) for one in case.outputs], report)
    }
    assert passing == BELOW_THE_NOISE.get(lie, set())


def test_the_outputs_of_fp16_do_not_pass_for_those_of_another_scheme(
    suite: tuple[Report, list[Kept]],
) -> None:
    report, kept = suite
    floats = {case.artifact.model: case.outputs for case in kept if case.artifact.scheme == "fp16"}
    passing = {
        case.name
        for case in kept
        if case.artifact.scheme != "fp16" and is_let_pass(case, floats[case.artifact.model], report)
    }
    assert passing == BELOW_THE_NOISE["fp16's"]


def test_the_references_themselves_do_not_pass_for_outputs(
    suite: tuple[Report, list[Kept]],
) -> None:
    report, kept = suite
    for case in kept:
        assert not is_let_pass(case, [one.values for one in case.references.float32], report)


TOLD = {
    "fp16": ("a gain of 1 %", "wanted"),
    "16a8w": ("the weakest channel zero", "wanted"),
    "16a16w": ("another input's", "seen: the outputs of another"),
    "16a4w": ("one sixteenth", "(1/16)"),
}


def test_a_program_that_lies_fails_its_session(
    suite: tuple[Report, list[Kept]], tmp_path: Path
) -> None:
    """One session, in which each case is told a lie of its own."""
    kept = suite[1][0].directory.parent
    lies = [f"mlp-{scheme}-SM8650={lie}" for scheme, (lie, _) in TOLD.items()]
    runner = shlex.join([sys.executable, str(LIARS), str(kept), *lies])
    schemes = [word for scheme in TOLD for word in ("--scheme", scheme)]
    report = run_suite(tmp_path, "--model", "mlp", *schemes, "--runner", runner)
    assert {case.scheme for case in report.cases} == TOLD.keys()
    for case in report.cases:
        lie, words = TOLD[case.scheme]
        assert case.status is Status.FAILED, lie
        assert case.cached
        assert words in case.reason, lie
