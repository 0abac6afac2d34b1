"""The report as SARIF 2.1.0, for code scanning.

Source: OASIS SARIF 2.1.0, sections 3.4 (artifact locations), 3.11 (messages), 3.13 (log), 3.14
(run), 3.27 (result), 3.49 (rule).
"""

from __future__ import annotations

import hashlib
from typing import Any
from urllib.parse import quote

from ci.parity.compare.findings import Finding, Kind
from ci.parity.facts import Place
from ci.parity.report import ParityReport

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
TREE = "%SRCROOT%"
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
    Kind.BUILD: "A target that buck2 does not build.",
    Kind.UNREAD: "A build file that could not be read.",
    Kind.STALE: "An entry of the allow-list that has no effect.",
}


def render_sarif(report: ParityReport, version: str) -> dict[str, Any]:
    """The report as one SARIF run; ``version`` is this tool's."""
    kinds = list(RULES)
    return {
        "$schema": SCHEMA_URI,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "executorch-qnn-ci parity",
                        "version": version,
                        "rules": [
                            {"id": kind.value, "shortDescription": {"text": RULES[kind]}}
                            for kind in kinds
                        ],
                    }
                },
                "originalUriBaseIds": {
                    TREE: {"description": {"text": "The root of the tree that was compared."}}
                },
                "columnKind": "utf16CodeUnits",
                "results": [render_result(f, kinds.index(f.kind)) for f in report.findings],
            }
        ],
    }


def render_result(finding: Finding, rule_index: int) -> dict[str, Any]:
    """One finding; its fingerprint does not depend on line numbers."""
    places = [p for p in (finding.buck_place, finding.cmake_place) if p] or [finding.place]
    text = f"{finding.path}: {finding.message}"
    if finding.fix:
        text += f". Fix: {finding.fix}"
    digest = hashlib.sha256("\n".join(finding.key).encode()).hexdigest()[:32]
    return {
        "ruleId": finding.kind.value,
        "ruleIndex": rule_index,
        "level": finding.level.value,
        "message": render_message(text),
        "locations": [render_location(places[0])],
        "relatedLocations": [
            {**render_location(place), "message": {"text": "the CMake side"}}
            for place in places[1:]
        ],
        "partialFingerprints": {"parity/v1": digest},
    }


def render_message(text: str) -> dict[str, str]:
    """A plain text; a brace would begin a placeholder, so it stands twice."""
    return {"text": text.replace("{", "{{").replace("}", "}}")}


def render_location(place: Place) -> dict[str, Any]:
    """A line of a file of the tree, or of CMake's own modules outside of it."""
    return {
        "physicalLocation": {
            "artifactLocation": render_artifact(place.path),
            "region": {"startLine": max(place.line, 1)},
        }
    }


def render_artifact(path: str) -> dict[str, str]:
    """A path as a URI: relative to the tree, absolute outside of it."""
    if path.startswith("/"):
        return {"uri": "file://" + quote(path)}
    return {"uri": quote(path), "uriBaseId": TREE}
