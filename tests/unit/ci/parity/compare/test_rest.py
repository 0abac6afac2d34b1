"""Headers, includes, globs, repeated targets, what was not read, and the order of findings."""

from __future__ import annotations

from typing import Any

import pytest

from ci.parity.compare.findings import Finding, Kind, Level, at, order_findings
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import Index, area_of, forwarded, is_native
from ci.parity.compare.sources import python_folders
from ci.parity.facts import (
    CMakeFacts,
    Configuration,
    Glob,
    Include,
    NotEvaluated,
    ParityFacts,
    Place,
    closure,
)
from tests.unit.ci.parity.compare.sides import POLICY, buck, cmake, compare, facts, paths, word

# Headers


def test_a_header_that_no_target_exports() -> None:
    files = (
        "b/b.h",
        "mod/b.h",
        "out/b.h",
        "p/b.cc.txt",
        "p/b.h",
        "p/test/b.h",
        "p/unused.h",
        "q/b.h",
        "z/b.h",
    )
    rules = [
        buck("mod:l", "mod/a.cpp"),
        buck("out:l", "out/a.cpp"),
        buck("p:lib", "p/a.cpp", headers=["p/test/a.h"]),
        buck("q:py", "q/a.py", kind="python_library"),
    ]
    lib = cmake("lib", "p/a.cpp", "mod/a.cpp", "out/a.cpp")
    tree = facts(rules, [lib], files=files, submodules=("mod",), header_names=frozenset({"b.h"}))

    found = compare(tree)
    assert found == [
        {
            "kind": "header",
            "path": "p/b.h",
            "message": "no Buck target exports it",
            "level": "error",
            "buck_target": "//p:lib",
            "buck_place": "p/BUCK:10",
            "fix": 'add "b.h", to the exported_headers of //p:lib (p/BUCK:10)',
        },
        {
            **found[0],
            "path": "p/test/b.h",
            "level": "note",
            "fix": 'add "test/b.h", to the exported_headers of //p:lib (p/BUCK:10)',
        },
        {
            **found[0],
            "path": "p/unused.h",
            "level": "note",
            "message": "no Buck target exports it, and nothing includes it",
            "fix": 'add "unused.h", to the exported_headers of //p:lib (p/BUCK:10)',
        },
    ]


def test_a_header_of_the_root_and_of_a_folder_without_others() -> None:
    rules = [buck(":lib", "a.cpp")]
    files = ["b.h", "include/c.h", "include/d.h"]
    tree = facts(rules, [cmake("lib", "a.cpp", headers=["include/d.h"])], files=files)

    assert [(row["path"], row["fix"].split(",")[0]) for row in compare(tree)] == [
        ("b.h", 'add "b.h"'),
        ("include/d.h", 'add "include/d.h"'),
    ]


# Includes


def row(text: str, directory: str | None = "inc", path: str = "p/a.cpp", line: int = 3) -> Include:
    return Include(text, Place(path, line), directory)


def test_an_include_that_no_target_offers() -> None:
    """Those of nobody's file, that some target offers, or that are left out come before it."""
    rules = [
        buck("o:o", "p/z.cpp", kind="filegroup"),
        buck(
            "p:lib",
            "p/a.cpp",
            "p/test/t.cpp",
            include_names=("named.h",),
            include_directories=("dirs",),
        ),
        buck("p:other", "p/a.cpp"),
        buck("out:l", "out/a.cpp"),
        buck("q:q", headers=["inc/x/h.h"]),
    ]
    rules[-1] = buck("inc:q", headers=["inc/x/h.h"])
    includes = (
        row("x/h.h", path="p/z.cpp"),
        row("named.h"),
        row("deep/../found.h"),
        row("x.h", "mod"),
        row("x/h.h", path="out/a.cpp"),
        row("x/h.h"),
        row("x/h.h", path="p/test/t.cpp"),
        row("inc/x/h.h", None),
    )
    lib = cmake("lib", "p/a.cpp", "p/test/t.cpp", "out/a.cpp", "p/z.cpp", headers=["inc/x/h.h"])
    tree = facts(rules, [lib], files=["dirs/found.h"], includes=includes, submodules=("mod",))

    found = [each for each in compare(tree) if each["kind"] == "include"]
    assert found == [
        {
            "kind": "include",
            "path": "p/a.cpp",
            "message": "it includes inc/x/h.h, which CMake finds in the root; no Buck target "
            "offers a header of that name",
            "level": "warning",
            "detail": "inc/x/h.h",
            "buck_target": "//p:lib",
            "buck_place": "p/BUCK:10",
            "cmake_place": "p/a.cpp:3",
            "fix": 'a library of //inc with exported_headers = {"inc/x/h.h": "x/h.h"} and '
            'header_namespace = "", or include it by its whole path',
        },
        {
            **found[0],
            "detail": "x/h.h",
            "message": "it includes x/h.h, which CMake finds in inc; no Buck target offers "
            "a header of that name",
            "fix": found[0]["fix"].replace('"inc/x/h.h":', '"x/h.h":'),
        },
        {
            **found[1],
            "path": "p/test/t.cpp",
            "level": "note",
            "cmake_place": "p/test/t.cpp:3",
        },
    ]


