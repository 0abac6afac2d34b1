"""Lists of sources that CMake takes from a query of Buck: what is in them, and what cannot be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ci.parity.compare.findings import Finding
from ci.parity.policy import ParityPolicy
from ci.parity.queries import read_lists
from ci.parity.reading import BUCK, CMAKE, digest_side
from ci.parity.trees import DirectoryTree
from provisioning.manifest.reader import read_policy

LAYOUT = read_policy("parity", ParityPolicy).layout
QUERIES = "tools/cmake/cmake_deps.toml"
LOAD = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
TREE = {
    "CMakeLists.txt": "list(TRANSFORM _top__srcs PREPEND ./)\nadd_library(top ${_top__srcs})\n"
    "add_library(base ${_base__srcs})\n",
    "base/BUCK": LOAD + 'runtime.cxx_library(name = "base", srcs = ["b.cpp"], headers = ["b.h"])\n',
    "base/b.cpp": "",
    "base/b.h": "",
    "top/BUCK": LOAD
    + 'runtime.cxx_library(name = "top", srcs = ["t.cpp", "gone.cpp", ":made[m.cpp]"] + select('
    '{"//os:windows": ["win.cpp"], "//os:linux": ["lin.cpp"], "DEFAULT": []}),'
    ' deps = [":inner", "//executorch/base:base", "//outside:lib"])\n'
    'runtime.cxx_library(name = "inner", srcs = ["i.cpp"], exported_deps = select('
    '{"//os:windows": [":win"], "DEFAULT": [":last"]}))\n'
    'runtime.cxx_library(name = "last", srcs = ["l.cpp"])\n'
    'runtime.cxx_library(name = "win", srcs = ["w.cpp"])\n'
    'runtime.genrule(name = "made", srcs = ["m.cpp.in", "m.fbs"], cmd = "true")\n',
    **{
        f"top/{name}": ""
        for name in (
            "t.cpp",
            "i.cpp",
            "l.cpp",
            "w.cpp",
            "win.cpp",
            "lin.cpp",
        )
    },
    "top/m.cpp.in": "",
    "top/m.fbs": "",
}
BASE = '[targets.base]\nbuck_targets = ["//base:base"]\nfilters = [".cpp$"]\n'
TOP = '[targets.top]\nbuck_targets = ["//top:top"]\nfilters = [".cpp$"]\n'
LAST = '[targets.last]\nbuck_targets = ["//top:last"]\n'
ALL = "base/b.cpp;top/i.cpp;top/l.cpp;top/lin.cpp;top/t.cpp"

Findings = Callable[..., list[Finding]]
Plant = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def lists(plant: Plant) -> Callable[..., dict[str, str]]:
    """The lists of a text of queries."""
    return lambda text, **files: read_lists(
        DirectoryTree(plant({**TREE, QUERIES: text, **files}), LAYOUT)
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TOP, ALL),
        (BASE + TOP + 'deps = ["base"]\n', ALL.replace("base/b.cpp;", "")),
        (TOP + 'excludes = ["^top/(i|l)"]\n', "base/b.cpp;top/t.cpp"),
        ('[target_base]\nexcludes = ["^base"]\n' + TOP, ALL.replace("base/b.cpp;", "")),
        (TOP.replace(".cpp$", "fbs$"), "top/m.fbs"),
        (TOP.replace('".cpp$"', '".cpp$", "^base"'), "base/b.cpp"),
        (TOP.replace('".cpp$"', '"none"'), ""),
        ('[targets.top]\nbuck_targets = ["//base:base"]\n', "base/b.cpp;base/b.h"),
        ('[targets.top]\nbuck_targets = ["//top:last", "//top:made"]\n', None),
        ('[target_base]\nbuck_targets = ["//top:last"]\n[targets.top]\n', "top/l.cpp"),
        (BASE + '[target_base]\nfilters = ["^top"]\n' + TOP, ALL.replace("base/b.cpp;", "")),
        (BASE + TOP + 'deps = ["last", "base"]\n' + LAST, "top/i.cpp;top/lin.cpp;top/t.cpp"),
    ],
    ids=[
        "all that is reached, on Linux",
        "another list has it",
        "excluded",
        "excluded everywhere",
        "what a rule reads",
        "both expressions",
        "nothing left",
        "headers too",
        "two targets",
        "a target of all lists",
        "an expression of all lists",
        "two lists have it",
    ],
)
def test_a_list_has_what_its_targets_read(
    text: str, found: str | None, lists: Callable[..., dict[str, str]]
) -> None:
    wanted = "top/l.cpp;top/m.cpp.in;top/m.fbs" if found is None else found
    assert lists(text)["_top__srcs"] == wanted


@pytest.mark.parametrize(
    "text",
    [
        TOP.replace("//top:top", "//top:gone"),
        TOP + 'deps = ["gone"]\n',
        TOP + 'deps = ["other"]\n[targets.other]\ndeps = ["top"]\n',
        TOP.replace(".cpp$", "(("),
        TOP.replace(".cpp$", "^((.|.|.)*)*!$"),
    ],
    ids=["no such target", "no such list", "a cycle", "no expression", "an endless expression"],
)
def test_a_list_that_cannot_be_told_is_left_out(
    text: str, lists: Callable[..., dict[str, str]]
) -> None:
    found = lists(f"{text}\n{BASE}")
    assert found == {"_base__srcs": "base/b.cpp"}


def test_a_list_is_made_once_however_many_leave_their_files_to_it(
    lists: Callable[..., dict[str, str]],
) -> None:
    """Forty lists, each of which names the next one twice, are a million million ways."""
    rows = (f'[targets.l{n}]\ndeps = ["l{n + 1}", "l{n + 1}"]\n' for n in range(40))

    assert len(lists("".join(rows) + "[targets.l40]\n")) == 41


@pytest.mark.parametrize(
    "text", ["", "[targets", "targets = 3", '[targets.top]\nfilters = ".cpp"', "\0"]
)
def test_a_file_without_queries_gives_no_list(
    text: str, lists: Callable[..., dict[str, str]]
) -> None:
    assert lists(text) == {}


def test_a_list_is_compared_as_if_cmake_had_it(findings: Findings) -> None:
    """Without the query Buck's source counts as CMake's, for nobody could tell."""
    dropped = TREE | {"CMakeLists.txt": "add_library(base ${_base__srcs})\n"}
    kept = {QUERIES: BASE + TOP + 'deps = ["base"]\n'}

    def sources(files: Mapping[str, str]) -> list[str]:
        return [f.path for f in findings(files) if f.kind.value == "buck-only-source"]

    assert sources(TREE | kept) == ["top/w.cpp", "top/win.cpp"]
    assert sources(dropped | kept) == [
        *(
            "top/i.cpp",
            "top/l.cpp",
            "top/lin.cpp",
            "top/t.cpp",
            "top/w.cpp",
            "top/win.cpp",
        )
    ]


def test_a_change_of_a_query_or_of_buck_is_one_of_cmake(plant: Plant) -> None:
    """Only where there are queries."""
    plain = DirectoryTree(plant(TREE), LAYOUT)
    first = digest_side(plain, CMAKE)
    (plain.root / "top/BUCK").write_text(TREE["top/BUCK"] + "\n")
    assert digest_side(DirectoryTree(plain.root, LAYOUT), CMAKE) == first

    seen = set()
    for path, text in [(QUERIES, BASE), (QUERIES, TOP), ("top/BUCK", "\n"), ("base/BUCK", "")]:
        plant({path: text})
        seen.add(digest_side(DirectoryTree(plain.root, LAYOUT), CMAKE))
    assert len(seen) == 4

    before = digest_side(DirectoryTree(plain.root, LAYOUT), BUCK)
    plant({QUERIES: BASE})
    assert digest_side(DirectoryTree(plain.root, LAYOUT), BUCK) == before
