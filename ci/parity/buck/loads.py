"""Which file of the tree a load() statement names.

ExecuTorch's cells: ``@fbsource//xplat/executorch/P:F.bzl`` and ``@fbcode//executorch/P:F.bzl``
are P/F.bzl, or the open source stand-in below shim_et/ (shim/ or build/ in older trees).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from ci.parity.facts import is_inside

OWN_CELLS = ("", "fbsource", "fbcode", "executorch", "root")
OWN_PREFIXES = ("xplat/executorch", "executorch", "fbcode/executorch")
STAND_INS = ("shim_et/xplat/executorch", "shim/xplat/executorch", "shim", "shim_et")


@dataclass(frozen=True)
class Loaded:
    """A load: ``path`` in the tree when it was found; ``own`` when it should have been there.

    ``vendored`` is a file of a submodule, which may not be checked out.
    """

    module: str
    path: str | None
    own: bool
    vendored: bool = False


def resolve_load(
    module: str,
    package: str,
    files: Container[str],
    folders: Container[str],
    submodules: Sequence[str] = (),
) -> Loaded:
    """Find the file that ``module``, as written in a file of ``package``, stands for.

    ``//p:f.bzl`` of a folder that the tree does not have is one of Meta's.
    """
    cell, slashes, rest = module.partition("//")
    if not slashes:
        name = module.removeprefix(":")
        path = f"{package}/{name}" if package else name
        return Loaded(module, path if path in files else None, own=True)
    cell = cell.removeprefix("@")
    folder, _, name = rest.partition(":")
    if not name:
        folder, _, name = rest.rpartition("/")
    for candidate in candidates(cell, folder):
        path = f"{candidate}/{name}" if candidate else name
        if path in files:
            return Loaded(module, path, own=True)
    inside = is_inside(folder, submodules)
    own = is_own(folder) or (cell == "" and folder in folders)
    return Loaded(module, None, own and not inside and not is_internal(folder), inside)


def candidates(cell: str, folder: str) -> list[str]:
    """The folders where a module of this tree may be, best first."""
    if cell not in OWN_CELLS:
        return []
    inner = strip_prefix(folder)
    found = [] if inner is None else [inner, *(f"{top}/{inner}" for top in STAND_INS)]
    if cell in {"", "executorch", "root"}:
        found.append(folder)
    return [path.strip("/") for path in found]


def is_internal(folder: str) -> bool:
    """Whether a folder is one that Meta keeps out of the open tree: its name is ``fb``."""
    return "fb" in folder.split("/")


def is_own(folder: str) -> bool:
    """Whether a folder of a cell is ExecuTorch's."""
    return strip_prefix(folder) is not None


def strip_prefix(folder: str) -> str | None:
    """``xplat/executorch/build`` as ``build``; None when it is not ExecuTorch's."""
    for prefix in OWN_PREFIXES:
        if folder == prefix:
            return ""
        if folder.startswith(prefix + "/"):
            return folder[len(prefix) + 1 :]
    return None
