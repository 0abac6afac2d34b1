"""With a base, what only moved or got another name is old."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from ci.parity.compare.findings import Kind, ParityReport
from ci.parity.policy import Allowance, ParityPolicy
from ci.parity.run import ParityRequest, compare_trees
from provisioning.manifest.reader import read_policy
from tests.stand_ins.text_tree import TextTree
from tests.unit.ci.parity.conftest import library

LAYOUT = read_policy("parity", ParityPolicy).layout
POLICY = ParityPolicy(imports=("p/**",))


BASE = {
    "p/BUCK": library("p", 'a.cpp", "a2.cpp', 'deps = ["//executorch/q:q"]'),
    "p/a.cpp": "int a;\n#ifdef FAST\n#endif\n",
    "p/a2.cpp": "int a2;\n",
    "p/lonely.cpp": "int lonely;\n",
    "q/BUCK": library("q", "b.cpp"),
    "q/b.cpp": "int b;\n",
    "CMakeLists.txt": "add_library(p p/a.cpp p/a2.cpp p/gone.cpp)\nadd_library(q q/b.cpp)\n"
    "target_compile_definitions(p PRIVATE FAST)\n",
}


def change(
    files: Mapping[str, str],
    base: Mapping[str, str] = BASE,
    policy: ParityPolicy = POLICY,
    scope: tuple[str, ...] = (),
) -> ParityReport:
    """The report of a change from BASE to other files."""
    request = ParityRequest(source=Path(), scope=scope, base="BASE", today=date(2026, 1, 1))
    trees = TextTree(files, LAYOUT), TextTree(base, LAYOUT)
    return compare_trees(*trees, request, policy)


def moved(old: str, new: str) -> dict[str, str]:
    """BASE with one word replaced in every name and text."""
    return {name.replace(old, new): text.replace(old, new) for name, text in BASE.items()}


@pytest.mark.parametrize(
    ("old", "new"),
    [("p/", "r/deep/"), ('name = "p"', 'name = "r"'), ("a.cpp", "renamed.cpp")],
    ids=["folder", "Buck target", "file"],
)
def test_findings_of_moved_or_renamed_files_stay_old(old: str, new: str) -> None:
    files = moved(old, new)
    report = change(files)

    assert files != BASE
    assert report.findings == ()
    assert report.old == 4


def test_a_folder_is_reported_as_left_out_only_if_all_of_cmake_was_read() -> None:
    files = {**BASE, "CMakeLists.txt": "add_subdirectory(s)\n", "s/CMakeLists.txt": ""}
    for root, unread_path in (("", "s/CMakeLists.txt"), ("add_subdirectory(s\n", "CMakeLists.txt")):
        report = change({**files, "CMakeLists.txt": root}, files)
        paths = {finding.path for finding in report.findings if finding.kind is Kind.UNREAD}
        assert paths == {unread_path}
    new = {**files, "t/CMakeLists.txt": ""}  # no file ever added it
    assert [
        finding.path for finding in change(new, files).findings if finding.kind is Kind.UNREAD
    ] == []
    report = change({**files, "CMakeLists.txt": "", "q/BUCK": "def (\n"}, files)
    paths = {finding.path for finding in report.findings if finding.kind is Kind.UNREAD}
    assert paths == {"s/CMakeLists.txt", "q/BUCK"}


def test_a_copied_file_is_not_a_moved_one() -> None:
    report = change({**BASE, "p/copy.cpp": BASE["p/lonely.cpp"]})

    assert [(f.kind.value, f.path) for f in report.findings] == [("unlisted-file", "p/copy.cpp")]


def test_a_new_finding_next_to_a_moved_file_is_new() -> None:
    files = moved("p/", "r/") | {"q/new.cpp": "int n;\n"}

    report = change(files)
    assert [(f.kind.value, f.path) for f in report.findings] == [("unlisted-file", "q/new.cpp")]


def test_a_drift_that_a_change_introduces_fails_the_gate() -> None:
    define = "target_compile_definitions(p PRIVATE FAST)\n"
    for files, places in (
        ({"CMakeLists.txt": BASE["CMakeLists.txt"].replace(" p/a2.cpp", "")},
         {("buck-only-source", "p/a2.cpp")}),
        ({"p/BUCK": library("p", 'a.cpp", "a2.cpp')}, set()),
        ({"q/BUCK": library("q", "b.cpp", 'deps = ["//executorch/p:p"]')},
         {("dependency", "q/BUCK")}),
        ({"q/b.cpp": "int b;\n#ifdef FAST\n#endif\n",
          "CMakeLists.txt": BASE["CMakeLists.txt"] + define.replace("(p", "(q")},
         {("define", "CMakeLists.txt")}),
    ):  # fmt: skip
        report = change({**BASE, **files})
        assert {(f.kind.value, f.path) for f in report.failing} == places


def test_allowances_are_checked_only_in_trees_as_new_as_the_policy() -> None:
    entry = Allowance(kinds=("header",), files=("**",), reason="old", until=date(2020, 1, 1))
    policy = ParityPolicy(allow=(entry,), written_for="1.5.0")
    for version, stale in (
        ("1.4.9\n", False), ("1.5.0\n", True), ("1.6.0a0", True), ("", False), ("what", False),
    ):  # fmt: skip
        tree = TextTree({**BASE, "version.txt": version}, LAYOUT)
        report = compare_trees(tree, None, ParityRequest(Path()), policy)
        assert (Kind.STALE in {finding.kind for finding in report.findings}) is stale, version


def test_findings_that_a_change_introduces_are_not_lowered_to_notes() -> None:
    """A folder without Buck files and a missing directory are notes only if they are old."""
    cmake = BASE["CMakeLists.txt"] + "add_library(n n/n.cpp)\nadd_subdirectory(gone)\n"
    files = {**BASE, "CMakeLists.txt": cmake, "n/n.cpp": ""}

    introduced = change(files).findings
    assert {(f.kind.value, f.path, f.level.value) for f in introduced} == {
        ("cmake-only-source", "n", "warning"),
        ("unread-file", "CMakeLists.txt", "error"),
    }


def test_a_scope_limits_findings_to_its_folders() -> None:
    cmake = "add_library(lib_{0} a.cpp more.cpp)\nadd_subdirectory(gone)\n"
    files = {"CMakeLists.txt": ""}
    for folder in ("p", "q"):
        files |= {
            f"{folder}/BUCK": library(f"lib_{folder}", "a.cpp"),
            f"{folder}/CMakeLists.txt": cmake.format(folder),
            **dict.fromkeys((f"{folder}/a.cpp", f"{folder}/more.cpp"), ""),
        }
    base = {**files, "CMakeLists.txt": "add_subdirectory(p)\nadd_subdirectory(q)\n"}
    for scope, folders in (((), ["p", "q"]), (("q",), ["q"]), (("p", "q"), ["p", "q"])):
        report = change(files, base, scope=scope)  # the root no longer adds the folders
        assert [finding.path for finding in report.findings] == [
            f"{folder}/CMakeLists.txt" for folder in folders
        ]
        assert report.scope == scope
        assert not report.not_evaluated  # the base could not be evaluated there either
        alone = {"CMakeLists.txt": base["CMakeLists.txt"]}  # a base without the folders
        places = {row.place.path for row in change(files, alone, scope=scope).not_evaluated}
        assert places == {f"{folder}/CMakeLists.txt" for folder in folders}
        in_scope = change(base, {"BUCK": "", "CMakeLists.txt": ""}, scope=scope).findings
        assert {finding.path.partition("/")[0] for finding in in_scope} == {*folders}
        assert {"cmake-only-source", "unread-file"} == {finding.kind.value for finding in in_scope}
