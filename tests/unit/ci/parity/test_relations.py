"""Headers, dependencies and defines: found where they differ, silent where they do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ci.parity.compare.findings import Finding
from ci.parity.policy import Library, ParityPolicy
from provisioning.manifest.reader import read_policy
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
GFLAGS = ParityPolicy(library=(Library("gflags", buck=("gflags",), cmake=("gflags",)),))
LOG = ParityPolicy(library=(Library("log", buck=("log",), cmake=("log",)),))
SEARCH = "find_library({})\ntarget_link_libraries(p ${{WHERE}})"
# What p has of Buck's and of CMake's, and what is found.
RELATIONS: dict[str, tuple[str, str, set[tuple[str, str]]]] = {
    "a dependency of Buck": (DEPS, "", {("dependency", BUCK)}),
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


@pytest.mark.parametrize(("first", "cmake", "found"), RELATIONS.values(), ids=RELATIONS)
def test_what_one_side_lacks_is_found(
    first: str, cmake: str, found: set[tuple[str, str]], pairs: Pairs
) -> None:
    files = tree(first, cmake) | {"m.cpp": "int main() {}\n"}
    files[BUCK] += f'runtime.cxx_library(name = "way", {DEPS})\n'

    assert pairs(files) == found


@pytest.mark.parametrize(
    ("policy", "cmake"),
    [
        (GFLAGS, "target_link_libraries(p gflags)"),
        (LOG, SEARCH.format("WHERE log")),
        (LOG, SEARCH.format("WHERE NAMES log log2")),
    ],
)
def test_an_outside_library_is_known_by_the_table(
    policy: ParityPolicy, cmake: str, pairs: Pairs
) -> None:
    external = f'external_deps = ["{policy.library[0].name}"]'

    assert pairs(tree(external, cmake), policy) == set()
    assert pairs(tree(external), policy) == {("dependency", BUCK)}
    assert pairs(tree(cmake=cmake), policy) == {("dependency", CMAKE)}


@pytest.mark.parametrize(
    ("name", "kinds"), [("p_test", {"define", "dependency"}), ("p_bench", {"define"})]
)
def test_what_a_test_of_the_same_sources_has_does_not_count(
    name: str, kinds: set[str], pairs: Pairs
) -> None:
    test = (
        f"add_executable({name} p/a.cpp p/test/t.cpp)\ntarget_link_libraries({name} q)\n"
        f"target_compile_definitions({name} PRIVATE FAST)"
    )
    files = tree('preprocessor_flags = ["-DFAST"], deps = ["//executorch/q:q"]', test)
    files["p/test/t.cpp"] = "int t;\n"
    files["p/BUCK"] += 'runtime.cxx_test(name = "t", srcs = ["test/t.cpp"])\n'

    assert {kind for kind, path in pairs(files) if path == "p/BUCK"} == kinds

    files["CMakeLists.txt"] = files["CMakeLists.txt"].replace("add_library(p p/a.cpp)", "")
    assert not {kind for kind, path in pairs(files) if path == "p/BUCK"}


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


@pytest.mark.parametrize(
    ("cmake", "found"),
    [
        ("option(X ON)\nif(X)\n{p}{q}{link}{define}endif()", True),
        ("option(X ON)\nif(X)\n{p}{q}endif()\nif(X)\n{link}{define}endif()", True),
        ("option(X ON)\nif(X AND OTHER)\n{p}{q}endif()\nif(OTHER)\n{link}{define}endif()", True),
        ("option(X ON)\nif(NOT X)\n{p}{q}endif()\nif(X)\nelse()\n{link}{define}endif()", True),
        ("if(X)\nelseif(OTHER)\n{p}{q}endif()\nif(NOT X)\n{link}{define}endif()", True),
        ("if(X)\nelseif(OTHER)\nelse()\n{p}{q}endif()\nif(NOT X)\n{link}{define}endif()", True),
        ("option(X ON)\n{p}{q}if(X)\n{link}{define}endif()", False),
        ("option(X ON)\n{p}{q}if(X)\nelse()\n{link}{define}endif()", False),
        ("option(X ON)\nif(X)\n{p}{q}endif()\nif(OTHER)\n{link}{define}endif()", False),
        ("option(X ON)\nif(X)\n{p}{q}endif()\nif(NOT X)\n{link}{define}endif()", False),
        ("option(X ON)\nif(X OR OTHER)\n{p}{q}endif()\nif(X)\n{link}{define}endif()", False),
        ("{p}{q}if(UNIX)\n{link}{define}endif()", True),
        ("{p}{q}if(ANDROID)\n{link}{define}endif()", True),
        ("{p}{q}if(WIN32)\n{link}{define}endif()", False),
    ],
    ids=[
        "the target's own", "the same again", "a part of it", "the other branch",
        "a second branch", "a third branch",
        "an option inside", "its other branch", "another option", "the opposite", "one of two",
        "every platform", "one platform", "another platform",
    ],
)  # fmt: skip
def test_a_condition_is_judged_beside_that_of_its_target(
    cmake: str, found: bool, pairs: Pairs
) -> None:
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

    assert pairs(files) == (expected if found else set())


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
def test_a_word_that_an_option_chose_is_under_it(
    cmake: str, findings: Callable[..., list[Finding]]
) -> None:
    assert findings(tree(cmake=f"option(X ON)\n{cmake}")) == []


@pytest.mark.parametrize(
    "cmake",
    [
        "set(libs q)\nif(X)\n  list(APPEND libs z)\nendif()\ntarget_link_libraries(p ${libs})",
        "if(X)\n  set(libs q)\nendif()\ntarget_link_libraries(p PRIVATE q)",
    ],
    ids=["a list", "a name as written"],
)
def test_a_word_that_every_branch_gives_is_certain(
    cmake: str, findings: Callable[..., list[Finding]]
) -> None:
    (found,) = findings(tree(cmake=f"option(X ON)\n{cmake}"))
    assert found.detail == "p -> q"


def test_an_exported_define_is_judged_where_it_is_read(
    findings: Callable[..., list[Finding]],
) -> None:
    link = "target_link_libraries(p PRIVATE q)"
    deps = 'deps = ["//executorch/q:q"]'
    flag = 'exported_preprocessor_flags = ["-DFAST"]'
    cmake = f"{link}\ntarget_compile_definitions(q PUBLIC FAST)"

    (found,) = findings(tree(deps, cmake))
    assert (found.kind.value, found.detail, found.cmake_target) == ("define", "q: FAST", "p")
    (found,) = findings(tree(deps, link, flag))
    assert (found.kind.value, found.detail, found.buck_target) == ("define", "//q:q: FAST", "//p:p")
    assert findings(tree(deps, cmake, flag)) == []
    assert findings(tree(deps, f"{link}\ntarget_compile_definitions(q PRIVATE FAST)")) == []
    assert findings(tree(deps, link, 'preprocessor_flags = ["-DFAST"]')) == []


EXPORTED = 'exported_headers = ["b.h"], exported_preprocessor_flags = ["-DFAST"]'


def test_an_exported_define_that_a_header_reads_is_judged_where_it_is_included(
    findings: Callable[..., list[Finding]],
) -> None:
    deps = 'deps = ["//executorch/q:q", "//executorch/r:r"]'
    flag = 'exported_preprocessor_flags = ["-DFAST"]'
    files = tree(deps, "target_link_libraries(p q)", flag) | {
        "p/a.cpp": "#include <executorch/r/r.h>\n",
        "q/b.cpp": "",
        "r/BUCK": LOAD + 'runtime.cxx_library(name = "r", exported_headers = ["r.h"])\n',
        "r/r.h": "#ifdef FAST\n#endif\n",
    }

    (found,) = findings(files)
    assert (found.detail, found.buck_target, found.cmake_target) == ("//q:q: FAST", "//p:p", "p")
    assert findings({**files, "p/a.cpp": ""}) == []
    files["CMakeLists.txt"] += "target_compile_definitions(p PRIVATE FAST)\n"
    assert findings(files) == []


def test_an_exported_define_reaches_what_is_exported(pairs: Pairs) -> None:
    """p depends on r, which depends on q: with an exported dependency, p gets q's macro."""
    link = "add_library(r r/r.cpp)\ntarget_link_libraries(r q)\ntarget_link_libraries(p r)"
    files = tree('deps = ["//executorch/r:r"]', link, EXPORTED) | {
        "r/BUCK": LOAD + 'runtime.cxx_library(name = "r", srcs = ["r.cpp"], '
        'exported_deps = ["//executorch/q:q"])\n',
        "q/b.cpp": "",
        "q/b.h": "",
        "r/r.cpp": "",
    }
    private = {"r/BUCK": files["r/BUCK"].replace("exported_deps", "deps")}

    assert pairs(files) == {("define", "q/BUCK")}
    assert pairs({**files, **private}) == set()


