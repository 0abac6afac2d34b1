"""Gather all facts of an environment, including its variables and the QNN libraries on
LD_LIBRARY_PATH.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from provisioning.console.progress import Progress
from provisioning.doctor.facts import (
    CHECKOUT,
    HOST_DIRECTORY,
    HOST_KIND,
    LIBCXX,
    NDK,
    STAGING,
    BackendFacts,
    EnvironmentFacts,
    InstallationFacts,
    PathEntry,
    PythonFacts,
    SdkFacts,
    VariableFacts,
)
from provisioning.doctor.fitness import DoctorPolicy, ElfPolicy, Fitness, choose_policy
from provisioning.doctor.survey.board import survey_board
from provisioning.doctor.survey.host import (
    survey_checkout,
    survey_devices,
    survey_host,
    survey_ndk,
    survey_sdk,
)
from provisioning.doctor.survey.python import survey_python, try_device
from provisioning.doctor.survey.python_probe import find_adaptors
from provisioning.doctor.survey.tree import find_min_sdk, read_files, survey_tree
from provisioning.elf.facts import EM_X86_64
from provisioning.manifest.reader import Adoption
from provisioning.manifest.targets import Backend, read_backends
from provisioning.versions import is_older, is_same

DEVICE_DIRECTORY = "/data/local/tmp"
DISTRIBUTIONS = ("torch", "executorch", "torchao")


@dataclass(frozen=True)
class SurveyRequest:
    """What to examine: the roots, the pins and the adoptions of artifacts (the keys are their
    names), and a job's variables.

    If ``python`` is None, the running interpreter is examined. If ``tries_device`` is true, the
    interpreter's adaptor has to create a device of the emulator. ``backend`` is the backend to
    lower for. If ``device`` is true, devices that adb lists are examined, too; ``board`` is the
    address of a board to examine over ssh, or ''. ``home`` is
    the directory for caches, and ``submodules`` are those that the profile's targets need.
    """

    profile: str
    roots: Mapping[str, Path]
    variables: Mapping[str, str]
    home: Path
    pins: Mapping[str, str] = field(default_factory=dict)
    adoptions: Mapping[str, Adoption] = field(default_factory=dict)
    submodules: tuple[str, ...] = ()
    python: Path | None = None
    tries_device: bool = False
    backend: Backend = Backend.HTP
    soc: str | None = None
    device: bool = False
    board: str = ""


def survey_environment(
    request: SurveyRequest,
    policy: DoctorPolicy,
    fitness: Fitness,
    kinds: Mapping[str, ElfPolicy],
    *,
    progress: Progress | None = None,
) -> EnvironmentFacts:
    """Gather all facts that the profile has requirements for. Nothing is changed except caches in
    ``request.home``.
    """
    progress = progress or Progress()
    sdk_name = next((name for name in fitness.sdk if name in request.roots), "")
    progress.step("doctor: libraries")
    trees = {
        name: survey_tree(request.roots[name])
        for name in (STAGING, LIBCXX)
        if name in request.roots
    }
    if staging := trees.get(STAGING):
        trees[STAGING] = replace(staging, min_sdk=find_min_sdk(staging.root))
    if sdk_name:
        # Only directories that the profile uses: an SDK has libraries for many machines.
        choose = partial(choose_policy, policies=kinds)
        trees = {sdk_name: survey_tree(request.roots[sdk_name], choose), **trees}
    elves = [file.elf for tree in trees.values() for file in tree.files if file.elf]
    needed = {name for elf in elves if elf.machine == EM_X86_64 for name in elf.needed}
    system = {name for kind in kinds.values() for name in kind.system}
    libraries = (needed & system) | set(policy.host_libraries)
    programs = {name: policy.tools[name].program for name in fitness.tools}
    progress.step("doctor: variables, machine, Python")
    sdk = None
    if sdk_name:
        asks_library = (fitness.headers or request.tries_device) and HOST_KIND in fitness.kinds
        root = request.roots[sdk_name]
        sdk = survey_sdk(root, policy.headers, asks_library=asks_library)
    python = None
    if fitness.python:
        modules = list(policy.python.modules)
        python = survey_python(request.python, DISTRIBUTIONS, modules, request.variables)
        if request.tries_device:
            python = replace(python, no_device=_try_device(request, sdk, python, Backend.HTP))
    elif fitness.packages:
        python = survey_python(request.python, fitness.packages, (), request.variables)
    return EnvironmentFacts(
        profile=request.profile,
        host=survey_host(request.home, programs, libraries, request.variables),
        pins=request.pins,
        submodules=request.submodules,
        roots={name: str(root) for name, root in request.roots.items()},
        sdk_name=sdk_name,
        sdk=sdk,
        trees=trees,
        ndk=survey_ndk(request.roots[NDK], policy.ndk.host_tag) if NDK in request.roots else None,
        python=python,
        backend=_survey_backend(request, sdk, python if fitness.python else None),
        variables=survey_variables(request.variables, request.roots.get(sdk_name)),
        checkout=(
            survey_checkout(request.roots[CHECKOUT], request.submodules)
            if CHECKOUT in request.roots
            else None
        ),
        installations=tuple(
            _survey_installation(name, request, adoption)
            for name, adoption in request.adoptions.items()
            if adoption.variable and name in request.roots
        ),
        devices=survey_devices(request.variables, DEVICE_DIRECTORY) if request.device else None,
        board=survey_board(request.board, request.variables) if request.board else None,
    )


def _survey_installation(
    name: str, request: SurveyRequest, adoption: Adoption
) -> InstallationFacts:
    root, value = request.roots[name], request.variables.get(adoption.variable, "")
    missing = tuple(path for path in adoption.markers if not (root / path).exists())
    is_same = not value or os.path.realpath(value) == os.path.realpath(root)
    return InstallationFacts(name, root, missing, adoption.variable, value, is_same)


def _may_load(python: PythonFacts, sdk: SdkFacts | None) -> bool:
    """Return whether Python can probably load the adaptor.

    The adaptor must be for x86-64, and must not lack a library. Its headers must not be newer than
    the SDK. An overlay must have been built from the version of the installed executorch.
    """
    machine = python.adaptor.machine if python.adaptor else None
    # An attempt that is bound to fail, or to crash. A separate check explains this better.
    if sdk and sdk.version and python.headers and is_older(sdk.version, python.headers):
        return False
    installed = python.distributions.get("executorch") or ""
    is_own = not python.checkout or is_same(python.checkout, installed)
    return machine == EM_X86_64 and is_own and not python.lacking


def _survey_backend(
    request: SurveyRequest, sdk: SdkFacts | None, python: PythonFacts | None
) -> BackendFacts | None:
    """Return facts about the requested backend and its library in the SDK. Returns None for HTP, or
    without an SDK.
    """
    if request.backend is Backend.HTP or not sdk:
        return None
    needs = read_backends()[request.backend]
    is_there = (sdk.root / HOST_DIRECTORY / needs.library).is_file()
    failure = _try_device(request, sdk, python, request.backend) if python else None
    return BackendFacts(
        request.backend.value, needs.library, is_there, needs.why, needs.fix, failure
    )


def _try_device(
    request: SurveyRequest, sdk: SdkFacts | None, python: PythonFacts, backend: Backend
) -> str | None:
    """Return the reason why no device can be created, or '' if one can; None if it is not tried."""
    library = (sdk.root if sdk else Path()) / HOST_DIRECTORY / read_backends()[backend].library
    if not (python.adaptor and library.is_file() and _may_load(python, sdk)):
        return None
    interpreter, home = request.python or Path(sys.executable), request.home / "doctor"
    adaptor = python.adaptor.path
    return try_device(interpreter, adaptor, library, request.variables, home, backend=backend)


NAMES = (
    "QNN_SDK_ROOT",
    "QAIRT_SDK_ROOT",
    "QAIRT_ROOT",
    "SNPE_ROOT",
    "AISW_SDK_ROOT",
    "LD_LIBRARY_PATH",
    "ADSP_LIBRARY_PATH",
    "DSP_LIBRARY_PATH",
    "PYTHONPATH",
    "ANDROID_NDK_ROOT",
    "HEXAGON_SDK_ROOT",
    "HEXAGON_TOOLS_ROOT",
    "EXECUTORCH_ROOT",
)
CONCERNED = re.compile(r"lib(Qnn|Htp|Genie|c\+\+|unwind)[^/]*\.so[.0-9]*$")
RUNTIME = re.compile(r"libstdc\+\+\.so\.6|libgcc_s\.so\.1|libatomic\.so\.1")


def survey_variables(variables: Mapping[str, str], sdk_root: Path | None = None) -> VariableFacts:
    """Return facts about the variables that a job would get."""
    values = {name: variables[name] for name in NAMES if name in variables}
    entries = values["LD_LIBRARY_PATH"].split(":") if values.get("LD_LIBRARY_PATH") else []
    python_path = [part for part in values.get("PYTHONPATH", "").split(":") if part]
    roots = [value for name, value in values.items() if name.endswith("_ROOT") and value]
    on_path = tuple(part for part in python_path if (Path(part) / "executorch").is_dir())
    places = [Path(path) for path in [*roots, *filter(None, entries)]]
    if sdk_root:
        places += [sdk_root, sdk_root / HOST_DIRECTORY]
    return VariableFacts(
        values,
        library_path=tuple(_survey_entry(entry) for entry in entries),
        executorch_on_path=on_path,
        without_adaptor=tuple(part for part in on_path if not find_adaptors(f"{part}/executorch")),
        roots_that_exist=frozenset(root for root in roots if Path(root).is_dir()),
        real={str(place): os.path.realpath(place) for place in places},
    )


def _survey_entry(directory: str) -> PathEntry:
    libraries: dict[str, Path] = {}
    runtimes: dict[str, Path] = {}
    try:
        # The loader takes an empty entry for the working directory.
        for entry in os.scandir(directory or "."):
            # Only libraries that concern QNN are read: the directory may be /usr/lib.
            kind_files = runtimes if RUNTIME.fullmatch(entry.name) else libraries
            if (kind_files is runtimes or CONCERNED.match(entry.name)) and entry.is_file():
                kind_files[entry.name] = Path(entry.path)
    except OSError:
        return PathEntry(directory)
    return PathEntry(directory, read_files(libraries), read_files(runtimes))
