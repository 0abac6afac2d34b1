"""Where a finding begins and ends: one case at the limit, and one beside it that must not be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date

import pytest

from ci.parity.compare.findings import Finding, ParityReport
from ci.parity.policy import Allowance, ParityPolicy
from tests.unit.ci.parity.conftest import LOAD

Pairs = Callable[..., set[tuple[str, str]]]
Findings = Callable[..., list[Finding]]


def library(name: str, srcs: str, more: str = "") -> str:
    """One library of Buck's."""
    return f'runtime.cxx_library(name = "{name}", srcs = {srcs}, {more})\n'


def tree(first: str = "", cmake: str = "", **files: str) -> dict[str, str]:
    """Libraries p and q on both sides; more for the first, and more of CMake's."""
    return {
        "p/BUCK": LOAD + library("p", '["a.cpp"]', first),
        "p/a.cpp": "",
        "q/BUCK": LOAD + library("q", '["b.cpp"]'),
        "q/b.cpp": "",
        "CMakeLists.txt": f"add_library(p p/a.cpp)\nadd_library(q q/b.cpp)\n{cmake}\n",
        **files,
    }


def package(srcs: str, cmake: str, *names: str) -> dict[str, str]:
    """One library of some files."""
    files = dict.fromkeys((f"p/{name}" for name in names), "")
    return {"p/BUCK": LOAD + library("lib", srcs), "CMakeLists.txt": f"{cmake}\n", **files}


DEP = 'deps = ["//executorch/q:q"]'
FOUND = {("dependency", "p/BUCK")}


# Dependencies


def test_a_dependency_of_one_platform_is_not_compared(pairs: Pairs) -> None:
    chosen = 'deps = select({"DEFAULT": [], "ovr_config//os:android": ["//executorch/q:q"]})'

    assert pairs(tree(chosen)) == set()
    assert pairs(tree(DEP)) == FOUND


def test_a_renamed_target_whose_header_has_the_old_name_is_found(findings: Findings) -> None:
    more = 'exported_headers = ["q.h"], '
    link = "target_link_libraries(p q)"
    files = tree(DEP, link, **{"q/q.h": "#include <executorch/r/r.h>\n", "r/r.h": ""})
    files["p/a.cpp"] = "#include <executorch/q/q.h>\n"
    files["r/BUCK"] = LOAD + library("r", "[]", 'exported_headers = ["r.h"]')
    files["q/BUCK"] = LOAD + library(
        "q", '["b.cpp"]', more + 'exported_deps = ["//executorch/r:r"]'
    )

    assert findings(files) == []
    files["q/BUCK"] = LOAD + library("renamed", '["b.cpp"]', more)
    messages = {finding.message for finding in findings(files)}
    assert "//p:p depends on //q:q, but that target does not exist" in messages


@pytest.mark.parametrize(
    ("mains", "include", "levels"),
    [
        ("p q", "b.h", ["note"]),
        ("p q", "c.h", []),
        ("p", "b.h", ["warning"]),
        ("p", "c.h", ["warning"]),
    ],
    ids=["used", "unused", "used and lacking", "lacking"],
)
def test_what_every_program_links_for_a_library_that_uses_it_is_a_note(
    mains: str, include: str, levels: list[str], findings: Callable[..., list[Finding]]
) -> None:
    cmake = f"add_executable(one m/m.cpp)\ntarget_link_libraries(one {mains})\n"
    files = tree(DEP, cmake) | dict.fromkeys(("m/m.cpp", "q/b.h"), "")
    files["q/BUCK"] = LOAD + library("q", '["b.cpp"]', 'exported_headers = ["b.h"]')
    files |= {"p/a.cpp": f"#include <executorch/q/{include}>\n"}
    found = findings(files, ParityPolicy(without_buck=("m/**",)))

    assert [(f.detail, f.level.value) for f in found] == [("//p:p -> //q:q", x) for x in levels]


@pytest.mark.parametrize(
    ("place", "source", "more", "found"),
    [
        ("p", "c.h", "", True),
        ("p", "b.h", "", False),
        ("p", "c.h", "target_link_libraries(p q)", False),
        ("p", "c.h", "target_sources(p PRIVATE ../q/c.cpp)", False),
        ("p/test", "c.h", "", False),
        ("", "c.h", "", False),
    ],
    ids=["forgotten", "not included", "linked", "compiled", "a test", "above"],
)
def test_a_source_beside_one_that_another_folder_s_target_takes_is_found(
    place: str, source: str, more: str, found: bool, findings: Findings
) -> None:
    folder = f"{place}/" if place else ""
    back = "../" * folder.count("/")
    listed = f"add_library(q {back}q/b.cpp {back}q/c.cpp)\n" if not place else ""
    files = {
        f"{folder}BUCK": LOAD + library("p", '["a.cpp"]', 'deps = ["//executorch/q:q"]'),
        f"{folder}a.cpp": f"#include <executorch/q/{source}>\n",
        "q/BUCK": LOAD + library("q", '["b.cpp", "c.cpp"]', 'exported_headers = ["b.h", "c.h"]'),
        **dict.fromkeys(("q/b.cpp", "q/c.cpp", "q/b.h", "q/c.h"), ""),
        "CMakeLists.txt": f"add_subdirectory({place})\nadd_library(q q/b.cpp q/c.cpp)\n",
    }
    lists = f"{listed}add_library(p a.cpp {back}q/b.cpp)\n{more}\n"
    files[f"{folder}CMakeLists.txt"] = lists
    rows = findings(files, ParityPolicy(tests=("**/test/**",)))
    told = [(f.path, f.detail, f.level.value) for f in rows if f.kind.value == "buck-only-source"]

    assert told == ([("q/c.cpp", "p", "warning")] if found else [])


