"""No result that was tampered with is green, and who is to blame is told apart.

The results are files as jobs of pr.yml leave them, read and judged as ``qnn-ci gate`` does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.cases.baselines import suite_folder
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import CaseSpec, select_cases
from ci.gate.plan import list_jobs
from ci.gate.results import read_plan
from ci.gate.rules import read_rules
from ci.gate.schema import Plan, PlannedSession
from ci.gate.verdict import GateVerdict, JobVerdict
from ci.models.schemes import ONNX as LANE
from ci.report.schema import SCHEMA_VERSION, CaseName
from ci.report.write import read_report, write_report
from ci.verbs.gate import judge_shards, reach_verdict
from ci.verbs.lanes.emulator import take_shard
from provisioning.errors import ExitCode
from tests.stand_ins.reports import change_row, encode_earlier, make_judged, say

RULES = read_rules()
SESSIONS = ("lint", "tests", "test_emulator", "test_onnx")
ONE, TWO, ONNX, TESTS = "test_emulator-1-of-2", "test_emulator-2-of-2", "test_onnx", "tests"
JUNIT = '<testsuites><testsuite tests="2" failures="0">{}</testsuite></testsuites>'
PASSED = '<testcase classname="a" name="{}"/>'


def name_cases(specs: list[CaseSpec]) -> tuple[CaseName, ...]:
    return tuple(CaseName(spec.model, spec.scheme.value, spec.soc) for spec in specs)


@dataclass(frozen=True)
class Results:
    """plan.json, needs.json and results/, as they are when all is well."""

    folder: Path

    def __post_init__(self) -> None:
        emulator, onnx = read_emulator_policy(), read_emulator_policy(lane="onnx")
        specs = select_cases(emulator.suite, ["SM8650"])
        onnx_specs = select_cases(onnx.suite, ["SM8650"], lane=LANE)
        cases = name_cases(specs)
        suites = {"test_emulator": cases, ONNX: name_cases(onnx_specs)}
        sessions = [PlannedSession(name=name, run=True, reason="") for name in SESSIONS]
        jobs = list_jobs(sessions, RULES, suites)
        plan = Plan(base="a", head="b", cases=cases, jobs=jobs)
        (self.folder / "plan.json").write_bytes(msgspec.json.encode(plan))
        needs = {"plan": {"result": "success"}, "run": {"result": "success"}}
        (self.folder / "needs.json").write_text(json.dumps(needs))
        for job in plan.jobs:
            place = self.of(job.id)
            place.mkdir(parents=True)
            (place / "exit-code.txt").write_text("0\n")
            reports = place / "reports" / job.session
            if job.report == "junit.xml":
                reports.mkdir(parents=True)
                text = JUNIT.format("".join(map(PASSED.format, "xy")))
                (reports / "junit.xml").write_text(text)
            elif job.shard:
                part, mark = take_shard(specs, job.shard, emulator, "python")
                report = make_judged(job.session, part, emulator.describe_limits(part))
                write_report(replace(report, shard=mark), reports)
            elif job.report:
                limits = onnx.describe_limits(onnx_specs)
                write_report(make_judged(job.session, onnx_specs, limits), reports)

    def of(self, job: str) -> Path:
        return self.folder / "results" / f"result-{job}"

    def file(self, job: str, name: str) -> Path:
        return next(self.of(job).glob(f"reports/*/{name}"))

    def run_verb(self, *options: str) -> int:
        """Return the exit code of the command."""
        files = {name: str(self.folder / name) for name in ("plan.json", "needs.json", "results")}
        words = ["--needs", files["needs.json"], "--results", files["results"]]
        return main(["gate", files["plan.json"], *words, *options])

    def judge(self) -> GateVerdict:
        return reach_verdict(
            *(self.folder / name for name in ("plan.json", "needs.json", "results"))
        )


@pytest.fixture(scope="module")
def made_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    Results(folder)
    return folder


@pytest.fixture
def results(made_results: Path, tmp_path: Path) -> Results:
    shutil.copytree(made_results, tmp_path, dirs_exist_ok=True)
    copied = Results.__new__(Results)
    object.__setattr__(copied, "folder", tmp_path)
    return copied


Tamper = Callable[[Results], None]


def in_report(change: Callable[[dict[str, Any]], None], job: str = ONNX) -> Tamper:
    """Change a report.json, and leave all else as it is."""

    def tamper(results: Results) -> None:
        file = results.file(job, "report.json")
        data = json.loads(file.read_text())
        change(data)
        file.write_text(json.dumps(data))

    return tamper


def in_case(job: str = ONNX, **fields: Any) -> Tamper:
    return in_report(lambda data: change_row(data["cases"][0], **fields), job)


def in_all(**fields: Any) -> Tamper:
    return in_report(lambda data: [change_row(case, **fields) for case in data["cases"]])


def in_field(**fields: Any) -> Tamper:
    return in_report(lambda data: data.update(fields))


def in_summary(**fields: Any) -> Tamper:
    return in_report(lambda data: data["summary"].update(fields))


def in_limits(**fields: Any) -> Tamper:
    return in_report(lambda data: [threshold.update(fields) for threshold in data["thresholds"]])


def in_mark(**fields: Any) -> Tamper:
    return in_report(lambda data: data["shard"].update(fields), ONE)


def tell(text: str) -> Any:
    return msgspec.to_builtins(say(text))


def drop_cases(data: dict[str, Any]) -> None:
    """1 of 29 cases, with a summary that fits."""
    data["cases"] = data["cases"][:1]
    data["summary"].update(passed=1, controls=1)
    data["controls"] = data["controls"][:1]


def drop_all_cases(data: dict[str, Any]) -> None:
    data.update(cases=[], controls=[])
    data["summary"].update(passed=0, controls=0)


def end_and_recount(status: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    """Let the first case end so, with a summary that fits."""

    def change(data: dict[str, Any]) -> None:
        change_row(data["cases"][0], status=status, **fields)
        data["summary"]["passed"] -= 1
        data["summary"][status] += 1

    return change


def change_both(
    change: Callable[[dict[str, Any]], object], **summary: int
) -> Callable[[dict[str, Any]], None]:
    """Change a report, and add to figures of its summary."""

    def both(data: dict[str, Any]) -> None:
        change(data)
        for name, added in summary.items():
            data["summary"][name] += added

    return both


def write_file(job: str, name: str, text: str) -> Tamper:
    return lambda results: void(results.file(job, name).write_text(text))


def write_junit(rows: str, job: str = TESTS) -> Tamper:
    return write_file(job, "junit.xml", JUNIT.format(rows))


def write_code(text: str, job: str = ONNX) -> Tamper:
    return lambda results: void((results.of(job) / "exit-code.txt").write_text(text))


def lose(name: str, job: str = ONNX) -> Tamper:
    return lambda results: results.file(job, name).unlink()


def void(_: object) -> None:
    """For a lambda that returns nothing."""


def fail_in_junit(results: Results) -> None:
    file = results.file(ONNX, "junit.xml")
    file.write_text(file.read_text().replace("<system-out", '<failure message="x"/><system-out', 1))


def swap_shards(results: Results) -> None:
    first, second = (results.file(job, "report.json").parent for job in (ONE, TWO))
    aside = first.with_name("kept")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def copy_other_lane(results: Results) -> None:
    source, target = (results.file(job, "report.json").parent for job in (ONE, ONNX))
    shutil.copytree(source, target, dirs_exist_ok=True)


def both(*tampers: Tamper) -> Tamper:
    return lambda results: void([tamper(results) for tamper in tampers])


FAILURE = '<testcase classname="a" name="x"><failure/></testcase>'
ERROR = '<testcase classname="a" name="x"><error/></testcase>'
SKIPPED = '<testcase classname="a" name="x"><skipped/></testcase>'
TAMPERED: dict[str, Tamper] = {
    "a case failed, its summary knows": in_report(end_and_recount("failed")),
    "a case of a shard failed": in_report(end_and_recount("failed"), ONE),
    "a case failed, its summary does not know": in_case(status="failed"),
    "all cases failed, the summary says passed": in_all(status="failed"),
    "1 of 29 cases": in_report(drop_cases),
    "no case": in_report(drop_all_cases),
    "a shard without cases": in_report(drop_all_cases, TWO),
    "a shard with one case": in_report(drop_cases, ONE),
    "the same case twice": in_report(
        change_both(lambda data: data["cases"].append(data["cases"][0]), passed=1)
    ),
    "another model": in_case(model="other"),
    "another scheme": in_case(scheme="int3"),
    "another SoC": in_case(soc="SM8750"),
    "all cases unsupported": in_all(status="unsupported", findings=tell("no")),
    "a refusal that nobody expects": in_report(
        end_and_recount("unsupported", findings=tell("run: QNN said no"))
    ),
    "a case lacked a library": in_case(status="unsupported", lacks="libQnnLpai.so"),
    "a passed case lacked a library": in_case(lacks="libQnnLpai.so"),
    "a passed case with a finding": in_case(findings=tell("SQNR 3 dB, 20 dB wanted")),
    "a passed case without inputs": in_case(inputs=0),
    "a passed case without figures": in_case(max_abs=None, equal=None),
    "a passed case below its share": in_case(equal=0.5),
    "a passed case with a node on the CPU": in_case(fallback_nodes=1),
    "summary with fewer cases": in_summary(passed=1),
    "summary with more cases": in_summary(passed=290),
    "summary with a failed case": in_summary(failed=1),
    "summary with other controls": in_summary(controls=1),
    "summary with a control that passed": in_summary(controls_passed=1),
    "a control passed, its summary knows": in_report(
        change_both(lambda data: data["controls"][0].update(rejected=False), controls_passed=1)
    ),
    "a control passed, its summary does not know": in_report(
        lambda data: data["controls"][0].update(rejected=False)
    ),
    "no controls": in_report(
        lambda data: (data.update(controls=[]), data["summary"].update(controls=0))
    ),
    "a case without controls": in_report(
        change_both(lambda data: data["controls"].pop(), controls=-1)
    ),
    "cut short": in_field(unjudged=3),
    "another session": in_field(session="test_emulator"),
    "another backend": in_field(backend="gpu"),
    "a shard of what has none": in_field(
        shard={"index": 1, "count": 1, "positions": [0], "whole": "0" * 64, "policy": "0" * 64}
    ),
    "no budget": in_limits(budget={}),
    "a graph that QNN does not hold": in_case(footprint={"context_bytes": 3 << 30}),
    "weaker limits": in_limits(min_sqnr_db_all=-50.0),
    "no limits": in_field(thresholds=[]),
    "partial delegation allowed": in_limits(full_delegation=False),
    "an unknown key": in_field(green=True),
    "a schema of the future": in_field(schema_version=SCHEMA_VERSION + 1),
    "a cosine of 7": in_case(cosine=7),
    "no JSON": write_file(ONNX, "report.json", "green"),
    "nothing in the report": write_file(ONNX, "report.json", ""),
    "no report": lose("report.json"),
    "no junit.xml": lose("junit.xml"),
    "a failure in junit.xml alone": fail_in_junit,
    "no test in junit.xml": write_file(ONNX, "junit.xml", "<testsuites/>"),
    "a shard marked as the other": in_mark(index=2),
    "a shard of three": in_mark(count=3),
    "a shard of another policy": in_mark(policy="1" * 64),
    "a shard of other cases": in_mark(whole="1" * 64),
    "shards swapped": swap_shards,
    "a shard's report as the other lane's": copy_other_lane,
    "2 of 2 tests failed": write_junit(FAILURE * 2),
    "1 of 2 tests failed": write_junit(FAILURE + PASSED.format("y")),
    "an error in a test": write_junit(ERROR + PASSED.format("y")),
    "only skipped tests": write_junit(SKIPPED * 2),
    "fewer tests than the suite says": write_junit(PASSED),
    "failures that no test has": write_file(
        TESTS, "junit.xml", JUNIT.replace('"0"', '"2"').format(PASSED * 2)
    ),
    "a page instead of tests": write_file(TESTS, "junit.xml", "<html><testcase/></html>"),
    "tests with a document type": write_file(TESTS, "junit.xml", "<!DOCTYPE a><testsuites/>"),
    "tests cut off": write_file(TESTS, "junit.xml", "<testsuites><testsuite>"),
    "exit code 1 over passed cases": write_code("1"),
    "no number as exit code": write_code("zero"),
    "two exit codes": write_code("0\n0"),
    "an exit code with a sign": write_code("+0"),
    "an exit code too long": write_code("0000"),
    "exit code 4 over failed cases": both(write_code("4"), in_report(end_and_recount("failed"))),
    "killed over failed cases": both(
        write_code("137", ONE), in_report(end_and_recount("failed"), ONE)
    ),
}
MACHINES: dict[str, Tamper] = {
    "a lost shard": lambda results: shutil.rmtree(results.of(TWO)),
    "a shard that ended with 4": both(write_code("4", TWO), lose("report.json", TWO)),
    "a shard without an exit code": lambda results: (results.of(ONE) / "exit-code.txt").unlink(),
    "a lane that is gone": lambda results: shutil.rmtree(results.of(ONNX)),
    "exit code 3": write_code("3"),
    "killed": write_code("137"),
}


def test_untampered_job_results_give_a_green_verdict(results: Results) -> None:
    verdict = results.judge()
    assert verdict.is_green, verdict
    assert results.run_verb() == 0
    assert [job.why for job in verdict.jobs if job.job == ONNX] == ["29 cases"]


@pytest.mark.parametrize("name", [*TAMPERED, *MACHINES])
def test_tampered_results_fail_as_the_authors_fault_and_lost_ones_as_the_machines(
    results: Results, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    {**TAMPERED, **MACHINES}[name](results)
    code = results.run_verb("--json")
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["green"], code) == (False, 4 if name in MACHINES else 1), verdict


def test_reports_of_the_schema_before_are_judged_alike(results: Results) -> None:
    verdict = results.judge()
    for job in (ONE, TWO, ONNX):
        file = results.file(job, "report.json")
        file.write_bytes(encode_earlier(read_report(file)))
    assert results.judge() == verdict
    assert verdict.is_green


def test_a_planned_case_that_no_shard_ran_is_named(results: Results) -> None:
    plan = read_plan(results.folder / "plan.json")
    assert judge_shards(results.folder / "results", plan) == []
    planned_only = CaseName("planned", "fp16", "SM8650")
    jobs = [replace(job, cases=(*job.cases, planned_only)) for job in plan.jobs]
    (fault,) = judge_shards(results.folder / "results", replace(plan, jobs=tuple(jobs)))
    assert str(planned_only) in fault


@pytest.mark.parametrize("name", ["plan.json", "needs.json"])
@pytest.mark.parametrize("text", ["", "{", "[]", None])
def test_the_verdict_fails_without_a_valid_plan_and_needs_file(
    results: Results, name: str, text: str | None
) -> None:
    file = results.folder / name
    file.unlink() if text is None else file.write_text(text)
    assert results.run_verb() == ExitCode.FAILED
    verdict = results.judge()
    assert (verdict.jobs, len(verdict.notes)) == ((), 1)


@pytest.mark.parametrize("name", ["plan.json", "needs.json"])
def test_a_pipe_as_plan_or_needs_is_red_and_named(results: Results, name: str) -> None:
    file = results.folder / name
    file.unlink()
    os.mkfifo(file)
    assert results.run_verb() == ExitCode.FAILED
    (note,) = results.judge().notes
    assert str(file) in note
    assert "it is a pipe" in note


@pytest.mark.parametrize("markdown", [False, True])
def test_a_fault_that_belongs_to_no_job_is_in_json_and_markdown(
    results: Results, capsys: pytest.CaptureFixture[str], markdown: bool
) -> None:
    stray = results.folder / "results" / "result-a stray job"
    shutil.copytree(results.of(ONNX), stray)
    assert results.run_verb("--markdown" if markdown else "--json") == ExitCode.FAILED
    printed = capsys.readouterr().out
    assert "a stray job" in printed
    assert printed.startswith("{" if not markdown else "#")
    if not markdown:
        verdict = json.loads(printed)
        assert (verdict["green"], len(verdict["notes"])) == (False, 1)
        assert {job["verdict"] for job in verdict["jobs"]} == {"passed"}
        assert [job["why"] for job in verdict["jobs"] if job["job"] == ONNX] == ["29 cases"]


def test_figures_far_from_the_recorded_ones_are_red(results: Results) -> None:
    (stem,) = (path.stem for path in suite_folder().glob("onnxruntime-*.toml"))
    match = re.fullmatch(r"([a-z]+)-([^-]+)-([a-z-]+)-([^-]+)", stem)
    assert match
    tools = [{"name": match[at], "version": match[at + 1]} for at in (1, 3)]
    in_report(lambda data: data.update(toolchain=tools))(results)
    (line,) = (job for job in results.judge().jobs if job.job == ONNX)
    assert line.verdict is JobVerdict.FAILED
    assert "recorded for this toolchain" in line.why
