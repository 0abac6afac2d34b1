"""Prepare a build from an ExecuTorch checkout, and check that nothing is missing for it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ci.builds.plan import BUILDS, BuildJob, BuildRequest, Kit, find_place, make_plan
from ci.builds.targets import Needs, Target, read_targets
from ci.builds.toolchains import ask_python, find_tools, resolve_compilers
from ci.report.text import name_some
from provisioning.artifacts.environment import Environment, LocatedProfile, locate_artifacts
from provisioning.artifacts.installations import set_by_option
from provisioning.console.git import list_submodules
from provisioning.console.progress import Progress
from provisioning.doctor.policies import read_doctor_policy
from provisioning.doctor.survey.host import has_cuda_toolkit
from provisioning.documents import read_text
from provisioning.errors import UnfitError, UsageError
from provisioning.files import has_files
from provisioning.manifest.pairs import read_pairs
from provisioning.manifest.reader import read_toolchain
from provisioning.manifest.targets import find_soc
from provisioning.quoting import shell_word, shell_words
from provisioning.store.home import store_home
from provisioning.versions import is_older, is_same

SOURCE, QNN_SDK = "executorch", "qnn-sdk"
LPAI, HTP = 0, 3  # DSP types, as numbered by the Hexagon SDK
PACKAGES = {"yaml": "pyyaml", "torchgen": "torch"}
QNN_SOURCES = "backends/qualcomm"
QNN_NAME = re.compile(
    r"\b(?:QNN_(?:HTP|GPU|LPAI|IR|SAVER|SYSTEM)_[A-Z][A-Z0-9_]*|Qnn[A-Za-z]*_[A-Za-z0-9_]+_t)\b"
)
# Comments and strings also contain QNN's names.
NO_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
DIRECTIVE = re.compile(r"\s*#\s*(\w+)")
NOT_HEXAGON = re.compile(r"\s*#\s*ifndef\s+__hexagon__\b")
GUARD = re.compile(r"\A\s*#\s*ifndef\s+(\w+)\s*\n\s*#\s*define\s+\1\b[^\n]*")
DEFINITION = re.compile(r"#\s*define\s+(\w+)")
MOST_NAMES = 4  # of a wrong SDK, all of them would fill a page
# The doctor's findings about missing artifacts, headers and submodules, which a build names itself.
CHECKED = frozenset({"QNN100", "QNN108", "QNN705", "QNN706"})
EXPORTED = frozenset({"QNN_SDK_ROOT", "ANDROID_NDK_ROOT", "HEXAGON_SDK_ROOT", "HEXAGON_TOOLS_ROOT"})


def prepare_checkout(target: Target, request: BuildRequest, progress: Progress) -> BuildJob:
    """Check that the artifacts, submodules, headers, programs and Python modules for ``target``
    exist, then return its planned build. If nothing is missing, the doctor runs later, in
    ``BuildJob.check``.

    Raises UnfitError, which states everything that is missing and how to fix it, or UsageError for
    an unusable SoC or DSP type.
    """
    soc = describe_soc(request) if target.per_soc else {}
    if request.source:
        set_by_option("EXECUTORCH_ROOT", str(request.source), "--source")
    located = locate_artifacts(target.profile, progress)
    source = located.find_root(SOURCE)
    versions = {item.name: item.version for item in located.artifacts}
    # First, because no fix of what follows is of use with the checkout of another version.
    request.require_version(versions.get(SOURCE, ""))
    if source and request.lays_over and target.installs:
        installed = ask_python(request.python).distributions["executorch"]
        require_same_version(request.python, installed, versions[SOURCE])
    submodules = list_needed_submodules(target, request, source) if source else ()
    environment, tag, version = require_everything(target, request, located, submodules, progress)
    source, sdk = environment.root(SOURCE), environment.root(QNN_SDK)
    variables = environment.variables
    roots = {item.name: item.root for item in environment.artifacts}
    compilers = {kind: resolve_compilers(kind, roots, variables) for kind in target.toolchains}
    values = {**soc, "python": str(request.python), "python_version": f"{tag} {version}"}
    for item in environment.artifacts:
        name = item.name.replace("-", "_")
        values |= {f"{name}_root": str(item.root), f"{name}_version": item.version}
    exported = {name: variables[name] for name in EXPORTED & variables.keys()}
    kit = Kit(find_tools(), compilers, values, exported)
    # The adaptor's name contains only the Python, so one for another SDK would replace it.
    variant_parts = (tag, values["qnn_sdk_version"]) if target.per_python else ("",)
    variant = "\0".join([*variant_parts, *soc.values()])
    plan = make_plan(target, request, source, find_place(target.name, source, variant), kit)
    inputs = {QNN_SDK: sdk / "include"}
    # The build neither reads nor copies submodules that belong to none of the components.
    unneeded = frozenset(list_submodules(source)) - {*submodules}
    skip = unneeded | find_installed(source)
    check = partial(check_fitness, environment, request, submodules, progress)
    return BuildJob(plan, request, inputs, skip, variables, check)


def require_everything(
    target: Target,
    request: BuildRequest,
    located: LocatedProfile,
    submodules: tuple[str, ...],
    progress: Progress,
) -> tuple[Environment, str, str]:
    """Return the environment of the target's profile, and the tag and the version of the Python
    that the build runs. Raises one UnfitError for everything that is missing, with the doctor's
    errors."""
    refusals = Refusals()
    source, sdk = located.find_root(SOURCE), located.find_root(QNN_SDK)
    environment = Environment(target.profile, located.artifacts, {})
    with refusals.collect():
        environment = located.compose()
    if sdk and source and target.per_soc and request.dsp_type == LPAI:
        with refusals.collect():
            check_lpai(environment)
    if source:
        with refusals.collect():
            # CMake names only the first group of missing submodules.
            check_submodules(source, submodules)
    if sdk:
        with refusals.collect():
            # CMake configures with success without the SDK's headers, and only the compiler fails.
            check_headers(sdk)
            if source:
                # Otherwise, only the compiler reports such a name.
                check_names(source, sdk)
    with refusals.collect():
        check_programs(target.needs.programs)
    tag = version = ""
    with refusals.collect():
        tag, version = probe_python(target.needs, request)
    if source and request.lays_over and target.installs:
        with refusals.collect():
            find_package(request.python, source, store_home() / BUILDS)
    if refusals.errors:
        with refusals.collect():
            # What the doctor finds otherwise would be the next message.
            check_fitness(environment, request, submodules, progress, without=CHECKED)
    refusals.require()
    return environment, tag, version


def list_needed_submodules(target: Target, request: BuildRequest, source: Path) -> tuple[str, ...]:
    """Return the paths of the submodules that the target and the request's extras need."""
    components = list(target.needs.components)
    for extra in sorted(request.extras):
        components += target.needs.extras.get(extra, ())
    return wanted_submodules(source, tuple(components))


