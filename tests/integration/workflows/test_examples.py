"""The examples of docs/guides/ci.md: GitHub's run here, GitLab's and Jenkins's lines in a shell."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest
import yaml

from tests.integration.workflows.project import GitHub, collect_log, commit, list_results
from tests.workflows.document import ROOT
from tests.workflows.lint import check_schema

PAGE = (ROOT / "docs" / "guides" / "ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?ms)^```(yaml|groovy)\n(.*?)^```", PAGE)
YAML = [text for kind, text in BLOCKS if kind == "yaml"]
(JENKINS,) = (text for kind, text in BLOCKS if kind == "groovy")
CALL, SCAN, FORK, ACTION, GITLAB = YAML
# qnn-ci and pip, as far as an example needs them.
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
case "$1" in setup) [ "${UNFIT:-}" ] && exit 3; echo 'export QNN_SDK_ROOT=/sdk';; esac
case "$1" in test-emulator) echo "with $QNN_SDK_ROOT" >> "$LOG"; exit "${QUICK_CODE:-0}";; esac
"""


@pytest.mark.parametrize(
    ("kind", "texts"), [("github-workflows", (CALL, SCAN, FORK, ACTION)), ("gitlab-ci", (GITLAB,))]
)
def test_the_examples_fit_their_schema(tmp_path: Path, kind: str, texts: tuple[str, ...]) -> None:
    paths = [tmp_path / f"example-{number}.yml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    assert check_schema(f"vendor.{kind}", paths) == []


def call_own(text: str, commit: str) -> str:
    """An example that calls the workflows of this tree."""
    text = text.replace("OWNER/REPOSITORY", "somebody/executorch-qnn-ci")
    text = text.replace("COMMIT # VERSION", commit)
    text = text.replace("somebody/executorch-qnn-ci/.github/workflows", "./.github/workflows")
    return text.replace(f".yml@{commit}", ".yml")


@pytest.mark.parametrize("text", [CALL, SCAN, ACTION], ids=["workflow", "scan", "action"])
def test_each_workflow_that_the_pages_show_runs_green(caller: GitHub, text: str) -> None:
    repository = caller.services.repository
    (repository / "requirements.txt").write_text("")
    commit(repository, "what the models import")
    head = caller.job["workflow_sha"]
    results = caller.run(call_own(text, head))
    assert set(list_results(results).values()) == {"success"}, collect_log(results)


def lines_of(kind: str) -> str:
    if kind == "gitlab":
        return "set -e\n" + "\n".join(yaml.safe_load(GITLAB)["models"]["script"])
    (script,) = re.findall(r"(?s)sh '''\n(.*?)'''", JENKINS)
    return textwrap.dedent(script)


@pytest.mark.parametrize("kind", ["gitlab", "jenkins"])
@pytest.mark.parametrize(("variable", "code"), [("", 0), ("UNFIT", 3), ("QUICK_CODE", 1)])
def test_the_gitlab_and_jenkins_examples_stop_at_the_first_failure(
    tmp_path: Path, kind: str, variable: str, code: int
) -> None:
    for name in ("qnn-ci", "pip"):
        (tmp_path / name).write_text(PROGRAM)
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").touch()
    (tmp_path / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "python3").chmod(0o755)
    log = tmp_path / "log"
    env = {**os.environ, "LOG": str(log), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    env |= {variable: "1"} if variable else {}
    finished = subprocess.run(["sh", "-c", lines_of(kind)], cwd=tmp_path, env=env, check=False)
    assert finished.returncode == code
    logged = log.read_text().splitlines()
    assert "executorch-qnn-ci[lowering]" in logged[0]
    assert ("with /sdk" in logged) == (variable != "UNFIT")
