"""A GitHub of stand-ins for the tests of workflows, with a project that is made once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioning.store.home import store_home
from tests.integration.workflows.project import (
    GitHub,
    Project,
    commit,
    make_github,
    put_on_path,
    write_program,
)
from tests.stand_ins import quick_programs
from tests.stand_ins.actions import git
from tests.stand_ins.quick_programs import make_program
from tests.workflows.document import ROOT

# Instead of python3: an environment that imports what the tests do, made in no time. Its pip
# does nothing, and its qnn-ci runs no model.
QUICK_PYTHON = """#!/bin/sh
set -eu
if [ "$2" != venv ]; then exec {python} "$@"; fi
for folder in "$@"; do :; done
mkdir -p "$folder/bin"
echo '#!/bin/sh' > "$folder/bin/python"
echo 'if [ "$2" = pip ]; then exit 0; fi; exec {python} "$@"' >> "$folder/bin/python"
chmod +x "$folder/bin/python"
ln -sf {program} "$folder/bin/qnn-ci"
"""
# A program that writes down how it was called, and what it was given.
RECORDER = """#!/bin/sh
echo "$(basename "$0") $*" >> {log}
if [ "$1" = login ]; then echo "stdin: $(cat)" >> {log}; fi
if [ "$1 $2" = "pr list" ]; then echo "${{OPEN:-0}}"; fi
if [ -n "${{DOCKER_CONFIG:-}}" ]; then touch "$DOCKER_CONFIG/config.json"; fi
if [ "$1" = .ci/fresh ]; then exit "${{FRESH_CODE:-0}}"; fi
"""


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where quick programs are served."""
    with quick_programs.run_server(tmp_path_factory.mktemp("server")) as address:
        yield address


@pytest.fixture(scope="session")
def quick_python(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Path:
    """A python3 that makes environments without pip."""
    folder = tmp_path_factory.mktemp("python")
    program = write_program(folder / "qnn-ci", make_program(programs, "tests.stand_ins.quick_run"))
    text = QUICK_PYTHON.format(python=sys.executable, program=program)
    return write_program(folder / "quick-python", text)


@pytest.fixture
def github(tmp_path: Path) -> GitHub:
    """An empty repository of somebody's, with its ``main``."""
    return make_github(tmp_path)


@pytest.fixture(scope="session")
def made_project(
    tmp_path_factory: pytest.TempPathFactory, programs: Path, quick_python: Path
) -> Project:
    """The small project, whose ``python3``, ``gh``, ``docker`` and ``sudo`` are stand-ins."""
    github = make_github(tmp_path_factory.mktemp("project"))
    put_on_path(github, "python3", quick_python.read_text())
    for name in ("gh", "docker", "sudo"):
        put_on_path(github, name, RECORDER.format(log=github.folder / "programs.log"))
    return Project(github, programs)


@pytest.fixture
def project(made_project: Project) -> Project:
    """The small project as it was made."""
    made_project.reset()
    return made_project


@pytest.fixture
def caller(project: Project, tmp_path: Path) -> GitHub:
    """A user's repository that calls qnn-ci.yml, with a folder ci/ of its own. What is in the store
    is not examined in its runs."""
    own_repository = tmp_path / "own"
    (own_repository / ".github").mkdir(parents=True)
    (own_repository / ".github" / "actions").symlink_to(ROOT / ".github" / "actions")
    for name in ("pyproject.toml", ".ci", "manifests"):
        (own_repository / name).symlink_to(ROOT / name)
    git(own_repository, "init", "--quiet")
    git(own_repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    head = commit(own_repository, "qnn-ci")
    github = project.github
    github.services.other_repositories["somebody/executorch-qnn-ci"] = own_repository
    github.github = {"event_name": "pull_request", "ref": "refs/pull/1/merge"}
    github.variables |= {
        "QNN_CI_HOME": str(store_home()),
        "QNN_CI_MANIFESTS": str(ROOT / "manifests"),
        "QUICK_SETUP": "1",
    }
    github.job = {"workflow_repository": "somebody/executorch-qnn-ci", "workflow_sha": head}
    return github
