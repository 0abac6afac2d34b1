"""The rules of the house that no linter knows: one noun for one thing, one place for git."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Where a class name stands for one thing.
ROOMS = ("provisioning", *sorted(str(p.parent.relative_to(ROOT)) for p in ROOT.glob("ci/*/*.py")))
MODULES = [path for room in ("ci", "provisioning") for path in sorted((ROOT / room).rglob("*.py"))]
# Names that everybody gives them; abc's Set is not the built-in one.
CUSTOMARY = {("Set", "AbstractSet"), ("ElementTree", "ET")}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), str(path))


def list_classes(tree: ast.Module) -> Iterator[str]:
    return (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def list_renamed(tree: ast.Module) -> Iterator[str]:
    """What is imported out of a module under another name."""
    for node in ast.walk(tree):
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if alias.asname and (alias.name, alias.asname) not in CUSTOMARY:
                yield f"{alias.name} as {alias.asname}"


def runs_git(tree: ast.Module) -> bool:
    """Whether a command line that begins with git stands in it."""
    lists = (node.elts for node in ast.walk(tree) if isinstance(node, (ast.List, ast.Tuple)))
    return any(items and ast.unparse(items[0]) == "'git'" and len(items) > 1 for items in lists)


@pytest.mark.parametrize("room", sorted(set(ROOMS)))
def test_a_class_name_is_unique_in_its_room(room: str) -> None:
    found = Counter(
        name
        for path in MODULES
        if path.is_relative_to(ROOT / room)
        for name in list_classes(parse(path))
    )
    assert [name for name, count in found.items() if count > 1] == []


def test_no_name_is_renamed_by_its_import() -> None:
    renamed = {str(path): list(list_renamed(parse(path))) for path in MODULES}
    assert {path: names for path, names in renamed.items() if names} == {}


def test_git_is_run_in_one_place() -> None:
    found = [path.relative_to(ROOT).as_posix() for path in MODULES if runs_git(parse(path))]
    assert found == ["provisioning/console/git.py"]


def test_the_house_rules_find_renamed_imports_and_nested_classes() -> None:
    tree = ast.parse(
        "from a import Job as OtherJob\nimport numpy as np\nclass Job:\n class Row: ..."
    )
    assert list(list_renamed(tree)) == ["Job as OtherJob"]
    assert list(list_classes(tree)) == ["Job", "Row"]
