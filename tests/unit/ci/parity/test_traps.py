"""Each trap in two versions: one that drifts and must be found, one that must stay silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from ci.parity.compare.findings import ParityReport
from tests.unit.ci.parity.conftest import LOAD, MACRO


def library(srcs: str, *, name: str = '"lib"', options: str = "") -> str:
    """A targets.bzl with one library whose srcs are an expression."""
    return (
        f"{LOAD}\ndef define_common_targets():\n"
        f"    runtime.cxx_library(name = {name}, srcs = {srcs}, {options})\n"
    )


@dataclass(frozen=True)
class Trap:
    """Files of a package ``p``; what differs in the drifted version; what must be found."""

    name: str
    clean: Mapping[str, str]
    drifted: Mapping[str, str]
    expected: set[tuple[str, str]]


def package(targets: str, cmake: str, *sources: str, **other_files: str) -> dict[str, str]:
    """A tree with one package."""
    files = {"p/BUCK": MACRO, "p/targets.bzl": targets, "CMakeLists.txt": cmake}
    files.update(dict.fromkeys((f"p/{name}" for name in sources), "int x;\n"))
    return files | other_files


BOTH = package(
    library('["a.cpp", "b.cpp"]'), "add_library(lib p/a.cpp p/b.cpp)\n", "a.cpp", "b.cpp"
)

TRAPS = [
    Trap(
        "source only in CMake",
        BOTH,
        {"p/targets.bzl": library('["a.cpp"]')},
        {("cmake-only-source", "p/b.cpp")},
    ),
    Trap(
        "source only in Buck",
        BOTH,
        {"CMakeLists.txt": "add_library(lib p/a.cpp)\n"},
        {("buck-only-source", "p/b.cpp")},
    ),
    Trap(
        "a source behind a switch of .buckconfig",
        package(
            library(
                '["a.cpp"]'
                ' + (["b.cpp"] if native.read_config("et", "b", "false") == "true" else [])'
                ' + (["c.cpp"] if native.read_config("et", "c", "1") == "1" else ["d.cpp"])'
            ),
            "add_library(lib p/a.cpp p/b.cpp p/c.cpp p/d.cpp)\n",
            "a.cpp", "b.cpp", "c.cpp", "d.cpp",
        ),
        {"CMakeLists.txt": "add_library(lib p/a.cpp p/c.cpp p/d.cpp)\n"},
        {("buck-only-source", "p/b.cpp")},
    ),
    Trap(
        "name in a comment of CMake",
        BOTH,
        {"CMakeLists.txt": "add_library(lib p/a.cpp # p/b.cpp\n)\n#[[ p/b.cpp ]]\n"},
        {("buck-only-source", "p/b.cpp")},
    ),
    Trap(
        "name in a comment of Buck",
        BOTH,
        {"p/targets.bzl": library('[\n  "a.cpp",\n  # "b.cpp",\n]')},
        {("cmake-only-source", "p/b.cpp")},
    ),
    Trap(
        "same basename in two folders",
        package(
            library('["x/a.cpp", "y/a.cpp"]'),
            "add_library(lib p/x/a.cpp p/y/a.cpp)\n",
            "x/a.cpp",
            "y/a.cpp",
        ),
        {"CMakeLists.txt": "add_library(lib p/x/a.cpp)\n"},
        {("buck-only-source", "p/y/a.cpp")},
    ),
    Trap(
        "glob does not enter a package below",
        package(
            library('glob(["**/*.cpp"])'),
            "add_library(lib p/a.cpp)\nadd_library(sub p/sub/s.cpp)\n",
            "a.cpp",
            "sub/s.cpp",
        )
        | {"p/sub/BUCK": LOAD + 'runtime.cxx_library(name = "sub", srcs = ["s.cpp"])\n'},
        {"p/sub/BUCK": LOAD + 'runtime.cxx_library(name = "sub", srcs = [])\n'},
        {("cmake-only-source", "p/sub/s.cpp")},
    ),
    Trap(
        "name from a concatenation and a loop",
        package(
            f"{LOAD}\nOPS = {{'add': 1, 'mul': 2}}\n\ndef define_common_targets():\n"
            "    for op in OPS:\n"
            '        runtime.cxx_library(name = "op_" + op, srcs = ["op_{}.cpp".format(op)])\n',
            "foreach(op add mul)\n  add_library(op_${op} p/op_${op}.cpp)\nendforeach()\n",
            "op_add.cpp",
            "op_mul.cpp",
        ),
        {
            "CMakeLists.txt": "foreach(op add)\n"
            "  add_library(op_${op} p/op_${op}.cpp)\nendforeach()\n"
        },
        {("buck-only-source", "p/op_mul.cpp")},
    ),
    Trap(
        "select keeps every alternative",
        package(
            library(
                '["a.cpp"] + '
                'select({"DEFAULT": ["d.cpp"], "ovr_config//os:android": ["e.cpp"]})'
            ),
            "if(ANDROID)\n  set(extra p/e.cpp)\nelse()\n  set(extra p/d.cpp)\nendif()\n"
            "add_library(lib p/a.cpp ${extra})\n",
            "a.cpp",
            "d.cpp",
            "e.cpp",
        ),
        {"p/targets.bzl": library('["a.cpp"] + select({"DEFAULT": ["d.cpp"]})')},
        {("cmake-only-source", "p/e.cpp")},
    ),
    Trap(
        "source twice in a CMake target",
        BOTH,
        {
            "CMakeLists.txt": "add_library(lib p/a.cpp p/b.cpp)\n"
            "target_sources(lib PRIVATE ${CMAKE_CURRENT_LIST_DIR}/p/b.cpp)\n"
        },
        {("duplicate-source", "p/b.cpp")},
    ),
    Trap(
        "source in both branches of an if is not twice",
        BOTH
        | {
            "CMakeLists.txt": "option(X \"\" ON)\nadd_library(lib p/a.cpp)\nif(X)\n"
            "  target_sources(lib PRIVATE p/b.cpp)\nelse()\n  target_sources(lib PRIVATE p/b.cpp)\n"
            "endif()\n"
        },
        {
            "CMakeLists.txt": "option(X \"\" ON)\nadd_library(lib p/a.cpp)\nif(X)\n"
            "  target_sources(lib PRIVATE p/b.cpp p/b.cpp)\nendif()\n"
        },
        {("duplicate-source", "p/b.cpp")},
    ),
    Trap(
        "source list in an included file, filtered",
        BOTH
        | {
            "CMakeLists.txt": "include(lists.cmake)\nlist(FILTER SRCS EXCLUDE REGEX \"skip\")\n"
            "list(TRANSFORM SRCS PREPEND \"${CMAKE_CURRENT_SOURCE_DIR}/p/\")\n"
            "add_library(lib ${SRCS})\n",
            "lists.cmake": "set(SRCS a.cpp b.cpp skip.cpp)\n",
        },
        {"lists.cmake": "set(SRCS a.cpp skip.cpp)\n"},
        {("buck-only-source", "p/b.cpp")},
    ),
    Trap(
        "list of an outer directory, changed below an unknown condition",
        BOTH
        | {
            "CMakeLists.txt": "set(SRCS p/a.cpp p/b.cpp)\nadd_subdirectory(p)\n",
            "p/CMakeLists.txt": "if(NOT HAVE_SOMETHING)\n  list(REMOVE_ITEM SRCS p/b.cpp)\n"
            'endif()\nlist(TRANSFORM SRCS PREPEND "${CMAKE_SOURCE_DIR}/")\n'
            "add_library(lib ${SRCS})\n",
        },
        {"CMakeLists.txt": "set(SRCS p/a.cpp)\nadd_subdirectory(p)\n"},
        {("buck-only-source", "p/b.cpp")},
    ),
    Trap(
        "exported file of another package",
        BOTH
        | {
            "p/targets.bzl": library('["a.cpp", "b.cpp", "//executorch/q:c.cpp"]'),
            "q/BUCK": LOAD + 'runtime.export_file(name = "c.cpp")\n'
            'runtime.cxx_library(name = "other", srcs = [])\n',
            "q/c.cpp": "int c;\n",
            "CMakeLists.txt": "add_library(lib p/a.cpp p/b.cpp q/c.cpp)\n",
        },
        {"p/targets.bzl": library('["a.cpp", "b.cpp"]')},
        {("cmake-only-source", "q/c.cpp")},
    ),
    Trap(
        "rule that finds its sources by itself",
        BOTH
        | {
            "p/BUCK": 'load("@fbsource//tools:apple.bzl", "fb_apple_library")\n'
            'fb_apple_library(name = "lib", autoglob_mode = "ALL")\n'
        },
        {"CMakeLists.txt": "add_library(lib p/a.cpp)\n"},
        {("buck-only-source", "p/b.cpp")},
    ),
    Trap(
        "target of one build only",
        BOTH
        | {
            "p/targets.bzl": library('["a.cpp"]')
            + '    if not runtime.is_oss:\n'
            '        runtime.cxx_library(name = "inner", srcs = ["b.cpp"])\n'
        },
        {"CMakeLists.txt": "add_library(lib p/a.cpp)\n"},
        {("buck-only-source", "p/b.cpp")},
    ),
    Trap(
        "folder with sources that cannot be told",
        BOTH
        | {
            "CMakeLists.txt": "add_subdirectory(p)\n",
            "p/CMakeLists.txt": "find_library(WHERE z)\nadd_library(lib a.cpp ${WHERE}/z.cpp)\n",
        },
        {"p/CMakeLists.txt": "add_library(lib a.cpp)\n"},
        {("buck-only-source", "p/b.cpp")},
    ),
    Trap(
        "file of a submodule",
        BOTH
        | {
            "CMakeLists.txt": "add_library(lib p/a.cpp p/b.cpp third/x.cpp)\n",
            ".gitmodules": '[submodule "t"]\n\tpath = third\n\turl = x\n',
        },
        {".gitmodules": ""},
        {("missing-file", "third/x.cpp")},
    ),
    Trap(
        "file in two choices",
        BOTH
        | {"p/targets.bzl": library('["b.cpp"] + select({"DEFAULT": ["a.cpp"], '
                                    '"ovr_config//os:linux": ["a.cpp"]})')},
        {"p/targets.bzl": library('["b.cpp", "a.cpp"] + ["a.cpp"]')},
        {("duplicate-source", "p/a.cpp")},
    ),
]  # fmt: skip

VARIANTS = (
    f"{LOAD}\ndef define_common_targets():\n"
    "    for host in (True, False):\n"
    '        suffix = "" if host else "_android_build"\n'
    "        runtime.cxx_library(\n"
    '            name = "runtime" + suffix,\n'
    '            srcs = ["common.cpp"] + (["host/v.cpp"] if host else ["target/v.cpp"]),\n'
    "        )\n"
)
VARIANT_TREE = package(
    VARIANTS,
    "if(CMAKE_SYSTEM_PROCESSOR MATCHES x86_64)\n  set(v host)\nelse()\n  set(v target)\nendif()\n"
    "add_library(lib p/common.cpp p/${v}/v.cpp)\n",
    "common.cpp",
    "host/v.cpp",
    "target/v.cpp",
)
TRAPS += [
    Trap(
        "host file in the variant for Android",
        VARIANT_TREE,
        {"p/targets.bzl": VARIANTS.replace('if host else ["target/', 'if not host else ["target/')},
        {("variant", "p/host/v.cpp"), ("variant", "p/target/v.cpp")}
        | {("cmake-only-source", "p/host/v.cpp"), ("cmake-only-source", "p/target/v.cpp")},
    ),
]


def as_id(trap: Trap) -> str:
    """A trap's name as pytest shows it."""
    return trap.name.replace(" ", "-")


