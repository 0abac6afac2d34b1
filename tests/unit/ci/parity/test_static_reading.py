"""What the static reading of CMake takes from a tree, where a real configuration corrected it."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from ci.parity import reading, run, trees
from ci.parity.cmake.commands.targets import TARGET_COMMANDS
from ci.parity.cmake.commands.variables import COMMANDS
from ci.parity.cmake.reader import Run, StaticReader
from ci.parity.cmake.state import Sources
from ci.parity.cmake.values import search
from ci.parity.facts import (
    WHOLE,
    CMakeFacts,
    Configuration,
    NotEvaluated,
    ParityFacts,
    Place,
)
from ci.parity.policy import ParityPolicy
from ci.parity.trees import DirectoryTree, RevisionTree, open_tree
from provisioning.errors import ToolError, UsageError
from tests.stand_ins.environments import git
from tests.stand_ins.repository import make_checkout
from tests.stand_ins.snapshots import check_snapshot
from tests.stand_ins.text_tree import TextTree
from tests.unit.ci.parity.compare.sides import buck, cmake
from tests.unit.ci.parity.compare.sides import facts as make_facts
from tests.unit.ci.parity.conftest import LAYOUT

Files = Mapping[str, str]
ARTIFACTS = Path(__file__).parents[3] / "artifacts" / "parity"
# Results of the first file are compared with CMake's own by tests/integration/parity; those of the
# second depend on where the tree is, or on which branches may be taken.
SNIPPETS = ("snippets.cmake.txt", "snippets_of_trees.cmake.txt")


def test_each_cmake_snippet_reads_as_its_snapshot() -> None:
    texts = ((ARTIFACTS / name).read_text("utf-8") for name in SNIPPETS)
    rows = []
    for row in "".join(texts).splitlines():
        tree = TextTree({"CMakeLists.txt": row.replace("  ", "\n"), "a/b.cpp": ""}, LAYOUT)
        root = Run(Sources(tree), Configuration.HOST, "")
        values = " or ".join(map(repr, root.lookup("", "OUT"))).replace("\\x01", "?")
        rows.append(f"{row}\n    {values}{' (not evaluated)' * bool(root.not_evaluated)}\n")
    check_snapshot(Path(__file__).parent / "snapshots" / "snippets.txt", "".join(rows))


@pytest.fixture
def read(plant: Callable[[Files], Path]) -> Callable[[Files], CMakeFacts]:
    """The host configuration of a miniature tree."""
    return lambda files: StaticReader(DirectoryTree(plant(files))).read(Configuration.HOST)


def sources(facts: CMakeFacts) -> dict[tuple[str, str], set[str]]:
    """The sources of each target, by its directory and name."""
    return {(target.directory, target.name): target.sources for target in facts.targets}


OPS = "add_library(ops o.cpp)\ntarget_sources(ops PRIVATE more.cpp)\n"
OWN = "add_library(${CMAKE_CURRENT_SOURCE_DIR} a.cpp)\n"
# Of small trees: their list files, and the sources of each target by its directory.
READINGS: dict[str, tuple[Files, list[tuple[str, list[str]]]]] = {
    "an option that CTest makes": (
        {
            "CMakeLists.txt": "option(TESTS '' OFF)\nif(TESTS)\n  include(CTest)\nelse()\n"
            "  set(BUILD_TESTING OFF)\nendif()\nset(from_root inner/b.cpp)\n"
            "if(BUILD_TESTING)\n  add_subdirectory(inner)\nendif()\n",
            "inner/CMakeLists.txt": "add_library(lib ${CMAKE_SOURCE_DIR}/${from_root})\n",
            "inner/b.cpp": "",
        },
        [("inner", ["inner/b.cpp"])],
    ),
    "directories that exclude each other and use one name": (
        {
            "CMakeLists.txt": "option(FAST '' ON)\nif(FAST)\n  add_subdirectory(fast)\nelse()\n"
            "  add_subdirectory(slow)\nendif()\ntarget_sources(ops PRIVATE last.cpp)\n",
            **{f"{name}/CMakeLists.txt": OPS for name in ("fast", "slow")},
        },
        [
            ("fast", ["fast/more.cpp", "fast/o.cpp"]),
            ("slow", ["last.cpp", "slow/more.cpp", "slow/o.cpp"]),
        ],
    ),
    "an included file that guards itself, and one that does not": (
        {
            "CMakeLists.txt": "include(once.cmake)\ninclude(once.cmake)\ninclude(again.cmake)\n"
            "include(again.cmake)\nadd_library(lib ${names})\n",
            "once.cmake": "include_guard()\nlist(APPEND names a.cpp)\n",
            "again.cmake": "list(APPEND names b.cpp)\n",
        },
        [("", ["a.cpp", "b.cpp", "b.cpp"])],
    ),
    "list files that no other one adds": (
        {
            "CMakeLists.txt": "add_subdirectory(one)\n",
            **{f"{name}/CMakeLists.txt": OWN for name in ("one", "own", "own/x")},
        },
        [(name, [f"{name}/a.cpp"]) for name in ("one", "own", "own/x")],
    ),
}


@pytest.mark.parametrize("name", READINGS)
def test_each_target_has_its_sources(read: Callable[[Files], CMakeFacts], name: str) -> None:
    files, expected = READINGS[name]
    facts = read(files)
    sources_of_targets = []
    for target in facts.targets:
        paths = sorted(entry.path for entry in target.srcs)
        sources_of_targets.append((target.directory, paths))
    assert sorted(sources_of_targets) == expected
    assert facts.repeated == facts.not_evaluated == ()


def test_a_submodule_is_read_alike_whether_it_is_checked_out_or_not(
    read: Callable[[Files], CMakeFacts],
) -> None:
    files = {
        ".gitmodules": '[submodule "big"]\n\tpath = third-party/big\n',
        "CMakeLists.txt": "add_subdirectory(third-party/big)\ninclude(third-party/big/set.cmake)\n"
        "add_library(lib a.cpp)\n",
        "a.cpp": "",
    }
    absent = read(files)
    present = read(
        files
        | {
            "third-party/big/CMakeLists.txt": "add_library(vendored v.cpp)\n",
            "third-party/big/set.cmake": "add_library(included v.cpp)\n",
        }
    )

    assert sources(absent) == sources(present) == {("", "lib"): {"a.cpp"}}
    assert absent.not_evaluated == present.not_evaluated == ()


def test_a_target_is_known_by_its_name_and_its_aliases(
    read: Callable[[Files], CMakeFacts],
) -> None:
    text = "".join(
        f"if(TARGET {name})\n  add_library(with_{n} b.cpp)\nelse()\n  add_library(no_{n} b.cpp)\n"
        "endif()\n"
        for n, name in enumerate(("lib", "own::lib", "gone"))
    )
    first = "add_library(lib a.cpp)\nadd_library(own::lib ALIAS lib)\n"
    facts = read({"CMakeLists.txt": first + text})
    assert [target.name for target in facts.targets] == [
        "lib",
        "with_0",
        "with_1",
        "with_2",
        "no_2",
    ]


def test_generated_files_are_neither_missing_nor_part_of_the_tree(
    read: Callable[[Files], CMakeFacts],
) -> None:
    text = (
        "include(${{{0}}}/made.cmake)\nadd_subdirectory(${{{0}}}/made)\n"
        "install(FILES ${{{0}}}/a.h)\n"
    )
    files = "a.cpp ${PROJECT_SOURCE_DIR}/b.cpp ${own_SOURCE_DIR}/c.cpp"
    inner = f"project(own)\nadd_library(lib {files})\n"
    facts = read(
        {
            "CMakeLists.txt": text.format("CMAKE_BINARY_DIR") + "add_subdirectory(p)\n",
            "p/CMakeLists.txt": inner + text.format("PROJECT_BINARY_DIR"),
        }
    )
    assert facts.not_evaluated == ()
    assert (facts.mentioned, facts.roots) == ((), ("CMakeLists.txt",))
    assert sources(facts) == {("p", "lib"): {"p/a.cpp", "p/b.cpp", "p/c.cpp"}}


WORDS = """
x|x y|x ALIAS|ALIAS x|x STATIC|x PUBLIC|IMPORTED|APPEND|APPEND x|PREPEND|LENGTH x|GET x|GET x y
JOIN|JOIN ,|TRANSFORM x|TRANSFORM x APPEND|TRANSFORM x REPLACE a|INSERT x|FILTER x
FILTER x INCLUDE|SORT x|REGEX|REGEX MATCH|REGEX MATCH a|REGEX MATCH a x|REGEX REPLACE a
REGEX REPLACE a b|REGEX REPLACE a b x|REPLACE a b|REPLACE a b x|FIND a|FIND a b|FIND x|CONCAT
CONCAT x|TOUPPER a|JSON|CONFIGURE a|RANDOM|SHA256 a|GLOB|GLOB x|GLOB x RELATIVE
GLOB x /usr/*.c
GLOB x RELATIVE y|GLOB_RECURSE|RELATIVE_PATH x a|READ a|REAL_PATH a|SHA256|x a NAME BASE_DIR
x a BASE_DIR|x a NAME|x a|COMPARE|COMPARE a OUTPUT_VARIABLE|PARSE_ARGV|PARSE_ARGV 1 p "" ""
PARSE_ARGV x p "" "" ""|p "" ""|OUTPUT_VARIABLE|x OUTPUT_VARIABLE|x CACHE|x CACHE FORCE
x PARENT_SCOPE|CACHE|PARENT_SCOPE|ENV{x}|x FILE_SET|x BASE_DIRS|NAMES|x NAMES|x NAMES y|-D|x -D
RANGE|x RANGE|x RANGE y|x IN|x IN LISTS|x y IN ZIP_LISTS|x IN ZIP_LISTS y|""|;|"x;y"|$<
$<TARGET_OBJECTS:>|$ENV{X}|x $ENV{X}|CTest|$<1:|$<LINK_GROUP:>
"""


@pytest.mark.parametrize("command", [*COMMANDS, *TARGET_COMMANDS, ""])
def test_a_cmake_call_with_missing_arguments_does_not_end_the_reader(command: str) -> None:
    calls = [words for row in WORDS.split("\n") for words in row.split("|")]
    form = f"{command}({{}})\n" if command else "foreach({0})\nendforeach()\n"
    texts = {
        "CMakeLists.txt": "".join(f"add_subdirectory(d{n})\n" for n in range(len(calls))),
        **{f"d{n}/CMakeLists.txt": form.format(words) for n, words in enumerate(calls)},
    }
    root = Run(Sources(TextTree(texts, LAYOUT)), Configuration.HOST, "")
    assert len(root.read) == len(texts)
    assert all(target.build().directory.startswith("d") for target in root.targets.finished())


@pytest.mark.parametrize(
    ("form", "is_complete"),
    [("{}", False), ("if(X)\n{}endif()\n", False), ("if(OFF)\n{}endif()\n", True)],
)
def test_a_target_with_a_source_that_is_unknown_is_not_complete(
    read: Callable[[Files], CMakeFacts], form: str, is_complete: bool
) -> None:
    add = form.format("target_sources(lib PRIVATE $ENV{Y})\n")
    (lib,) = read({"CMakeLists.txt": f"option(X '' ON)\nadd_library(lib a.cpp)\n{add}"}).targets
    assert (lib.complete, lib.sources) == (is_complete, {"a.cpp"})


def test_a_define_of_a_directory_is_for_it_and_those_below(
    read: Callable[[Files], CMakeFacts],
) -> None:
    facts = read(
        {
            "CMakeLists.txt": "add_subdirectory(one)\nadd_subdirectory(one2)\n",
            "one/CMakeLists.txt": "add_definitions(-DONE)\nadd_library(one o.cpp)\n"
            "add_subdirectory(below)\n",
            "one/below/CMakeLists.txt": "add_library(below b.cpp)\n",
            "one2/CMakeLists.txt": "add_library(one2 o.cpp)\n",
        }
    )

    defines = {}
    for target in facts.targets:
        defines[target.name] = [word.text for word in target.directory_defines]
    assert defines == {"one": ["ONE"], "below": ["ONE"], "one2": []}


def test_builds_and_environments_in_a_checkout_are_not_read(plant: Callable[..., Path]) -> None:
    ignored = {
        "out/CMakeCache.txt": "",
        "envs/one/pyvenv.cfg": "",
        "envs/one/lib/torch/a.cmake": "",
    }
    folders = (".git", "buck-out", "cmake-out", "node_modules", "__pycache__", ".venv")
    ignored |= {f"{above}{folder}/a.cmake": "" for folder in folders for above in ("", "p/")}
    root = plant(
        {"CMakeLists.txt": "", "envs/notes.cmake": "", "out/_deps/b/b.cmake": "", **ignored}
    )
    assert DirectoryTree(root).files == {"CMakeLists.txt", "envs/notes.cmake"}
    assert DirectoryTree(root / "out").files == {"CMakeCache.txt", "_deps/b/b.cmake"}


def test_links_to_nothing_are_files_without_content(plant: Callable[[Files], Path]) -> None:
    rule = 'cxx_library(name = "p", srcs = ["a.cpp", "gone.cpp"], headers = ["gone.h"])\n'
    root = plant(
        {
            "p/BUCK": f"native.{rule}",
            "p/a.cpp": '#include "gone.h"\n',
            "p/a.py": "from et.p import gone\n",
            "CMakeLists.txt": "add_library(p p/a.cpp p/gone.cpp)\nadd_subdirectory(q)\n",
        }
    )
    (root / "q").mkdir()
    gone = ("p/gone.cpp", "p/gone.h", "p/gone.py", "q/CMakeLists.txt", "p/targets.bzl")
    for name in (*gone, ".gitmodules", "p/__init__.py"):
        (root / name).symlink_to("nothing")

    facts = reading.read_tree_here(DirectoryTree(root, replace(LAYOUT, project="et")))
    assert facts.not_evaluated == ()
    assert [target.sources for target in facts.buck.targets] == [{"p/a.cpp", "p/gone.cpp"}]
    assert facts.headers["p/a.cpp"] == ("p/gone.h",)
    assert facts.imports == {"p/a.py": ("p/gone.py",)}
    assert facts.submodules == ()


def test_cmake_commands_add_targets_and_properties(read: Callable[[Files], CMakeFacts]) -> None:
    facts = read(
        {
            "CMakeLists.txt": """option(X "" ON)
foreach(i 1 2)
  add_library(turns ${i}.cpp)
endforeach()
add_library(lib STATIC a.cpp)
add_library(lib b.cpp)
add_library(other ALIAS lib)
add_library(far IMPORTED)
target_include_directories(lib PUBLIC inc PRIVATE $ENV{HOME} SYSTEM inc/deep)
include_directories(BEFORE top "$<BUILD_INTERFACE:g/a;g/b>")
target_compile_definitions(lib PUBLIC ONE PRIVATE -DTWO=2 INTERFACE SIX)
target_compile_options(lib PRIVATE -Wall -DTHREE)
add_definitions(-DFOUR plain -DSEVEN)
add_compile_definitions(FIVE EIGHT)
install(FILES kept.h DESTINATION lib)
target_sources(gone PRIVATE a.cpp)
target_sources($ENV{NAME} PRIVATE a.cpp)
if(X)
  target_sources(perhaps PRIVATE a.cpp)
  add_library(branch b.cpp)
endif()
target_sources(lib PRIVATE c.cpp)
file(GLOB some LIST_DIRECTORIES false CONFIGURE_DEPENDS p/*.cpp $ENV{X}/*.cpp)
file(GLOB deep p/*/*.cpp)
file(GLOB near RELATIVE ${CMAKE_SOURCE_DIR}/p p/*.cpp)
file(GLOB_RECURSE every p/*.cpp)
file(GLOB_RECURSE three *3.cpp)
add_library(some ${some})
add_library(deep ${deep})
add_library(every ${every})
add_library(near ${near})
add_library(three ${three})
include_directories(.)
add_library($ENV{NAME} a.cpp)
add_library(objects OBJECT o.cpp)
add_library(all $<TARGET_OBJECTS:objects> ${CMAKE_BINARY_DIR}/made.cpp tool)
add_library(tripled ${CMAKE_SOURCE_DIR}/${CMAKE_SOURCE_DIR}/${CMAKE_SOURCE_DIR}/p/1.cpp)
file(GLOB_RECURSE inner RELATIVE ${CMAKE_SOURCE_DIR} p/*3.cpp)
add_library(inner ${inner})
""",
            **dict.fromkeys(("tool", "tool.cpp", "RELATIVE", "x/p"), ""),
            **dict.fromkeys(("p/1.cpp.in", "p/q/3.cpp.in"), ""),
            **dict.fromkeys(("p/1.cpp", "p/2.cc", "p/q/3.cpp", "p/q/r/4.cpp", "pq/5.cpp"), ""),
        }
    )

    assert sources(facts) == {
        ("", "turns"): {"1.cpp", "2.cpp"},
        ("", "lib"): {"a.cpp", "b.cpp", "c.cpp"},
        ("", "branch"): {"b.cpp"},
        ("", "some"): {"p/1.cpp"},
        ("", "deep"): {"p/q/3.cpp"},
        ("", "every"): {"p/1.cpp", "p/q/3.cpp", "p/q/r/4.cpp"},
        ("", "near"): {"1.cpp"},
        ("", "three"): {"p/q/3.cpp"},
        ("", "objects"): {"o.cpp"},
        ("", "all"): {"tool"},
        ("", "tripled"): {"p/1.cpp"},
        ("", "inner"): {"p/q/3.cpp"},
    }
    targets = {target.name: target for target in facts.targets}
    assert [link.text for link in targets["all"].links] == ["objects"]
    assert [src.place.line for src in targets["deep"].srcs] == [24]  # file(GLOB)
    lib = next(target for target in facts.targets if target.name == "lib")
    assert [(define.text, define.exported) for define in lib.defines] == [
        ("ONE", True), ("TWO=2", False), ("SIX", True), ("THREE", False),
    ]  # fmt: skip
    assert [define.text for define in lib.directory_defines] == ["FOUR", "SEVEN", "FIVE", "EIGHT"]
    assert facts.include_directories == ("", "g/a", "g/b", "inc", "inc/deep", "top")
    assert facts.aliases == {"other": "lib"}
    assert [(target.name, target.place.line) for target in facts.repeated] == [("lib", 6)]
    assert facts.mentioned == ("kept.h",)
    assert [(row.place, "gone" in row.reason) for row in facts.not_evaluated] == [
        (Place("CMakeLists.txt", 16), True)
    ]


def test_a_target_links_what_each_command_names(read: Callable[[Files], CMakeFacts]) -> None:
    facts = read(
        {
            "CMakeLists.txt": """option(X "" ON)
find_library(LOG NAMES log liblog)
find_library(DL dl)
add_library(lib a.cpp)
target_link_libraries(lib one PUBLIC two PRIVATE three INTERFACE four)
target_link_libraries(lib LINK_PUBLIC five LINK_PRIVATE six debug seven optimized eight)
target_link_libraries(lib general nine ${LOG} ${DL} $ENV{Y} one)
if(X)
  target_link_libraries(lib ten)
  set(more eleven)
endif()
target_link_libraries(lib ${more} "$<$<PLATFORM_ID:Linux>:twelve>" $<LINK_ONLY:thirteen>
  14$<$<PLATFORM_ID:Linux>:th>)
target_compile_options(lib PRIVATE BEFORE -DA PUBLIC -DB -Wall)
target_compile_definitions(lib AFTER C)
add_compile_options(-DD -Wall)
include_directories(AFTER inc SYSTEM)
"""
        }
    )
    (lib,) = facts.targets

    assert [(link.text, link.condition, link.exported) for link in lib.links] == [
        ("one", "", False), ("two", "", True), ("three", "", False), ("four", "", True),
        ("five", "", False), ("six", "", False), ("seven", "", False), ("eight", "", False),
        ("nine", "", False), ("log", "", False), ("dl", "", False), ("one", "", False),
        ("ten", "option", False), ("eleven", "option", False), ("twelve", "option", False),
        ("thirteen", "", False), ("14th", "option", False),
    ]  # fmt: skip
    assert [(define.text, define.exported) for define in lib.defines] == [
        ("A", False), ("B", True), ("C", False),
    ]  # fmt: skip
    assert [define.text for define in lib.directory_defines] == ["D"]
    assert facts.include_directories == ("inc",)


def test_file_sets_of_a_target_are_its_files(read: Callable[[Files], CMakeFacts]) -> None:
    facts = read(
        {
            "CMakeLists.txt": "add_library(lib)\n"
            "target_sources(lib PUBLIC FILE_SET own TYPE HEADERS BASE_DIRS p q FILES a.h b.h\n"
            "  PRIVATE c.cpp PUBLIC FILE_SET HEADERS BASE_DIRS r PRIVATE d.cpp)\n"
        }
    )
    (lib,) = facts.targets

    assert [header.path for header in lib.headers] == ["a.h", "b.h"]
    assert [src.path for src in lib.srcs] == ["c.cpp", "d.cpp"]


def test_a_revision_is_read_as_it_was_committed(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / "a.cpp").write_text("int a;\n")
    (root / "b.cpp").write_bytes(b"\xff\n")
    (root / "link").symlink_to("a.cpp")
    (root / "other").symlink_to("b.cpp")
    (root / ".gitmodules").write_text('[submodule "one"]\n\tpath = sub/one\n')
    git(root, "add", ".")
    git(root, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},third/two")
    git(root, "commit", "--quiet", "-m", "one")
    commit = git(root, "rev-parse", "HEAD").strip()
    (root / "a.cpp").write_text("int changed;\n")
    (root / "new.cpp").write_text("int new;\n")
    blob = git(root, "rev-parse", "HEAD:a.cpp").strip()
    linked = tmp_path / "linked"  # its .git is a file
    git(root, "worktree", "add", "--quiet", str(linked))
    for tree, place in (
        (open_tree(root, "HEAD"), root),
        (open_tree(root / ".git", None), root),
        (open_tree(linked, "HEAD"), linked),
    ):
        assert isinstance(tree, RevisionTree)
        assert (tree.name, tree.source) == (commit, (place / ".git", commit))
        assert tree.files == {".gitmodules", "a.cpp", "b.cpp", "link", "other"}
        assert tree.submodules == ("sub/one", "third/two")
        assert tree.links == {"link": "a.cpp", "other": "b.cpp"}
        texts = [tree.read(path) for path in ("a.cpp", "b.cpp", "gone", "third/two")]
        assert texts == ["int a;\n", "\ufffd\n", None, None]
        assert [tree.digest(path) for path in ("a.cpp", "gone")] == [blob, ""]
    tree = open_tree(root, None)
    assert isinstance(tree, DirectoryTree)
    assert tree.files == {".gitmodules", "a.cpp", "b.cpp", "link", "other", "new.cpp"}
    texts = [tree.read(path) for path in ("a.cpp", "b.cpp", "gone", "link")]
    assert texts == ["int changed;\n", "\ufffd\n", None, "int changed;\n"]
    assert tree.submodules == ("sub/one",)
    assert len({tree.digest(path) for path in ("a.cpp", "new.cpp", "gone")}) == 3
    assert tree.digest("gone") == ""


@pytest.mark.parametrize(
    ("place", "revision", "message"),
    [
        ("none", None, "is not a directory"),
        ("empty", "HEAD", "is not a git directory"),
        ("checkout", "gone", "has no revision 'gone'"),
        ("checkout", "HEAD", "has no commit yet"),
        ("checkout", "", "'' is not a revision"),
        ("checkout", "--all", "'--all' is not a revision"),
        ("checkout", "a\0b", "'a\\x00b' is not a revision"),
    ],
)
def test_a_tree_that_is_not_there_is_refused(
    tmp_path: Path, place: str, revision: str | None, message: str
) -> None:
    for name in ("empty", "checkout"):
        (tmp_path / name).mkdir()
    git(tmp_path / "checkout", "init", "--quiet")
    with pytest.raises(UsageError, match=re.escape(message)):
        open_tree(tmp_path / place, revision)


LEFT_OUT = {
    "nothing is marked": ((), (), ""),
    "the user changes marked files": (("BUCK", "lib/a.cpp"), (), ""),
    "the user deletes a file": ((), ("lib/a.cpp",), ""),
    "the user deletes another file than a marked one": (("BUCK",), ("lib/a.cpp",), ""),
    "one is missing": (("BUCK", "lib/a.cpp"), ("lib/a.cpp",), "lacks lib/a.cpp"),
    "several are missing": (
        ("BUCK", "lib/a.cpp", "lib/b.cpp"),
        ("BUCK", "lib/b.cpp"),
        "lacks BUCK and 1 more",
    ),
}


@pytest.mark.parametrize(("marked", "removed", "message"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_checkout_is_refused_for_what_git_leaves_out_of_it_and_not_for_a_mark(
    tmp_path: Path, marked: Sequence[str], removed: Sequence[str], message: str
) -> None:
    files = {"BUCK": "", "lib/a.cpp": "", "lib/b.cpp": ""}
    checkout = make_checkout(tmp_path / "checkout", files)
    if marked:
        checkout.git("update-index", "--skip-worktree", *marked)
    checkout.write(dict.fromkeys(removed))
    if not message:
        assert open_tree(checkout.root, None).files == files.keys() - {*removed}
        return
    with pytest.raises(UsageError, match=rf"{re.escape(message)}\n") as refused:
        open_tree(checkout.root, None)
    assert "pass --rev HEAD" in refused.value.fix
    assert open_tree(checkout.root, "HEAD").files == files.keys()
    checkout.git(*re.findall(r"`git (.+)`", refused.value.fix)[0].split())
    assert open_tree(checkout.root, None).files == files.keys()


def test_a_checkout_without_some_folders_is_refused_until_they_exist(tmp_path: Path) -> None:
    files = {"BUCK": "", "lib/a.cpp": "", "other/b.cpp": ""}
    checkout = make_checkout(tmp_path / "checkout", files)
    checkout.git("sparse-checkout", "set", "lib")
    with pytest.raises(UsageError, match=r"lacks other/b\.cpp\n"):
        open_tree(checkout.root, None)
    checkout.write({"other/b.cpp": "int b;\n"})
    assert open_tree(checkout.root, None).files == files.keys()


@pytest.mark.parametrize(
    ("why", "message"),
    [("fatal: not a git repository", "git cannot read"), ("", "has no revision 'main'")],
)
def test_a_revision_that_git_cannot_read_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str, message: str
) -> None:
    def fail(*_: object) -> None:
        raise ToolError("git ended", why=why)

    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(trees, "read_commit", fail)
    with pytest.raises(UsageError, match=message) as caught:
        open_tree(tmp_path, "main")
    assert caught.value.why == why


LISTS = """NAMES = ["", 'q']
NUMBERS = [1, 2]
PYTHON = NAMES[:0] + [
    "p/1.cpp",
    "p/2.cpp",
]
"""


def test_source_from_bucks_list_has_its_line_in_it(read: Callable[[Files], CMakeFacts]) -> None:
    program = "exec(open('p/lists.bzl').read());print(';'.join(PYTHON))"
    facts = read(
        {
            "CMakeLists.txt": f'execute_process(COMMAND py -c "{program}" OUTPUT_VARIABLE L'
            " RESULT_VARIABLE status)\nadd_library(lib ${L} a.cpp)\n"
            "if(status)\n  add_library(failed a.cpp)\nendif()\n",
            "p/lists.bzl": LISTS,
            **dict.fromkeys(("a.cpp", "p/1.cpp", "p/2.cpp"), ""),
        }
    )
    (target,) = facts.targets
    assert [(src.path, str(src.place)) for src in target.srcs] == [
        ("p/1.cpp", "p/lists.bzl:4"),
        ("p/2.cpp", "p/lists.bzl:5"),
        ("a.cpp", "CMakeLists.txt:2"),
    ]


@pytest.mark.parametrize(
    ("path", "name", "output", "reasons"),
    [
        ("lists.bzl", "PYTHON", "", []),
        ("lists.bzl", "NUMBERS", "L", []),
        ("lists.bzl", "OTHER", "L", ["lists.bzl has no list OTHER"]),
        ("gone.bzl", "file", "L", ["gone.bzl is not evaluated: the file is not in the tree"]),
        ("gone.bzl", "file", "", []),
        ("bad.bzl", "PYTHON", "L", ["bad.bzl is not evaluated: fail: no"]),
        ("worse.bzl", "PYTHON", "L", ["worse.bzl is not evaluated: Parse error: "]),
    ],
)
def test_a_list_of_buck_that_cannot_be_used_is_named(
    read: Callable[[Files], CMakeFacts], path: str, name: str, output: str, reasons: list[str]
) -> None:
    program = f"exec(open('{path}').read());print(';'.join({name}))"
    output_option = f" OUTPUT_VARIABLE {output}" if output else ""
    text = f'execute_process(COMMAND py -c "{program}"{output_option})\nadd_library(lib a.cpp)\n'
    lists = {"lists.bzl": LISTS, "bad.bzl": "fail('no')\n", "worse.bzl": "def (\n"}
    facts = read({"CMakeLists.txt": text, "a.cpp": "", **lists})
    assert [
        row.reason[: len(reason)] for row, reason in zip(facts.not_evaluated, reasons, strict=True)
    ] == reasons
    is_bad = path in {"bad.bzl", "worse.bzl"}  # then all of CMake is unknown
    for row in facts.not_evaluated:
        assert (row.folder, row.is_broken) == ("" if is_bad else None, is_bad)
    assert sources(facts) == {("", "lib"): {"a.cpp"}}


def test_the_timer_of_a_match_is_cleared_after_it() -> None:
    assert search("b+", "abbc")
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


def test_expressions_are_matched_outside_the_main_thread() -> None:
    """Signals, which limit the time of a match, work only in the main thread."""
    matches: list[object] = []
    thread = threading.Thread(target=lambda: matches.append(search("b+", "abbc")))
    thread.start()
    thread.join()
    assert [str(match[0]) for match in matches] == ["bb"]  # type: ignore[index]


TREE = dict.fromkeys(
    ("CMakeLists.txt", "a.cmake", "p/BUCK", "p/f.bzl", "p/a.cpp", "p/a.h", "p/a.py", "version.txt"),
    "1",
) | {"notes.md": "1", ".gitmodules": ""}


@pytest.mark.parametrize(
    ("change", "is_changed"),
    [
        *(({name: "2"}, True) for name in TREE if name not in {"notes.md", ".gitmodules"}),
        ({"notes.md": "2"}, False),
        ({"new.md": ""}, True),
        *(({".gitmodules": f'[submodule "x"]\n\tpath = {path}\n'}, True) for path in "xy"),
    ],
)
def test_a_digest_of_a_tree_is_of_all_that_is_read(change: Files, is_changed: bool) -> None:
    before, after = TextTree(TREE, LAYOUT), TextTree({**TREE, **change}, LAYOUT)
    assert (run.digest_tree(before) != run.digest_tree(after)) is is_changed
    other_project = TextTree(TREE, replace(LAYOUT, project="other"))
    assert run.digest_tree(other_project) != run.digest_tree(before)


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_comparison_is_kept_unless_a_side_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    read_again = 0
    places = (WHOLE if is_whole else Place("p/BUCK", 1), Place("q/BUCK", 1))
    unread = tuple(NotEvaluated("buck", place, "a reason") for place in places)
    rules = [buck("p:lib", "p/a.cpp", "p/b.cpp")]

    def read_facts(*_: object) -> ParityFacts:
        nonlocal read_again
        read_again += 1
        return make_facts(rules, [cmake("lib", "p/a.cpp")], not_evaluated=unread)

    monkeypatch.setattr(run, "read_tree", read_facts)
    monkeypatch.setattr(run, "KEPT_FILES", 2)
    cache = tmp_path / "cache"
    cache.mkdir()
    for age, name in ((10, "found-new"), (20, "found-old"), (30, "of-the-user")):
        (cache / f"{name}.json").write_text("")
        os.utime(cache / f"{name}.json", (1e9 - age, 1e9 - age))
    tree = TextTree({"p/a.cpp": "", "p/b.cpp": ""}, LAYOUT)
    first, second = (run.compare_whole(tree, ParityPolicy(), cache) for _ in range(2))
    assert first == second
    assert first.not_evaluated == unread
    assert first.counts == {"buck_targets": 1, "cmake_targets": 1, "files": 2}
    assert (first.buck, first.cmake) == (
        {"//p:lib": {"p/a.cpp", "p/b.cpp"}},
        {"lib": {"p/a.cpp"}},
    )
    assert read_again == (2 if is_whole else 1)
    for kept_comparison in set(cache.glob("found-*.json")) - {cache / "found-new.json"}:
        left = {kept_comparison.name, "found-new.json", "of-the-user.json"}
        assert {path.name for path in cache.iterdir()} == left
        kept_comparison.write_text("damaged")
    assert run.compare_whole(tree, ParityPolicy(), cache) == first
    run.compare_whole(tree, ParityPolicy(tests=("x",)), cache)
    assert read_again == (4 if is_whole else 3)
    (tmp_path / "file").touch()
    assert run.compare_whole(tree, ParityPolicy(), tmp_path / "file") == first
