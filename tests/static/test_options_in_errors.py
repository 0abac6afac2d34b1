"""A text that a verb may print, such as an error, a fix, a note or a heading, names only options
that this verb has. One of another module names those of a verb that imports it, and a fix of the
policies those of some verb."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

pytest.importorskip("grimp", reason="grimp is not installed in this environment")

from provisioning.console.caller import Caller
from provisioning.console.command import make_parser
from provisioning.manifest.reader import parse_toml
from tests.documented.pages import ROOT, VERBS
from tests.stand_ins.sources import list_nodes, parse_source
from tests.static.test_gate_imports import read_graph

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")
FIXES = {"fix", "remedy"}
# Whole commands are parsed by test_documented_commands.
COMMAND = re.compile(r"`[^`]*`|\./nox .*|qnn-ci .*|pip install .*|git .*")
OF_ANOTHER_VERB = {
    ("ci.verbs.deploy", "--soc"),
    ("ci.verbs.judge", "--keep-artifacts"),
    ("ci.verbs.stage", "--keep-artifacts"),
}
# Tables of verbs, with the help and the examples of each.
TABLES = {"ci.verbs.registry", "provisioning.__main__"}
# Options of other tools, and a text that is none.
OF_OTHER_PROGRAMS = {
    ("ci.explain.rules", "--t"),
    ("ci.gate.reading", "--format"),
    ("ci.images.engine", "--user"),
}
# Of patchelf, Bazel, Gradle, Docker, snap, linkers, ExecuTorch's scripts, AI Hub, QAIRT and Genie.
OF_OTHER_TOOLS = {
    ("checks.toml", "--set-rpath"),
    ("errors.toml", "--api_token"),
    ("errors.toml", "--checkpoint"),
    ("errors.toml", "--classic"),
    ("errors.toml", "--clear-execstack"),
    ("errors.toml", "--compile_no_warning_as_error"),
    ("errors.toml", "--debug"),
    ("errors.toml", "--decoder_model"),
    ("errors.toml", "--devmode"),
    ("errors.toml", "--dlc_path"),
    ("errors.toml", "--expunge"),
    ("errors.toml", "--gpus"),
    ("errors.toml", "--input_dim"),
    ("errors.toml", "--license-activate"),
    ("errors.toml", "--licenses"),
    ("errors.toml", "--log_level"),
    ("errors.toml", "--no-as-needed"),
    ("errors.toml", "--num_sharding"),
    ("errors.toml", "--platform"),
    ("errors.toml", "--privileged"),
    ("errors.toml", "--retrieve_context"),
    ("errors.toml", "--rm"),
    ("errors.toml", "--security-opt"),
    ("errors.toml", "--source_model_input_shape"),
    ("errors.toml", "--stacktrace"),
    ("errors.toml", "--stop"),
    ("errors.toml", "--target"),
    ("errors.toml", "--use_native_input_files"),
    ("errors.toml", "--use_qnn"),
    ("errors.toml", "--verbose_failures"),
    ("errors.toml", "--whole-archive"),
}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
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
    """The strings below a node, without what is inserted into them."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(value.value) for value in node.values if isinstance(value, ast.Constant))
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    else:
        for inner in ast.iter_child_nodes(node):
            yield from list_texts(inner)


def list_named(source: str) -> set[str]:
    """The options that the texts of a module name: its strings of several words, except docstrings,
    and each string of its errors, fixes and remedies."""
    texts: list[str] = []
    skipped: set[ast.AST] = set()
    for node in list_nodes(parse_source(source)):
        if isinstance(node, (ast.Expr, ast.JoinedStr)):
            skipped.update(ast.iter_child_nodes(node))  # a docstring, or a part of a whole string
        if is_message(node):
            texts += list_texts(node)
        elif isinstance(node, (ast.Constant, ast.JoinedStr)) and node not in skipped:
            texts += [text for text in list_texts(node) if " " in text.strip()]
    return {option for text in texts for option in find_options(text)}


def find_options(text: str) -> list[str]:
    return OPTION.findall(COMMAND.sub("", text))


def is_message(node: ast.AST) -> bool:
    if isinstance(node, ast.keyword):
        return node.arg in FIXES
    return isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("Error")


def list_choices(module: str) -> set[str]:
    """The options of the verbs that a module is, or that import it, also indirectly. What no verb
    imports is of sessions or of all verbs."""
    options = read_options()
    if module in options:
        return options[module]
    importers = read_graph().find_downstream_modules(module) & options.keys()
    return set().union(*(options[importer] for importer in importers or options.keys()))


def list_fixes(value: Any, key: str = "") -> Iterator[str]:
    """The texts of a policy that say what to do."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from list_fixes(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from list_fixes(inner, key)
    elif key in FIXES:
        yield str(value)


def test_every_option_that_a_message_names_exists() -> None:
    unknown = {
        (module, option)
        for module, path in MODULES.items()
        for option in list_named(path.read_text("utf-8"))
        if module not in TABLES and option not in list_choices(module)
    }
    assert unknown == OF_ANOTHER_VERB | OF_OTHER_PROGRAMS


def test_every_option_that_a_policy_says_to_pass_exists() -> None:
    all_options = set().union(*read_options().values())
    unknown = {
        (path.name, option)
        for path in sorted((ROOT / "manifests/policies").glob("*.toml"))
        for fix in list_fixes(parse_toml(path.read_text("utf-8"), Any))
        for option in find_options(fix)
        if option not in all_options
    }
    assert unknown == OF_OTHER_TOOLS


@pytest.mark.parametrize(
    "source",
    [
        'raise UsageError(f"--gone {value} is wrong")',
        'raise UsageError("wrong", fix="pass --gone")',
        'Remedy(fix="leave out --gone" if value else "")',
        'progress.step(f"note: {name} has no effect; --gone chooses")',
        'LIMIT_REACHED = "the time is up (--gone)"',
    ],
)
def test_a_message_with_an_unknown_option_is_found(source: str) -> None:
    assert list_named(source) == {"--gone"}


def test_a_message_of_one_lane_names_no_option_of_another() -> None:
    assert "--sdk" not in list_choices("ci.verbs.litert")
    assert "--sdk" in list_choices("ci.verbs.onnx")
    assert "--lpai-arch" not in list_choices("ci.cases.spec")
    assert "--scheme" in list_choices("ci.cases.spec")
