"""A runner and what lowers must go together: an overlay's programs do not run with any backend."""

from __future__ import annotations

from provisioning.artifacts.choice import WHEEL, QnnChoice, find_laid
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.errors import UsageError

PYTHON, WHEEL_RUNNER = "python", "cpp"


def check_choice(runner: str, chosen: QnnChoice) -> None:
    """Before anything is fetched. Raises UsageError."""
    if runner == WHEEL_RUNNER and chosen.adaptor not in {"", WHEEL}:
        raise refuse_overlay()


def check_backend(runner: str, environment: Environment, progress: Progress) -> Environment:
    """The environment, if the runner fits its adaptor. Raises UsageError, UnfitError."""
    from provisioning.doctor.adaptor import require_runtime

    if runner == WHEEL_RUNNER and find_laid(environment):
        raise refuse_overlay()
    if runner == PYTHON:
        require_runtime(environment, progress)
    return environment


def refuse_overlay() -> UsageError:
    return UsageError(
        "--runner cpp does not go with an overlay",
        why="it is linked with the installed wheel's QNN backend, not with the overlay's",
        fix="leave it out, or give the qnn_executor_runner that `qnn-ci build runner --source "
        "CHECKOUT` builds with the same --sdk",
    )
