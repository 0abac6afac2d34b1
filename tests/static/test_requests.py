"""What is asked of a call is read from the command line once, at the border, and never changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stand_ins.sources import list_nodes, parse_source

ROOT = Path(__file__).parents[2]
NAMESPACE = "Namespace"
# The command line of both programs: what parses it, and what hands the result to a verb.
PARSING = {
    *("ci/__main__.py", "provisioning/__main__.py", "provisioning/console/command.py"),
    "ci/device/run_onnx.py",  # a program of its own, on a board
}
# A module below the verbs, or a lane, gets a Request.
VERBS = {path for room in ("ci", "provisioning") for path in (ROOT / room / "verbs").glob("*.py")}
# What several verbs call where they read their arguments.
BORDER = {
    *("check_values", "list_given", "list_digested", "repeat_command", "name_mending"),
    *("check_arguments", "read_device", "read_options"),
}


def list_uses(tree: ast.AST) -> Iterator[str]:
    """Where a module names argparse's Namespace."""
    for node in list_nodes(tree):
        if isinstance(node, ast.Attribute) and node.attr == NAMESPACE:
            yield ast.unparse(node)
        elif isinstance(node, ast.alias) and node.name == NAMESPACE:
            yield node.name


def list_writes(tree: ast.AST) -> Iterator[str]:
    """The statements that change the arguments of a function: ``args.x = 1``, ``vars(args)``
    with a changed value, ``setattr(args, ...)``, or a new Namespace."""
    for node in list_nodes(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) == "args":
                yield ast.unparse(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) == "vars(args)":
                yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            first = ast.unparse(node.args[0]) if node.args else ""
            if (
                called == "vars(args).update"
                or called.endswith(NAMESPACE)
                or (called in {"setattr", "delattr"} and first == "args")
            ):
                yield ast.unparse(node)


def list_readers(tree: ast.AST) -> Iterator[str]:
    """The functions of a module that read a value from a Namespace that they get, except those in
    BORDER. An argparse.Action, which is called, fills the Namespace while words are parsed."""
    for function in list_nodes(tree):
        if not isinstance(function, ast.FunctionDef) or function.name in {"__call__", *BORDER}:
            continue
        names = {
            argument.arg
            for argument in (*function.args.args, *function.args.kwonlyargs)
            if argument.annotation and NAMESPACE in ast.unparse(argument.annotation)
        }
        values = [
            node.value if isinstance(node, ast.Attribute) else node.args[0]
            for node in ast.walk(function)
            if isinstance(node, ast.Attribute)
            or (isinstance(node, ast.Call) and node.args and ast.unparse(node.func) == "getattr")
        ]
        if names & {ast.unparse(value) for value in values}:
            yield function.name


def parse(path: Path) -> ast.Module:
    return parse_source(path.read_text("utf-8"))


def test_no_module_below_the_verbs_takes_a_namespace() -> None:
    modules = {path for room in ("ci", "provisioning") for path in (ROOT / room).rglob("*.py")}
    users = {str(path.relative_to(ROOT)) for path in modules - VERBS if any(list_uses(parse(path)))}
    assert users - PARSING == set()


def test_no_verb_writes_into_its_arguments() -> None:
    writes = {str(path.relative_to(ROOT)): [*list_writes(parse(path))] for path in VERBS}
    assert {name for name, changes in writes.items() if changes} == set()


def test_one_function_of_a_verb_reads_its_arguments() -> None:
    readers = {str(path.relative_to(ROOT)): [*list_readers(parse(path))] for path in VERBS}
    assert {name: functions for name, functions in readers.items() if len(functions) > 1} == {}


@pytest.mark.parametrize(
    ("code", "readers"),
    [
        ("def execute(args: Namespace): f(args.a, args.b)", ["execute"]),
        ("def execute(args: Namespace): f(args)\ndef f(args: Namespace): args.a", ["f"]),
        ("def e(a: argparse.Namespace): a.b\ndef f(*, a: Namespace): a.b", ["e", "f"]),
        ("def e(a: Namespace): a.b\ndef f(a: Namespace): getattr(a, n)", ["e", "f"]),
        ("def execute(request: Request): request.a", []),
    ],
)
def test_each_reader_of_arguments_is_noticed(code: str, readers: list[str]) -> None:
    assert [*list_readers(ast.parse(code))] == readers


@pytest.mark.parametrize(
    "code",
    [
        "args.policy = 1",
        "args.direct |= True",
        "vars(args).update(a=1)",
        "vars(args)['a'] = 1",
        "setattr(args, 'a', 1)",
        "argparse.Namespace(**vars(args))",
    ],
)
def test_each_way_to_write_into_arguments_is_noticed(code: str) -> None:
    assert [*list_writes(ast.parse(code))]
    assert not [*list_writes(ast.parse("directory = args.reports / 'a'; x.policy = args.policy"))]


def test_each_way_to_take_a_namespace_is_noticed() -> None:
    for code in ("def run(args: argparse.Namespace): ...", "from argparse import Namespace"):
        assert [*list_uses(ast.parse(code))]
