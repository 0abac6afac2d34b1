"""The examples of docs/ci.md: GitHub's run here, GitLab's and Jenkins's lines in a shell."""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest
import yaml

from tests.integration.workflows.conftest import GitHub, commit
from tests.integration.workflows.test_others import caller, ended, project, say
from tests.workflows.document import ROOT
from tests.workflows.lint import check_schema

__all__ = ["caller", "project"]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?ms)^```(yaml|groovy)\n(.*?)^```", PAGE)
YAML = [text for kind, text in BLOCKS if kind == "yaml"]
(JENKINS,) = (text for kind, text in BLOCKS if kind == "groovy")
CALL, SCAN, ACTION, GITLAB = YAML
# qnn-ci and pip, as far as an example needs them.
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >> "$LOG"
case "$1" in setup) [ "${UNFIT:-}" ] && exit 3; echo 'export QNN_SDK_ROOT=/sdk';; esac
case "$1" in test-emulator) echo "with $QNN_SDK_ROOT" >> "$LOG"; exit "${QUICK_CODE:-0}";; esac
"""


KINDS = [*((text, "github-workflows") for text in (CALL, SCAN, ACTION)), (GITLAB, "gitlab-ci")]


@pytest.mark.parametrize(("text", "kind"), KINDS)
def test_an_example_fits_its_schema(tmp_path: Path, text: str, kind: str) -> None:
    path = tmp_path / "example.yml"
    path.write_text(text)
    assert check_schema(f"vendor.{kind}", [path]) == []


@pytest.mark.parametrize("text", [CALL, SCAN, ACTION], ids=["workflow", "scan", "action"])
def test_an_example_of_github_runs(caller: GitHub, text: str) -> None:
    repository = caller.services.repository
    (repository / "requirements.txt").write_text("")
    commit(repository, "what the models import")
    head = caller.variables["HEAD_OF_QNN_CI"]
    own = {"workflow_repository": "somebody/executorch-qnn-ci", "workflow_sha": head}
    text = text.replace("OWNER", "somebody").replace("COMMIT # VERSION", head)
    text = text.replace("somebody/executorch-qnn-ci/.github/workflows", "./.github/workflows")
    results = caller.run(text.replace(f".yml@{head}", ".yml"), change={"job": own})
    assert set(ended(results).values()) == {"success"}, say(results)


def lines_of(kind: str) -> str:
    if kind == "gitlab":
        return "set -e\n" + "\n".join(yaml.safe_load(GITLAB)["models"]["script"])
    (found,) = re.findall(r"(?s)sh '''\n(.*?)'''", JENKINS)
    return textwrap.dedent(found)


@pytest.mark.parametrize("kind", ["gitlab", "jenkins"])
@pytest.mark.parametrize(("variable", "code"), [("", 0), ("UNFIT", 3), ("QUICK_CODE", 1)])
def test_the_lines_of_others_stop_at_what_fails(
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
    said = log.read_text().splitlines()
    assert "executorch-qnn-ci[lowering]" in said[0]
    assert ("with /sdk" in said) == (variable != "UNFIT")
