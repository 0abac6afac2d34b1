"""Commands that set variables: set, option, file, cmake_parse_arguments, and the commands for paths
and properties.

Commands that run or read other files: include(), add_subdirectory(), and execute_process() for
lists in .bzl files. Also include_guard(), return(), break() and continue(). cmake_language() is
only reported as not evaluated.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from itertools import pairwise

import starlark

from ci.parity.buck.evaluate import explain
from ci.parity.cmake.commands.texts import edit_each, edit_list, edit_string, forget
from ci.parity.cmake.interpreter import LIST_FILE, Interpreter
from ci.parity.cmake.state import ROOT, Call, Flow
from ci.parity.cmake.values import is_unknown, split_list, unknown
from ci.parity.facts import is_inside
from ci.parity.policy import compile_pattern

Handler = Callable[[Interpreter, Call], "Flow | None"]
# Sub-commands of file() that set a variable to what they read.
READS = re.compile(r"READ(_SYMLINK)?|STRINGS|SIZE|TIMESTAMP|MD5|SHA\w+")


def set_variable(run: Interpreter, call: Call) -> None:
    """Evaluate set(). A cache entry does not replace a variable that is already set, except with
    FORCE.
    """
    words = call.words
    name = words[0]
    if name.startswith("ENV{"):
        return
    arguments = list(call.command.arguments[1:])
    parent = bool(words[1:]) and words[-1] == "PARENT_SCOPE"
    if parent:
        arguments.pop()
    texts = [argument.text for argument in arguments]
    if "CACHE" in texts:
        run.open_names.add(name)
        arguments = arguments[: texts.index("CACHE")]
        if run.scope.get(name) is not None and "FORCE" not in texts:
            return
    # As in CMake, set(NAME) and set(NAME PARENT_SCOPE) unset a variable.
    if not arguments:
        run.set(name, ("",) if "CACHE" in texts else None, parent=parent)
        return
    if len(arguments) == 1:  # keeps the alternatives of the value
        run.set(name, run.expand(arguments[0]), parent=parent)
    else:
        run.set(name, (";".join(item.text for item in run.items(arguments)),), parent=parent)


def unset_variable(run: Interpreter, call: Call) -> None:
    """Evaluate unset()."""
    run.set(call.words[0], None, parent="PARENT_SCOPE" in call.words)


def declare_option(run: Interpreter, call: Call) -> None:
    """Evaluate option(). Either value is possible, so both branches of an if() on the option are
    taken.
    """
    words = call.words
    declare(run, words[0], words[2] if len(words) > 2 else "OFF")


def declare(run: Interpreter, name: str, default: str) -> None:
    """Create an option with the value ``default``, unless a variable with its name is set."""
    run.open_names.add(name)
    if run.scope.get(name) is None:
        run.set(name, (default,))


def use_file(run: Interpreter, call: Call) -> None:
    """Evaluate the sub-commands of file() that list files or compute a path. Only files in the tree
    are listed. What sub-commands read from files, or compute from them, is unknown.
    """
    words = call.words
    if words[0] not in {"GLOB", "GLOB_RECURSE"}:
        edit_each(run, call, _use_words)
    elif len(words) > 1:
        files = glob_files(run, words[2:], recursive=words[0] != "GLOB")
        for path in filter(None, map(run.relative, files)):
            run.globbed.setdefault(path, run.place(call.command.line))
        run.set(words[1], (";".join(files),))


def _use_words(run: Interpreter, words: list[str]) -> None:
    match words:
        case ["REAL_PATH" | "TO_CMAKE_PATH", path, name, *_]:
            run.set(name, (run.absolute(path),))
        case ["RELATIVE_PATH", name, base, path]:
            run.set(name, (posixpath.relpath(run.absolute(path), run.absolute(base)),))
        case [action, *_] if READS.fullmatch(action):
            forget(run, f"file({action})", words[2:])


def glob_files(run: Interpreter, words: list[str], *, recursive: bool) -> list[str]:
    """Return the files of file(GLOB), with absolute paths or relative to the folder after
    RELATIVE.
    """
    base = None
    if words[:1] == ["RELATIVE"] and len(words) > 1:
        base, words = run.absolute(words[1]), words[2:]
    paths: list[str] = []
    for pattern in words:  # an option such as CONFIGURE_DEPENDS is the name of no file
        path = run.relative(pattern)
        if path is None or is_unknown(pattern):
            continue
        folder, _, last = path.rpartition("/")
        test = compile_pattern(f"{folder}/**/{last}".lstrip("/") if recursive else path)
        start = folder.partition("*")[0].rpartition("/")[0] if "*" in folder else folder
        for name, files in run.sources.folders.items():
            if is_inside(name, [start]):
                paths.extend(f"{ROOT}/{file}" for file in files if test.fullmatch(file))
    return [posixpath.relpath(path, base) for path in paths] if base else paths


def _split_name(run: Interpreter, words: list[str]) -> None:
    match words:
        case [name, path, mode, *_, "BASE_DIR", base]:
            run.set(name, (component(run, posixpath.join(base, path), mode),))
        case [name, path, mode, *_]:
            run.set(name, (component(run, path, mode),))


def component(run: Interpreter, path: str, mode: str) -> str:
    """Return a component of a path, as get_filename_component() does. ``mode`` is its name in
    CMake."""
    base = posixpath.basename(path)
    stem = base.partition(".")[0]
    components = {
        **dict.fromkeys(("ABSOLUTE", "REALPATH"), run.absolute(path)),
        **dict.fromkeys(("DIRECTORY", "PATH"), posixpath.dirname(path)),
        "NAME": base,
        "NAME_WE": stem,
        "EXT": base[len(stem) :],
    }
    return components.get(mode, unknown(f"the {mode} of {path}")[0])


def parse_arguments(run: Interpreter, call: Call) -> None:
    """Evaluate cmake_parse_arguments(PREFIX OPTIONS ONE_VALUE_KEYWORDS MULTI_VALUE_KEYWORDS
    WORDS...).
    """
    # The three keyword lists may be empty strings, which splitting would drop.
    values = [run.expand(argument)[0] for argument in call.command.arguments]
    words = [item.text for item in run.items(call.command.arguments[4:])]
    if values[:1] == ["PARSE_ARGV"] and len(values) > 1:
        skip = int(values[1]) if values[1].isdigit() else 0
        words = split_list(run.get("ARGV"))[skip:]
        values = values[2:]
    if len(values) < 4:
        return
    prefix, (options, ones, multis) = values[0], map(split_list, values[1:4])
    for name in options:
        run.set(f"{prefix}_{name}", ("TRUE" if name in words else "FALSE",))
    table = group_arguments(words, set(options), set(ones), set(multis))
    for name in [*ones, *multis]:
        run.set(f"{prefix}_{name}", (";".join(table[name]),) if name in table else None)
    run.set(f"{prefix}_UNPARSED_ARGUMENTS", (";".join(table.get("", [])),))


def group_arguments(
    words: list[str], options: set[str], ones: set[str], multis: set[str]
) -> dict[str, list[str]]:
    """Map each keyword to the words after it. Words before any keyword, or after an option or the
    value of a one-value keyword, have the key "".
    """
    table: dict[str, list[str]] = {}
    current = ""
    for word in words:
        if word in options:
            current = ""
        elif word in ones or word in multis:
            current = word
            table.setdefault(word, [])
        else:
            table.setdefault(current, []).append(word)
            if current in ones:
                current = ""
    return table


def find_something(run: Interpreter, call: Call) -> None:
    """Evaluate find_library(), get_property() and similar commands. The variable that they set
    becomes unknown, because it depends on the configuration.
    """
    words = call.words
    run.open_names.add(words[0])
    run.set(words[0], unknown(words[0]))
    named = [word for word in words[1:] if word != "NAMES"]
    if call.command.name == "find_library" and named:
        run.libraries[unknown(words[0])[0]] = named[0]


def find_package(run: Interpreter, call: Call) -> None:
    """Evaluate find_package(). It is unknown whether the package is found."""
    name = call.words[0]
    run.open_names.update({f"{name}_FOUND", f"{name.upper()}_FOUND"})


def compute(run: Interpreter, call: Call) -> None:
    """Evaluate math() and separate_arguments(), whose results are unknown."""
    forget(run, f"{call.command.name}({call.words[0]})", call.words)


def edit_path(run: Interpreter, call: Call) -> None:
    """Evaluate cmake_path(), as far as its results do not depend on the machine."""
    edit_each(run, call, _edit_path)


def _edit_path(run: Interpreter, words: list[str]) -> None:
    if len(words) < 2:
        return
    action, name, *arguments = words
    output = name
    if "OUTPUT_VARIABLE" in arguments[:-1]:
        at = arguments.index("OUTPUT_VARIABLE")
        output, arguments = arguments[at + 1], arguments[:at] + arguments[at + 2 :]
    elif action in {"GET", "NATIVE_PATH", "HASH", "COMPARE"} or action.startswith(("IS_", "HAS_")):
        output = words[-1]
        arguments = arguments[:-1]
    elif action == "CONVERT":
        name, output = "", arguments[1] if len(arguments) > 1 else ""
        arguments = [words[1], *arguments[:1]]
    is_normal = "NORMALIZE" in arguments
    arguments = [word for word in arguments if word != "NORMALIZE"]
    path = (run.get(name) or "") if action not in {"SET", "COMPARE", "CONVERT"} else ""
    edit = PATH_EDITS.get(action)
    if edit is None or any(map(is_unknown, (path, *arguments))):
        run.set(output, unknown(f"cmake_path({action})"))
        return
    try:
        result = edit(run, path, arguments)
    except (LookupError, ValueError):
        result = None
    if result is None:
        run.set(output, unknown(f"cmake_path({action})"))
    else:
        run.set(output, (_normalize(result) if is_normal else result,))


def _normalize(path: str) -> str:
    """Return a path as CMake normalizes it, which keeps a slash at the end."""
    if not path:
        return path
    plain = posixpath.normpath(path)
    return f"{plain}/" if path.endswith("/") and plain != "/" else plain


def _split_extension(path: str, *, is_last: bool) -> tuple[str, str]:
    """Return the stem and the extension of the last component of a path. The extension begins at
    the first dot, or at the last one if ``is_last``. A dot at the start begins none."""
    name = posixpath.basename(path)
    at = name.rfind(".") if is_last else name.find(".", 1)
    return (name[:at], name[at:]) if at > 0 and name != ".." else (name, "")


def _get_part(path: str, part: str, options: list[str]) -> str:
    """Return a part of a path for cmake_path(GET). Raises LookupError for an unknown part."""
    root = "/" if path.startswith("/") else ""
    parent = posixpath.dirname(path.rstrip("/") if path.strip("/") == "" else path)
    stem, extension = _split_extension(path, is_last="LAST_ONLY" in options)
    parts = {"ROOT_NAME": "", "ROOT_DIRECTORY": root, "ROOT_PATH": root, "STEM": stem}
    parts |= {"FILENAME": posixpath.basename(path), "EXTENSION": extension}
    parts |= {"RELATIVE_PART": path.lstrip("/"), "PARENT_PATH": parent or root}
    return parts[part]


def _base_of(run: Interpreter, arguments: list[str]) -> str:
    """Return the directory after BASE_DIRECTORY, by default the current one."""
    named = arguments[1] if arguments[:1] == ["BASE_DIRECTORY"] else "."
    return run.absolute(named)


def _remove_name(path: str) -> str:
    return path[: path.rfind("/") + 1]


def _replace_extension(path: str, options: list[str], extension: str) -> str:
    _, old = _split_extension(path, is_last="LAST_ONLY" in options)
    return path.removesuffix(old) + (extension if extension[:1] in {"", "."} else f".{extension}")


def _truth(value: object) -> str:
    return "ON" if value else "OFF"


# How the sub-commands of cmake_path() change a path: from the path and their other words. A
# sub-command that is not here, or that returns None, has an unknown result.
PATH_EDITS: Mapping[str, Callable[[Interpreter, str, list[str]], str | None]] = {
    "SET": lambda _, __, words: words[0] if words else "",
    "APPEND": lambda _, path, words: posixpath.join(path, *words),
    "APPEND_STRING": lambda _, path, words: path + "".join(words),
    "GET": lambda _, path, words: _get_part(path, words[0], words[1:]),
    "NORMAL_PATH": lambda _, path, __: _normalize(path),
    "REMOVE_FILENAME": lambda _, path, __: _remove_name(path),
    "REPLACE_FILENAME": lambda _, path, words: (
        _remove_name(path) + words[0] if posixpath.basename(path) else path
    ),
    "REMOVE_EXTENSION": lambda _, path, words: _replace_extension(path, words, ""),
    "REPLACE_EXTENSION": lambda _, path, words: _replace_extension(path, words[:-1], words[-1]),
    "ABSOLUTE_PATH": lambda run, path, words: posixpath.join(_base_of(run, words), path),
    "RELATIVE_PATH": lambda run, path, words: posixpath.relpath(
        run.absolute(path), _base_of(run, words)
    ),
    "NATIVE_PATH": lambda _, path, __: path,
    "CONVERT": lambda _, __, words: (
        words[0].replace(":", ";") if words[1] == "TO_CMAKE_PATH_LIST" else None
    ),
    "IS_ABSOLUTE": lambda _, path, __: _truth(path.startswith("/")),
    "IS_RELATIVE": lambda _, path, __: _truth(not path.startswith("/")),
    "HAS_FILENAME": lambda _, path, __: _truth(posixpath.basename(path)),
    "HAS_EXTENSION": lambda _, path, __: _truth(_split_extension(path, is_last=False)[1]),
    "HAS_STEM": lambda _, path, __: _truth(_split_extension(path, is_last=False)[0]),
    "HAS_PARENT_PATH": lambda _, path, __: _truth(posixpath.dirname(path)),
}


def begin_project(run: Interpreter, call: Call) -> None:
    """Evaluate project(): set PROJECT_NAME, and set PROJECT_SOURCE_DIR and the like to the current
    directories.
    """
    run.set("PROJECT_NAME", (call.words[0],))
    run.set("PROJECT_BINARY_DIR", (run.get("CMAKE_CURRENT_BINARY_DIR"),))
    for name in ("PROJECT", call.words[0]):
        run.set(f"{name}_SOURCE_DIR", (run.get("CMAKE_CURRENT_SOURCE_DIR"),))


FILE_LIST_LIMIT_S = 5.0
MODULE_OPTIONS = {"CTest": "BUILD_TESTING"}
# ExecuTorch's list files print source lists of build_variables.bzl with a line of Python.
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
    if path is None or is_inside(path, run.sources.tree.submodules):
        return
    if path in run.sources.tree.files:
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
    if is_inside(directory, run.sources.tree.submodules):
        return
    if posixpath.join(directory, LIST_FILE) in run.sources.tree.files:
        run.add_directory(directory, call.command.line)
    elif run.branch == run.entered:
        run.note_unread(
            call.command.line,
            f"add_subdirectory() refers to {directory}, which has no {LIST_FILE}",
            directory,
        )


def guard_include(run: Interpreter, _call: Call) -> Flow | None:
    """Evaluate include_guard(): return from a file that has been included before."""
    if run.path in run.guarded:
        return Flow.RETURN
    run.guarded.add(run.path)
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
    tree = run.sources.tree
    lists = read_file_lists(tree.read(path), path)
    run.read.add(path)
    if isinstance(lists, str):
        is_broken = path in tree.files
        folder = "" if is_broken else None  # any directory may use the list
        run.note_unread(0, f"{path} is not evaluated: {lists}", folder, is_broken=is_broken)
        return None
    if name not in lists:
        run.note_unread(0, f"{path} has no list {name}")
    return lists.get(name)


@lru_cache(maxsize=64)
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


FINDING = (
    *("find_library", "find_program", "find_path", "find_file", "get_target_property"),
    *("get_property", "get_directory_property", "get_source_file_property"),
)
COMMANDS: dict[str, Handler] = {
    "set": set_variable,
    "unset": unset_variable,
    "option": declare_option,
    "cmake_dependent_option": declare_option,
    "list": edit_list,
    "string": partial(edit_each, edit=edit_string),
    "separate_arguments": compute,
    "cmake_path": edit_path,
    "file": use_file,
    "get_filename_component": partial(edit_each, edit=_split_name),
    "cmake_parse_arguments": parse_arguments,
    **dict.fromkeys(FINDING, find_something),
    "find_package": find_package,
    "math": compute,
    "project": begin_project,
    "include": include_file,
    "add_subdirectory": add_subdirectory,
    "include_guard": guard_include,
    "return": lambda *_: Flow.RETURN,
    "break": lambda *_: Flow.BREAK,
    "continue": lambda *_: Flow.CONTINUE,
    "execute_process": run_program,
    "cmake_language": use_language,
}
