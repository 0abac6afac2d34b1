"""Both sides of a tree as facts: read side by side in worker processes, kept by content."""

from __future__ import annotations

from collections.abc import Sequence

from ci.parity.buck.reader import read_buck
from ci.parity.cmake.reader import StaticReader
from ci.parity.facts import CMakeFacts, Configuration, TreeFacts
from ci.parity.trees import Tree


def read_tree(tree: Tree, scope: Sequence[str] = ()) -> TreeFacts:
    """Read both sides in this process."""
    return TreeFacts(read_buck(tree, scope), read_cmake_side(tree), tree.files, tree.submodules)


def read_cmake_side(tree: Tree) -> tuple[CMakeFacts, ...]:
    """Every configuration of the CMake side."""
    reader = StaticReader(tree)
    return tuple(reader.read(configuration) for configuration in Configuration)
