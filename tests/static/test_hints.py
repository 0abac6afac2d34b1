"""Each command in a message can be pasted: its verb's parser takes it, and it has a placeholder
only if nobody knows the value. Commands are in backticks, so that they can be recognized.

Messages are read from the source and from the policies, with sample values for what is inserted,
and, with real values, from the snapshots of messages.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from provisioning.errors import QnnCiError
from tests.documented.pages import PAGES, ROOT, Command
from tests.stand_ins.sources import list_nodes, parse_source
from tests.static.test_documented_commands import check
from tests.static.test_links import leads_somewhere, tokens_of

HINT = re.compile(r"`((?:qnn-ci|(?:\./)?nox -s|python -m) [^`(]+(?:\([^`)]*\)[^`(]*)*)`")
VERB = re.compile(r"(?<=qnn-ci )\{+[^{}]*\}+")  # a verb that is inserted
FIELD = re.compile(r"\{+[^{}]*\}+")
PLACEHOLDER = re.compile(r"(?<![\w.-])[A-Z]{3,}(?![\w.-])")
PAGE = re.compile(r"(?<![\w/])docs/[\w/.-]+\.md(?:#[\w-]+)?")
# What is inserted where any word does not do.
SAMPLES = {
    "{self.profile}": "emulator",
    "{args.profile}": "emulator",
    "{profile}": "emulator",
    "{plan.name}": "emulator",
    "{checkout}": "1.4.1",
    "{version}": "1.4.1",
}
SAMPLE = "sample"
# The hints with a placeholder, each with the reason why nobody knows the value.
UNKNOWN = {
    "qnn-ci build runner --source CHECKOUT": "the user has not named a checkout of ExecuTorch",
    "qnn-ci doctor staged --root staging=DIR": "the log was written on a device",
    "qnn-ci fetch NAME": "the message is quoted from a log, and starts with the name",
}
# Sessions without a verb that is as good: they make an environment, which only nox does.
NOX_ONLY = ("environments", "test_onnx", "docker_build", "build_aot", "test_emulator")


@cache
def read_templates() -> tuple[tuple[str, str], ...]:
    """Each hint of the source and the policies, with its fields in braces, and its file."""
    hints = []
    for top in ("ci", "provisioning"):
        for path in sorted((ROOT / top).rglob("*.py")):
            hints += [(path, hint) for hint in read_source(path.read_text("utf-8"))]
        for path in sorted((ROOT / top).rglob("templates/*")):
            hints += [(path, hint) for hint in HINT.findall(path.read_text("utf-8"))]
    for path in sorted((ROOT / "manifests").rglob("*.toml")):
        text = re.sub(r"(?m)^#.*", "", path.read_text("utf-8"))
        hints += [(path, hint) for hint in HINT.findall(text)]
    return tuple((hint, path.relative_to(ROOT).as_posix()) for path, hint in hints)


@cache
def list_hints() -> tuple[tuple[str, str], ...]:
    """Each hint with sample values, and each hint of a snapshot; with its file."""
    hints = {(insert_samples(hint), file) for hint, file in read_templates()}
    for path in sorted((ROOT / "tests").rglob("snapshots/*")):
        file = path.relative_to(ROOT).as_posix()
        hints.update((hint, file) for hint in HINT.findall(path.read_text("utf-8")))
    return tuple(sorted(hints))


def read_source(text: str) -> Iterator[str]:
    """Yield the hints of a module: those in its strings, except docstrings, and the arguments of
    show_command."""
    for string in read_strings(text):
        yield from HINT.findall(string)
    for node in list_nodes(parse_source(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "show_command":
            words = [show_string(word) for word in node.args if not isinstance(word, ast.Starred)]
            if len(words) == len(node.args):
                yield " ".join(["qnn-ci", *words])


def read_strings(text: str) -> Iterator[str]:
    """Yield the strings of a module, except docstrings."""
    parts = set()
    for node in list_nodes(parse_source(text)):
        if isinstance(node, (ast.Expr, ast.JoinedStr, ast.FormattedValue)):
            parts.update(ast.iter_child_nodes(node))  # a docstring, or a part of a whole string
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and node not in parts:
            yield show_string(node)


def show_string(node: ast.expr) -> str:
    """Return a string of the source. What is inserted stays in braces."""
    if isinstance(node, ast.JoinedStr):
        return "".join(show_string(value) for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return f"{{{ast.unparse(node)}}}"


def insert_samples(hint: str) -> str:
    hint = VERB.sub("test-emulator", hint)
    return FIELD.sub(lambda field: SAMPLES.get(field[0], SAMPLE), hint)


@pytest.mark.parametrize(("hint", "file"), list_hints())
def test_each_hint_can_be_pasted(hint: str, file: str) -> None:
    if "--help" not in hint:  # argparse ends the process
        check(Command(file, hint))


def test_hints_have_placeholders_only_for_what_nobody_knows() -> None:
    hints = {
        hint
        for hint, file in list_hints()
        if PLACEHOLDER.search(hint) and "/snapshots/" not in file  # with the names of tests
    }
    assert hints - UNKNOWN.keys() == set()
    assert UNKNOWN.keys() - hints == set()


def test_hints_are_of_qnn_ci_unless_only_nox_can_do_it() -> None:
    """Hints of ``qnn-ci`` are translated for those who typed ./nox, but not the reverse."""
    of_nox = {
        (file, hint)
        for hint, file in list_hints()
        if "nox -s" in hint and "/snapshots/" not in file
    }
    assert {
        file_and_hint
        for file_and_hint in of_nox
        if Command("", file_and_hint[1]).sessions[0] not in NOX_ONLY
    } == set()
    assert of_nox


def list_quoted(text: str) -> list[str]:
    """The commands of ``qnn-ci`` in the messages that a page quotes."""
    blocks = (token for token in tokens_of(text) if token.type == "fence")
    quoted = [" ".join(block.content.split()) for block in blocks if block.info.strip() == "error"]
    return [hint for block in quoted for hint in HINT.findall(block) if hint.startswith("qnn-ci")]


def is_printed(command: str) -> bool:
    """Whether a message has this command, with some values."""
    hints = (hint for hint, _ in read_templates() if not VERB.search(hint))
    forms = (map(re.escape, FIELD.split(hint)) for hint in hints)
    return any(re.fullmatch(".+".join(form), command) for form in forms)


def test_messages_that_pages_quote_have_the_quoted_commands() -> None:
    quoted = {
        (page.relative_to(ROOT).as_posix(), command)
        for page in PAGES
        for command in list_quoted(page.read_text("utf-8"))
    }
    assert quoted
    assert {
        page_and_command for page_and_command in quoted if not is_printed(page_and_command[1])
    } == set()
    (command,) = list_quoted("```error\nlost\n  fix: run `qnn-ci gone\n--to DIR`\n```\n")
    assert not is_printed(command)


def test_pages_and_headings_that_messages_name_exist() -> None:
    named = set()
    for top in ("ci", "provisioning"):
        for path in sorted((ROOT / top).rglob("*.py")):
            strings = read_strings(path.read_text("utf-8"))
            named.update((path.name, link) for string in strings for link in PAGE.findall(string))
    for path in sorted((ROOT / "manifests").rglob("*.toml")):
        named.update((path.name, link) for link in PAGE.findall(path.read_text("utf-8")))
    assert named
    assert {
        file_and_link
        for file_and_link in named
        if not leads_somewhere(file_and_link[1], ROOT / "README.md")
    } == set()


def test_hints_are_read_from_strings_with_inserted_values_and_from_calls() -> None:
    source = '''
def function():
    """Run `qnn-ci docstring`."""
    fix = f"run `qnn-ci fetch {name} --to "
    other = ("see `qnn-ci doctor "
        f"{profile}`")
    return show_command("env", profile, "--shell")
'''
    hints = [insert_samples(hint) for hint in read_source(source)]
    assert hints == ["qnn-ci doctor emulator", "qnn-ci env emulator --shell"]


@pytest.mark.parametrize("hint", ["qnn-ci stage", "qnn-ci fetch --gone", "./nox -s gone"])
def test_a_hint_that_cannot_be_pasted_is_refused(hint: str) -> None:
    with pytest.raises((QnnCiError, SystemExit)):
        check(Command("message", hint))
