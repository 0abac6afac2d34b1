"""Headers, dependencies and defines: found where they differ, silent where they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ci.parity.compare.findings import Finding
from ci.parity.policy import Library, ParityPolicy

LOAD = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
Pairs = Callable[..., set[tuple[str, str]]]


def tree(first: str = "", cmake: str = "", second: str = "") -> dict[str, str]:
    """Two packages with a library each; the arguments are added to the first's."""
    return {
        "p/BUCK": LOAD + f'runtime.cxx_library(name = "p", srcs = ["a.cpp"], {first})\n',
        "p/a.cpp": "#ifdef FAST\n#endif\n",
        "q/BUCK": LOAD + f'runtime.cxx_library(name = "q", srcs = ["b.cpp"], {second})\n',
        "q/b.cpp": "int b;\n",
        "CMakeLists.txt": f"add_library(p p/a.cpp)\nadd_library(q q/b.cpp)\n{cmake}\n",
    }


def test_a_dependency_of_buck_alone_is_found(findings: Callable[..., list[Finding]]) -> None:
    found = findings(tree('deps = ["//executorch/q:q"]'))

    assert [(f.kind.value, f.buck_target, f.cmake_target) for f in found] == [
        ("dependency", "//p:p", "p")
    ]
    assert found[0].fix.startswith("link q to p")


def test_a_dependency_of_cmake_alone_is_found(findings: Callable[..., list[Finding]]) -> None:
    found = findings(tree(cmake="target_link_libraries(p PRIVATE q)"))

    assert [(f.kind.value, f.detail) for f in found] == [("dependency", "p -> q")]
    assert str(found[0].cmake_place) == "CMakeLists.txt:3"


@pytest.mark.parametrize(
    ("first", "cmake"),
    [
        ('deps = ["//executorch/q:q"]', "target_link_libraries(p PRIVATE q)"),
        ('deps = ["//executorch/q:q"]', "add_library(x ALIAS q)\ntarget_link_libraries(p x)"),
        ('deps = [":way"]', "target_link_libraries(p q)"),
        (
            'deps = ["//executorch/q:q"]',
            "add_executable(main m.cpp)\ntarget_link_libraries(main p q)",
        ),
        ("", "option(X ON)\nif(X)\n  target_link_libraries(p q)\nendif()"),
    ],
    ids=["both", "alias", "through a library without sources", "final link", "option"],
)
def test_a_dependency_of_both_is_silent(first: str, cmake: str, pairs: Pairs) -> None:
    files = tree(first, cmake)
    files["p/BUCK"] += 'runtime.cxx_library(name = "way", deps = ["//executorch/q:q"])\n'
    files["m.cpp"] = "int main() {}\n"

    assert pairs(files) == set()


def test_an_outside_library_is_known_by_the_table(pairs: Pairs) -> None:
    policy = ParityPolicy(library=(Library("gflags", buck=("gflags",), cmake=("gflags",)),))
    both = tree('external_deps = ["gflags"]', "target_link_libraries(p gflags)")
    one = tree('external_deps = ["gflags"]')
    other = tree(cmake="target_link_libraries(p gflags)")

    assert pairs(both, policy) == set()
    assert pairs(one, policy) == {("dependency", "p/BUCK")}
    assert pairs(other, policy) == {("dependency", "CMakeLists.txt")}


def test_a_define_of_one_side_is_found(pairs: Pairs) -> None:
    buck = tree('preprocessor_flags = ["-DFAST=1"]')
    cmake = tree(cmake="target_compile_definitions(p PRIVATE FAST=1)")

    assert pairs(buck) == {("define", "p/BUCK")}
    assert pairs(cmake) == {("define", "CMakeLists.txt")}


