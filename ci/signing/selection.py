"""Select the libraries to sign from the options of ``sign`` and manifests/policies/signing.toml.

Then read and check all of them, before the first of them is signed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from ci.signing.mbn import MalformedError, parse_image
from provisioning.artifacts.installations import read_sdk_yaml
from provisioning.documents import read_user_file
from provisioning.elf.facts import EM_QDSP6, ElfError, name_machine
from provisioning.elf.qnn_build import QnnBuild, find_qnn_build
from provisioning.elf.reader import parse_checksum, read_elf
from provisioning.errors import UnfitError, UsageError
from provisioning.manifest.reader import read_profile
from provisioning.versions import find_place_version, is_older

ROOT_HINTS = {
    "qnn_sdk": ("the QNN SDK", "--qnn-sdk or QNN_SDK_ROOT"),
    "hexagon_tools": ("the Hexagon tools", "--hexagon-tools or HEXAGON_TOOLS_ROOT"),
}
PLACE_VERSION = re.compile(r"(?:hexagon-|^)v(\d\d)$")
NAME_VERSION = re.compile(r"HtpV(\d\d)Skel")


class Library(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A library in the policy. ``path`` contains placeholders. ``hexagon`` is the Hexagon version
    that the library must be built for, or "" if any version is accepted.
    """

    path: str
    hexagon: str = ""


class OpPackage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file patterns of an op package's libraries, and the first QNN SDK that supports op
    packages.

    ``patterns`` are globs relative to the directory of the op package. Only the first pattern that
    matches any file is used.
    """

    minimum_qnn: str
    patterns: tuple[str, ...]


class SigningPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of manifests/policies/signing.toml."""

    lpai_architectures: tuple[str, ...]
    hexagon_architectures: tuple[str, ...]
    signer: str
    output: str
    usual: tuple[Library, ...]
    direct: tuple[Library, ...]
    op_package: OpPackage


@dataclass(frozen=True)
class Selection:
    """The options that select libraries.

    ``lpai_arch`` selects LPAI's libraries. If ``direct_mode`` is true, these are the libraries for
    direct mode instead of the usual ones. Direct mode also needs ``htp_arch``. The libraries in the
    directory ``op_package``, and ``files``, are selected in addition.
    """

    lpai_arch: str = ""
    htp_arch: str = ""
    direct_mode: bool = False
    op_package: Path | None = None
    files: tuple[Path, ...] = ()


@dataclass(frozen=True)
class RequestedLibrary:
    """A library to sign. ``label`` is its path with a placeholder for its root directory.
    ``hexagon`` is the Hexagon version that it must be built for, or "" if any is accepted.
    """

    path: Path
    label: str
    hexagon: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name


def check_selection(selection: Selection, policy: SigningPolicy) -> None:
    """Check that the options select something and can be combined. Raises UsageError."""
    lpai_arch, htp_arch = selection.lpai_arch, selection.htp_arch
    if not (lpai_arch or selection.op_package or selection.files):
        raise UsageError(
            "no library to sign is selected",
            fix="pass --lpai-arch v6, --op-package-dir DIR, or files",
        )
    if lpai_arch and lpai_arch not in policy.lpai_architectures:
        raise UsageError(
            f"LPAI architecture {lpai_arch!r} is not supported",
            why="ExecuTorch supports LPAI hardware " + ", ".join(policy.lpai_architectures),
        )
    if selection.direct_mode and not (lpai_arch and htp_arch):
        raise UsageError("--direct-mode needs --lpai-arch and --htp-arch")
    if htp_arch and htp_arch not in policy.hexagon_architectures:
        raise UsageError(
            f"Hexagon architecture {htp_arch!r} is unknown",
            fix="use one of: " + ", ".join(policy.hexagon_architectures),
        )


