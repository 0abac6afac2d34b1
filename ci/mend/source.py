"""Reads and makes mended_net.py, whose functions return the user's models with rewrites applied."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ci.mend.rewrite import TORCH
from provisioning.documents import UNDECODABLE, read_text
from provisioning.quoting import python_docstring, python_string

ABOUT = '''\
"""Models that `qnn-ci mend` rewrote so that QNN computes them right. Each function calls your own
factory and rewrites the module that it returns, so your weights and your code stay as they are."""
'''
HEAD = """\

from pathlib import Path

from ci.mend import call_rewritten

HERE = Path(__file__).resolve().parent
"""
STANDALONE = Path(__file__).resolve().parent / "templates" / "standalone.txt"
# Rewrites of both lanes, and what applies them to modules of PyTorch.
SHARED, APPLIES = "ci.mend.graph_rewrites", "ci.mend.torch_rewrites.both_lanes"
# Rewrites use these modules, too, so a standalone file contains them.
USED = (
    "ci.graphs.bounds",
    "ci.graphs.edit",
    "ci.graphs.graph",
    "ci.graphs.operators",
    "ci.graphs.torch_calls",
    "ci.graphs.torch_edit",
    "ci.graphs.torch_state",
    "ci.mend.axes",
    "ci.models.crowded",
    "ci.models.short_rows",
)
# Of ci.mend.rewrite.
NEEDED = (
    "Change",
    "export_module",
    "separate_rows",
    "require_changes",
    "rewrite_module",
    "rewrite_graph",
)
FUNCTION = """

def {name}():
    {about}
    return call_rewritten(str(HERE / {file}) + {factory}, {rewrites})
"""


@dataclass(frozen=True)
class Factory:
    """A function of mended_net.py. ``reference`` is the user's ``/absolute/file.py:factory``."""

    name: str
    reference: str
    rewrites: tuple[str, ...]


def make_relative(path: str, directory: Path) -> str:
    """Return an absolute path, or a reference to a function in a file, relative to a directory. The
    directories of both may be links; a file that is a link is not resolved."""
    parent, name = os.path.split(path)
    return os.path.relpath(os.path.join(os.path.realpath(parent), name), directory.resolve())  # noqa: PTH118


def read_source(path: Path) -> list[Factory] | None:
    """Return the functions in a mended_net.py, or None if the file is none. Without a file, the
    result is empty."""
    if not path.exists():
        return []
    text = read_text(path, "replace")
    if not text.startswith(ABOUT):
        return None
    factories = []
    with suppress(*UNDECODABLE):  # a SyntaxError is none of ours: the user changed the file
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and (call := find_call(node)):
                file, function, rewrites = call
                target = os.path.normpath(path.parent.resolve() / file)
                factories.append(Factory(node.name, f"{target}{function}", rewrites))
    return factories


def find_call(node: ast.FunctionDef) -> tuple[str, str, tuple[str, ...]] | None:
    """Return the user's file, ``:factory`` and the rewrites of a function as FUNCTION writes it,
    also of an f-string that earlier versions wrote."""
    value = getattr(node.body[-1], "value", None)
    if not isinstance(value, ast.Call) or getattr(value.func, "id", "") != "call_rewritten":
        return None
    reference, rewrites = value.args
    strings = [part.value for part in ast.walk(reference) if isinstance(part, ast.Constant)]
    factory, file = strings  # breadth first
    return str(file), str(factory), tuple(ast.literal_eval(rewrites))


def make_source(directory: Path, factories: Iterable[Factory], *, standalone: bool = False) -> str:
    """Return the source code of a file in ``directory`` with a function per factory. The paths in
    it are relative to it. If it is ``standalone``, it contains the rewrites, and imports nothing of
    this project."""
    functions = list(factories)
    if standalone:
        rewrites = dict.fromkeys(name for factory in functions for name in factory.rewrites)
        text = f"{ABOUT}{read_text(STANDALONE)}{copy_rewrites(list(rewrites))}"
    else:
        text = ABOUT + HEAD
    for factory in functions:
        file, _, user_factory = factory.reference.rpartition(":")
        about = f"{Path(file).name}:{user_factory} after {', '.join(factory.rewrites)}."
        text += FUNCTION.format(
            name=factory.name,
            about=python_docstring(about),
            file=python_string(make_relative(file, directory)),
            factory=python_string(f":{user_factory}"),
            rewrites=list(factory.rewrites),
        )
    return text


def copy_rewrites(names: Sequence[str]) -> str:
    """Return the source code of rewrites and of everything that they use. No two modules of them
    define the same name, so they can be joined."""
    modules: dict[str, ModuleType] = {}
    rewrites = importlib.import_module(TORCH).REWRITES
    shared = importlib.import_module(SHARED).DEFINITIONS
    for name in names:
        if name in rewrites:
            _add_modules((shared if name in shared else rewrites)[name].__module__, modules)
    if not shared.keys().isdisjoint(names):
        _add_modules(APPLIES, modules)
    parts = [_copy_definitions(importlib.import_module("ci.mend.rewrite"), NEEDED)]
    parts += map(_copy_definitions, modules.values())
    return "\n\n\n".join(["", *itertools.chain(*parts), ""])


def _add_modules(name: str, modules: dict[str, ModuleType]) -> None:
    """Add a module of rewrites or one of USED to ``modules``, after those that it imports."""
    is_rewrites = name.startswith((f"{TORCH}.", f"{SHARED}."))
    if name in modules or not (is_rewrites or name in USED):
        return
    module = importlib.import_module(name)
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module:
            _add_modules(node.module, modules)
    modules[name] = module


def _copy_definitions(module: ModuleType, names: Sequence[str] = ()) -> Iterator[str]:
    """Yield the statements of a module, or the definitions of ``names``, without its docstring and
    without imports of this project."""
    text = inspect.getsource(module)
    lines = text.splitlines()
    for number, node in enumerate(ast.parse(text).body):
        # `from __future__` is not needed again: it must be the first statement of the new file.
        is_own = isinstance(node, ast.ImportFrom) and str(node.module).startswith(("ci.", "__fu"))
        is_about = number == 0 and isinstance(node, ast.Expr)
        is_chosen = not names or getattr(node, "name", "") in names
        if is_own or is_about or not is_chosen:
            continue
        # ast's line of a function is that of `def`, not that of its first decorator.
        decorators = getattr(node, "decorator_list", [])
        start = min(statement.lineno for statement in (node, *decorators))
        yield "\n".join(lines[start - 1 : node.end_lineno])
