"""The packages and libraries with which ONNX Runtime compiles and runs programs for QNN."""

from __future__ import annotations

from collections.abc import Sequence

from ci.cases.cache import digest_packages
from ci.cases.spec import CaseSpec
from ci.packages.modules import ONNX
from ci.report.schema import Tool
from provisioning.artifacts.choice import SDK, WHEEL_RUNTIME, QnnChoice
from provisioning.errors import UnfitError
from provisioning.versions import is_older

PROFILE, SDK_PROFILE = "onnx", "onnx-sdk"
# onnxruntime-qnn has no wheel for Python 3.10.
OLDEST_PYTHON = "3.11"
RUNTIMES = (WHEEL_RUNTIME, SDK)
PACKAGES = ONNX.for_files
EXPORTING = ONNX.converting  # only for models from PyTorch
DISTRIBUTIONS = ("onnxruntime", "onnxruntime-qnn", "onnx", "numpy")
# Packages that compute something in a compilation or, the second ones, in an export.
# Their content is part of a program's key, since an edit in place changes no version.
COMPILING_PACKAGES = (*PACKAGES, "ml_dtypes", "numpy", "sympy")
EXPORTING_PACKAGES = (*EXPORTING, "onnx_ir")


def needs_export(specs: Sequence[CaseSpec]) -> bool:
    """Return whether any case has to be exported from torch."""
    return not all(spec.is_file for spec in specs)


def list_packages(*, exports: bool) -> tuple[str, ...]:
    """Return the packages that a run needs. With ``exports``, any model comes from PyTorch."""
    return (*PACKAGES, *EXPORTING * exports)


def require_python(version: str, lane: str) -> None:
    """Raise UnfitError for a Python that the pinned wheels of a ``lane`` do not support."""
    if is_older(version, OLDEST_PYTHON):
        raise UnfitError(
            f"this is Python {version}, and the {lane} lane needs {OLDEST_PYTHON} or later",
            why="onnxruntime-qnn has no wheel for this version of Python",
            fix=f"run nox with Python {OLDEST_PYTHON} or later",
        )


def name_toolchain(parts: Sequence[Tool], *, exports: bool) -> tuple[str, ...]:
    """Return everything except the model that determines a context binary. These are the artifacts
    and packages with their versions, and a digest of the packages that compile and, if any model
    comes from PyTorch, export."""
    packages = (*COMPILING_PACKAGES, *EXPORTING_PACKAGES * exports)
    return (*map(str, parts), digest_packages(packages))


def choose_profile(chosen: QnnChoice) -> str:
    """Return the profile to provision."""
    return PROFILE if chosen.is_usual else SDK_PROFILE
