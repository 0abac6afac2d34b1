"""Choose the QNN and the AOT adaptor (ExecuTorch's Python bindings for QNN) that models are lowered
and run with.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from provisioning.artifacts.environment import Environment
from provisioning.artifacts.installations import read_version, set_by_option
from provisioning.console.caller import caller_path
from provisioning.console.command import TOOLS, group_options
from provisioning.documents import DocumentError, read_json
from provisioning.errors import UsageError
from provisioning.files import explain_path, write_whole
from provisioning.manifest.reader import read_profiles, read_toolchain
from provisioning.quoting import shell_word
from provisioning.store.home import store_home
from provisioning.store.tree import encode_record
from provisioning.versions import is_same, is_version

SDK_VARIABLE, ADAPTOR_VARIABLE = "QNN_CI_SDK", "QNN_CI_ADAPTOR"
WHEEL, PINNED, OVERLAY = "wheel", "pinned", "overlay"
WHEEL_PROFILE, SDK_PROFILE = "emulator", "emulator-sdk"
WHEEL_RUNTIME = "qnn-runtime"
MAVEN, SDK = "qnn-android", "qnn-sdk"
DEVICE_COMPONENTS = {"android", "linux"}


@dataclass(frozen=True)
class QnnChoice:
    """The chosen QNN and adaptor.

    ``sdk`` is ``wheel``, ``pinned``, a version or a directory. ``adaptor`` is ``wheel``,
    ``overlay`` or the directory of an overlay. An overlay is an executorch package with an adaptor
    that was built from source. If ``adaptor`` is empty, the first compatible adaptor is used,
    starting with the wheel's.
    """

    sdk: str = WHEEL
    adaptor: str = ""

    @property
    def profile(self) -> str:
        """The name of the profile that provides the chosen QNN."""
        return WHEEL_PROFILE if self.sdk == WHEEL else SDK_PROFILE

    @property
    def is_usual(self) -> bool:
        """Whether this is the choice used for the project's baselines: the wheel's runtime and
        adaptor.
        """
        return self.sdk == WHEEL and self.adaptor in {"", WHEEL}

    @property
    def options(self) -> dict[str, str]:
        """The command-line options that repeat this choice; '' for a default."""
        return {"sdk": "" if self.sdk == WHEEL else self.sdk, "adaptor": self.adaptor}


OPTIONS = {
    "--sdk": "the QNN to use: wheel, pinned, a version or a directory"
    f" (default: {SDK_VARIABLE}, else wheel)",
    "--adaptor": "the AOT adaptor to use: wheel, overlay or a directory"
    f" (default: {ADAPTOR_VARIABLE}, else the first compatible one)",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add OPTIONS to a verb's parser."""
    for flag, text in OPTIONS.items():
        group_options(parser, TOOLS)(f"{flag} {flag[2:].upper()}", text, default="")


def read_choice(sdk: str = "", adaptor: str = "") -> QnnChoice:
    """Return the chosen QNN and adaptor. If an argument is empty, the value of its environment
    variable is used.

    The choice is written back to these variables, so that later steps and child processes make the
    same one. Raises UsageError for a directory that does not exist, or for a version that the
    manifest of qnn-sdk does not contain.
    """
    keywords = {SDK_VARIABLE: (WHEEL, PINNED), ADAPTOR_VARIABLE: (WHEEL, OVERLAY)}
    for name, option, word in (
        (SDK_VARIABLE, "--sdk", sdk),
        (ADAPTOR_VARIABLE, "--adaptor", adaptor),
    ):
        value = word or os.environ.get(name, "")
        if name == SDK_VARIABLE and is_version(value):
            read_toolchain(SDK).release(value)
        elif value and value not in keywords[name]:
            value = str(caller_path(Path(value).expanduser()).absolute())
            if not Path(value).is_dir():
                choices = " or ".join(keywords[name])
                fix = f"use {choices}, or an existing directory"
                problem = f"{option if word else name}: {value} is not a directory"
                raise UsageError(problem, why=explain_path(Path(value)), fix=fix)
            if name == SDK_VARIABLE:
                require_sdk(Path(value), option if word else name)
        if value:
            # Absolute from here on, since child processes may have another working directory.
            if word:
                set_by_option(name, value, option)
            else:
                os.environ[name] = value
    return QnnChoice(os.environ.get(SDK_VARIABLE) or WHEEL, os.environ.get(ADAPTOR_VARIABLE, ""))


