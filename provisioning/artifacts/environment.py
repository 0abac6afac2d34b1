"""Provision the artifacts of a profile, and compose the environment variables that a process needs
to use them. Parse arguments into requests: PROFILE or ARTIFACT[@VERSION][:COMPONENT,...].
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from provisioning.artifacts.installations import check_minimum
from provisioning.artifacts.provision import (
    Provisioned,
    locate_artifact,
    name_request,
    provision_artifacts,
)
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.console.caller import caller_path
from provisioning.console.progress import Progress
from provisioning.elf.loader import find_libraries
from provisioning.errors import ManifestError, UnfitError, UsageError
from provisioning.manifest.reader import (
    Profile,
    ProfileArtifact,
    list_toolchains,
    read_profile,
    read_profiles,
    read_toolchain,
    suggest_near,
)
from provisioning.quoting import script_word
from provisioning.store.store import Published, Store, find_published
from provisioning.store.tree import Tree

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
        stale_roots = filter(None, map(base.get, ROOT_VARIABLES))
        # With a slash, so that /sdk does not match /sdk-2.
        stale = tuple(f"{root.rstrip('/')}/" for root in stale_roots)
        # A library of another QNN on the search path would be loaded instead of the profile's.
        variables = {name: value for name, value in base.items() if name not in DROPPED_VARIABLES}
        if "PATH" in variables:
            parts = variables["PATH"].split(os.pathsep)
            variables["PATH"] = os.pathsep.join(
                part for part in parts if not f"{part}/".startswith(stale)
            )
        return {**variables, **self.variables}

    @property
    def unset(self) -> list[str]:
        """The variables of any other QNN, which must not be set, sorted."""
        return sorted(set(DROPPED_VARIABLES) - self.variables.keys())


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
    requests = profile_requests(profile, options or Options(offline=offline))
    artifacts = provision_artifacts(requests, Store(), progress, verify=verify)
    return compose_environment(name, profile, tuple(artifacts))


@dataclass(frozen=True)
class LocatedProfile:
    """A profile, and each of its requests with what is on this machine for it, or None."""

    name: str
    profile: Profile
    located: tuple[tuple[ArtifactRequest, Provisioned | None], ...]
    home: Path  # of the store in which the others are missing

    @property
    def artifacts(self) -> tuple[Provisioned, ...]:
        """The artifacts that are on this machine."""
        return tuple(artifact for _, artifact in self.located if artifact)

    def find_root(self, name: str) -> Path | None:
        """Return the root directory of an artifact, or None if it is missing."""
        roots = {artifact.name: artifact.root for artifact in self.artifacts}
        return roots.get(name)

    def compose(self) -> Environment:
        """Return the environment of the profile.

        Raises UnfitError if artifacts are missing. The error names all of them, and the command
        that fetches them.
        """
        missing = [request for request, artifact in self.located if artifact is None]
        if not missing:
            return compose_environment(self.name, self.profile, self.artifacts)
        variables = [request.toolchain.adoption.variable for request in missing]
        variables = [*filter(None, variables)]
        or_adopt = f", or set {variables[0]} to an installation" if variables else ""
        if len(variables) > 1:
            listed = f"{', '.join(variables[:-1])} and {variables[-1]}"
            or_adopt = f", or set {listed} to your installations"
        words = ["+".join([self.name, *other_versions(self.profile, missing)])]
        # That command does not get an option such as --source, so that it would also fetch the
        # profile's own artifact.
        if any(artifact.adopted for artifact in self.artifacts):
            words = [name_request(request) for request in missing]
        raise UnfitError(
            f"profile {self.name} lacks {', '.join(request.label for request in missing)}",
            why=f"the store {self.home} does not contain every artifact of this profile",
            fix=f"run `qnn-ci fetch {' '.join(words)}`{or_adopt}",
        )


def locate_artifacts(name: str, progress: Progress) -> LocatedProfile:
    """Return which artifacts of a profile are on this machine, without fetching anything. Raises
    UnfitError if a directory that the user chose cannot be used."""
    profile = read_profile(name)
    store = Store()
    requests = profile_requests(profile, Options(offline=True))
    located = [(request, locate_artifact(request, store, progress)) for request in requests]
    return LocatedProfile(name, profile, tuple(located), store.home)


def locate_profile(name: str, progress: Progress) -> Environment:
    """Return the environment of a profile without fetching anything. Raises the same errors as
    locate_artifacts and LocatedProfile.compose."""
    return locate_artifacts(name, progress).compose()


def other_versions(profile: Profile, requests: list[ArtifactRequest]) -> list[str]:
    """Return ARTIFACT@VERSION for each request whose version the user chose instead of the
    profile's."""
    versions = {artifact.name: artifact.version for artifact in profile.artifacts}
    return [
        f"{request.name}@{request.release.version}"
        for request in requests
        if request.release != request.toolchain.release(versions[request.name])
    ]


