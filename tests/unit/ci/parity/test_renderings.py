"""The same report as a table, JSON, SARIF and annotations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from ci.parity.compare.findings import Finding, Kind, Level, ParityReport
from ci.parity.facts import WHOLE, Configuration, NotEvaluated, Place
from ci.parity.render import Changes, make_annotations, make_document, render_document, render_sarif
from ci.parity.run import changed_lines
from ci.report.annotation import render_location, render_log
from ci.report.document import render_text
from ci.report.providers import Provider
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.ci.parity.conftest import LOAD

DRIFTED = {
    "p/BUCK": LOAD + 'runtime.cxx_library(\n    name = "lib",\n    srcs = ["a.cpp"],\n)\n',
    "p/a.cpp": "int a;\n",
    "p/b.cpp": "int b;\n",
    "CMakeLists.txt": "add_library(lib\n  p/a.cpp\n  p/b.cpp\n)\n",
}


@pytest.fixture
def drifted(report: Callable[[Mapping[str, str]], ParityReport]) -> ParityReport:
    """A report with one finding."""
    return report(DRIFTED)


def test_a_fingerprint_survives_moved_lines(
    drifted: ParityReport, report: Callable[[Mapping[str, str]], ParityReport]
) -> None:
    moved = report(DRIFTED | {"CMakeLists.txt": "# one\n# two\n" + DRIFTED["CMakeLists.txt"]})

    def prints(parity_report: ParityReport) -> list[object]:
        return [
            r["partialFingerprints"] for r in render_sarif(parity_report, "1")["runs"][0]["results"]
        ]

    assert prints(moved) == prints(drifted)
    assert moved.findings != drifted.findings


def render_annotations(report: ParityReport, changed: Changes | None = None) -> str:
    provider = Provider({"GITHUB_ACTIONS": "true"})
    return provider.annotate(make_annotations(replace(report, changed=changed)))


def test_changed_lines_are_those_that_are_new_or_where_some_went_away() -> None:
    assert changed_lines("a\nb\nc\n", "a\nb\nc\n") == frozenset()
    assert changed_lines("a\nb\nc\n", "a\nx\nb\ny\n") == {2, 4}
    assert changed_lines("a\nb\nc\n", "a\nc\n") == {2}


def test_the_json_of_parity_fits_its_schema(drifted: ParityReport) -> None:
    path = Path(__file__).parents[4] / "docs" / "schemas" / "parity.schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))

    jsonschema.validate(render_document(drifted), schema)
    kinds = schema["$defs"]["finding"]["properties"]["kind"]["enum"]
    assert set(kinds) == {kind.value for kind in Kind}


def test_sarif_fits_the_oasis_schema(
    report: Callable[[Mapping[str, str]], ParityReport],
) -> None:
    """The schema in tests/artifacts is the part of OASIS's that concerns our documents."""
    library = 'runtime.cxx_library(name = "lib", srcs = ["a.cpp"] + glob(["{x}*.cpp"]))\n'
    files = {
        "p/BUCK": LOAD + library,
        **dict.fromkeys(("p/a.cpp", "p/b c#ü%20.cpp"), "int a;\n"),
        "CMakeLists.txt": 'add_library(lib p/a.cpp "p/b c#ü%20.cpp" p/gone.cpp)\n',
    }
    log = json.loads(json.dumps(render_sarif(report(files), "1.0")))
    path = Path(__file__).resolve().parents[3] / "artifacts/parity/sarif.schema.json"
    jsonschema.validate(log, json.loads(path.read_text("utf-8")))
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert {result["ruleId"] for result in run["results"]} == {
        *("cmake-only-source", "missing-file", "empty-glob")
    }
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])
    for name, artifact in {
        "/usr/share/My Module.cmake": {"uri": "file:///usr/share/My%20Module.cmake"},
        "p/b c.cpp": {"uri": "p/b%20c.cpp", "uriBaseId": "%SRCROOT%"},
    }.items():
        assert render_location(name, 3)["physicalLocation"]["artifactLocation"] == artifact
    (run,) = render_log("name", "1", "root", {"R": "rule"}, [{}] * 25_001)["runs"]
    assert len(run["results"]) == 25_000  # GitHub takes no more