def list_requested(
    selection: Selection, policy: SigningPolicy, roots: Mapping[str, Path | None]
) -> tuple[RequestedLibrary, ...]:
    """Return the selected libraries.

    Raises UnfitError with a list of the missing libraries, and UsageError if two libraries have the
    same name.
    """
    rows = policy.direct if selection.direct_mode else policy.usual
    libraries = [_place(row, selection, roots) for row in rows if selection.lpai_arch]
    libraries += [
        RequestedLibrary(path, path.as_posix(), read_place(path)) for path in selection.files
    ]
    missing = [
        _describe_missing(library, roots) for library in libraries if not library.path.is_file()
    ]
    if selection.op_package:
        op_package = list_op_package(selection.op_package, policy)
        libraries += op_package
        if not op_package:
            fault = "contains no library to sign" if selection.op_package.is_dir() else "not found"
            missing.append(f"{selection.op_package} ({fault})")
    # All at once, so that a user need not run the command once per missing file.
    if missing:
        fix = (
            "for libraries of an SDK, run `qnn-ci fetch lpai`, or pass the directory of the "
            "SDK with --qnn-sdk or --hexagon-tools; for libraries of ExecuTorch, run `qnn-ci build "
            "direct` and pass its directory with --build-dir"
        )
        raise UnfitError(
            "libraries to sign are missing",
            why="\n       ".join(missing),
            fix=fix if selection.lpai_arch else "correct the path",
        )
    # All signed files are written to one directory.
    names = [library.name for library in libraries]
    if doubles := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(
            f"several libraries to sign have the same name: {', '.join(doubles)}",
            why="; ".join(str(library.path) for library in libraries if library.name in doubles),
            fix="sign them into separate directories",
        )
    return tuple(libraries)


def _place(
    row: Library, selection: Selection, roots: Mapping[str, Path | None]
) -> RequestedLibrary:
    words = {"lpai_arch": selection.lpai_arch, "htp_arch": selection.htp_arch}
    labels = {name: f"{{{name}}}" for name in roots}
    places = {**labels, **{name: str(root) for name, root in roots.items() if root}}
    path = Path(row.path.format(**words, **places))
    label = row.path.format(**words, **labels)
    build = roots.get("build")
    if build and label.startswith("{build}/") and not path.is_file():
        # The directory may be another one, but a single file of this name in the build is the one
        # that is meant.
        built_files = list(build.rglob(path.name))
        if len(built_files) == 1:
            path = built_files[0]
            label = f"{{build}}/{path.relative_to(build).as_posix()}"
    return RequestedLibrary(path, label, row.hexagon.format(**words))


def _describe_missing(library: RequestedLibrary, roots: Mapping[str, Path | None]) -> str:
    for name, (owner, hint) in ROOT_HINTS.items():
        inner = library.label.removeprefix(f"{{{name}}}/")
        if inner != library.label and not roots.get(name):
            return f"{inner} in {owner} (set {hint})"
    return str(library.path)


def list_op_package(directory: Path, policy: SigningPolicy) -> list[RequestedLibrary]:
    """Return the files in ``directory`` that match a pattern of the policy. If several patterns
    match files, only the first of them counts.
    """
    for pattern in policy.op_package.patterns:
        libraries = []
        for path in sorted(directory.glob(pattern)):
            if path.is_file():
                label = f"{{op_package}}/{path.relative_to(directory).as_posix()}"
                libraries.append(RequestedLibrary(path, label, read_place(path)))
        if libraries:
            return libraries
    return []


def read_place(path: Path) -> str:
    """Return ``v75`` for .../hexagon-v75/unsigned/... or libQnnHtpV75Skel.so, or "" if unknown."""
    for part in reversed(path.parts[:-1]):
        if version := PLACE_VERSION.search(part):
            return f"v{version[1]}"
    named = NAME_VERSION.search(path.name)
    return f"v{named[1]}" if named else ""


LPAI_NAME = re.compile(r"libQnnLpai")


