"""Findings, and the questions that the comparison asks of both sides: the index and the groups."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ci.parity.compare.comparison import compare_tree, folders_of
from ci.parity.compare.findings import Finding, Kind, Level, at, order_findings
from ci.parity.compare.groups import Groups
from ci.parity.compare.index import (
    Index,
    area_of,
    forwarded,
    is_compiling,
    is_native,
    topmost_of,
)
from ci.parity.compare.sources import python_folders
from ci.parity.compare.undeclared import _undeclared
from ci.parity.facts import (
    BuckFacts,
    CMakeFacts,
    Configuration,
    NotEvaluated,
    ParityFacts,
    Place,
    closure,
)
from ci.parity.policy import Layout
from ci.parity.uses import find_macros
from tests.stand_ins.text_tree import TextTree
from tests.unit.ci.parity.compare.cases import POLICY
from tests.unit.ci.parity.compare.sides import buck, cmake, facts, word

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


@pytest.mark.parametrize(
    ("kind", "is_one"),
    [
        *((kind, False) for kind in ("filegroup", "genrule", "export_file", "alias", "zip_file")),
        *((kind, False) for kind in ("python_library", "command_alias", "sh_binary")),
        *((kind, False) for kind in ("buck_filegroup", "buck_genrule", "buck_sh_test")),
        *((kind, False) for kind in ("fb_xplat_resource", "export_files")),
        *((kind, True) for kind in ("cxx_library", "cxx_binary", "my_rule")),
    ],
)
def test_some_rules_list_files_without_compiling_them(kind: str, is_one: bool) -> None:
    assert is_compiling(buck("p:x", "p/a.cpp", kind=kind)) is is_one


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
        topmost_of(path, index.folders_with_buck)
        for path in ("a/n/m/x.cpp", "c/d/x.cpp", "a/b/x.cpp", "a/b/c/d/x.cpp", "a/x.cpp", "x.cpp")
    ] == [
        "a/n",
        "c",
        "a/b",
        "a/b/c",
        "a",
        "",
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


@pytest.mark.parametrize(
    ("name", "source", "is_test"),
    [
        ("A_Test", "p/test/t.cpp", True),
        ("a_test", "p/a.cpp", False),
        ("a", "p/test/t.cpp", False),
        ("testing", "", False),
    ],
)
def test_a_program_is_a_test_by_its_name_and_a_source(
    name: str, source: str, is_test: bool
) -> None:
    target = cmake(name, *filter(None, ["p/b.cpp", source]))
    assert Index(facts([], [target]), POLICY).is_test_program(target) is is_test


@pytest.mark.parametrize(
    ("condition", "name", "found"),
    [
        ("", "a", (Configuration.HOST, Configuration.ANDROID)),
        ("DEFAULT", "a", (Configuration.HOST, Configuration.ANDROID)),
        ("ovr_config//os:Android-arm64", "a", (Configuration.ANDROID,)),
        ("ovr_config//os:linux", "a", (Configuration.HOST,)),
        ("ovr_config//os:linux", "a_android_build", (Configuration.HOST,)),
        ("", "a_android_build", (Configuration.ANDROID,)),
    ],
)
def test_a_file_is_used_on_the_platforms_of_its_key_or_its_target(
    condition: str, name: str, found: tuple[Configuration, ...]
) -> None:
    index = Index(facts([buck(f"p:{name}", f"p/a.cpp if {condition}")], []), POLICY)
    (use,) = index.buck_uses["p/a.cpp"]
    assert index.configurations(use) == found


def test_folders_that_one_side_did_not_read() -> None:
    rows = [
        NotEvaluated("buck", Place("p/BUCK"), "", "p"),
        NotEvaluated("cmake", Place("q/CMakeLists.txt"), "", "q"),
        NotEvaluated("buck", Place("r/BUCK"), "", None),
        NotEvaluated("buck", Place("s/BUCK"), "", "s", is_known=True),
        NotEvaluated("buck", Place("BUCK"), "", ""),
    ]
    assert (folders_of(rows, "buck"), folders_of(rows, "cmake")) == ({"p", ""}, {"q"})


def test_folders_of_open_targets() -> None:
    tree = facts([], [cmake("a", directory="x", complete=False), cmake("b", directory="y")])

    assert Index(tree, POLICY).incomplete_folders == {"x"}


def test_a_folder_of_python_is_one_of_which_a_module_is_listed() -> None:
    listed = ("p/a.py", "p/b.py", "q/a.py", "r/__init__.py")
    tree = facts(
        [buck("p:py", *listed, kind="python_library")],
        files=["p/c.py", "p/__init__.py", "q/b.py", "p/x.txt"],
    )

    assert python_folders(Index(tree, POLICY)) == {"p": True, "q": False, "r": True}


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


def test_a_tree_without_the_configurations_of_platforms_is_compared() -> None:
    every = CMakeFacts(Configuration.ANY, (cmake("lib", "p/a.cpp"),))
    sources = buck("p:lib", "p/a.cpp", "p/b.cpp")
    files = frozenset({"p/a.cpp", "p/b.cpp"})
    (found,) = compare_tree(
        ParityFacts(BuckFacts((sources,), packages=("p",)), (every,), files), POLICY
    )

    assert (found.kind, found.path) == (Kind.BUCK_ONLY, "p/b.cpp")


@pytest.mark.parametrize(
    ("listed", "path", "attribute"),
    [
        (["p/a.cpp"], "p/a.cpp", "deps"),
        (["p/a.cpp"], "p/a.h", "exported_deps"),
        ([], "p/a.cpp", "exported_deps"),
    ],
)
def test_a_missing_dependency_is_exported_by_headers_and_by_what_lists_no_file(
    listed: list[str], path: str, attribute: str
) -> None:
    target = buck("p:lib", *listed)
    groups = groups_of(target, buck("q:q", deps=["//r:r"]), buck("r:r", deps=["//p:lib"]))
    found = _undeclared(groups, target, path, "s/s.h", "//s:s")
    assert found.fix == f'add "//s:s" to the {attribute} of //p:lib (p/BUCK:10)'
    around = _undeclared(groups, target, path, "q/q.h", "//q:q")
    assert around.fix == f"list {path} in //q:q, which depends on //p:lib (p/BUCK:10)"


def test_an_exported_macro_is_looked_for_in_all_files_and_another_where_it_is_set() -> None:
    text = "#if FAST && SLOW && OTHER\n"
    names = ("p/a.cpp", "p/a.h", "q/b.cpp", "q/c.h", "notes.md")
    tree = TextTree({**dict.fromkeys(names, text), "r/d.cpp": "FASTER SLOW"}, Layout())
    rules = [buck("p:lib", "p/a.cpp", defines=["+FAST=1", "SLOW", "UNUSED"])]
    target = cmake("r", "r/d.cpp", defines=["SLOW"])
    both = facts(rules, [target])
    headers = {"p/a.cpp": ("p/a.h",)}
    assert find_macros(tree, both.buck, both.cmake, headers) == {
        "FAST": ("p/a.cpp", "p/a.h", "q/b.cpp", "q/c.h"),
        "SLOW": ("p/a.cpp", "p/a.h", "r/d.cpp"),
    }
    local = facts([buck("p:lib", "p/a.cpp", defines=["SLOW"])])
    assert find_macros(tree, local.buck, local.cmake, {}) == {"SLOW": ("p/a.cpp",)}


def test_a_copy_is_of_the_only_original_that_has_its_name() -> None:
    made = buck("p:made", "p/x/a.cpp", "p/y/a.cpp", "p/b.cpp", kind="genrule")
    index = Index(facts([made]), POLICY)
    names = ("[a.cpp]", "[x/a.cpp]", "[b.cpp]", "[ab.cpp]", "", "[]")
    copies = [f"//p:made{name}" for name in names]
    assert [[*index.copied(buck("p:lib", one))] for one in copies] == [
        *([], ["p/x/a.cpp"], ["p/b.cpp"], [], [], []),
    ]
    every = buck("p:lib", "//p:made[b.cpp]", "//gone:made[b.cpp]", "p/c.cpp", "//p:made[x/a.cpp]")
    assert [*index.copied(every)] == ["p/b.cpp", "p/x/a.cpp"]


def test_a_target_is_for_a_platform_by_its_name_or_by_its_variant() -> None:
    policy = replace(POLICY, host_only=("*_host",))
    names = ("a", "a_android_build", "b_host", "b", "a_host_android_build")
    index = Index(facts([buck(f"p:{name}") for name in names]), policy)
    both = (Configuration.HOST, Configuration.ANDROID)
    assert [index.target_configurations(index.by_label[f"//p:{name}"]) for name in names] == [
        *((Configuration.HOST,), (Configuration.ANDROID,), (Configuration.HOST,)),
        *(both, (Configuration.ANDROID,)),
    ]


def test_a_file_of_the_product_that_only_tests_compile_is_none_of_theirs() -> None:
    targets = [
        cmake("a_test", "p/a.cpp", "p/b.cpp", "p/test/t.cpp"),
        cmake("b_test", "p/c.cpp", "p/test/u.cpp"),
        cmake("lib", "p/b.cpp", "p/d.cpp"),
    ]
    assert Index(facts([], targets), POLICY).not_in_product == {"p/a.cpp", "p/c.cpp"}


def test_a_file_of_the_product_that_only_examples_compile_is_none_of_theirs() -> None:
    targets = [cmake("lib", "p/a.cpp"), cmake("demo", "p/a.cpp", "p/b.cpp", "demos/main.cpp")]
    targets[1] = replace(targets[1], directory="demos")
    policy = replace(POLICY, without_buck=("demos/**",))
    assert Index(facts([], targets), policy).not_in_product == {"p/b.cpp"}
    assert Index(facts([], targets), POLICY).not_in_product == set()