@pytest.mark.parametrize(
    ("first", "cmake"),
    [
        ('preprocessor_flags = ["-DFAST"]', "target_compile_definitions(p PRIVATE FAST=1)"),
        ('defines = ["FAST"]', "add_definitions(-DFAST)"),
        ('preprocessor_flags = ["-DSLOW"]', ""),
        ('compiler_flags = ["-DNDEBUG"]', ""),
    ],
    ids=["both", "for everything", "not read by any file", "ignored"],
)
def test_a_define_that_makes_no_difference_is_silent(first: str, cmake: str, pairs: Pairs) -> None:
    assert pairs(tree(first, cmake)) == set()


def test_a_header_that_nobody_exports_is_found(findings: Callable[..., list[Finding]]) -> None:
    files = tree('exported_headers = ["a.h"]') | {"p/a.h": "", "p/b.h": ""}

    found = findings(files)

    assert [(f.kind.value, f.path) for f in found] == [("header", "p/b.h")]
    assert found[0].fix == 'add "b.h", to the exported_headers of //p:p (p/BUCK:2)'


def test_headers_of_a_map_and_a_glob_are_exported(pairs: Pairs) -> None:
    files = tree(
        'exported_headers = {"short.h": "inner/long.h"}, header_namespace = "",',
        second='headers = glob(["*.h"])',
    )

    assert pairs(files | {"p/inner/long.h": "", "q/b.h": ""}) == set()


def include_tree(rule: str, include: str = "<pal/Path.h>") -> dict[str, str]:
    """A library whose source includes a header that CMake finds in q/include."""
    return {
        "p/BUCK": LOAD
        + 'runtime.cxx_library(name = "p", srcs = ["a.cpp"], deps = ["//executorch/q:q"])\n',
        "p/a.cpp": f"// one\n#include {include}\n",
        "q/BUCK": LOAD + f'runtime.cxx_library(name = "q", {rule})\n',
        "q/include/pal/Path.h": "",
        "CMakeLists.txt": "add_library(p p/a.cpp)\n"
        "target_include_directories(p PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/q/include)\n",
    }


LISTED = 'exported_headers = ["include/pal/Path.h"]'


def test_an_include_that_buck_offers_under_no_name_is_found(
    findings: Callable[..., list[Finding]],
) -> None:
    flag = 'exported_preprocessor_flags = ["-Iq/include"]'
    for rule in (LISTED, f"{LISTED}, {flag}"):
        (found,) = findings(include_tree(rule))

        assert (found.kind.value, found.path, found.detail) == ("include", "p/a.cpp", "pal/Path.h")
        assert str(found.cmake_place) == "p/a.cpp:2"
        assert '{"pal/Path.h": "include/pal/Path.h"}' in found.fix


@pytest.mark.parametrize(
    ("rule", "include"),
    [
        (
            'exported_headers = {"pal/Path.h": "include/pal/Path.h"}, header_namespace = ""',
            "<pal/Path.h>",
        ),
        (
            'exported_headers = {"Path.h": "include/pal/Path.h"}, header_namespace = "pal"',
            "<pal/Path.h>",
        ),
        (f'{LISTED}, public_include_directories = ["include"]', "<pal/Path.h>"),
        (f'{LISTED}, preprocessor_flags = ["-Iexecutorch/q/include"]', "<pal/Path.h>"),
        (LISTED, "<executorch/q/include/pal/Path.h>"),
        (LISTED, '"../q/include/pal/Path.h"'),
        (LISTED, "<vector>"),
    ],
    ids=["map", "namespace", "directory", "flag from a root", "whole path", "beside", "outside"],
)
def test_an_include_that_buck_resolves_is_silent(rule: str, include: str, pairs: Pairs) -> None:
    assert pairs(include_tree(rule, include)) == set()


def test_an_include_of_a_rule_that_finds_its_headers_goes_by_the_file_name(pairs: Pairs) -> None:
    files = include_tree('autoglob_mode = "EXPORT_ALL"', "<Path.h>") | {
        "CMakeLists.txt": "include_directories(q/include/pal)\nadd_library(p p/a.cpp)\n"
    }

    assert pairs(files) == set()
