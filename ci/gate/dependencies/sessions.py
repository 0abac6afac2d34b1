"""Find each session's first files and what else it uses: dependency groups, profiles, pins.

The noxfile is parsed, not run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ci.gate.dependencies.parts import parse_table
from ci.gate.dependencies.reach import Graph, Reach
from ci.gate.rules import GateRules
from ci.parity.policy import matches

NOXFILE, PYPROJECT = "noxfile.py", "pyproject.toml"
PROFILES, TARGETS = "manifests/profiles.toml", "manifests/targets.toml"
MAINS = ("provisioning/__main__.py", "ci/__main__.py")
LOWERING = "lowering"  # the dependency group with torch and ExecuTorch
# The groups from which ci/verbs/environments.py chooses for a verb.
CHOSEN = {"core", LOWERING, "onnx", "onnx-torch", "device", "evidence", "test"}
Read = Callable[[str], str]


@dataclass(frozen=True)
class SessionInputs:
    """What a session depends on. ``reach`` contains the files reached through imports and names.
    ``uses`` maps other files, and parts of files written as ``FILE#KEY``, to the reason why the
    session needs them.

    ``known`` is false if no first file was found. In that case, every change needs the session.
    """

    name: str
    reach: Reach
    uses: Mapping[str, str]
    known: bool = True

    def explain(self, path: str) -> str:
        """Return the reason why the session needs a file, or "" if it does not need it."""
        if path in self.uses or path not in self.reach:
            return self.uses.get(path, "")
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
    """Return the inputs of each session in the noxfile or in the rules, by session name."""
    files = graph.tree.files
    sessions = parse_noxfile(read(NOXFILE)) if NOXFILE in files else {}
    rows = {verb: row for main in MAINS for verb, row in parse_verbs(read(main)).items()}
    verbs = {verb: row.module for verb, row in rows.items()}
    project = load(read, PYPROJECT, files)
    found = {}
    for name in dict.fromkeys((*sessions, *rules.sessions)):
        facts = sessions.get(name, SessionFacts(name))
        roots = rules.session_rule(name).roots
        by_rule = (path for path in files if matches(path, roots))
        starts = {*list_starts(facts, verbs, files), *by_rule}
        chosen = {words[1] for words in facts.programs if words[1:]} & {
            verb for verb, row in rows.items() if row.chooses
        }
        groups = close_groups(facts.groups | (CHOSEN if chosen else set()), project)
        reach = graph.follow(starts, by_name=LOWERING in groups)
        uses = dict(list_uses(facts, groups, reach, graph, read))
        found[name] = SessionInputs(name, reach, uses, bool(starts))
    return found


def list_starts(
    facts: SessionFacts, verbs: Mapping[str, str], files: frozenset[str]
) -> Iterator[str]:
    """Yield a session's first files. These are the ``__main__.py`` and the verbs' modules that it
    runs. If it runs pytest, they also include all files in the tested folders, and the conftest.py
    files above them."""
    for words in facts.programs:
        package, verb = ((*words, "") if words else ("ci", ""))[:2]  # unknown arguments: any verb
        modules = [verbs[verb]] if verb in verbs else []
        if not verb and package in {"ci", "provisioning"}:
            modules = list(verbs.values())
        for module in (f"{package}.__main__", *modules):
            path = f"{module.replace('.', '/')}.py"
            if path in files:
                yield path
    if facts.runs_pytest:
        folders = facts.tests or {"tests"}
        for path in files:
            folder = path.rpartition("/")[0]
            above = path.endswith("/conftest.py") and any(
                one.startswith(f"{folder}/") for one in folders
            )
            if above or any(path.startswith(f"{one}/") for one in folders):
                yield path


def list_uses(
    facts: SessionFacts, groups: Iterable[str], reach: Reach, graph: Graph, read: Read
) -> Iterator[tuple[str, str]]:
    """Yield the parts of pyproject.toml and of manifests/ that a session uses, each with a
    reason."""
    files = graph.tree.files
    for group in groups:
        yield (
            f"{PYPROJECT}#dependency-groups.{group}",
            f"the session's environment contains the dependency group {group}",
        )
    known = load(read, PROFILES, files)
    named = {name for path in reach.parents for name in graph.profiles_of(path)}
    targets = load(read, TARGETS, files).get("target", [])
    named |= {row.get("profile", "") for row in targets if row.get("session") == facts.name}
    for profile in sorted(named & known.keys()):
        for name in (profile, known[profile].get("like", "")):
            if name:
                yield f"{PROFILES}#{name}", f"the session uses profile {profile}"
                artifacts = [
                    row.get("name", "") for row in known.get(name, {}).get("artifacts", [])
                ]
                for path in list_pins(artifacts, files):
                    yield path, f"a pin or lock of profile {profile}, which the session uses"


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


def list_pins(artifacts: Iterable[str], files: Iterable[str]) -> Iterator[str]:
    """Yield the manifest of each artifact, and its locks: ``locks/NAME-VERSION.json``."""
    wanted = set(artifacts)
    for path in sorted(path for path in files if path.startswith("manifests/")):
        lock = re.fullmatch(r"manifests/locks/(.+?)-\d[^/]*\.json", path)
        pin = re.fullmatch(r"manifests/toolchains/([^/]+)\.toml", path)
        if any(match and match[1] in wanted for match in (lock, pin)):
            yield path


def load(read: Read, path: str, files: Iterable[str]) -> Mapping[str, Any]:
    """Return the content of a TOML file of the tree, or an empty mapping if the file is missing or
    is not valid TOML."""
    return (parse_table(read(path)) if path in files else None) or {}


START = "session"


@dataclass
class SessionFacts:
    """What the noxfile says about a session. ``groups``: dependency groups of its environments.
    ``programs``: modules that it runs with ``python -m``, each with its constant arguments.
    ``tests``: folders that it passes to pytest, or nothing for pytest's default."""

    name: str
    groups: set[str] = field(default_factory=set)
    programs: list[tuple[str, ...]] = field(default_factory=list)
    tests: set[str] = field(default_factory=set)
    runs_pytest: bool = False


