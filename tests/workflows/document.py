"""Workflow and action files as data, with the place of every ``run`` block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"


@dataclass(frozen=True)
class RunBlock:
    """A piece of shell: where it stands, the shell that takes it ('' is GitHub's default), and the
    variables that the file sets for it."""

    file: Path
    place: str
    text: str
    shell: str
    variables: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Document:
    """A workflow, or an action.yml."""

    path: Path
    data: Mapping[str, Any]

    @property
    def is_action(self) -> bool:
        return "runs" in self.data

    @property
    def triggers(self) -> Mapping[str, Any]:
        """What starts it; YAML 1.1 reads the key ``on`` as true."""
        events = self.data.get("on", self.data.get(True))
        if isinstance(events, str):
            return {events: None}
        return dict.fromkeys(events) if isinstance(events, list) else events or {}

    @property
    def jobs(self) -> Mapping[str, Mapping[str, Any]]:
        return self.data.get("jobs", {})

    def steps(self) -> Iterator[tuple[str, Mapping[str, Any], str]]:
        """Each step with its place and the shell that applies where it names none."""
        if self.is_action:
            for number, step in enumerate(self.data["runs"].get("steps", ()), 1):
                yield _name_place("", number, step), step, ""
        default = _default_shell(self.data)
        for name, job in self.jobs.items():
            for number, step in enumerate(job.get("steps", ()), 1):
                yield _name_place(name, number, step), step, _default_shell(job) or default

    def run_blocks(self) -> Iterator[RunBlock]:
        """Every piece of shell in it."""
        for place, step, shell in self.steps():
            if "run" in step:
                job = self.jobs.get(place.split(",")[0], {})
                environments = (self.data.get("env"), job.get("env"), step.get("env"))
                names = frozenset(name for variables in environments for name in variables or ())
                yield RunBlock(self.path, place, step["run"], step.get("shell", shell), names)


def _default_shell(data: Mapping[str, Any]) -> str:
    return data.get("defaults", {}).get("run", {}).get("shell", "")


def _name_place(job: str, number: int, step: Mapping[str, Any]) -> str:
    words = [job, f"step {number}", step.get("name", step.get("id", ""))]
    return ", ".join(filter(None, words))


# libyaml, which takes a tenth of the time, is in PyYAML's wheels.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_document(path: Path) -> Document:
    """One file."""
    return Document(path, yaml.load(path.read_text(encoding="utf-8"), LOADER))  # noqa: S506 - both are safe


def list_workflows(folder: Path = GITHUB) -> list[Path]:
    """The workflow files below a .github."""
    return sorted(folder.glob("workflows/*.yml"))


def list_actions(folder: Path = GITHUB) -> list[Path]:
    """The action files below a .github."""
    return sorted(folder.glob("actions/*/action.yml"))


def read_all(folder: Path = GITHUB) -> list[Document]:
    """Every workflow and every action of a .github."""
    return [read_document(path) for path in (*list_workflows(folder), *list_actions(folder))]
