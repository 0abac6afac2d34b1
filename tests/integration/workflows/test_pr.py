"""pr.yml as GitHub would run it: the plan, its matrix, and one check that is red for each way to
fail. Plan, matrix and gate are the real verbs; the sessions of the matrix are quick_nox's."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.workflows.project import Project, read_workflow
from tests.workflows.document import Document
from tests.workflows.job import Setting
from tests.workflows.workflow import JobResult

MODEL = "ci/models/suite/mlp.py"
DOCS = "README.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Project:
    from tests.integration.workflows.conftest import make_github

    return Project(make_github(tmp_path_factory.mktemp("project")), programs)


@pytest.fixture
def project(made: Project) -> Project:
    made.reset()
    return made


def run_pr(project: Project, document: Document | None = None, **more: Any) -> dict[str, JobResult]:
    project.forget()
    return project.github.run_document(document or read_workflow("pr"), **more)


def say(results: Mapping[str, JobResult]) -> str:
    return "\n".join(run.heard.text for one in results.values() for run in one.runs)


def sessions_of(project: Project) -> set[str]:
    own = {"plan", "qnn_ci"}
    return {line.split()[0] for line in project.ran} - own


# -- green -----------------------------------------------------------------------------------------


def test_a_change_in_docs_runs_lint_and_is_green(project: Project) -> None:
    project.change(DOCS)
    project.end_with({})
    results = run_pr(project)
    assert {name: one.result for name, one in results.items()} == {
        **dict.fromkeys(("plan", "run", "qnn-gate"), "success"),
        "code-scanning": "skipped",  # the head's repository is gone, or another's
    }, say(results)
    assert sessions_of(project) == {"lint"}
    (gate,) = results["qnn-gate"].runs
    assert gate.summary
    assert "pwned" not in say(results)
    assert not (gate.setting.workspace / "pwned").exists()


@pytest.fixture
def model_change(project: Project) -> Project:
    """A pull request that changes a model: test_emulator runs, in one shard or more."""
    project.change(MODEL)
    return project


def test_a_change_in_a_model_runs_its_cases_and_is_green(model_change: Project) -> None:
    model_change.end_with({})
    results = run_pr(model_change)
    assert results["qnn-gate"].result == "success", say(results)
    assert "test_emulator" in sessions_of(model_change)


# -- red -------------------------------------------------------------------------------------------

SHARD = "test_emulator"


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        ({SHARD: {"code": 1, "cases": 2}}, "failed"),
        ({SHARD: {"code": 70, "cases": 2}}, "a defect"),
        ({SHARD: {"code": 0, "cases": 0}}, "case"),
        ({SHARD: {"code": 0}}, "report"),
        ({"lint": {"code": 1, "cases": 1}}, "lint"),
        ({SHARD: {"code": 4, "cases": 1}}, "download"),
    ],
    ids=["failed", "defect", "zero cases", "no report", "lint", "infrastructure"],
)
def test_the_gate_is_red(
    model_change: Project, outcomes: dict[str, dict[str, int]], why: str
) -> None:
    model_change.end_with(outcomes)
    results = run_pr(model_change)
    assert results["qnn-gate"].result == "failure"
    (gate,) = results["qnn-gate"].runs
    assert why in gate.summary
    failed = any(outcome["code"] for outcome in outcomes.values())
    assert results["run"].result == ("failure" if failed else "success")


def cancel_emulator(name: str, row: Mapping[str, Any], setting: Setting) -> None:
    setting.cancel_before = "Run the session" if row.get("session") == SHARD else ""


def lose_a_shard(name: str, row: Mapping[str, Any], setting: Setting) -> None:
    """A machine that is gone, or a job that GitHub ended for its time: no step runs any more."""
    setting.lost_before = "Run the session" if row.get("shard") == "2/2" else ""


@pytest.mark.parametrize("prepare", [cancel_emulator, lose_a_shard])
def test_a_job_that_did_not_end_makes_it_red(
    model_change: Project, prepare: Callable[..., None]
) -> None:
    model_change.end_with({})
    results = run_pr(model_change, prepare=prepare)
    assert results["qnn-gate"].result == "failure"
    (gate,) = results["qnn-gate"].runs
    if prepare is cancel_emulator:
        assert results["run"].result == "cancelled"
    else:
        assert {name for name in model_change.github.services.artifacts if SHARD in name} == {
            f"result-{SHARD}-1-of-2"
        }
        assert f"{SHARD}-2-of-2" in gate.heard.text


@pytest.mark.parametrize("result", ["failure", "cancelled", "skipped"])
def test_a_matrix_that_did_not_run_makes_it_red(model_change: Project, result: str) -> None:
    model_change.end_with({})
    results = run_pr(model_change, forced={"run": result})
    assert results["qnn-gate"].result == "failure", say(results)


@pytest.mark.parametrize("result", ["failure", "cancelled", "skipped"])
def test_a_plan_that_did_not_come_makes_it_red(model_change: Project, result: str) -> None:
    results = run_pr(model_change, forced={"plan": result})
    assert results["run"].result != "success"
    assert results["qnn-gate"].result == "failure", say(results)


def test_a_base_that_git_does_not_know_is_red(model_change: Project) -> None:
    model_change.github.github["event"]["pull_request"]["base"]["sha"] = "f" * 40
    results = run_pr(model_change)
    assert (results["plan"].result, results["qnn-gate"].result) == ("failure", "failure")


# -- code scanning ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("repository", "author", "result"),
    [
        ("somebody/project", "somebody", "success"),
        ("fork/project", "somebody", "skipped"),
        ("somebody/project", "dependabot[bot]", "skipped"),
    ],
)
def test_models_that_fail_are_shown_in_code_scanning(
    model_change: Project, repository: str, author: str, result: str
) -> None:
    pull_request = model_change.github.github["event"]["pull_request"]
    pull_request |= {"head": {"repo": {"full_name": repository}}, "user": {"login": author}}
    model_change.end_with({SHARD: {"code": 1, "cases": 2}})
    results = run_pr(model_change)
    assert results["qnn-gate"].result == "failure"
    assert results["code-scanning"].result == result, say(results)
    scanned = model_change.github.services.scanned
    assert bool(scanned.get(SHARD)) == (result == "success")
    for found in scanned.get(SHARD, []):
        place = found["locations"][0]["physicalLocation"]["artifactLocation"]
        assert place["uri"] == MODEL


def test_the_gate_does_not_wait_for_code_scanning() -> None:
    jobs = read_workflow("pr").jobs
    assert "code-scanning" not in jobs["qnn-gate"]["needs"]
    assert jobs["code-scanning"]["needs"] == "qnn-gate"


# -- other events ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "everything"),
    [
        ({"event_name": "workflow_dispatch", "event": {}}, True),
        ({"event_name": "push", "event": {"before": "0" * 40}}, None),
    ],
    ids=["by hand", "first push"],
)
def test_other_events(project: Project, event: dict[str, Any], everything: bool | None) -> None:
    project.github.github = {"ref": "refs/heads/main", **event}
    project.end_with({})
    results = run_pr(project)
    assert results["qnn-gate"].result == "success", say(results)
    if everything:
        assert {"lint", "unit", "tests", "test_emulator"} <= sessions_of(project)
        assert "Install what the tests need" in results["run"].runs[-1].ran or any(
            "Install what the tests need" in run.ran for run in results["run"].runs
        )


def test_the_nightly_run_is_the_gate_over_everything(project: Project) -> None:
    project.github.github = {"ref": "refs/heads/main", "event_name": "schedule", "event": {}}
    project.end_with({})
    document = read_workflow("nightly")
    only = change(document, lambda jobs: jobs.pop("newest"))
    results = run_pr(project, only)
    assert results["everything"].result == "success", say(results)
    assert {"lint", "unit", "tests", "test_emulator"} <= sessions_of(project)


# -- faults ----------------------------------------------------------------------------------------


def change(document: Document, edit: Callable[[dict[str, Any]], object]) -> Document:
    """A copy of a workflow with a fault in its jobs."""
    data = copy.deepcopy(dict(document.data))
    edit(data["jobs"])
    return Document(Path("changed.yml"), data)