def test_annotations_point_to_a_changed_line(drifted: ParityReport) -> None:
    for changed, place in (
        (None, "p/BUCK,line=3"),
        ({"CMakeLists.txt": {3, 9}}, "CMakeLists.txt,line=3"),
        ({"CMakeLists.txt": {5}}, "CMakeLists.txt,line=5"),
        ({"CMakeLists.txt": {9}, "p/BUCK": {3}}, "p/BUCK,line=3"),
    ):
        text = render_annotations(drifted, changed=changed)
        assert text.startswith(f"::error file={place},title=parity%3A cmake-only-source::p/b.cpp")


PLACES = [Place("p/BUCK", 4), Place("CMakeLists.txt", 7), Place("q/BUCK")]
FINDINGS = (
    Finding(
        Kind.CMAKE_ONLY,
        "p/b.cpp",
        "it is in CMake alone",
        buck_target="//p:lib",
        cmake_target="lib",
        buck_place=PLACES[0],
        cmake_place=PLACES[1],
        fix="add it",
    ),
    Finding(
        Kind.CMAKE_ONLY,
        "p/c.cpp",
        "it is for Android",
        Level.WARNING,
        configuration=Configuration.ANDROID,
        cmake_target="lib",
        cmake_place=PLACES[1],
    ),
    Finding(
        Kind.DEPENDENCY,
        "q/BUCK",
        "it lacks a dependency",
        Level.NOTE,
        "//q:q -> //p:lib",
        buck_target="//q:q",
        buck_place=PLACES[2],
        when_new=Level.WARNING,
    ),
    Finding(Kind.UNLISTED, "r/d.cpp", "it is in neither", Level.NOTE, fix="add it there"),
    Finding(Kind.STALE, "a.toml", "it has no effect", Level.WARNING, "r/**"),
)


def show(report: ParityReport, *, notes: bool = False) -> str:
    return render_text(make_document(report, notes=notes), 100)


def test_a_report_with_two_of_everything_reads_as_its_snapshot() -> None:
    report = ParityReport(
        tree="a tree",
        scope=("p", "q"),
        base="main",
        findings=FINDINGS,
        old=3,
        allowed=2,
        not_evaluated=(
            NotEvaluated("buck", WHOLE, "it ended"),
            NotEvaluated("cmake", Place("q/CMakeLists.txt", 4), "a reason", "q"),
        ),
        counts={"buck_targets": 5, "cmake_targets": 6, "files": 7},
        changed={"p/BUCK": frozenset({1, 9}), "CMakeLists.txt": frozenset({12})},
    )
    plain = ParityReport("a tree", (), "", FINDINGS[:1], 0, 0, ())
    results = render_sarif(report, "1.0")["runs"][0]["results"]
    parts = [
        *(
            show(shown_report, notes=notes)
            for shown_report in (report, plain)
            for notes in (False, True)
        ),
        *(json.dumps(render_document(shown_report), indent=1) for shown_report in (report, plain)),
        *(json.dumps(result, indent=1) for result in results),
        render_annotations(report, report.changed),
        render_annotations(plain),
    ]
    check_snapshot(Path(__file__).parent / "snapshots" / "report.txt", "\n".join([*parts, ""]))


HOSTILE = "p/x\n::error file=a::b\r##[add-mask]\u2028\x1b[2J\u202e.cpp"


def test_a_hostile_file_name_cannot_break_a_line_or_inject_a_workflow_command(
    report: Callable[..., ParityReport],
) -> None:
    files = {**DRIFTED, HOSTILE: "int x;\n"}
    files["CMakeLists.txt"] = "file(GLOB all p/*.cpp)\nadd_library(lib ${all})\n"
    drifted = report(files)
    table, annotations = show(drifted, notes=True), render_annotations(drifted)

    assert [f.path for f in drifted.failing if f.path == HOSTILE]
    assert "p/x\\n::error file=a::b\\r# #[add-mask]\\u2028\\x1b[2J\\u202e.cpp" in table
    assert not [line for line in table.splitlines() if line.strip(" |").startswith("::")]
    assert len(annotations.split("\n")) == len(drifted.failing) + 1
    assert all(line.startswith("::error file=") for line in annotations.splitlines())
    assert "##[" not in annotations


def test_hostile_reason_cannot_inject_workflow_command(report: Callable[..., ParityReport]) -> None:
    table = show(report({**DRIFTED, "q/BUCK": 'fail("a\\n::error::b\\r##[c")\n'}))

    assert not [line for line in table.splitlines() if line.strip().startswith("::")]
