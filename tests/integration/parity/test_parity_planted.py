"""Drifts that are planted in pytorch/executorch's tree: each is found, and nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import pytest

from ci.parity.reading import read_tree_here
from ci.parity.trees import RevisionTree
from tests.integration.parity.upstream import MAIN, POLICY, WALKS, compare, git_dir

pytestmark = [*WALKS, pytest.mark.nightly]
QNN = "backends/qualcomm"
HEADER = 'OUTPUT_SCHEMA_HEADER = SCHEMA_NAME + "_gen.h"'
ARENA = """
set(_header ${CMAKE_CURRENT_SOURCE_DIR}/print_evalue.h)
cmake_path(GET _header PARENT_PATH _folder)
cmake_path(APPEND _folder arena.cpp OUTPUT_VARIABLE _arena)
target_sources(extension_evalue_util PRIVATE ${_arena})
"""


class PlantedTree(RevisionTree):
    """The tree of upstream with other texts for some files."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        super().__init__(git_dir(), MAIN, POLICY.layout)
        self.planted = texts

    @cached_property
    def files(self) -> frozenset[str]:
        return frozenset(self._listing) - {*self.submodules} | self.planted.keys()

    def read(self, path: str) -> str | None:
        return self.planted[path] if path in self.planted else super().read(path)


def find_new(texts: Mapping[str, str]) -> set[tuple[str, str]]:
    """Return the kinds and paths of the findings that the texts add."""
    before, after = (compare(read_tree_here(PlantedTree(planted))) for planted in ({}, texts))
    return {(after[key].kind.value, after[key].path) for key in after.keys() - before.keys()}


def test_drifts_planted_in_upstream_are_found_and_nothing_else_is() -> None:
    upstream = PlantedTree({})

    def change(path: str, old: str, new: str) -> dict[str, str]:
        text = upstream.read(path) or ""
        assert old in text
        return {path: text.replace(old, new, 1)}

    evalue = "extension/evalue_util/CMakeLists.txt"
    new_findings = find_new(
        {
            **change(
                f"{QNN}/targets.bzl",
                'OUTPUT_SCHEMA_HEADER = SCHEMA_NAME + "_generated.h"',
                HEADER,
            ),
            f"{QNN}/builders/__init__.py": f"{upstream.read(f'{QNN}/builders/__init__.py')}\n"
            "from .extra import *\n",
            f"{QNN}/builders/extra/__init__.py": "from .op_new import *\n",
            f"{QNN}/builders/extra/op_new.py": "NAME = 1\n",
            evalue: f"{upstream.read(evalue)}{ARENA}",
            "extension/evalue_util/arena.cpp": "int arena() { return 1; }\n",
            "extension/runner_util/defs.bzl": 'SOURCES = ["ghost.cpp"]\n',
            "extension/runner_util/targets.bzl": 'load("../runner_util/defs.bzl", "SOURCES")\n'
            + (upstream.read("extension/runner_util/targets.bzl") or "").replace(
                "srcs = [", "srcs = SOURCES + [", 1
            ),
        }
    )

    assert new_findings == {
        ("include", f"{QNN}/aot/python/PyQnnManagerAdaptor.h"),
        ("unlisted-file", f"{QNN}/builders/extra/__init__.py"),
        ("unlisted-file", f"{QNN}/builders/extra/op_new.py"),
        ("cmake-only-source", "extension/evalue_util/arena.cpp"),
        ("missing-file", "extension/runner_util/ghost.cpp"),
    }