def test_the_libraries_of_the_policy_are_known(pairs: Pairs) -> None:
    policy = read_policy("parity", ParityPolicy)
    for buck, cmake in (
        ('external_deps = ["log"]', "log"),
        ('deps = ["//pytorch/tokenizers:headers"]', "tokenizers::tokenizers"),
    ):
        link = f"target_link_libraries(p {cmake})"
        assert ("dependency", "p/BUCK") in pairs(tree(buck), policy)
        assert ("dependency", "CMakeLists.txt") in pairs(tree(cmake=link), policy)
        assert not {k for k, _ in pairs(tree(buck, link), policy)} & {"dependency"}


RUNTIME = (
    "for suffix in ('', '_android_build'):\n"
    "    runtime.cxx_library(name = '{}' + suffix, srcs = ['{}'], {})\n"
)


def test_a_private_define_of_a_library_is_not_its_users(pairs: Pairs) -> None:
    """Another library exports the macro, so that every file is searched for it."""
    files = tree(
        'deps = ["//executorch/q:q"]',
        "target_link_libraries(p q)\ntarget_compile_definitions(q PRIVATE FAST)\n"
        "add_library(s s/s.cpp)\ntarget_compile_definitions(s PUBLIC FAST)\n",
    )
    flags = 'exported_preprocessor_flags = ["-DFAST"]'
    files |= {
        "s/BUCK": LOAD + f'runtime.cxx_library(name = "s", srcs = ["s.cpp"], {flags})\n',
        "s/s.cpp": "#ifdef FAST\n#endif\n",
    }

    assert pairs(files) == set()
    private = {"s/BUCK": files["s/BUCK"].replace("exported_", "")}
    deps = {"p/BUCK": files["p/BUCK"].replace("q:q", "s:s"), **private}
    assert ("define", "s/BUCK") not in pairs({**files, **deps})


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

    (found,) = findings({**files, "CMakeLists.txt": cmake})
    assert (found.kind.value, found.detail) == ("define", "p: FAST")
    (found,) = findings({**files, "CMakeLists.txt": link, "p/BUCK": buck})
    assert (found.kind.value, found.detail) == ("define", "//p:p: FAST")
    assert findings({**files, "CMakeLists.txt": cmake, "p/BUCK": buck}) == []


