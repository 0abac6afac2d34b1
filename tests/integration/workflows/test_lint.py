"""Each rule and each linter finds the fault that it is there for, in the project's own files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.workflows.document import GITHUB, ROOT, read_all, read_document
from tests.workflows.lint import check_block, check_schema, lint, list_scripts, run_linter
from tests.workflows.rules import ACTIONS, PINNED, RULES, judge_document, list_uses

PR, RELEASE = "workflows/pr.yml", "workflows/release.yml"
NIGHTLY = "workflows/nightly.yml"
ACTION = "actions/setup-qnn/action.yml"
CHECKOUT = "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1"

# (file, what stands there, what a careless change makes of it, what is said)
OWN = [
    (PR, f"{CHECKOUT} # v7.0.1", "actions/checkout@v7", "is not pinned by a commit"),
    (PR, f"{CHECKOUT} # v7.0.1", CHECKOUT, "has no version in a comment"),
    (PR, "@3d3c42e5", "@00000000", "is not in tests/workflows/actions.toml"),
    (PR, "          persist-credentials: false\n", "", "keeps the token"),
    (PR, "persist-credentials: false", "persist-credentials: true", "keeps the token"),
    (PR, "permissions: {}\n", "", "permissions: {} is missing"),
    (PR, "permissions: {}\n", "permissions: write-all\n", "permissions: {} is missing"),
    (
        PR,
        "    permissions:\n      contents: read # to check out\n",
        "",
        "no permissions of its own",
    ),
    (PR, "      contents: read", "      contents: write", "a pull request's job may write"),
    (PR, "    timeout-minutes: 10\n", "", "timeout-minutes is missing"),
    (PR, "    timeout-minutes: 10\n", "    timeout-minutes: 600\n", "or over 120"),
    (PR, "concurrency:\n", "env:\n", "concurrency is missing"),
    (PR, "github.event_name == 'push' && github.sha || ", "", "each push needs a group"),
    (PR, "      actions: read # upload", "      # upload", "code scanning needs actions: read"),
    (PR, "  pull_request:\n", "  pull_request_target:\n", "for what others wrote"),
    (PR, "words=(--head", "t=${{ github.event.pull_request.title }}; words=(--head", "through env"),
    (PR, "    shell: bash", "    shell: sh", "a failure in a pipe is not one"),
    (PR, 'exit "$code"', "exit 0", "a failure is thrown away"),
    (PR, "run: .ci/packages", "run: .ci/packages || true", "a failure is thrown away"),
    (
        PR,
        "        run: .ci/p",
        "        continue-on-error: true\n        run: .ci/p",
        "hides a fail",
    ),
    (PR, "    if: always()\n    runs", "    if: success()\n    runs", "does not run always()"),
    (PR, "needs: [plan, run]", "needs: plan", "does not wait for run"),
    (PR, "BASE: ${{", "TOKEN: ${{ secrets.TOKEN }}\n          BASE: ${{", "a secret outside"),
    (
        NIGHTLY,
        "        if: always()\n        with:\n          name: ${{ matrix.job }}\n",
        "        with:\n          name: ${{ matrix.job }}\n",
        "night: the last step does not upload its reports",
    ),
    (RELEASE, "    environment: release\n", "", "id-token outside of a protected environment"),
    (ACTION, "key: ${{ steps", "key: ${{ github.ref_name }}-${{ steps", "not by a branch"),
    (ACTION, "shell: bash\n", "shell: bash # zizmor: ignore[github-env]\n", "without a reason"),
]

SHELL = [
    (PR, "          WORDS: ${{ matrix.words }}\n", "", "WORDS is referenced but not assigned"),
    (PR, 'nox -s "$SESSION"', "nox -s $SESSION", "SC2086"),
    (ACTION, '"$PYTHON" -m venv', '"$PYTON" -m venv', "PYTON is referenced but not assigned"),
    (ACTION, 'if ! grep -qxF -- "$extra"', "if ! grep -qxF -- $extra", "SC2086"),
]

ZIZMOR = [
    (PR, "    steps:\n", "    container: ubuntu:latest\n    steps:\n", "unpinned-images"),
    (PR, "    runs-on: ubuntu-24.04", "    runs-on: [self-hosted]", "self-hosted-runner"),
    (
        ACTION,
        "        mkdir",
        '        echo "$home" >> "$GITHUB_PATH"\n        mkdir',
        "github-env",
    ),
    (PR, "words=(--head", "t='${{ github.head_ref }}'; words=(--head", "template-injection"),
    (NIGHTLY, "/pr.yml\n", "/pr.yml\n    secrets: inherit\n", "secrets-inherit"),
    ("dependabot.yml", "    cooldown:\n      default-days: 14\n", "", "dependabot-cooldown"),
]

SCHEMAS = [
    (PR, "    runs-on: ubuntu-24.04", "    run-on: ubuntu-24.04", "github-workflows"),
    (PR, "    needs: plan\n", "    need: plan\n", "github-workflows"),
    (ACTION, "using: composite", "using: composed", "github-actions"),
    ("dependabot.yml", "version: 2", "version: 3", "dependabot"),
    ("ISSUE_TEMPLATE/wrong-verdict.yml", "type: dropdown", "type: menu", "github-issue-forms"),
    ("ISSUE_TEMPLATE/config.yml", "_enabled: true", "_enabled: 7", "github-issue-config"),
]


def plant(folder: Path, fault: tuple[str, str, str, str], number: int = 0) -> Path:
    """A copy of a file with a fault in it, under a name of its own."""
    name, old, new, _ = fault
    text = (GITHUB / name).read_text(encoding="utf-8")
    assert old in text, f"{name} has no {old!r}"
    path = folder / str(number) / ".github" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize("fault", OWN, ids=lambda fault: fault[3])
def test_each_workflow_rule_finds_its_planted_fault(
    tmp_path: Path, fault: tuple[str, str, str, str]
) -> None:
    findings = judge_document(read_document(plant(tmp_path, fault)))
    assert any(fault[3] in line for line in findings), findings


@pytest.mark.parametrize("using", ["node20", "node16"])
def test_an_action_of_an_old_node_is_refused(monkeypatch: pytest.MonkeyPatch, using: str) -> None:
    documents = read_all()
    used = {
        name for document in documents for name, _ in list_uses(document) if PINNED.fullmatch(name)
    }
    assert used == ACTIONS.keys()
    old = next(action for action in used if "cache/save" in action)
    monkeypatch.setitem(ACTIONS, old, using)
    messages = [
        line.partition(": ")[2] for document in documents for line in judge_document(document)
    ]
    users = 0
    for document in documents:
        users += old in {name for name, _ in list_uses(document)}
    assert messages == [f"{old} runs on {using}, which GitHub's runners no longer have"] * users


def test_every_rule_has_a_fault_that_it_finds(tmp_path: Path) -> None:
    documents = [read_document(plant(tmp_path, fault, at)) for at, fault in enumerate(OWN)]
    for rule in RULES:
        assert any(list(rule(document)) for document in documents), rule.__name__


@pytest.mark.parametrize("fault", SHELL, ids=lambda fault: fault[3])
def test_shellcheck_checks_run_blocks_of_workflows(
    tmp_path: Path, fault: tuple[str, str, str, str]
) -> None:
    document = read_document(plant(tmp_path, fault))
    messages = "\n".join(line for block in document.run_blocks() for line in check_block(block))
    assert fault[3] in messages


def test_zizmors_strictest_persona_finds_each_planted_fault(tmp_path: Path) -> None:
    for number, fault in enumerate(ZIZMOR):
        plant(tmp_path, fault, number)
    messages = run_linter("zizmor", "--offline", "--quiet", "--persona=auditor", str(tmp_path))
    text = "\n".join(messages)
    for number, (name, _, _, rule_name) in enumerate(ZIZMOR):
        blocks = [block for block in text.split("\n\n") if f"/{number}/.github/{name}" in block]
        assert any(f"[{rule_name}]" in block for block in blocks), (rule_name, text)


def test_the_schemas_find_each_planted_workflow_fault(tmp_path: Path) -> None:
    for kind in {fault[3] for fault in SCHEMAS}:
        faults = [fault for fault in SCHEMAS if fault[3] == kind]
        files = [plant(tmp_path, fault, at) for at, fault in enumerate(faults)]
        text = "\n".join(check_schema(f"vendor.{kind}", files))
        assert all(str(path) in text for path in files), text


# -- annotations on GitHub -------------------------------------------------------------------------

# As they print them; only lint's environment has mypy and hadolint.
MYPY = "ci/a.py:7: error: Incompatible types in assignment  [assignment]"
HADOLINT = "docker/Dockerfile:7 DL3006 warning: Always tag the version of an image explicitly"


def match_line(line: str) -> list[tuple[str, int, str]]:
    """File, line and severity; the patterns are JavaScript's, in what they share with Python's."""
    matchers = json.loads((GITHUB / "lint-matcher.json").read_text())["problemMatcher"]
    annotations = []
    for matcher in matchers:
        for pattern in matcher["pattern"]:
            if match := re.fullmatch(pattern["regexp"], line):
                file, number = match[pattern["file"]], int(match[pattern["line"]])
                annotations.append((file, number, match[pattern["severity"]]))
    return annotations


def test_lint_finds_the_shell_scripts_of_the_project() -> None:
    names = {path.relative_to(ROOT).as_posix() for path in list_scripts(ROOT)}
    assert {"nox", ".ci/run", ".ci/packages", "docker/entry.sh"} <= names


def test_lint_findings_become_github_annotations_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = plant(tmp_path, ZIZMOR[0])
    folder = workflow.parents[2]
    script = folder / "docker" / "broken.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\nrm $1\n")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    messages = list(lint(folder))
    assert any("SC2086" in line for line in messages)
    annotations = [annotation for line in messages for annotation in match_line(line)]
    assert annotations == [(str(script), 2, "note")]
    assert match_line(MYPY) == [("ci/a.py", 7, "error")]
    assert match_line(HADOLINT) == [("docker/Dockerfile", 7, "warning")]
    assert any(
        line.startswith(("::error", "::warning")) and workflow.name in line for line in messages
    )
