"""Failures by the line of the user's file that they are from, and how each is repeated."""

from __future__ import annotations

import shlex

from ci.report.annotation import Annotation, Level
from ci.report.schema import Case, Place, Report, Status
from ci.report.text import name_some

REASON_CHARS = 500
SHOWN_CASES = 6


def make_annotations(report: Report) -> list[Annotation]:
    """One a line and reason, which names the cases that fail there: a CI system shows few."""
    groups: dict[tuple[Place, str, str], list[Case]] = {}
    for case in report.cases:
        if case.status is Status.FAILED:
            for place in case.places:
                groups.setdefault((place, case.model, shorten(case.reason)), []).append(case)
    return [
        Annotation(
            Level.ERROR,
            f"{reason} ({name_cases(cases)})",
            f"{report.session}: {model}",
            place.file,
            place.line,
        )
        for (place, model, reason), cases in groups.items()
    ]


def shorten(reason: str) -> str:
    """A reason on one line, its fix included."""
    line = " ".join(reason.split())
    return line if len(line) <= REASON_CHARS else f"{line[:REASON_CHARS]}..."


def name_cases(cases: list[Case]) -> str:
    """``8a8w SM8650, fp16 SM8650 and 3 more``."""
    return name_some([f"{case.scheme} {case.soc}" for case in cases], SHOWN_CASES)


def repeat_command(report: Report, case: Case) -> str:
    """What to type at the root of the repository to run a case again; empty where that is not
    known."""
    if not report.command:
        return ""
    words = ("--model", case.model, "--scheme", case.scheme, "--soc", case.soc)
    return f"{report.command} {shlex.join(words)}"
