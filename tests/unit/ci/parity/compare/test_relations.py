"""What is said of dependencies and defines, word for word, and what is passed over before."""

from __future__ import annotations

from typing import Any

import pytest

from ci.parity.facts import CMakeTarget
from ci.parity.policy import Exclusion, Library, ParityPolicy
from tests.unit.ci.parity.compare.sides import buck, cmake, compare, facts

GFLAGS = Library("gflags", buck=("gflags", "//third:g"), cmake=("gflags", "gflags_*"))
POLICY = ParityPolicy(
    tests=("**/test/**",),
    twins=("*_aten",),
    implied=("core",),
    ignored_defines=("NDEBUG",),
    suffixes=("Apple", "AppleMac"),
    library=(Library("other", buck=("o",), cmake=("o",)), GFLAGS),
    exclude=(Exclusion(("out/**",), "r"),),
)
OWN, OTHER = "p/a.cpp", "q/b.cpp"


def rows(
    p: Any, q: Any, *more: Any, policy: ParityPolicy = POLICY, **values: Any
) -> list[dict[str, str]]:
    """The findings of libraries p and q, each of (Buck, CMake), and of more targets."""
    bucks = [one for one in (p[0], q[0], *more) if not isinstance(one, CMakeTarget)]
    cmakes = [p[1], q[1], *(one for one in more if isinstance(one, CMakeTarget))]
    return compare(facts(bucks, cmakes, **values), policy)


def library(
    name: str, source: str, buck_side: Any = None, cmake_side: Any = None
) -> tuple[Any, Any]:
    package = source.partition("/")[0]
    return (
        buck(f"{package}:{name}", source, **buck_side or {}),
        cmake(name, source, **cmake_side or {}),
    )


Q = library("q", OTHER)


def p(buck_side: Any = None, cmake_side: Any = None) -> tuple[Any, Any]:
    return library("p", OWN, buck_side, cmake_side)


def details(found: list[dict[str, str]]) -> list[str]:
    return [row["detail"] for row in found]


# Dependencies


def test_a_dependency_of_buck_alone() -> None:
    """One that is conditional, the core or nobody's is passed over before it."""
    core = (buck("core:core", "core/c.cpp"), cmake("core", "core/c.cpp"))
    deps = ["//gone:x", "//core:core", "//q:q if k", "//q:q"]

    assert rows(p({"deps": deps}), Q, *core) == [
        {
            "kind": "dependency",
            "path": "p/BUCK",
            "message": "//p:p depends on //q:q; p does not link q",
            "level": "warning",
            "detail": "//p:p -> //q:q",
            "buck_target": "//p:p",
            "cmake_target": "p",
            "buck_place": "p/BUCK:15",
            "cmake_place": "CMakeLists.txt:10",
            "fix": "link q to p, or do not depend on //q:q",
        }
    ]


@pytest.mark.parametrize("kind", ["deps", "exported_deps", "external_deps"])
def test_every_kind_of_dependency_counts(kind: str) -> None:
    assert details(rows(p({kind: ["//q:q"]}), Q)) == ["//p:p -> //q:q"]


def test_a_library_outside_that_buck_alone_depends_on() -> None:
    (row,) = rows(p({"external_deps": ["gflags"]}), Q)

    assert row["message"] == "//p:p depends on gflags; p does not link gflags"
    assert row["fix"] == "link gflags to p, or do not depend on gflags"
    for name in ("gflags", "gflags_nothreads", "gflags::gflags_nothreads"):
        assert rows(p({"external_deps": ["gflags"]}, {"links": [name]}), Q) == []
    assert sorted(details(rows(p({"external_deps": ["gflags"]}, {"links": ["o"]}), Q))) == [
        "//p:p -> gflags",
        "p -> o",
    ]


