"""manifests/policies/gate.toml names each session, and each file of this project has a rule."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from ci.gate.plan import make_plan
from ci.gate.rules import read_rules
from ci.gate.schema import Change, Difference, Kind

ROOT = Path(__file__).parents[2]
RULES = read_rules()


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
