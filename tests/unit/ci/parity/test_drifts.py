"""Drifts that a change introduces into a small tree: what breaks a build fails the gate."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path

import pytest

from ci.parity.compare.findings import ParityReport
from ci.parity.policy import ParityPolicy
from ci.parity.run import ParityRequest, compare_trees
from tests.stand_ins.text_tree import TextTree
from tests.unit.ci.parity.conftest import LAYOUT, LOAD

TESTS = ParityPolicy(tests=("**/test/**",))
P_BUCK = """runtime.cxx_library(
    name = "p",
    srcs = ["a.cpp", "b.cpp"],
    exported_headers = ["a.h", "b.h"],
    exported_deps = ["//executorch/q:q"],
    exported_preprocessor_flags = ["-DFAST"],
)
runtime.cxx_test(
    name = "t",
    srcs = ["test/t.cpp"],
    deps = [":p"],
)
"""
M_BUCK = """runtime.cxx_binary(
    name = "m",
    srcs = ["m.cpp", "n.cpp"],
    deps = ["//executorch/p:p"],
)
runtime.cxx_binary(
    name = "m2",
    srcs = [
        "m.cpp",
        "n.cpp",
    ],
    deps = ["//executorch/p:p"],
)
runtime.python_library(
    name = "py",
    srcs = ["one.py", "two.py"],
)
"""
CMAKE = """add_subdirectory(q)
add_library(p p/a.cpp p/b.cpp)
target_link_libraries(p PUBLIC q)
target_compile_definitions(p PUBLIC FAST)
add_executable(m m/m.cpp m/n.cpp)
target_link_libraries(m p q)
add_executable(m2 m/m.cpp m/n.cpp)
target_link_libraries(m2 PRIVATE p)
add_executable(t_test p/test/t.cpp)
target_link_libraries(t_test p)
"""
TREE = {
    "p/BUCK": LOAD + P_BUCK,
    "p/a.cpp": "#include <executorch/p/a.h>\n",
    "p/b.cpp": "#include <executorch/p/b.h>\n",
    "p/a.h": "#include <executorch/q/q.h>\n",
    "p/b.h": "",
    "p/test/t.cpp": "#include <executorch/p/b.h>\n",
    "q/BUCK": LOAD
    + 'runtime.cxx_library(name = "q", srcs = ["q.cpp"], exported_headers = ["q.h"])\n',
    "q/q.cpp": "",
    "q/q.h": "",
    "q/CMakeLists.txt": "add_library(q q.cpp)\n",
    "m/BUCK": LOAD + M_BUCK,
    "m/m.cpp": "#include <executorch/p/a.h>\nint x = FAST;\n",
    "m/n.cpp": "",
    "m/one.py": "from executorch.m.two import x\n",
    "m/two.py": "x = 1\n",
    "CMakeLists.txt": CMAKE,
}
Edits = tuple[tuple[str, str, str], ...]
Places = set[tuple[str, str]]
DRIFTS: dict[str, tuple[Edits, Places]] = {
    "a link that each program has too": (
        (("CMakeLists.txt", "target_link_libraries(p PUBLIC q)\n", ""),
         ("CMakeLists.txt", "m2 PRIVATE p", "m2 PRIVATE p q"),
         ("CMakeLists.txt", "t_test p)", "t_test p q)")),
        {("dependency", "p/BUCK")},
    ),
    "a link with a mistyped name": (
        (("CMakeLists.txt", "p PUBLIC q)", "p PUBLIC qq)"),),
        {("dependency", "p/BUCK")},
    ),
    "a dependency that a header needs": (
        (("p/BUCK", '    exported_deps = ["//executorch/q:q"],\n', ""),),
        {("dependency", "p/BUCK")},
    ),
    "a define that CMake exports no more": (
        (("CMakeLists.txt", "p PUBLIC FAST", "p PRIVATE FAST"),),
        {("define", "p/BUCK")},
    ),
    "a source that is gone, listed twice by Buck": (
        (("m/n.cpp", "", "\0"), ("CMakeLists.txt", "m/m.cpp m/n.cpp", "m/m.cpp"),
         ("CMakeLists.txt", "m/m.cpp m/n.cpp", "m/m.cpp")),
        {("missing-file", "m/n.cpp")},
    ),
    "a module in a folder without a BUCK file": (
        (("lib/x/new.py", "", "x = 1\n"), ("m/two.py", "", "from executorch.lib.x.new import x\n")),
        {("unlisted-file", "lib")},
    ),
    "a package that is only its __init__.py": (
        (("m/sub/__init__.py", "", "x = 1\n"),
         ("m/two.py", "", "from executorch.m.sub import x\n")),
        {("unlisted-file", "m/sub/__init__.py")},
    ),
    "a folder that CMake no longer adds": (
        (("CMakeLists.txt", "add_subdirectory(q)\n", ""),),
        {("unread-file", "q/CMakeLists.txt")},
    ),
    "a header that Buck exports no more": (
        (("p/BUCK", '"a.h", "b.h"', '"a.h"'),),
        {("header", "p/b.h")},
    ),
}  # fmt: skip


def change(edits: Edits) -> dict[str, str]:
    """The tree after some edits: a path, a text and what replaces it; \\0 removes the file."""
    files = dict(TREE)
    for path, old, new in edits:
        assert old in files.get(path, ""), (path, old)
        files[path] = files[path].replace(old, new, 1) if old else files.get(path, "") + new
        if new == "\0":
            del files[path]
    return files


def compare(files: Mapping[str, str], policy: ParityPolicy = TESTS) -> ParityReport:
    request = ParityRequest(Path(), base="base", today=date(2026, 1, 1))
    base = TextTree(TREE, LAYOUT)
    return compare_trees(TextTree(files, LAYOUT), base, request, policy)


def test_the_tree_has_no_drift() -> None:
    request = ParityRequest(Path(), today=date(2026, 1, 1))
    report = compare_trees(TextTree(TREE, LAYOUT), None, request, TESTS)
    assert report.failing == ()


@pytest.mark.parametrize("name", DRIFTS)
def test_a_drift_fails_the_gate(name: str) -> None:
    edits, places = DRIFTS[name]
    assert {(f.kind.value, f.path) for f in compare(change(edits)).failing} >= places


def test_an_empty_init_is_not_missed() -> None:
    files = change((("m/sub/__init__.py", "", "# no code\n"),
                    ("m/two.py", "", "import executorch.m.sub\n")))  # fmt: skip
    assert compare(files).failing == ()
