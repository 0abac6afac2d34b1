"""Commands that create targets, and add sources, libraries and defines to them."""

from __future__ import annotations

from collections.abc import Container, Iterator

from msgspec.structs import replace

from ci.parity.cmake.blocks import Item
from ci.parity.cmake.commands.variables import Handler
from ci.parity.cmake.interpreter import Interpreter
from ci.parity.cmake.state import ROOT, Builder, Call, is_certain
from ci.parity.cmake.values import is_unknown, resolve_genex, split_list
from ci.parity.facts import ListEntry, Word, suffix_of

LIBRARY_WORDS = {
    "STATIC", "SHARED", "MODULE", "OBJECT", "INTERFACE", "EXCLUDE_FROM_ALL", "GLOBAL",
    "UNKNOWN", "WITH_SOABI", "NO_EXTRAS", "THIN_LTO", "OPT_SIZE", "WIN32", "MACOSX_BUNDLE",
}  # fmt: skip
KEYWORDS = {"PUBLIC", "PRIVATE", "INTERFACE", "BEFORE", "AFTER", "LINK_PUBLIC", "LINK_PRIVATE"}
SEARCH_WORDS = KEYWORDS | {"SYSTEM"}
SOURCE_WORDS = KEYWORDS | {"FILE_SET", "TYPE", "HEADERS", "CXX_MODULES", "BASE_DIRS", "FILES"}
OPTION = "option"
PYTHON_MAKERS = ("pybind11_add_module", "python_add_library")
LINK_TYPES = {"debug", "optimized", "general"}
# If a source has no extension, CMake tries these in this order (policy CMP0115). List files of
# ExecuTorch before 1.1 have such sources.
EXTENSIONS = ("", ".c", ".cc", ".cpp", ".cxx", ".cu", ".mm", ".m", ".S", ".h")


def add_library(run: Interpreter, call: Call) -> None:
    """Evaluate add_library(), add_executable() and similar commands that create a target."""
    words, name = call.words, call.words[0]
    if is_unknown(name):
        return
    if "ALIAS" in words[1:2] and len(words) > 2:
        run.targets.aliases[name] = words[2]
        return
    if "IMPORTED" in words:
        run.targets.imported.add(name)
        return
    namesakes = run.targets.table.setdefault(name, [])
    place = run.place(call.command.line)
    kinds = [word for word in words[1:2] if word in LIBRARY_WORDS]
    has_own_kind = not kinds or call.command.name in PYTHON_MAKERS
    kind = call.command.name if has_own_kind else kinds[0].lower()
    fresh = Builder(name, kind, place, run.directory, run.branch, run.conditions)
    if any(o.place != place and is_certain(o.branch, run.branch) for o in namesakes):
        run.targets.repeated.append(fresh)
    in_directory = [namesake for namesake in namesakes if namesake.directory == run.directory]
    target = (in_directory or [fresh])[0]
    if not in_directory:
        namesakes.append(fresh)
    list_sources(run, target, [item for item in call.items[1:] if item.text not in LIBRARY_WORDS])


def add_sources(run: Interpreter, call: Call) -> None:
    """Evaluate target_sources(), including its file sets."""
    # ExecuTorch creates libraries without sources, and adds these in subdirectories.
    if target := find_known(run, call):
        list_sources(run, target, [i for i in call.items[1:] if i.text not in SOURCE_WORDS])


def list_sources(run: Interpreter, target: Builder, items: list[Item]) -> None:
    """Add the sources among ``items`` to ``target``. An object library becomes a link. If a word is
    unknown, the target is marked as incomplete."""
    # A quoted list is one word of the call, but several sources of the target.
    parts = ((part, item.line) for item in items for part in split_list(item.text))
    texts = ((text, at) for part, at in parts for text in resolve_genex(part, run.configuration))
    for text, line in texts:
        if is_unknown(text):
            target.complete = False
            name = text.split("\x01")[1]
            why = f"the sources of {target.name} depend on {name}, which is unknown"
            run.note_unread(line, why)
        elif text.startswith("TARGET_OBJECTS:"):
            target.links.append(Word(text.partition(":")[2], run.place(line)))
        elif (path := source_path(run, text)) is not None:
            target.add(ListEntry(path, run.place(line)), run.branch)


def add_links(run: Interpreter, call: Call) -> None:
    """Evaluate target_link_libraries()."""
    if target := find_known(run, call):
        target.links.extend(words_for(run, call, target, KEYWORDS | LINK_TYPES))


