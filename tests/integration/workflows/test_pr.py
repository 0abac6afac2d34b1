"""pr.yml as GitHub would run it: the plan, its matrix, and one check that is red for each way to
fail. Plan, matrix and gate are the real verbs; the sessions of the matrix are quick_nox's.

A change in a model runs whole once; each fault runs what it changes again, and what follows.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.integration.workflows.project import (
    Project,
    collect_log,
    list_results,
    read_workflow,
)
from tests.workflows.job import Setting
from tests.workflows.workflow import JobResult

MODEL = "ci/models/suite/mlp.py"
DOCS = "README.md"
SHARD = "test_emulator"
SESSIONS = {"lint", "unit", "tests", "journeys", SHARD}


def run_pr(project: Project, **options: Any) -> dict[str, JobResult]:
    return project.github.run_document(read_workflow("pr"), **options)


def list_sessions(project: Project) -> set[str]:
    """The sessions that ran, besides those that plan and judge."""
    return {line.split()[0] for line in project.ran} - {"plan", "qnn_ci"}


@dataclass
class ModelChange:
    """A pull request that changes a model, after a run in which all passed."""

    project: Project
    head: str
    github: dict[str, Any]
    results: dict[str, JobResult]
    sessions: set[str]
    artifacts: Path

    def restore(self) -> None:
        """Bring back the commit, the event and the artifacts of that run."""
        services = self.project.github.services
        self.project.reset(self.head)
        self.project.github.github = copy.deepcopy(self.github)
        shutil.copytree(self.artifacts, services.folder / "artifacts")
        names = (path.name for path in self.artifacts.iterdir())
        services.artifacts |= {name: services.folder / "artifacts" / name for name in names}

    def lose(self, session: str) -> None:
        """Forget the results of a session."""
        artifacts = self.project.github.services.artifacts
        for name in [name for name in artifacts if name.startswith(f"result-{session}")]:
            shutil.rmtree(artifacts.pop(name))

    def rerun(self, session: str = "", **options: Any) -> dict[str, JobResult]:
        """Run the jobs of one session again, and the gate; without one the gate alone."""
        earlier_results = {name: self.results[name] for name in ("plan", "run")}
        if session:
            rows = json.loads(earlier_results["plan"].outputs["matrix"])["include"]
            session_matrix = {"include": [row for row in rows if row["session"] == session]}
            earlier_results = {"plan": JobResult("success", {"matrix": json.dumps(session_matrix)})}
        options = {"results": earlier_results, "only": {"run", "qnn-gate"}, **options}
        return run_pr(self.project, **options)


@pytest.fixture(scope="module")
def change(made_project: Project, tmp_path_factory: pytest.TempPathFactory) -> ModelChange:
    made_project.reset()
    made_project.change(MODEL)
    results = run_pr(made_project, only={"plan", "run", "qnn-gate"})
    artifacts_copy = tmp_path_factory.mktemp("kept") / "artifacts"
    shutil.copytree(made_project.github.services.folder / "artifacts", artifacts_copy)
    github = copy.deepcopy(made_project.github.github)
    return ModelChange(
        made_project,
        made_project.head,
        github,
        results,
        list_sessions(made_project),
        artifacts_copy,
    )


@pytest.fixture
def model_change(change: ModelChange) -> ModelChange:
    change.restore()
    return change


# -- green -----------------------------------------------------------------------------------------


def test_a_change_in_docs_runs_lint_and_is_green(project: Project) -> None:
    project.change(DOCS)
    results = run_pr(project)
    assert list_results(results) == {
        **dict.fromkeys(("plan", "run", "qnn-gate"), "success"),
        "code-scanning": "skipped",  # the head's repository is gone, or another's
    }, collect_log(results)
    assert list_sessions(project) == {"lint"}
    (gate,) = results["qnn-gate"].runs
    assert gate.summary
    assert "pwned" not in collect_log(results)
    assert not (gate.setting.workspace / "pwned").exists()


def test_a_change_in_a_model_runs_the_suite_and_is_green(change: ModelChange) -> None:
    assert change.results["qnn-gate"].result == "success", collect_log(change.results)
    assert SHARD in change.sessions


# -- red -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "outcome", "why"),
    [
        (SHARD, {"code": 0, "cases": 0}, "case"),
        ("lint", {"code": 1, "cases": 1}, "lint"),
    ],
    ids=["zero cases", "lint"],
)
def test_the_gate_fails_if_a_planned_job_failed_or_ran_too_few_cases(
    model_change: ModelChange, session: str, outcome: dict[str, int], why: str
) -> None:
    model_change.project.end_with({session: outcome})
    results = model_change.rerun(session)
    assert results["qnn-gate"].result == "failure"
    (gate,) = results["qnn-gate"].runs
    assert why in gate.summary
    assert results["run"].result == ("failure" if outcome["code"] else "success")


def cancel_emulator(_name: str, row: Mapping[str, Any], setting: Setting) -> None:
    setting.cancel_before = "Run the session" if row.get("session") == SHARD else ""


def lose_a_shard(_name: str, row: Mapping[str, Any], setting: Setting) -> None:
    """A machine that is gone, or a job that GitHub ended for its time: no step runs any more."""
    setting.lost_before = "Run the session" if row.get("shard") == "2/2" else ""


@pytest.mark.parametrize("prepare", [cancel_emulator, lose_a_shard])
def test_the_gate_fails_if_a_job_did_not_end(
    model_change: ModelChange, prepare: Callable[..., None]
) -> None:
    model_change.lose(SHARD)
    results = model_change.rerun(SHARD, prepare=prepare)
    assert results["qnn-gate"].result == "failure"
    (gate,) = results["qnn-gate"].runs
    if prepare is cancel_emulator:
        assert results["run"].result == "cancelled"
    else:
        artifacts = model_change.project.github.services.artifacts
        assert [name for name in artifacts if SHARD in name] == [f"result-{SHARD}-1-of-2"]
        assert f"{SHARD}-2-of-2" in gate.heard.text


@pytest.mark.parametrize("result", ["failure", "skipped"])
def test_the_gate_fails_if_the_matrix_did_not_run(model_change: ModelChange, result: str) -> None:
    model_change.lose("")
    plan = model_change.results["plan"]
    results = model_change.rerun(results={"plan": plan, "run": JobResult(result)})
    assert results["qnn-gate"].result == "failure", collect_log(results)


@pytest.mark.parametrize("result", ["failure", "skipped"])
def test_the_gate_fails_without_a_plan(model_change: ModelChange, result: str) -> None:
    model_change.project.github.services.artifacts.clear()
    results = run_pr(model_change.project, forced={"plan": result})
    assert results["run"].result != "success"
    assert results["qnn-gate"].result == "failure", collect_log(results)


def test_the_gate_fails_if_git_does_not_know_the_base_commit(project: Project) -> None:
    project.change(MODEL)
    project.github.github["event"]["pull_request"]["base"]["sha"] = "f" * 40
    results = run_pr(project)
    assert (results["plan"].result, results["qnn-gate"].result) == ("failure", "failure")


# -- code scanning ---------------------------------------------------------------------------------


def test_models_that_fail_fail_the_gate_and_are_shown_in_code_scanning(
    model_change: ModelChange,
) -> None:
    """For a branch of this repository; forks and Dependabot may not write."""
    project = model_change.project
    scanned = project.github.services.scanned
    project.end_with({SHARD: {"code": 1, "cases": 2}})
    results = model_change.rerun(SHARD)
    assert (results["run"].result, results["qnn-gate"].result) == ("failure", "failure")
    (gate,) = results["qnn-gate"].runs
    assert "failed" in gate.summary
    for repository, author, result in (
        ("fork/project", "somebody", "skipped"),
        ("somebody/project", "dependabot[bot]", "skipped"),
        ("somebody/project", "somebody", "success"),
    ):
        assert not scanned
        pull_request = project.github.github["event"]["pull_request"]
        pull_request |= {"head": {"repo": {"full_name": repository}}, "user": {"login": author}}
        earlier_results = {name: results[name] for name in ("plan", "run", "qnn-gate")}
        rerun_results = run_pr(project, results=earlier_results)
        assert rerun_results["code-scanning"].result == result, collect_log(rerun_results)
    places = [sarif_result["locations"][0]["physicalLocation"] for sarif_result in scanned[SHARD]]
    # The session runs whole, so the other model of the suite is shown, too.
    models = {MODEL, "ci/models/suite/lstm.py"}
    assert {place["artifactLocation"]["uri"] for place in places} == models


# -- other events ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "values"),
    [
        ("workflow_dispatch", {}),
        ("merge_group", {"merge_group": {"base_sha": "HEAD"}}),
        ("push", {"before": "f" * 40}),  # over a commit that is gone
    ],
)
def test_manual_merge_queue_and_force_push_events_plan_every_session(
    project: Project, event: str, values: dict[str, Any]
) -> None:
    project.change(DOCS)
    if "merge_group" in values:
        values = {"merge_group": {"base_sha": project.head}}
    project.github.github = {"event_name": event, "event": values}
    results = run_pr(project, only={"plan"})
    rows = json.loads(results["plan"].outputs["matrix"])["include"]
    assert {row["session"] for row in rows} >= SESSIONS, collect_log(results)


def test_the_first_push_of_a_branch_is_green(project: Project) -> None:
    project.github.github = {"event_name": "push", "event": {"before": "0" * 40}}
    results = run_pr(project)
    assert results["qnn-gate"].result == "success", collect_log(results)