def test_an_include_of_the_root_s_package_goes_by_its_path() -> None:
    tree = facts([buck("p:lib", "p/a.cpp")], [cmake("lib", "p/a.cpp")], includes=(row("h.h", "d"),))

    (found,) = compare(tree)
    assert 'a library of // with exported_headers = {"h.h": "d/h.h"}' in found["fix"]


# Targets and globs


def test_a_target_that_is_defined_twice() -> None:
    twice = (buck("out:a"), buck("p:lib"))
    again = {"repeated": (cmake("a", directory="out"), cmake("lib", directory="q"))}

    found = compare(facts(repeated=twice, sides=again))
    assert found == [
        {
            "kind": "duplicate-target",
            "path": "p/BUCK",
            "message": "//p:lib is defined twice",
            "level": "error",
            "detail": "//p:lib",
            "buck_target": "//p:lib",
            "buck_place": "p/BUCK:10",
            "fix": "rename or remove one of them",
        },
        {
            "kind": "duplicate-target",
            "path": "q/CMakeLists.txt",
            "message": "CMake target lib is defined twice",
            "level": "error",
            "detail": "lib",
            "cmake_target": "lib",
            "cmake_place": "q/CMakeLists.txt:10",
            "fix": "rename or remove one of them",
        },
    ]


def test_a_pattern_without_a_file() -> None:
    place = Place("p/BUCK", 7)
    calls = (
        Glob("mod", ("*.cpp",), ("*.cpp",), place),
        Glob("p", ("a", "b", "c"), ("out/*.cpp", "*.cpp", "x/*.h"), place),
        Glob("q", ("*.cpp",), ("*.cpp",), place, matches=1),
        Glob("", ("*.m",), ("*.m",), place),
    )

    found = compare(facts(globs=calls, submodules=("mod",)))
    assert [(each["path"], each["level"]) for each in found] == [
        ("*.m", "error"),
        ("p/*.cpp", "error"),
        ("p/x/*.h", "error"),
        ("q/*.cpp", "note"),
    ]
    assert found[1] == {
        "kind": "empty-glob",
        "path": "p/*.cpp",
        "message": "glob() of //p: no file matches '*.cpp'",
        "level": "error",
        "detail": "*.cpp",
        "buck_place": "p/BUCK:7",
        "fix": "take the pattern out, or correct it",
    }


# What was not read


def unread(
    side: str, path: str, folder: str | None, *, broken: bool = True, line: int = 4
) -> NotEvaluated:
    return NotEvaluated(side, Place(path, line), "a reason", folder, is_broken=broken)


def test_what_was_not_read_is_said() -> None:
    """A mere word, the whole side and an excluded file come before it."""
    rows_ = (
        unread("buck", "a/BUCK", None),
        NotEvaluated("buck", Place("."), "whole", "", is_broken=True),
        unread("buck", "out/BUCK", "out"),
        unread("buck", "p/BUCK", "p"),
        unread("cmake", "q/CMakeLists.txt", "q/gone", broken=False),
    )

    assert compare(facts(not_evaluated=rows_)) == [
        {
            "kind": "unread-file",
            "path": "p/BUCK",
            "message": "not read: a reason",
            "level": "error",
            "when_new": "error",
            "buck_place": "p/BUCK:4",
            "fix": "fix it: until then, nothing that depends on it is checked",
        },
        {
            "kind": "unread-file",
            "path": "q/CMakeLists.txt",
            "message": "not read: a reason",
            "level": "note",
            "when_new": "error",
            "detail": "q/gone",
            "cmake_place": "q/CMakeLists.txt:4",
            "fix": "fix it: until then, nothing that depends on it is checked",
        },
    ]


def left(tree: ParityFacts) -> list[tuple[str, str]]:
    return [each for each in paths(tree) if each[0] != "unread-file"]


