"""Headers, dependencies and defines: found where they differ, silent where they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ci.parity.compare.findings import Finding
from tests.unit.ci.parity.conftest import LOAD

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


BUCK, CMAKE = "p/BUCK", "CMakeLists.txt"
DEPS = 'deps = ["//executorch/q:q"]'
# The attributes of p in Buck, its commands in CMake, and the findings.
RELATIONS: dict[str, tuple[str, str, set[tuple[str, str]]]] = {
    "a dependency of Buck": (DEPS, "", {("dependency", BUCK)}),
    "a dependency of one platform": (
        'deps = select({"DEFAULT": [], "os:android": ["//executorch/q:q"]})', "", set(),
    ),
    "a link of CMake": ("", "target_link_libraries(p PRIVATE q)", {("dependency", CMAKE)}),
    "both": (DEPS, "target_link_libraries(p PRIVATE q)", set()),
    "an alias": (DEPS, "add_library(x ALIAS q)\ntarget_link_libraries(p x)", set()),
    "through a library without sources": ('deps = [":way"]', "target_link_libraries(p q)", set()),
    "a final link": (DEPS, "add_executable(main m.cpp)\ntarget_link_libraries(main p q)", set()),
    "an option": ("", "option(X ON)\nif(X)\n  target_link_libraries(p q)\nendif()", set()),
    "a define of Buck": ('preprocessor_flags = ["-DFAST=1"]', "", {("define", BUCK)}),
    "a define of CMake": ("", "target_compile_definitions(p PRIVATE FAST=1)", {("define", CMAKE)}),
    "a define of both": (
        'preprocessor_flags = ["-DFAST"]', "target_compile_definitions(p PRIVATE FAST=1)", set(),
    ),
    "a define for everything": ('defines = ["FAST"]', "add_definitions(-DFAST)", set()),
    "a define that no file reads": ('preprocessor_flags = ["-DSLOW"]', "", set()),
    "an ignored define": ('compiler_flags = ["-DNDEBUG"]', "", set()),
    "a define under a choice": (
        'preprocessor_flags = select({"DEFAULT": [], "os:android": ["-DFAST"]})', "", set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("first", "cmake", "expected"), RELATIONS.values(), ids=RELATIONS)
def test_a_dependency_or_define_that_one_side_lacks_is_found(
    first: str, cmake: str, expected: set[tuple[str, str]], pairs: Pairs
) -> None:
    files = tree(first, cmake) | {"m.cpp": "int main() {}\n"}
    files[BUCK] += f'runtime.cxx_library(name = "way", {DEPS})\n'

    assert pairs(files) == expected


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


def test_an_include_under_a_name_that_buck_does_not_export_is_found(
    findings: Callable[..., list[Finding]],
) -> None:
    flag = 'exported_preprocessor_flags = ["-Iq/include"]'
    for rule in (LISTED, f"{LISTED}, {flag}"):
        (finding,) = findings(include_tree(rule))

        assert (finding.kind.value, finding.path, finding.detail) == (
            "include",
            "p/a.cpp",
            "pal/Path.h",
        )
        assert str(finding.cmake_place) == "p/a.cpp:2"
        assert '{"pal/Path.h": "include/pal/Path.h"}' in finding.fix


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
def test_include_that_buck_resolves_has_no_finding(rule: str, include: str, pairs: Pairs) -> None:
    assert pairs(include_tree(rule, include)) == set()


def test_a_rule_with_autoglob_exports_headers_by_file_name(pairs: Pairs) -> None:
    files = include_tree('autoglob_mode = "EXPORT_ALL"', "<Path.h>") | {
        "CMakeLists.txt": "include_directories(q/include/pal)\nadd_library(p p/a.cpp)\n"
    }

    assert pairs(files) == set()


@pytest.mark.parametrize(
    ("cmake", "is_found"),
    [
        ("option(X ON)\nif(X)\n{p}{q}{link}{define}endif()", True),
        ("option(X ON)\nif(X AND OTHER)\n{p}{q}endif()\nif(OTHER)\n{link}{define}endif()", True),
        ("option(X ON)\nif(NOT X)\n{p}{q}endif()\nif(X)\nelse()\n{link}{define}endif()", True),
        ("if(X)\nelseif(OTHER)\n{p}{q}endif()\nif(NOT X)\n{link}{define}endif()", True),
        ("option(X ON)\n{p}{q}if(X)\n{link}{define}endif()", False),
        ("option(X ON)\nif(X)\n{p}{q}endif()\nif(NOT X)\n{link}{define}endif()", False),
        ("option(X ON)\nif(X OR OTHER)\n{p}{q}endif()\nif(X)\n{link}{define}endif()", False),
        ("{p}{q}if(UNIX)\n{link}{define}endif()", True),
        ("{p}{q}if(WIN32)\n{link}{define}endif()", False),
    ],
    ids=[
        "the target's own", "a part of it", "the other branch", "a second branch",
        "an option inside", "the opposite", "one of two", "every platform", "another platform",
    ],
)  # fmt: skip
def test_condition_is_compared_with_its_targets(cmake: str, is_found: bool, pairs: Pairs) -> None:
    files = tree(second='exported_headers = ["b.h"]') | {
        "p/a.cpp": '#include "../q/b.h"\n#ifdef FAST\n#endif\n',
        "q/b.h": "",
        "CMakeLists.txt": cmake.format(
            p="add_library(p p/a.cpp)\n",
            q="add_library(q q/b.cpp)\n",
            link="target_link_libraries(p PRIVATE q)\n",
            define="target_compile_definitions(p PRIVATE FAST)\n",
        ),
    }
    expected = {("dependency", "CMakeLists.txt"), ("define", "CMakeLists.txt")}

    assert pairs(files) == (expected if is_found else set())


@pytest.mark.parametrize(
    "cmake",
    [
        "set(libs)\nif(X)\n  list(APPEND libs q)\nendif()\ntarget_link_libraries(p ${libs})",
        "if(X)\n  set(libs q)\nelse()\n  set(libs z)\nendif()\ntarget_link_libraries(p ${libs})",
        "target_link_libraries(p $<$<BOOL:${X}>:q>)",
        "if(TARGET q)\n  target_link_libraries(p q)\nendif()",
    ],
    ids=["a list", "a choice", "an expression", "a target"],
)
def test_a_library_that_a_cmake_option_selects_counts_as_conditional(
    cmake: str, findings: Callable[..., list[Finding]]
) -> None:
    assert findings(tree(cmake=f"option(X ON)\n{cmake}")) == []


def test_a_define_is_read_by_headers_that_a_source_includes(
    findings: Callable[..., list[Finding]],
) -> None:
    files = tree('deps = ["//executorch/q:q"]', second='exported_headers = ["b.h"]') | {
        "p/a.cpp": "#include <executorch/q/b.h>\n",
        "q/b.h": "#ifdef FAST\n#endif\n",
    }
    link = files["CMakeLists.txt"] + "target_link_libraries(p q)\n"
    cmake = link + "target_compile_definitions(p PRIVATE FAST)\n"
    buck = files["p/BUCK"].replace('name = "p",', 'name = "p", preprocessor_flags = ["-DFAST"],')

    (finding,) = findings({**files, "CMakeLists.txt": cmake})
    assert (finding.kind.value, finding.detail) == ("define", "p: FAST")
    (finding,) = findings({**files, "CMakeLists.txt": link, "p/BUCK": buck})
    assert (finding.kind.value, finding.detail) == ("define", "//p:p: FAST")
    assert findings({**files, "CMakeLists.txt": cmake, "p/BUCK": buck}) == []


def rules(**sources: str) -> str:
    """Libraries of Buck's with their sources, separated by spaces."""
    rows = (f'runtime.cxx_library(name = "{n}", srcs = {s.split()})' for n, s in sources.items())
    return LOAD + "\n".join(rows) + "\n"


def test_a_source_that_only_a_test_executable_compiles_is_missing_in_cmake(
    findings: Callable[..., list[Finding]],
) -> None:
    files = {
        "p/BUCK": rules(p="a.cpp"),
        "CMakeLists.txt": "add_library(p STATIC ${missing})\nadd_executable(p_test p/a.cpp "
        "p/test/t.cpp)\n",
        **dict.fromkeys(("p/a.cpp", "p/test/t.cpp"), ""),
    }

    (missing,) = [finding for finding in findings(files) if finding.path == "p/a.cpp"]
    assert (missing.kind.value, missing.cmake_target) == ("buck-only-source", "")
