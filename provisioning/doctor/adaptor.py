"""The QNN adaptor that a session lowers with: the wheel's where it fits, else an overlay's."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from provisioning.artifacts.choice import (
    OVERLAY,
    WHEEL,
    QnnChoice,
    find_backends,
    find_laid,
    find_overlays,
    lay_over,
    python_tag,
)
from provisioning.artifacts.environment import Environment
from provisioning.console.progress import Progress
from provisioning.doctor.examine import Verdict, examine
from provisioning.errors import UnfitError
from provisioning.manifest.targets import Backend

# Findings that another adaptor cures: it is not there, or it does not fit Python, machine or SDK.
OF_HEADERS = frozenset({"QNN902", "QNN903"})
OF_ADAPTOR = OF_HEADERS | {"QNN507", "QNN508", "QNN509", "QNN512", "QNN513", "QNN515", "QNN901"}
PYTHONPATH = "PYTHONPATH"


def settle_adaptor(
    choice: QnnChoice,
    environment: Environment,
    progress: Progress,
    *,
    python: Path | None = None,
    backend: Backend = Backend.HTP,
    tolerated: Collection[str] = (),
) -> tuple[Environment, Verdict]:
    """The environment with the adaptor that ``choice`` means, and its verdict, in which findings of
    ``tolerated`` ids are warnings.

    Where none is fit it is the first one's verdict, which says why. Raises UnfitError where there
    is no overlay to take.
    """
    tried: list[tuple[Environment, Verdict]] = []
    for overlay in list_overlays(choice, environment):
        candidate = lay_over(environment, overlay, os.environ) if overlay else environment
        verdict = examine(
            candidate.profile,
            candidate,
            python=python or (Path(sys.executable) if overlay else None),
            tries_device=not choice.is_usual,
            backend=backend,
            tolerated=tolerated,
            progress=progress,
        )
        tried.append((candidate, verdict))
        if verdict.fit:
            if overlay:
                progress.step(f"adaptor: {overlay}")
            return candidate, verdict
        if not {one.id for one in verdict.errors} <= OF_ADAPTOR:
            break
    return tried[0]


def require_runtime(environment: Environment, progress: Progress) -> None:
    """Raises UnfitError where programs of an overlay's adaptor would run with a backend that
    creates no device: the wheel's, which was built with the headers of the wheel's adaptor."""
    overlay = find_laid(environment)
    if not overlay or find_backends(overlay):
        return
    variables = {name: text for name, text in environment.variables.items() if name != PYTHONPATH}
    wheel = replace(environment, variables=variables)
    verdict = examine(wheel.profile, wheel, tries_device=True, progress=progress)
    for fault in verdict.errors:
        if fault.id in OF_HEADERS:
            raise UnfitError(
                f"{overlay} has no QNN backend for Python's runtime, and the wheel's does not fit",
                why=f"it was built with the headers of the wheel's adaptor: {fault.what}; from "
                "ExecuTorch 1.5 on build_aot makes none",
                fix="build qnn_executor_runner with `qnn-ci build runner --source CHECKOUT` and "
                "the same --sdk, and give it as --runner",
            )


def list_overlays(choice: QnnChoice, environment: Environment) -> Iterator[Path | None]:
    """What the choice allows, the best first; None is the wheel's. Raises UnfitError."""
    if choice.adaptor in {"", WHEEL}:
        yield None
    if choice.adaptor not in {"", WHEEL, OVERLAY}:
        yield find_given(Path(choice.adaptor).expanduser().absolute())
    if choice.adaptor == OVERLAY or (not choice.adaptor and not choice.is_usual):
        sdk = next(one for one in environment.artifacts if one.name.startswith("qnn-"))
        found = [path for path, _ in find_overlays(sdk.version)]
        if choice.adaptor == OVERLAY and not found:
            raise UnfitError(
                f"no overlay is built for QNN {sdk.version} and {python_tag()}",
                why="--adaptor overlay takes one that build_aot made for this SDK and Python",
                fix=f"run `qnn-ci build aot --sdk {sdk.root}`",
            )
        yield from found


def find_given(overlay: Path) -> Path:
    """An overlay that is named. Raises UnfitError for another directory."""
    if not (overlay / "executorch" / "backends" / "qualcomm" / "python").is_dir():
        raise UnfitError(
            f"{overlay} is not an overlay",
            why="it has no executorch/backends/qualcomm/python",
            fix="name the directory that build_aot prints as overlay",
        )
    return overlay
