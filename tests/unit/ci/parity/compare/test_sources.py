"""What is said of sources, word for word, and what is passed over on the way to a finding."""

from __future__ import annotations

import pytest

from ci.parity.facts import BuckFacts, CMakeFacts, Configuration, ParityFacts
from ci.parity.policy import ParityPolicy
from tests.unit.ci.parity.compare.sides import buck, cmake, compare, facts, paths


def test_a_source_of_cmake_alone_and_those_that_are_not_compared() -> None:
    passed = ("a/gone.cpp", "a/x.h", "mod/m.cpp", "out/o.cpp", "p/a.cpp")
    tree = facts(
        [buck("p:lib", "p/a.cpp")],
        [cmake("lib", *passed, "p/sub/b.cpp")],
        gone=["a/gone.cpp"],
        submodules=("a", "mod"),
    )

    assert compare(tree) == [
        {
            "kind": "cmake-only-source",
            "path": "p/sub/b.cpp",
            "message": "CMake compiles it in lib; no Buck target lists it",
            "level": "error",
            "buck_target": "//p:lib",
            "cmake_target": "lib",
            "buck_place": "p/BUCK:10",
            "cmake_place": "CMakeLists.txt:16",
            "fix": 'add "sub/b.cpp", to //p:lib (p/BUCK:10)',
        }
    ]


def test_a_test_of_cmake_alone_is_a_note_and_a_source_at_the_root_is_found() -> None:
    tree = facts([buck(":lib", "a.cpp")], [cmake("lib", "a.cpp", "b.cpp", "x/test/t.cpp")])

    rows = compare(tree)
    assert [(r["path"], r["level"], r["fix"]) for r in rows] == [
        ("b.cpp", "error", 'add "b.cpp", to //:lib (BUCK:10)'),
        ("x/test/t.cpp", "note", 'add "x/test/t.cpp", to //:lib (BUCK:10)'),
    ]


def test_a_folder_without_buck_and_those_that_are_left_to_cmake() -> None:
    """A source of the root, of tests and of the policy's folders is passed over."""
    policy = ParityPolicy(tests=("**/test/**",), without_buck=("b/**",))
    one = [cmake("n", "a.cpp", "a/test/t.cpp", "b/x.cpp", "c/deep/y.cpp", "p/only.cpp", "p/z.cpp")]
    tree = facts([buck("p:lib", "p/z.cpp")], one, packages=("c",))

    (row, of_package) = compare(tree, policy)
    assert row == {
        "kind": "cmake-only-source",
        "path": "c",
        "message": "CMake compiles its sources in n; it has no Buck target",
        "level": "note",
        "when_new": "warning",
        "detail": "folder",
        "cmake_target": "n",
        "cmake_place": "CMakeLists.txt:14",
        "fix": "describe the libraries of c in a BUCK file",
    }
    assert of_package["path"] == "p/only.cpp"


def test_sources_of_one_platform_are_compared_too() -> None:
    bucks, lib = [buck("p:lib", "p/a.cpp")], cmake("lib", "p/a.cpp")
    more = cmake("lib", "p/a.cpp", "p/b.cpp")

    for sides in ({"host": [more]}, {"android": [more]}):
        assert paths(facts(bucks, [lib], files=["p/b.cpp"], **sides)) == [
            ("cmake-only-source", "p/b.cpp")
        ]


def test_a_tree_without_the_configurations_of_platforms_is_compared() -> None:
    every = CMakeFacts(Configuration.ANY, (cmake("lib", "p/a.cpp"),))
    sources = buck("p:lib", "p/a.cpp", "p/b.cpp")
    tree = ParityFacts(
        BuckFacts((sources,), packages=("p",)), (every,), frozenset({"p/a.cpp", "p/b.cpp"})
    )

    assert paths(tree) == [("buck-only-source", "p/b.cpp")]


def test_a_source_of_buck_alone_and_those_that_are_not_compared() -> None:
    passed = ("a/gone.cpp", "a/x.h", "mod/m.cpp", "out/o.cpp", "p/a.cpp")
    tree = facts(
        [buck("p:lib", *passed, "p/b.cpp")],
        [cmake("lib", "p/a.cpp")],
        gone=["a/gone.cpp"],
        submodules=("a", "mod"),
    )

    assert compare(tree) == [
        {
            "kind": "buck-only-source",
            "path": "p/b.cpp",
            "message": "Buck compiles it in //p:lib; no CMake target does",
            "level": "error",
            "buck_target": "//p:lib",
            "cmake_target": "lib",
            "buck_place": "p/BUCK:16",
            "cmake_place": "CMakeLists.txt:11",
            "fix": "add p/b.cpp to lib (CMakeLists.txt:11)",
        }
    ]


