"""Trees that are too old to be read, and what is accepted for one more release without effect."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import msgspec
import pytest

from ci.parity.compare.findings import ParityReport
from ci.parity.run import check_tree
from provisioning.errors import UsageError
from tests.stand_ins.text_tree import TextTree
from tests.unit.ci.parity.conftest import LAYOUT, POLICY

TREE = {
    "p/BUCK": 'native.cxx_library(name = "lib", srcs = ["a.cpp"])\n',
    "p/a.cpp": "",
    "CMakeLists.txt": "add_library(lib p/a.cpp)\n",
}
SINCE_1 = msgspec.structs.replace(POLICY, oldest="1.0")


@pytest.mark.parametrize("version", ["0.8.0a0", "0.2.1"])
def test_a_tree_before_the_oldest_is_refused(
    version: str, report: Callable[..., ParityReport]
) -> None:
    with pytest.raises(UsageError, match=version):
        report({**TREE, "version.txt": version}, SINCE_1)


@pytest.mark.parametrize("version", ["1.0.0a0", "1.4.1", "", "of my own"])
def test_a_newer_tree_or_one_without_a_version_is_read(
    version: str, report: Callable[..., ParityReport]
) -> None:
    assert report({**TREE, "version.txt": version}, SINCE_1).failing == ()


@pytest.mark.parametrize(
    ("names", "scope", "message"),
    [
        (("p/BUCK",), ("p",), ""),
        (("p/TARGETS", "q/CMakeLists.txt"), ("p/", "q"), ""),
        (("p/d/BUCK",), ("p",), ""),
        (("p/BUCK.txt",), (), "has no BUCK or TARGETS file"),
        (("pq/BUCK",), ("p",), "has no folder p"),
        (("p/BUCK",), ("p", "p/BUCK"), "has no folder p/BUCK"),
        (("p/BUCK", "d/x.md"), ("d",), "there is nothing to compare in d"),
    ],
)
def test_a_tree_has_build_files_of_both_sides_and_the_folders_of_its_scope(
    names: tuple[str, ...], scope: tuple[str, ...], message: str
) -> None:
    tree = TextTree({**dict.fromkeys(names, ""), "CMakeLists.txt": "project(executorch)"}, LAYOUT)
    with pytest.raises(UsageError, match=message) if message else nullcontext():
        check_tree(tree, scope, "executorch")


@pytest.mark.parametrize(
    ("call", "refused"),
    [
        ("project(executorch VERSION 1)", False),
        ("PROJECT(\n  ExecuTorch\n)", False),
        ("# project(executorch)\nadd_subdirectory(p)", True),
        ("", True),
        ("cmake_minimum_required(VERSION 3)\nproject(folly CXX)", True),
        ("  project( ${NAME} )", True),
    ],
)
def test_the_tree_of_another_project_is_refused_at_once(call: str, refused: bool) -> None:
    tree = TextTree({"p/BUCK": "", "CMakeLists.txt": f"{call}\n"}, LAYOUT)
    message = "is not a tree of ExecuTorch"
    with pytest.raises(UsageError, match=message) if refused else nullcontext():
        check_tree(tree, (), "ExecuTorch")
    check_tree(tree, (), "")  # a layout of any project


def test_a_tree_without_a_list_file_at_its_root_is_refused() -> None:
    tree = TextTree({"p/BUCK": "", "q/CMakeLists.txt": "project(executorch)\n"}, LAYOUT)
    with pytest.raises(UsageError, match="is not a tree of executorch") as caught:
        check_tree(tree, (), "executorch")
    assert caught.value.why == "it has no CMakeLists.txt at its root"
