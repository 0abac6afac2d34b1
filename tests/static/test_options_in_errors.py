"""An error of a verb names only options that this verb has, and other errors those of some verb."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from provisioning.console.caller import Caller
from provisioning.console.command import make_parser
from tests.documented.pages import ROOT, VERBS
from tests.stand_ins.sources import list_nodes, parse_source

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
# Whole commands are parsed by test_documented_commands.
COMMAND = re.compile(r"`[^`]*`|\./nox .*|qnn-ci .*|pip install .*|git .*")
OF_ANOTHER_VERB = {("ci.verbs.deploy", "--soc"), ("ci.verbs.judge", "--keep-artifacts")}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for top in ("ci", "provisioning")
    for path in sorted((ROOT / top).rglob("*.py"))
}


def list_options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from list_options(inner)


@cache
def read_options() -> dict[str, set[str]]:
    """The options of the verbs of each module."""
    options_of_modules: dict[str, set[str]] = {}
    for verbs in VERBS.values():
        for name, verb in verbs.items():
            options = list_options(make_parser(Caller("qnn-ci"), verbs, name))
            options_of_modules.setdefault(verb.module, set()).update(options)
    return options_of_modules


def list_texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(value.value) for value in node.values if isinstance(value, ast.Constant))
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        for inner in ast.iter_child_nodes(node):
            yield from list_texts(inner)


def list_named(path: Path) -> set[str]:
    """The options that the errors of a module name."""
    calls = (node for node in list_nodes(parse_source(path.read_text("utf-8"))) if is_error(node))
    texts = (text for call in calls for text in list_texts(call))
    return {option for text in texts for option in OPTION.findall(COMMAND.sub("", text))}


def is_error(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error")


def test_every_option_named_in_an_error_exists() -> None:
    options = read_options()
    all_options = set().union(*options.values())
    unknown = {
        (module, option)
        for module, path in MODULES.items()
        for option in list_named(path) - options.get(module, all_options)
    }
    assert unknown == OF_ANOTHER_VERB
