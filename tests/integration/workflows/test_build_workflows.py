"""qnn-build.yml and qnn-parity.yml, called by a fork of ExecuTorch: each run block in a shell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioning.manifest.reader import read_toolchain
from tests.integration.workflows.project import (
    GitHub,
    collect_log,
    commit,
    list_results,
    make_github,
)
from tests.integration.workflows.test_examples import FORK, call_own
from tests.stand_ins.actions import git

BUILD = """
    on: pull_request
    permissions: {}
    jobs:
      runner:
        permissions: { contents: read }
        uses: ./.github/workflows/qnn-build.yml
        with: { target: android, accept-licence: qnn-sdk, parity: strict }
"""
PARITY = """
    on: pull_request
    permissions: {}
    jobs:
      parity:
        permissions: { contents: read }
        uses: ./.github/workflows/qnn-parity.yml
"""
# Instead of setup-qnn, whose own tests provision: what it leaves on PATH.
ACTION = """\
name: Set up QNN
description: A stand-in
inputs:
  profile: { description: a }
  extras: { description: a }
  cache: { description: a }
  mirror: { description: a }
  accept-licence: { description: a }
runs:
  using: composite
  steps:
    - shell: bash
      env:
        PROFILE: ${{ inputs.profile }} ${{ inputs.accept-licence }}
      run: |
        python3 -m venv "$RUNNER_TEMP/quick"
        echo "$RUNNER_TEMP/quick/bin" >> "$GITHUB_PATH"
        echo "$PROFILE" > executorch/profile
"""
TARGETS = """\
load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")

def define():
    runtime.cxx_library(name = "backend", srcs = ["runtime/Backend.cpp"])
"""
CMAKE = "project(executorch)\nadd_subdirectory(backends/qualcomm)\n"
KNOWN = read_toolchain("executorch").components
SUBMODULES = {*KNOWN["adaptor"], *KNOWN["runner"]}
FILES = {
    "CMakeLists.txt": CMAKE,
    "NOTES.md": "a fork\n",
    "backends/qualcomm/BUCK": 'load(":targets.bzl", "define")\n\ndefine()\n',
    "backends/qualcomm/targets.bzl": TARGETS,
    "backends/qualcomm/CMakeLists.txt": "add_library(backend runtime/Backend.cpp)\n",
    "backends/qualcomm/runtime/Backend.cpp": "int backend() { return 1; }\n",
    **{f"{path}/README": "stands in for a submodule\n" for path in SUBMODULES},
}


@pytest.fixture
def fork(caller: GitHub, tmp_path: Path) -> GitHub:
    """A fork of a small ExecuTorch, whose pull request has yet to change something."""
    own_repository = tmp_path / "own"
    (own_repository / ".github/actions").unlink()
    action = own_repository / ".github/actions/setup-qnn/action.yml"
    action.parent.mkdir(parents=True)
    action.write_text(ACTION)
    caller.job["workflow_sha"] = commit(own_repository, "with a stand-in")
    change(caller, FILES)
    return caller


@pytest.fixture
def nested(fork: GitHub, tmp_path: Path) -> GitHub:
    """An app's repository with ExecuTorch as a submodule, which has submodules of its own."""
    (fork.folder / "home" / ".gitconfig").write_text('[protocol "file"]\n\tallow = always\n')
    part, executorch = (make_github(tmp_path / name) for name in ("part", "executorch"))
    files = {name: text for name, text in FILES.items() if not name.endswith("/README")}
    link_submodules(executorch, part, *SUBMODULES, "backends/vulkan/third-party/large")
    change(executorch, files)
    folder, url = fork.services.repository, executorch.services.repository.as_uri()
    git(folder, "submodule", "--quiet", "add", url, "deps/executorch")
    commit(folder, "a submodule")
    return fork


def link_submodules(github: GitHub, submodule: GitHub, *paths: str) -> None:
    """Stage a repository as submodules of another, as `git submodule add` does, which clones it for
    each of them."""
    folder, source = github.services.repository, submodule.services.repository
    head = git(source, "rev-parse", "HEAD").strip()
    sections = (
        f'[submodule "{path}"]\n\tpath = {path}\n\turl = {source.as_uri()}\n' for path in paths
    )
    (folder / ".gitmodules").write_text("".join(sections))
    for path in paths:
        (folder / path).mkdir(parents=True)  # or `git add --all` would stage their removal
    entries = [f"160000,{head},{path}" for path in paths]
    words = [word for entry in entries for word in ("--cacheinfo", entry)]
    git(folder, "update-index", "--add", *words)


def change(github: GitHub, files: dict[str, str]) -> None:
    folder = github.services.repository
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    commit(folder, "a change")


def list_words(fork: GitHub) -> list[list[str]]:
    artifacts = fork.services.artifacts.values()
    return [
        json.loads(path.read_text())
        for artifact in artifacts
        for path in artifact.rglob("words.json")
    ]


def test_a_change_of_the_backend_builds_the_runner_with_parity(fork: GitHub) -> None:
    change(fork, {"backends/qualcomm/runtime/Backend.cpp": "int backend() { return 2; }\n"})
    results = fork.run(BUILD)
    assert list_results(results) == {"runner": "success"}, collect_log(results)
    assert list_words(fork) == [["android", "--parity", "strict"]]
    names = {path.name for path in fork.services.artifacts["qnn-build-android"].rglob("*")}
    assert {"runner", "runner.debug"} <= names


