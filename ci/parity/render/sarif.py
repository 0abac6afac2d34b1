"""The report as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

from typing import Any

from ci.parity.compare.findings import Finding, Kind
from ci.parity.report import ParityReport
from ci.report.sarif import fingerprint, render_location, render_log, render_message

ROOT = "The root of the tree that was compared."
RULES: dict[Kind, str] = {
    Kind.CMAKE_ONLY: "A source that CMake compiles and Buck does not list.",
    Kind.BUCK_ONLY: "A source that Buck compiles and CMake does not list.",
    Kind.MISSING: "A listed file that is not in the tree.",
    Kind.EMPTY_GLOB: "A glob pattern that matches nothing.",
    Kind.DUPLICATE_SOURCE: "A source that one target lists twice.",
    Kind.DUPLICATE_TARGET: "Two targets of one name.",
    Kind.DEPENDENCY: "A dependency that only one side has.",
    Kind.DEFINE: "A define that only one side sets.",
    Kind.VARIANT: "A variant for one platform that uses the other platform's file.",
    Kind.HEADER: "A public header that no Buck target exports.",
    Kind.INCLUDE: "An include that only a directory of CMake's resolves.",
    Kind.UNLISTED: "A source that neither side lists, beside sources that are listed.",
    Kind.UNREAD: "A build file that could not be read.",
    Kind.STALE: "An entry of the allow-list that has no effect.",
}


def render_sarif(report: ParityReport, version: str) -> dict[str, Any]:
    """The report as one SARIF run; ``version`` is this tool's."""
    kinds = list(RULES)
    results = [render_result(finding, kinds.index(finding.kind)) for finding in report.findings]
    rules = {kind.value: RULES[kind] for kind in kinds}
    return render_log("executorch-qnn-ci parity", version, ROOT, rules, results)


def render_result(finding: Finding, rule_index: int) -> dict[str, Any]:
    """One finding; its fingerprint does not depend on line numbers."""
    places = [p for p in (finding.buck_place, finding.cmake_place) if p] or [finding.place]
    text = f"{finding.path}: {finding.message}"
    if finding.fix:
        text += f". Fix: {finding.fix}"
    return {
        "ruleId": finding.kind.value,
        "ruleIndex": rule_index,
        "level": finding.level.value,
        "message": render_message(text),
        "locations": [render_location(places[0].path, places[0].line)],
        "relatedLocations": [
            {**render_location(place.path, place.line), "message": {"text": "the CMake side"}}
            for place in places[1:]
        ],
        "partialFingerprints": {"parity/v1": fingerprint(*finding.key)},
    }
