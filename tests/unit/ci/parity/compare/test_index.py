"""Findings, and the questions that the comparison asks of both sides: the index and the groups."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ci.parity.compare.groups import Groups
from ci.parity.compare.index import (
    Index,
    is_native,
)
from ci.parity.compare.sources import python_folders
from ci.parity.facts import (
    Configuration,
)
from tests.unit.ci.parity.compare.cases import POLICY
from tests.unit.ci.parity.compare.sides import buck, cmake, facts

# Findings


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
