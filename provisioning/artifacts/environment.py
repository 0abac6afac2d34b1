"""Provision the artifacts of a profile, and compose the environment variables that a process needs
to use them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.artifacts.provision import Provisioned, locate_artifact, provision_artifacts
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.artifacts.sources.local import check_minimum
from provisioning.console.caller import caller_path
from provisioning.console.progress import Progress
from provisioning.elf.loader import find_libraries
from provisioning.errors import ManifestError, UnfitError
from provisioning.manifest.reader import Profile, ProfileArtifact, read_profile, read_toolchain
from provisioning.store.store import Store

# Roots and search paths that Qualcomm's envsetup scripts set in a shell.
ROOT_VARIABLES = (
    "QNN_SDK_ROOT",
    "QAIRT_SDK_ROOT",
    "QAIRT_ROOT",
    "SNPE_ROOT",
    "AISW_SDK_ROOT",
    "QNN_SRC_DIR",
)
DROPPED_VARIABLES = (
    *ROOT_VARIABLES,
    "LD_LIBRARY_PATH",
    "ADSP_LIBRARY_PATH",
    "DSP_LIBRARY_PATH",
    "SNPE_TARGET_ARCH",
)


@dataclass(frozen=True)
class Environment:
    """The provisioned artifacts of a profile, and the variables that point to them."""

    profile: str
    artifacts: tuple[Provisioned, ...]
    variables: Mapping[str, str]

    def root(self, name: str) -> Path:
        """Return the root directory of the artifact ``name``. Raises KeyError."""
        return {artifact.name: artifact.root for artifact in self.artifacts}[name]

    def apply(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the complete environment for a process: ``base`` without the variables and PATH
        entries of any other QNN, plus the variables of this environment.

        LD_LIBRARY_PATH of ``base`` is dropped; PYTHONPATH is kept.
        """
        stale = [root.rstrip("/") for name in ROOT_VARIABLES if (root := base.get(name))]
        kept = {name: value for name, value in base.items() if name not in DROPPED_VARIABLES}
        if "PATH" in kept:
            kept["PATH"] = os.pathsep.join(
                part for part in kept["PATH"].split(os.pathsep) if not _is_below(part, stale)
            )
        return {**kept, **self.variables}


def _is_below(path: str, roots: list[str]) -> bool:
    return any(path == root or path.startswith(root + "/") for root in roots)


def provision_profile(
    name: str,
    progress: Progress,
    *,
    verify: bool = False,
    offline: bool = False,
    options: Options | None = None,
) -> Environment:
    """Fetch the missing artifacts of a profile, and return its environment.

    If ``verify`` is true, existing artifacts are hashed again. Files in the store that differ are
    repaired; in the user's own installation, they are an error. If ``offline`` is true, nothing is
    downloaded. If ``options`` are given, they are used instead of ``offline``.

    Raises UsageError, ManifestError, UnfitError, DownloadError, IntegrityError, StoreError,
    ToolError.
    """
    profile = read_profile(name)
    chosen = options or Options(offline=offline)
    store = Store()
    requests = profile_requests(profile, chosen)
    artifacts = provision_artifacts(requests, store, progress, verify=verify)
    return compose_environment(name, profile, tuple(artifacts))


def locate_profile(name: str, progress: Progress) -> Environment:
    """Return the environment of a profile without fetching anything.

    Raises UnfitError if artifacts are missing. The error names all of them, and the command that
    fetches them.
    """
    profile = read_profile(name)
    store = Store()
    requests = profile_requests(profile, Options(offline=True))
    found = [locate_artifact(request, store, progress) for request in requests]
    missing = [request for request, item in zip(requests, found, strict=True) if item is None]
    if missing:
        adoptions = [request.toolchain.adoption for request in missing]
        variables = ", ".join(adoption.variable for adoption in adoptions if adoption)
        or_adopt = f", or set {variables} to an installation" if variables else ""
        raise UnfitError(
            f"profile {name} lacks {', '.join(request.label for request in missing)}",
            why=f"the store {store.home} does not contain every artifact of this profile",
            fix=f"run `qnn-ci fetch {name}`{or_adopt}",
        )
    return compose_environment(name, profile, tuple(item for item in found if item))


