"""A repository on a GitHub of stand-ins, and workflows that run in it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.stand_ins import quick_programs
from tests.stand_ins.actions import Services, git
from tests.stand_ins.quick_programs import make_program
from tests.workflows.document import Document
from tests.workflows.job import Setting
from tests.workflows.workflow import JobResult, WorkflowRun

ROOT = Path(__file__).parents[3]
KEPT = ("PIP_", "SSL_", "REQUESTS_", "CURL_", "LANG", "http", "HTTP", "NO_PROXY", "XDG_CONFIG_HOME")
# In the place of python3: an environment that imports what the tests do, made in no time. Its pip
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
EVENT = {
    "repository": {"private": False, "default_branch": "main"},
    "pull_request": {"title": '"; touch pwned; #', "head": {"ref": "$(touch pwned)"}},
}


@dataclass
class GitHub:
    """One repository with its services; each run is on a fresh machine."""

    folder: Path
    services: Services
    variables: dict[str, str]
    github: dict[str, Any] = field(default_factory=dict)
    runs: int = 0

    def setting(self) -> Setting:
        """The surroundings of the next run."""
        self.runs += 1
        head = git(self.services.repository, "rev-parse", "HEAD").strip()
        return Setting(
            self.folder / "machine",
            {
                "event_name": "push",
                "ref": "refs/heads/main",
                "sha": head,
                "repository": "somebody/project",
                "run_id": str(self.runs),
                "run_attempt": "1",
                "workflow": "test",
                "event": EVENT,
                **self.github,
            },
            self.variables,
            self.services.actions,
        )

    def run(self, text: str, **more: Any) -> dict[str, JobResult]:
        """Run a workflow that is given as text."""
        document = Document(Path("test.yml"), yaml.safe_load(textwrap.dedent(text)))
        return self.run_document(document, **more)

    def run_document(
        self, document: Document, change: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, JobResult]:
        setting = self.setting()
        for name, value in (change or {}).items():
            setattr(setting, name, value)
        return WorkflowRun(document, setting, **more).run()


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


def make_github(tmp_path: Path) -> GitHub:
    """A GitHub below a directory, with one repository."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    (repository / "net.py").write_text("# a model\n")
    commit(repository, "begin")
    home = tmp_path / "home"
    home.mkdir()
    here = Path(sys.executable).parent
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    path = f"{here}:{os.environ['PATH']}"
    variables = {**kept, "HOME": str(home), "PATH": path, "PYTHONPATH": ""}
    kept.setdefault("XDG_CONFIG_HOME", str(Path.home() / ".config"))
    variables["XDG_CONFIG_HOME"] = kept["XDG_CONFIG_HOME"]  # pip's index may be named there
    return GitHub(tmp_path, Services(tmp_path / "services", repository), variables)


def put_on_path(github: GitHub, name: str, text: str) -> Path:
    """A program that stands in for another, first on PATH."""
    folder = github.folder / "programs"
    folder.mkdir(exist_ok=True)
    program = write_program(folder / name, text)
    if not github.variables["PATH"].startswith(str(folder)):
        github.variables["PATH"] = f"{folder}:{github.variables['PATH']}"
    return program


def write_program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def commit(repository: Path, message: str) -> str:
    """Commit all that changed; the new head."""
    git(repository, "add", "--all")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    git(repository, *who, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(repository, "rev-parse", "HEAD").strip()


def site_packages() -> str:
    """Where this Python's packages are, torch and ExecuTorch among them."""
    words = [sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
