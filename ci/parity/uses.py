"""Find what the files of the tree use: headers, Python modules, and macros that build
files define.
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from ci.parity.facts import (
    BuckFacts,
    CMakeFacts,
    Include,
    Place,
    closure,
    directory_of,
    is_header,
    is_source,
)
from ci.parity.trees import SourceTree

INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|import)[ \t]*([<\"])([^>\"\n]+)", re.MULTILINE)

DIRECTIVE = re.compile(
    r"^[ \t]*#[ \t]*(ifndef|ifdef|if|elif|else|endif|define|include|import)\b"
    r"[ \t]*[<\"]?([^>\"\n]*)",
    re.MULTILINE,
)
DEFINED = re.compile(r"(?:ifdef\s+(\w+)|if\s+defined\s*\(?\s*(\w+)\s*\)?)\s*(?:/[/*].*)?")
UNKNOWN = "?"


def find_includes(tree: SourceTree, buck: BuckFacts, cmake: Iterable[CMakeFacts]) -> dict[str, Any]:
    """Read the includes of every source and header of the tree. Return the fields of ParityFacts
    that are about includes.
    """
    folders = sorted({folder for facts in cmake for folder in facts.include_directories})

    @cache
    def find(name: str) -> tuple[str | None, str]:
        """Return the first folder that contains a header, and the path of the header."""
        headers = ((folder, join(tree, folder, name)) for folder in folders)
        return next((pair for pair in headers if pair[1]), (None, ""))

    entries = (e for t in buck.targets for e in t.entries)
    listed = {name for entry in entries for name in (entry.path, entry.made_as)}
    paths = sorted(path for path in tree.files if is_source(path) or is_header(path))
    tree.read_all(paths)
    outside = buck.outside_headers
    prefix = f"{tree.layout.project}/"
    includes: list[Include] = []
    headers, needed, guarded, names = {}, {}, {}, set[str]()
    for path in paths:
        rows = list(read_includes(tree, path, find, listed))
        headers[path] = tuple(dict.fromkeys(header for *_, header in rows if header))
        names.update(name.rpartition("/")[2] for name, *_ in rows)
        if path in listed:
            includes.extend(
                Include(name, Place(path, (tree.read(path) or "").count("\n", 0, at) + 1), folder)
                for name, at, folder, _ in rows
                if folder is not None
            )
            includes.extend(find_broken(tree, path, rows, outside))
            header_by_name = {
                name: header for name, *_, header in rows if header and name.startswith(prefix)
            }
            header_by_name |= {name: name for name, *_ in rows if name in outside}
            by_macro = group_includes(tree.read(path) or "") if header_by_name else {}
            of_macro = {}
            for macro, included in by_macro.items():
                by_name = header_by_name.items()
                of_macro[macro] = tuple(header for name, header in by_name if name in included)
            needed[path] = of_macro.pop("", ())
            if guarded_headers := {macro: files for macro, files in of_macro.items() if files}:
                guarded[path] = guarded_headers
    return {
        "includes": tuple(includes),
        "headers": headers,
        "needed": needed,
        "guarded": guarded,
        "header_names": frozenset(names),
    }


def find_broken(
    tree: SourceTree,
    path: str,
    rows: Iterable[tuple[str, int, str | None, str]],
    outside: Collection[str],
) -> Iterator[Include]:
    """Yield the includes of a file by a full path that nothing in the tree has, except those inside
    an #if, which may not be compiled. ``outside`` are the headers of other projects.
    """
    prefix = f"{tree.layout.project}/"
    broken = [
        (name, at)
        for name, at, _, header in rows
        if name.startswith(prefix) and not header and name not in outside
    ]
    text = (tree.read(path) or "") if broken else ""
    always = group_includes(text).get("", set()) if broken else set()
    for name, at in broken:
        if name in always:
            yield Include(name, Place(path, text.count("\n", 0, at) + 1), None)


def group_includes(text: str) -> dict[str, set[str]]:
    """Return the names that ``text`` includes. The keys are the macros that guard them.

    Names outside any #if have the key "". An include guard does not count as an #if. Names inside a
    single #if on one macro have that macro as the key. All other names are left out.
    """
    names: dict[str, set[str]] = defaultdict(set)
    inside: list[str] = []  # the macro of each #if; "!" marks a possible include guard
    for match in DIRECTIVE.finditer(text):
        word, operand = match[1], match[2]
        if word == "ifndef" and not names:
            inside.append("!" + "".join(operand.split()[:1]))
        elif word.startswith("if"):
            single = DEFINED.fullmatch(f"{word} {operand}".strip())
            inside.append((single[1] or single[2]) if single else UNKNOWN)
        elif word == "endif":
            inside = inside[:-1]
        elif word in ("elif", "else"):
            inside = [*inside[:-1], UNKNOWN]
        elif word == "define":
            inside = [] if inside == ["!" + "".join(operand.split()[:1])] else inside
        elif len(inside) < 2 and not "".join(inside).startswith((UNKNOWN, "!")):
            names["".join(inside)].add(operand)
    return names


def read_includes(
    tree: SourceTree, path: str, find: Callable[[str], tuple[str | None, str]], listed: set[str]
) -> Iterator[tuple[str, int, str | None, str]]:
    """Yield the includes of one file. Each is the name, its offset in the text, the include
    directory that CMake needs to find it (or None), and the header's path in the tree (or "").

    A header that a rule makes has the path under which the rule is listed. Names that start with
    the project's name, and headers next to the file, need no directory.
    """
    prefix = f"{tree.layout.project}/"
    for match in INCLUDE.finditer(tree.read(path) or ""):
        name = match[2]
        inner = name.removeprefix(prefix)
        if inner != name:
            is_known = inner in tree.files or inner in listed
            yield name, match.start(), None, inner if is_known else ""
        elif match[1] == '"' and (beside := join(tree, directory_of(path), name)):
            yield name, match.start(), None, beside
        else:
            yield name, match.start(), *find(name)


def join(tree: SourceTree, folder: str, name: str) -> str:
    """Return the path of the file ``name`` in ``folder``, or "" if there is no such file."""
    path = posixpath.join(folder, name)
    if "./" in path or "//" in path:
        path = posixpath.normpath(path)
    return path if path in tree.files else ""


IMPORT = re.compile(
    r"^(?P<indent>[ \t]*)(?:from[ \t]+(?P<module>\.*[\w.]*)[ \t]+import[ \t]+"
    r"(?:\((?P<many>[^)]*)\)|(?P<few>[^\n#;]+))|import[ \t]+(?P<plain>[\w.]+(?:[^\n#;]*)))",
    re.MULTILINE,
)
NAME = re.compile(r"(?:^|,)\s*([\w.]+)")
COMMENT = re.compile(r"#[^\n]*")
TYPING = re.compile(r"^if (?:typing\.)?TYPE_CHECKING:\n(?:[ \t]+[^\n]*\n|[ \t]*\n)+", re.MULTILINE)
# An import that may fail is not a dependency.
TRIED = re.compile(r"^([ \t]*)try:[^\n]*\n(?:\1[ \t]+[^\n]*\n|[ \t]*\n)+", re.MULTILINE)


def find_imports(tree: SourceTree) -> Mapping[str, tuple[str, ...]]:
    """Map each Python file of the tree to the files of the tree that it imports."""
    paths = sorted(path for path in tree.files if path.endswith(".py"))
    tree.read_all(paths)
    modules: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        name = path[: -len(".py")].removesuffix("/__init__")
        # Buck makes an __init__.py without code, so no Buck file has to list it.
        has_code = COMMENT.sub("", tree.read(path) or "").strip()
        if has_code or not path.endswith("/__init__.py"):
            modules[name].append(path)
        else:
            modules.setdefault(name, [])
    imports = {path: sorted(set(read_imports(tree, path, modules))) for path in paths}
    return {path: tuple(files) for path, files in imports.items() if files}


def read_imports(tree: SourceTree, path: str, modules: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the files of the tree that a Python file imports, except imports that may fail or are
    only for type checkers. ``modules`` are the files of each module that have code.
    """
    text = tree.read(path) or ""
    text = TYPING.sub("", text) if "TYPE_CHECKING" in text else text
    text = TRIED.sub("", text) if "try:" in text else text
    project = tree.layout.project
    for match in IMPORT.finditer(text):
        module, plain = match["module"], match["plain"]
        named = match["many"] or match["few"] or plain or ""
        names = NAME.findall(COMMENT.sub("", named) if "#" in named else named)
        if plain:
            folders = [absolute(name, path, project) for name in names]
        else:
            folder = absolute(module, path, project)
            folders = [f"{folder}/{name}".lstrip("/") for name in names]
            # `import *` names nothing, and uses the module itself.
            if not folders or not all(inner in modules for inner in folders):
                folders.append(folder)
        for folder in folders:
            yield from modules.get(folder, ())


