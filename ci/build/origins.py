"""The two places that sources come from, behind one call."""

from __future__ import annotations

from collections.abc import Callable

from ci.build.checkout import prepare_checkout
from ci.build.plan.plan import BuildJob, BuildRequest
from ci.build.plan.targets import Origin, Target
from ci.build.runner import prepare_runner
from provisioning.console.progress import Progress
from provisioning.errors import UsageError

PREPARERS: dict[Origin, Callable[[Target, BuildRequest, Progress], BuildJob]] = {
    Origin.CHECKOUT: prepare_checkout,
    Origin.RUNNER: prepare_runner,
}


def prepare_job(target: Target, request: BuildRequest, progress: Progress) -> BuildJob:
    """A build that is ready to start.

    Raises UsageError for an extra that the target does not have, UnfitError for what is missing.
    """
    if unknown := request.extras - set(target.extras):
        raise UsageError(
            f"{target.name} has no extra {', '.join(sorted(unknown))}",
            fix="it has: " + (", ".join(target.extras) or "none"),
        )
    return PREPARERS[target.origin](target, request, progress)