def test_a_source_of_buck_alone_without_a_target_near_it() -> None:
    tree = facts([buck("p:lib", "p/b.cpp"), buck("x:lib", "x/y.c")], [cmake("far", "x/y.c")])

    (row,) = compare(tree)
    assert row["fix"] == "add p/b.cpp"
    assert "cmake_target" not in row


def test_of_two_targets_the_one_of_its_folder_should_have_a_source() -> None:
    near, far = cmake("a", "p/a.cpp", directory="p"), cmake("z", "p/a.cpp", directory="q")
    both = {"cmakes": [near, far], "bucks": [buck("p:lib", "p/a.cpp", "p/b.cpp")]}

    assert [row["fix"] for row in compare(facts(**both))] == [
        "add p/b.cpp to a (p/CMakeLists.txt:11)"
    ]
    more = [*both["cmakes"], cmake("y", "p/a.cpp", "p/c.cpp", directory="q")]
    rows = compare(facts(both["bucks"], more))
    assert [row["fix"] for row in rows if row["path"] == "p/b.cpp"] == [
        "add p/b.cpp to y (q/CMakeLists.txt:11)"
    ]


def test_what_cmake_mentions_or_could_not_evaluate_is_not_missed() -> None:
    """Each is passed over before the one that is found."""
    rules = [
        buck("a:open", "a/open.cpp"),
        buck("b:py", "b/script.c", kind="python_ext"),
        buck("c:lib", "c/said.cpp", "c/test/t.cpp"),
        buck("p:lib", "p/a.cpp", "p/b.cpp"),
    ]
    lib = cmake("lib", "p/a.cpp")
    folder = cmake("x", directory="a", complete=False)
    tree = facts(rules, [folder, lib], sides={"mentioned": ("c/said.cpp",)})

    assert paths(tree) == [("buck-only-source", "c/test"), ("buck-only-source", "p/b.cpp")]


def test_tests_are_missed_where_cmake_builds_tests() -> None:
    """Elsewhere one note stands for all of them."""
    rules = [buck("a/b:lib", "a/b/test/t.cpp", "a/b/test/u.cpp"), buck("a/c:lib", "a/c/test/t.cpp")]
    main = cmake("t", "a/b/test/t.cpp")
    near = cmake("some_test", directory="a/c/test")
    far = cmake("some", directory="a/c/test")

    def found(*targets: object) -> list[tuple[str, str]]:
        return [(r["path"], r["level"]) for r in compare(facts(rules, targets))]  # type: ignore[arg-type]

    assert found(main, far) == [("a/b/test/u.cpp", "note"), ("a/c", "note")]
    assert found(main, near) == [("a/b/test/u.cpp", "note"), ("a/c/test/t.cpp", "note")]


def test_a_folder_whose_tests_cmake_leaves_out_is_one_note() -> None:
    tests = [
        buck("a/c:t", "a/c/test/t.cpp", "a/c/test/u.cpp"),
        buck("a/c:v", "a/c/deep/test/v.cpp"),
    ]
    tree = facts(
        [*tests, buck("b:t", "b/test/t.cpp"), buck("x:l", "x/l.cpp")], [cmake("l", "x/l.cpp")]
    )

    rows = compare(tree)
    assert [row["path"] for row in rows] == ["a/c", "b/test"]
    assert rows[0] == {
        "kind": "buck-only-source",
        "path": "a/c",
        "message": "Buck compiles tests of it, a/c/deep/test/v.cpp first; CMake compiles none",
        "level": "note",
        "detail": "folder",
        "buck_target": "//a/c:v",
        "buck_place": "a/c/BUCK:11",
        "fix": "add them to a CMakeLists.txt of a/c",
    }


