"""Build files that loop, recurse, fail or do not parse: a named "not evaluated", never a hang."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ci.parity.buck.evaluate import is_too_deep
from ci.parity.compare.findings import Kind, ParityReport
from ci.parity.policy import ParityPolicy
from ci.parity.render import render_document
from ci.parity.run import ParityRequest, compare_source
from tests.unit.ci.parity.conftest import LOAD

GOOD = {
    "p/BUCK": LOAD + 'runtime.cxx_library(name = "lib", srcs = ["a.cpp"])\n',
    "p/a.cpp": "int a;\n",
    "CMakeLists.txt": "add_library(lib p/a.cpp)\n",
}

STARLARK = {
    "loops": ("def f():\n  for i in range(1000000000):\n    pass\n\nf()\n", "cancelled"),
    "recurses": ("def f():\n  f()\n\nf()\n", "stack"),
    "fails": ('fail("no such luck")\n', "no such luck"),
    "fails as for a name": ('fail("Variable `x` not found")\n', "fail: Variable `x` not found"),
    "misses a file": ('load(":gone.bzl", "x")\n', "not in the tree"),
    "misses one of a folder": ('load("//q:gone.bzl", "x")\n', "not in the tree"),
    "does not parse": ("def (:\n", "Parse error"),
    "loads itself": ('load(":round.bzl", "x")\n', "cycle"),
    "divides by zero": ("x = 1 // 0\n", "zero"),
}

CMAKE = {
    "bracket is not closed": ("add_library(other p/a.cpp\n", "no ')'"),
    "bracket is not opened": ("add_library(other p/a.cpp))\n", "expected a command"),
    "string is not closed": ('set(x "abc)\n', "unexpected"),
    "if is not closed": ("if(X)\nset(y 1)\n", "is not closed"),
    "endif without if": ("endif()\n", "endif() without"),
    "crossed blocks": ("if(X)\nforeach(a b)\nendif()\nendforeach()\n", "is closed by endif()"),
    "includes in a circle": ("include(a.cmake)\n", "include each other"),
    "adds itself": ("add_subdirectory(q)\n", "include each other"),
    "calls itself": (
        "function(f)\n  f()\nendfunction()\nf()\n",
        "f() is nested more than 60 levels",
    ),
    "turns without end": ("while(TRUE)\n  set(x 1)\nendwhile()\n", "while() is not evaluated"),
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
    """A file may take a fifth of a second or 10,000 commands, and an expression a tenth."""
    monkeypatch.setattr("ci.parity.buck.evaluate.FILE_LIMIT_S", 0.2)
    monkeypatch.setattr("ci.parity.cmake.interpreter.MOST_STEPS", 10_000)
    monkeypatch.setattr("ci.parity.cmake.values.LIMIT_S", 0.1)


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
    kinds = {finding.kind for finding in result.failing}
    assert kinds == {Kind.UNREAD}, "the other package is compared all the same"


def test_many_loads_in_a_row_do_not_end_the_reader(
    report: Callable[[Mapping[str, str]], ParityReport],
) -> None:
    load = 'load(":{}.bzl", y = "x")\nx = y\n'
    files = {"bad/BUCK": load.format(0), "bad/400.bzl": "x = 1\n"}
    files |= {f"bad/{number}.bzl": load.format(number + 1) for number in range(400)}
    result = report({**GOOD, **files})
    assert "loads are nested too deeply" in reasons(result)
    assert [str(finding.place) for finding in result.failing] == ["bad/BUCK"]


def test_a_cycle_is_named_without_the_files_that_lead_to_it(
    report: Callable[[Mapping[str, str]], ParityReport],
) -> None:
    loads = {"BUCK": "a", "a.bzl": "b", "b.bzl": "c", "c.bzl": "b"}
    files = {f"bad/{name}": f'load(":{loaded}.bzl", "x")\n' for name, loaded in loads.items()}
    reasons_shown = reasons(report({**GOOD, **files}))
    assert "bad/b.bzl -> bad/c.bzl -> bad/b.bzl" in reasons_shown
    assert "bad/a.bzl -> " not in reasons_shown


@pytest.mark.parametrize("name", CMAKE)
def test_cmake_that_does_not_evaluate_is_named(
    name: str, report: Callable[[Mapping[str, str]], ParityReport]
) -> None:
    text, reason = CMAKE[name]

    result = report({**GOOD, **ROUND, "CMakeLists.txt": GOOD["CMakeLists.txt"] + text})

    assert reason in reasons(result)
    assert all(row.place.path for row in result.not_evaluated)


def deep(text: str) -> dict[str, str]:
    """A tree with one more package."""
    return {**GOOD, "bad/BUCK": text}


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "[" * 30_000 + "]" * 30_000 + "\n",
        "x = " + "-" * 30_000 + "1\n",
        "x = " + "+".join(["1"] * 30_000) + "\n",
        "x = str" + "()" * 30_000 + "\n",
        "def f():\n if 1:\n  pass\n" + " elif 1:\n  pass\n" * 30_000,
        "def f():\n" + "".join(" " * i + "if 1:\n" for i in range(1, 3000)) + " " * 3000 + "pass\n",
    ],
    ids=["brackets", "signs", "sum", "calls", "elif", "indent"],
)
def test_deep_starlark_does_not_end_the_reader(
    text: str, report: Callable[[Mapping[str, str]], ParityReport]
) -> None:
    assert "is nested too deeply" in reasons(report(deep(text)))


@pytest.mark.parametrize(
    "text",
    [
        *(f"x = {quote}{'[' * 999}{quote}" for quote in ('"', "'", '"""', "'''")),
        f'x = "{"[" * 99}\\"{"[" * 99}\\\\" + "{"[" * 99}"',
        f'x = """{"[" * 99}"{"[" * 99}\n""{"[" * 99}"""',
        f"x = 1 # {'[' * 999}",
        "x = [" + "1 + 1, " * 999 + "]",
        "x = 1 + 1\n" * 999,
        "def f():\n  pass\n" * 999,
        "]" * 999,
    ],
)
def test_long_or_quoted_starlark_is_not_counted_as_nested(text: str) -> None:
    assert not is_too_deep(text)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    "command",
    [
        'string(REGEX REPLACE "(a+)+$" "" X "{}")',
        'if("{}" MATCHES "(a+)+$")\n  set(X 1)\nendif()',
        'set(X "{}")\nlist(TRANSFORM X APPEND x REGEX "(a|a)*$")',
        f"if(O)\n  set(X a)\nelse()\n  set(X b)\nendif()\nstring(CONCAT Y {'${X} ' * 18})",
    ],
    ids=["replace", "if", "selector", "alternatives"],
)
def test_a_regular_expression_that_backtracks_without_end_is_stopped(
    command: str, pairs: Callable[..., set[tuple[str, str]]]
) -> None:
    text = command.replace("{}", "a" * 60 + "!") + "\n"

    assert pairs({**GOOD, "CMakeLists.txt": text + GOOD["CMakeLists.txt"]}) == set()


