"""Upstream's three test suites: where their tests are in the installed wheel, and their names.

The wheel of ExecuTorch 1.5.1 contains all three.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ci.models.suite import DEFAULT_SOC
from provisioning.errors import UnfitError, UsageError

# Environment variables for the fork server: the suite to collect, and the directory that replaces
# the installed executorch package, if there is one.
SUITE, SOURCE = "QNN_CI_SUITE", "QNN_CI_SUITE_SOURCE"
QUALCOMM = "backends/qualcomm/tests"


@dataclass(frozen=True)
class Suite:
    """A suite. ``places`` are files or directories in the executorch package. ``names`` are globs;
    only tests with a name that matches one of them belong to the suite. The tests run for ``soc``
    unless the user selects another SoC. If ``fixed_soc`` is true, the suite itself sets the SoC,
    and the user cannot select another."""

    name: str
    places: tuple[str, ...]
    names: tuple[str, ...] = ("*",)
    soc: str = DEFAULT_SOC
    fixed_soc: bool = False


SUITES: Mapping[str, Suite] = {
    one.name: one
    for one in (
        Suite("upstream", (f"{QUALCOMM}/test_qnn_delegate.py",)),
        # Its tests are for V68. tests/rework/htp/conftest.py sets this SoC.
        Suite("upstream-rework", (f"{QUALCOMM}/rework",), soc="SM8350", fixed_soc=True),
        # QualcommTester's default is this SoC, and no flow changes it.
        Suite(
            "backend-suite",
            ("backends/test/suite/operators",),
            ("*[[]qnn*",),
            soc="SM8650",
            fixed_soc=True,
        ),
    )
}


def match(name: str, glob: str) -> bool:
    """Return whether ``name`` matches ``glob`` or equals it. Equality is checked separately because
    a test's name may contain brackets, which have a special meaning in a glob."""
    return name == glob or fnmatchcase(name, glob)


def choose_tests(suite: Suite, every: Sequence[str], globs: Sequence[str]) -> list[str]:
    """Return the suite's tests whose whole name, or the part after the last ``::``, matches one of
    ``globs``. Without globs, return all tests. Raises UsageError if a glob matches no test."""
    own = [test for test in every if any(match(test, glob) for glob in suite.names)]
    for glob in globs:
        if not any(_fits(test, glob) for test in own):
            near = difflib.get_close_matches(glob, [test.rpartition("::")[2] for test in own], n=1)
            raise UsageError(
                f"--filter {glob} matches none of the {len(own)} tests in suite {suite.name}",
                why=f"the most similar name is {near[0]}" if near else "",
                fix=f"pass a glob for names such as {', '.join(own[:2])}" if own else "",
            )
    return [test for test in own if not globs or any(_fits(test, glob) for glob in globs)]


def _fits(test: str, glob: str) -> bool:
    return match(test, glob) or match(test.rpartition("::")[2], glob)


def find_executorch() -> Path:
    """Return the directory of the installed executorch package. Raises UnfitError if it is not
    installed."""
    spec = importlib.util.find_spec("executorch")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise UnfitError("this Python has no executorch", fix="pip install executorch")
    return Path(places[0])
