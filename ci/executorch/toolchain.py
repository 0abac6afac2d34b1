"""The parts of a toolchain that its versions do not tell: adaptor, QNN's build, validation."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ci.report.schema import Tool
from provisioning.artifacts.environment import Environment
from provisioning.console.process import run_process
from provisioning.doctor.facts import HOST_DIRECTORY
from provisioning.doctor.survey.python_probe import find_adaptors
from provisioning.elf.qnn_build import find_headers_version, find_qnn_build
from provisioning.files import hash_file

LIBRARY, ADAPTOR, VALIDATION = "libQnnHtp.so", "adaptor", "operator-validation"
LIMIT_S = 60.0
# As ExecuTorch's quantizer looks for it (quantizer/backend_opinfo_adapter.py).
PACKAGE = "qti.aisw.converters.common.backend_opinfo"


def find_on_path(variables: Mapping[str, str]) -> None:
    """Let this process find what a job finds: forks of it take its sys.path."""
    for entry in reversed(variables.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)


def describe_parts(environment: Environment) -> Iterator[Tool]:
    """Rows of the report's toolchain, which the keys of programs hold, too."""
    root = Path(environment.variables["QNN_SDK_ROOT"])
    build = find_qnn_build(root / HOST_DIRECTORY / LIBRARY)
    yield Tool(name=LIBRARY, version=build.text if build else "unknown")
    spec = importlib.util.find_spec("executorch")
    places = list(spec.submodule_search_locations or ()) if spec else []
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    for path in find_adaptors(places[0] if places else None):
        if path.endswith(suffix):
            headers = find_headers_version(Path(path)) or "unknown"
            yield Tool(name=ADAPTOR, version=f"QNN {headers}", sha256=hash_file(Path(path)))
    yield Tool(name=VALIDATION, version=find_validation(root, environment.apply(os.environ)))


def find_validation(root: Path, variables: Mapping[str, str]) -> str:
    """``sdk`` where ExecuTorch's quantizer validates operators with the SDK's lib/python (2.41 and
    later), else why not."""
    place = root / "lib" / "python"
    if not place.joinpath(*PACKAGE.split(".")[:-1]).is_dir():
        return "none"
    program = f"import sys; sys.path.insert(0, sys.argv[1]); import {PACKAGE}"
    words = [sys.executable, "-c", program, str(place)]
    ended = run_process(words, env=variables, timeout_s=LIMIT_S, check=False)
    last = ended.output.splitlines()[-1:] or [ended.describe()]
    return "sdk" if ended.returncode == 0 else f"none ({last[0][:100]})"
