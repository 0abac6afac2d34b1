"""Makes the report of a suite's run, with one case per test, and a control for each test that
passed both verdicts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ci.judging.verdict import CaseFigures
from ci.report.schema import Case, Control, ControlKind, Status
from ci.upstream.expectations import Checked, Expectations
from ci.upstream.judged import Ending, Judged

SUITE_ROW = "(whole suite)"
BRIEF = {
    Ending.PASSED: "both",
    Ending.ONE_SIDED: "theirs only",
    Ending.FAILED: "failed",
    Ending.UNSUPPORTED: "unsupported",
    Ending.LATE: "timed out",
}


def make_case(checked: Checked, soc: str) -> Case:
    """Return the report's case for a test. The status is ``failed`` if the result is not the
    expected one, and ``passed`` if the test passed both verdicts. Otherwise it is ``unsupported``,
    because the result is known; JUnit shows this status as skipped."""
    judged = checked.judged
    entry = judged.entry
    if checked.fault:
        status, reason = Status.FAILED, checked.fault
    elif judged.outcome is Ending.PASSED:
        status, reason = Status.PASSED, ""
    else:
        status, reason = Status.UNSUPPORTED, f"{judged.outcome.value}: {judged.reason}"
    if checked.known:
        cause = checked.known.cause
        reason += f"\n  cause: {cause.name} ({cause.fault}): {cause.about}\n  until: {cause.until}"
    lacks = tuple(dict.fromkeys(told for one in judged.ours for told in one.lacks))
    return Case(
        model=judged.test,
        scheme=judged.scheme,
        soc=soc,
        status=status,
        outcome=BRIEF[judged.outcome],
        reason=reason.strip(),
        **worst_figures(judged),
        warnings=lacks if judged.outcome is Ending.PASSED else (),
        run_s=entry.wall_s if entry else None,
        log_tail=entry.log_tail if entry and status is Status.FAILED else "",
        inputs=len(judged.ours),
    )


def worst_figures(judged: Judged) -> dict[str, Any]:
    """Return the figures of the comparison whose error exceeds its prediction by the most. If there
    is no prediction, return those with the lowest SQNR; if there is no comparison, return an empty
    dict."""
    if not judged.ours:
        return {}

    def rank(figures: CaseFigures) -> tuple[float, float]:
        above, sqnr = figures.above_noise_db, figures.sqnr_db
        return (-math.inf if above is None else above, math.inf if sqnr is None else -sqnr)

    return vars(max((one.figures for one in judged.ours), key=rank))


def make_controls(every: Sequence[Judged], soc: str) -> list[Control]:
    """Return a control for each test that passed both verdicts. It states whether the gate rejects
    zeros instead of the test's outputs."""
    return [
        Control(
            model=one.test,
            scheme=one.scheme,
            soc=soc,
            kind=ControlKind.ZEROS,
            rejected=not any(ours.accepts_zeros for ours in one.ours),
        )
        for one in every
        if one.outcome is Ending.PASSED
    ]


def make_suite_case(faults: Sequence[str], soc: str) -> list[Case]:
    """Return a list with one failed case, whose reason lists all faults of the run as a whole.
    Return an empty list if there are no faults."""
    reason = "; ".join(faults)
    fix = "  fix: find the cause, or change policies/upstream.toml and mention it in CHANGELOG.md"
    return [
        Case(model=SUITE_ROW, scheme="-", soc=soc, status=Status.FAILED, reason=f"{reason}\n{fix}")
        for _ in faults[:1]
    ]


def count_outcomes(every: Sequence[Judged]) -> str:
    """Return the number of tests per result, in the order of Ending, such as ``301 passed by both;
    40 passed by theirs, failed by ours; 2 failed; 9 unsupported; 0 timed out``."""
    counts = Counter(one.outcome for one in every)
    return "; ".join(f"{counts[one]} {one.value}" for one in Ending)


def count_causes(every: Sequence[Checked]) -> list[str]:
    """Return one line per cause, with the number of tests whose result it explains. The most
    frequent cause is first. The last line counts the tests that failed one of the verdicts without
    a known cause."""
    causes = Counter(one.known.cause.name for one in every if one.known and not one.fault)
    bad = [one for one in every if one.judged.outcome in {Ending.ONE_SIDED, Ending.FAILED}]
    bare = sum(bool(one.fault) for one in bad)
    lines = [f"cause {name}: {number}" for name, number in causes.most_common()]
    return [*lines, f"failures without a known cause: {bare} of {len(bad)}"]


def check_all(
    every: Sequence[Judged], expectations: Expectations, tests: Sequence[str], *, whole: bool
) -> tuple[list[Checked], list[str]]:
    """Compare the result of each test with the expected one. For a ``whole`` run, also return the
    faults of the suite: too few tests ran, too many are unsupported, or a row matches no test."""
    checked = [expectations.check(one) for one in every]
    if not whole:
        return checked, []
    stale = [f"a row matches no test: {one}" for one in expectations.find_stale(tests)]
    return checked, [*expectations.find_losses(every), *stale]