class Refusals:
    """The UnfitErrors of several checks, so that one message names everything that is missing."""

    def __init__(self) -> None:
        self.errors: list[UnfitError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep the UnfitError that the block raises."""
        try:
            yield
        except UnfitError as error:
            self.errors.append(error)

    def require(self) -> None:
        """Raise the only error, or one UnfitError with the first error and all others."""
        if not self.errors:
            return
        first, *further_errors = self.errors
        if not further_errors:
            raise first
        lines = [first.why]
        lines += [f"also {error.what}; fix: {error.fix}" for error in further_errors]
        raise UnfitError(
            f"{first.what} (and {len(further_errors)} more)",
            why="\n    ".join(lines),
            fix=first.fix,
        )


def find_package(python: Path, *built: Path) -> Path:
    """Return the directory of the executorch package that is installed for ``python``, but not one
    below ``built``.

    ``built`` are directories with the checkout or with earlier overlays, which PYTHONPATH may
    contain. Raises UnfitError if there is no such package.
    """
    # An overlay of an overlay would contain its own links.
    python_path = []
    for entry in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        path = Path(entry, "executorch").resolve()
        if not any(path.is_relative_to(place.resolve()) for place in built):
            python_path.append(entry)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(python_path)}
    if package := ask_python(python, variables=variables).executorch:
        return Path(package)
    raise UnfitError(
        f"executorch is not installed for {python}",
        why="an overlay consists of the installed wheel with another adaptor",
        fix="install the checkout's version of executorch with pip, or add --install none",
    )


def require_same_version(python: Path, installed: str | None, checkout: str) -> None:
    """Raise UnfitError if the executorch package that is installed for ``python`` has another
    version than the checkout. An unknown version is accepted."""
    if installed and not is_same(installed, checkout):
        ways = [
            f"install executorch=={checkout} for {python}",
            f"build ExecuTorch {installed} (--source)",
            "add --install none",
        ]
        # ./nox refuses any other version.
        if any(is_same(row.executorch, checkout) for row in read_pairs().supported):
            command = f"`./nox -s build_aot -- --executorch {checkout}`"
            ways.insert(0, f"run {command}, which creates an environment")
        raise UnfitError(
            f"the checkout is ExecuTorch {checkout}, but executorch {installed} is installed",
            why=f"an overlay combines the wheel installed for {python} with the checkout's "
            "adaptor, so their versions must match",
            fix="; or ".join(ways),
        )


def check_fitness(
    environment: Environment,
    request: BuildRequest,
    submodules: tuple[str, ...],
    progress: Progress,
    *,
    without: frozenset[str] = frozenset(),
) -> None:
    """Run the doctor, unless the request disables it. Raises UnfitError with the doctor's first
    error and all others, if there are any except those with the ids ``without``."""
    if request.doctor:
        from provisioning.doctor.examine import examine

        verdict = examine(
            environment.profile,
            environment,
            python=request.python,
            soc=request.soc,
            # Another target of the profile may need more of them.
            submodules=submodules,
            progress=progress,
        )
        findings = [finding for finding in verdict.findings if finding.id not in without]
        replace(verdict, findings=tuple(findings)).require()


def describe_soc(request: BuildRequest) -> dict[str, str]:
    """Return the values of the placeholders for a DSP build. Raises UsageError if the SoC is
    missing or unknown, if the DSP type is unknown, or if the SoC has no such DSP.
    """
    if not request.soc:
        raise UsageError("a direct mode build needs an SoC", fix="add --soc, such as SM8750")
    if request.dsp_type not in {LPAI, HTP}:
        raise UsageError(
            f"there is no DSP type {request.dsp_type}",
            fix="use 0 for LPAI (aDSP) or 3 for HTP (cDSP)",
        )
    soc = find_soc(request.soc)
    if request.dsp_type == LPAI and soc.lpai is None:
        raise UsageError(f"{request.soc} has no LPAI block", fix="use --dsp-type 3")
    arch = f"v{soc.hexagon}"
    return {
        "dsp_arch": arch,
        "dsp_type": str(request.dsp_type),
        "hexagon_policy": f"hexagon-{arch}",
    }


def check_lpai(environment: Environment) -> None:
    """Raise UnfitError if the QNN SDK is older than ExecuTorch's lowering for LPAI requires."""
    versions = {item.name: item.version for item in environment.artifacts}
    sdk, executorch = versions[QNN_SDK], versions[SOURCE]
    row = read_pairs().find(executorch)
    if row and is_older(sdk, row.lpai):
        raise UnfitError(
            f"for LPAI, ExecuTorch {executorch} needs QNN SDK {row.lpai} or later, not {sdk}",
            why="ExecuTorch lowers with that version or later, and the runtime must not be older",
            fix="pass such an SDK with --sdk, or provision the profile direct-lpai",
        )


def wanted_submodules(source: Path, components: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths of the submodules that manifests/toolchains/executorch.toml lists for
    ``components``.

    In that file, a path that ends in ``/**`` stands for a submodule and the submodules in its
    .gitmodules.
    """
    paths_of = read_toolchain(SOURCE).components
    paths: list[str] = []
    for row in dict.fromkeys(row for name in components for row in paths_of[name]):
        path = row.removesuffix("/**")
        paths.append(path)
        if path != row:
            paths += [f"{path}/{nested}" for nested in list_submodules(source / path)]
    return tuple(paths)


def check_submodules(source: Path, submodules: tuple[str, ...]) -> None:
    """Raise UnfitError if a submodule is missing. The error lists all missing submodules, not only
    the first."""
    missing = [path for path in submodules if not has_files(source / path)]
    if missing:
        raise UnfitError(
            f"{source} lacks {len(missing)} of {len(submodules)} submodules: {', '.join(missing)}",
            why="they are empty or missing; CMake would report them late and one by one",
            fix=f"git -C {shell_word(str(source))} submodule update --init --recursive "
            f"{shell_words(missing)}",
        )


def find_installed(source: Path) -> frozenset[str]:
    """Return the files that ``--install checkout`` put into a checkout. They are results of builds,
    not sources.
    """
    rows = {row for target in read_targets().values() for row in target.installs}
    installed = (path for row in rows for path in (source / row.to).glob(Path(row.path).name))
    return frozenset(path.relative_to(source).as_posix() for path in installed)


def check_headers(sdk: Path) -> None:
    """Raise UnfitError if the QNN SDK lacks a header that CMake does not check for."""
    headers = [f"include/QNN/{name}" for name in read_doctor_policy().headers]
    missing = [header for header in headers if not (sdk / header).is_file()]
    if missing:
        raise UnfitError(
            f"the QNN SDK in {sdk} lacks {', '.join(missing)}",
            why="CMake configures without them, but the compiler then fails",
            fix="provision qnn-sdk with its headers, or set QNN_SDK_ROOT to a complete SDK",
        )


def check_names(source: Path, sdk: Path) -> None:
    """Raise UnfitError if the sources use a QNN name that the SDK's headers do not declare.

    An SDK of another version can have the same header without that name.
    """
    texts = {
        path.relative_to(source): read_text(path, "replace")
        for path in sorted((source / QNN_SOURCES).rglob("*"))
        if path.suffix in {".h", ".cpp"}
    }
    undeclared = {name: path for path, text in texts.items() for name in list_names(text)}
    # Names that ExecuTorch defines itself look like those of QNN.
    declared = [name for text in texts.values() for name in DEFINITION.findall(text)]
    # All headers, since a name may be in any of them.
    for path in (sdk / "include/QNN").rglob("*.h"):
        declared += QNN_NAME.findall(read_text(path, "replace"))
    for name in declared:
        undeclared.pop(name, None)
    if undeclared:
        named = [f"{name} ({path})" for name, path in sorted(undeclared.items())]
        raise UnfitError(
            f"the headers of the QNN SDK in {sdk} lack {name_some(named, MOST_NAMES)}",
            why="the checkout's sources use names that only another version of the SDK declares",
            fix="pass a newer SDK with --sdk, or build an ExecuTorch that works with this one "
            "(docs/reference/pairs.md)",
        )


def list_names(text: str) -> frozenset[str]:
    """Return the QNN API names that C++ source uses. Code inside preprocessor conditionals is
    ignored, because it may not be compiled.

    There are two exceptions: a header's include guard, and ``#ifndef __hexagon__``, because builds
    for hosts and devices compile that code.
    """
    lines: list[str] = []
    unsure: list[bool] = []  # for each enclosing conditional, whether it may exclude the line
    for line in GUARD.sub("", NO_CODE.sub(" ", text)).splitlines():
        directive = DIRECTIVE.match(line)
        word = directive[1] if directive else ""
        if word.startswith("if"):
            unsure.append(not NOT_HEXAGON.match(line))
        elif word == "endif" and unsure:
            unsure.pop()
        elif word.startswith("el") and unsure:
            unsure[-1] = True
        elif not word and not any(unsure):
            lines.append(line)
    return frozenset(QNN_NAME.findall("\n".join(lines)))


def check_programs(programs: tuple[str, ...]) -> None:
    """Raise UnfitError if any of ``programs`` is not on PATH."""
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        raise UnfitError(
            f"programs are not on PATH: {', '.join(missing)}",
            why="ExecuTorch builds flatc and flatcc for this machine with these programs",
            fix="Debian, Ubuntu: apt-get install make g++",
        )


def probe_python(needs: Needs, request: BuildRequest) -> tuple[str, str]:
    """Return the tag (such as ``cpython-311``) and the version of the Python that the build runs.

    Raises UnfitError if that Python does not run, or lacks a module that the build imports.
    """
    optional = {
        option: names
        for option, names in needs.option_modules.items()
        if not request.turns_off(option)
    }
    modules = (*needs.modules, *(name for names in optional.values() for name in names))
    # CMake runs this Python to generate code, and fails in the middle of a build without a module.
    facts = ask_python(request.python, modules if request.packages else ())
    if missing := [name for name, is_there in facts.modules.items() if not is_there]:
        packages = dict.fromkeys(PACKAGES.get(name, name) for name in missing)
        ways = [
            f", or add -D {option}=OFF" for option in optional if {*optional[option]} & {*missing}
        ]
        raise UnfitError(
            f"{request.python} has no module {', '.join(missing)}",
            why="ExecuTorch's build runs this Python to generate code",
            fix=f"{request.python} -m pip install {' '.join(packages)}{''.join(ways)}",
        )
    for option, names in optional.items():
        # CMake stops here, with advice that does not lead on: "Caffe2 uses CUDA but I cannot find
        # the CUDA libraries". A machine with the toolkit can build against a CUDA torch.
        has_toolkit = not facts.torch_cuda or has_cuda_toolkit(os.environ)
        if "torch" in names and request.packages and not has_toolkit:
            raise UnfitError(
                f"torch in {request.python} was built for CUDA {facts.torch_cuda}, and this machine"
                " has no CUDA toolkit",
                why=f"with {option}, CMake looks for CUDA because torch needs it",
                fix="install a CPU build of torch (QNN_CI_TORCH_INDEX names an index that has one),"
                f" or add -D {option}=OFF",
            )
    tag = "-".join(facts.tag.strip(".").split("-")[:2])
    return tag, ".".join(map(str, facts.version))


def find_python(word: str) -> Path:
    """Return the path of the interpreter that ``--python`` selects. ``word`` is a path, a command,
    or a version such as 3.12. If it is empty, return the Python that runs this program.

    Raises UnfitError if there is no such interpreter.
    """
    if not word:
        return Path(sys.executable)
    for name in (word, f"python{word}"):
        if program := shutil.which(name):
            return Path(program).absolute()
    fault, fix = f"there is no Python {word!r} on PATH", "pass a path, or install that version"
    if os.sep in word:
        fault, fix = f"{word} is not an executable file", "pass the path of a Python interpreter"
    raise UnfitError(fault, fix=fix)