def test_a_dependency_of_cmake_alone() -> None:
    """An extension module, the core, a name of nobody and one under a condition are passed over."""
    more = (
        buck("core:core", "core/c.cpp"),
        cmake("core", "core/c.cpp"),
        buck("m:m", "m/m.cpp"),
        cmake("m", "m/m.cpp", kind="module"),
    )
    links = ["z", "core", "m", "q if k", "q"]
    side = {"links": links}

    assert rows(p(None, side), Q, *more) == [
        {
            "kind": "dependency",
            "path": "CMakeLists.txt",
            "message": "p links q; //p:p does not depend on //q:q",
            "level": "note",
            "detail": "p -> q",
            "buck_target": "//p:p",
            "cmake_target": "p",
            "cmake_place": "CMakeLists.txt:16",
            "fix": 'add "//q:q" to the deps of //p:p, or do not link q',
        }
    ]


def test_a_link_whose_headers_are_included_is_a_warning() -> None:
    """What counts are the headers of the target that is linked, whether exported or not."""
    side = {"links": ["q"], "headers": ["p/a.h"]}
    for offered in ("headers", "exported_headers"):
        q = (buck("q:q", OTHER, **{offered: ["q/b.h"]}), cmake("q", OTHER))
        for file in (OWN, "p/a.h"):
            found = rows(p({"headers": ["p/a.h"]}, side), q, headers={file: ("x.h", "q/b.h")})
            assert [row["level"] for row in found] == ["warning"]
        found = rows(
            p({"headers": ["p/a.h"]}, side), q, headers={OWN: ("q/c.h",), OTHER: ("q/b.h",)}
        )
        assert [row["level"] for row in found] == ["note"]


def test_the_library_of_several_that_is_used_is_named() -> None:
    q = (buck("q:a", OTHER, headers=["q/a.h"]), cmake("q", OTHER, "q/c.cpp"))
    more = buck("q:z", "q/c.cpp", headers=["q/z.h"])
    named = rows(p(None, {"links": ["q"]}), q, more, headers={OWN: ("q/z.h",)})
    unused = rows(p(None, {"links": ["q"]}), q, more)

    assert "depend on //q:z" in named[0]["message"]
    assert "depend on //q:a" in unused[0]["message"]
    assert rows(p({"deps": ["//q:z"]}, {"links": ["q"]}), q, more) == []


def test_a_library_outside_that_cmake_alone_links() -> None:
    (row,) = rows(p(None, {"links": ["gflags"]}), Q)

    assert (row["message"], row["level"]) == (
        "p links gflags; //p:p does not depend on gflags",
        "warning",
    )
    assert rows(p({"deps": [":way"]}, {"links": ["gflags"]}), Q) != []
    way = buck("p:way", deps=["//third:g"])
    assert details(rows(p({"deps": ["//p:way"]}, {"links": ["gflags"]}), Q, way)) == []
    assert details(rows(p({"deps": ["o"]}, {"links": ["o", "gflags"]}), Q)) == ["p -> gflags"]


def test_a_link_by_another_name_is_the_target_s() -> None:
    for name in ("alias", "executorch::q", "a::b::q"):
        found = rows(p(None, {"links": [name]}), Q, sides={"aliases": {"alias": "q"}})
        assert details(found) == [f"p -> {name}"]
    assert (
        rows(p({"deps": ["//q:q"]}, {"links": ["alias"]}), Q, sides={"aliases": {"alias": "q"}})
        == []
    )


@pytest.mark.parametrize("first", ["one", "two"])
def test_every_target_of_one_name_is_judged(first: str) -> None:
    """Two directories may have targets of one name."""
    one = cmake("s", OWN, "p/x.cpp", directory="p", links=["q"])
    two = cmake("s", "r/c.cpp", directory="r", links=["q"])
    ordered = [one, two] if first == "one" else [two, one]
    rules = [buck("p:p", OWN), buck("p:x", "p/x.cpp", deps=["//q:q"]), buck("r:r", "r/c.cpp"), Q[0]]

    found = compare(facts(rules, [*ordered, Q[1]]), POLICY)
    assert [(row["detail"], row["buck_target"]) for row in found] == [("s -> q", "//r:r")]