def profile_requests(profile: Profile, options: Options) -> list[ArtifactRequest]:
    """Return a request for each artifact that a profile needs on this machine. Raises UnfitError if
    the user chose a version that is too old for the profile.
    """
    names = (artifact.unless_library for artifact in profile.artifacts)
    library_paths = find_libraries(filter(None, names))
    requests = []
    for artifact in profile.artifacts:
        if library_paths.get(artifact.unless_library) or _is_brought(artifact):
            continue
        toolchain = read_toolchain(artifact.name)
        request = ArtifactRequest(
            toolchain,
            toolchain.chosen_release(os.environ, artifact.version),
            artifact.components,
            options,
            artifact.minimum,
            artifact.minimum_reason,
        )
        requests.append(request)
    for request in requests:
        adoption = request.toolchain.adoption
        if chosen := adoption.find_version(os.environ):
            check_minimum(request, adoption.choice, chosen)
    return requests


def _is_brought(artifact: ProfileArtifact) -> bool:
    """Return whether the user's installation of another artifact already contains ``artifact``.

    A variable must point to that installation, and the installation must contain the marker files
    of ``artifact``. Returns False if a variable points to an installation of ``artifact`` itself.
    """
    adoption = read_toolchain(artifact.name).adoption
    if not adoption.variable or adoption.find_named(os.environ)[1]:
        return False
    for name, directory in artifact.unless_in.items():
        root = read_toolchain(name).adoption.find_named(os.environ)[1]
        place = caller_path(Path(root).expanduser()) / directory
        if root and all((place / Path(marker).name).is_file() for marker in adoption.markers):
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
    # The dynamic loader has no way to quote it.
    if split := next((root for root in roots.values() if os.pathsep in root), ""):
        raise UnfitError(
            f"{split} has {os.pathsep!r} in its path",
            why=f"{os.pathsep!r} separates the directories in LD_LIBRARY_PATH",
            fix="move it; QNN_CI_HOME changes the directory of the store",
        )
    try:
        variables = {
            key: re.sub(r"\{([^{}]*)\}", lambda match: roots[match[1]], value)
            for key, value in profile.variables.items()
        }
    except KeyError as error:
        raise ManifestError(
            f"a variable of profile {name} contains {{{error.args[0]}}}",
            why="the profile has no artifact with this name, or this machine does not need it",
            fix="correct manifests/profiles.toml",
        ) from error
    for optional in profile.artifacts:
        if optional.is_optional and optional.name in roots:
            variables["LD_LIBRARY_PATH"] += f":{roots[optional.name]}/lib"
    for variable in profile.from_caller:
        if value := os.environ.get(variable):
            variables[variable] = str(caller_path(Path(value).expanduser()).absolute())
    return Environment(name, artifacts, variables)


def render_shell(environment: Environment) -> str:
    """Return lines for ``eval`` in a POSIX shell. They also unset the variables of any
    other QNN.
    """
    lines = [f"unset {name}" for name in environment.unset]
    lines += [
        f"export {name}={script_word(value)}" for name, value in environment.variables.items()
    ]
    return "".join(line + "\n" for line in lines)