def add_defines(run: Interpreter, call: Call) -> None:
    """Evaluate target_compile_definitions(), and -D arguments of target_compile_options()."""
    target = run.targets.find(call.words[0], run.directory)
    is_flag = call.command.name == "target_compile_options"
    if target is not None:
        words = words_for(run, call, target, KEYWORDS)
        defines = (word for word in words if word.text.startswith("-D") or not is_flag)
        target.defines.extend(replace(w, text=w.text.removeprefix("-D")) for w in defines)


def define_in_directory(run: Interpreter, call: Call) -> None:
    """Evaluate add_definitions() and similar commands, which apply to all targets in and below
    the current directory.
    """
    flagged = call.command.name != "add_compile_definitions"
    for item in call.items:
        if not is_unknown(item.text) and (item.text.startswith("-D") or not flagged):
            place = run.place(item.line)
            word = Word(item.text.removeprefix("-D"), place)
            run.targets.directory_defines.append((run.directory, word))


def search(run: Interpreter, call: Call) -> None:
    """Evaluate include_directories() and similar commands: record the folders of the tree that
    they name. The name of a target is skipped.
    """
    for item in call.items[1 if call.command.name.startswith("target") else 0 :]:
        for text in resolve_genex(item.text, run.configuration):
            path = None if is_unknown(text) or text in SEARCH_WORDS else run.relative(text)
            if path is not None:
                run.targets.include_directories.add(path)


def mention(run: Interpreter, call: Call) -> None:
    """Record files that a command mentions but does not compile, so that they are not reported
    as unlisted.
    """
    for word in call.words:
        path = run.relative(word) if suffix_of(word) and not is_unknown(word) else None
        if path:
            run.targets.mentioned.add(path)


def find_known(run: Interpreter, call: Call) -> Builder | None:
    """Return the target that a call changes, or None. Report a target that certainly does not
    exist.
    """
    target = run.targets.find(call.words[0], run.directory)
    if target is None and not is_unknown(call.words[0]) and not run.branch:
        reason = f"{call.command.name}({call.words[0]}) refers to an unknown target"
        run.note_unread(call.command.line, reason)
    return target


def words_for(
    run: Interpreter, call: Call, target: Builder, keywords: Container[str]
) -> Iterator[Word]:
    """Yield the words that a command adds to ``target``, each with its condition.

    Conditions under which the target itself exists are left out.
    """
    written = {argument.text for argument in call.command.arguments}
    exported = False
    for item in call.items[1:]:
        if item.text in {"PUBLIC", "INTERFACE"}:
            exported = True
        elif item.text == "PRIVATE":
            exported = False
        for word in resolve_genex(item.text, run.configuration):
            text = run.libraries.get(word, word)
            if text in keywords or is_unknown(text):
                continue
            sets = run.optional.get(item.text) if item.text not in written else None
            condition_sets = sets or {frozenset()}
            condition_sets = condition_sets if "$<$<" not in item.text else {frozenset({item.text})}
            certain = any(
                (run.conditions | conditions) <= target.conditions for conditions in condition_sets
            )
            yield Word(text, run.place(item.line), "" if certain else OPTION, exported)


def source_path(run: Interpreter, text: str) -> str | None:
    """Return the path of a source in the tree, or None for a generated file, a file outside the
    tree or a folder, such as one of a file set.
    """
    path = run.absolute(text)
    while path.startswith(ROOT + ROOT + "/"):
        # Two mutually exclusive branches both put the root before a list.
        path = path[len(ROOT) :]
    if not path.startswith(ROOT + "/"):
        return None
    path, files = path[len(ROOT) + 1 :], run.sources.tree.files
    source = next((path + ending for ending in EXTENSIONS if path + ending in files), path)
    return source if suffix_of(source) or source in files else None


MAKERS = ("add_library", "add_executable", *PYTHON_MAKERS, "hip_add_library", "cuda_add_library")
IN_DIRECTORY = ("add_definitions", "add_compile_definitions", "add_compile_options")
MENTIONING = ("add_custom_command", "add_custom_target", "install", "set_source_files_properties")
TARGET_COMMANDS: dict[str, Handler] = {
    **dict.fromkeys(MAKERS, add_library),
    "target_sources": add_sources,
    "target_link_libraries": add_links,
    "target_compile_definitions": add_defines,
    "target_compile_options": add_defines,
    **dict.fromkeys(IN_DIRECTORY, define_in_directory),
    "include_directories": search,
    "target_include_directories": search,
    **dict.fromkeys(MENTIONING, mention),
}
