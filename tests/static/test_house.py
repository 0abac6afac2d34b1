"""The rules of the house that no linter knows: one noun for one thing, one place for git, and no
circle of imports, not even of those inside of functions."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.stand_ins.sources import list_nodes, parse_source

ROOT = Path(__file__).parents[2]
# Where a class name stands for one thing.
ROOMS = ("provisioning", *sorted(str(p.parent.relative_to(ROOT)) for p in ROOT.glob("ci/*/*.py")))
MODULES = [path for room in ("ci", "provisioning") for path in sorted((ROOT / room).rglob("*.py"))]
# Names that everybody gives them; abc's Set is not the built-in one.
CUSTOMARY = {("Set", "AbstractSet"), ("ElementTree", "ET")}


def parse(path: Path) -> ast.Module:
    return parse_source(path.read_text("utf-8"))


def list_classes(tree: ast.Module) -> Iterator[str]:
    return (node.name for node in list_nodes(tree) if isinstance(node, ast.ClassDef))


def list_renamed(tree: ast.Module) -> Iterator[str]:
    """What is imported out of a module under another name."""
    for node in list_nodes(tree):
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            if alias.asname and (alias.name, alias.asname) not in CUSTOMARY:
                yield f"{alias.name} as {alias.asname}"


def runs_git(tree: ast.Module) -> bool:
    """Whether a command line that begins with git stands in it."""
    lists = (node.elts for node in list_nodes(tree) if isinstance(node, (ast.List, ast.Tuple)))
    return any(
        len(items) > 1 and isinstance(items[0], ast.Constant) and items[0].value == "git"
        for items in lists
    )


def name_module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def list_imports(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """The project's modules that a module imports, except for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield from {inner if inner in modules else node.module} & modules
        elif isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & modules
        else:
            yield from list_imports(node, modules)


def find_circle(imports: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("room", sorted(set(ROOMS)))
def test_a_class_name_is_unique_in_its_room(room: str) -> None:
    counts = Counter(
        name
        for path in MODULES
        if path.is_relative_to(ROOT / room)
        for name in list_classes(parse(path))
    )
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_name_is_renamed_by_its_import() -> None:
    renamed = {str(path): list(list_renamed(parse(path))) for path in MODULES}
    assert {path: names for path, names in renamed.items() if names} == {}


def test_git_is_run_in_one_place() -> None:
    modules = [path.relative_to(ROOT).as_posix() for path in MODULES if runs_git(parse(path))]
    assert modules == ["provisioning/console/git.py"]


def test_the_house_rules_find_renamed_imports_and_nested_classes() -> None:
    tree = ast.parse(
        "from a import Job as OtherJob\nimport numpy as np\nclass Job:\n class Row: ..."
    )
    assert list(list_renamed(tree)) == ["Job as OtherJob"]
    assert list(list_classes(tree)) == ["Job", "Row"]


def test_modules_import_each_other_in_no_circle() -> None:
    modules = {name_module(path): path for path in MODULES}
    imports = {
        name: set(list_imports(parse(path), set(modules))) - {name}
        for name, path in modules.items()
    }
    assert find_circle(imports) == []
    lower = next(iter(imports["ci.verbs.mend"]))
    assert find_circle(imports | {lower: imports[lower] | {"ci.verbs.mend"}})