def test_a_docs_only_change_builds_nothing_unless_only_needed_is_false(fork: GitHub) -> None:
    change(fork, {"NOTES.md": "still a fork\n"})
    results = fork.run(BUILD)
    assert list_results(results) == {"runner": "success"}, collect_log(results)
    assert list_words(fork) == []
    results = fork.run(BUILD.replace("parity: strict", "only-needed: false"))
    assert list_results(results) == {"runner": "success"}, collect_log(results)
    assert list_words(fork) == [["android", "--parity", "on"]]


def test_executorch_may_be_a_submodule(nested: GitHub) -> None:
    folder = nested.services.repository
    (folder / "deps/executorch/NOTES.md").write_text("newer\n")
    commit(folder / "deps/executorch", "a newer ExecuTorch")
    git(folder / "deps/executorch", "push", "--quiet", "origin", "HEAD:refs/heads/newer")
    commit(folder, "take it")
    call = BUILD.replace("parity: strict", "source: deps/executorch")
    results = nested.run(call)
    assert list_results(results) == {"runner": "success"}, collect_log(results)
    assert list_words(nested) == [["android", "--parity", "on"]]
    root = nested.folder / "machine/workspace/executorch/deps/executorch"
    assert (root / "NOTES.md").read_text() == "newer\n"
    assert {path for path in SUBMODULES if (root / path / "net.py").is_file()} == SUBMODULES
    assert not any((root / "backends/vulkan/third-party/large").iterdir())
    nested.services.artifacts.clear()
    change(nested, {"app.cpp": "// another file\n"})
    results = nested.run(call)
    assert list_results(results) == {"runner": "success"}, collect_log(results)
    assert list_words(nested) == []
    results = nested.run(call.replace("deps/", "gone/"))
    assert list_results(results) == {"runner": "failure"}
    assert "the input source must be a directory" in collect_log(results)


def test_a_pull_request_restores_the_compiler_cache_of_a_push(fork: GitHub) -> None:
    request = dict(fork.github)
    fork.github = {"event_name": "push", "ref": "refs/heads/main"}
    fork.variables["QUICK_CCACHE"] = "an object"
    assert list_results(fork.run(BUILD)) == {"runner": "success"}
    fork.variables["QUICK_CCACHE"] = ""
    fork.github = request
    change(fork, {"backends/qualcomm/runtime/Backend.cpp": "int backend() { return 2; }\n"})
    for target, expected in (("android", ["an object"]), ("linux", [])):
        fork.services.artifacts.clear()
        results = fork.run(BUILD.replace("android", target))
        assert list_results(results) == {"runner": "success"}, collect_log(results)
        workspace = fork.folder / "machine/workspace"
        assert [path.read_text() for path in workspace.glob(".ccache/*")] == expected
    assert len(fork.services.caches) == 1  # a pull request saves none


def test_the_documented_workflow_builds_a_runner_for_a_fork(fork: GitHub) -> None:
    change(fork, {"backends/qualcomm/runtime/Backend.cpp": "int backend() { return 2; }\n"})
    results = fork.run(call_own(FORK, fork.job["workflow_sha"]))
    assert list_results(results) == {"runner": "success", "parity": "success"}, collect_log(results)
    assert list_words(fork) == [["android", "--parity", "on"]]


def test_the_build_workflow_of_a_fork_makes_no_overlay_of_the_adaptor(fork: GitHub) -> None:
    fork.github = {"event_name": "push", "ref": "refs/heads/main"}
    results = fork.run(BUILD.replace("android", "aot"))
    assert list_results(results) == {"runner": "success"}, collect_log(results)
    assert list_words(fork) == [["aot", "--parity", "strict", "--install", "none"]]


def test_a_build_that_fails_is_red_and_an_unknown_target_is_refused(fork: GitHub) -> None:
    fork.github = {"event_name": "push", "ref": "refs/heads/main"}
    fork.variables["QUICK_CODE"] = "1"
    assert list_results(fork.run(BUILD)) == {"runner": "failure"}
    results = fork.run(BUILD.replace("target: android", "target: ios"))
    assert list_results(results) == {"runner": "failure"}
    assert "android, linux or aot" in collect_log(results)


@pytest.mark.parametrize("listed", [True, False])
def test_the_parity_workflow_fails_only_for_drift_that_the_pull_request_adds(
    fork: GitHub, listed: bool
) -> None:
    old_source = {"backends/qualcomm/runtime/Old.cpp": "int old() { return 1; }\n"}
    cmake = "add_library(backend runtime/Backend.cpp runtime/Old.cpp)\n"
    change(fork, {**old_source, "backends/qualcomm/CMakeLists.txt": cmake})
    if listed:  # what was apart before does not count
        change(fork, {"NOTES.md": "more\n"})
    results = fork.run(PARITY)
    expected = "success" if listed else "failure"
    assert list_results(results) == {"parity": expected}, collect_log(results)
    sarif = next(fork.services.artifacts["qnn-parity"].rglob("parity.sarif")).read_text()
    assert ("Old.cpp" in sarif) is not listed
    assert git(fork.services.repository, "status", "--porcelain") == ""