@dataclass(frozen=True)
class Input:
    """A library to sign. ``build`` is the QNN version that was found in its bytes, or None."""

    requested: RequestedLibrary
    data: bytes
    hexagon_version: int
    build: QnnBuild | None

    @cached_property
    def sha256(self) -> str:
        """The hash of the bytes that were checked and will be signed."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def qnn_build(self) -> str:
        """The QNN version as the library contains it, or "" if it contains none."""
        return self.build.text if self.build else ""


def read_inputs(
    libraries: Sequence[RequestedLibrary],
    selection: Selection,
    policy: SigningPolicy,
    qnn_sdk: Path | None,
) -> tuple[Input, ...]:
    """Read and check all of ``libraries``.

    Raises UsageError if a file cannot be read. Raises UnfitError if the QNN SDK is too old for
    ``selection``, or if a library has a fault. The error lists the faults of all libraries.
    """
    inputs = []
    refused: list[str] = []
    wrong: list[str] = []
    for library in libraries:
        # One after another: two readers at a time saved 0.05 s of 0.48 s for 12 libraries (142 MB).
        entry, faults = _read_input(library)
        if entry:
            inputs.append(entry)
        lines = wrong if entry else refused
        lines += [f"{library.path}: {fault}" for fault in faults]
    builds = [(entry.requested.path, entry.build) for entry in inputs if entry.build]
    # Libraries of different builds do not work together: "Stub lib id mismatch" (error 1008).
    if not all(a.agrees_with(b) for _, a in builds for _, b in builds):
        must = "all libraries must be from the same version"
        wrong += [f"{path}: from QNN {build.text}; {must}" for path, build in builds]
    if refused or wrong:
        raise UnfitError(
            "the libraries cannot be signed",
            why="\n       ".join([*refused, *wrong]),
            fix="use unsigned libraries from one QNN SDK, each for the Hexagon version in its path",
        )
    check_sdk_version(find_sdk_version(qnn_sdk, inputs), selection, policy)
    return tuple(inputs)


def _read_input(library: RequestedLibrary) -> tuple[Input | None, list[str]]:
    """Return the input, or None if it is not a Hexagon library, and the reasons why it cannot be
    signed."""
    data = read_user_file(library.path, "the library")
    try:
        image = parse_image(memoryview(data))
    except MalformedError as error:
        try:
            read_elf(library.path)
        except ElfError as better:  # such as "... is an HTML page"
            return None, [better.what]
        return None, [str(error)]
    if image.headers.machine != EM_QDSP6:
        return None, [f"built for {name_machine(image.headers.machine)}, not for Hexagon"]
    faults, version = [], f"v{image.hexagon_version:x}"
    if library.hexagon and version != library.hexagon:
        faults.append(f"built for Hexagon {version}, not for {library.hexagon}")
    if image.hash_segments:
        faults.append("already signed")
    try:
        checksum = parse_checksum(data)
    except ValueError as error:
        faults.append(str(error))
    else:
        # A signature would make the damage look genuine.
        if checksum and checksum.is_wrong:
            faults.append(f"damaged; {checksum.describe()}")
    return Input(library, data, image.hexagon_version, find_qnn_build(library.path)), faults


def list_mixed_notes(inputs: Sequence[Input]) -> Iterator[str]:
    """Yield a note for each library that is built for a newer Hexagon version than the LPAI
    library.

    One DSP loads all of the libraries, and the LPAI library determines its version.
    """
    lpai = next((entry for entry in inputs if LPAI_NAME.match(entry.requested.name)), None)
    if lpai is None:
        return
    for entry in inputs:
        if entry.hexagon_version > lpai.hexagon_version:
            yield (
                f"{entry.requested.name} is built for Hexagon V{entry.hexagon_version:X}, but the "
                f"DSP that loads {lpai.requested.name} is only V{lpai.hexagon_version:X}; all "
                "libraries published for the aDSP of SM8850 are built for V79"
            )


def check_sdk_version(version: str, selection: Selection, policy: SigningPolicy) -> None:
    """Refuse a QNN SDK that is too old for the libraries in ``selection``. Raises UnfitError.

    An unknown version ("") is accepted.
    """
    needs = []
    if selection.lpai_arch:
        needs.append(("LPAI libraries", read_profile("lpai").minimum("qnn-sdk")[0]))
    if selection.op_package:
        needs.append(("LPAI op packages", policy.op_package.minimum_qnn))
    for purpose, minimum in needs:
        if version and is_older(version, minimum):
            raise UnfitError(
                f"QNN SDK {version} cannot be used for {purpose}",
                why=f"{purpose} need QNN SDK {minimum} or later: earlier versions lack the LPAI "
                "backend that ExecuTorch calls",
                fix=f"provision QNN SDK {minimum} or later, and pass its directory with --qnn-sdk",
            )


def find_sdk_version(qnn_sdk: Path | None, inputs: Sequence[Input] = ()) -> str:
    """Return the version of the QNN SDK, or "" if it is unknown.

    It is read from the SDK's sdk.yaml, otherwise from the first library that contains a version,
    otherwise from the SDK's path.
    """
    if qnn_sdk and (version := read_sdk_yaml(qnn_sdk).version):
        return version
    for entry in inputs:
        if entry.build and entry.build.version:
            return entry.build.version
    # Last, because somebody may have renamed the directory.
    return read_directory_version(qnn_sdk)


def read_directory_version(root: Path | None) -> str:
    """Return the version in the path of ``root``, or "" if there is none or ``root`` is None."""
    return find_place_version(str(root.resolve())) if root else ""
