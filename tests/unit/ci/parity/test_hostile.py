"""Build files that loop, recurse, fail or do not parse: a named "not evaluated", never a hang."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from ci.parity.report import ParityReport

LOAD = 'load("@fbsource//xplat/executorch/build:runtime_wrapper.bzl", "runtime")\n'
GOOD = {
    "p/BUCK": LOAD + 'runtime.cxx_library(name = "lib", srcs = ["a.cpp"])\n',
    "p/a.cpp": "int a;\n",
    "CMakeLists.txt": "add_library(lib p/a.cpp)\n",
}

STARLARK = {
    "loops": ("def f():\n  for i in range(1000000000):\n    pass\n\nf()\n", "cancelled"),
    "recurses": ("def f():\n  f()\n\nf()\n", "stack"),
    "fails": ('fail("no such luck")\n', "no such luck"),
    "misses a file": ('load(":gone.bzl", "x")\n', "not in the tree"),
    "does not parse": ("def (:\n", "Parse error"),
    "loads itself": ('load(":round.bzl", "x")\n', "cycle"),
    "divides by zero": ("x = 1 // 0\n", "zero"),
}

CMAKE = {
    "bracket is not closed": ("add_library(other p/a.cpp\n", "no ')'"),
    "bracket is not opened": ("add_library(other p/a.cpp))\n", "expected a command"),
    "string is not closed": ('set(x "abc)\n', "unexpected"),
    "if is not closed": ("if(X)\nset(y 1)\n", "is not closed"),
    "endif without if": ("endif()\n", "without its beginning"),
    "crossed blocks": ("if(X)\nforeach(a b)\nendif()\nendforeach()\n", "ends with"),
    "includes in a circle": ("include(a.cmake)\n", "include each other"),
    "adds itself": ("add_subdirectory(q)\n", "include each other"),
    "calls itself": ("function(f)\n  f()\nendfunction()\nf()\n", "without end"),
    "turns without end": ("while(TRUE)\n  set(x 1)\nendwhile()\n", "turns"),
    "misses an include": ("include(gone.cmake)\n", "not in the tree"),
}
ROUND = {
    "a.cmake": "include(b.cmake)\n",
    "b.cmake": "include(a.cmake)\n",
    "q/CMakeLists.txt": "add_subdirectory(../q)\n",
    "p/round.bzl": 'load(":round2.bzl", "x")\n',
    "p/round2.bzl": 'load(":round.bzl", "x")\n',
}


def reasons(report: ParityReport) -> str:
    """All that was not evaluated, as one text."""
    return "\n".join(f"{row.place}: {row.reason}" for row in report.not_evaluated)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may take a fifth of a second."""
    monkeypatch.setattr("ci.parity.buck.evaluate.FILE_LIMIT_S", 0.2)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("name", STARLARK)
def test_starlark_that_does_not_evaluate_is_named(
    name: str, report: Callable[[Mapping[str, str]], ParityReport]
) -> None:
    text, reason = STARLARK[name]

    result = report({**GOOD, **ROUND, "bad/BUCK": text, "bad/round.bzl": ROUND["p/round.bzl"],
                     "bad/round2.bzl": ROUND["p/round2.bzl"]})  # fmt: skip

    assert reason in reasons(result)
    assert "bad/BUCK" in reasons(result)
    assert not result.failing, "the other package is compared all the same"


@pytest.mark.parametrize("name", CMAKE)
def test_cmake_that_does_not_evaluate_is_named(
    name: str, report: Callable[[Mapping[str, str]], ParityReport]
) -> None:
    text, reason = CMAKE[name]

    result = report({**GOOD, **ROUND, "CMakeLists.txt": GOOD["CMakeLists.txt"] + text})

    assert reason in reasons(result)
    assert all(row.place.path for row in result.not_evaluated)


def test_a_syntax_error_is_placed(report: Callable[[Mapping[str, str]], ParityReport]) -> None:
    result = report({**GOOD, "x/CMakeLists.txt": "set(a b)\n\nset(c\n"})

    assert [str(row.place) for row in result.not_evaluated] == ["x/CMakeLists.txt:3"]


def test_a_target_with_unknown_sources_is_named(
    report: Callable[[Mapping[str, str]], ParityReport],
) -> None:
    cmake = "find_library(WHERE z)\nadd_library(lib p/a.cpp ${WHERE}/z.cpp)\n"

    result = report({**GOOD, "CMakeLists.txt": cmake})

    assert "the sources of lib depend on WHERE" in reasons(result)