def test_a_source_that_only_a_test_of_cmake_compiles_is_missed() -> None:
    rules = [buck("p:lib", "p/a.cpp", "p/b.cpp"), buck("p:t", "p/test/t.cpp")]
    lib = cmake("lib", "p/a.cpp")

    def found(*targets: object) -> list[tuple[str, str]]:
        return paths(facts(rules, [lib, *targets]))  # type: ignore[list-item]

    missed = [("buck-only-source", "p/b.cpp")]
    assert found(cmake("A_Test", "p/test/t.cpp", "p/b.cpp")) == missed
    assert found(cmake("main", "p/test/t.cpp", "p/b.cpp")) == []
    assert found(cmake("a_test", "p/b.cpp")) == [("buck-only-source", "p/test")]
    assert found(cmake("a_test", "p/test/t.cpp", "p/b.cpp"), cmake("more", "p/b.cpp")) == []


def test_a_file_that_is_not_there() -> None:
    names = (
        "//q:x",
        "@cell//a.cpp",
        "../a.cpp",
        "fbsource/a.cpp",
        "/a.cpp",
        "$X/a.cpp",
        "p/x:a.cpp",
        "p/folder",
        "mod/a.cpp",
        "out/a.cpp",
        "p/a.cpp",
    )
    rules = [buck("p:lib", *names, "p/b.cpp", headers=["p/b.h"], exported_headers=["p/c.h"])]
    one = cmake("lib", "p/d.cpp", "p/a.cpp", headers=["p/e.h"])
    gone = {*names, "p/b.cpp", "p/b.h", "p/c.h", "p/d.cpp", "p/e.h"} - {"p/a.cpp"}

    rows = compare(facts(rules, [one], gone=gone, submodules=("mod",)))
    assert [(r["path"], r["detail"]) for r in rows] == [
        ("p/b.cpp", "buck"),
        ("p/b.h", "buck"),
        ("p/c.h", "buck"),
        ("p/d.cpp", "cmake"),
        ("p/e.h", "cmake"),
    ]
    assert rows[0] == {
        "kind": "missing-file",
        "path": "p/b.cpp",
        "message": "//p:lib lists it, and it is not in the tree",
        "level": "error",
        "detail": "buck",
        "buck_target": "//p:lib",
        "buck_place": "p/BUCK:22",
        "fix": "take it out, or correct its name",
    }
    assert (rows[3]["cmake_target"], rows[3]["cmake_place"]) == ("lib", "CMakeLists.txt:12")


def test_a_source_that_a_target_lists_twice() -> None:
    """Headers, other keys of a select() and rules that do not compile may repeat a name."""
    twice = ("p/x.h", "p/x.h", "p/b.cpp", "p/b.cpp if k", "p/a.cpp", "p/a.cpp", "p/a.cpp")
    rules = [
        buck("o:group", "p/a.cpp", "p/a.cpp", kind="filegroup"),
        buck("p:lib", *twice),
    ]
    one = cmake("lib", "p/a.cpp", "p/b.cpp", "p/b.cpp")

    rows = compare(facts(rules, [one]))
    assert rows == [
        {
            "kind": "duplicate-source",
            "path": "p/a.cpp",
            "message": "//p:lib lists it 3 times",
            "level": "error",
            "detail": "//p:lib",
            "buck_target": "//p:lib",
            "buck_place": "p/BUCK:17",
            "fix": "keep one of them",
        },
        {
            "kind": "duplicate-source",
            "path": "p/b.cpp",
            "message": "lib lists it 2 times",
            "level": "error",
            "detail": "lib",
            "cmake_target": "lib",
            "cmake_place": "CMakeLists.txt:13",
            "fix": "keep one of them",
        },
    ]


def test_a_file_on_no_side() -> None:
    files = (
        "mod/n.cpp",
        "out/n.cpp",
        "p/__init__.py",
        "p/n.cpp",
        "p/test/n.cpp",
        "p/x.txt",
        "z/n.cpp",
    )
    rules = [
        buck("p:lib", "p/a.cpp", "p/test/a.cpp"),
        buck("mod:l", "mod/a.cpp"),
        buck("z:l", "z/x.py"),
    ]
    rules += [buck("out:l", "out/a.cpp")]
    one = cmake("lib", "p/a.cpp", "p/test/a.cpp", "mod/a.cpp", "out/a.cpp")

    rows = compare(facts(rules, [one], files=files, submodules=("mod",)))
    assert rows == [
        {
            "kind": "unlisted-file",
            "path": "p/n.cpp",
            "message": "neither Buck nor CMake lists it",
            "level": "warning",
            "buck_target": "//p:lib",
            "buck_place": "p/BUCK:10",
            "fix": 'add "n.cpp", to //p:lib (p/BUCK:10)',
        },
        {
            "kind": "unlisted-file",
            "path": "p/test/n.cpp",
            "message": "neither Buck nor CMake lists it",
            "level": "note",
            "buck_target": "//p:lib",
            "buck_place": "p/BUCK:10",
            "fix": 'add "test/n.cpp", to //p:lib (p/BUCK:10)',
        },
    ]


