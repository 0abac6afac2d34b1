"""Lists what determines ExecuTorch's programs besides the model: versions, digests and
libraries."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from ci.cases.cache import digest_packages
from ci.cases.session import list_parts
from ci.models.rounding import find_version
from ci.report.schema import Tool
from provisioning.artifacts.environment import Environment
from provisioning.console.process import run_process
from provisioning.doctor.facts import HOST_DIRECTORY
from provisioning.doctor.survey.python_probe import find_adaptors
from provisioning.elf.qnn_build import find_headers_version, find_qnn_build
from provisioning.files import hash_file

LIBRARY, ADAPTOR, VALIDATION = "libQnnHtp.so", "adaptor", "operator-validation"
LIMIT_S = 60.0
HOST_LIBRARIES = "lib/x86_64-linux-clang/*.so*"
PACKAGES = ("torch", "executorch", "torchao", "numpy")
# The parts of ExecuTorch that a lowering imports, or that its extensions link to. Checked by
# test_what_lowering_imports_of_executorch_is_in_its_key.
EXECUTORCH = (
    "backends/qualcomm",
    "backends/transforms",
    "data/bin",
    "exir",
    "extension",
    "kernels",
    "lib",
)
LOWERING = (
    *(f"executorch/{part}" for part in EXECUTORCH),
    *("flatbuffers", "mpmath", "networkx", "numpy", "sympy", "torch", "torchao", "torchgen"),
)
# The module that ExecuTorch's quantizer looks for (quantizer/backend_opinfo_adapter.py).
PACKAGE = "qti.aisw.converters.common.backend_opinfo"


def find_on_path(variables: Mapping[str, str]) -> None:
    """Add the directories of PYTHONPATH in ``variables`` to sys.path, so that this process finds
    the same modules as its jobs."""
    # The last one first, because each is inserted in front of the others.
    for entry in reversed(variables.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)


def find_qnn_version() -> str:
    """Return the version of the QNN that this process compiles with; empty if it is unknown."""
    root = os.environ.get("QNN_SDK_ROOT", "")
    return _read_version(Path(root) / HOST_DIRECTORY / LIBRARY) if root else ""


@cache
def _read_version(library: Path) -> str:
    """Return the version of a library, which is somewhere in a file of 98 MB."""
    return find_version(library)


def describe_toolchain(environment: Environment) -> Iterator[Tool]:
    """Yield the artifacts and packages of the toolchain, then facts that their versions do not
    determine: QNN's build, the QNN adaptor, and whether ExecuTorch validates operators with the
    SDK."""
    yield from list_parts(environment)
    yield from (Tool(name=name, version=importlib.metadata.version(name)) for name in PACKAGES)
    root = Path(environment.variables["QNN_SDK_ROOT"])
    build = find_qnn_build(root / HOST_DIRECTORY / LIBRARY)
    yield Tool(name=LIBRARY, version=build.text if build else "unknown")
    # The suffix names the Python: ExecuTorch does not find an adaptor of another one
    # (pytorch/executorch#16310).
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    for path in find_adaptors(next(iter(list_places()), None)):
        if path.endswith(suffix):
            headers = find_headers_version(Path(path)) or "unknown"
            digest = hash_file(Path(path))
            yield Tool(name=ADAPTOR, version=f"QNN {headers}", sha256=digest)
    # ExecuTorch 1.5.1 lowers some operators differently by the SDK's version, and validates with
    # the SDK's own modules from QNN 2.41 on. So a verdict is valid for this QNN only.
    validation = find_validation(root, environment.apply(os.environ))
    yield Tool(name=VALIDATION, version=validation)


def find_validation(root: Path, variables: Mapping[str, str]) -> str:
    """Return ``sdk`` if ExecuTorch's quantizer validates operators with the SDK's lib/python (QNN
    2.41 and later). Otherwise return a text that starts with ``none`` and may contain the reason.
    """
    place = root / "lib" / "python"
    if not place.joinpath(*PACKAGE.split(".")[:-1]).is_dir():
        return "none"
    program = f"import sys; sys.path.insert(0, sys.argv[1]); import {PACKAGE}"
    words = [sys.executable, "-c", program, str(place)]
    ended = run_process(words, env=variables, timeout_s=LIMIT_S, check=False)
    last = ended.output.splitlines()[-1:] or [ended.describe()]
    return "sdk" if ended.returncode == 0 else f"none ({last[0][:100]})"


def name_toolchain(parts: tuple[Tool, ...], environment: Environment) -> tuple[str, ...]:
    """Return, as text, everything that determines a program besides the model: versions and
    digests. An SDK that is used in place has no digest, so its libraries are listed with size and
    modification time.

    One digest covers the contents of the packages that lower a model, including the QNN adaptor.
    Their versions are not enough: a package may be edited in place, or PYTHONPATH may put another
    copy before it.
    """
    adopted = (artifact.root for artifact in environment.artifacts if artifact.adopted)
    stamps = [
        f"{path.relative_to(root)} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for root in adopted
        for path in sorted(root.glob(HOST_LIBRARIES))
    ]
    named = (f"{part.name} {part.version} {part.sha256}" for part in parts)
    return (*named, digest_packages(LOWERING), *stamps)


def list_places() -> list[str]:
    """Return the directories from which ExecuTorch is imported, or [] if it is not installed."""
    spec = importlib.util.find_spec("executorch")
    return list(spec.submodule_search_locations or ()) if spec else []