def test_tests_modules_twins_and_excluded_files_are_left_out_one_by_one() -> None:
    """Each stands before p, which is found all the same."""
    left = [
        buck("a:t", "a/test/t.cpp", deps=["//q:q"]),
        buck("b:ext", "b/e.cpp", kind="cxx_python_extension", deps=["//q:q"]),
        buck("c:c_aten", "c/c.cpp", deps=["//q:q"]),
        buck("out:o", "out/o.cpp", deps=["//q:q"]),
    ]
    others = [
        cmake("a", "a/test/t.cpp", links=["gflags"]),
        cmake("b", "b/e.cpp", kind="pybind11_add_module", links=["gflags"]),
        cmake("bb", "b/e.cpp", kind="module", links=["gflags"]),
        cmake("c", "c/c.cpp"),
        cmake("o", "out/o.cpp", directory="out", links=["gflags"]),
    ]
    here = p({"deps": ["//q:q"]}, {"links": ["gflags"]})

    assert details(rows(here, Q, *left, *others)) == ["p -> gflags", "//p:p -> //q:q"]


def test_a_target_that_mixes_tests_and_others_is_compared() -> None:
    rules = [buck("p:p", OWN, "p/test/t.cpp", deps=["//q:q"]), Q[0]]

    found = compare(facts(rules, [cmake("p", OWN, "p/test/t.cpp"), Q[1]]), POLICY)
    assert details(found) == ["//p:p -> //q:q"]


def test_a_label_with_the_name_of_a_platform_is_the_written_one() -> None:
    links = {"links": ["q"]}
    for name in ("//q:q", "//q:qApple", "//q:qAppleMac"):
        assert rows(p({"deps": [name]}, links), Q) == []
    assert details(rows(p({"deps": ["//q:qMac"]}, links), Q)) == ["p -> q"]
    apple = (buck("q:qApple", OTHER), cmake("q", OTHER))
    assert rows(p({"deps": ["//q:qApple"]}, links), apple) == []


def test_what_a_group_of_files_lists_is_reached_and_what_a_library_compiles_is_not() -> None:
    links = {"links": ["q"]}
    group = buck("p:g", "//q:q", kind="filegroup")
    compiling = buck("p:g", "//q:q")

    assert rows(p({"deps": ["//p:g"]}, links), Q, group) == []
    assert details(rows(p({"deps": ["//p:g"]}, links), Q, compiling)) == ["p -> q"]


@pytest.mark.parametrize(
    ("kind", "silent"),
    [
        ("shared", True),
        ("module", True),
        ("add_executable", True),
        ("pybind11_add_module", True),
        ("static", False),
    ],
)
def test_what_is_built_at_the_end_may_link_for_a_library(kind: str, silent: bool) -> None:
    here = p({"deps": ["//q:q"]})
    final = cmake("main", "m/m.cpp", kind=kind, links=["way", "q"], directory="m")
    way = cmake("way", links=["p"])

    found = details(rows(here, Q, buck("m:m", "m/m.cpp", deps=["//p:p", "//q:q"]), final, way))
    assert ("//p:p -> //q:q" not in found) is silent


def test_every_end_must_link_it_and_the_library_itself_is_no_end() -> None:
    here = p({"deps": ["//q:q"]}, {"kind": "shared"})
    ends = [cmake("one", links=["p", "q"], kind="shared"), cmake("two", links=["p"], kind="shared")]

    assert details(rows(here, Q)) == ["//p:p -> //q:q"]
    assert details(rows(here, Q, *ends)) == ["//p:p -> //q:q"]
    assert rows(here, Q, ends[0]) == []


PARTS = buck("p:p", "p/a.cpp", "p/b.cpp", headers=["p/p.h"], deps=["//q:q"])


def part(name: str, *sources: str, **more: Any) -> CMakeTarget:
    return cmake(name, *sources, directory="p", **more)