def require_sdk(directory: Path, name: str) -> None:
    """Raise UsageError if a directory is not the root of a QNN SDK. ``name`` is the option or the
    variable that contains it. An SDK's archive contains the root several levels deep, so the error
    names a root that is at most three levels below."""
    markers = read_toolchain(SDK).adoption.markers
    missing = [marker for marker in markers if not (directory / marker).exists()]
    if not missing:
        return
    fix = f"correct {name}, or leave it out"
    # An SDK's archive has its root at qairt/VERSION/.
    for pattern in ("*", "*/*", "*/*/*"):
        roots = (file.parent for file in directory.glob(f"{pattern}/{missing[0]}"))
        if root := min(roots, default=None):
            fix = f"use {shell_word(str(root))}"
            break
    why = f"it has no {' and no '.join(missing)}"
    raise UsageError(f"{name}: {directory} is not a QNN SDK", why=why, fix=fix)


def lay_over(environment: Environment, overlay: Path, base: Mapping[str, str]) -> Environment:
    """Return an environment in which Python imports executorch from ``overlay`` and the dynamic
    loader finds the overlay's backend.
    """
    path = [str(overlay), *filter(None, [base.get("PYTHONPATH")])]
    libraries = [str(path.parent) for path in find_backends(overlay)]
    variables = {
        **environment.variables,
        "PYTHONPATH": os.pathsep.join(path),
        # First, so that the backend of the wheel is not loaded instead.
        "LD_LIBRARY_PATH": ":".join([*libraries, environment.variables["LD_LIBRARY_PATH"]]),
    }
    return replace(environment, variables=variables)


def find_laid(environment: Environment) -> Path | None:
    """Return the overlay that lay_over added to an environment, or None if there is none."""
    entries = environment.variables.get("PYTHONPATH", "").split(os.pathsep)
    return Path(entries[0]) if entries[0] else None


def list_device_runtimes(names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each name in ``names`` that provides QNN on a device, with the QNN version, such as
    ("android", "2.37.0.250724").

    These names are qnn-android, which applications get from Maven, and the profiles that push an
    SDK's libraries to the device. If QNN_CI_SDK selects an SDK, its version is used for profiles.
    Raises UsageError for an unknown name.
    """
    valid_names = [*read_profiles(), MAVEN]
    if unknown := {*names}.difference(valid_names):
        problem = f"{min(unknown)!r} is neither a profile nor {MAVEN}"
        raise UsageError(problem, fix=f"use one of {', '.join(valid_names)}")
    if MAVEN in names:
        yield MAVEN, read_toolchain(MAVEN).default
    toolchain = read_toolchain(SDK)
    chosen = toolchain.adoption.find_choice(os.environ)
    for name, profile in read_profiles().items():
        for needed in profile.artifacts if name in names else ():
            if needed.name == SDK and DEVICE_COMPONENTS & set(needed.components):
                version = toolchain.chosen_release(os.environ, needed.version).version
                if chosen:
                    version = read_version(Path(chosen), toolchain.adoption)
                yield name, version


RECORD = "overlay.json"
# The QNN backend of ExecuTorch's Python runtime: its name up to 1.4, and its name since 1.5.
BACKENDS = (
    "executorch/backends/qualcomm/libqnn_executorch_backend.so",
    "executorch/lib/libexecutorch_backend_qnn.so",
)


class OverlayRecord(msgspec.Struct, frozen=True):
    """The content of overlay.json: the versions of ExecuTorch and of the QNN SDK that the overlay
    was built with, and the tag of the Python that it was built for.
    """

    executorch: str
    sdk: str
    python: str


def python_tag() -> str:
    """Return the tag in the names of adaptors for the running Python, such as ``cpython-311``."""
    return f"cpython-{sys.version_info.major}{sys.version_info.minor}"


def write_overlay(overlay: Path, record: OverlayRecord) -> None:
    """Write ``record`` into the overlay's directory."""
    write_whole(overlay / RECORD, encode_record(record))


def read_overlay(overlay: Path) -> OverlayRecord | None:
    """Return the record of an overlay, or None if it is missing or damaged."""
    try:
        return read_json(overlay / RECORD, OverlayRecord)
    except DocumentError:
        return None


def find_backends(overlay: Path) -> list[Path]:
    """Return the QNN backends of ExecuTorch's Python runtime that were built for an overlay. Links
    to the wheel's backends are not included.
    """
    places = [overlay / place for place in BACKENDS]
    real = overlay.resolve()
    return [path for path in places if path.is_file() and path.resolve().is_relative_to(real)]


def find_overlays(sdk: str) -> list[tuple[Path, OverlayRecord]]:
    """Return the overlays below ``builds/`` for the QNN version ``sdk`` and the running Python,
    newest first."""
    overlays = []
    for path in store_home().glob("builds/aot-*/overlay"):
        record = read_overlay(path)
        # The adaptor's name contains the Python, and its code the layout of QNN's structures.
        if record and record.python == python_tag() and is_same(record.sdk, sdk):
            overlays.append((path, record))
    return sorted(overlays, key=lambda pair: pair[0].stat().st_mtime_ns, reverse=True)
