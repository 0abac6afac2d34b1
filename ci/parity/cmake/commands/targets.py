"""Commands that create targets, and add sources, libraries and defines to them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from ci.parity.cmake.blocks import Item
from ci.parity.cmake.commands.variables import Handler
from ci.parity.cmake.interpreter import Interpreter
from ci.parity.cmake.state import ROOT, Call
from ci.parity.cmake.values import is_unknown, resolve_genex, split_list
from ci.parity.facts import CMakeTarget, ListEntry, Place, Word, is_header, is_inside, suffix_of

LIBRARY_WORDS = {
    "STATIC", "SHARED", "MODULE", "OBJECT", "INTERFACE", "EXCLUDE_FROM_ALL", "GLOBAL",
    "UNKNOWN", "WITH_SOABI", "NO_EXTRAS", "THIN_LTO", "OPT_SIZE", "WIN32", "MACOSX_BUNDLE",
}  # fmt: skip
KEYWORDS = {"PUBLIC", "PRIVATE", "INTERFACE", "BEFORE", "AFTER", "LINK_PUBLIC", "LINK_PRIVATE"}
SEARCH_WORDS = KEYWORDS | {"SYSTEM"}
SOURCE_WORDS = KEYWORDS | {"FILE_SET", "TYPE", "HEADERS", "CXX_MODULES", "BASE_DIRS", "FILES"}
OPTION = "option"
PYTHON_MAKERS = {"pybind11_add_module", "python_add_library"}
LINK_TYPES = {"debug", "optimized", "general"}
# If a source has no extension, CMake tries these in this order (policy CMP0115).
EXTENSIONS = ("", ".c", ".cc", ".cpp", ".cxx", ".cu", ".mm", ".m", ".S", ".h")


@dataclass
class Builder:
    """A target that commands may still extend while list files are run."""

    name: str
    kind: str
    place: Place
    directory: str
    branch: tuple[int, ...]
    conditions: frozenset[str] = frozenset()
    files: list[ListEntry] = field(default_factory=list)
    branches: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)  # of each file
    links: list[Word] = field(default_factory=list)
    defines: list[Word] = field(default_factory=list)
    directory_defines: tuple[Word, ...] = ()
    complete: bool = True

    def add(self, entry: ListEntry, branch: tuple[int, ...]) -> None:
        """Add a file. It is listed once, or twice if two of its branches are certainly taken."""
        known = self.branches.setdefault(entry.path, [])
        if not known or (len(known) == 1 and is_certain(known[0], branch)):
            self.files.append(entry)
        known.append(branch)

    def build(self) -> CMakeTarget:
        return CMakeTarget(
            name=self.name,
            kind=self.kind,
            place=self.place,
            directory=self.directory,
            srcs=tuple(e for e in self.files if not is_header(e.path)),
            headers=tuple(e for e in self.files if is_header(e.path)),
            links=tuple(dict.fromkeys(self.links)),
            defines=tuple(dict.fromkeys(self.defines)),
            directory_defines=self.directory_defines,
            complete=self.complete,
        )


class Targets:
    """The targets of one run, and the commands that create and extend them.

    Mutually exclusive directories may each have a target of the same name.
    """

    def __init__(self) -> None:
        self.table: dict[str, list[Builder]] = {}
        self.aliases: dict[str, str] = {}
        self.imported: set[str] = set()
        self.repeated: list[Builder] = []
        self.mentioned: set[str] = set()
        self.include_directories: set[str] = set()
        self.directory_defines: list[tuple[str, Word]] = []

    def has(self, name: str) -> bool:
        return name in self.table or name in self.aliases

    def find(self, name: str, directory: str) -> Builder | None:
        """Return the target with a name or alias: the one in ``directory``, otherwise the one that
        was created last, otherwise None.
        """
        known = self.table.get(self.aliases.get(name, name), [])
        own = [target for target in known if target.directory == directory]
        fitting = own or known
        return fitting[-1] if fitting else None

    def finished(self) -> Iterator[Builder]:
        """Yield all targets, with the defines of their directory and the directories above it."""
        for target in (target for known in self.table.values() for target in known):
            words = (w for d, w in self.directory_defines if is_inside(target.directory, [d]))
            target.directory_defines = tuple(dict.fromkeys(words))
            yield target

    def commands(self) -> dict[str, Handler]:
        return {
            "add_library": self.add_library,
            "add_executable": self.add_library,
            "pybind11_add_module": self.add_library,
            "python_add_library": self.add_library,
            "hip_add_library": self.add_library,
            "cuda_add_library": self.add_library,
            "target_sources": self.add_sources,
            "target_link_libraries": self.add_links,
            "target_compile_definitions": self.add_defines,
            "target_compile_options": self.add_defines,
            "add_definitions": self.define_in_directory,
            "add_compile_definitions": self.define_in_directory,
            "add_compile_options": self.define_in_directory,
            "include_directories": self.search,
            "target_include_directories": self.search,
            "add_custom_command": self.mention,
            "add_custom_target": self.mention,
            "install": self.mention,
            "set_source_files_properties": self.mention,
        }

    def add_library(self, run: Interpreter, call: Call) -> None:
        """Evaluate add_library(), add_executable() and similar commands that create a target."""
        words = call.words
        if is_unknown(words[0]):
            return
        name = words[0]
        if "ALIAS" in words[1:2] and len(words) > 2:
            self.aliases[name] = words[2]
            return
        if "IMPORTED" in words:
            self.imported.add(name)
            return
        known = self.table.setdefault(name, [])
        place = run.place(call.command.line)
        kinds = [word for word in words[1:2] if word in LIBRARY_WORDS]
        own = not kinds or call.command.name in PYTHON_MAKERS
        kind = call.command.name if own else kinds[0].lower()
        fresh = Builder(name, kind, place, run.directory, run.branch, run.conditions)
        if any(o.place != place and is_certain(o.branch, run.branch) for o in known):
            self.repeated.append(fresh)
        here = [other for other in known if other.directory == run.directory]
        target = (here or [fresh])[0]
        if not here:
            known.append(fresh)
        self._list(run, target, [item for item in call.items[1:] if item.text not in LIBRARY_WORDS])

    def add_sources(self, run: Interpreter, call: Call) -> None:
        """Evaluate target_sources(), including its file sets."""
        if target := self.find_known(run, call):
            self._list(run, target, [i for i in call.items[1:] if i.text not in SOURCE_WORDS])

    def _list(self, run: Interpreter, target: Builder, items: list[Item]) -> None:
        # A quoted list is one word of the call, but several sources of the target.
        parts = ((part, item.line) for item in items for part in split_list(item.text))
        texts = (
            (text, at) for part, at in parts for text in resolve_genex(part, run.configuration)
        )
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

    def add_links(self, run: Interpreter, call: Call) -> None:
        if target := self.find_known(run, call):
            target.links.extend(words_for(run, call, target, KEYWORDS | LINK_TYPES))

    def add_defines(self, run: Interpreter, call: Call) -> None:
        """Evaluate target_compile_definitions(), and -D arguments of target_compile_options()."""
        target = self.find(call.words[0], run.directory)
        is_flag = call.command.name == "target_compile_options"
        if target is not None:
            words = words_for(run, call, target, KEYWORDS)
            kept = (word for word in words if word.text.startswith("-D") or not is_flag)
            target.defines.extend(replace(w, text=w.text.removeprefix("-D")) for w in kept)

    def define_in_directory(self, run: Interpreter, call: Call) -> None:
        """Evaluate add_definitions() and similar commands, which apply to all targets in and below
        the current directory.
        """
        flagged = call.command.name != "add_compile_definitions"
        for item in call.items:
            if not is_unknown(item.text) and (item.text.startswith("-D") or not flagged):
                place = run.place(item.line)
                word = Word(item.text.removeprefix("-D"), place)
                self.directory_defines.append((run.directory, word))

    def search(self, run: Interpreter, call: Call) -> None:
        """Evaluate include_directories() and similar commands: record the folders of the tree that
        they name. The name of a target is skipped.
        """
        for item in call.items[1 if call.command.name.startswith("target") else 0 :]:
            for text in resolve_genex(item.text, run.configuration):
                path = None if is_unknown(text) or text in SEARCH_WORDS else run.relative(text)
                if path is not None:
                    self.include_directories.add(path)

    def mention(self, run: Interpreter, call: Call) -> None:
        """Record files that a command mentions but does not compile, so that they are not reported
        as unlisted.
        """
        for word in call.words:
            path = run.relative(word) if suffix_of(word) and not is_unknown(word) else None
            if path:
                self.mentioned.add(path)

    def find_known(self, run: Interpreter, call: Call) -> Builder | None:
        """Return the target that a call changes, or None. Report a target that certainly does not
        exist.
        """
        target = self.find(call.words[0], run.directory)
        if target is None and not is_unknown(call.words[0]) and not run.branch:
            what = f"{call.command.name}({call.words[0]}) refers to an unknown target"
            run.note_unread(call.command.line, what)
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
            given = sets or {frozenset()}
            given = given if "$<$<" not in item.text else {frozenset({item.text})}
            certain = any((run.conditions | one) <= target.conditions for one in given)
            yield Word(text, run.place(item.line), "" if certain else OPTION, exported)


def is_certain(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Return whether two branches are certainly taken together, because one encloses the other."""
    size = min(len(first), len(second))
    return first[:size] == second[:size]


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
    found = next((path + ending for ending in EXTENSIONS if path + ending in files), path)
    return found if suffix_of(found) or found in files else None