@pytest.mark.parametrize(
    ("needed", "two", "expected"),
    [
        ({"p/b.cpp": ("q/q.h",)}, {}, ["//p:p -> //q:q"]),
        ({"p/b.cpp": ("p/p.h",), "p/p.h": ("q/q.h",)}, {}, ["//p:p -> //q:q"]),
        ({"p/b.cpp": ("r/r.h",), "r/r.h": ("q/q.h",)}, {}, []),
        ({"p/a.cpp": ("q/q.h",)}, {}, []),
        ({"p/b.cpp": ("q/q.h",)}, {"links": ["q"]}, []),
        ({"p/b.cpp": ("q/q.h",)}, {"kind": "module"}, []),
        ({}, {}, []),
    ],
    ids=["own", "header", "another's header", "other part", "linked", "left out", "not used"],
)
def test_each_part_of_a_library_links_what_it_uses(
    needed: dict[str, tuple[str, ...]], two: dict[str, Any], expected: list[str]
) -> None:
    below = buck("q:q", OTHER, headers=["q/q.h"])
    parts = [part("one", "p/a.cpp", links=["q"]), part("two", "p/b.cpp", **two)]
    tree = facts([PARTS, below], [*parts, Q[1]], needed=needed, files=["p/p.h", "q/q.h"])

    found = [row for row in compare(tree, POLICY) if row["kind"] == "dependency"]
    assert details(found) == expected
    assert [row["cmake_target"] for row in found] == ["two"] * len(expected)


def test_a_part_that_is_completed_where_it_is_linked_is_silent() -> None:
    parts = [part("one", "p/a.cpp", links=["q"]), part("two", "p/b.cpp")]
    final = cmake("main", links=["two", "q"], kind="add_executable")
    below = buck("q:q", OTHER, headers=["q/q.h"])
    tree = facts(
        [PARTS, below], [*parts, Q[1], final], needed={"p/b.cpp": ("q/q.h",)}, files=["q/q.h"]
    )

    assert [row for row in compare(tree, POLICY) if row["kind"] == "dependency"] == []


@pytest.mark.parametrize(
    ("reader", "macros", "expected"),
    [("p/b.cpp", ["FAST"], []), ("p/b.cpp", [], ["two"]), ("p/a.cpp", [], [])],
    ids=["both", "read there", "read elsewhere"],
)
def test_each_part_of_a_library_has_the_defines_that_it_reads(
    reader: str, macros: list[str], expected: list[str]
) -> None:
    whole = buck("p:p", "p/a.cpp", "p/b.cpp", defines=["FAST"])
    parts = [part("one", "p/a.cpp", defines=["FAST"]), part("two", "p/b.cpp", defines=macros)]
    tree = facts([whole], parts, macros={"FAST": (reader,)})

    found = [row for row in compare(tree, POLICY) if row["kind"] == "define"]
    assert [row["cmake_target"] for row in found if row["detail"] == "//p:p: FAST"] == expected


def test_a_program_is_nothing_to_link() -> None:
    here = p({"deps": ["//q:q"]})
    program = buck("q:q", OTHER), cmake("a", OTHER, kind="add_executable")

    assert rows(here, program) == []
    both = rows(here, program, cmake("z", OTHER))
    assert [row["fix"] for row in both] == ["link z to p, or do not depend on //q:q"]


@pytest.mark.parametrize(
    ("one", "two", "expected"),
    [([], [], ["//h:h: FAST"]), (["FAST"], [], []), (["FAST"], ["FAST"], [])],
)
def test_of_those_that_read_an_exported_define_one_must_have_it(
    one: list[str], two: list[str], expected: list[str]
) -> None:
    here = buck("p:p", "p/a.cpp", deps=["//h:h"])
    below = buck("h:h", exported_headers=["h/h.h"], defines=["+FAST"])
    parts = [part("one", "p/a.cpp", defines=one), part("two", "p/a.cpp", defines=two)]
    tree = facts([here, below], parts, macros={"FAST": ("p/a.cpp",)})

    assert details([row for row in compare(tree) if row["path"] == "h/BUCK"]) == expected


@pytest.mark.parametrize(
    ("defines", "expected"),
    [(["+FAST"], []), ([], [("//q:q: FAST", "q")])],
)
def test_who_misses_a_define_that_both_sides_export_lacks_the_dependency(
    defines: list[str], expected: list[tuple[str, str]]
) -> None:
    here = p({"deps": ["//q:q"]})
    below = buck("q:q", OTHER, defines=["+FAST"]), cmake("q", OTHER, defines=defines)

    found = rows(here, below, macros={"FAST": (OWN, OTHER)})
    kinds = [(row["detail"], row["cmake_target"]) for row in found if row["kind"] == "define"]
    assert kinds == expected


