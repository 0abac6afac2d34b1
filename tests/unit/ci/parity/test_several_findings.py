"""A report of several findings, sides and notes: each is told once, under its own side and line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci.parity.compare.findings import Finding, Kind, Level, ParityReport, order_findings
from ci.parity.facts import WHOLE, Configuration, NotEvaluated, Place
from ci.parity.render import make_annotations, render_document, render_sarif, render_table

BUCK, CMAKE = Place("p/BUCK", 3), Place("CMakeLists.txt", 9)
FIRST = Finding(
    *(Kind.CMAKE_ONLY, "p/a.cpp", "only CMake compiles it"),
    buck_target="//p:lib",
    cmake_target="lib",
    configuration=[*Configuration][-1],
    buck_place=BUCK,
    cmake_place=CMAKE,
    fix="add it.",
)
SECOND = Finding(Kind.CMAKE_ONLY, "p/b.cpp", "so is it", cmake_target="lib", cmake_place=CMAKE)
THIRD = Finding(Kind.MISSING, "p/c.cpp", "it is missing", Level.WARNING, buck_place=BUCK)
NOTES = tuple(Finding(Kind.HEADER, f"p/{n}.h", "a note", Level.NOTE) for n in range(2))
ROWS = (
    NotEvaluated("buck", Place("p/BUCK", 1), "why", "p"),
    NotEvaluated("cmake", WHOLE, "no cmake", ""),
)
COUNTED = "6 Buck targets, 7 CMake targets, 8 files"
REPORT = ParityReport(
    *("tree", (), "", (FIRST, SECOND, THIRD, *NOTES), 4, 5, ROWS),
    {"buck_targets": 6, "cmake_targets": 7, "files": 8},
)


def test_every_finding_is_in_the_table_with_both_sides() -> None:
    where = f"p/a.cpp [{FIRST.configuration.value}]" if FIRST.configuration else ""
    rows = [" ".join(line.split()) for line in render_table(REPORT).splitlines()]
    assert rows == [
        "cmake-only-source (2)",
        f"{where}: only CMake compiles it",
        "buck p/BUCK:3 //p:lib",
        "cmake CMakeLists.txt:9 lib",
        "fix add it.",
        "p/b.cpp: so is it",
        "cmake CMakeLists.txt:9 lib",
        "",
        f"{Kind.MISSING.value} (1)",
        "p/c.cpp: it is missing",
        "buck p/BUCK:3",
        "",
        "not evaluated (2)",
        "buck p/BUCK:1: why",
        "cmake .: no cmake",
        "",
        f"the cmake side was NOT READ, 3 findings, 2 notes (--notes), 5 allowed; {COUNTED}",
    ]
    noted = render_table(replace(REPORT, base="main"), notes=True)
    assert f"{Kind.HEADER.value} (2)" in noted
    assert ", 3 new findings, 4 also in main, 5 allowed; 6 Buck" in noted
    one = replace(REPORT, findings=(SECOND, NOTES[0]), allowed=0, not_evaluated=ROWS[:1])
    assert "\n1 finding, 1 note (--notes); 6 Buck" in render_table(one)


def test_the_counts_of_a_document_are_each_their_own() -> None:
    document = render_document(REPORT)
    counts = {"findings": 5, "failing": 3, "notes": 2, "old": 4, "allowed": 5}
    assert counts.items() <= document["counts"].items()
    assert document["counts"]["by_kind"] == {
        Kind.CMAKE_ONLY.value: 2,
        Kind.MISSING.value: 1,
        Kind.HEADER.value: 2,
    }
    assert [one["path"] for one in document["findings"]][:3] == ["p/a.cpp", "p/b.cpp", "p/c.cpp"]
    assert [(one["side"], one["reason"]) for one in document["not_evaluated"]] == [
        ("buck", "why"),
        ("cmake", "no cmake"),
    ]


def test_a_finding_of_both_sides_has_two_lines_in_sarif() -> None:
    first, second, third, *_ = render_sarif(REPORT, "1")["runs"][0]["results"]
    assert "Fix: add it." in first["message"]["text"]
    places = [
        [one["physicalLocation"]["artifactLocation"]["uri"] for one in rows]
        for rows in (first["locations"], first["relatedLocations"], second["locations"])
    ]
    assert places == [["p/BUCK"], ["CMakeLists.txt"], ["CMakeLists.txt"]]
    assert [one["level"] for one in (first, second, third)] == ["error", "error", "warning"]
    assert first["ruleIndex"] == second["ruleIndex"] != third["ruleIndex"]


def test_every_failing_finding_and_unread_side_is_an_annotation() -> None:
    found = make_annotations(REPORT)
    assert [one.path for one in found] == ["", "p/BUCK", "CMakeLists.txt", "p/BUCK"]
    assert [one.message for one in found[:3]] == [
        "the cmake side was not read: no cmake",
        "p/a.cpp: only CMake compiles it. add it",
        "p/b.cpp: so is it",
    ]
    assert [one.level.value for one in found] == ["error", "error", "error", "warning"]
    unread = (*ROWS, NotEvaluated("buck", WHOLE, "no buck", ""))
    assert [one.message for one in make_annotations(replace(REPORT, not_evaluated=unread))[:3]] == [
        "the cmake side was not read: no cmake",
        "the buck side was not read: no buck",
        "p/a.cpp: only CMake compiles it. add it",
    ]
    assert "NOT READ, the buck side was NOT READ, 3" in render_table(
        replace(REPORT, not_evaluated=unread)
    )


@pytest.mark.parametrize("order", [1, -1])
def test_findings_are_in_order_of_kind_path_and_detail_and_none_is_twice(order: int) -> None:
    other = Finding(Kind.CMAKE_ONLY, "p/b.cpp", "again", detail="x")
    again = Finding(Kind.CMAKE_ONLY, "p/b.cpp", "the same with another line", cmake_place=BUCK)
    found = order_findings([*[THIRD, other, SECOND, FIRST][::order], again])
    assert found == [FIRST, SECOND, other, THIRD]
