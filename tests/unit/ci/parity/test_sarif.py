"""SARIF as the standard wants it, and documents that it does not want.

tests/artifacts/parity/sarif.schema.json has what concerns our documents. With SARIF_SCHEMA, the
path of OASIS's sarif-schema-2.1.0.json, they are judged by the whole of it too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ci.parity.compare.findings import ParityReport
from ci.parity.render import render_sarif
from ci.report.annotation import render_artifact, render_location, render_log
from tests.unit.ci.parity.conftest import LOAD

OURS = Path(__file__).resolve().parents[3] / "artifacts/parity/sarif.schema.json"
WHOLE = os.environ.get("SARIF_SCHEMA", "")
# A note without a second place, an error with two, and names that a URI and a message must quote.
FILES = {
    "p/BUCK": LOAD + 'runtime.cxx_library(name = "lib", srcs = ["a.cpp"] + glob(["{x}*.cpp"]))\n',
    "p/a.cpp": "int a;\n",
    "p/b c#ü%20.cpp": "int b;\n",
    "CMakeLists.txt": 'add_library(lib p/a.cpp "p/b c#ü%20.cpp" p/gone.cpp)\n',
}


@pytest.fixture
def log(report: Callable[[Mapping[str, str]], ParityReport]) -> dict[str, Any]:
    """The document of a miniature tree."""
    document: dict[str, Any] = json.loads(json.dumps(render_sarif(report(FILES), "1.0")))
    return document


def judge(document: object, schema: Path = OURS) -> list[str]:
    """What a schema says of a document."""
    rules = json.loads(schema.read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(rules)(rules)
    return [error.message for error in validator.iter_errors(document)]


def test_our_documents_are_what_the_standard_wants(log: dict[str, Any]) -> None:
    assert judge(log) == []
    (run,) = log["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert {r["ruleId"] for r in run["results"]} == {
        "cmake-only-source", "missing-file", "empty-glob",
    }  # fmt: skip
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in run["results"])


@pytest.mark.skipif(not WHOLE, reason="SARIF_SCHEMA does not name sarif-schema-2.1.0.json")
def test_our_documents_pass_the_whole_schema(log: dict[str, Any]) -> None:
    assert judge(log, Path(WHOLE)) == []


def test_a_file_outside_of_the_tree_has_a_whole_uri() -> None:
    assert render_artifact("/usr/share/cmake/My Module.cmake") == {
        "uri": "file:///usr/share/cmake/My%20Module.cmake"
    }
    assert render_location("p/b c.cpp", 3)["physicalLocation"]["artifactLocation"] == {
        "uri": "p/b%20c.cpp",
        "uriBaseId": "%SRCROOT%",
    }


def test_a_log_has_no_more_results_than_github_takes() -> None:
    for many in (25_000, 25_001):
        (run,) = render_log("name", "1", "root", {"R": "rule"}, [{}] * many)["runs"]
        assert len(run["results"]) == 25_000
