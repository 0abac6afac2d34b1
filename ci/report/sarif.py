"""Render annotations as a SARIF 2.1.0 log, for code scanning.

Source: OASIS SARIF 2.1.0, sections 3.4 (artifact locations), 3.11 (messages), 3.13 (log), 3.14
(run), 3.27 (result), 3.49 (rule).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ci.report.annotation import Annotation, Level

SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
TREE = "%SRCROOT%"
LEVELS = {Level.ERROR: "error", Level.WARNING: "warning", Level.NOTICE: "note"}
# GitHub refuses a run of more than 25,000 results:
# https://docs.github.com/code-security/reference/code-scanning/sarif-support-for-code-scanning
MAX_RESULTS = 25_000


def render_log(
    name: str, version: str, root: str, rules: Mapping[str, str], results: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return a SARIF log with one run. It contains at most the first MAX_RESULTS of ``results``.

    ``rules`` maps ids to descriptions, and ``root`` describes the directory that paths are relative
    to.
    """
    driver = {
        "name": name,
        "version": version,
        "rules": [{"id": rule, "shortDescription": {"text": rules[rule]}} for rule in rules],
    }
    return {
        "$schema": SCHEMA_URI,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": driver},
                "originalUriBaseIds": {TREE: {"description": {"text": root}}},
                "columnKind": "utf16CodeUnits",
                "results": results[:MAX_RESULTS],
            }
        ],
    }


def render_annotations(
    rules: Sequence[str], annotations: Iterable[Annotation]
) -> list[dict[str, Any]]:
    """Return a result for each annotation. Its rule is the annotation's finding, which is one of
    ``rules``. Its fingerprint does not depend on the line number.
    """
    return [
        {
            "ruleId": one.finding,
            "ruleIndex": rules.index(one.finding),
            "level": LEVELS[one.level],
            "message": render_message(f"{one.title}: {one.message}"),
            "locations": [render_location(one.path, one.line)],
            "partialFingerprints": {
                f"{one.finding}/v1": fingerprint(one.path, one.title, one.identity or one.message)
            },
        }
        for one in annotations
    ]


def fingerprint(*words: str) -> str:
    """Return the digest that identifies a result across runs."""
    return hashlib.sha256("\n".join(words).encode("utf-8", "replace")).hexdigest()[:32]


def render_message(text: str) -> dict[str, str]:
    """Return a message of plain text. Braces are doubled, because they would start a
    placeholder."""
    return {"text": text.replace("{", "{{").replace("}", "}}")}


def render_location(path: str, line: int) -> dict[str, Any]:
    """Return the location of a line. ``path`` is relative to the tree, or absolute for a file
    outside it.
    """
    return {
        "physicalLocation": {
            "artifactLocation": render_artifact(path),
            "region": {"startLine": max(line, 1)},
        }
    }


def render_artifact(path: str) -> dict[str, str]:
    """Return ``path`` as a URI: relative to the tree, or absolute for a file outside it."""
    if path.startswith("/"):
        return {"uri": "file://" + quote(path)}
    return {"uri": quote(path), "uriBaseId": TREE}
