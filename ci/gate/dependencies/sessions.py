"""Find what each session uses: the files of its record or its job, and what these import.

The noxfile and the workflows are parsed, not run.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ci.gate.dependencies.parts import parse_table
from ci.gate.dependencies.reach import Graph, Reach
from ci.gate.dependencies.workflows import list_jobs
from ci.gate.rules import GateRules, Recorded
from ci.parity.policy import matches

NOXFILE, PYPROJECT = "noxfile.py", "pyproject.toml"
GROUPS = f"{PYPROJECT}#dependency-groups"
Read = Callable[[str], str]


@dataclass(frozen=True)
class SessionInputs:
    """What a session depends on. ``reach`` contains the session's first files and what they import.
    ``record`` is what its recorded run opened. ``uses`` maps parts of files, written as
    ``FILE#KEY``, to the reason why the session needs them.

    ``known`` is false if there is neither a record nor a first file. In that case, every change
    needs the session.
    """

    name: str
    reach: Reach
    record: Recorded = field(default_factory=Recorded)
    uses: Mapping[str, str] = field(default_factory=dict)
    known: bool = True

    def explain(self, path: str) -> str:
        """Return the reason why the session needs a file, or "" if it does not need it."""
        if self.record.covers(path):
            return "the recorded run of the session opened it"
        if path not in self.reach:
            return ""
        way = self.reach.explain(path)
        return f"read by {way}" if way else "the session runs it"

    def explain_key(self, path: str, key: str) -> str:
        """Return the reason why the session uses a changed key, a table that contains it or a key
        inside it. Return "" if it uses none of them."""
        name = f"{path}#{key}"
        for use, why in self.uses.items():
            if name == use or name.startswith(f"{use}.") or use.startswith(f"{name}."):
                return why
        return ""


def describe_sessions(graph: Graph, read: Read, rules: GateRules) -> dict[str, SessionInputs]:
    """Return the inputs of each session in the noxfile, the rules or the workflows, by name."""
    files = graph.tree.files
    sessions = parse_noxfile(read(NOXFILE)) if NOXFILE in files else ()
    jobs = dict(list_jobs(graph.tree, read, rules))
    project = load(read, PYPROJECT, files)
    found = {}
    for name in dict.fromkeys((*sessions, *rules.sessions, *jobs)):
        roots = rules.session_rule(name).roots
        record = rules.recorded.get(name, Recorded())
        starts = {path for path in files if matches(path, roots) or record.covers(path)}
        starts |= jobs.get(name, set())
        uses = {
            f"{GROUPS}.{group}": f"the session's environment contains the dependency group {group}"
            for group in close_groups(record.groups, project)
        }
        found[name] = SessionInputs(name, graph.follow(starts), record, uses, bool(starts))
    return found


def close_groups(groups: Iterable[str], project: Mapping[str, Any]) -> tuple[str, ...]:
    """Return dependency groups together with all groups that they include, directly or
    indirectly."""
    tables = project.get("dependency-groups", {})
    found: dict[str, None] = {}
    waiting = sorted(groups)
    while waiting:
        group = waiting.pop(0)
        if group not in found:
            found[group] = None
            rows = [row for row in tables.get(group, []) if isinstance(row, dict)]
            waiting += [row["include-group"] for row in rows if "include-group" in row]
    return tuple(found)


def load(read: Read, path: str, files: Iterable[str]) -> Mapping[str, Any]:
    """Return the content of a TOML file of the tree, or an empty mapping if the file is missing or
    is not valid TOML."""
    return (parse_table(read(path)) if path in files else None) or {}


def parse_noxfile(text: str) -> Iterator[str]:
    """Yield the names of the sessions in a noxfile. Raises SyntaxError if ``text`` is not
    Python."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            for one in node.decorator_list:
                if ast.unparse(one.func if isinstance(one, ast.Call) else one) == "nox.session":
                    yield node.name