def render_github(environment: Environment) -> str:
    """Return lines for the file that GITHUB_ENV points to. GitHub documents the format under
    "Workflow commands". It cannot unset a variable, so variables of another QNN are set to ''.
    """
    values = {**dict.fromkeys(environment.unset, ""), **environment.variables}
    return "".join(github_line(name, value) for name, value in values.items())


def github_line(name: str, value: str) -> str:
    """Return a variable in the format of GITHUB_ENV. A multi-line value is enclosed in two lines
    with a unique delimiter.
    """
    if "\n" not in value and "\r" not in value:
        return f"{name}={value}\n"
    delimiter = f"end_{hashlib.sha256(value.encode()).hexdigest()}"
    return f"{name}<<{delimiter}\n{value}\n{delimiter}\n"


def parse_selection(words: Sequence[str], options: Options) -> list[ArtifactRequest]:
    """Return the requests for ``words``, by default for the profile emulator, without duplicates.
    Raises UsageError for an unknown name, version or component.
    """
    return unique_requests(
        request for word in words or ["emulator"] for request in _parse_word(word, options)
    )


def _parse_word(word: str, options: Options) -> list[ArtifactRequest]:
    profiles = read_profiles()
    if word.partition("+")[0] in profiles:
        return profile_requests(read_profile(word), options)
    head, _, components = word.partition(":")
    name, _, version = head.partition("@")
    if name not in (artifacts := list_toolchains()):
        meant = suggest_near(name, [*profiles, *artifacts])
        raise UsageError(
            f"there is no profile or artifact {name!r}",
            fix=f"{meant}use a profile ({', '.join(profiles)}) or an artifact "
            f"({', '.join(artifacts)})",
        )
    toolchain = read_toolchain(name)
    component_names = tuple(filter(None, components.split(",")))
    for mark, noun, is_empty in (
        ("@", "version", not version),
        (":", "component", not component_names),
    ):
        if mark in word and is_empty:
            raise UsageError(f"{word} names no {noun}", fix=f"add one, or leave out the {mark}")
    return [ArtifactRequest(toolchain, toolchain.release(version), component_names, options)]


def unique_requests(requests: Iterable[ArtifactRequest]) -> list[ArtifactRequest]:
    """Return one of the requests for each directory that they need in the store."""
    return list({request.key().directory: request for request in requests}.values())


def stored_trees(store: Store) -> Iterator[tuple[Published, Tree]]:
    """Yield every published directory that has a valid tree.json, with the content of that file."""
    paths = sorted(store.trees.iterdir()) if store.trees.is_dir() else []
    return filter(None, map(find_published, paths))


def unreadable_trees(store: Store) -> list[Path]:
    """Return the directories that are named like published ones but have no valid tree.json."""
    readable = {published.path for published, _ in stored_trees(store)}
    paths = store.trees.iterdir() if store.trees.is_dir() else ()
    is_ours = re.compile(r"[^.].*-[0-9a-f]{12}").fullmatch
    return sorted(path for path in paths if is_ours(path.name) and path not in readable)


def stored_requests(store: Store) -> list[ArtifactRequest]:
    """Return a request for every published artifact that the manifests describe, those of profiles
    first. Artifacts with a damaged lock are left out.
    """
    candidates = parse_selection([*read_profiles()], Options())
    for name in list_toolchains():
        toolchain = read_toolchain(name)
        trees = [tree for _, tree in stored_trees(store) if tree.artifact == name]
        component_sets = {(), *(tree.components for tree in trees)}
        candidates += [
            ArtifactRequest(toolchain, release, components)
            for release in toolchain.releases
            for components in component_sets
            if set(components) <= toolchain.components.keys()
        ]
    pinned = []
    for request in unique_requests(candidates):
        with suppress(ManifestError):  # its lock is damaged: see damaged_locks
            pinned.append(request.pinned(store))
    return [request for request in pinned if store.find(request.key())]
