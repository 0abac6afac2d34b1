"""manifests/policies/gate.toml names each session and each file of this project, and plans a lane
for each module that its verb imports at its start."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.gate.plan import make_plan
from ci.gate.rules import read_rules
from ci.gate.schema import Change, Difference, Kind
from ci.verbs.registry import VERBS
from tests.stand_ins.sources import parse_source

ROOT = Path(__file__).parents[2]
RULES = read_rules()
LANES = {verb.session: verb.module for verb in VERBS.values() if verb.session[:5] == "test_"}
BLOCKS = ("body", "orelse", "finalbody", "handlers")


def list_imports(file: Path) -> Iterator[str]:
    """The modules that a file imports when it is imported, outside of functions."""
    waiting: list[ast.AST] = [parse_source(file.read_text("utf-8"))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for block in BLOCKS:
                statements = getattr(node, block, None)
                waiting += statements if isinstance(statements, list) else ()


def list_modules(module: str) -> set[Path]:
    """The files of a module and of those that it imports, also indirectly."""
    files: set[Path] = set()
    waiting = [module]
    while waiting:
        parts = waiting.pop().split(".")
        stems = [ROOT.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
        candidates = {stem.with_suffix(".py") for stem in stems}
        candidates |= {stem / "__init__.py" for stem in stems}
        for file in {file for file in candidates if file.is_file()} - files:
            files.add(file)
            waiting += list_imports(file)
    return files


def list_planned(path: str) -> set[str]:
    """The sessions that a change to a file needs."""
    plan = make_plan(Difference((Change(path, Kind.MODIFIED),)), RULES)
    return {session.name for session in plan.sessions if session.run}


@pytest.mark.parametrize("lane", LANES)
def test_a_lane_is_planned_for_each_module_that_its_verb_imports(lane: str) -> None:
    files = {file.relative_to(ROOT).as_posix() for file in list_modules(LANES[lane])}
    assert len(files) > 100
    assert {path for path in files if lane not in list_planned(path)} == set()


def test_each_session_is_in_the_rules() -> None:
    tree = ast.parse((ROOT / "noxfile.py").read_text("utf-8"))
    sessions = {"test_emulator"}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "SESSIONS":
            sessions |= ast.literal_eval(node.value).keys()
        if isinstance(node, ast.FunctionDef):
            decorators = map(ast.unparse, node.decorator_list)
            sessions |= {node.name for text in decorators if text.startswith("nox.session")}
    assert sessions - RULES.sessions.keys() == set()


def test_each_session_that_ci_runs_has_a_rule() -> None:
    named = {name for rule in RULES.rule for name in rule.sessions}
    for name, session in RULES.sessions.items():
        assert session.by_hand or session.always or session.whole or name in named, name


def test_a_rule_covers_each_file() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    files = sorted(file for file in listing.split("\0") if file and (ROOT / file).exists())
    parts = {"pyproject.toml"}  # rules name its keys
    plans = {file: make_plan(Difference((Change(file, Kind.MODIFIED),)), RULES) for file in files}
    unknown = {file for file, plan in plans.items() if plan.everything.startswith("no rule covers")}
    assert unknown == parts
