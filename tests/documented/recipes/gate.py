"""docs/gate.md: a plan of a change, its matrix, its shards and its verdict."""

from __future__ import annotations

import json
import shutil

from ci.report.write import write_report
from tests.documented.pages import ROOT
from tests.documented.recipe import Recipe
from tests.documented.setups import commit, git, run_once, use_our_store, write_suite
from tests.documented.stage import Ended, Stage
from tests.stand_ins.shards import make_cases, make_shards

MODEL = "ci/models/suite/mlp.py"
ONE_MODEL = (r"1 file changed", rf"test_emulator +run +{MODEL}: 6 cases of mlp", r"parity +- +no")


def branch_off(stage: Stage) -> None:
    """A repository of the project, and on a branch of it a commit that changes one model."""
    project = stage.project
    git(project, "init", "-q", "-b", "main")
    shutil.copy2(ROOT / ".gitignore", project)
    commit(project, "all")
    git(project, "checkout", "-q", "-b", "change")
    stage.write(MODEL, (project / MODEL).read_text() + "\n# one more line\n")
    commit(project, "mlp")
    stage.variables |= {"BASE": "main", "HEAD": "change", "GITHUB_EVENT_NAME": "pull_request"}


def plan_two_cases(stage: Stage) -> None:
    """A plan of two cases in two shards."""
    write_suite(stage, 'mlp = ["fp16", "8a8w"]')
    branch_off(stage)
    planned = stage.project / "planned"
    run_once(stage, "qnn-ci plan --head HEAD --out planned/plan.json", planned)
    shutil.copy(planned / "plan.json", stage.project)


def leave_results(stage: Stage) -> None:
    """What the jobs of that plan leave when all is well."""
    plan_two_cases(stage)
    plan = json.loads((stage.project / "plan.json").read_text())
    cases = make_cases(*(" ".join(case.values()) for case in plan["cases"]))
    shards = [job for job in plan["jobs"] if job["shard"]]
    for job, report in zip(shards, make_shards(cases, len(shards)), strict=True):
        write_report(report, stage.project / f"results/result-{job['id']}/reports/test_emulator")
    for job in plan["jobs"]:
        folder = stage.project / f"results/result-{job['id']}"
        if job["report"] == "junit.xml":
            path = folder / "reports" / job["session"] / "junit.xml"
            path.parent.mkdir(parents=True)
            path.write_text('<testsuites><testsuite><testcase name="a"/></testsuite></testsuites>')
        elif job["report"] and not job["shard"]:
            (report,) = make_shards(make_cases("mlp fp16 SM8650"), 1)
            write_report(report, folder / "reports" / job["session"])
        folder.mkdir(exist_ok=True)
        (folder / "exit-code.txt").write_text("0\n")
    needs = {"plan": {"result": "success"}, "session": {"result": "success"}}
    (stage.project / "needs.json").write_text(json.dumps(needs))


def record_shards(stage: Stage) -> None:
    cases = make_cases("mlp fp16 SM8650", "lstm 8a8w SM8650", "mlp 8a8w SM8650")
    for index, report in enumerate(make_shards(cases, 2), 1):
        write_report(report, stage.project / f"shard-{index}")


def plans_one_model(stage: Stage, ended: Ended) -> None:
    plan = json.loads((stage.project / "plan.json").read_text())
    assert {case["model"] for case in plan["cases"]} == {"mlp"}
    assert plan["base"] != plan["head"]


def is_a_matrix(stage: Stage, ended: Ended) -> None:
    (line,) = ended.stdout.splitlines()
    jobs = [row["job"] for row in json.loads(line)["include"]]
    assert {"lint", "test_emulator-1-of-1"} <= set(jobs)


RECIPES = {
    "nox -s plan": Recipe(setup=(branch_off,), says=ONE_MODEL),
    "qnn-ci plan --base main --head HEAD": Recipe(setup=(branch_off,), says=ONE_MODEL),
    "qnn-ci plan --head HEAD --out plan.json": Recipe(
        setup=(branch_off,), says=ONE_MODEL, then=plans_one_model
    ),
    'qnn-ci plan --base BASE --head HEAD --event "$GITHUB_EVENT_NAME" --out plan.json --markdown': (
        Recipe(
            setup=(branch_off,),
            fill={"BASE": "main"},
            says=("## Plan", r"\| test_emulator \|"),
            then=plans_one_model,
        )
    ),
    "qnn-ci plan --verify main~20..main": Recipe(
        setup=(branch_off,),
        fill={"main~20..main": "main..change"},
        says=("1 commit, everything for 0", "cases: 6 of ", "was skipped"),
    ),
    "qnn-ci matrix plan.json": Recipe(setup=(plan_two_cases,), then=is_a_matrix),
    "nox -s test_emulator -- --plan plan.json --shard 1/2": Recipe(
        setup=(use_our_store, plan_two_cases), says=("1 passed",), with_models=True
    ),
    "qnn-ci gate plan.json --needs needs.json --results results": Recipe(
        setup=(leave_results,), says=("green",)
    ),
    "qnn-ci report shard-1 shard-2 --to merged": Recipe(
        setup=(record_shards,), says=("3 passed",), leaves=("merged/report.json",)
    ),
}