@pytest.mark.parametrize("trap", TRAPS, ids=as_id)
def test_each_parity_trap_has_no_finding_until_its_sides_drift_apart(
    trap: Trap, pairs: Callable[..., set[tuple[str, str]]]
) -> None:
    assert pairs(trap.clean) == set()
    assert pairs({**trap.clean, **trap.drifted}) == trap.expected


def test_a_load_from_a_folder_outside_the_tree_is_taken_for_metas(
    report: Callable[..., ParityReport],
) -> None:
    """``//`` is also the root of Meta's repository: only folders that the tree has belong to it."""
    meta = 'load("//tools/build_defs:wrap.bzl", "wrap")\n'
    ours = 'load("//p:gone.bzl", "wrap")\n'

    assert report({**BOTH, "p/BUCK": meta + MACRO}).not_evaluated == ()
    assert "not in the tree" in report({**BOTH, "p/BUCK": ours + MACRO}).not_evaluated[0].reason


def test_fbcode_and_open_source_rules_may_share_a_target_name(
    pairs: Callable[..., set[tuple[str, str]]],
) -> None:
    head = (
        'load("@fbcode_macros//build_defs:build_file_migration.bzl",'
        ' "fbcode_target", "non_fbcode_target")\n' + LOAD
    )
    python = 'fbcode_target(_kind = runtime.python_library, name = "lib", srcs = ["x.py"])\n'
    native = 'non_fbcode_target(_kind = runtime.cxx_library, name = "lib", srcs = ["a.cpp", {}])\n'
    files = {**BOTH, "p/x.py": ""}

    assert pairs({**files, "p/BUCK": head + python + native.format('"b.cpp"')}) == set()
    for rules in (python + native, native + python):
        differences = pairs({**files, "p/BUCK": head + rules.format("")})
        assert differences == {("cmake-only-source", "p/b.cpp")}
