"""Libraries that must be of one build of QNN: Htp, System, Prepare, stubs, skels.

A stub and a skel of different builds end on the device with "Stub lib id mismatch", error 1008.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from provisioning.doctor.checks.registry import Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import STAGING, FileFacts
from provisioning.elf.facts import EM_QDSP6
from provisioning.elf.qnn_build import QnnBuild
from provisioning.versions import is_same


class Family(NamedTuple):
    """Libraries that are used together; ``version`` and ``stamp`` are what sdk.yaml says."""

    files: Sequence[FileFacts]
    version: str | None = None
    stamp: str | None = None
    backends: tuple[str, ...] = ("Htp", "Lpai")
    soc: tuple[str, int] | None = None


def find_families(case: Case) -> Iterator[Family]:
    facts = case.facts
    if facts.sdk and facts.sdk.is_directory:
        files, is_pushed = facts.trees[facts.sdk_name].files, case.fitness.skels
        soc = case.soc if is_pushed and facts.sdk.markers else None
        backends = ("Htp",) if is_pushed else ()
        yield Family(files, facts.sdk.version, facts.sdk.stamp, backends, soc)
    if staging := facts.trees.get(STAGING):
        yield Family(staging.files)


FAMILIES = Subjects(find_families)


def most_common_build(files: Iterable[FileFacts]) -> QnnBuild | None:
    """The build that most libraries name whole."""
    builds = (file.build for file in files)
    counted = Counter(build for build in builds if build and build.version and build.stamp)
    return counted.most_common(1)[0][0] if counted else None


@FAMILIES.check(
    "QNN301",
    "{subject} is of {build}, the others are of {usual}",
    "the device ends with 'Stub lib id mismatch' (error 1008), the host with error 14001",
    "take all of them from one SDK",
)
def see_other_build(family: Family) -> Iterator[Seen]:
    usual = most_common_build(family.files)
    for file in family.files:
        if usual and file.build and not file.build.agrees_with(usual):
            yield seen(file.name, file.path, build=file.build.text, usual=usual.text)


@FAMILIES.check(
    "QNN302",
    "sdk.yaml says {stated}, the libraries are of {usual}",
    "ExecuTorch takes what it compiles for from one and what it runs from the other",
    "provision it again; do not copy libraries from one SDK into another",
)
def see_other_statement(family: Family) -> Iterator[Seen]:
    usual, version, stamp = most_common_build(family.files), family.version, family.stamp
    if usual is None:
        return
    is_other = version and usual.version and not is_same(usual.version, version)
    if is_other or (stamp or usual.stamp) != usual.stamp:
        stated = " build ".join(filter(None, (version, stamp)))
        yield seen("QNN libraries", family.files[0].path.parent, stated=stated, usual=usual.text)


@FAMILIES.check(
    "QNN303",
    "no library names its build of QNN",
    "that they belong together cannot be shown",
    "take them from an SDK, unchanged",
    severity=Severity.WARNING,
)
def see_no_build(family: Family) -> Iterator[Seen]:
    named = [file for file in family.files if file.name.startswith("libQnn")]
    if named and most_common_build(family.files) is None:
        yield seen("QNN libraries", named[0].path.parent)


@FAMILIES.check(
    "QNN314",
    "{subject} names no build of QNN, the others are {usual}",
    "it is not a library of that SDK, whatever its name: it lacks what the others call",
    "take {subject} from the SDK again",
)
def see_unidentified_library(family: Family) -> Iterator[Seen]:
    usual = most_common_build(family.files)
    for file in family.files:
        is_readable = file.elf and file.elf.little_endian
        if usual and is_readable and not file.build and _names_a_build(file):
            yield seen(file.name, file.path, usual=usual.text)


def _names_a_build(file: FileFacts) -> bool:
    """Libraries that do in 2.20, 2.37 and 2.47 to 2.51; others, such as the LPAI skel, do not."""
    found = file.qnn_name
    is_htp = found and found.backend == "Htp" and bool(found.hexagon) == found.is_half
    return bool(is_htp) or file.name == "libHtpPrepare.so"


@FAMILIES.check(
    "QNN304",
    "{subject} is here without {skel}",
    "the DSP cannot load its half: error 4000, or 14001 on the device",
    "add {skel} of the same SDK (lib/{directory}/unsigned)",
)
def see_lone_stub(family: Family) -> Iterator[Seen]:
    names = {file.name for file in family.files}
    for file in family.files:
        found = file.qnn_name
        if not found or found.part != "Stub" or found.backend not in family.backends:
            continue
        skel = file.name.replace("Stub", "Skel")
        if skel not in names:
            directory = f"hexagon-v{found.hexagon}" if found.hexagon else "lpai-vN"
            yield seen(file.name, file.path, skel=skel, directory=directory)


@FAMILIES.check(
    "QNN305",
    "{subject} lies in {directory} and is for V{flags}",
    "scripts push the directory of the SoC's version and miss it, or push a wrong skel",
    "take {subject} from the SDK's hexagon-v{version}",
)
def see_misplaced_skel(family: Family) -> Iterator[Seen]:
    for file, version, flags, directory in _skels(family):
        # What disagrees with its directory's version is told by QNN214.
        if directory == flags != version:
            yield seen(file.name, file.path, directory=file.directory, flags=flags, version=version)


@FAMILIES.check(
    "QNN306",
    "{subject} holds code for Hexagon V{flags}",
    "the DSP refuses it, or runs without what the name promises: error 4000",
    "take it from the SDK's lib/hexagon-v{version}/unsigned again",
)
def see_misnamed_skel(family: Family) -> Iterator[Seen]:
    for file, version, flags, directory in _skels(family):
        if not directory and flags != version:
            yield seen(file.name, file.path, flags=flags, version=version)


def _skels(family: Family) -> Iterator[tuple[FileFacts, str, str, str]]:
    """Skels of a stub's backend: the file, and Hexagon's version by name, flags and directory."""
    for file in family.files if "Htp" in family.backends else ():
        found = file.qnn_name
        is_skel = found and found.backend == "Htp" and found.hexagon and found.part in ("Skel", "")
        if found and is_skel and file.elf and file.elf.machine == EM_QDSP6:
            directory = re.search(r"hexagon-v([0-9a-f]{2,3})", file.directory)
            flags = f"{file.elf.hexagon_version:x}"
            yield file, found.hexagon, flags, directory[1] if directory else ""


@FAMILIES.check(
    "QNN307",
    "{subject} has Hexagon V{hexagon}; libQnnHtpV{hexagon}Skel.so is not here",
    "nothing can be run on that SoC: error 14001 or 4000",
    "use an SDK that has lib/hexagon-v{hexagon}, and provision that component",
)
def see_no_skel_for_soc(family: Family) -> Iterator[Seen]:
    if family.soc:
        soc, hexagon = family.soc
        if f"libQnnHtpV{hexagon}Skel.so" not in {file.name for file in family.files}:
            yield seen(soc, "lib/hexagon-v*/unsigned", hexagon=hexagon)