def test_a_target_without_files_stands_for_what_it_depends_on(
    findings: Callable[..., list[Finding]],
) -> None:
    files = tree('deps = [":way"]')
    files["p/BUCK"] += 'runtime.cxx_library(name = "way", exported_deps = ["//executorch/q:q"])\n'
    below = 'exported_deps = ["//executorch/p:r"]'
    files["p/BUCK"] += 'runtime.cxx_library(name = "r", srcs = ["r.cpp"])\n'
    files |= {"p/r.cpp": "", "q/BUCK": tree(second=below)["q/BUCK"]}
    files["CMakeLists.txt"] += "add_library(r p/r.cpp)\ntarget_link_libraries(q r)\n"

    far = findings(
        {**files, "CMakeLists.txt": files["CMakeLists.txt"] + "target_link_libraries(p r)"}
    )
    assert [(f.kind.value, f.detail) for f in far] == [("dependency", "//p:p -> //p:way")]
    link = files["CMakeLists.txt"] + "target_link_libraries(p q)\n"
    assert findings({**files, "CMakeLists.txt": link}) == []


def rules(**sources: str) -> str:
    """Libraries of Buck's with their sources, separated by spaces."""
    rows = (f'runtime.cxx_library(name = "{n}", srcs = {s.split()})' for n, s in sources.items())
    return LOAD + "\n".join(rows) + "\n"


def test_a_fix_names_the_targets_that_have_most_of_the_sources(
    findings: Callable[..., list[Finding]],
) -> None:
    """Two libraries of CMake's stand for several of Buck's, of their folder and of another."""
    files = {
        "o/BUCK": rules(big="1.cpp 2.cpp 3.cpp"),
        "p/BUCK": rules(few="a.cpp", most_of_p="b.cpp c.cpp", one="a.cpp"),
        "p/CMakeLists.txt": "add_library(p a.cpp b.cpp c.cpp ../o/1.cpp ../o/2.cpp ../o/3.cpp)\n"
        "target_link_libraries(p q)\n",
        "q/BUCK": rules(few="d.cpp", most_of_q="e.cpp f.cpp", one="d.cpp"),
        "q/CMakeLists.txt": "add_library(q d.cpp e.cpp f.cpp)\n",
        "CMakeLists.txt": "add_subdirectory(p)\nadd_subdirectory(q)\n",
    }
    listed = ("o/1", "o/2", "o/3", "p/a", "p/b", "p/c", "q/d", "q/e", "q/f")

    (found,) = findings(files | {f"{name}.cpp": "" for name in listed})
    assert (found.detail, found.buck_target) == ("p -> q", "//p:most_of_p")
    assert 'add "//q:most_of_q" to the deps of //p:most_of_p' in found.fix