def test_a_file_on_no_side_without_a_target_of_buck() -> None:
    tree = facts([], [cmake("lib", "a.cpp")], files=["b.cpp"])

    (row,) = compare(tree)
    assert (row["path"], row["fix"]) == ("b.cpp", "list it")


def test_a_python_file_that_listed_ones_import_or_stand_beside() -> None:
    rules = [buck("p:py", "p/a.py", "p/b.py", kind="python_library")]
    tree = facts(
        rules,
        files=["o/n.py", "p/__init__.py", "p/d/n.py", "p/d/other.py", "p/m.py"],
        imports={"p/a.py": ("o/n.py", "p/d/n.py"), "p/d/other.py": ("p/m.py",)},
    )

    rows = compare(tree)
    assert [(r["path"], r["level"], r["message"]) for r in rows] == [
        ("p/d/n.py", "warning", "no Buck target lists it, though listed files import it"),
        ("p/m.py", "warning", "no Buck target lists it, though it lists its neighbours"),
    ]
    assert rows[0]["fix"] == 'add "d/n.py", to //p:py (p/BUCK:10)'


# Which target a missing name belongs to


def nearest(*rules: object, sources: tuple[str, ...] = (), path: str = "p/n.cpp") -> str:
    """The target that a fix names for ``path``, which CMake compiles beside ``sources``."""
    (row,) = [
        r
        for r in compare(facts(rules, [cmake("lib", *sources, path)]))  # type: ignore[arg-type]
        if r["path"] == path
    ]
    return row["buck_target"]


def test_the_target_of_the_same_folder_wins() -> None:
    far = buck("p:a", "p/far/a.cpp", "p/far/b.cpp", "p/far/c.cpp")
    near = buck("p:b", "p/near/a.cpp")

    assert (
        nearest(far, near, sources=("p/far/a.cpp", "p/far/b.cpp"), path="p/near/n.cpp") == "//p:b"
    )
    assert nearest(far, near, sources=("p/near/a.cpp",), path="p/far/n.cpp") == "//p:a"


def test_a_twin_gives_way_even_when_it_is_nearer() -> None:
    twin, other = buck("p:z_aten", "p/a.cpp"), buck("p:b", "p/far/b.cpp")

    assert nearest(twin, other, sources=("p/a.cpp",)) == "//p:b"
    assert nearest(twin, sources=("p/a.cpp",)) == "//p:z_aten"


def test_more_shared_sources_win_then_the_later_name() -> None:
    one, two = buck("p:one", "p/a.cpp"), buck("p:two", "p/b.cpp")

    assert nearest(one, two, sources=("p/a.cpp",)) == "//p:one"
    assert nearest(one, two, sources=("p/b.cpp",)) == "//p:two"
    assert nearest(one, two) == "//p:two"
    assert nearest(buck("p:one", "p/a.cpp", "p/c.cpp"), two, sources=("p/c.cpp",)) == "//p:one"


def test_each_shared_source_counts() -> None:
    """No target has a file of the new folder: then those that CMake has beside it decide."""
    one, two = buck("p:a", "p/x/1.cpp", "p/x/2.cpp"), buck("p:b", "p/x/3.cpp")
    sources = ("p/x/1.cpp", "p/x/2.cpp", "p/x/3.cpp")

    assert nearest(one, two, sources=sources, path="p/new/n.cpp") == "//p:a"
    assert nearest(one, two, sources=sources[1:], path="p/new/n.cpp") == "//p:b"


def test_sources_of_its_folder_outweigh_those_of_others() -> None:
    """A source that CMake shares counts ten in the same folder, else one."""
    of_folder = buck("p:a", "p/a.cpp")
    others = [f"q/{n}.cpp" for n in range(9)]
    far = buck("q:z", *others)

    assert nearest(of_folder, far, sources=("p/a.cpp", *others)) == "//p:a"


