"""The lane of test-upstream: pytest runs ExecuTorch's own QNN tests on the emulator, and a plugin
of this project judges what they compare."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from ci.cases.policy import EMULATOR, EmulatorPolicy
from ci.cases.spec import CaseSpec
from ci.executorch.engine import PACKAGES
from ci.models.schemes import EXECUTORCH, SchemeSet
from ci.upstream.session import UpstreamRequest, run_suite
from ci.verbs.built import require_executorch
from ci.verbs.lanes.lane import Lane, Plan
from ci.verbs.options import LOWERING
from provisioning.console.progress import Progress
from provisioning.errors import UsageError
from provisioning.manifest.targets import find_soc


def select(
    request: UpstreamRequest, policy: EmulatorPolicy, schemes: SchemeSet, progress: Progress
) -> list[CaseSpec]:
    """Return no cases: pytest collects the tests. Raises UsageError for an SoC or a checkout that
    the suite cannot use."""
    del policy, schemes, progress
    suite, source = request.suite, request.source
    if suite.fixed_soc and request.socs:
        raise UsageError(
            f"--soc cannot be used with --suite {suite.name}",
            why="the tests of this suite set the SoC themselves",
        )
    find_soc(request.soc)
    places = [source / place for place in suite.places] if source else []
    if missing := [place for place in places if not place.exists()]:
        raise UsageError(f"--source {source} has no {missing[0]}")
    return []


@contextlib.contextmanager
def prepare(
    request: UpstreamRequest, policy: EmulatorPolicy, specs: list[CaseSpec], progress: Progress
) -> Iterator[Plan]:
    """Yield the plan of a run. Raises UnfitError for another ExecuTorch or a missing package."""
    del policy, progress
    require_executorch(request.executorch)
    LANE.require_packages(specs)
    yield Plan(
        specs=specs,
        profile=LANE.profile(request.choice),
        imports=(),  # pytest starts its own workers
        choice=request.choice,
        run=partial(run_suite, request),
        work=f"run the tests of {request.suite.name}",
    )


LANE = Lane(
    session="test_upstream",
    policy=EMULATOR,
    schemes=EXECUTORCH,
    request=UpstreamRequest,
    packages=lambda _: ((*PACKAGES, "pytest"), LOWERING),
    profile=lambda choice: choice.profile,
    select=select,
    prepare=prepare,
    brief=True,
)
