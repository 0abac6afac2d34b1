"""The readers' small parts by themselves: patterns, values, conditions, words, places, renames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from ci.parity.buck.evaluate import Loaded, resolve_load
from ci.parity.buck.reader import absolute as label_of
from ci.parity.buck.reader import read_buck
from ci.parity.cmake.blocks import CMakeSyntaxError, nest_commands, parse_commands
from ci.parity.cmake.conditions import Operand, Scope, constant_truth, decide
from ci.parity.cmake.values import expand, merge_value, resolve_genex, unknown
from ci.parity.compare.findings import ParityReport
from ci.parity.facts import Configuration, Place
from ci.parity.policy import Allowance, Layout, ParityPolicy, compile_pattern
from ci.parity.run import ParityRequest, compare_folders, compare_source, find_moves, match_sources
from ci.parity.trees import DirectoryTree, Literals, split_batch
from ci.parity.uses import find_imports
from provisioning.errors import UsageError
from tests.stand_ins.text_tree import TextTree
from tests.unit.ci.parity.conftest import LAYOUT, LOAD

Pairs = Callable[..., set[tuple[str, str]]]


# Buck


@pytest.mark.parametrize(
    ("pattern", "fits", "misfits"),
    [
        ("**/a", ["a", "x/a", "x/y/a"], ["xa", "x/a/b"]),
        ("x/**", ["x/a", "x/y/a"], ["x", "xy/a"]),
        ("[!a].c", ["b.c"], ["a.c", "/.c"]),
        ("a*b*c.h", ["abc.h", "a1b2c.h", "abbc.h"], ["a/bc.h", "ab/c.h", "ac.h", "abch"]),
        ("**/x/**/y.c", ["x/y.c", "a/x/y.c", "x/b/y.c", "a/b/x/c/d/y.c"], ["xy.c", "a/y.c", "x.c"]),
        ("a**b", ["ab", "a/b", "a/x/b"], ["a", "b", "ab/c"]),
        ("[]a].c", ["].c", "a.c"], ["b.c"]),
        ("[a-c].h", ["b.h"], ["d.h", "-.h"]),
        ("[!a-c]", ["d"], ["b", "/"]),
        ("a.b*", ["a.b", "a.bc"], ["axb", "a.b/c"]),
        ("x[a/]b", ["xab"], ["x/b"]),
    ],
)
def test_a_glob_pattern_matches_only_within_its_folders(
    pattern: str, fits: list[str], misfits: list[str]
) -> None:
    test = compile_pattern(pattern)

    assert [path for path in fits if not test.fullmatch(path)] == []
    assert [path for path in misfits if test.fullmatch(path)] == []


def test_sources_with_flags_of_their_own_are_sources(pairs: Pairs) -> None:
    files = {
        "p/BUCK": LOAD + 'runtime.cxx_library(name = "p", srcs = {"a.cpp": [], "b.cpp": []})\n',
        "p/a.cpp": "",
        "p/b.cpp": "",
        "CMakeLists.txt": "add_library(p p/a.cpp)\n",
    }

    assert pairs(files) == {("buck-only-source", "p/b.cpp")}


def rule(variant: str, name: str = "p", kind: str = "cxx_library", source: str = "a.cpp") -> str:
    return f'{variant}(_kind = runtime.{kind}, name = "{name}", srcs = ["{source}"])\n'


@pytest.mark.parametrize("switch", ["is_fbcode()", "is_xplat()", "not runtime.is_oss"])
def test_a_dependency_of_builds_inside_meta_is_not_compared(switch: str, pairs: Pairs) -> None:
    library = (
        LOAD + "runtime.cxx_library(name = 'p', srcs = ['a.cpp'], deps = [':q'] if {} else [])"
    )
    second_rule = "\nruntime.cxx_library(name = 'q', srcs = ['b.cpp'])\n"
    cmake = "add_library(p p/a.cpp)\nadd_library(q p/b.cpp)\n"
    files = {"p/a.cpp": "", "p/b.cpp": "", "CMakeLists.txt": cmake}

    assert pairs({**files, "p/BUCK": library.format(switch) + second_rule}) == set()
    assert pairs({**files, "p/BUCK": library.format("True") + second_rule}) == {
        ("dependency", "p/BUCK")
    }


@pytest.mark.parametrize(
    ("module", "package", "path", "is_own", "vendored"),
    [
        (":f.bzl", "p", "p/f.bzl", True, False),
        (":f.bzl", "", "f.bzl", True, False),
        (":gone.bzl", "p", None, True, False),
        ("//p:f.bzl", "q", "p/f.bzl", True, False),
        ("@executorch//p:f.bzl", "q", "p/f.bzl", True, False),
        ("@fbsource//xplat/executorch/p:f.bzl", "q", "p/f.bzl", True, False),
        ("@fbsource//xplat/executorch/p/f.bzl", "q", "p/f.bzl", True, False),
        ("@fbsource//xplat/executorch/p:gone.bzl", "q", None, True, False),
        ("@fbsource//xplat/executorch/fb:gone.bzl", "q", None, False, False),
        ("//tools:gone.bzl", "q", None, False, False),
        ("//p:gone.bzl", "q", None, True, False),
        ("//sub/one:f.bzl", "q", None, False, True),
        ("@other//p:f.bzl", "q", None, False, False),
        ("//:f.bzl", "q", "f.bzl", True, False),
        ("../p/f.bzl", "q", "p/f.bzl", True, False),
        ("./f.bzl", "p", "p/f.bzl", True, False),
        ("../f.bzl", "p", "f.bzl", True, False),
        ("../gone.bzl", "p", None, True, False),
        ("../../folly/defs.bzl", "p", None, False, False),
    ],
)
def test_a_load_names_a_file_of_the_tree_or_of_others(
    module: str, package: str, path: str | None, is_own: bool, vendored: bool
) -> None:
    modules = '[submodule "one"]\n\tpath = sub/one\n'
    tree = TextTree({"p/f.bzl": "", "f.bzl": "", ".gitmodules": modules}, LAYOUT)
    loaded = resolve_load(module, package, tree, {"p", "q", "sub/one"})
    assert loaded == Loaded(path, is_own, vendored)


def list_paths(entries: Iterable[Any]) -> list[str]:
    return [entry.path for entry in entries]


def list_places(entries: Iterable[Any]) -> list[tuple[str, str]]:
    """Path of each entry, and the line that names it."""
    return [(entry.path, str(entry.place)) for entry in entries]


def test_a_package_lists_its_files_at_the_lines_that_name_them() -> None:
    globs = 'glob([\n"b*.cpp",\n"a*.c",\n"a*.cpp",\n"none*.cpp",\n])'
    texts = {
        "z/BUCK": LOAD + f'runtime.cxx_library(\nname = "z",\nsrcs = {globs},\n)\n',
        "a/TARGETS.v2": LOAD + 'runtime.cxx_library(name = "a", srcs = ["x.cpp"])\n',
        "m/BUCK.v2": "",
        "c/TARGETS": "",
        "BUCK": LOAD + 'runtime.python_library(name = "r", autoglob_mode = "normal")\n',
        **dict.fromkeys(("z/a1.cpp", "z/b1.cpp", "z/c.cpp", "a/x.cpp", "r.py", "r.cpp"), ""),
    }
    facts = read_buck(TextTree(texts, LAYOUT))
    assert facts.packages == ("", "a", "c", "m", "z")
    assert facts.not_evaluated == ()
    assert {target.label: list_places(target.srcs) for target in facts.targets} == {
        "//:r": [("r.cpp", "BUCK:2")],
        "//a:a": [("a/x.cpp", "a/TARGETS.v2:2")],
        "//z:z": [("z/a1.cpp", "z/BUCK:7"), ("z/b1.cpp", "z/BUCK:5")],
    }
    (glob,) = facts.globs
    assert (glob.package, glob.empty, glob.matches) == ("z", ("a*.c", "none*.cpp"), 2)
    assert str(glob.place) == "z/BUCK:6"


@pytest.mark.parametrize(
    "load",
    [
        '":gone.bzl", "runtime"',
        '"//p:selects.bzl", "runtime", "selects"',
        '"//p/selects.bzl", "runtime", "selects"',
    ],
)
def test_a_file_that_only_gives_runtime_or_a_stub_may_be_elsewhere(load: str) -> None:
    text = f'load({load})\nruntime.cxx_library(name = "lib", srcs = ["a.cpp"])\n'
    facts = read_buck(TextTree({"p/BUCK": text, "p/a.cpp": ""}, LAYOUT))
    assert facts.not_evaluated == ()
    (target,) = facts.targets
    assert list_paths(target.srcs) == ["p/a.cpp"]


def test_targets_of_an_unloaded_file_have_the_lines_of_that_file() -> None:
    rules = "".join(
        f'    runtime.cxx_library(\n    name = "{name}",\n    srcs = ["{name}.cpp"],\n    )\n'
        for name in ("one", "two")
    )
    texts = {"p/targets.bzl": f"{LOAD}def define_common_targets():\n{rules}", "q/BUCK": ""}
    facts = read_buck(TextTree(texts, LAYOUT))
    assert [
        (target.label, str(target.place), list_places(target.srcs)) for target in facts.targets
    ] == [
        ("//p:one", "p/targets.bzl:4", [("p/one.cpp", "p/targets.bzl:5")]),
        ("//p:two", "p/targets.bzl:8", [("p/two.cpp", "p/targets.bzl:9")]),
    ]
    (row,) = facts.not_evaluated
    assert (str(row.place), row.folder, row.is_broken, row.is_known) == (
        *("p/targets.bzl", "p", True, True),
    )
    assert facts.packages == ("p", "q")


def test_an_unloaded_file_whose_names_are_computed_has_the_files_of_its_folder() -> None:
    rule = 'runtime.cxx_test(name = "op_{}".format(x), srcs = native.glob(["*_test.cpp"]))'
    text = f'{LOAD}def define_common_targets():\n    for x in ["a"]:\n        {rule}\n'
    files = {"k/BUCK": "", "k/t/targets.bzl": text, "k/t/a_test.cpp": "", "h/targets.bzl": "X = 1"}
    facts = read_buck(TextTree(files, LAYOUT))
    (target,) = facts.targets
    assert (target.label, list_paths(target.srcs)) == ("//k/t:op_a", ["k/t/a_test.cpp"])
    assert [glob.empty for glob in facts.globs] == [()]
    assert [row.place.path for row in facts.not_evaluated] == ["k/t/targets.bzl"]


LIBRARY = """
runtime.cxx_library(
    name = "lib",
    srcs = [
        "a.cpp",
        "sub/b.cpp",
        ":made[c.cpp]",
        "//executorch/q:group",
    ] + select({
        "ovr_config//os:android": ["d.cpp"],
        "DEFAULT": [],
    }),
    headers = {"named.h": "own.h"},
    exported_headers = {
        "out/e.h": "e.h",
        "f.h": ":made[f.h]",
    },
    header_namespace = "executorch/space",
    deps = [":near", "//executorch/q:q", "fbsource//third-party/x:x"],
    exported_deps = ["//executorch/r:r"],
    external_deps = ["gflags"],
    defines = ["ONE=1"],
    preprocessor_flags = ["-DTWO", "-Wall", "-Ixplat/executorch/inc"],
    exported_preprocessor_flags = ["-DTHREE", "-DFOUR"],
    compiler_flags = ["-O2", "-DFIVE", "-Iother", "-I/abs"],
    include_directories = ["dirs", "/top"],
)
runtime.genrule(
    name = "made",
    cmd = "cp $(location :src.txt) $(location //executorch/q:x.py) out",
    outs = {"c.cpp": ["c.cpp"], "f.h": ["f.h"]},
)
"""


def test_a_rule_has_what_each_of_its_attributes_lists() -> None:
    names = ("p/a.cpp", "p/sub/b.cpp", "p/d.cpp", "p/own.h", "p/e.h", "p/f.h", "p/src.txt")
    tree = TextTree({"p/BUCK": LOAD + LIBRARY, **dict.fromkeys(names, "")}, LAYOUT)
    library, made_rule = read_buck(tree).targets
    entries = {}
    for name in ("srcs", "headers", "exported_headers"):
        entries[name] = [
            (entry.path, entry.place.line, entry.condition, entry.made_as)
            for entry in getattr(library, name)
        ]
    assert entries == {
        "srcs": [
            ("p/a.cpp", 6, "", ""),
            ("p/sub/b.cpp", 7, "", ""),
            ("//p:made[c.cpp]", 8, "", ""),
            ("//q:group", 9, "", ""),
            ("p/d.cpp", 11, "ovr_config//os:android", ""),
        ],
        "headers": [("p/own.h", 14, "", "")],
        "exported_headers": [("p/e.h", 16, "", ""), ("//p:made[f.h]", 17, "", "space/f.h")],
    }
    words = {}
    for name in ("defines", "deps", "exported_deps", "external_deps"):
        words[name] = [
            (word.text, word.place.line, word.exported) for word in getattr(library, name)
        ]
    assert words == {
        "defines": [
            *(("ONE=1", 23, False), ("TWO", 24, False), ("FIVE", 26, False)),
            *(("THREE", 25, True), ("FOUR", 25, True)),
        ],
        "deps": [
            *(("//p:near", 20, False), ("//q:q", 20, False)),
            ("fbsource//third-party/x:x", 20, False),
        ],
        "exported_deps": [("//r:r", 21, False)],
        "external_deps": [("gflags", 22, False)],
    }
    assert library.include_names == tuple(
        f"executorch/space/{name}" for name in ("named.h", "out/e.h", "f.h")
    )
    assert library.include_directories == ("p/dirs", "p/top", "inc")
    assert [src.path for src in made_rule.srcs] == ["//p:src.txt", "//q:x.py"]


@pytest.mark.parametrize(
    ("expression", "sources"),
    [
        ('paths.join("a", "b", "c.cpp")', ["a/b/c.cpp"]),
        ('paths.join("a/", "/b.cpp/")', ["a/b.cpp"]),
        ('paths.basename("a/b/c.cpp")', ["c.cpp"]),
        ('paths.dirname("a/b/c.cpp")', ["a/b"]),
        ('paths.dirname("c.cpp") + "x"', ["x"]),
        ('paths.normalize("a/b.cpp")', ["a/b.cpp"]),
        ('paths.split_extension("a/b.c.cpp")[0]', ["a/b.c"]),
        ('paths.split_extension("a/b.c.cpp")[1]', [".cpp"]),
        ('paths.split_extension("a.d/b")[0]', ["a.d/b"]),
        ('str(paths.is_absolute("/a")) + str(paths.is_absolute("a/"))', ["TrueFalse"]),
        ('"".join([package_name(), get_base_path(), native.package_name()])', ["ppp"]),
        ("repository_name() + get_cell_name()", ["@root"]),
        ('str([native.rule_exists(name) for name in "nop".elems()])', ["[True, True, False]"]),
        ("str(host_info().os.is_linux) + str(host_info().arch.is_x86_64)", ["TrueTrue"]),
        ("str(host_info().os.is_macos) + str(host_info().arch.is_aarch64)", ["FalseFalse"]),
        ("str(is_arvr_mode()) + str(get_aten_mode_options())", ["False(True, False)"]),
        ('read_root_config("a", "b", "0")', ["0"]),
        ('read_config("a", "b", "0")', ["0", "1"]),
        ('read_config("a", "b", "x")', ["x"]),
        ('str(read_config("a", "b"))', ["None"]),
        ('runtime.external_dep_location("x")', ["//third-party:x"]),
        ('glob(["*.cpp"], exclude = ["b.*"])', ["a.cpp"]),
        ('runtime.glob(["s/*.h"])', ["s/c.h"]),
        ('subdir_glob([("s", "*.h")]).items()[0]', ["c.h", "s/c.h"]),
        ('subdir_glob([("", "s/*.h")], prefix = "x").items()[0]', ["x/s/c.h", "s/c.h"]),
        (
            'subdir_glob([("s", "*.h"), ("", "*.cpp")], exclude = ["a.cpp"]).values()',
            ["s/c.h", "b.cpp"],
        ),
        (
            'select_map(["a", "b"], lambda ns: [n + ".cpp" for n in ns])',
            ["a.cpp", "b.cpp"],
        ),
        (
            'selects.apply(["a"] + select({"k": ["b"]}), lambda ns: [n + ".cpp" for n in ns])',
            ["a.cpp", "b.cpp if k"],
        ),
        ('select({"k": "a.cpp", "DEFAULT": "b.cpp"})', ["a.cpp if k", "b.cpp if DEFAULT"]),
        ('partial(lambda ns, end: [n + end for n in ns], ["a"])(".cpp")', ["a.cpp"]),
        ('json.encode({"a": 1})', ['{"a":1}']),
    ],
)
def test_bucks_functions_give_the_expected_sources(expression: str, sources: list[str]) -> None:
    text = (
        f'{LOAD}runtime.filegroup(name = "n")\nruntime.filegroup(name = "o")\n'
        f'runtime.filegroup(name = "p", srcs = {expression})\n'
    )
    files = dict.fromkeys(("p/a.cpp", "p/b.cpp", "p/s/c.h"), "")
    facts = read_buck(TextTree({**files, "p/BUCK": text}, LAYOUT))
    assert facts.not_evaluated == ()
    (rule,) = (target for target in facts.targets if target.name == "p")
    shown = [
        src.path.removeprefix("p/") + (f" if {src.condition}" if src.condition else "")
        for src in rule.srcs
    ]
    assert shown == sources


OTHERS = """
load("@other//a:my_rule.bzl", "FLAG", "Rule", "ns", own = "my_rule")
load("//sub/one:f.bzl", "MORE")
runtime.cxx_library(
    name = "lib",
    srcs = ["a.cpp"] + MORE,
    exported_headers = {"named.h": "gone.h", "one.h": "own.h", "x.h": "y.h"},
    header_namespace = "space",
    preprocessor_flags = ["-D" + FLAG],
)
runtime.cxx_library(
    name = "listed",
    exported_headers = ["own.h", ":made[f.h]"],
    header_namespace = "space",
)
own(name = "mine", srcs = ["a.cpp"])
ns.make(name = "other", srcs = ["b.cpp"])
Rule(name = "third", srcs = ["b.cpp"])
"""


def test_rules_of_macros_from_other_repositories_are_recorded() -> None:
    modules = '[submodule "one"]\n\tpath = sub/one\n'
    names = ("p/a.cpp", "p/b.cpp", "p/own.h", "p/named.h", "p/one.h")
    texts = {"p/BUCK": LOAD + OTHERS, ".gitmodules": modules, **dict.fromkeys(names, "")}
    facts = read_buck(TextTree(texts, LAYOUT))
    assert facts.not_evaluated == ()
    targets = {target.name: target for target in facts.targets}
    assert {
        name: (target.kind, list_paths((*target.srcs, *target.exported_headers)))
        for name, target in targets.items()
    } == {
        "lib": ("cxx_library", ["p/a.cpp", "p/named.h", "p/own.h", "p/y.h"]),
        "listed": ("cxx_library", ["p/own.h", "//p:made[f.h]"]),
        "mine": ("my_rule", ["p/a.cpp"]),
        "other": ("make", ["p/b.cpp"]),
        "third": ("Rule", ["p/b.cpp"]),
    }
    assert [word.text for word in targets["lib"].defines] == ["FLAG"]
    assert targets["lib"].include_names == ("space/named.h", "space/one.h", "space/x.h")
    assert targets["listed"].include_names == ("space/own.h",)


def test_build_files_of_a_submodule_are_not_evaluated() -> None:
    rule = "native.cxx_library(name = {})\n"
    texts = {
        ".gitmodules": '[submodule "one"]\n\tpath = sub/one\n',
        "p/BUCK": rule.format('"lib"'),
        "sub/one/BUCK": rule.format('"theirs"'),
        "sub/one/q/targets.bzl": "def define_common_targets():\n    " + rule.format('"more"'),
    }
    facts = read_buck(TextTree(texts, LAYOUT))
    assert [target.label for target in facts.targets] == ["//p:lib"]
    assert (facts.packages, facts.not_evaluated) == (("p",), ())


def test_a_link_to_a_device_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.cmake").symlink_to("/dev/null")
    assert DirectoryTree(tmp_path).read("a.cmake") is None


def test_a_build_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "BUCK").symlink_to("gone")
    (row,) = read_buck(DirectoryTree(tmp_path, LAYOUT)).not_evaluated
    assert (str(row.place), row.reason, row.folder) == ("BUCK", "BUCK: cannot be read", "")


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        (":a", "//p:a"),
        ("//q:a", "//q:a"),
        ("//q/r", "//q/r:r"),
        ("//executorch/q:a", "//q:a"),
        ("@fbsource//xplat/executorch/q:a", "//q:a"),
        ("fbsource//third-party/x:x", "fbsource//third-party/x:x"),
        ("@other//executorch/q:a", "@other//executorch/q:a"),
        ("executorch", "executorch"),
        ("", ""),
    ],
)
def test_a_label_of_the_project_starts_at_the_root_of_the_tree(label: str, expected: str) -> None:
    assert label_of(label, "p", LAYOUT) == expected


@pytest.mark.parametrize(
    ("words", "near", "expected"),
    [
        ("w", "b:2", "b:2"),
        ("w", "b:3", "b:4"),
        ("w", "b:5", "b:2"),
        ("w", "c:9", "a:1"),
        ("v", "b:4", "b:4"),
        ("u", "a:9", "b:8"),
        ("s", "b:1", "b:1"),
    ],
)
def test_a_string_is_searched_below_a_line_then_above_then_in_other_files(
    words: str, near: str, expected: str
) -> None:
    text = '\n"w"\n# "w"\n"w"\n"""\n"v"\n"""\n"u"\n"u"\n"#", "t" # "s"\n'
    tree = TextTree({"a": '"w"\n"x"\n', "b": text}, LAYOUT)
    path, _, line = near.partition(":")
    place = Literals(tree).find(words.split(), ["a", "b"], Place(path, int(line)))
    assert str(place) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("from  q\timport\tx ,y", "q/x.py q/y.py"),
        ("\timport q.x", "q/x.py"),
        ("import q.x as z, q.y as w # , q.z", "q/x.py q/y.py"),
        ("from q import (x,  # y\n z)", "q/x.py q/z.py"),
        ("from q import (\n    x as y,\n)\nimport p.b", "p/b.py q/x.py"),
        ("import q", "q/__init__.py"),
        ("from q import x, help", "q/__init__.py q/x.py"),
        ("from q.x import help", "q/x.py"),
        ("from e import m", "e/m.py"),
        ("import et.q.x, other.q.x", "q/x.py"),
        ("from . import b", "p/b.py"),
        ("from .b import c", "p/b.py"),
        ("from ..q import x", "q/x.py"),
        ("from ..q.x import y", "q/x.py"),
        ("x = 1; import q.x\n# import q.x\nimports = q.x\nfrom_q = 1", ""),
    ],
)
def test_each_form_of_a_python_import_resolves_to_its_files(text: str, expected: str) -> None:
    names = ("q/__init__.py", "q/x.py", "q/y.py", "q/z.py", "e/m.py", "p/b.py", "p/y.py")
    texts = {**dict.fromkeys(names, "x = 1"), "e/__init__.py": "# no code\n\n", "p/a.py": text}
    imports = find_imports(TextTree(texts, Layout("et")))
    assert imports == ({"p/a.py": tuple(expected.split())} if expected else {})


def test_objects_that_git_lacks_have_no_content() -> None:
    raw = b"1 blob 3\na\nb\n2 missing\n3 blob 0\n\n4 tree 2\nxy\n"
    assert split_batch(raw) == [b"a\nb", None, b"", b"xy"]


# CMake


def test_a_mark_of_the_byte_order_and_the_case_of_a_command_are_ignored() -> None:
    (command,) = parse_commands("\ufeffSet(A b)\n")
    assert (command.name, [argument.text for argument in command.arguments]) == ("set", ["A", "b"])


def test_cmake_arguments_and_comments_may_span_lines() -> None:
    text = '#[=[\nnot(here)\n]]\n]=]\na([[\nb\nc]] "d\ne" "f\\\ng") # h(i) #[[\n\nj(k)\n'
    commands = parse_commands(text)

    assert [(command.name, command.line) for command in commands] == [("a", 5), ("j", 11)]
    assert [(argument.text, argument.line) for argument in commands[0].arguments] == [
        ("b\nc", 5), ("d\ne", 7), ("f\\\ng", 8),
    ]  # fmt: skip
    assert expand(commands[0].arguments[2].text, lambda *_: ()) == ("fg",)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("while(X)\nelse()\nendwhile()\n", 2),
        ("foreach(X)\nif(Y)\nendforeach()\nendif()\n", 3),
        ("a()\nelse()\n", 2),
        ("a()\n1a()\n", 2),
        ("if(X)\n", 1),
        ("if(X)\nendforeach()\n", 2),
    ],
)
def test_an_unclosed_cmake_block_is_reported_with_its_line(text: str, line: int) -> None:
    with pytest.raises(CMakeSyntaxError) as caught:
        nest_commands(parse_commands(text))
    assert caught.value.line == line


NOTHING = Scope(
    variable={"NAME": ("1.0",), "OFF_NAME": ("OFF",), "LIST": ("a;b",), "TEST": ("ON",)}.get,
    is_open=lambda name: name == "OPEN",
    has_target=lambda name: name == "here",
    has_path=lambda path: False,
)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("ON AND OPEN", None),
        ("OPEN AND OFF", False),
        ("OPEN OR ON", True),
        ("OFF OR OPEN", None),
        ("NOT NOT ON", True),
        ("NOT ( ON AND OFF )", True),
        ("( ( OFF ) OR ON ) AND ON", True),
        ("NAME", True),
        ("TARGET here", True),
        ("TARGET gone", None),
        ("DEFINED NAME", True),
        ("1.2 VERSION_GREATER_EQUAL 1.10", False),
        ("x EQUAL 2", False),
        ("a IN_LIST OTHER", None),
        ("NOT", None),
        ("TEST", True),
        *(
            (f"OFF AND {word} x", False)
            for word in (
                "COMMAND", "POLICY", "TEST", "EXISTS", "TARGET", "DEFINED",
                "IS_DIRECTORY", "IS_SYMLINK", "IS_ABSOLUTE", "IS_READABLE",
            )
        ),
        ("ON OR x IS_NEWER_THAN y", True),
        ("ON OR x PATH_EQUAL y", True),
        ("x PATH_EQUAL x", None),
        *(
            (f"{left} {kind}{operator} {right}", is_true)
            for kind, low, high in (("", "9", "10"), ("STR", "10", "9"), ("VERSION_", "9", "9.1"))
            for left, right in ((low, high), (low, low), (high, low))
            for operator, is_true in (
                ("LESS", (left, right) == (low, high)),
                ("GREATER", (left, right) == (high, low)),
                ("EQUAL", left == right),
                ("LESS_EQUAL", (left, right) != (high, low)),
                ("GREATER_EQUAL", (left, right) != (low, high)),
            )
        ),
    ],
)  # fmt: skip
def test_a_cmake_condition_is_true_false_or_unknown(words: str, answer: bool | None) -> None:
    assert decide([Operand((word,), quoted=False) for word in words.split()], NOTHING) is answer


@pytest.mark.parametrize(
    ("left", "operator", "right", "answer"),
    [
        (("a", "b"), "STREQUAL", ("a",), None),
        (("OPEN", "OPEN"), "STREQUAL", ("x",), None),
        (("x",), "MATCHES", ("OPEN",), None),
        (("1", "2"), "MATCHES", ("[0-9]",), True),
        (("1",), "MATCHES", ("[0-9]", "[a-z]"), None),
        (("1",), "MATCHES", ("a**",), None),
        (unknown("X"), "MATCHES", ("[0-9]",), None),
        (("a",), "IN_LIST", ("TWO",), None),
        (("b", "z"), "IN_LIST", ("TWO",), None),
        (("LETTER", "b"), "STREQUAL", ("b",), True),
        (("LETTER",), "IN_LIST", ("NAMES",), False),
        (("PART",), "IN_LIST", ("NAMES",), None),
    ],
)
def test_a_condition_on_a_variable_with_several_values_is_known_only_if_all_agree(
    left: tuple[str, ...], operator: str, right: tuple[str, ...], answer: bool | None
) -> None:
    lists = {
        "TWO": ("a;b", "b;c"),
        "LETTER": ("b",),
        "NAMES": ("LETTER",),
        "PART": ("b", *unknown("Y")),
    }
    scope = replace(NOTHING, variable=lists.get, is_open=lambda name: name.startswith("OPEN"))
    operands = [Operand(words, quoted=False) for words in (left, (operator,), right)]
    assert decide(operands, scope) is answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        *((text, True) for text in ("-1", "2", "01", "1" * 5000, "1", "on", "Yes", "TRUE", "Y")),
        *((text, False) for text in ("0", "", "off", "No", "FALSE", "n", "ignore")),
        *((text, False) for text in ("NOTFOUND", "x-notfound")),
        *((text, None) for text in ("x", "-0", "-", "--5", "²", "1x", "xNOTFOUND", "x-notfound-y")),
    ],
)  # fmt: skip
def test_cmake_constants_are_true_false_or_unknown(text: str, answer: bool | None) -> None:
    assert constant_truth(text) is answer


@pytest.mark.parametrize(
    ("before", "left", "right", "merged"),
    [
        (None, ("a",), ("b",), ("a", "b")),
        (None, ("",), ("b",), ("b",)),
        (("a",), ("a;b",), ("a;c",), ("a;b;c",)),
        (("a",), ("a;b",), ("a;a",), ("a;b;a",)),
        (None, tuple("abcdefghijkl"), ("m",), tuple("abcdefghijkl")),
        (None, ("a;b", "c"), ("a;d",), ("a;b", "c", "a;d")),
        # One branch adds to the list, the other sets it anew.
        (("a;b",), ("a;b;c",), ("x;y",), ("a;b;c;x;y",)),
    ],
)
def test_values_of_a_variable_from_two_branches_are_merged(
    before: tuple[str, ...] | None,
    left: tuple[str, ...],
    right: tuple[str, ...] | None,
    merged: tuple[str, ...],
) -> None:
    assert merge_value(before, left, right) == merged


@pytest.mark.parametrize(
    ("text", "host", "android"),
    [
        ("", [], []),
        ("$<$<PLATFORM_ID:Android>:a>", [], ["a"]),
        ("$<$<PLATFORM_ID:Linux,Android>:a>", ["a"], ["a"]),
        ("$<$<NOT:$<PLATFORM_ID:Android>>:a>", ["a"], []),
        ("$<$<CONFIG:Debug>:a;b>", ["a", "b"], ["a", "b"]),
        ("$<INSTALL_INTERFACE:a>", [], []),
        ("$<LINK_ONLY:a>", ["a"], ["a"]),
        ("$<LINK_GROUP:RESCAN,a,b>", ["a", "b"], ["a", "b"]),
        ("$<1:a;b>.c", ["a.c", "b.c"], ["a.c", "b.c"]),
        ("$<1:$<$<PLATFORM_ID:Darwin,Android>:a>>", [], ["a"]),
        ("$<0:a>", [], []),
        ("$<TARGET_OBJECTS:a>", ["TARGET_OBJECTS:a"], ["TARGET_OBJECTS:a"]),
        ("$<1:ab", [], []),
    ],
)
def test_a_generator_expression_resolves_per_host_and_android(
    text: str, host: list[str], android: list[str]
) -> None:
    assert list(resolve_genex(text, Configuration.HOST)) == host
    assert list(resolve_genex(text, Configuration.ANDROID)) == android


@pytest.mark.parametrize(
    "command",
    [
        "list(SUBLIST L 0 1 S)", "list(POP_FRONT L S)", "list(TRANSFORM L TOLOWER)",
        'math(EXPR S "1 + 1")', "string(SUBSTRING ab 0 1 S)", "list(REMOVE_AT L 0)",
    ],
)  # fmt: skip
def test_sources_of_a_command_that_is_not_computed_are_unknown(
    command: str, report: Callable[[Mapping[str, str]], ParityReport]
) -> None:
    cmake = f"set(L p/a.cpp)\n{command}\nadd_library(p ${{L}} ${{S}})\n"

    assert "the sources of p depend on" in reasons(report({"p/BUCK": "", "CMakeLists.txt": cmake}))


@pytest.mark.parametrize(
    ("taken", "unlisted"),  # the order of extensions in CMake's policy CMP0115
    [
        *(
            (f"a.{extension}", "")
            for extension in ("c", "cc", "cpp", "cxx", "cu", "mm", "m", "S", "h")
        ),
        *(("a.c", "a.cc"), ("a.cc", "a.cpp"), ("a.cpp", "a.cxx")),
    ],
)
def test_a_source_without_extension_resolves_in_cmakes_order(
    taken: str, unlisted: str, pairs: Pairs
) -> None:
    attribute = "exported_headers" if taken == "a.h" else "srcs"
    rule = LOAD + f'runtime.cxx_library(name = "p", {attribute} = ["{taken}"])\n'
    files = {f"p/{name}": "" for name in (taken, unlisted) if name}
    differences = pairs({**files, "p/BUCK": rule, "CMakeLists.txt": "add_library(p p/a)\n"})

    assert differences == ({("unlisted-file", f"p/{unlisted}")} if unlisted else set())


def reasons(parity_report: ParityReport) -> str:
    return "".join(row.reason for row in parity_report.not_evaluated)


# What files use, and what moves


def test_a_renamed_target_has_most_of_the_same_sources() -> None:
    before = {"old": {"a", "b"}, "kept": {"k"}, "gone": {"x", "y", "z"}}

    assert match_sources(before, {"new": {"a2", "b"}, "kept": {"k"}}, {"a": "a2"}) == {"old": "new"}
    assert match_sources(before, {"one": {"z"}, "new": {"a", "b"}}, {}) == {"old": "new"}
    two = {"one": {"a", "z"}, "new": {"a", "b"}, "two": {"x", "y"}}
    assert match_sources(before, two, {}) == {"old": "new", "gone": "two"}
    assert match_sources(before, {"new": {"b", "c"}, "kept": {"k"}}, {}) == {}
    assert match_sources(before, {"new": {"a", "b", "c", "d"}, "kept": set()}, {}) == {}
    assert match_sources(before, {"new": {"a", "b", "c"}, "kept": set()}, {}) == {"old": "new"}
    assert match_sources(before, {**before, "new": {"k"}}, {}) == {}
    assert match_sources({"old": {"a"}, "kept": {"b"}}, {"kept": {"a"}}, {}) == {}


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        ({"p/a": "1"}, {"q/b": "1"}, {"p/a": "q/b"}),
        ({"p/a": "1"}, {"q/b": "2"}, {}),
        ({"p/a": "1"}, {"q/a": "2"}, {"p/a": "q/a"}),
        ({"p/a": ""}, {"q/b": ""}, {}),  # an empty file is like any other
        ({"p/a": ""}, {"q/a": ""}, {"p/a": "q/a"}),
        ({"p/a": "1"}, {"q/a": "1", "r/b": "1"}, {"p/a": "q/a"}),
        ({"p/a": "1"}, {"q/a": "1", "r/a": "1"}, {}),
        ({"p/a": "1"}, {"q/a": "2", "r/a": "3"}, {}),
        ({"p/a": "1", "q/a": "2"}, {"r/a": "3"}, {}),
        ({"p/a": "1", "q/a": "2"}, {"r/a": "2"}, {"q/a": "r/a"}),
        ({"p/a": "1"}, {"p/a": "1", "q/a": "1"}, {}),
        ({"p/a": "1", "b": "2"}, {"b": "2"}, {}),
    ],
)
def test_a_file_counts_as_moved_if_exactly_one_new_file_has_its_content(
    before: Mapping[str, str], after: Mapping[str, str], moves: Mapping[str, str]
) -> None:
    assert find_moves(TextTree(before, LAYOUT), TextTree(after, LAYOUT)) == moves


def test_compare_folders_ignores_expired_allowances_and_folders_without_buck(
    tmp_path: Path,
) -> None:
    files = {
        "CMakeLists.txt": "project(executorch)\nadd_library(p p/a.cpp)\n",
        "p/BUCK": 'native.cxx_library(name = "p", srcs = ["a.cpp", "b.cpp"])\n',
        **dict.fromkeys(("p/a.cpp", "p/b.cpp", "s/CMakeLists.txt", "t/BUCK/x"), ""),
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    stale = Allowance(("header",), ("p/**",), "it is right", until=date(2020, 1, 1))
    policy = ParityPolicy(allow=(stale,))
    report = compare_folders(tmp_path, ["p", "s", "t", "gone"], policy, tmp_path / "cache")
    assert report
    assert report.scope == ("p",)
    assert [(finding.kind.value, finding.path) for finding in report.findings] == [
        ("buck-only-source", "p/b.cpp")
    ]
    assert compare_folders(tmp_path, ["s", "gone"], policy, tmp_path / "cache") is None


def test_parity_with_a_base_refuses_a_folder_that_is_no_repository(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a git repository") as caught:
        compare_source(ParityRequest(tmp_path, base="main"), ParityPolicy())
    assert caught.value.fix == "omit --base"