def test_a_shared_source_of_the_same_folder_counts_ten() -> None:
    """Targets of other packages; of that of the file there is only a twin. Then the later name."""
    twin, near = buck("p:t_aten", "p/t.cpp"), buck("q:a", "p/new/a.cpp")

    def named(count: int) -> str:
        others = [f"z/{n}.cpp" for n in range(count)]
        sources = ("p/new/a.cpp", *others)
        return nearest(twin, near, buck("z:z", *others), sources=sources, path="p/new/n.cpp")

    assert [named(count) for count in (1, 9, 10)] == ["//q:a", "//q:a", "//z:z"]


def test_each_neighbour_counts_two() -> None:
    one, two = buck("p:a", "p/1.cpp", "p/2.cpp"), buck("p:b", "p/3.cpp", "q/x.cpp")

    assert nearest(one, two, sources=("q/x.cpp",)) == "//p:a"


def test_a_target_of_another_language_is_not_named() -> None:
    python = buck("p:py", "p/x.py", "p/w.py", kind="python_library")
    rules = [python, buck("p:lib", "p/d/a.cpp"), buck("p:z", "p/a.cpp")]
    assert nearest(*rules[:2]) == "//p:lib"
    tree = facts(rules, [cmake("lib", "p/d/a.cpp", "p/a.cpp")], files=["p/y.py"])
    assert [(r["path"], r["buck_target"]) for r in compare(tree)] == [("p/y.py", "//p:py")]


def test_the_target_of_cmake_for_a_source_of_buck() -> None:
    """A neighbour counts two, a sibling of Buck's one; of equals the later name is taken."""
    rules = [buck("p:lib", "p/n.cpp", "q/1.cpp", "q/2.cpp", "q/3.cpp", "p/a.cpp", "p/b.cpp")]
    far, near = cmake("far", "q/1.cpp", "q/2.cpp", "q/3.cpp"), cmake("near", "p/a.cpp")

    def named(*targets: object) -> tuple[str, str]:
        (row,) = [r for r in compare(facts(rules, targets)) if r["path"] == "p/n.cpp"]  # type: ignore[arg-type]
        return row["cmake_target"], row["fix"]

    assert named(far, near)[0] == "far"
    assert named(cmake("far", "q/1.cpp", "q/2.cpp"), near)[0] == "near"
    assert named(cmake("far", "q/1.cpp"), near)[0] == "near"
    assert named(cmake("x", "o/o.cpp", "p/a.cpp")) == (
        "x",
        "add p/n.cpp to x (CMakeLists.txt:12)",
    )


def test_the_first_neighbour_in_a_target_of_cmake_is_the_place() -> None:
    rules = [buck("p:lib", "p/a.cpp", "p/b.cpp", "p/n.cpp")]
    (row,) = compare(facts(rules, [cmake("lib", "p/a.cpp", "p/b.cpp")]))

    assert row["cmake_place"] == "CMakeLists.txt:11"


# Platforms


def test_a_source_that_a_variant_leaves_out() -> None:
    rules = [buck("p:lib", "p/a.cpp", "p/b.cpp"), buck("p:lib_android_build", "p/a.cpp")]
    tree = facts(rules, [cmake("lib", "p/a.cpp", "p/b.cpp")])

    assert compare(tree) == [
        {
            "kind": "cmake-only-source",
            "path": "p/b.cpp",
            "message": "CMake compiles it for android; Buck has it only in //p:lib, which is for "
            "the other platform",
            "level": "error",
            "configuration": "android",
            "buck_target": "//p:lib_android_build",
            "cmake_target": "lib",
            "buck_place": "p/BUCK:10",
            "cmake_place": "CMakeLists.txt:12",
            "fix": "add it to //p:lib_android_build (p/BUCK:10)",
        }
    ]


