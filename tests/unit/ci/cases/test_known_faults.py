"""Cases whose graph has the pattern of a known fault: red and green ones name it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ci.cases.judged import CaseResult, SessionOptions
from ci.cases.policy import Unsupported, read_emulator_policy
from ci.cases.pool import Ended
from ci.cases.spec import CaseSpec
from ci.facts.finding import Origin, Place, Proof
from ci.faults.known import read_faults
from ci.faults.match import match_faults
from ci.models.graph_steps import Operand, Step
from ci.models.schemes import Scheme
from ci.report.schema import Status
from provisioning.errors import FailedError
from tests.stand_ins.lanes import COARSE, LABELLER, RIGHT, SPEC, EchoRunner, InlinePool, run_case

STEPS = (
    Step(
        "add",
        "add",
        (Operand((2, 8, 8)), Operand((2, 1, 8), magnitude=1e4)),
        ("", ""),
        (2, 8, 8),
        origin=Origin(file="nets/net.py", line=7),
    ),
    Step("softmax", "softmax", (Operand((2, 8, 8)),), ("add",), (2, 8, 8)),
)

REMEDY = next(one.remedy for one in read_faults() if one.name == "mask-too-large")


def judge(work: Path, answer: object, spec: CaseSpec = SPEC) -> CaseResult:
    options = SessionOptions(policy=read_emulator_policy(), timeout_s=9.0, find_faults=match_faults)
    runner = EchoRunner(lambda _: [[one] for one in answer])  # type: ignore[attr-defined]
    return run_case(work, replace(LABELLER, steps=STEPS), runner, options=options, spec=spec)


def test_a_green_case_warns_of_a_known_fault(tmp_path: Path) -> None:
    case = judge(tmp_path, COARSE).case
    assert case.status is Status.PASSED
    (warning,) = (one for one in case.warnings if "known fault" in one)
    assert "mask-too-large [nets/net.py:7] (add of [2, 8, 8] and [2, 1, 8] up to 1e+04" in warning
    assert f"; fix: {REMEDY}" in warning
    assert "\n" not in warning


def test_a_red_case_names_it_with_the_line_and_the_remedy(tmp_path: Path) -> None:
    case = judge(tmp_path, 0 * RIGHT).case
    assert case.status is Status.FAILED
    (found, *_) = case.findings
    assert "known fault" not in found.headline
    assert found.causes[0].text.startswith("known fault: mask-too-large")
    assert (found.remedies[0].text, found.remedies[0].proof) == (REMEDY, Proof.PROVEN)
    assert case.places == (Place(file="nets/net.py", line=7),)


class Dying(InlinePool):
    """The compiler starts and dies; ``noted`` replaces what it noted of the graph."""

    def __init__(self, noted: bytes | None = None) -> None:
        self.noted = noted

    def run(self, job: Any, log: Path, timeout_s: float, **given: Any) -> Ended:
        super().run(job, log, timeout_s, **given)
        if self.noted is not None:
            log.with_name("steps.json").write_bytes(self.noted)
        return Ended(None, "did not end within 9 s", "")


@pytest.mark.parametrize("pool", [InlinePool(), Dying()])
def test_a_model_that_the_compiler_refuses_or_that_ends_it_names_it(
    tmp_path: Path, pool: InlinePool
) -> None:
    refused = FailedError("QNN refuses it")
    options = SessionOptions(policy=read_emulator_policy(), timeout_s=9.0, find_faults=match_faults)
    engine = replace(LABELLER, steps=STEPS, raises=refused)
    case = run_case(tmp_path, engine, EchoRunner(list), options=options, pool=pool).case
    assert case.status is Status.FAILED
    assert "known fault: mask-too-large [nets/net.py:7]" in case.reason


def test_a_refusal_that_the_policy_expects_names_nothing(tmp_path: Path) -> None:
    rows = (Unsupported(pattern="QNN refuses it", reason="as it always did"),)
    policy = msgspec.structs.replace(read_emulator_policy(), unsupported=rows)
    options = SessionOptions(policy=policy, timeout_s=9.0, find_faults=match_faults)
    engine = replace(LABELLER, steps=STEPS, raises=FailedError("QNN refuses it"))
    case = run_case(tmp_path, engine, EchoRunner(list), options=options).case
    assert (case.status, "known fault" in case.headline) == (Status.UNSUPPORTED, False)


@pytest.mark.parametrize("scheme", [Scheme.FP16, Scheme.FP16W8])
def test_a_scheme_that_does_not_meet_it_is_not_warned(tmp_path: Path, scheme: Scheme) -> None:
    case = judge(tmp_path, COARSE, CaseSpec("mlp", scheme, "SM8650")).case
    assert not any("known fault" in one for one in case.warnings)
    assert "known fault" not in case.reason
