"""Which file of the tree a load() statement names.

``@fbsource//xplat/executorch/P:F.bzl`` and ``@fbcode//executorch/P:F.bzl`` are P/F.bzl of the
tree, or an open source stand-in for it: the layout of the tree says where.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from ci.parity.facts import is_inside
from ci.parity.policy import Layout
from ci.parity.trees import SourceTree


@dataclass(frozen=True)
class Loaded:
    """A load: ``path`` in the tree when it was found; ``own`` when it should have been there.

    ``vendored`` is a file of a submodule, which may not be checked out.
    """

    module: str
    path: str | None
    own: bool
    vendored: bool = False


def resolve_load(module: str, package: str, tree: SourceTree, folders: Container[str]) -> Loaded:
    """Find the file that ``module``, as written in a file of ``package``, stands for.

    ``//p:f.bzl`` of a folder that the tree does not have is one of Meta's.
    """
    cell, slashes, rest = module.partition("//")
    if not slashes:
        name = module.removeprefix(":")
        path = f"{package}/{name}" if package else name
        return Loaded(module, path if path in tree.files else None, own=True)
    cell = cell.removeprefix("@")
    folder, _, name = rest.partition(":")
    if not name:
        folder, _, name = rest.rpartition("/")
    for candidate in candidates(cell, folder, tree.layout):
        path = f"{candidate}/{name}" if candidate else name
        if path in tree.files:
            return Loaded(module, path, own=True)
    inside = is_inside(folder, tree.submodules)
    own = tree.layout.strip_root(folder) is not None or (cell == "" and folder in folders)
    is_internal = not set(folder.split("/")).isdisjoint(tree.layout.internal)
    return Loaded(module, None, own and not inside and not is_internal, inside)


def candidates(cell: str, folder: str, layout: Layout) -> list[str]:
    """The folders where a module of this tree may be, best first."""
    if cell not in layout.cells:
        return []
    inner = layout.strip_root(folder)
    found = [] if inner is None else [inner, *(f"{top}/{inner}" for top in layout.stand_ins)]
    if cell in {"", "root", layout.project}:
        found.append(folder)
    return [path.strip("/") for path in found]
