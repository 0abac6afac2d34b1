"""The names that a project's tree dictates, as manifests/policies/parity.toml states them."""

from __future__ import annotations

import msgspec


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a project is called and where it stands among Meta's repositories.

    ``project``: what its files are included and imported as; ``cells``: Buck cells that hold it;
    ``roots``: its folder in each of them; ``stand_ins``: folders of files that stand for those of
    other projects; ``stubbed``: modules that are recorded instead of run; ``internal``: names of
    folders that the open tree does not have; ``root_variable``: CMake's variable of the tree's
    root; ``generated``: endings of CMake variables that a generated file would set.
    """

    project: str = ""
    cells: tuple[str, ...] = ("",)
    roots: tuple[str, ...] = ()
    stand_ins: tuple[str, ...] = ()
    stubbed: tuple[str, ...] = ()
    internal: tuple[str, ...] = ()
    root_variable: str = ""
    generated: tuple[str, ...] = ()

    def strip_root(self, folder: str) -> str | None:
        """``xplat/executorch/build`` as ``build``; None when it is not the project's."""
        for root in self.roots:
            if folder == root:
                return ""
            if folder.startswith(f"{root}/"):
                return folder[len(root) + 1 :]
        return None
