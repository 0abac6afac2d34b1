"""The other workflows: every run block of theirs in a shell, what they call as stand-ins."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from provisioning.store.home import store_home
from tests.integration.workflows.project import (
    GitHub,
    Project,
    collect_log,
    commit,
    list_results,
    read_workflow,
)
from tests.stand_ins.actions import git
from tests.workflows.document import ROOT
from tests.workflows.workflow import JobResult


def run(project: Project, name: str, **options: Any) -> dict[str, JobResult]:
    return project.github.run_document(read_workflow(name), **options)


# -- pins ------------------------------------------------------------------------------------------

NEWER = "manifests/toolchains/qnn-runtime.toml"


NEW = {NEWER: 'version = "2"\n', "manifests/new": "x"}


def update(project: Project, **codes: int) -> None:
    project.github.github = {"event_name": "schedule", "event": {}}
    suites = {
        f"test_emulator reports/{name}": {"code": code, "cases": 1} for name, code in codes.items()
    }
    project.end_with(
        {"qnn_ci update": {"code": 0, "writes": NEW}, "validate": {"code": 3}, **suites}
    )


def test_the_pins_workflow_proposes_a_newer_pin_with_its_test_results(project: Project) -> None:
    update(project, before=0, after=0)
    results = run(project, "pins")
    assert list_results(results) == {"try": "success", "propose": "success"}, collect_log(results)
    assert "qnn_ci update qnn-runtime qnn-runtime-aarch64 --cooldown 14 --write" in project.ran
    used = project.outcomes.with_suffix(".manifests").read_text().splitlines()
    suites = [f"test_emulator --reports reports/{state}" for state in ("before", "after")]
    before, after = map(project.ran.index, suites)
    assert used[before] == str(results["try"].runs[0].setting.temp / "before") != used[after]
    assert read_workflow("pins").jobs["propose"]["permissions"] == {
        "actions": "write",
        "contents": "write",
        "pull-requests": "write",
    }
    body = (project.github.services.artifacts["proposal"] / "body.md").read_text()
    for part in ('+version = "2"', "manifests/new", "validate ends with 3", "## The suite"):
        assert part in body
    assert "exit code 3" in body
    pushed = git(project.folder, "show", "--stat", "--format=%s", "pins")
    assert "Take newer versions of pinned artifacts" in pushed
    assert (NEWER in pushed, "manifests/new" in pushed) == (True, True)
    assert "proposal" not in pushed
    assert any(line.startswith("gh pr create --head pins") for line in project.called)
    assert "gh workflow run pr.yml --ref pins" in project.called  # or the pull request has no gate


def test_a_pin_proposal_shows_a_suite_that_fails_with_the_new_pin(project: Project) -> None:
    update(project, before=0, after=1)
    project.github.variables["OPEN"] = "1"
    results = run(project, "pins")
    assert list_results(results) == {"try": "success", "propose": "success"}, collect_log(results)
    body = (project.github.services.artifacts["proposal"] / "body.md").read_text()
    suite = body.partition("## The suite")[2]
    assert "FAILED" in suite
    assert "exit code 1" in suite
    assert any(line.startswith("gh pr edit pins") for line in project.called)


def test_no_pin_is_proposed_if_the_suite_fails_before_the_change(project: Project) -> None:
    update(project, before=1, after=0)
    assert list_results(run(project, "pins")) == {"try": "failure", "propose": "skipped"}


def test_the_pins_workflow_does_nothing_without_a_newer_pin(project: Project) -> None:
    project.github.github = {"event_name": "schedule", "event": {}}
    project.end_with({"qnn_ci update": {"code": 0}})
    results = run(project, "pins")
    assert list_results(results) == {"try": "success", "propose": "skipped"}, collect_log(results)
    assert [line for line in project.ran if line.startswith("test_emulator")] == []


# -- nightly, images, release, sign ----------------------------------------------------------------


def test_images_are_checked_for_a_pull_request_and_pushed_only_by_hand(project: Project) -> None:
    project.end_with({"docker_build": {"code": 0}})
    project.github.github = {"event_name": "pull_request", "ref": "refs/pull/1/merge"}
    assert list_results(run(project, "images")) == {"build": "success", "push": "skipped"}
    images = ("emulator", "aot", "android", "full")
    assert project.ran == [f"docker_build {name} --check" for name in images]
    project.github.github = {"event_name": "workflow_dispatch", "actor": "somebody"}
    built = {"build": JobResult("success")}
    results = run(project, "images", change={"secrets": {"GITHUB_TOKEN": "t0ken"}}, results=built)
    assert results["push"].result == "success", collect_log(results)
    assert project.called[:2] == [
        "docker login ghcr.io --username somebody --password-stdin",
        "stdin: t0ken",
    ]
    name = "ghcr.io/somebody/project/full:latest"
    assert project.ran[-1] == "docker_build full"
    assert project.called[-2:] == [
        f"docker tag executorch-qnn-ci/full:latest {name}",
        f"docker push {name}",
    ]
    assert not (results["push"].runs[0].setting.temp / "docker").exists()
    project.end_with({"docker_build": {"code": 1}})
    document = read_workflow("images")
    matrix = document.data["jobs"]["build"]["strategy"]["matrix"]
    matrix["image"] = matrix["image"][:1]
    assert list_results(project.github.run_document(document)) == {
        "build": "failure",
        "push": "skipped",
    }


DIST = {
    "dist/executorch_qnn_ci-1.2.3.tar.gz": "x",
    "dist/executorch_qnn_ci-1.2.3-py3-none-any.whl": "x",
    "dist/sbom.cdx.json": "{}",
    "build/site/index.html": "x",
}


@pytest.mark.parametrize(("tag", "result"), [("v1.2.3", "success"), ("v1.2.4", "failure")])
def test_a_release_is_published_only_if_its_tag_is_the_version(
    project: Project, tag: str, result: str
) -> None:
    project.end_with({"release": {"code": 0, "writes": DIST}})
    project.github.github = {"ref": f"refs/tags/{tag}", "ref_name": tag}
    results = run(project, "release")
    assert results["build"].result == result, collect_log(results)
    assert results["publish"].result == ("success" if result == "success" else "skipped")
    if result == "success":
        fresh, line = project.called
        assert fresh == "sudo .ci/fresh"
        assert line.startswith("gh release create v1.2.3 dist/")
        assert "sbom.cdx.json" in line
        attested = [
            attest_inputs
            for name, attest_inputs in project.github.services.calls
            if "attest" in name
        ]
        assert [bool(attest_inputs.get("sbom-path")) for attest_inputs in attested] == [False, True]


def test_a_release_that_fails_on_a_bare_machine_is_not_published(project: Project) -> None:
    project.end_with({"release": {"code": 0, "writes": DIST}})
    project.github.github = {"ref": "refs/tags/v1.2.3", "ref_name": "v1.2.3"}
    project.github.variables["FRESH_CODE"] = "3"
    expected_results = {"build": "success", "fresh": "failure", "publish": "skipped"}
    assert list_results(run(project, "release")) == expected_results
    assert project.called == ["sudo .ci/fresh"]


def test_the_sign_workflow_requires_unsigned_inputs_and_does_not_sign_for_a_pull_request(
    project: Project,
) -> None:
    """The skels are real, and so are their verification and the dry run."""
    core = project.folder / ".nox" / "core" / "bin"
    core.mkdir(parents=True)
    words = 'import os, sys; sys.path.insert(0, os.environ["PROJECT"])'
    (core / "python").write_text(
        f"#!{sys.executable}\n{words}\nimport runpy\nsys.argv.pop(0)\nsys.argv.pop(0)\n"
        "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)\n"
    )
    (core / "python").chmod(0o755)
    commit(project.folder, "an environment")
    project.github.variables |= {
        "QNN_CI_HOME": str(store_home()),
        "QNN_CI_MANIFESTS": str(ROOT / "manifests"),
    }
    project.github.github = {"event_name": "pull_request", "ref": "refs/pull/1/merge"}
    results = run(project, "sign")
    assert list_results(results) == {"inputs": "success", "sign": "skipped"}, collect_log(results)


SIGNED = {
    "signed/libQnnLpaiSkel.so": "ELF",
    "signed/signing.json": "{}",
    "signed/statement.intoto.json": "{}",
    "signed/signer.log": "",
}


@pytest.mark.parametrize(
    ("inputs", "vars_", "words"),
    [
        ({"direct_mode": False}, {}, "--lpai-arch v6 --out signed --force"),
        (
            {"direct_mode": True},
            {"SKEL_SIGNER": "s {input}"},
            "--lpai-arch v6 --out signed --force --direct-mode --htp-arch v81 --signer s {input}",
        ),
    ],
)
def test_a_manual_sign_run_signs_verifies_and_keeps_only_the_record(
    project: Project, inputs: dict[str, bool], vars_: dict[str, str], words: str
) -> None:
    document = read_workflow("sign")
    document.data["jobs"]["inputs"]["steps"] = [{"run": "true"}]  # has its own test
    project.end_with({"sign_skel": {"code": 0, "writes": SIGNED}, "qnn_ci sign": {"code": 0}})
    project.github.github = {"event_name": "workflow_dispatch"}
    results = project.github.run_document(
        document, inputs=inputs, change={"vars": vars_, "secrets": {"SKEL_SIGNER_TOKEN": "t"}}
    )
    assert list_results(results) == {"inputs": "success", "sign": "success"}, collect_log(results)
    assert project.ran == [f"sign_skel {words}", "qnn_ci sign --verify signed"]
    record = project.github.services.artifacts["signing-record"]
    assert not list(record.rglob("*.so"))  # the libraries are Qualcomm's


# -- qnn-ci.yml, called by others ------------------------------------------------------------------

CALLER = """
    on: pull_request
    permissions: {}
    jobs:
      models:
        permissions: { contents: read }
        uses: ./.github/workflows/qnn-ci.yml
        with: { models: "net.py:one\\nnet.py:two\\n", policy: qnn.toml, requirements: more.txt }