def profile_requests(profile: Profile, options: Options) -> list[ArtifactRequest]:
    """Return a request for each artifact that a profile needs on this machine. Raises UnfitError if
    the user chose a version that is too old for the profile.
    """
    names = (wanted.unless_library for wanted in profile.artifacts)
    found = find_libraries(filter(None, names))
    needed = (wanted for wanted in profile.artifacts if not found.get(wanted.unless_library))
    pairs = [(read_toolchain(wanted.name), wanted) for wanted in needed if not _is_brought(wanted)]
    requests = [
        ArtifactRequest(
            toolchain,
            toolchain.chosen_release(os.environ, wanted.version),
            wanted.components,
            options,
            wanted.minimum,
            wanted.minimum_reason,
        )
        for toolchain, wanted in pairs
    ]
    for request in requests:
        adoption = request.toolchain.adoption
        if adoption and (chosen := adoption.find_version(os.environ)):
            check_minimum(request, adoption.choice, chosen)
    return requests


def _is_brought(wanted: ProfileArtifact) -> bool:
    """Return whether the user's installation of another artifact already contains ``wanted``.

    A variable must point to that installation, and the installation must contain the marker files
    of ``wanted``. Returns False if a variable points to an installation of ``wanted`` itself.
    """
    own = read_toolchain(wanted.name).adoption
    if own is None or own.find_named(os.environ)[1]:
        return False
    for name, directory in wanted.unless_in.items():
        adoption = read_toolchain(name).adoption
        root = adoption.find_named(os.environ)[1] if adoption else ""
        place = caller_path(Path(root).expanduser()) / directory
        if root and all((place / Path(marker).name).is_file() for marker in own.markers):
            return True
    return False


def compose_environment(
    name: str, profile: Profile, artifacts: tuple[Provisioned, ...]
) -> Environment:
    """Return the environment of a profile, with the artifacts' roots in its variables. For
    variables in ``profile.from_caller``, the values that the user has set take precedence. Raises
    UnfitError if a root cannot be in a search path, ManifestError for an unknown ``{name}``.
    """
    roots = {artifact.name: str(artifact.root) for artifact in artifacts}
    if split := next((root for root in roots.values() if os.pathsep in root), ""):
        raise UnfitError(
            f"{split} has {os.pathsep!r} in its path",
            why=f"{os.pathsep!r} separates the directories in LD_LIBRARY_PATH",
            fix="move it; QNN_CI_HOME changes the directory of the store",
        )
    try:
        variables = {
            key: re.sub(r"\{([^{}]*)\}", lambda found: roots[found[1]], value)
            for key, value in profile.variables.items()
        }
    except KeyError as error:
        raise ManifestError(
            f"a variable of profile {name} contains {{{error.args[0]}}}",
            why="the profile has no artifact with this name, or this machine does not need it",
            fix="correct manifests/profiles.toml",
        ) from error
    for wanted in profile.artifacts:
        if wanted.is_optional and wanted.name in roots:
            variables["LD_LIBRARY_PATH"] += f":{roots[wanted.name]}/lib"
    for variable in profile.from_caller:
        if value := os.environ.get(variable):
            variables[variable] = str(caller_path(Path(value).expanduser()).absolute())
    return Environment(name, artifacts, variables)


def render_shell(environment: Environment) -> str:
    """Return lines for ``eval`` in a POSIX shell. They also unset the variables of any
    other QNN.
    """
    stale = sorted(set(DROPPED_VARIABLES) - environment.variables.keys())
    lines = [f"unset {name}" for name in stale]
    lines += [
        f"export {name}={shlex.quote(value)}" for name, value in environment.variables.items()
    ]
    return "".join(line + "\n" for line in lines)


def render_github(environment: Environment) -> str:
    """Return lines for the file that GITHUB_ENV points to. GitHub documents the format under
    "Workflow commands". It cannot unset a variable, so variables of another QNN are set to ''.
    """
    stale = sorted(set(DROPPED_VARIABLES) - environment.variables.keys())
    values = {**dict.fromkeys(stale, ""), **environment.variables}
    return "".join(github_line(name, value) for name, value in values.items())


def github_line(name: str, value: str) -> str:
    """Return a variable in the format of GITHUB_ENV. A multi-line value is enclosed in two lines
    with a unique delimiter.
    """
    if "\n" not in value and "\r" not in value:
        return f"{name}={value}\n"
    delimiter = f"end_{hashlib.sha256(value.encode()).hexdigest()}"
    return f"{name}<<{delimiter}\n{value}\n{delimiter}\n"