def test_what_rests_on_an_unread_package_is_not_found() -> None:
    """A package of its own below it, and one beside with the same beginning, are judged."""
    rules = [
        buck("p:lib", "p/a.cpp"),
        buck("un/own:o", "un/own/a.cpp"),
        buck("unread:o", "unread/a.cpp"),
    ]
    sources = [
        "p/a.cpp",
        "un/b.cpp",
        "un/deep/b.cpp",
        "un/own/a.cpp",
        "un/own/b.cpp",
        "unread/a.cpp",
        "unread/b.cpp",
    ]
    lib = cmake("lib", *sources)
    rows_ = (unread("buck", "un/BUCK", "un"),)
    tree = facts(
        [*rules, buck("un:x", "un/x.py", kind="python_library")],
        [lib],
        not_evaluated=rows_,
        files=["un/n.h"],
    )

    assert left(tree) == [
        ("cmake-only-source", "un/own/b.cpp"),
        ("cmake-only-source", "unread/b.cpp"),
    ]
    whole = facts(
        [buck("p:lib", "p/a.cpp")],
        [cmake("lib", "p/a.cpp", "un/b.cpp", "z/b.cpp")],
        not_evaluated=rows_,
    )
    assert left(whole) == [("cmake-only-source", "z")]


def test_what_rests_on_an_unread_directory_is_not_found() -> None:
    rules = [
        buck("p:lib", "p/a.cpp", "p/b.cpp"),
        buck("un:x", "un/a.cpp", "un/b.cpp"),
        buck("unx:x", "unx/a.cpp"),
    ]
    lib = cmake("lib", "p/a.cpp", "un/a.cpp")
    rows_ = (unread("cmake", "un/CMakeLists.txt", "un"),)
    tree = facts(rules, [lib], not_evaluated=rows_, files=["un/n.cpp", "p/n.cpp"])

    assert left(tree) == [
        ("buck-only-source", "p/b.cpp"),
        ("buck-only-source", "unx/a.cpp"),
        ("unlisted-file", "p/n.cpp"),
    ]


def relations(*rows_: NotEvaluated, p: Any = None, links: tuple[str, ...] = ("q",)) -> list[str]:
    """Details of what is found of p, which links q (of directory un, package un) in CMake alone."""
    rules = [p or buck("p:p", "p/a.cpp"), buck("un:q", "un/b.cpp")]
    targets = [
        cmake("p", "p/a.cpp", links=links),
        cmake("q", "un/b.cpp", directory="un"),
        cmake("r", "r/r.cpp", links=["q2"]),
        cmake("q2", "r/2.cpp"),
    ]
    rules += [buck("r:r", "r/r.cpp"), buck("r:2", "r/2.cpp")]
    tree = facts(rules, targets, not_evaluated=rows_)
    return [each["detail"] for each in compare(tree) if each["kind"] == "dependency"]


def test_relations_with_what_was_not_read_are_not_found() -> None:
    both = ["p -> q", "r -> q2"]
    assert relations() == both
    assert relations(unread("cmake", "un/CMakeLists.txt", "un")) == ["r -> q2"]
    assert relations(unread("cmake", "un/CMakeLists.txt", "un", broken=False)) == both
    assert relations(unread("cmake", "x/CMakeLists.txt", "x")) == both
    assert relations(unread("cmake", "x/CMakeLists.txt", "x"), links=("q", "gone")) == ["r -> q2"]
    through = buck("p:p", "p/a.cpp", deps=["//gone:x"])
    assert relations(unread("buck", "gone/BUCK", "gone"), p=through) == ["r -> q2"]
    assert relations(unread("buck", "gone2/BUCK", "gone2"), p=through) == both


def test_a_scope_is_a_folder_of_the_finding_or_of_a_place() -> None:
    tree = facts([buck("p:lib", "q/a.cpp")], [cmake("x", directory="r")])

    def found(*scope: str) -> bool:
        return bool(compare(tree, POLICY, *scope))

    assert [found(), found("p"), found("q"), found("r"), found("r", "p"), found("q/a")] == [
        True,
        True,
        True,
        False,
        True,
        False,
    ]


# Findings


def finding(**values: Any) -> Finding:
    return Finding(**{"kind": Kind.HEADER, "path": "p", "message": "", **values})


def test_a_finding_is_known_by_four_things_and_stands_where_buck_is_first() -> None:
    one = finding(detail="d", configuration=Configuration.HOST, level=Level.NOTE, message="m")

    assert one.key == ("header", "p", "d", "host")
    assert finding().key == ("header", "p", "", "")
    assert finding().place == Place("p")
    cmake_place, buck_place = Place("c", 1), Place("b", 2)
    assert finding(cmake_place=cmake_place).place == cmake_place
    assert finding(cmake_place=cmake_place, buck_place=buck_place).place == buck_place


