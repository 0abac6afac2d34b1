"""The commit, branch and request that a report names, as CI systems and git give them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ci.cases.session import read_source
from ci.report.schema import Source


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is in no repository, as the caller's."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_pull_request_is_named_with_the_commit_that_its_author_made(outside: Path) -> None:
    event = outside / "event.json"
    event.write_text(json.dumps({"pull_request": {"head": {"sha": "b" * 40}}}))
    environ = {
        "GITHUB_SHA": "a" * 40,
        "GITHUB_REF": "refs/pull/42/merge",
        "GITHUB_REF_NAME": "42/merge",
        "GITHUB_HEAD_REF": "topic",
        "GITHUB_EVENT_PATH": str(event),
    }
    source = Source(commit="b" * 40, branch="topic", pull_request="42")
    assert read_source(environ) == source
    assert str(source) == f"pull request 42, topic, commit {'b' * 10}"
    for text in ("[]", "{", "{}", '{"pull_request": {}}'):
        event.write_text(text)
        assert read_source(environ).commit == "a" * 40
    event.unlink()
    assert read_source(environ).commit == "a" * 40
    os.mkfifo(event)
    assert read_source(environ).commit == "a" * 40
    assert read_source({**environ, "GITHUB_REF": "refs/heads/a/pull/42/merge"}).pull_request == ""


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("environ", "source"),
    [
        (
            {"GITHUB_SHA": "a", "GITHUB_REF": "refs/heads/main", "GITHUB_REF_NAME": "main"},
            Source(commit="a", branch="main"),
        ),
        (
            {"CI_COMMIT_SHA": "a", "CI_COMMIT_REF_NAME": "b", "CI_MERGE_REQUEST_IID": "3"},
            Source(commit="a", branch="b", pull_request="3"),
        ),
        (
            {"GIT_COMMIT": "a", "BRANCH_NAME": "PR-4", "CHANGE_ID": "4"},
            Source(commit="a", branch="PR-4", pull_request="4"),
        ),
        ({}, Source()),
    ],
)
def test_commit_branch_and_pull_request_are_read_from_each_ci_systems_variables(
    environ: dict[str, str], source: Source
) -> None:
    assert read_source(environ) == source


def test_outside_ci_commit_and_branch_come_from_git_in_the_callers_directory(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.invalid"]
    for words in (["init", "-qb", "topic"], [*who, "commit", "-q", "--allow-empty", "-m", "a"]):
        subprocess.run(["git", *words], cwd=outside, check=True)
    source = read_source({})
    assert (len(source.commit), source.branch) == (40, "topic")
    environ = {"GITHUB_SHA": "a", "GITHUB_REF_NAME": "b"}
    assert read_source(environ) == Source(commit="a", branch="b")
    assert read_source({"GIT_COMMIT": "a"}) == Source(commit="a", branch="topic")
    monkeypatch.setenv("PATH", str(outside))  # there is no git
    assert read_source({}) == Source()