def test_a_source_that_a_variant_has_for_the_wrong_platform() -> None:
    rules = [buck("p:lib", "p/a.cpp", "p/b.cpp"), buck("p:lib_android_build", "p/a.cpp")]
    both, one = cmake("lib", "p/a.cpp", "p/b.cpp"), cmake("lib", "p/a.cpp")
    rows = compare(facts(rules, [both], host=[one], android=[both]))

    assert [(r["kind"], r["configuration"]) for r in rows] == [
        ("cmake-only-source", "android"),
        ("variant", "host"),
    ]
    assert rows[1] == {
        "kind": "variant",
        "path": "p/b.cpp",
        "message": "//p:lib is for host, CMake compiles this file for the other platform only",
        "level": "error",
        "configuration": "host",
        "buck_target": "//p:lib",
        "cmake_target": "lib",
        "buck_place": "p/BUCK:12",
        "cmake_place": "CMakeLists.txt:12",
        "fix": "use the file of the host variant",
    }


def test_a_source_of_one_platform_that_buck_compiles_for_all() -> None:
    """Each that is passed over comes before the one that is found."""
    names = ("a/0.cpp", "a/gone.cpp", "a/x.h", "mod/b.cpp", "p/b.cpp", "p/test/b.cpp")
    rules = [buck("p:lib", *names, "p/s.cpp if k")]
    both = cmake("lib", *names, "p/s.cpp")
    python = cmake("ext", "a/1.cpp", kind="module")
    tree = facts(
        [*rules, buck("a:l", "a/1.cpp")],
        [both, python],
        host=[cmake("lib", "a/0.cpp")],
        gone=["a/gone.cpp"],
        submodules=("mod",),
    )

    rows = [r for r in compare(tree) if r["kind"] == "variant"]
    assert rows == [
        {
            "kind": "variant",
            "path": "p/b.cpp",
            "message": "//p:lib compiles it for every platform, lib does not for host",
            "level": "warning",
            "configuration": "host",
            "buck_target": "//p:lib",
            "cmake_target": "lib",
            "buck_place": "p/BUCK:15",
            "cmake_place": "CMakeLists.txt:15",
            "fix": "select() it in //p:lib, or compile it for host too",
        },
        {
            **rows[0],
            "path": "p/test/b.cpp",
            "level": "note",
            "buck_place": "p/BUCK:16",
            "cmake_place": "CMakeLists.txt:16",
        },
    ]


@pytest.mark.parametrize("side", ["host", "android"])
def test_each_platform_is_compared_with_the_other(side: str) -> None:
    tree = facts([buck("p:lib", "p/a.cpp")], [cmake("lib", "p/a.cpp")], **{side: []})

    (row,) = compare(tree)
    assert (row["kind"], row["configuration"]) == ("variant", side)


@pytest.mark.parametrize(
    ("key", "configuration"),
    [
        ("ovr_config//os:android", Configuration.ANDROID),
        ("DEFAULT", None),
        *(
            (f"os:{key.upper()}", Configuration.HOST)
            for key in ("linux", "x86", "macos", "windows", "host")
        ),
        ("linux-ANDROID", Configuration.ANDROID),
    ],
)
def test_a_key_of_select_is_a_platform(key: str, configuration: Configuration | None) -> None:
    rules = [buck("p:lib", f"p/a.cpp if {key}")]
    one = [cmake("lib", "p/a.cpp")]
    tree = facts(rules, one)
    other = {Configuration.HOST: "android", Configuration.ANDROID: "host"}

    found = {r["configuration"] for r in compare(tree)}
    assert found == ({other[configuration]} if configuration else set())


def test_a_variant_for_android_that_depends_on_the_host_s() -> None:
    deps = ["//q:q_android_build", "//q:q if k", "//q:alone", "//q:q"]
    rules = [
        buck("out:p_android_build", deps=["//q:q"]),
        buck("p:p", deps=["//q:q"]),
        buck("p:p_android_build", deps=deps),
        buck("p:r_android_build", exported_deps=["//q:q"]),
        buck("q:alone"),
        buck("q:q"),
        buck("q:q_android_build"),
    ]

    rows = compare(facts(rules))
    assert [r["detail"] for r in rows] == [
        "//p:p_android_build -> //q:q",
        "//p:r_android_build -> //q:q",
    ]
    assert rows[0] == {
        "kind": "variant",
        "path": "p/BUCK",
        "message": "//p:p_android_build is for Android and depends on //q:q, which is for the host",
        "level": "error",
        "detail": "//p:p_android_build -> //q:q",
        "configuration": "android",
        "buck_target": "//p:p_android_build",
        "buck_place": "p/BUCK:14",
        "fix": "depend on //q:q_android_build",
    }