def test_the_fields_of_a_target_are_those_of_its_side() -> None:
    place = Place("x", 3)

    assert at(None) == at(None, place) == {}
    assert at(buck("p:a")) == {"buck_target": "//p:a", "buck_place": Place("p/BUCK", 10)}
    assert at(buck("p:a"), place) == {"buck_target": "//p:a", "buck_place": place}
    assert at(cmake("a")) == {"cmake_target": "a", "cmake_place": Place("CMakeLists.txt", 10)}
    assert at(cmake("a"), place) == {"cmake_target": "a", "cmake_place": place}


def test_findings_are_ordered_by_kind_path_and_detail_and_the_first_of_a_key_stays() -> None:
    rows_ = [
        finding(kind=Kind.CMAKE_ONLY, path="z"),
        finding(path="b", detail="2"),
        finding(path="b", detail="1"),
        finding(path="a", detail="9"),
        finding(path="a", detail="9", message="again"),
        finding(kind=Kind.STALE, path="a"),
    ]

    assert order_findings(rows_[::-1]) != rows_
    assert order_findings(rows_) == [rows_[0], rows_[3], rows_[2], rows_[1], rows_[5]]


# The index


@pytest.mark.parametrize(
    ("kind", "source", "native"),
    [
        ("cxx_library", "", True),
        ("fb_cpp_x", "", True),
        ("apple_library", "", True),
        ("pybind_ext", "", True),
        ("my_rule", "a.cpp", True),
        ("my_rule", "a.py", False),
        ("my_rule", "", False),
        ("filegroup", "a.cpp", False),
        ("python_library", "a.cpp", False),
        ("apple_bundle", "", False),
    ],
)
def test_a_rule_is_native_by_its_name_or_by_what_it_compiles(
    kind: str, source: str, native: bool
) -> None:
    assert is_native(buck("p:x", *([source] if source else []), kind=kind)) is native


def test_an_area_is_the_first_two_folders() -> None:
    assert [area_of(path) for path in ("a/b/c/d.cpp", "a/b", "a")] == ["a/b", "a/b", "a"]


def test_an_exported_file_is_named_after_its_rule() -> None:
    def names(label: str, *srcs: str, kind: str) -> list[str]:
        return [each.path for each in forwarded(buck(label, *srcs, kind=kind))]

    assert names("p:a.cpp", kind="export_file") == ["p/a.cpp"]
    assert names(":a.cpp", kind="export_file") == ["a.cpp"]
    assert names("p:a", "p/b.cpp", kind="export_file") == ["p/b.cpp"]
    assert names("p:a", kind="filegroup") == []


def nested(depth: int) -> list[str]:
    """What a library compiles that lists a group within groups."""
    groups = [buck(f"g:{n}", f"//g:{n + 1}", kind="filegroup") for n in range(1, depth)]
    last = buck(f"g:{depth}", "g/a.cpp", kind="filegroup")
    tree = facts([buck("p:lib", "//g:1"), *groups, last], [cmake("lib", "g/a.cpp")])
    return list(Index(tree, POLICY).buck_uses)


def test_groups_are_followed_three_deep() -> None:
    assert [nested(depth) for depth in (1, 2, 3, 4)] == [["g/a.cpp"]] * 3 + [[]]


def test_a_file_of_a_group_stands_where_the_group_is_listed() -> None:
    rules = [
        buck("p:lib", "//p:no if k", "//gone:x", "//p:g if k"),
        buck("p:g", "p/a.cpp", kind="filegroup"),
        buck("p:no", "p/b.cpp"),
    ]
    index = Index(facts(rules), POLICY)

    (use,) = index.buck_uses["p/a.cpp"]
    assert (use.target.label, use.entry.condition, str(use.entry.place)) == (
        "//p:lib",
        "k",
        "p/BUCK:13",
    )
    assert [one.target.label for one in index.buck_uses["p/b.cpp"]] == ["//p:no"]
    assert index.files_of(rules[0]) == {"p/a.cpp"}
    assert index.buck_mentions == {"p/a.cpp", "p/b.cpp"}


def test_the_package_of_a_file_is_the_nearest() -> None:
    index = Index(facts([buck("a:x"), buck("a/b:x")]), POLICY)
    root = Index(facts([buck(":x")]), POLICY)

    assert [index.package_of(path) for path in ("a/b/c/x.h", "a/c/x.h", "ab/x.h", "x.h")] == [
        "a/b",
        "a",
        None,
        None,
    ]
    assert root.package_of("q/x.h") == root.package_of("x.h") == ""


