"""Annotations: messages for lines of the user's files, independent of the format of a CI system.

A failed case is annotated at each line that caused the failure. This module also returns the
command that repeats a case, and renders annotations as a SARIF 2.1.0 log, for code scanning.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import quote

from ci.facts.finding import Cause, Finding, Place, show_brief
from ci.report.schema import Case, Report, Status
from ci.report.text import name_models, name_some
from provisioning.console.terminal import defuse_commands

# Characters that end a line or control a terminal, and bytes of a name that are not UTF-8.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Level(Enum):
    """The severity of an annotation. The values are names of GitHub's workflow commands."""

    ERROR = "error"
    WARNING = "warning"
    NOTICE = "notice"


@dataclass(frozen=True)
class Annotation:
    """A one-line message for a line of a file. ``path`` is empty if the message belongs to no file,
    and ``line`` is 0 if it belongs to no line."""

    level: Level
    message: str
    title: str = ""
    path: str = ""
    line: int = 0
    finding: str = ""  # the id of the finding, or "" if it has none
    causes: tuple[Cause, ...] = ()  # of the finding
    identity: str = ""  # what the same finding says in another run; by default its message

    def plain(self) -> str:
        """Return ``FILE:LINE: error: MESSAGE [TITLE]``, the format of a compiler's message."""
        where = f"{self.path}:{max(self.line, 1)}: " if self.path else ""
        title = f" [{self.title}]" if self.title else ""
        return safe_line(f"{where}{self.level.value}: {self.message}{title}")


def one_line(text: str) -> str:
    r"""Return ``text`` with each unprintable character escaped, such as ``\n``."""
    return UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def safe_line(text: str) -> str:
    """Return ``text`` as one line that no CI system interprets as a command."""
    line = defuse_commands(one_line(text))
    return line.replace("::", ": :", 1) if line.lstrip().startswith("::") else line


SHOWN_CASES = 6


def make_annotations(report: Report) -> list[Annotation]:
    """Group the findings of failed cases by line, model and cause, and return an annotation for
    each group. Its message names up to SHOWN_CASES of the cases.

    Cases share an annotation because CI systems show only a few annotations per run.
    """
    groups: dict[tuple[Place, str, tuple[object, ...]], list[tuple[Finding, Case]]] = {}
    names = name_models(case.model for case in report.cases)
    for case in report.cases:
        if case.judgement.status is Status.FAILED:
            for finding in case.judgement.findings:
                for place in finding.places:
                    key = (place, case.model, finding.kin)
                    groups.setdefault(key, []).append((finding, case))
    annotations = []
    for (place, model, kin), pairs in groups.items():
        first, _ = pairs[0]
        labels = [f"{case.scheme} {case.soc}" for _, case in pairs]
        annotations.append(
            Annotation(
                Level.ERROR,
                f"{show_brief(first)} ({name_some(labels, SHOWN_CASES)})",
                f"{report.session}: {names[model]}",
                place.file,
                place.line,
                first.id,
                first.causes,
                " ".join(map(str, kin[:3])),
            )
        )
    return annotations


SCHEMA_URI = "https://json.schemastore.org/sarif-2.1.0.json"
TREE = "%SRCROOT%"
OWN_TOOL = "executorch-qnn-ci"
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
    described = [{"id": rule, "shortDescription": {"text": rules[rule]}} for rule in rules]
    driver = {"name": name, "version": version, "rules": described}
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {TREE: {"description": {"text": root}}},
        "columnKind": "utf16CodeUnits",
        "results": results[:MAX_RESULTS],
    }
    return {"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]}


def render_annotations(
    rules: Sequence[str], annotations: Iterable[Annotation]
) -> list[dict[str, Any]]:
    """Return a result for each annotation. Its rule is the annotation's finding, which is one of
    ``rules``. Its fingerprint does not depend on the line number."""
    return [
        {
            "ruleId": annotation.finding,
            "ruleIndex": rules.index(annotation.finding),
            "level": LEVELS[annotation.level],
            "message": render_message(f"{annotation.title}: {annotation.message}"),
            "locations": [render_location(annotation.path, annotation.line)],
            # GitHub takes a result with another fingerprint for a new one.
            "partialFingerprints": {
                f"{annotation.finding}/v1": fingerprint(
                    annotation.path, annotation.title, annotation.identity or annotation.message
                )
            },
            **({"properties": describe_causes(annotation.causes)} if annotation.causes else {}),
        }
        for annotation in annotations
    ]


def describe_causes(causes: Sequence[Cause]) -> dict[str, Any]:
    """Return the properties of a result with causes: how certain the best known one is, which is
    the first, and each of them with its own certainty."""
    return {
        "certainty": causes[0].certainty.value,
        "causes": [{"text": cause.text, "certainty": cause.certainty.value} for cause in causes],
    }


def fingerprint(*words: str) -> str:
    """Return the digest that identifies a result across runs."""
    return hashlib.sha256("\n".join(words).encode("utf-8", "replace")).hexdigest()[:32]


def render_message(text: str) -> dict[str, str]:
    """Return a message of plain text. Braces are doubled, because they would start a
    placeholder."""
    return {"text": text.replace("{", "{{").replace("}", "}}")}


def render_location(path: str, line: int) -> dict[str, Any]:
    """Return the location of a line. ``path`` is relative to the tree, or absolute for a file
    outside it."""
    outside = path.startswith("/")
    artifact = (
        {"uri": "file://" + quote(path)} if outside else {"uri": quote(path), "uriBaseId": TREE}
    )
    region = {"startLine": max(line, 1)}
    return {"physicalLocation": {"artifactLocation": artifact, "region": region}}