def parse_noxfile(text: str) -> Mapping[str, SessionFacts]:
    """Return the facts of each session, by session name. They include the facts of the helper
    functions that the session calls. Raises SyntaxError if ``text`` is not Python."""
    functions = {
        node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)
    }
    found = {}
    for name, node in functions.items():
        if any(_is_session(one) for one in node.decorator_list):
            facts = SessionFacts(name)
            for function, words in _list_calls(node, functions, ()):
                if function == "run_verb":
                    facts.programs.append(("ci", *words))
                    words = ("core",)
                facts.groups.update(words[:1])
                if function == "run_module":
                    facts.programs.append(words[1:])
                elif function == "run_tests":
                    facts.tests.update(word for word in words[1:] if not word.startswith("-"))
                    facts.runs_pytest = True
            found[name] = facts
    return found


def _is_session(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(function) == "nox.session"


RUNNERS = frozenset({"run_module", "run_verb", "run_tests", "make_environment"})


def _list_calls(
    node: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef], given: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each call of a function in ``RUNNERS`` that ``node`` or its helper functions make, with
    the constant arguments. If ``node`` is itself a helper function, ``given`` are the arguments of
    the call to it."""
    names = [argument.arg for argument in node.args.args[1:]]
    known = dict(zip(names, given, strict=False))
    for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
        function = getattr(call.func, "id", "")
        first = call.args[0] if call.args else None
        if not (isinstance(first, ast.Name) and first.id == START):
            continue
        words = tuple(word for one in call.args for word in _constants(one, known))
        if function in RUNNERS:
            yield function, words
        elif function in functions and function != node.name:
            yield from _list_calls(functions[function], functions, words)


def _constants(node: ast.expr, known: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name) and node.id in known:
        yield known[node.id]


@dataclass(frozen=True)
class VerbFacts:
    """The module of a verb, and whether it needs another environment than ``core``."""

    module: str
    chooses: bool


def parse_verbs(text: str) -> Mapping[str, VerbFacts]:
    """Return the facts of each verb. A verb is an entry ``"verb": Verb("module", ...)`` of a dict
    in ``text``."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        for key, value in (
            zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        ):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and value.args:
                first = value.args[0]
                if ast.unparse(value.func) == "Verb" and isinstance(first, ast.Constant):
                    chooses = any(one.arg == "environment" for one in value.keywords)
                    found[str(key.value)] = VerbFacts(str(first.value), chooses)
    return found
