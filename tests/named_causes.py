"""What a red case says of its cause, compared with what is true of it."""

from __future__ import annotations

import re

from ci.facts.finding import Certainty
from ci.report.schema import Case, Status

GREEN, RIGHT, WRONG, UNKNOWN = "green", "right", "wrong", "unknown"
NAMED = {Certainty.PROVEN, Certainty.KNOWN, Certainty.MEASURED, Certainty.LIKELY}
# What restates the finding, and names no cause.
RESTATED = ("quantization lost the accuracy",)


def judge_cause(case: Case, pattern: str) -> tuple[str, str]:
    """What a case says of its cause, and whether that is RIGHT: each cause that is named matches
    the pattern. GREEN is a case that has passed."""
    if case.judgement.status is not Status.FAILED:
        return GREEN, GREEN
    finding = case.judgement.findings[0]
    named = [
        f"{cause.certainty.value}: {cause.text}"
        for cause in finding.causes
        if cause.certainty in NAMED and not cause.text.startswith(RESTATED)
    ]
    if not named:
        return " ".join(cause.text for cause in finding.causes) or finding.headline, UNKNOWN
    is_right = all(re.search(pattern, text, re.IGNORECASE) for text in named)
    return "; ".join(named), RIGHT if is_right else WRONG
