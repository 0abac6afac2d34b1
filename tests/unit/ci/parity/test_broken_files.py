"""A build file that cannot be read is a finding, and nothing is found that rests on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from ci.parity.compare.findings import Finding, Kind, Level
from ci.parity.policy import Exclusion
from tests.unit.ci.parity.conftest import LOAD, MACRO, POLICY

Pairs = Callable[..., set[tuple[str, str]]]


def library(name: str, source: str, more: str = "") -> str:
    """A build file with one library."""
    return LOAD + f'runtime.cxx_library(name = "{name}", srcs = ["{source}"], {more})\n'


TREE = {
    "p/BUCK": library("p", "a.cpp", 'deps = ["//executorch/q:q"]'),
    "p/a.cpp": "#ifdef FAST\n#endif\n",
    "q/BUCK": library("q", "b.cpp"),
    "q/b.cpp": "#ifdef FAST\n#endif\n",
    "q/b.h": "",
    "CMakeLists.txt": "add_subdirectory(q)\nadd_library(p p/a.cpp)\ntarget_link_libraries(p q)\n",
    "q/CMakeLists.txt": "add_library(q b.cpp)\n",
}
CLEAN = {k: v for k, v in TREE.items() if k != "q/b.h"}


def test_the_tree_itself_is_clean(pairs: Pairs) -> None:
    assert pairs(CLEAN) == set()


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        ({"q/BUCK": "runtime.cxx_library(\n"}, "q/BUCK"),
        ({"q/BUCK": MACRO, "q/targets.bzl": "def ("}, "q/targets.bzl"),
        ({"q/BUCK": MACRO}, "q/BUCK"),
        ({"q/BUCK": 'load(":gone.bzl", "runtime", "more")\n'}, "q/BUCK"),
        ({"q/BUCK": "x = 1 // 0\n"}, "q/BUCK"),
        ({"q/CMakeLists.txt": "add_library(q b.cpp\n"}, "q/CMakeLists.txt"),
        ({"CMakeLists.txt": "if(X)\n" + TREE["CMakeLists.txt"]}, "CMakeLists.txt"),
        ({"q/CMakeLists.txt": "include(gone.cmake)\n"}, "q/CMakeLists.txt"),
        (
            {"q/CMakeLists.txt": "function(f)\n  f()\nendfunction()\nf()\n"},
            "q/CMakeLists.txt",
        ),
        ({"q/CMakeLists.txt": "if(A)\n" * 3000 + "endif()\n" * 3000}, "q/CMakeLists.txt"),
        ({"q/CMakeLists.txt": "#[[ never closed\nadd_library(q b.cpp)\n"}, "q/CMakeLists.txt"),
    ],
    ids=[
        "BUCK", "loaded file", "missing load", "load of two", "evaluation", "sub-directory",
        "root", "include", "recursion", "nesting", "comment",
    ],
)  # fmt: skip
def test_a_broken_file_is_the_only_finding(
    broken: Mapping[str, str], path: str, pairs: Pairs
) -> None:
    tree = TREE if "q/BUCK" in broken else CLEAN

    assert pairs({**tree, **broken}) == {("unread-file", path)}


def test_a_broken_list_of_both_sides_is_found_although_its_folder_is_not_compared(
    findings: Callable[..., list[Finding]],
) -> None:
    load = 'load("@fbsource//xplat/executorch/shim:lists.bzl", "SRCS")\n'
    program = "exec(open('${CMAKE_SOURCE_DIR}/shim/lists.bzl').read());print(';'.join(SRCS))"
    files = {
        "shim/lists.bzl": 'SRCS = [\n    "a.cpp",\n    "b.cpp",\n]\n',
        "p/BUCK": LOAD + load + 'runtime.cxx_library(name = "p", srcs = SRCS)\n',
        "lists.cmake": "macro(read)\n"
        f'execute_process(COMMAND py -c "{program}" OUTPUT_VARIABLE names)\nendmacro()\n',
        "CMakeLists.txt": "include(lists.cmake)\nadd_subdirectory(q)\nread()\n"
        "list(TRANSFORM names PREPEND p/)\nadd_library(p ${names})\n",
        **dict.fromkeys(("p/a.cpp", "p/b.cpp", "q/q.cpp"), ""),
        "q/BUCK": library("q", "q.cpp"),
        "q/CMakeLists.txt": "read()\nadd_library(q q.cpp)\n",
    }
    policy = replace(POLICY, exclude=(Exclusion(("shim/**",), "stand-ins"),))
    assert findings(files, policy) == []
    files["shim/lists.bzl"] = files["shim/lists.bzl"].replace('"a.cpp",', '"a.cpp"')
    cmake, buck = sorted(findings(files, policy), key=lambda found: found.path)
    assert (str(buck.buck_place), cmake.path) == ("shim/lists.bzl:3", "lists.cmake")
    assert buck.kind is cmake.kind is Kind.UNREAD


def test_drift_elsewhere_is_found_all_the_same(pairs: Pairs) -> None:
    files = {**TREE, "q/BUCK": "def (", "p/new.cpp": "", "r/BUCK": library("r", "r.cpp")}

    assert pairs({**files, "r/r.cpp": ""}) == {
        ("unread-file", "q/BUCK"),
        ("unlisted-file", "p/new.cpp"),
        ("buck-only-source", "r/r.cpp"),
    }


@pytest.mark.parametrize(
    ("side", "path"),
    [({"q/BUCK": "def ("}, "q/BUCK"), ({"q/CMakeLists.txt": "set("}, "q/CMakeLists.txt")],
    ids=["buck", "cmake"],
)
def test_relations_with_what_was_not_read_are_not_judged(
    side: Mapping[str, str], path: str, pairs: Pairs
) -> None:
    cmake = "add_subdirectory(q)\nadd_library(p p/a.cpp)\ntarget_link_libraries(p way)\n"
    flag = 'deps = ["//executorch/q:way"], preprocessor_flags = ["-DFAST"]'
    way = f'{TREE["q/BUCK"]}runtime.cxx_library(name = "way")\n'
    files = {"p/BUCK": library("p", "a.cpp", flag), "CMakeLists.txt": cmake, "q/BUCK": way}

    assert pairs({**CLEAN, **files, **side}) == {("unread-file", path)}


def test_a_missing_directory_is_a_note(findings: Callable[..., list[Finding]]) -> None:
    cmake = TREE["CMakeLists.txt"] + "add_subdirectory(gone)\n"
    (found,) = findings({**CLEAN, "CMakeLists.txt": cmake})

    assert (found.kind.value, found.level, found.when_new) == (
        "unread-file", Level.NOTE, Level.ERROR,
    )  # fmt: skip


def test_a_missing_directory_of_an_optional_one_is_noted(
    findings: Callable[..., list[Finding]],
) -> None:
    files = {
        **CLEAN,
        "CMakeLists.txt": "option(X ON)\nadd_library(p p/a.cpp)\n"
        "if(X)\n  add_subdirectory(q)\nendif()\ntarget_link_libraries(p q)\n",
        "q/CMakeLists.txt": "add_library(q b.cpp)\nadd_subdirectory(gone)\n",
    }
    found = findings(files)
    files["q/CMakeLists.txt"] = "add_library(q b.cpp)\nif(X)\n  add_subdirectory(gone)\nendif()\n"

    assert [(f.kind.value, f.path) for f in found] == [("unread-file", "q/CMakeLists.txt")]
    assert findings(files) == []


def test_targets_that_no_build_file_loads_are_named(pairs: Pairs) -> None:
    targets = LOAD + "def define_common_targets():\n" + '    runtime.cxx_library(name = "q", srcs'
    targets += ' = ["b.cpp"])\n'
    alone = {k: v for k, v in CLEAN.items() if k != "q/BUCK"} | {"q/targets.bzl": targets}
    beside = {**CLEAN, "q/targets.bzl": targets}

    other = {"r/BUCK": library("q", "r.py").replace("cxx_library", "python_library")}
    unread = {("unread-file", "q/targets.bzl")}
    assert pairs(alone) == unread
    assert pairs({**alone, **other, "r/r.py": ""}) == unread
    assert pairs({**beside, "q/BUCK": MACRO}) == set()
    assert pairs(beside) == set()


def test_targets_that_no_build_file_loads_are_compared_as_if_one_did(pairs: Pairs) -> None:
    head = LOAD + "def define_common_targets({}):\n    runtime.cxx_library(\n"
    body = '        name = "q", srcs = ["b.cpp"], preprocessor_flags = ["-DFAST"])\n'
    files = {**CLEAN, "q/targets.bzl": head.format("") + body}
    files["p/BUCK"] = library("p", "a.cpp")
    del files["q/BUCK"]
    beside = {**files, "q/BUCK": library("other", "c.cpp"), "q/c.cpp": ""}
    unread = {("unread-file", "q/targets.bzl")}

    drift = {("dependency", "CMakeLists.txt"), ("define", "q/targets.bzl")}
    assert pairs(files) == unread | drift
    assert pairs({**files, "q/targets.bzl": head.format("kind") + body}) == unread
    assert pairs(beside) == unread | drift | {("buck-only-source", "q/c.cpp")}


def test_what_is_known_of_an_unloaded_file_is_not_said_to_be_unread(
    findings: Callable[..., list[Finding]],
) -> None:
    targets = LOAD + "def define_common_targets({}):\n"
    targets += '    runtime.cxx_library(name = "q", srcs = ["b.cpp"])\n'
    files = {k: v for k, v in CLEAN.items() if k != "q/BUCK"}
    (known,) = findings({**files, "q/targets.bzl": targets.format("")})
    (unknown,) = findings({**files, "q/targets.bzl": targets.format("kind")})
    failing = targets.format("") + "    is_xplat() and fail()\n"
    partly = findings({**files, "q/targets.bzl": failing})

    assert (known.message, known.fix) == ("no build file loads it", "load it in q/BUCK")
    assert unknown.message == "not read: no build file loads it"
    assert [found.message for found in partly] == [unknown.message]
    assert known.level == unknown.level == Level.ERROR