def test_half_of_the_sources_are_too_few_to_stand_for_a_library() -> None:
    def found(*sources: str, directory: str = "") -> list[str]:
        one = cmake("p", *sources, directory=directory)
        tree = facts(
            [buck("p:p", OWN, "p/c.cpp", deps=["//q:q"]), Q[0]], [one, Q[1]], files=["p/c.cpp"]
        )
        return [row["detail"] for row in compare(tree, POLICY) if row["kind"] == "dependency"]

    assert found(OWN, "x/x.cpp", "x/x.h") == []
    assert found(OWN, "p/c.cpp", "x/x.cpp") == ["//p:p -> //q:q"]
    assert found(OWN, directory="p") == ["//p:p -> //q:q"]
    assert found(OWN, directory="p/deep") == []
    assert found(OWN, directory="") == ["//p:p -> //q:q"]


def test_of_several_names_the_first_are_named() -> None:
    q = (Q[0], cmake("q2", OTHER))
    here = (buck("p:p", OWN, deps=["//q:q"]), cmake("p2", OWN))
    (row,) = rows(here, q, cmake("q1", OTHER), cmake("p1", OWN))

    assert row["message"] == "//p:p depends on //q:q; p1 does not link q1"
    assert row["cmake_target"] == "p1"


def test_a_link_of_one_platform_is_certain_there() -> None:
    """Another target of that name, and one in another directory, are not this one."""

    def found(**sides: Any) -> list[str]:
        here = cmake("p", OWN, links=["q if ANDROID"])
        return details(compare(facts([buck("p:p", OWN), Q[0]], [here, Q[1]], **sides), POLICY))

    plain, linked = cmake("p", OWN), cmake("p", OWN, links=["q"])
    assert found(host=[plain, Q[1]], android=[linked, Q[1]]) == ["p -> q"]
    assert found(host=[linked, Q[1]], android=[plain, Q[1]]) == ["p -> q"]
    assert found(host=[plain, Q[1]], android=[plain, Q[1]]) == []


# Defines


MACROS = {"FAST": (OWN,), "SLOW": (OWN,)}


def test_a_define_of_cmake_alone() -> None:
    """What is conditional, ignored or not read by any file is passed over before it."""
    words = ["FAST=2 if k", "NDEBUG", "NOBODY", "FAST=1"]
    side = {"defines": words}

    assert rows(p(None, side), Q, macros={**MACROS, "NDEBUG": (OWN,)}) == [
        {
            "kind": "define",
            "path": "CMakeLists.txt",
            "message": "CMake defines FAST=1 for p, Buck does not for //p:p",
            "level": "warning",
            "detail": "p: FAST",
            "buck_target": "//p:p",
            "cmake_target": "p",
            "buck_place": "p/BUCK:10",
            "cmake_place": "CMakeLists.txt:15",
            "fix": 'add "-DFAST=1" to the preprocessor_flags of //p:p',
        }
    ]


def test_a_define_of_buck_alone() -> None:
    words = ["FAST=2 if k", "NDEBUG", "NOBODY", "FAST=1"]

    assert rows(p({"defines": words}), Q, macros={**MACROS, "NDEBUG": (OWN,)}) == [
        {
            "kind": "define",
            "path": "p/BUCK",
            "message": "Buck defines FAST=1 for //p:p, CMake does not for p",
            "level": "warning",
            "detail": "//p:p: FAST",
            "buck_target": "//p:p",
            "cmake_target": "p",
            "buck_place": "p/BUCK:15",
            "cmake_place": "CMakeLists.txt:10",
            "fix": "target_compile_definitions(p PRIVATE FAST=1)",
        }
    ]


