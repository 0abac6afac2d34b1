"""What is read of a repository and of results, and which cases and jobs a plan makes of it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ci.gate.plan import list_cases, list_jobs, render_matrix
from ci.gate.reading import POLICIES, Repository
from ci.gate.results import read_junit, read_needs, read_plan, read_result, read_results
from ci.gate.rules import GateRules, SessionRule, list_outdated, read_rules
from ci.gate.schema import Plan, PlannedJob, PlannedSession
from ci.gate.verdict import JobResult
from ci.report.schema import CaseName
from ci.report.write import write_report
from provisioning.errors import UsageError
from tests.stand_ins.reports import make_report

RULES = read_rules()


@dataclass(frozen=True)
class Git:
    """A repository that a test commits to."""

    root: Path

    def __call__(self, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.invalid", "-c", "init.defaultBranch=main"]
        argv = ["git", "-C", str(self.root), *who, *words]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, encoding="utf-8")
        return done.stdout.strip()

    def commit(self, **files: str) -> str:
        for name, text in files.items():
            (self.root / name).write_text(text, encoding="utf-8")
        self("add", "-A")
        self("commit", "-qm", "x", "--allow-empty")
        return self("rev-parse", "HEAD")

    @property
    def repository(self) -> Repository:
        return Repository(self.root, RULES)


@pytest.fixture
def git(tmp_path: Path) -> Git:
    (tmp_path / "r").mkdir()
    new_repository = Git(tmp_path / "r")
    new_repository("init", "-q")
    return new_repository


# -- the trees -------------------------------------------------------------------------------------


def test_the_base_is_the_merge_base_with_the_main_branch(git: Git) -> None:
    first = git.commit(a="1")
    assert git.repository.find_base("", "") == first, "without a main branch it is the head"
    git("branch", "-M", RULES.branch)
    second = git.commit(a="2")
    git("checkout", "-qb", "topic", first)
    topic_commit = git.commit(b="1")
    assert git.repository.find_base("", "") == first
    assert git.repository.find_base("topic", RULES.branch) == first
    assert git.repository.find_base("", RULES.branch) == second
    git("update-ref", f"refs/remotes/origin/{RULES.branch}", topic_commit)
    assert git.repository.find_base("", "topic") == topic_commit, (
        "the origin's main branch comes first"
    )
    git("checkout", "-q", "--orphan", "apart")
    git.commit(c="1")
    with pytest.raises(UsageError) as caught:
        git.repository.find_base("topic", "")
    assert caught.value.what == "topic and HEAD have no commit in common"
    assert caught.value.why == ""  # git prints nothing
    assert "--base" in caught.value.fix
    with pytest.raises(UsageError):
        git.repository.resolve("gone")


@pytest.mark.parametrize(
    "policy",
    ["suite = 3", "suite = 'mlp'", "[suite]\nmlp = 3", "[suite]\nmlp = [1]", "suite = ["],
)
def test_an_invalid_suite_is_left_to_its_session(git: Git, policy: str) -> None:
    path = git.root / POLICIES.format("emulator")
    path.parent.mkdir(parents=True)
    path.write_text(policy, encoding="utf-8")
    commit = git.commit()
    suites = git.repository.compare(commit, commit).suites
    assert suites["test_emulator"] == {}


# -- the rules -------------------------------------------------------------------------------------

OUTDATED = """branch = "main"
package = "executorch"
command = ["make"]
record = "opened.toml"
every_nth = 5
words = false
[cases]
session = "test_emulator"
probe = "mlp"
[sessions.build]
roots = ["src/**"]
record = ["--help"]
"""


def test_outdated_keys_are_accepted_with_a_warning_and_roots_become_a_rule(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(OUTDATED)
    rules = read_rules(file)
    assert [(rule.files, rule.sessions) for rule in rules.rule] == [(("src/**",), ("build",))]
    warnings = [*list_outdated(rules)]
    for key in ("package", "command", "record in the rules", "every_nth", "words", "cases"):
        assert any(warning.startswith(key) for warning in warnings), key
    assert sum("[sessions.build]" in warning for warning in warnings) == 2
    assert [*list_outdated(RULES)] == []


# -- jobs ------------------------------------------------------------------------------------------

SUITE = {"mlp": ("fp16", "8a8w"), "net": ("fp16",)}
CASES = tuple(CaseName(m, s, "SM8650") for m, schemes in SUITE.items() for s in schemes)


def plan_jobs(*sessions: PlannedSession, **suites: tuple[CaseName, ...]) -> list[PlannedJob]:
    rules = GateRules(
        branch="main",
        python="3.12",
        sessions={
            "lint": SessionRule(timeout_minutes=7),
            "tests": SessionRule(pythons=("3.10", "3.13"), report="junit.xml"),
            "test_emulator": SessionRule(report="report.json", policy="emulator", shards=2),
            "test_onnx": SessionRule(report="report.json", policy="onnx"),
        },
    )
    return [*list_jobs(sessions, rules, suites)]


def run(name: str, **fields: Any) -> PlannedSession:
    return PlannedSession(name=name, run=True, reason="r", **fields)


def test_sessions_that_run_become_jobs() -> None:
    jobs = plan_jobs(
        run("lint"),
        run("tests"),
        PlannedSession(name="bench", run=False, reason=""),
        run("deploy", by_hand="a device"),
        run("test_onnx"),
        run("test_emulator"),
        test_onnx=CASES[:1],
        test_emulator=CASES,
    )
    plain = PlannedJob(id="lint", session="lint", python="3.12", timeout_minutes=7)
    junit = PlannedJob(id="tests-3.10", session="tests", python="3.10", report="junit.xml")
    assert jobs[:3] == [plain, junit, replace(junit, id="tests-3.13", python="3.13")]
    onnx, *shards = jobs[3:]
    assert (onnx.id, onnx.policy, onnx.cases, onnx.words) == ("test_onnx", "onnx", CASES[:1], ())
    assert [(job.id, job.words, job.shard) for job in shards] == [
        (f"test_emulator-{index}-of-2", ("--shard", f"{index}/2"), f"{index}/2") for index in (1, 2)
    ]
    assert sorted(case for job in shards for case in job.cases) == sorted(CASES)
    (single,) = plan_jobs(run("test_emulator"), test_emulator=CASES[:1])
    assert (single.id, single.shard) == ("test_emulator", "")  # no shard is empty
    assert list_cases(SUITE) == CASES
    row = {"job": "lint", "session": "lint", "python": "3.12", "timeout_minutes": 7}
    sharded = replace(plain, words=("--shard", "1/2"))
    assert render_matrix([plain, sharded]) == {
        "include": [{**row, "shard": "", "words": ""}, {**row, "shard": "", "words": "--shard 1/2"}]
    }
    for bad in ("$(x)", "a;b", "a\nb", "`x`", "a'b", "${{ x }}", "ü"):  # a shell takes them apart
        with pytest.raises(UsageError, match="matrix"):
            render_matrix([replace(plain, id=bad)])


# -- results ---------------------------------------------------------------------------------------

JUNIT = b'<testsuite><testcase name="a"/><testcase><failure/></testcase></testsuite>'
JOB = PlannedJob(id="tests", session="unit", python="3.11", report="junit.xml")


def leave(folder: Path, code: bytes | None, junit: bytes | None = None) -> Path:
    reports = folder / "reports" / "unit"
    reports.mkdir(parents=True)
    if code is not None:
        (folder / "exit-code.txt").write_bytes(code)
    if junit is not None:
        (reports / "junit.xml").write_bytes(junit)
    return folder


@pytest.mark.parametrize(
    ("code", "junit", "result"),
    [
        (None, JUNIT, JobResult()),
        (b"0\n", None, JobResult("0\n")),
        (b"x", JUNIT, JobResult("x", 2, "1 of 2 tests failed", 1)),
        (b"\xff" + b"9" * 200, None, JobResult("\ufffd" + "9" * 99)),
        (b"0", b"<testsuite/>", JobResult("0", 0)),
        (b"0", b"<page/>", JobResult("0", fault="FILE is not a report: its root element is page")),
        (b"0", JUNIT + b" " * (1 << 20), JobResult("0", 2, "1 of 2 tests failed", 1)),
    ],
)
def test_the_exit_code_and_reports_of_a_job_are_read(
    tmp_path: Path, code: bytes | None, junit: bytes | None, result: JobResult
) -> None:
    folder = leave(tmp_path / "f", code, junit)
    job_result = read_result(folder, JOB)
    fault = job_result.fault.replace(f"{folder}/reports/unit/junit.xml", "FILE")
    assert dataclasses.replace(job_result, fault=fault) == result
    for job in (None, replace(JOB, report="")):
        assert read_result(folder, job) == JobResult(result.exit_code)


@pytest.mark.parametrize("make", [lambda file: file.symlink_to("/dev/zero"), os.mkfifo, os.mkdir])
def test_exit_code_that_is_a_link_pipe_or_directory_is_ignored(tmp_path: Path, make: Any) -> None:
    folder = leave(tmp_path / "f", None)
    make(folder / "exit-code.txt")
    assert read_result(folder, JOB) == JobResult()


def test_a_report_without_its_junit_or_that_cannot_be_read_is_the_jobs_fault(
    tmp_path: Path,
) -> None:
    job = replace(JOB, report="report.json")
    folder = leave(tmp_path / "f", b"0")
    write_report(make_report([]), folder / "reports/unit")
    (folder / "reports/unit/junit.xml").unlink()
    assert "the job left no junit.xml" in read_result(folder, job).fault
    with pytest.raises(UsageError, match="cannot read the report"):
        read_junit(folder / "reports")


def test_job_results_are_identified_by_their_folder_names(tmp_path: Path) -> None:
    plan = Plan(base="a", head="b", cases=(), jobs=(JOB,))
    assert read_results(tmp_path / "none", plan) == {}
    leave(tmp_path / "result-tests", b"0", b'<testsuite><testcase name="a"/></testsuite>')
    leave(tmp_path / "result-stray", b"7", JUNIT)
    leave(tmp_path / "other", b"0")
    assert read_results(tmp_path, plan) == {"tests": JobResult("0", 1), "stray": JobResult("7")}


def test_a_wrong_plan_or_needs_file_is_refused_with_a_fix(tmp_path: Path) -> None:
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"plan": {"result": "success"}, "x": {}}), encoding="utf-8")
    assert read_needs(file) == {"plan": "success", "x": "missing"}
    for read, document, fix in (
        (read_plan, "plan", f"create it with `qnn-ci plan --out {file}`"),
        (read_needs, "results of jobs", "write GitHub's toJSON(needs) into it"),
    ):
        file.write_text("[]", encoding="utf-8")
        with pytest.raises(UsageError) as caught:
            read(file)  # type: ignore[operator]
        assert caught.value.what == f"{file} does not have the format of the {document}"
        assert caught.value.fix == fix
        with pytest.raises(UsageError, match=f"the {document}"):
            read(Path(os.devnull + "x"))  # type: ignore[operator]