def absolute(module: str, path: str, project: str) -> str:
    """Return the path of a module from the root of the tree, without extension. ``path`` is the
    importing file, which relative imports start from.
    """
    name = module.lstrip(".")
    dots = len(module) - len(name)
    inner = name.removeprefix(f"{project}.").replace(".", "/")
    if not dots:
        return inner
    folder = directory_of(path)
    for _ in range(dots - 1):
        folder = directory_of(folder)
    return f"{folder}/{inner}".strip("/")


WORD = re.compile(r"[A-Za-z_]\w*")


def find_macros(
    tree: SourceTree,
    buck: BuckFacts,
    cmake: Iterable[CMakeFacts],
    headers: Mapping[str, tuple[str, ...]],
) -> dict[str, tuple[str, ...]]:
    """Map each macro to the files that mention it. ``headers`` are the headers that each source and
    header includes.

    An exported macro is searched for in all files. Any other macro is searched for in the files of
    the targets that define it, and in the files that these include.
    """
    defined: dict[str, set[str]] = defaultdict(set)
    exported: set[str] = set()
    for target in (*buck.targets, *(t for facts in cmake for t in facts.targets)):
        names = {word.text.partition("=")[0] for word in target.defines}
        paths = [entry.path for entry in target.entries] if names else []
        for path in closure(paths, lambda each: headers.get(each, ())):
            defined[path] |= names
        exported |= {word.text.partition("=")[0] for word in target.defines if word.exported}
    mentions: dict[str, list[str]] = defaultdict(list)
    anywhere = re.compile("|".join(map(re.escape, sorted(exported))))
    for path in headers:
        text = tree.read(path) or ""
        names = defined.get(path, set())
        names = names | exported if anywhere.search(text) else names
        for name in names.intersection(WORD.findall(text)) if names else ():
            mentions[name].append(path)
    return {name: tuple(paths) for name, paths in sorted(mentions.items())}