def test_a_define_is_compared_by_its_name_and_where_it_comes_from() -> None:
    macros = {"FAST": (OWN,)}
    both = p({"defines": ["FAST=1"]}, {"defines": ["FAST"]})
    directory = p({"defines": ["FAST"]}, {"directory_defines": ["FAST=1"]})
    from_below = p({"defines": ["FAST"]}, {"links": ["way"]})
    above = p({"deps": ["//p:way"]}, {"defines": ["FAST"]})

    assert rows(both, Q, macros=macros) == []
    assert rows(directory, Q, macros=macros) == []
    assert rows(from_below, Q, cmake("way", defines=["FAST"]), macros=macros) == []
    assert rows(above, Q, buck("p:way", defines=["FAST=3"]), macros=macros) == []
    assert len(rows(p({"defines": ["FASTER"]}, {"defines": ["FAST"]}), Q, macros=macros)) == 1


def test_a_define_that_a_header_reads_counts() -> None:
    """CMake hardly names headers: those of the Buck target that stands for it are taken."""
    for kind in ("headers", "exported_headers"):
        macros = {"FAST": ("p/a.h",)}
        side = {kind: ["p/a.h"]}
        assert details(rows(p(side, {"defines": ["FAST"]}), Q, macros=macros)) == ["p: FAST"]
        both = {**side, "defines": ["FAST"]}
        assert details(rows(p(both), Q, macros=macros)) == ["//p:p: FAST"]
        assert rows(p(both, {"defines": ["FAST"]}), Q, macros=macros) == []
    own = {"headers": ["p/a.h"], "defines": ["FAST"]}
    kinds = {row["kind"] for row in rows(p(None, own), Q, macros={"FAST": ("p/a.h",)})}
    assert kinds == {"header", "define"}


def test_every_define_that_a_side_lacks_is_told() -> None:
    macros = {"FAST": (OWN,), "SLOW": (OWN,)}
    both = {"defines": ["FAST", "SLOW"]}

    assert details(rows(p(None, both), Q, macros=macros)) == ["p: FAST", "p: SLOW"]
    assert details(rows(p(both), Q, macros=macros)) == ["//p:p: FAST", "//p:p: SLOW"]


def test_a_folder_that_begins_alike_is_not_the_one_of_a_target() -> None:
    """A target is compared by the sources below its own directory."""
    macros = {"FAST": ("pq/a.cpp",)}

    for folder, found in [("pq", ["lib: FAST"]), ("p", []), ("", ["lib: FAST"])]:
        lib = cmake("lib", "pq/a.cpp", directory=folder, defines=["FAST"])
        assert details(rows(p(), Q, buck("pq:lib", "pq/a.cpp"), lib, macros=macros)) == found


def test_an_exported_define_is_judged_in_the_first_that_reads_it() -> None:
    """The readers are q and r, of which q has it on both sides, and r not in Buck."""
    links = {"links": ["way", "q"]}
    side = {"deps": ["//q:q"]}
    macros = {"FAST": (OWN, "r/c.cpp", "s/d.cpp")}
    q = (buck("q:q", OTHER), cmake("q", OTHER, defines=["+FAST"]))
    third = (buck("r:r", "r/c.cpp", deps=["//q:q"]), cmake("r", "r/c.cpp", links=["q"]))
    fourth = (buck("s:s", "s/d.cpp"), cmake("s", "s/d.cpp"))

    (row,) = rows(p(side, links), q, *third, *fourth, macros=macros)
    assert (row["detail"], row["cmake_target"], row["buck_target"]) == ("q: FAST", "p", "//p:p")
    has = p({**side, "defines": ["FAST"]}, links)
    (row,) = rows(has, q, *third, *fourth, macros=macros)
    assert (row["detail"], row["cmake_target"], row["buck_target"]) == ("q: FAST", "r", "//r:r")


