"""Read and check all libraries to sign, before the first of them is signed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ci.signing.mbn import MalformedError, parse_image, read_bytes
from ci.signing.selection import Selection, SigningPolicy, Wanted
from provisioning.artifacts.installations import read_sdk_yaml
from provisioning.elf.facts import EM_QDSP6, MACHINE_NAMES, ElfError
from provisioning.elf.qnn_build import QnnBuild, find_qnn_build
from provisioning.elf.reader import parse_checksum, read_elf
from provisioning.errors import UnfitError
from provisioning.manifest.reader import read_profile
from provisioning.versions import find_place_version, is_older

READERS = 2
LPAI_NAME = re.compile(r"libQnnLpai")


@dataclass(frozen=True)
class Input:
    """A library to sign. ``build`` is the QNN version that was found in its bytes, or None."""

    wanted: Wanted
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
    wanted: Sequence[Wanted], selection: Selection, policy: SigningPolicy, qnn_sdk: Path | None
) -> tuple[Input, ...]:
    """Read and check all of ``wanted``.

    Raises UsageError if a file cannot be read. Raises UnfitError if the QNN SDK is too old for
    ``selection``, or if a library has a fault. The error lists the faults of all libraries.
    """
    with ThreadPoolExecutor(READERS) as readers:
        read = list(readers.map(_read_input, wanted))
    inputs = tuple(one for one in read if isinstance(one, Input))
    wrong = [one for one in read if isinstance(one, str)]
    wrong += [fault for one in inputs for fault in list_input_faults(one)]
    wrong += _list_qnn_faults(inputs)
    if wrong:
        raise UnfitError(
            "the libraries cannot be signed",
            why="\n       ".join(wrong),
            fix="use unsigned libraries from one QNN SDK, each for the Hexagon version in its path",
        )
    check_sdk_version(find_sdk_version(qnn_sdk, inputs), selection, policy)
    return inputs


def _read_input(wanted: Wanted) -> Input | str:
    """Return the input, or a message with its path and the reason why it cannot be signed."""
    data = read_bytes(wanted.path)
    try:
        image = parse_image(memoryview(data))
    except MalformedError as error:
        return f"{wanted.path}: {explain_file(wanted.path) or error}"
    if image.headers.machine != EM_QDSP6:
        name = MACHINE_NAMES.get(image.headers.machine, f"e_machine {image.headers.machine}")
        return f"{wanted.path}: built for {name}, not for Hexagon"
    return Input(wanted, data, image.hexagon_version, find_qnn_build(wanted.path))


def explain_file(path: Path) -> str:
    """Return the reason why ``path`` is not an ELF file, such as "... is an HTML page". Return ""
    if it is one.
    """
    try:
        read_elf(path)
    except ElfError as error:
        return error.what
    return ""


def list_input_faults(one: Input) -> Iterator[str]:
    found = f"v{one.hexagon_version:x}"
    if one.wanted.hexagon and found != one.wanted.hexagon:
        yield f"{one.wanted.path}: built for Hexagon {found}, not for {one.wanted.hexagon}"
    if parse_image(memoryview(one.data)).hash_segments:
        yield f"{one.wanted.path}: already signed"
    try:
        checksum = parse_checksum(one.data)
    except ValueError as error:
        yield f"{one.wanted.path}: {error}"
    else:
        if checksum and checksum.is_wrong:
            yield f"{one.wanted.path}: damaged; {checksum.describe()}"


def list_mixed_notes(inputs: Sequence[Input]) -> Iterator[str]:
    """Yield a note for each library that is built for a newer Hexagon version than the LPAI
    library.

    One DSP loads all of the libraries, and the LPAI library determines its version.
    """
    lpai = [one for one in inputs if LPAI_NAME.match(one.wanted.name)]
    for one in inputs if lpai else ():
        if one.hexagon_version > lpai[0].hexagon_version:
            yield (
                f"{one.wanted.name} is built for Hexagon V{one.hexagon_version:X}, but the DSP "
                f"that loads {lpai[0].wanted.name} is only V{lpai[0].hexagon_version:X}; all "
                "libraries published for the aDSP of SM8850 are built for V79"
            )


def _list_qnn_faults(inputs: Sequence[Input]) -> list[str]:
    built = [(one, one.build) for one in inputs if one.build]
    if all(build.agrees_with(other) for _, build in built for _, other in built):
        return []
    return [
        f"{one.wanted.path}: from QNN {build.text}; all libraries must be from the same version"
        for one, build in built
    ]


def check_sdk_version(version: str, selection: Selection, policy: SigningPolicy) -> None:
    """Refuse a QNN SDK that is too old for the libraries in ``selection``. Raises UnfitError.

    An unknown version ("") is accepted.
    """
    needs = []
    if selection.lpai_arch:
        needs.append(("LPAI libraries", read_profile("lpai").minimum("qnn-sdk")[0]))
    if selection.op_package:
        needs.append(("LPAI op packages", policy.op_package.minimum_qnn))
    for what, minimum in needs:
        if version and is_older(version, minimum):
            raise UnfitError(
                f"QNN SDK {version} cannot be used for {what}",
                why=f"{what} need QNN SDK {minimum} or later: earlier versions lack the LPAI "
                "backend that ExecuTorch calls",
                fix=f"provision QNN SDK {minimum} or later, and pass its directory with --qnn-sdk",
            )


def find_sdk_version(qnn_sdk: Path | None, inputs: Sequence[Input] = ()) -> str:
    """Return the version of the QNN SDK, or "" if it is unknown.

    It is read from the SDK's sdk.yaml, otherwise from the first library that contains a version,
    otherwise from the SDK's path.
    """
    if qnn_sdk and (found := read_sdk_yaml(qnn_sdk).version):
        return found
    for one in inputs:
        if one.build and one.build.version:
            return one.build.version
    return read_directory_version(qnn_sdk)


def read_directory_version(root: Path | None) -> str:
    """Return the version in the path of ``root``, or "" if there is none or ``root`` is None."""
    return find_place_version(str(root.resolve())) if root else ""
