"""The expected results of upstream's tests, from manifests/policies/upstream.toml. Its rows are
grouped by cause.

A row lists tests that are not expected to pass both verdicts, and their expected result. It applies
only to the SoCs and versions of QNN that it lists. The cause states when its rows can be removed. A
test with any other result fails the run, even if the test passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ci.upstream.judged import Ending, Judged
from ci.upstream.suites import match
from provisioning.errors import ManifestError
from provisioning.manifest.reader import read_policy
from provisioning.versions import parse_version

POLICY = "upstream"
WILD = re.compile(r"\[[^\]]*\]|[*?:]")
WORDS = {
    "one-sided": Ending.ONE_SIDED,
    "failed": Ending.FAILED,
    "unsupported": Ending.UNSUPPORTED,
    "timed-out": Ending.LATE,
}


class Row(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the policy. The tests of ``suite`` that match a glob in ``tests`` are expected to
    have the result ``outcome``, with a message of upstream's that matches ``pattern`` and, if our
    gate rejects the outputs, a finding whose id matches the glob ``id``. ``socs`` and ``qnn`` are
    globs for the SoCs and versions of QNN to which the row applies.

    A ``flaky`` test sometimes passes, because its program differs between runs. Its result is
    reported as ``outcome`` even then.
    """

    suite: str
    tests: tuple[str, ...]
    outcome: Literal["one-sided", "failed", "unsupported", "timed-out"]
    id: str = ""
    pattern: str = ""
    socs: tuple[str, ...] = ("*",)
    qnn: tuple[str, ...] = ("*",)
    flaky: bool = False

    def covers(self, suite: str, soc: str, qnn: str, test: str) -> bool:
        """Return whether the row applies to ``test`` in a run of ``suite`` for ``soc`` with
        ``qnn``."""
        if suite != self.suite:
            return False
        return _fits(test, self.tests) and _fits(soc, self.socs) and _fits(qnn, self.qnn)

    def fits(self, judged: Judged) -> bool:
        """Return whether a test ended as the row expects."""
        has_id = not self.id or any(match(finding.id, self.id) for finding in judged.findings)
        has_text = re.search(self.pattern, judged.reason) is not None
        return has_id and has_text and WORDS[self.outcome] is judged.outcome


class Cause(Struct, frozen=True, forbid_unknown_fields=True):
    """The cause of known results."""

    name: str
    # The project at fault.
    fault: Literal["upstream", "executorch", "qnn", "host", "ours", "unknown"]
    about: str  # describes the cause
    reproduce: str  # a command that shows it
    until: str  # the condition for removing the rows
    report: str = ""  # the text of a bug report for the project at fault
    row: tuple[Row, ...] = ()


class Ratchet(Struct, frozen=True, forbid_unknown_fields=True):
    """The limits for a complete run of a suite. At least ``run`` tests must be neither unsupported
    nor timed out, and at most ``unsupported`` tests may be unsupported. A test may take
    ``timeout_s`` seconds, plus twice its duration in ``slow``, which maps globs to seconds."""

    run: int
    unsupported: int
    timeout_s: float
    slow: dict[str, float] = {}

    def expect_s(self, test: str) -> float:
        """Return how many seconds a test takes on an idle machine, according to ``slow``, or 0 if
        no glob in it matches the test."""
        return max((s for glob, s in self.slow.items() if match(test, glob)), default=0.0)


class UpstreamPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of manifests/policies/upstream.toml."""

    suites: dict[str, Ratchet]
    cause: tuple[Cause, ...] = ()


def _fits(name: str, globs: Sequence[str]) -> bool:
    return any(match(name, glob) for glob in globs)


@dataclass(frozen=True)
class Expectation:
    """A row with its cause."""

    cause: Cause
    row: Row


def read_expectations(path: Path | None = None) -> UpstreamPolicy:
    """Return the policy in the file ``path``, by default this project's. Raises ManifestError for a
    row that is invalid or would match every test, and for a cause that needs a report but has
    none."""
    policy = read_policy(POLICY, UpstreamPolicy, path)
    for cause in policy.cause:
        for row in cause.row:
            for fault in find_row_faults(row, policy.suites):
                raise ManifestError(
                    f"policies/{POLICY}.toml, cause {cause.name}: {fault}",
                    why="an invalid row, or one that matches too much, would hide failures that"
                    " have not been examined",
                    fix="name the suite, the tests, their outcome, and the id of our finding or a"
                    " pattern for upstream's message",
                )
        if cause.fault in {"upstream", "executorch", "qnn"} and not cause.report:
            raise ManifestError(
                f"policies/{POLICY}.toml: the cause {cause.name} has no report",
                why=f"`fault` is {cause.fault!r}, so a bug report for that project is required",
                fix="add `report`, the text of the bug report",
            )
    return policy


def find_row_faults(row: Row, suites: Mapping[str, Ratchet]) -> Iterator[str]:
    """Yield the reasons to reject a row of the policy. A valid row has none."""
    if row.suite not in suites:
        yield f"there is no suite {row.suite!r}"
    for glob in row.tests:
        if not WILD.sub("", glob):
            yield f"the glob {glob!r} in 'tests' consists only of wildcards"
    if not row.tests:
        yield f"a row for suite {row.suite!r} has no tests"
    if row.outcome != "timed-out" and not (row.pattern or row.id):
        yield f"a row for suite {row.suite!r} has neither an id nor a pattern"
    try:
        re.compile(row.pattern)
    except re.error as error:
        yield f"pattern {row.pattern!r} is not a regular expression: {error}"


@dataclass(frozen=True)
class Checked:
    """The result of a test, and the row that applies to it, if there is one. ``fault`` states what
    was expected instead, or is empty."""

    judged: Judged
    expectation: Expectation | None = None
    fault: str = ""


class Expectations:
    """The expected results in a run of ``suite`` for ``soc`` with the QNN version ``qnn``."""

    def __init__(self, policy: UpstreamPolicy, suite: str, soc: str, qnn: str) -> None:
        self.policy, self.suite, self.soc = policy, suite, soc
        # The libraries also start their build with a v: rows of a version were never about a run.
        self.qnn = str(parse_version(qnn))  # QNN's libraries add a build number
        self.expectations = [Expectation(cause, row) for cause in policy.cause for row in cause.row]

    def check(self, judged: Judged) -> Checked:
        """Compare the result of a test with the rows that apply to it. If a flaky test passed, its
        result becomes the row's outcome. A test that passes upstream because it expects an error
        needs no row."""
        run = (self.suite, self.soc, self.qnn)
        applying = [
            expectation
            for expectation in self.expectations
            if expectation.row.covers(*run, judged.test)
        ]
        if judged.outcome is Ending.PASSED:
            flaky = next((expectation for expectation in applying if expectation.row.flaky), None)
            if flaky:
                reason = f"flaky: the test passed in this run ({flaky.cause.name})"
                outcome = WORDS[flaky.row.outcome]
                return Checked(replace(judged, outcome=outcome, reason=reason), flaky)
            if not applying:
                return Checked(judged)
            why = f"the test passed, although it is listed under {applying[0].cause.name}"
            return Checked(judged, applying[0], why)
        if judged.entry and judged.entry.refusal and not applying:
            return Checked(judged)  # upstream's test itself asserts the refusal
        for expectation in applying:
            if expectation.row.fits(judged):
                return Checked(judged, expectation)
        if applying:
            row = applying[0].row
            finding = " ".join(filter(None, (row.id, repr(row.pattern) if row.pattern else "")))
            why = f"expected {WORDS[row.outcome].value}, {finding} ({applying[0].cause.name})"
            return Checked(judged, applying[0], why)
        return Checked(judged, None, f"no row of policies/{POLICY}.toml expects this")

    def find_stale(self, tests: Sequence[str]) -> list[str]:
        """Return the globs in this suite's rows that match no test, each preceded by the name of
        its cause."""
        stale = []
        for expectation in self.expectations:
            if expectation.row.suite == self.suite:
                for glob in expectation.row.tests:
                    is_stale = not any(match(test, glob) for test in tests)
                    if is_stale:
                        stale.append(f"{expectation.cause.name}: {glob}")
        return stale

    def find_losses(self, results: Sequence[Judged]) -> list[str]:
        """Return a message for each limit of the suite's Ratchet that a complete run does not meet:
        too few tests ran, or too many are unsupported."""
        ratchet = self.policy.suites[self.suite]
        without = sum(judged.outcome is Ending.UNSUPPORTED for judged in results)
        ran = sum(judged.outcome not in {Ending.UNSUPPORTED, Ending.LATE} for judged in results)
        losses = [f"only {ran} of {ratchet.run} required tests ran"] if ran < ratchet.run else []
        if without > ratchet.unsupported:
            losses.append(
                f"unsupported tests: {without}, but at most {ratchet.unsupported} are allowed"
            )
        return losses
