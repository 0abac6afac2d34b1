"""The sessions of a noxfile, and what each starts from: read, not run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

START = "session"


@dataclass
class SessionFacts:
    """``groups``: dependency groups of its environments. ``programs``: what follows ``python -m``,
    each with its words. ``tests``: folders for pytest, none for its own default."""

    name: str
    groups: set[str] = field(default_factory=set)
    programs: list[tuple[str, ...]] = field(default_factory=list)
    tests: set[str] = field(default_factory=set)
    runs_pytest: bool = False


def parse_noxfile(text: str) -> Mapping[str, SessionFacts]:
    """Each session by its name, helpers that it calls included. Raises SyntaxError."""
    functions = {
        node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)
    }
    found = {}
    for name, node in functions.items():
        if any(_is_session(one) for one in node.decorator_list):
            facts = SessionFacts(name)
            for function, words in _list_calls(node, functions, ()):
                _note(facts, function, words)
            found[name] = facts
    return found


def _is_session(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(function) == "nox.session"


RUNNERS = frozenset({"run_module", "run_tests", "make_environment"})


def _list_calls(
    node: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef], given: tuple[str, ...]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The calls of RUNNERS, with their constant words; ``given`` fills a helper's parameters."""
    names = [argument.arg for argument in node.args.args[1:]]
    known = dict(zip(names, given, strict=False))
    for call in (one for one in ast.walk(node) if isinstance(one, ast.Call)):
        function = getattr(call.func, "id", "")
        first = call.args[0] if call.args else None
        if not (isinstance(first, ast.Name) and first.id == START):
            continue
        words = tuple(word for one in call.args[1:] for word in _constants(one, known))
        if function in RUNNERS:
            yield function, words
        elif function in functions and function != node.name:
            yield from _list_calls(functions[function], functions, words)


def _constants(node: ast.expr, known: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.Name) and node.id in known:
        yield known[node.id]


def _note(facts: SessionFacts, function: str, words: tuple[str, ...]) -> None:
    facts.groups.update(words[:1])
    if function == "run_module":
        facts.programs.append(words[1:])
    elif function == "run_tests":
        facts.tests.update(word for word in words[1:] if not word.startswith("-"))
        facts.runs_pytest = True


def parse_verbs(text: str) -> Mapping[str, str]:
    """The module of each verb in a ``VERBS`` table of ``"verb": Verb("module", ...)``."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        for key, value in (
            zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        ):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Call) and value.args:
                first = value.args[0]
                if ast.unparse(value.func) == "Verb" and isinstance(first, ast.Constant):
                    found[str(key.value)] = str(first.value)
    return found
