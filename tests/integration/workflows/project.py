"""A small project on a GitHub of stand-ins, with a ./nox that is quick."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.integration.workflows.conftest import GitHub, commit
from tests.stand_ins.actions import git
from tests.stand_ins.quick_programs import make_program
from tests.stand_ins.small_project import FILES
from tests.workflows.document import ROOT, Document, read_document


class Project:
    """The repository, and what its sessions will come to."""

    def __init__(self, github: GitHub, programs: Path) -> None:
        self.github = github
        self.folder = github.services.repository
        self.outcomes = github.folder / "outcomes.json"
        for name, text in {**FILES, ".ci/packages": "#!/bin/sh\n"}.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)
        for name in ("nox", ".ci/packages"):
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
        self.end_with({})

    def reset(self) -> None:
        """As it was made, for the next test; what was built for it is kept."""
        git(self.folder, "reset", "-q", "--hard", self.made)
        self.github.github = {}
        self.end_with({})

    def end_with(self, outcomes: dict[str, Any]) -> None:
        """What sessions come to; those that are not named pass."""
        self.outcomes.write_text(json.dumps(outcomes))

    def change(self, *names: str, text: str = "\n# changed\n") -> None:
        """A pull request that appends to files; the base stays the commit before it."""
        self.base = git(self.folder, "rev-parse", "HEAD").strip()
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

    def forget(self) -> None:
        """As if nothing had run; the artifacts of a run are its own."""
        self.outcomes.with_suffix(".log").unlink(missing_ok=True)
        self.github.services.artifacts.clear()
        self.github.services.scanned.clear()


def read_workflow(name: str) -> Document:
    """A workflow of this project."""
    return read_document(ROOT / ".github" / "workflows" / f"{name}.yml")
