"""A build file that cannot be read is a finding, and nothing is found that rests on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from msgspec.structs import replace

from ci.parity.compare.findings import Finding, Kind
from ci.parity.policy import Exclusion
from tests.unit.ci.parity.conftest import LOAD, MACRO, POLICY, library

Pairs = Callable[..., set[tuple[str, str]]]


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


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        ({"q/BUCK": "runtime.cxx_library(\n"}, "q/BUCK"),
        ({"q/BUCK": MACRO, "q/targets.bzl": "def ("}, "q/targets.bzl"),
        ({"q/BUCK": MACRO}, "q/BUCK"),
        ({"q/CMakeLists.txt": "add_library(q b.cpp\n"}, "q/CMakeLists.txt"),
        ({"CMakeLists.txt": "if(X)\n" + TREE["CMakeLists.txt"]}, "CMakeLists.txt"),
    ],
)
def test_a_broken_build_file_is_the_only_finding(
    broken: Mapping[str, str], path: str, pairs: Pairs
) -> None:
    tree = TREE if "q/BUCK" in broken else CLEAN

    assert pairs(CLEAN) == set()
    assert pairs({**tree, **broken}) == {("unread-file", path)}


def test_a_broken_shared_source_list_is_found_outside_compared_folders(
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
    cmake, buck = sorted(findings(files, policy), key=lambda finding: finding.path)
    assert (str(buck.buck_place), cmake.path) == ("shim/lists.bzl:3", "lists.cmake")
    assert buck.kind is cmake.kind is Kind.UNREAD


def test_a_broken_build_file_does_not_hide_drift_elsewhere(pairs: Pairs) -> None:
    files = {**TREE, "q/BUCK": "def (", "p/new.cpp": "", "r/BUCK": library("r", "r.cpp")}

    assert pairs({**files, "r/r.cpp": ""}) == {
        ("unread-file", "q/BUCK"),
        ("unlisted-file", "p/new.cpp"),
        ("buck-only-source", "r/r.cpp"),
    }


def test_targets_of_an_unloaded_targets_bzl_are_compared_anyway(pairs: Pairs) -> None:
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
