"""Finds the runtime that an earlier session of the same nox call built, and compares its versions
with the versions that this session's programs need."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from provisioning.artifacts.choice import SDK, WHEEL, WHEEL_RUNTIME, QnnChoice
from provisioning.artifacts.installations import read_version
from provisioning.documents import DocumentError, read_json
from provisioning.elf.programs import is_loadable
from provisioning.errors import UnfitError
from provisioning.manifest.reader import read_toolchain
from provisioning.versions import is_same, is_version

FINISHED = "QNN_CI_FINISHED"  # set by the noxfile: the sessions of this call that passed
RUNTIMES = ("build_android", "build_linux", "build_runner", "build_direct")


class Identity(msgspec.Struct, frozen=True):
    """The versions of a build's ExecuTorch and QNN SDK, as in artifacts.json. A version is empty if
    the build did not use a known one."""

    executorch_version: str = ""
    qnn_sdk_version: str = ""


class BuildRow(msgspec.Struct, frozen=True):
    """A build in artifacts.json. ``lowers_with`` is the build's SDK if this machine can lower with
    that SDK and the build's version of ExecuTorch, otherwise empty."""

    identity: Identity
    lowers_with: str = ""


class BuildsFile(msgspec.Struct, frozen=True):
    """The part of artifacts.json that is read here."""

    builds: tuple[BuildRow, ...]


@dataclass(frozen=True)
class Built:
    """The session that built a runtime, the versions of its sources, and the SDK to lower with."""

    session: str
    executorch: str
    qnn: str
    sdk: str = ""


def find_built(reports: Path) -> Built | None:
    """Return the last runtime that a session of this nox call built with a QNN SDK, or None.
    ``reports`` is the directory that the sessions share."""
    finished = [name for name in os.environ.get(FINISHED, "").split() if name in RUNTIMES]
    for name in reversed(finished):
        try:
            row = read_json(reports / name / "artifacts.json", BuildsFile).builds[-1]
        except (DocumentError, IndexError):
            continue
        if row.identity.qnn_sdk_version:
            identity = row.identity
            return Built(
                name, identity.executorch_version, identity.qnn_sdk_version, row.lowers_with
            )
    return None


def installed_executorch() -> str:
    """Return the version of the installed executorch, or an empty string if it is not installed."""
    try:
        return version("executorch")
    except PackageNotFoundError:
        return ""


def require_executorch(version: str) -> None:
    """Raise UnfitError if ``version`` is not empty and differs from the installed version of
    ExecuTorch."""
    installed = installed_executorch()
    if version and not is_same(installed or "0", version):
        raise UnfitError(
            f"--executorch {version}: "
            + (f"{installed} is installed" if installed else "executorch is not installed"),
            why="only `./nox -s` creates an environment with that version; qnn-ci does not",
            fix=f"run the same session with `./nox -s`, or install executorch=={version} in another"
            " environment",
        )


def follow_build(built: Built | None, sdk: str) -> str:
    """Return the SDK to lower with. If ``sdk`` or the variable QNN_CI_SDK is set, return ``sdk``
    unchanged. Otherwise return the build's SDK if the installed ExecuTorch has the build's version,
    else an empty string."""
    if sdk or os.environ.get("QNN_CI_SDK") or not (built and built.sdk):
        return sdk
    return built.sdk if is_same(installed_executorch(), built.executorch) else ""


def find_qnn(chosen: QnnChoice) -> str:
    """Return the version of QNN that programs are compiled with."""
    if chosen.sdk == WHEEL:
        return read_toolchain(WHEEL_RUNTIME).default
    toolchain = read_toolchain(SDK)
    if is_version(chosen.sdk) or not toolchain.adoption.variable:
        return chosen.sdk
    named = toolchain.adoption.find_choice({toolchain.adoption.choice: chosen.sdk})
    return read_version(Path(named), toolchain.adoption) if named else toolchain.default


def compare_built(built: Built, chosen: QnnChoice) -> tuple[str, bool]:
    """Return a sentence that compares the versions of the programs and of the built runtime, and
    whether that runtime can load the programs. It needs the same version of ExecuTorch, and a QNN
    that is not older than the programs' QNN."""
    executorch, qnn = installed_executorch(), find_qnn(chosen)
    programs = f"the programs are for ExecuTorch {executorch} and QNN {qnn}"
    runtime = f"that {built.session} just built (ExecuTorch {built.executorch}, QNN {built.qnn})"
    if is_same(executorch, built.executorch) and is_loadable(qnn, built.qnn):
        return f"{programs}: the runner {runtime} can load them", True
    return f"{programs}: the runner {runtime} cannot load them", False


def explain_apart(built: Built) -> str:
    """Return advice on which options to add, so that the built runtime can load the programs."""
    installed = installed_executorch()
    ways = []
    if not is_same(installed, built.executorch):
        ways.append(f"--executorch {built.executorch}")
    if not built.sdk:
        ways.append(f"--sdk with a QNN SDK {built.qnn} that has libraries for x86-64")
    return (
        "to judge programs that this runner can load, add "
        f"{' and '.join(ways) or f'--sdk {built.sdk}'}"
    )