def test_a_fix_names_the_target_that_includes_the_header(
    findings: Callable[..., list[Finding]],
) -> None:
    files = {
        "p/BUCK": rules(p="a.cpp", user_of_q="b.cpp"),
        "p/b.cpp": "#if ARM\n#include <executorch/q/q.h>\n#endif\n",
        "q/BUCK": LOAD + 'runtime.cxx_library(name = "q", srcs = ["q.cpp"], headers = ["q.h"])\n',
        "CMakeLists.txt": "add_library(p p/a.cpp p/b.cpp)\nadd_library(q q/q.cpp)\n"
        "target_link_libraries(p q)\n",
        **dict.fromkeys(("p/a.cpp", "q/q.cpp", "q/q.h"), ""),
    }

    (found,) = findings(files)
    assert (found.detail, found.buck_target) == ("p -> q", "//p:user_of_q")


def test_a_fix_names_the_library_that_lists_the_header_of_a_source(
    findings: Callable[..., list[Finding]],
) -> None:
    names = ("a.cpp", "b.cpp", "host/c.cpp", "c.h")
    files = {
        "p/BUCK": LOAD + 'runtime.cxx_library(name = "p", srcs = ["a.cpp", "b.cpp", "host/c.cpp"], '
        'headers = ["c.h"])\n',
        "CMakeLists.txt": "add_library(most p/a.cpp p/b.cpp)\nadd_library(own STATIC)\n"
        "add_library(only_headers INTERFACE p/c.h)\ntarget_sources(own PUBLIC p/c.h)\n",
        **{f"p/{name}": "" for name in names},
    }

    (found,) = findings(files)
    assert (found.path, found.cmake_target) == ("p/host/c.cpp", "own")
    assert found.fix == "add p/host/c.cpp to own (CMakeLists.txt:4)"


def test_a_fix_of_a_header_names_the_library_with_the_other_headers(
    findings: Callable[..., list[Finding]],
) -> None:
    exported = 'exported_headers = {"pal/a.h": "include/pal/a.h"}, header_namespace = ""'
    files = {
        "p/BUCK": rules(whole="a.cpp b.cpp c.cpp")
        + f'runtime.cxx_library(name = "pal", srcs = ["src/d.cpp"], {exported})\n',
        "CMakeLists.txt": "add_library(p p/a.cpp p/b.cpp p/c.cpp p/src/d.cpp)\n",
        "p/src/d.cpp": '#include "../include/pal/b.h"\n',
        **{f"p/{n}": "" for n in ("a.cpp", "b.cpp", "c.cpp", "include/pal/a.h", "include/pal/b.h")},
    }

    (found,) = findings(files)
    assert (found.path, found.buck_target) == ("p/include/pal/b.h", "//p:pal")


def test_a_test_that_compiles_the_file_is_no_library_for_it(
    findings: Callable[..., list[Finding]],
) -> None:
    files = {
        "p/BUCK": rules(p="a.cpp"),
        "CMakeLists.txt": "add_library(p STATIC ${missing})\nadd_executable(p_test p/a.cpp "
        "p/test/t.cpp)\n",
        **dict.fromkeys(("p/a.cpp", "p/test/t.cpp"), ""),
    }

    (found,) = [one for one in findings(files) if one.path == "p/a.cpp"]
    assert (found.kind.value, found.cmake_target) == ("buck-only-source", "")


def test_a_fix_names_the_library_that_is_most_of_a_dependency(
    findings: Callable[..., list[Finding]],
) -> None:
    """Of three libraries of CMake's with sources of q one consists of them."""
    files = tree(DEPS) | {
        "q/BUCK": rules(q="b.cpp c.cpp", other="d.cpp"),
        "CMakeLists.txt": "add_library(p p/a.cpp)\nadd_library(half q/b.cpp q/d.cpp)\n"
        "add_library(whole q/c.cpp)\nadd_library(z q/b.cpp q/c.cpp q/d.cpp)\n",
    }

    (found,) = findings(files | {"q/c.cpp": "", "q/d.cpp": ""})
    assert found.detail == "//p:p -> //q:q"
    assert found.fix.startswith("link whole to p,")
