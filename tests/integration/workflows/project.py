"""A repository on a GitHub of stand-ins, workflows that run in it, and a small project for them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.stand_ins.actions import Services, git
from tests.stand_ins.quick_programs import make_program
from tests.stand_ins.small_project import FILES
from tests.workflows.document import ROOT, Document, read_document
from tests.workflows.job import Setting
from tests.workflows.workflow import JobResult, WorkflowRun

KEPT = ("PIP_", "SSL_", "REQUESTS_", "CURL_", "LANG", "http", "HTTP", "NO_PROXY", "XDG_CONFIG_HOME")
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
    job: dict[str, str] = field(default_factory=dict)
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
            job=self.job,
        )

    def run(self, text: str, **options: Any) -> dict[str, JobResult]:
        """Run a workflow that is given as text."""
        document = Document(Path("test.yml"), yaml.safe_load(textwrap.dedent(text)))
        return self.run_document(document, **options)

    def run_document(
        self, document: Document, change: Mapping[str, Any] | None = None, **options: Any
    ) -> dict[str, JobResult]:
        setting = self.setting()
        for name, value in (change or {}).items():
            setattr(setting, name, value)
        return WorkflowRun(document, setting, **options).run()


def make_github(tmp_path: Path) -> GitHub:
    """A GitHub below a directory, with one repository."""
    repository = tmp_path / "repository"
    repository.mkdir(parents=True)
    git(repository, "init", "--quiet", "--initial-branch=main")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    (repository / "net.py").write_text("# a model\n")
    commit(repository, "begin")
    home = tmp_path / "home"
    home.mkdir()
    programs = Path(sys.executable).parent
    variables_of_machine = {
        name: value for name, value in os.environ.items() if name.startswith(KEPT)
    }
    path = f"{programs}:{os.environ['PATH']}"
    variables = {**variables_of_machine, "HOME": str(home), "PATH": path, "PYTHONPATH": ""}
    variables_of_machine.setdefault("XDG_CONFIG_HOME", str(Path.home() / ".config"))
    variables["XDG_CONFIG_HOME"] = variables_of_machine[
        "XDG_CONFIG_HOME"
    ]  # pip's index may be named there
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


class Project:
    """The repository, and what its sessions will come to."""

    def __init__(self, github: GitHub, programs: Path) -> None:
        self.github = github
        self.folder = github.services.repository
        self.outcomes = github.folder / "outcomes.json"
        scripts = (".ci/packages", ".ci/install")
        for name, text in {**FILES, **dict.fromkeys(scripts, "#!/bin/sh\n")}.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        for name in ("nox", *scripts):
            (self.folder / name).chmod(0o755)
        (self.folder / "nox").write_text(make_program(programs, "tests.stand_ins.quick_nox"))
        manifests = github.folder / "manifests"
        shutil.copytree(ROOT / "manifests", manifests)
        rules = manifests / "policies" / "gate.toml"
        text = rules.read_text()  # one Python instead of four: the same jobs, fewer of them
        text = text.replace('pythons = ["3.10", "3.11", "3.12", "3.13"]\n', "")
        rules.write_text(text.replace("shard_s = 120.0", "shard_s = 0.1"))  # a case a shard
        self.base = self.made = commit(self.folder, "the project")
        github.variables |= {
            "QUICK_NOX": str(self.outcomes),
            "PROJECT": str(ROOT),
            "QNN_CI_MANIFESTS": str(manifests),
        }
        self.variables = dict(github.variables)
        self.reset()

    @property
    def head(self) -> str:
        return git(self.folder, "rev-parse", "HEAD").strip()

    def reset(self, commit: str = "") -> None:
        """Make it what it was at first, or at a commit; plans and reports are kept."""
        git(self.folder, "reset", "-q", "--hard", commit or self.made)
        git(self.folder, "clean", "-ffdxq")
        for branch in git(self.folder, "branch", "--format=%(refname:short)").split():
            if branch != "main":
                git(self.folder, "branch", "-q", "-D", branch)
        self.github.github, self.github.job = {}, {}
        self.github.variables = dict(self.variables)
        self.github.services.reset()
        (self.github.folder / "programs.log").write_text("")
        self.outcomes.with_suffix(".manifests").unlink(missing_ok=True)
        self.forget()
        self.end_with({})

    def end_with(self, outcomes: dict[str, Any]) -> None:
        """What sessions come to; those that are not named pass."""
        self.outcomes.write_text(json.dumps(outcomes))

    def change(self, *names: str, text: str = "\n# changed\n") -> None:
        """A pull request that appends to files; the base stays the commit before it."""
        self.base = self.head
        for name in names:
            path = self.folder / name
            path.write_text((path.read_text() if path.is_file() else "") + text)
        commit(self.folder, "a change")
        self.github.github = {
            "event_name": "pull_request",
            "ref": "refs/pull/7/merge",
            "base_ref": "main",
            "event": {
                "repository": {"private": False, "default_branch": "main"},
                "pull_request": {
                    "base": {"sha": self.base},
                    "title": 'x"; touch pwned; echo "::error::pwned',
                },
            },
        }

    @property
    def ran(self) -> list[str]:
        """The sessions that ran since end_with."""
        log = self.outcomes.with_suffix(".log")
        return log.read_text().splitlines() if log.exists() else []

    @property
    def called(self) -> list[str]:
        """How ``gh``, ``docker`` and ``sudo`` were called."""
        return (self.github.folder / "programs.log").read_text().splitlines()

    def forget(self) -> None:
        """Forget which sessions ran."""
        self.outcomes.with_suffix(".log").unlink(missing_ok=True)


def read_workflow(name: str) -> Document:
    """A workflow of this project."""
    return read_document(ROOT / ".github" / "workflows" / f"{name}.yml")


def collect_log(results: Mapping[str, JobResult]) -> str:
    return "\n".join(run.heard.text for result in results.values() for run in result.runs)


def list_results(results: Mapping[str, JobResult]) -> dict[str, str]:
    return {name: job.result for name, job in results.items()}
