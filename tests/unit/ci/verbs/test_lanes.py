"""Another lane is a row: an engine and a runner that nothing else knows give a report."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ci.cases.facts import Options
from ci.cases.policy import EmulatorPolicy
from ci.cases.request import Request
from ci.cases.session import Phases, report_unrun
from ci.facts.kinds import LACKING
from ci.models.schemes import EXECUTORCH
from ci.report.schema import Case, JudgementFacts, Report, ShardMark, Status, Tool
from ci.report.write import read_report
from ci.verbs import steps
from ci.verbs.lanes.lane import Lane, Plan, Tools, open_nothing, run_lane
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.doctor.registry import Finding
from provisioning.errors import DefectError, ExitCode
from tests.stand_ins.lanes import COARSE, LABELLER, EchoRunner, InlinePool
from tests.stand_ins.reports import make_report

GAIN = np.float32(1.0005)  # of a program that is right, except for rounding
TOOL = Tool(name="numpy", version="9")


def refuse(options: Options, phases: Phases, _: Environment, lacks: Finding) -> Report:
    finding = LACKING.find(lacks.what)
    return report_unrun(options, (TOOL,), phases, finding, runner="echo", library="lib.so")


def make_lane(outputs: Any, **plan_fields: Any) -> Lane[Request]:
    """A row whose programs give these outputs."""

    @contextmanager
    def prepare(
        request: Request, _: EmulatorPolicy, specs: Any, progress: Progress
    ) -> Iterator[Plan]:
        del progress
        runner = EchoRunner(lambda _: [[output] for output in outputs])
        plan = Plan(
            specs=specs,
            profile="emulator",
            imports=(),
            choice=request.choice,
            open=lambda *_: Tools(engine=LABELLER, runner=runner, parts=(TOOL,)),
            refuse=refuse,
        )
        yield replace(plan, **plan_fields)

    return Lane(
        session="test_emulator",
        policy="emulator",
        schemes=EXECUTORCH,
        request=Request,
        packages=lambda _: ((), "core"),
        profile=lambda _: "emulator",
        select=lambda request, policy, schemes, _: steps.select_asked(request, policy, schemes),
        prepare=prepare,
    )


def test_a_lane_without_nodes_lists_none_in_another_process(request_of_mlp: Request) -> None:
    """The function that lists them is sent to a process with limits."""
    outcome = run_lane(make_lane([]), replace(request_of_mlp, lists=True), Progress())
    assert outcome.data == {"assigned": [{"model": "mlp", "scheme": "", "nodes": []}]}


@pytest.fixture
def request_of_mlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    """What is asked of the lane. Nothing is provisioned."""
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))

    def take(_profile: str, _work: str, run: Any, _phases: Any, **fields: Any) -> Report:
        environment = Environment("emulator", (), {})
        if lacks := fields["tolerated"]:
            report: Report = fields["refuse"](environment, *lacks)
            return report
        pool = InlinePool()
        scratch = SimpleNamespace(open=lambda _: pool, scratch=tmp_path / "work")
        judged: Report = run(environment, scratch)
        return judged

    (tmp_path / "work").mkdir()
    monkeypatch.setattr(steps, "take_steps", take)
    return Request(
        session="test_emulator",
        models=("mlp",),
        schemes=("8a8w",),
        reports=tmp_path / "reports",
        timeout_s=9,
        judges=True,
        command="repeat",
    )


@pytest.mark.parametrize(
    ("outputs", "status", "code"),
    [
        (COARSE * GAIN, Status.PASSED, ExitCode.OK),
        (0 * COARSE, Status.FAILED, ExitCode.FAILED),
    ],
)
def test_a_row_gives_a_report_that_is_written_and_decides_the_exit_code(
    request_of_mlp: Request, outputs: Any, status: Status, code: ExitCode
) -> None:
    mark = ShardMark(index=1, count=1, positions=(0,), whole="a" * 64, policy="b" * 64)
    lane = make_lane(outputs, shard=mark, remarks=("a remark",))
    outcome = run_lane(lane, request_of_mlp, Progress())
    report = read_report(request_of_mlp.directory)
    (case,) = report.cases
    assert (case.model, case.scheme, case.judgement.status, case.run.runner) == (
        "mlp",
        "8a8w",
        status,
        "echo",
    )
    assert (report.toolchain[0], report.command, report.shard) == (TOOL, "repeat", mark)
    assert report.remarks[-1] == "a remark"
    assert outcome.exit_code == code


def test_a_plan_may_run_what_names_its_cases_itself(request_of_mlp: Request) -> None:
    """As upstream's tests do, of which the terminal shows only those that failed."""
    cases = [
        Case(model=name, scheme="8a8w", soc="X", judgement=JudgementFacts(status=status))
        for name, status in (("test_a", Status.PASSED), ("test_b", Status.FAILED))
    ]
    lane = make_lane(COARSE, run=lambda *_: make_report(cases), open=open_nothing)
    outcome = run_lane(replace(lane, brief=True), request_of_mlp, Progress())
    assert outcome.exit_code == ExitCode.FAILED
    assert ("test_a" in outcome.text, "test_b" in outcome.text) == (False, True)
    assert [case.model for case in read_report(request_of_mlp.directory).cases] == [
        "test_a",
        "test_b",
    ]
    with pytest.raises(DefectError):
        run_lane(make_lane(COARSE, open=open_nothing), request_of_mlp, Progress())


def test_a_plan_may_change_what_the_verb_returns(request_of_mlp: Request) -> None:
    lane = make_lane(COARSE * GAIN, end=lambda outcome: replace(outcome, exit_code=3))
    assert run_lane(lane, request_of_mlp, Progress()).exit_code == ExitCode.ENVIRONMENT


def test_a_host_without_a_library_gets_a_report_of_cases_that_did_not_run(
    request_of_mlp: Request,
) -> None:
    lacks = SimpleNamespace(what="there is no lib.so")
    run_lane(make_lane(COARSE, tolerated=(lacks,)), request_of_mlp, Progress())
    (case,) = read_report(request_of_mlp.directory).cases
    assert (case.judgement.status, case.run.lacks) == (Status.UNSUPPORTED, "lib.so")
    assert "there is no lib.so" in case.headline


def test_a_call_with_list_plans_and_writes_nothing(request_of_mlp: Request) -> None:
    listing = replace(request_of_mlp, models=(), lists=True)
    lane = replace(make_lane(COARSE), prepare=lambda *_: pytest.fail("it is planned"))
    assert "8a8w" in run_lane(lane, listing, Progress()).text
    assert not listing.reports.exists()