"""


def test_another_repository_tests_its_models_with_one_workflow_call(caller: GitHub) -> None:
    """QNN, the doctor and setup-qnn are real; pip and the run of the models are not."""
    del caller.variables["QUICK_SETUP"]
    results = caller.run(CALLER)
    assert list_results(results) == {"models": "success"}, collect_log(results)
    artifact = caller.services.artifacts["qnn-ci"]
    words = json.loads(next(artifact.rglob("words.json")).read_text())
    models = ["--model", "net.py:one", "--model", "net.py:two", "--policy", "qnn.toml"]
    assert words == [*models, "--sarif", "reports/failures.sarif"]
    assert caller.services.caches == []


@pytest.mark.parametrize(
    ("lane", "result"),
    [
        pytest.param("onnx", "success", marks=pytest.mark.nightly),
        ("litert", "success"),
        ("llama", "failure"),
    ],
)
def test_the_lane_input_selects_the_session(caller: GitHub, lane: str, result: str) -> None:
    results = caller.run(CALLER.replace("policy: qnn.toml", f"policy: qnn.toml, lane: {lane}"))
    assert list_results(results) == {"models": result}, collect_log(results)
    artifact = caller.services.artifacts.get("qnn-ci")
    names = [path.parent.name for path in artifact.rglob("words.json")] if artifact else []
    assert names == ([f"test_{lane}"] if result == "success" else [])


def test_a_pull_request_is_compared_with_the_last_green_run_of_the_default_branch(
    caller: GitHub,
) -> None:
    pull_request = caller.github
    caller.github = {"event_name": "push", "ref": "refs/heads/main"}
    results = caller.run(CALLER)
    assert list_results(results) == {"models": "success"}, collect_log(results)
    (key,) = [cache.key for cache in caller.services.caches if "base" in cache.key]
    caller.github = pull_request
    caller.services.artifacts.clear()
    results = caller.run(CALLER)
    assert list_results(results) == {"models": "success"}, collect_log(results)
    words = json.loads(next(caller.services.artifacts["qnn-ci"].rglob("words.json")).read_text())
    assert words[-4:-2] == ["--base", ".qnn-ci-base/report.json"]
    assert [cache.key for cache in caller.services.caches if "base" in cache.key] == [key]
    results = caller.run(CALLER.replace("with: {", "with: { name: qnn,"))  # of another call
    assert list_results(results) == {"models": "success"}, collect_log(results)
    words = json.loads(next(caller.services.artifacts["qnn"].rglob("words.json")).read_text())
    assert "--base" not in words


SCANNING = """
      scan:
        needs: models
        if: always()
        permissions: { actions: read, contents: read, security-events: write }
        uses: ./.github/workflows/code-scanning.yml