def test_the_topmost_folder_without_buck() -> None:
    index = Index(facts([buck("a/b:x", "a/b/x.cpp"), buck("c:py", kind="python_library")]), POLICY)

    assert [
        index.folder_without_buck(path)
        for path in ("a/n/m/x.cpp", "c/d/x.cpp", "a/b/x.cpp", "a/x.cpp")
    ] == [
        "a/n",
        "c",
        "a/b",
        "a",
    ]


def test_what_cmake_mentions() -> None:
    tree = facts([], [cmake("l", "a.cpp", headers=["a.h"])], sides={"mentioned": ("b.cpp",)})

    assert Index(tree, POLICY).cmake_mentions == {"a.cpp", "a.h", "b.cpp"}


def test_the_built_targets_are_those_of_both_platforms() -> None:
    one, two = cmake("one"), cmake("two")
    index = Index(facts([], [cmake("any")], host=[one], android=[two]), POLICY)
    only = Index(
        ParityFacts(facts().buck, (CMakeFacts(Configuration.ANDROID, (two,)),), frozenset()), POLICY
    )

    assert index.built == (one, two)
    assert only.built == (two,)


def test_folders_of_open_targets() -> None:
    tree = facts([], [cmake("a", directory="x", complete=False), cmake("b", directory="y")])

    assert Index(tree, POLICY).incomplete_folders == {"x"}


def test_a_folder_of_python_is_one_of_which_most_is_listed() -> None:
    listed = ("p/a.py", "p/b.py", "q/a.py", "r/__init__.py")
    tree = facts(
        [buck("p:py", *listed, kind="python_library")],
        files=["p/c.py", "p/__init__.py", "q/b.py", "p/x.txt"],
    )

    assert python_folders(Index(tree, POLICY)) == {"p", "r"}


# The groups


def groups_of(*rules: Any, targets: Any = (), **values: Any) -> Groups:
    return Groups(Index(facts(rules, targets, **values), POLICY))


def test_a_twin_stands_for_a_target_when_nothing_else_does() -> None:
    twin, own = buck("p:z_aten", "p/a.cpp"), buck("p:own", "p/a.cpp")

    assert groups_of(twin, own, targets=[cmake("l", "p/a.cpp")]).buck_of == {"l": {"//p:own"}}
    alone = groups_of(twin, targets=[cmake("l", "p/a.cpp")])
    assert alone.buck_of == {"l": {"//p:z_aten"}}
    assert alone.cmake_of == {"//p:z_aten": {"l"}}


def test_all_that_own_files_of_a_target_stand_for_it() -> None:
    rules = [buck("p:a", "p/a.cpp"), buck("p:b", "p/b.cpp")]
    groups = groups_of(*rules, targets=[cmake("l", "p/a.cpp", "p/b.cpp"), cmake("m", "p/a.cpp")])

    assert groups.buck_of == {"l": {"//p:a", "//p:b"}, "m": {"//p:a"}}
    assert groups.cmake_of == {"//p:a": {"l", "m"}, "//p:b": {"l"}}


def test_what_a_target_surely_has_is_each_thing_once() -> None:
    here = cmake("l", "p/a.cpp", links=["a", "b if k"])
    built = cmake("l", "p/a.cpp", links=["a", "b", "c"])
    elsewhere = cmake("l", directory="x", links=["d"])
    groups = groups_of(targets=[here], host=[built, elsewhere], android=[here])

    assert sorted(each.text for each in groups.certain(here, "links")) == ["a", "b", "c"]
    assert groups.certain(here, "defines") == []


def test_without_every_branch_nothing_is_mapped() -> None:
    tree = ParityFacts(facts([buck("p:a", "p/a.cpp")]).buck, (), frozenset({"p/a.cpp"}))
    groups = Groups(Index(tree, POLICY))

    assert (dict(groups.cmake), groups.aliases, groups.buck_of) == ({}, {}, {})
    assert groups.certain(cmake("l", links=["a"]), "links") == [word("a", "CMakeLists.txt", 11)]
    assert groups.cmake_reach("l") == {"l"}


def test_a_closure_takes_every_edge_once_and_ends() -> None:
    edges = {"a": ["b", "c"], "b": ["a", "d"], "d": ["b"]}

    assert closure(["a"], lambda name: edges.get(name, [])) == {"a", "b", "c", "d"}
    assert closure([], lambda name: ["x"]) == set()
