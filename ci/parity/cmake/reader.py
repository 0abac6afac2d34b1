"""Read a tree's list files (CMakeLists.txt and the files that they include) as facts, by running
every top-level CMakeLists.txt.
"""

from __future__ import annotations

import posixpath
from functools import cached_property

from ci.parity.cmake.commands.targets import TARGET_COMMANDS
from ci.parity.cmake.commands.variables import COMMANDS
from ci.parity.cmake.interpreter import LIST_FILE, Interpreter
from ci.parity.cmake.state import Sources
from ci.parity.cmake.values import forget_slow
from ci.parity.facts import CMakeFacts, Configuration, ListEntry, Place, is_inside
from ci.parity.trees import Literals, SourceTree


def is_list_file(path: str) -> bool:
    """Return whether a file is a CMakeLists.txt or a CMake module."""
    return path.endswith((".cmake", "/" + LIST_FILE)) or path == LIST_FILE


class StaticReader:
    """Reads the configurations of one tree. Each file is parsed only once."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.paths = sorted(path for path in tree.files if is_list_file(path))
        tree.read_all(self.paths)
        forget_slow()
        self.sources = Sources(tree)
        self.words = ListWords(self.sources)
        self.lists: list[str] = []
        self.globbed: dict[str, Place] = {}

    @cached_property
    def _everything(self) -> list[Run]:
        """Run every CMakeLists.txt that no other one adds, in the configuration ANY (any platform),
        and return the runs.
        """
        runs = []
        reached: set[str] = set()
        roots = [p for p in self.paths if posixpath.basename(p) == LIST_FILE]
        roots = [p for p in roots if not is_inside(p, self.tree.submodules)]
        for path in sorted(roots, key=lambda p: (p.count("/"), p)):
            if path not in reached:
                runs.append(Run(self.sources, Configuration.ANY, posixpath.dirname(path)))
                reached |= runs[-1].read
        return runs

    def read(self, configuration: Configuration) -> CMakeFacts:
        """Return the facts of one configuration."""
        runs = self._everything
        if configuration is not Configuration.ANY:
            runs = [Run(self.sources, configuration, run.root) for run in runs]
        tables = [run.targets for run in runs]
        builders = [builder for table in tables for builder in table.finished()]
        unread = {(n.place, n.reason): n for run in runs for n in run.not_evaluated.values()}
        for run in runs:
            self.globbed.update(run.globbed)
        self.lists = sorted({p for run in runs for p in run.read if p.endswith(".bzl")})
        for builder in builders:
            builder.files = [self._locate(entry, builder.place) for entry in builder.files]
        imported = {name for table in tables for name in table.imported}
        imported.update(name for run in runs for name in run.libraries.values())
        return CMakeFacts(
            configuration=configuration,
            roots=tuple(posixpath.join(run.root, LIST_FILE) for run in runs),
            targets=tuple(builder.build() for builder in builders),
            repeated=tuple(builder.build() for table in tables for builder in table.repeated),
            mentioned=tuple(sorted({path for table in tables for path in table.mentioned})),
            include_directories=tuple(
                sorted({folder for table in tables for folder in table.include_directories})
            ),
            aliases={a: t for table in tables for a, t in table.aliases.items()},
            imported=tuple(sorted(imported)),
            not_evaluated=tuple(unread[key] for key in sorted(unread)),
        )

    def _locate(self, entry: ListEntry, target: Place) -> ListEntry:
        """Return the entry with the line that mentions its file, otherwise with the line of the
        file(GLOB) that found it.
        """
        names, near = [posixpath.basename(entry.path)], entry.place
        fallback = self.globbed.get(entry.path) or self.words.find(names, self.lists, near)
        files = list(dict.fromkeys([near.path, target.path]))
        place = self.words.find(names, files, near, fallback)
        return ListEntry(entry.path, place, entry.condition)


class Run(Interpreter):
    """One run of a top-level CMakeLists.txt in one configuration."""

    def __init__(self, sources: Sources, configuration: Configuration, root: str) -> None:
        super().__init__(sources, configuration, {**COMMANDS, **TARGET_COMMANDS})
        self.root = root
        self.run_root(root)


class ListWords(Literals):
    """Finds the lines of list files that mention a file. Comments are ignored."""

    def __init__(self, sources: Sources) -> None:
        super().__init__(sources.tree)
        self.sources = sources

    def scan(self, path: str) -> dict[str, list[int]]:
        """Return the names of files in a list file, or in a Starlark module, with their lines."""
        lines_of: dict[str, list[int]] = {}
        if path.endswith(".bzl"):
            for word, lines in super().scan(path).items():
                lines_of.setdefault(word.rsplit("/", 1)[-1], []).extend(lines)
            return lines_of
        self.sources.nodes(path)
        commands = self.sources.commands.get(path, [])
        for argument in (argument for command in commands for argument in command.arguments):
            for offset, line in enumerate(argument.text.split("\n")):
                for word in line.split(";"):
                    base = word.rsplit("/", 1)[-1].strip()
                    lines_of.setdefault(base, []).append(argument.line + offset)
        return lines_of