"""


@pytest.mark.parametrize("repository", ["somebody/project", "fork/project"])
def test_failures_of_models_are_shown_in_code_scanning(caller: GitHub, repository: str) -> None:
    pull_request = {"head": {"repo": {"full_name": repository}}, "user": {"login": "somebody"}}
    caller.github["event"] = {
        "repository": {"private": False, "default_branch": "main"},
        "pull_request": pull_request,
    }
    caller.variables["QUICK_CODE"] = "1"
    results = caller.run(CALLER.rstrip() + SCANNING)
    assert list_results(results) == {"models": "failure", "scan": "success"}, collect_log(results)
    scans = {"qnn-ci/failures.sarif": ["a failure"]} if repository.startswith("some") else {}
    assert caller.services.scanned == scans


SIGNING = """
      evidence:
        needs: models
        permissions: { id-token: write, attestations: write }
        uses: ./.github/workflows/evidence.yml
"""


@pytest.mark.parametrize(("event", "signs"), [("push", True), ("pull_request", False)])
def test_evidence_is_signed_where_the_caller_permits_it(
    caller: GitHub, event: str, signs: bool
) -> None:
    caller.github["event_name"] = event
    caller.variables["QUICK_EVIDENCE"] = "1"
    results = caller.run(CALLER.rstrip() + SIGNING)
    ended = {"models": "success", "evidence": "success"}
    assert list_results(results) == ended, collect_log(results)
    assert ("qnn-ci-signature" in caller.services.artifacts) is signs


def test_a_runner_too_old_to_know_the_workflows_commit_is_refused(caller: GitHub) -> None:
    caller.job = {}
    results = caller.run(CALLER)
    assert list_results(results) == {"models": "failure"}
    assert "use a newer runner" in collect_log(results)
