"""Headers that a Buck library includes and its deps do not reach; CMake finds them anyway."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ci.parity.compare.findings import Finding, Level
from ci.parity.policy import ParityPolicy
from ci.parity.uses import always_included

LOAD = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
Q = 'runtime.cxx_library(name = "q", exported_headers = ["q.h"], exported_deps = [{}])\n'
R = 'runtime.cxx_library(name = "r", exported_headers = ["r.h"])\n'
POLICY = ParityPolicy(twins=("*_aten",), given=("//r:r",), suffixes=("_static",))

Findings = Callable[..., list[Finding]]


def tree(deps: str = "", source: str = "", cmake: str = "") -> dict[str, str]:
    """A library and two that consist of headers: the first includes the second's."""
    return {
        "p/BUCK": LOAD + f'runtime.cxx_library(name = "p", srcs = ["p.cpp"], deps = [{deps}])\n',
        "p/p.cpp": source or "#include <executorch/q/q.h>\n",
        "q/BUCK": LOAD + Q.format(""),
        "q/q.h": "",
        "r/BUCK": LOAD + R,
        "r/r.h": "",
        "CMakeLists.txt": f"add_library(p p/p.cpp)\n{cmake}\n",
    }


def details(found: list[Finding]) -> list[str]:
    return [f"{finding.kind.value} {finding.detail}" for finding in found]


def test_an_included_header_is_a_dependency(findings: Findings) -> None:
    [found] = findings(tree())

    assert (found.kind.value, found.path, found.level) == ("dependency", "p/BUCK", Level.WARNING)
    assert found.detail == "//p:p -> //q:q"
    assert found.message.startswith("p/p.cpp includes q/q.h")
    assert found.fix == 'add "//q:q" to the deps of //p:p (p/BUCK:2)'


@pytest.mark.parametrize(
    "deps",
    ['"//executorch/q:q"', '":x"', '"//executorch/q:q_static"', '":y"'],
    ids=["named", "through another", "the static twin", "select"],
)
def test_a_header_of_a_dependency_is_silent(deps: str, findings: Findings) -> None:
    files = tree(deps)
    files["p/BUCK"] += (
        'runtime.cxx_library(name = "x", exported_deps = ["//executorch/q:q"])\n'
        'runtime.cxx_library(name = "y", deps = select({"a": ["//executorch/q:q"], "b": []}))\n'
    )

    assert findings(files, POLICY) == []


@pytest.mark.parametrize(
    "source",
    [
        "#ifdef FAST\n#include <executorch/q/q.h>\n#endif\n",
        "#if FAST\n#else\n#include <executorch/q/q.h>\n#endif\n",
        "#include <q/q.h>\n",
        '#include "q.h"\n',
        "// #include <executorch/q/q.h>\n",
        "#include <executorch/r/r.h>\n",
        "#include <executorch/q/generated.h>\n",
    ],
    ids=["ifdef", "else", "another name", "beside", "comment", "given", "generated"],
)
def test_what_need_not_be_a_header_of_the_tree_is_silent(source: str, findings: Findings) -> None:
    assert findings(tree(source=source), POLICY) == []


def test_a_library_of_headers_is_to_blame_for_its_own(findings: Findings) -> None:
    files = tree('"//executorch/q:q"')
    files["q/q.h"] = "#ifndef Q_H\n#define Q_H\n#include <executorch/r/r.h>\n#endif\n"
    [found] = findings(files)

    assert found.detail == "//q:q -> //r:r"
    assert found.message.startswith("q/q.h includes r/r.h")
    assert 'add "//r:r" to the exported_deps of //q:q' in found.fix

    files["q/BUCK"] = LOAD + Q.format('"//executorch/r:r"')
    assert findings(files) == []


def test_headers_come_with_what_a_dependency_exports(findings: Findings) -> None:
    files = tree('":x"')
    x = 'runtime.cxx_library(name = "x", {}{} = ["//executorch/q:q"])\n'

    for attribute, own, found in [
        ("deps", 'headers = ["x.h"], ', ["dependency //p:p -> //q:q"]),
        ("exported_deps", 'headers = ["x.h"], ', []),
        ("deps", "", []),
    ]:
        rules = tree('":x"')["p/BUCK"] + x.format(own, attribute)
        every = findings({**files, "p/x.h": "", "p/BUCK": rules})
        assert [row for row in details(every) if row != "header "] == found


def test_a_header_that_a_rule_makes_is_one_of_its_library(findings: Findings) -> None:
    made = 'runtime.cxx_library(name = "q", exported_headers = {"q.h": ":make[q.h]"})\n'
    files = {**tree(), "q/BUCK": LOAD + made}
    del files["q/q.h"]

    assert details(findings(files)) == ["dependency //p:p -> //q:q"]
    assert findings({**files, "p/BUCK": tree('"//executorch/q:q"')["p/BUCK"]}) == []


def test_headers_that_nothing_compiles_are_silent(findings: Findings) -> None:
    files = tree(source="int p;\n")
    files["q/q.h"] = "#include <executorch/r/r.h>\n"

    assert findings(files) == []


def test_twins_are_silent_and_tests_are_notes(findings: Findings) -> None:
    files = tree(source="int p;\n")
    files["p/test/t.cpp"] = files["p/a.cpp"] = "#include <executorch/q/q.h>\n"
    files["p/BUCK"] += (
        'runtime.cxx_library(name = "a_aten", srcs = ["a.cpp"])\n'
        'runtime.cxx_test(name = "t", srcs = ["test/t.cpp"])\n'
    )
    files["CMakeLists.txt"] += "add_library(a p/a.cpp)\n"
    policy = ParityPolicy(twins=("*_aten",), tests=("**/test/**",))

    found = [f for f in findings(files, policy) if f.kind.value == "dependency"]
    assert [(f.detail, f.level) for f in found] == [("//p:t -> //q:q", Level.NOTE)]


def test_a_link_that_cmake_has_is_not_told_twice(findings: Findings) -> None:
    files = tree(cmake="add_library(q q/q.cpp)\ntarget_link_libraries(p q)")
    files["q/q.cpp"] = ""
    files["q/BUCK"] = files["q/BUCK"].replace(
        "exported_headers", 'srcs = ["q.cpp"], exported_headers'
    )

    assert details(findings(files)) == ["dependency //p:p -> //q:q"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#include <a>\n#include <b>", {"a", "b"}),
        ("#ifndef G\n#define G\n#include <a>\n#ifdef X\n#include <b>\n#endif\n#endif", {"a"}),
        ("#ifndef G  // guard\n#define G\n#include <a>\n#endif", {"a"}),
        ("#ifndef X\n#include <a>\n#endif\n#include <b>", {"b"}),
        ("#ifndef X\n#define Y\n#include <a>\n#endif", set()),
        ("#include <a>\n#ifndef X\n#define X\n#include <b>\n#endif", {"a"}),
        ("#if A\n#if B\n#endif\n#include <a>\n#endif\n#import <b>", {"b"}),
        ("  #  include <a> // why\n#define\n#pragma once", {"a"}),
    ],
)
def test_what_is_included_whatever_is_defined(text: str, expected: set[str]) -> None:
    assert always_included(text) == expected