def test_an_exported_define_of_buck_is_judged_in_the_first_that_reads_it() -> None:
    macros = {"FAST": (OWN, "r/c.cpp", "s/d.cpp")}
    q = (buck("q:q", OTHER, defines=["+FAST"]), cmake("q", OTHER))
    third = (buck("r:r", "r/c.cpp", deps=["//q:q"]), cmake("r", "r/c.cpp", links=["q"]))
    fourth = (buck("s:s", "s/d.cpp"), cmake("s", "s/d.cpp"))
    side = {"deps": ["//q:q"]}

    (row,) = rows(p(side, {"links": ["q"]}), q, *third, *fourth, macros=macros)
    assert (row["detail"], row["cmake_target"], row["buck_target"]) == ("//q:q: FAST", "p", "//p:p")
    has = p(side, {"links": ["q"], "defines": ["FAST"]})
    (row,) = rows(has, q, *third, *fourth, macros=macros)
    assert (row["detail"], row["cmake_target"], row["buck_target"]) == ("//q:q: FAST", "r", "//r:r")


def test_a_define_that_only_others_read_is_not_judged() -> None:
    """The reader neither links what exports it nor depends on it."""
    macros = {"FAST": ("r/c.cpp",)}
    third = (buck("r:r", "r/c.cpp"), cmake("r", "r/c.cpp"))

    q = (buck("q:q", OTHER), cmake("q", OTHER, defines=["+FAST"]))
    assert rows(p(), q, *third, macros=macros) == []
    q = (buck("q:q", OTHER, defines=["+FAST"]), cmake("q", OTHER))
    assert rows(p(), q, *third, macros=macros) == []


def test_a_private_define_stays_in_its_target() -> None:
    macros = {"FAST": (OWN,)}
    for side in ("defines",):
        q = (buck("q:q", OTHER, **{side: ["FAST"]}), cmake("q", OTHER))
        assert rows(p({"deps": ["//q:q"]}, {"links": ["q"]}), q, macros=macros) == []
        q = (buck("q:q", OTHER), cmake("q", OTHER, **{side: ["FAST"]}))
        assert rows(p({"deps": ["//q:q"]}, {"links": ["q"]}), q, macros=macros) == []


def test_a_define_of_what_is_left_out_is_not_judged() -> None:
    macros = {"FAST": ("a/test/t.cpp", "b/e.cpp", "c/c.cpp", OWN)}
    left = [
        buck("a:t", "a/test/t.cpp", defines=["FAST"]),
        buck("b:ext", "b/e.cpp", kind="cxx_python_extension", defines=["FAST"]),
        buck("c:c_aten", "c/c.cpp", defines=["FAST"]),
    ]
    others = [cmake("a", "a/test/t.cpp"), cmake("b", "b/e.cpp"), cmake("c", "c/c.cpp")]
    flags = {"defines": ["FAST"]}
    assert details(rows(p(flags), Q, *left, *others, macros=macros)) == ["//p:p: FAST"]
    others = [
        cmake("a", "a/test/t.cpp", defines=["FAST"]),
        cmake("b", "b/e.cpp", kind="module", defines=["FAST"]),
    ]
    left = [buck("a:t", "a/test/t.cpp"), buck("b:ext", "b/e.cpp")]
    assert details(rows(p(None, flags), Q, *left, *others, macros=macros)) == ["p: FAST"]


# One source of a library that a target compiles piece by piece


def partial(
    taken: int, *, missing: int = 1, note: bool = False, more: Any = ()
) -> list[dict[str, str]]:
    some = [f"p/s{n}.cpp" for n in range(taken)]
    folder = "p/test" if note else "p"
    rest = [f"{folder}/r{n}.cpp" for n in range(missing)]
    rules = [buck("p:p", *some, *rest, "p/x.h", "p/gone.cpp"), buck("p:z_aten", *some, *rest)]
    targets = [cmake("lib", *some, *rest), cmake("main", "m/m.cpp", *some, directory="m"), *more]
    tree = facts(rules, targets, files=["m/m.cpp"], gone=["p/gone.cpp"])
    return [row for row in compare(tree, POLICY) if row["kind"] == "buck-only-source"]


