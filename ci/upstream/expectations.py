"""The expected results of upstream's tests: manifests/policies/upstream.toml, with rows grouped by
cause.

A row applies to tests that do not pass both verdicts. It has their result, the versions of QNN and
the SoCs, and the condition for removing the row. A test with another result fails the run, even if
it passes.
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
    """A row: tests of a suite, as globs, with ``outcome`` and a reason that matches ``pattern``.

    A ``flaky`` test sometimes passes, because its program differs between runs. Its result
    is then ``outcome`` as well.
    """

    suite: str
    tests: tuple[str, ...]
    outcome: Literal["one-sided", "failed", "unsupported", "timed-out"]
    pattern: str = ""
    socs: tuple[str, ...] = ("*",)
    qnn: tuple[str, ...] = ("*",)
    flaky: bool = False

    def covers(self, suite: str, soc: str, qnn: str, test: str) -> bool:
        """Return whether the row applies to a test of a run."""
        pairs = ((test, self.tests), (soc, self.socs), (qnn, self.qnn))
        return suite == self.suite and all(
            any(match(name, glob) for glob in globs) for name, globs in pairs
        )


class Cause(Struct, frozen=True, forbid_unknown_fields=True):
    """Why tests have their results: whose ``fault`` it is, a command to ``reproduce`` it, the
    ``report`` for the owner, and in ``until`` the condition for removing the rows."""

    name: str
    fault: Literal["upstream", "executorch", "qnn", "host", "ours", "unknown"]
    about: str
    reproduce: str
    until: str
    report: str = ""
    row: tuple[Row, ...] = ()


class Ratchet(Struct, frozen=True, forbid_unknown_fields=True):
    """The least that a complete run of a suite must achieve. ``run`` is the number of tests that
    are neither unsupported nor timed out. A test may take ``timeout_s`` plus twice its time in
    ``slow``."""

    run: int
    unsupported: int
    timeout_s: float
    slow: dict[str, float] = {}

    def expect_s(self, test: str) -> float:
        """Return the duration of a slow test on an idle machine in seconds; 0 for other tests."""
        return max((s for glob, s in self.slow.items() if match(test, glob)), default=0.0)


class UpstreamPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of the policy file."""

    suites: dict[str, Ratchet]
    cause: tuple[Cause, ...] = ()


@dataclass(frozen=True)
class Known:
    """A row with its cause."""

    cause: Cause
    row: Row


def read_expectations(path: Path | None = None) -> UpstreamPolicy:
    """Return the policy. Raises ManifestError for a row that is invalid or would match any test."""
    policy = read_policy(POLICY, UpstreamPolicy, path)
    for cause in policy.cause:
        for row in cause.row:
            for fault in find_row_faults(row, policy.suites):
                raise ManifestError(
                    f"policies/{POLICY}.toml, cause {cause.name}: {fault}",
                    why="it would hide failures that were not examined",
                    fix="specify the tests and their result",
                )
        if cause.fault in {"upstream", "executorch", "qnn"} and not cause.report:
            raise ManifestError(
                f"policies/{POLICY}.toml, cause {cause.name}: no report",
                why=f"its fault is {cause.fault}",
                fix="add `report`, a text for the owner of the fault",
            )
    return policy


def find_row_faults(row: Row, suites: Mapping[str, Ratchet]) -> Iterator[str]:
    """Yield the reasons to reject a row of the policy."""
    if row.suite not in suites:
        yield f"there is no suite {row.suite!r}"
    for glob in row.tests:
        if not WILD.sub("", glob):
            yield f"tests {glob!r} has only wildcards"
    if not row.tests:
        yield "it has no tests"
    if row.outcome != "timed-out" and not row.pattern:
        yield "it has no pattern for the reason"
    try:
        re.compile(row.pattern)
    except re.error as error:
        yield f"pattern {row.pattern!r}: {error}"


@dataclass(frozen=True)
class Checked:
    """A test with its expectation. ``fault`` is empty if the result is the expected one."""

    judged: Judged
    known: Known | None = None
    fault: str = ""


class Expectations:
    """The expectations for a run."""

    def __init__(self, policy: UpstreamPolicy, suite: str, soc: str, qnn: str) -> None:
        self.policy, self.suite, self.soc = policy, suite, soc
        self.qnn = str(parse_version(qnn))  # QNN's libraries add a build number
        self.known = [Known(cause, row) for cause in policy.cause for row in cause.row]

    def find(self, test: str) -> list[Known]:
        """Return the rows of the policy that apply to a test."""
        return [one for one in self.known if one.row.covers(self.suite, self.soc, self.qnn, test)]

    def check(self, judged: Judged) -> Checked:
        """Compare the result of a test with its row."""
        found = self.find(judged.test)
        if judged.outcome is Ending.PASSED:
            flaky = next((one for one in found if one.row.flaky), None)
            if flaky:
                reason = f"flaky: passed this time ({flaky.cause.name})"
                outcome = WORDS[flaky.row.outcome]
                return Checked(replace(judged, outcome=outcome, reason=reason), flaky)
            told = found and f"it passed, but another result is expected: {found[0].cause.name}"
            return Checked(judged, found[0] if found else None, told or "")
        if judged.entry and judged.entry.refusal and not found:
            return Checked(judged)  # upstream's test itself asserts the refusal
        fits = [
            one
            for one in found
            if WORDS[one.row.outcome] is judged.outcome
            and re.search(one.row.pattern, judged.reason)
        ]
        if fits:
            return Checked(judged, fits[0])
        if found:
            row = found[0].row
            told = (
                f"expected {WORDS[row.outcome].value} with {row.pattern!r} ({found[0].cause.name})"
            )
            return Checked(judged, found[0], f"{judged.outcome.value}, {told}: {judged.reason}")
        return Checked(judged, None, f"{judged.outcome.value}: {judged.reason}")

    def find_stale(self, tests: Sequence[str]) -> list[str]:
        """Return globs of this suite's rows that match none of its tests."""
        return [
            f"{one.cause.name}: {glob}"
            for one in self.known
            if one.row.suite == self.suite
            for glob in one.row.tests
            if not any(match(test, glob) for test in tests)
        ]

    def find_losses(self, every: Sequence[Judged]) -> list[str]:
        """Return how a complete run is worse than before: fewer tests ran or more are
        unsupported."""
        ratchet = self.policy.suites[self.suite]
        without = sum(one.outcome is Ending.UNSUPPORTED for one in every)
        ran = sum(one.outcome not in {Ending.UNSUPPORTED, Ending.LATE} for one in every)
        losses = [f"{ran} tests ran, but {ratchet.run} did before"] if ran < ratchet.run else []
        if without > ratchet.unsupported:
            losses.append(f"{without} tests are unsupported, but {ratchet.unsupported} were before")
        return losses
