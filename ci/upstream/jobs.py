"""Jobs for a worker that has collected a suite, see ci.upstream.worker."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LACKS = "this runner has no "  # starts what our runner says of a flag that it does not know


@dataclass(frozen=True)
class TestEnd:
    """What upstream says of a test: ``passed``, ``failed`` or ``skipped``, and why; ``refusal`` is
    the error that it expects of a test that passed with it, ``test_s`` its own part of the time."""

    __test__ = False

    verdict: str
    told: str
    test_s: float
    comparisons: int
    refusal: str = ""


@dataclass(frozen=True)
class ListTests:
    """A job that names the suite's tests."""

    def __call__(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the tests, and what could not be collected."""
        from ci.upstream.worker import collected

        return tuple(collected.items), collected.errors


@dataclass(frozen=True)
class RunTest:
    """A job that runs one test in ``directory``, which holds what it compared afterwards."""

    name: str
    directory: Path

    def __call__(self) -> TestEnd:
        """Return how it ended. Raises FailedError if its process died."""
        from ci.upstream.worker import run_test

        return run_test(self.name, self.directory)
