"""Commands that run or read other files: include(), add_subdirectory(), and execute_process() for
lists in .bzl files. Also include_guard(), return(), break() and continue(). cmake_language() is
only reported as not evaluated.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Mapping
from itertools import pairwise

import starlark

from ci.parity.buck.evaluate import explain
from ci.parity.cmake.commands.variables import Handler, declare
from ci.parity.cmake.interpreter import LIST_FILE, Interpreter
from ci.parity.cmake.state import Call, Flow
from ci.parity.cmake.values import is_unknown, unknown
from ci.parity.facts import is_inside

FILE_LIST_LIMIT_S = 5.0
MODULE_OPTIONS = {"CTest": "BUILD_TESTING"}
FILE_LIST = re.compile(r"open\('([^']+\.bzl)'\).*join\((\w+)\)", re.DOTALL)


def include_file(run: Interpreter, call: Call) -> None:
    """Evaluate include(): run a file of the tree. CMake's own modules and files of submodules are
    skipped.
    """
    words = call.words
    if is_unknown(words[0]):
        return
    if words[0] in MODULE_OPTIONS:
        declare(run, MODULE_OPTIONS[words[0]], "ON")
        return
    path = run.relative(words[0])
    if path is None or is_inside(path, run.state.sources.tree.submodules):
        return
    if path in run.state.sources.tree.files:
        run.run_file(path, call.command.line)
    elif words[0].endswith(".cmake") and "OPTIONAL" not in words:
        run.note_broken(call.command.line, f"include() refers to {path}, which is not in the tree")


def add_subdirectory(run: Interpreter, call: Call) -> None:
    """Evaluate add_subdirectory(): run the CMakeLists.txt of a directory in the tree. Submodules
    are skipped.
    """
    directory = run.relative(call.words[0])
    # An example adds the whole project. The project's targets are read only once, from its root.
    if is_unknown(call.words[0]) or not directory:
        return
    if is_inside(directory, run.state.sources.tree.submodules):
        return
    if posixpath.join(directory, LIST_FILE) in run.state.sources.tree.files:
        run.add_directory(directory, call.command.line)
    elif run.branch == run.entered:
        run.note_unread(
            call.command.line,
            f"add_subdirectory() refers to {directory}, which has no {LIST_FILE}",
            directory,
        )


def guard_include(run: Interpreter, _call: Call) -> Flow | None:
    """Evaluate include_guard(): return from a file that has been included before."""
    if run.path in run.state.guarded:
        return Flow.RETURN
    run.state.guarded.add(run.path)
    return None


def run_program(run: Interpreter, call: Call) -> None:
    """Evaluate execute_process(). The variables that it sets become unknown, except for the output
    and the exit status of a program that prints a list from a .bzl file.
    """
    words = call.words
    results = dict(pairwise(words))
    text = " ".join(words)
    for keyword in ("OUTPUT_VARIABLE", "RESULT_VARIABLE", "ERROR_VARIABLE", "RESULTS_VARIABLE"):
        if keyword in results:
            run.set(results[keyword], unknown(results[keyword]))
    match = FILE_LIST.search(text)
    if match and "OUTPUT_VARIABLE" in results:
        path = run.relative(match.group(1))
        files = file_list(run, path or "", match.group(2))
        if files is not None:
            run.set(results["OUTPUT_VARIABLE"], (";".join(files),))
            run.set(results.get("RESULT_VARIABLE", "_"), ("0",))


def file_list(run: Interpreter, path: str, name: str) -> list[str] | None:
    """Return the list ``name`` in a .bzl file, or None if it is unknown."""
    sources = run.state.sources
    if path not in sources.file_lists:
        sources.file_lists[path] = read_file_lists(sources.tree.read(path), path)
    lists = sources.file_lists[path]
    run.state.read.add(path)
    if isinstance(lists, str):
        is_broken = path in sources.tree.files
        folder = "" if is_broken else None  # any directory may use the list
        run.note_unread(0, f"{path} is not evaluated: {lists}", folder, is_broken=is_broken)
        return None
    if name not in lists:
        run.note_unread(0, f"{path} has no list {name}")
    return lists.get(name)


def read_file_lists(text: str | None, path: str) -> Mapping[str, list[str]] | str:
    """Return the top-level lists of a .bzl file, or the reason why it cannot be evaluated."""
    if text is None:
        return "the file is not in the tree"
    module = starlark.Module()
    end = time.thread_time() + FILE_LIST_LIMIT_S
    options = starlark.EvalOptions(check_cancelled=lambda: time.thread_time() > end)
    try:
        ast = starlark.parse(path, text, starlark.Dialect.extended())
        starlark.eval_with(options, module, ast, starlark.Globals.standard())
    except starlark.StarlarkError as error:
        return explain(error, path)[0]
    values = ((name, module[name]) for name in re.findall(r"^(\w+)\s*=", text, re.MULTILINE))
    return {name: [*map(str, value)] for name, value in values if isinstance(value, list)}


def use_language(run: Interpreter, call: Call) -> None:
    """Report that cmake_language() is not evaluated. No list file of ExecuTorch uses it."""
    run.note_unread(call.command.line, f"cmake_language({call.words[0]}) is not evaluated")


FLOW_COMMANDS: dict[str, Handler] = {
    "include": include_file,
    "add_subdirectory": add_subdirectory,
    "include_guard": guard_include,
    "return": lambda *_: Flow.RETURN,
    "break": lambda *_: Flow.BREAK,
    "continue": lambda *_: Flow.CONTINUE,
    "execute_process": run_program,
    "cmake_language": use_language,
}