def test_one_source_that_a_target_forgets() -> None:
    assert partial(5) == [
        {
            "kind": "buck-only-source",
            "path": "p/r0.cpp",
            "message": "main compiles 5 other sources of //p:p but not this one",
            "level": "warning",
            "detail": "main",
            "buck_target": "//p:p",
            "cmake_target": "main",
            "buck_place": "p/BUCK:16",
            "cmake_place": "m/CMakeLists.txt:12",
            "fix": "add p/r0.cpp to main (m/CMakeLists.txt:12)",
        }
    ]
    assert [row["level"] for row in partial(5, note=True)] == ["note"]
    assert partial(4) == partial(5, missing=2) == partial(5, missing=0) == []


def test_a_source_of_what_a_target_links_is_not_forgotten() -> None:
    some = [f"p/s{n}.cpp" for n in range(5)]
    rules = [buck("p:p", *some, "p/r.cpp"), buck("o:o", "p/s0.cpp")]
    main = cmake("main", *some, links=["way"])
    tree = facts(
        rules,
        [
            cmake("lib", *some, "p/r.cpp"),
            main,
            cmake("way", links=["rest"]),
            cmake("rest", "p/r.cpp"),
        ],
    )

    assert compare(tree, POLICY) == []


# Imports


PYTHON = ParityPolicy(imports=("p/**",), tests=("**/test_*",))


def python(label: str, *srcs: str, deps: tuple[str, ...] = ()) -> Any:
    return buck(label, *srcs, kind="python_library", deps=deps)


def test_an_import_without_a_dependency() -> None:
    """Files of nobody, of its own target and of one that is reached are passed over before it."""
    rules = [
        python("o:o", "o/x.py"),
        python("p:p", "p/a.py", "p/b.py", deps=("//r:r",)),
        python("p:t", "p/test_a.py"),
        python("q:long", "q/x.py"),
        python("q:q", "q/x.py"),
        python("r:r", "r/x.py"),
        buck("n:n", "n/n.cpp"),
    ]
    imports = {
        "o/x.py": ("q/x.py",),
        "p/a.py": ("z/x.py", "p/b.py", "r/x.py", "n/n.cpp", "q/x.py"),
        "p/test_a.py": ("q/x.py",),
    }

    found = compare(facts(rules, [cmake("n", "n/n.cpp")], imports=imports), PYTHON)
    assert found == [
        {
            "kind": "dependency",
            "path": "p/a.py",
            "message": "it imports q/x.py; //p:p does not depend on //q:q, nor does everything "
            "built from it",
            "level": "warning",
            "detail": "//p:p -> //q:q",
            "buck_target": "//p:p",
            "buck_place": "p/BUCK:10",
            "fix": 'add "//q:q" to the deps of //p:p (p/BUCK:10)',
        },
        {
            **found[0],
            "path": "p/test_a.py",
            "level": "note",
            "message": found[0]["message"].replace("p:p", "p:t"),
            "detail": "//p:t -> //q:q",
            "buck_target": "//p:t",
            "fix": found[0]["fix"].replace("p:p", "p:t"),
        },
    ]


def test_every_top_must_reach_what_a_library_imports() -> None:
    """What a top reaches is enough; one that does not contain the library says nothing."""
    base = [python("p:p", "p/a.py"), python("q:q", "q/x.py"), python("q:alone", "q/y.py")]
    good = python("p:top", "p/c.py", deps=("//p:mid", "//q:q"))
    mid = python("p:mid", "p/b.py", deps=("//p:p",))
    bad = python("p:top2", "p/d.py", deps=("//p:p",))
    imports = {"p/a.py": ("q/x.py",)}

    assert compare(facts([*base, mid, good], imports=imports), PYTHON) == []
    assert details(compare(facts([*base, mid, good, bad], imports=imports), PYTHON)) == [
        "//p:p -> //q:q"
    ]
    assert details(compare(facts([*base, mid], imports=imports), PYTHON)) == ["//p:p -> //q:q"]


def test_two_that_depend_on_each_other_are_their_own_tops() -> None:
    one = python("p:p", "p/a.py", deps=("//p:z", "//q:q"))
    two = python("p:z", "p/z.py", deps=("//p:p",))

    assert (
        compare(facts([one, two, python("q:q", "q/x.py")], imports={"p/a.py": ("q/x.py",)}), PYTHON)
        == []
    )
