"""Which files of the tree a Python file imports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ci.parity.facts import directory_of
from ci.parity.trees import SourceTree

IMPORT = re.compile(
    r"^(?P<indent>[ \t]*)(?:from[ \t]+(?P<module>\.*[\w.]*)[ \t]+import[ \t]+"
    r"(?:\((?P<many>[^)]*)\)|(?P<few>[^\n#;]+))|import[ \t]+(?P<plain>[\w.]+(?:[^\n#;]*)))",
    re.MULTILINE,
)
NAME = re.compile(r"(?:^|,)\s*([\w.]+)")
COMMENT = re.compile(r"#[^\n]*")
TYPING = re.compile(r"^if (?:typing\.)?TYPE_CHECKING:\n(?:[ \t]+[^\n]*\n|[ \t]*\n)+", re.MULTILINE)
# What may be missing is no dependency.
TRIED = re.compile(r"^([ \t]*)try:[^\n]*\n(?:\1[ \t]+[^\n]*\n|[ \t]*\n)+", re.MULTILINE)


def find_imports(tree: SourceTree) -> Mapping[str, tuple[str, ...]]:
    """Each Python file of the tree with the files of the tree that it imports."""
    paths = sorted(path for path in tree.files if path.endswith(".py"))
    tree.read_all(paths)
    found = {path: sorted(set(read_imports(tree, path))) for path in paths}
    return {path: tuple(files) for path, files in found.items() if files}


def read_imports(tree: SourceTree, path: str) -> Iterator[str]:
    """The files that one file imports, where names of modules lead to one."""
    text = TRIED.sub("", TYPING.sub("", tree.read(path) or ""))
    for match in IMPORT.finditer(text):
        module, plain = match["module"], match["plain"]
        names = NAME.findall(COMMENT.sub("", match["many"] or match["few"] or plain or ""))
        if plain:
            folders = [absolute(name, path, tree.layout.project) for name in names]
        else:
            folder = absolute(module, path, tree.layout.project)
            folders = [f"{folder}/{name}".lstrip("/") for name in names]
            if not all(is_module(tree, inner) for inner in folders):
                folders.append(folder)
        for folder in folders:
            yield from (f for f in (f"{folder}.py", f"{folder}/__init__.py") if f in tree.files)


def is_module(tree: SourceTree, folder: str) -> bool:
    """Whether a name stands for a module of its own."""
    return f"{folder}.py" in tree.files or f"{folder}/__init__.py" in tree.files


def absolute(module: str, path: str, project: str) -> str:
    """A module's path without its suffix, from the root of the tree."""
    name = module.lstrip(".")
    dots = len(module) - len(name)
    inner = name.removeprefix(f"{project}.").replace(".", "/")
    if not dots:
        return inner
    folder = directory_of(path)
    for _ in range(dots - 1):
        folder = directory_of(folder)
    return f"{folder}/{inner}".strip("/")