def test_glob_patterns_that_backtrack_are_matched_in_bounded_time(
    pairs: Callable[..., set[tuple[str, str]]],
) -> None:
    patterns = f'"{"**/" * 30}{"*a" * 30}!", "{"**/d/" * 7}!", "{"**d" * 7}!"'
    rule = LOAD + f'runtime.cxx_library(name = "bad", headers = glob(["*.h", {patterns}]))\n'
    files = {"bad/BUCK": rule, f"bad/{'d/' * 60}{'a' * 60}.h": "", "bad/x.h": ""}

    pairs({**GOOD, **files})


def test_endless_includes_in_one_directory_do_not_hide_findings_in_others(
    pairs: Callable[..., set[tuple[str, str]]],
) -> None:
    chain = {f"r/c{n}.cmake": f"include(c{n + 1}.cmake)\n" for n in range(200)}
    files = {
        **GOOD,
        **chain,
        "r/CMakeLists.txt": "include(c0.cmake)\n",
        "p/b.cpp": "",
        "CMakeLists.txt": "add_subdirectory(r)\nadd_library(lib p/a.cpp p/b.cpp)\n",
    }

    assert pairs(files) == {
        ("unread-file", "r/CMakeLists.txt"),
        ("cmake-only-source", "p/b.cpp"),
    }


def test_a_path_that_is_not_utf8_does_not_hide_findings(
    plant: Callable[[Mapping[str, str]], Path], tmp_path: Path
) -> None:
    root = tmp_path / os.fsdecode(b"r\xffoot")
    (root / os.fsdecode(b"q\xfe")).mkdir(parents=True)
    for name, text in {**GOOD, os.fsdecode(b"q\xfe/b.cpp"): "", "p/b.cpp": ""}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "CMakeLists.txt").write_text("add_library(lib p/a.cpp p/b.cpp)\n", encoding="utf-8")

    result = compare_source(ParityRequest(source=root), ParityPolicy())

    assert result.unread == ()
    assert [finding.path for finding in result.findings] == ["p/b.cpp"]
    json.dumps(render_document(result)).encode("utf-8")
