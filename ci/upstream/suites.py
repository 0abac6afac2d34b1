"""Upstream's three suites: where their tests are in the installed wheel, and what they are called.

They were not seen anywhere else: the wheel of ExecuTorch 1.5.1 contains all three.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ci.cases.spec import DEFAULT_SOC
from provisioning.errors import UnfitError, UsageError

# For the fork server: the suite to collect, and its directory if not the installed package.
SUITE, SOURCE = "QNN_CI_SUITE", "QNN_CI_SUITE_SOURCE"
QUALCOMM = "backends/qualcomm/tests"


@dataclass(frozen=True)
class Suite:
    """``places`` are files or directories in the executorch package; ``names`` are globs, one of
    which a test's name has to match. A test runs on ``soc`` unless the call names another; a suite
    with ``fixed_soc`` sets its SoCs itself."""

    name: str
    places: tuple[str, ...]
    names: tuple[str, ...] = ("*",)
    soc: str = DEFAULT_SOC
    fixed_soc: bool = False


SUITES: Mapping[str, Suite] = {
    one.name: one
    for one in (
        Suite("upstream", (f"{QUALCOMM}/test_qnn_delegate.py",)),
        # Its tests are for V68, with the SoC that tests/rework/htp/conftest.py uses for it.
        Suite("upstream-rework", (f"{QUALCOMM}/rework",), soc="SM8350", fixed_soc=True),
        # QualcommTester has this SoC as a default, and no flow changes it.
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
    """Return whether a test's name, which may have brackets, is ``glob`` or matches it."""
    return name == glob or fnmatchcase(name, glob)


def choose_tests(suite: Suite, every: Sequence[str], globs: Sequence[str]) -> list[str]:
    """Return the suite's tests that match a glob with the whole name or its last part. Raises
    UsageError if a glob matches none."""
    own = [test for test in every if any(match(test, glob) for glob in suite.names)]
    for glob in globs:
        if not any(_fits(test, glob) for test in own):
            near = difflib.get_close_matches(glob, [test.rpartition("::")[2] for test in own], n=1)
            raise UsageError(
                f"--filter {glob} matches none of {len(own)} tests of {suite.name}",
                why=f"the nearest is {near[0]}" if near else "",
                fix="--list shows them",
            )
    return [test for test in own if not globs or any(_fits(test, glob) for glob in globs)]


def _fits(test: str, glob: str) -> bool:
    return match(test, glob) or match(test.rpartition("::")[2], glob)


def find_executorch() -> Path:
    """Return the directory of the installed package. Raises UnfitError."""
    spec = importlib.util.find_spec("executorch")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise UnfitError("this Python has no executorch", fix="pip install executorch")
    return Path(places[0])