@pytest.mark.parametrize(("allowed", "found"), [("g.cpp", True), ("x.cpp", False)])
def test_a_source_that_may_be_missing_does_not_hide_another(
    allowed: str, found: bool, findings: Findings
) -> None:
    names = [f"{stem}.cpp" for stem in "abcdefg"]
    files = package(
        str(names),
        f"add_library(all {' '.join(f'p/{n}' for n in names)})\n"
        f"add_library(most {' '.join(f'p/{n}' for n in names[:5])})",
        *names,
    )
    entry = Allowance(
        kinds=("buck-only-source",), files=(f"p/{allowed}",), reason="r", details=("most",),
        until=date(2027, 1, 1),
    )  # fmt: skip
    rows = findings(files, ParityPolicy(allow=(entry,)))
    assert [f.path for f in rows if f.detail == "most"] == ["p/f.cpp"] * found


def test_a_word_is_certain_when_one_of_its_ways_is(pairs: Pairs) -> None:
    cmake = (
        "option(ONE '' ON)\noption(TWO '' ON)\nadd_library(q q/b.cpp)\n"
        "if(TWO)\n  set(libs q)\nendif()\n"
        "if(ONE)\n  set(more q)\nendif()\nif(ONE)\n  add_library(p p/a.cpp)\n"
        "  target_link_libraries(p ${libs} ${more})\nendif()\n"
    )
    files = tree() | {"CMakeLists.txt": cmake}

    assert pairs(files) == {("dependency", "CMakeLists.txt")}


# Sources


def test_a_folder_with_sources_that_cannot_be_told_is_not_judged(pairs: Pairs) -> None:
    files = package('["a.cpp", "b.cpp"]', "add_subdirectory(p)", "a.cpp", "b.cpp")
    told = {"p/CMakeLists.txt": "add_library(lib a.cpp)\n"}
    open_ = {"p/CMakeLists.txt": "find_library(WHERE z)\nadd_library(lib a.cpp ${WHERE}/z.cpp)\n"}

    assert pairs(files | told) == {("buck-only-source", "p/b.cpp")}
    assert pairs(files | open_) == set()


def test_a_file_of_a_submodule_is_not_missing(pairs: Pairs) -> None:
    files = package('["a.cpp"]', "add_library(lib p/a.cpp third/x.cpp)", "a.cpp")
    module = {".gitmodules": '[submodule "t"]\n\tpath = third\n\turl = x\n'}

    assert pairs(files) == {("missing-file", "third/x.cpp")}
    assert pairs(files | module) == set()


def test_a_file_in_two_choices_is_listed_once(pairs: Pairs) -> None:
    cmake = "add_library(lib p/a.cpp)"
    choice = 'select({"DEFAULT": ["a.cpp"], "ovr_config//os:linux": ["a.cpp"]})'

    assert pairs(package(choice, cmake, "a.cpp")) == set()
    assert pairs(package('["a.cpp"] + ["a.cpp"]', cmake, "a.cpp")) == {
        ("duplicate-source", "p/a.cpp")
    }


def test_an_expression_of_a_platform_is_that_platform_s(pairs: Pairs) -> None:
    cmake = "add_library(lib p/a.cpp $<$<PLATFORM_ID:Android>:p/b.cpp>)"
    choice = '["a.cpp"] + select({"DEFAULT": [], "ovr_config//os:android": ["b.cpp"]})'

    assert pairs(package(choice, cmake, "a.cpp", "b.cpp")) == set()


def test_an_include_in_brackets_is_not_looked_for_beside(pairs: Pairs) -> None:
    cmake = "include_directories(p)\nadd_library(lib p/a.cpp)"
    files = package('["a.cpp"]', cmake, "a.cpp", "b.h")
    files["p/BUCK"] = LOAD + library("lib", '["a.cpp"]', 'headers = ["b.h"]')

    assert pairs(files | {"p/a.cpp": "#include <b.h>\n"}) == {("include", "p/a.cpp")}
    assert pairs(files | {"p/a.cpp": '#include "b.h"\n'}) == set()


# Buck


def test_a_pattern_without_a_file_is_a_note_beside_others(findings: Findings) -> None:
    cmake = "add_library(lib p/a.cpp)"
    beside = package('glob(["*.cpp", "gone/*.cpp"])', cmake, "a.cpp")
    alone = package('["a.cpp"] + glob(["gone/*.cpp"])', cmake, "a.cpp")

    assert [(f.kind.value, f.level.value) for f in findings(beside)] == [("empty-glob", "note")]
    assert [(f.kind.value, f.level.value) for f in findings(alone)] == [("empty-glob", "error")]


def test_a_folder_of_meta_s_inside_the_tree_s_is_not_missed(
    report: Callable[[Mapping[str, str]], ParityReport],
) -> None:
    files = package('["a.cpp"]', "add_library(lib p/a.cpp)", "a.cpp")
    for folder, missed in (("p/fb", False), ("p/inner", True)):
        load = f'load("@fbsource//xplat/executorch/{folder}:x.bzl", "x")\n'
        result = report(files | {"p/BUCK": load + files["p/BUCK"]})
        assert bool(result.not_evaluated) is missed


# CMake


def test_a_directory_that_an_option_adds_need_not_be_there(findings: Findings) -> None:
    cmake = "option(X '' ON)\nadd_library(lib p/a.cpp)\nif(X)\n  add_subdirectory(gone)\nendif()"

    assert findings(package('["a.cpp"]', cmake, "a.cpp")) == []


# The allow-list and the cache
