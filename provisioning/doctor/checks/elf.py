"""Check an ELF file against the policy of its directory.

Checks that need more than one file (DT_NEEDED, a common QNN build) are in checks.files and
checks.coherence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import NamedTuple

from provisioning.doctor.facts import parse_qnn_name
from provisioning.doctor.fitness import ElfPolicy
from provisioning.doctor.registry import Finding, Seen, Subjects, seen
from provisioning.elf.facts import (
    EM_QDSP6,
    MACHINE_NAMES,
    Checksum,
    Defect,
    ElfError,
    ElfFacts,
    Proof,
)
from provisioning.elf.qnn_build import QnnBuild
from provisioning.versions import is_older, parse_version

QNN_LIBRARY = re.compile(r"libQnn(Cpu|Dsp|Gpu|Hta|Ir|ModelDlc|Saver|System)[.]so")
TYPE_NAMES = {1: "a relocatable object", 2: "an executable", 3: "a shared object", 4: "a core"}
GLIBC = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "libstdc++.so.6")
# Skels since 2.40.0 have a checksum, those up to 2.37.1 have none; those between are unknown.
FIRST_CHECKSUM, LAST_WITHOUT = "2.40", "2.38"
# Google Play requires 16 KiB alignment of every library in an app, even unused ones.
OF_UNUSED = {"QNN225"}


class Placed(NamedTuple):
    """A file and the requirements of its directory.

    ``depth`` is the number of parent directories that belong to its tree. ``build`` is its QNN
    build, and ``proof`` is what catalogs or the list of genuine skels prove about it; each is None
    if unknown. ``missing`` are the missing libraries that the files next to it need; None if those
    files are not checked. ``knows_level`` is false if the policy's API level is a default, because
    the level of the app that loads the file is unknown.
    """

    elf: ElfFacts
    policy: ElfPolicy
    depth: int = 1
    build: QnnBuild | None = None
    missing: Collection[str] | None = None
    knows_level: bool = True
    proof: Proof | None = None

    @property
    def is_newer_level(self) -> bool:
        """Whether the file needs a higher Android API level than its policy has."""
        highest_level, note = self.policy.android_api, self.elf.android
        return highest_level is not None and note is not None and note.api_level > highest_level

    @property
    def wanted_machine(self) -> str:
        """The name of the machine that its directory is for."""
        return MACHINE_NAMES.get(self.policy.machine, str(self.policy.machine))

    @property
    def wrong_checksum(self) -> Checksum | None:
        """Its checksum, if the content does not match it."""
        checksum = self.elf.checksum
        return checksum if checksum and checksum.is_wrong else None

    @property
    def damage(self) -> str:
        """How the content differs from the checksum, and the SHA-256 of the genuine file if it is
        known.
        """
        text = self.wrong_checksum.describe() if self.wrong_checksum else ""
        if self.proof and self.proof.listed:
            listed, catalog = self.proof.listed, self.proof.catalog
            text += f"; the genuine one has SHA-256 {listed}, according to {catalog}"
        return text

    @property
    def version_without_checksum(self) -> str:
        """The QNN version of an unsigned HTP skel without a checksum, '' for other files."""
        signed = any(head.is_hashes for head in self.elf.program_headers)
        name = parse_qnn_name(self.elf.path.name)
        is_skel = name.is_htp_skel and self.elf.machine == EM_QDSP6
        version = self.build.version if self.build else None
        return version if version and is_skel and not (signed or self.elf.checksum) else ""

    def seen(self, **values: object) -> Seen:
        """Return a fault of the file, with the values that the texts of all its checks use."""
        elf, policy = self.elf, self.policy
        kind = TYPE_NAMES.get(elf.type, f"of e_type {elf.type}")
        common_values = {"file": self, "elf": elf, "policy": policy, "kind": kind}
        common_values |= {"bits": elf.bits, "wanted": policy.bits}
        return seen(elf.path.name, elf.path, **common_values, **values)


DEFECTS: Subjects[ElfError] = Subjects(
    tell=lambda error: seen(
        error.path.name,
        error.path,
        reason=f" ({error.why})" if error.why else "",
        repair=error.fix,
    )
)
TARGET: Subjects[Placed] = Subjects(tell=Placed.seen)
CONTENT: Subjects[Placed] = Subjects(tell=Placed.seen)


def judge(placed: Placed) -> list[Finding]:
    """Return the findings on a file. If the checks in TARGET find that it is for another target,
    return only these findings.
    """
    # A library for another machine violates nearly every other rule as well, and has one fix.
    if identity := list(TARGET.judge(placed)):
        return identity
    is_unused = placed.policy.is_unused(placed.elf.path.name)
    return [
        finding for finding in CONTENT.judge(placed) if finding.id in OF_UNUSED or not is_unused
    ]


def judge_defect(error: ElfError) -> Finding:
    """Return the finding for a file that cannot be read as ELF."""
    (finding,) = DEFECTS.judge(error)
    return finding


DEFECTS.when(
    QNN201=lambda error: error.defect is Defect.UNREADABLE,
    QNN202=lambda error: error.defect is Defect.EMPTY,
    QNN203=lambda error: error.defect is Defect.LFS_POINTER,
    QNN204=lambda error: error.defect is Defect.HTML,
    QNN205=lambda error: error.defect is Defect.NOT_ELF,
    QNN206=lambda error: error.defect is Defect.TRUNCATED,
    QNN207=lambda error: error.defect is Defect.CORRUPT,
    QNN208=lambda error: error.defect is Defect.APPLE_DOUBLE,
)


TARGET.when(
    QNN212=lambda file: file.elf.machine != file.policy.machine,
    QNN210=lambda file: file.elf.bits != file.policy.bits,
    QNN211=lambda file: not file.elf.little_endian,
    QNN213=lambda file: file.elf.type not in file.policy.types,
    QNN233=lambda file: file.elf.android and file.policy.glibc is not None,
    QNN214=lambda file: file.policy.flags not in {None, file.elf.hexagon_version},
)


@TARGET.check("QNN232")
def see_glibc_on_android(file: Placed) -> Iterator[Seen]:
    """Report files for Android that need a library of glibc."""
    needed = [name for name in file.elf.needed if name in GLIBC]
    if file.policy.android_api is not None and needed:
        yield file.seen(needed=needed[0])


@CONTENT.check("QNN215")
def see_other_soname(file: Placed) -> Iterator[Seen]:
    """Report a soname other than the file's name, if a file next to it needs that soname or if
    the two names belong to different QNN libraries.
    """
    name, soname = file.elf.path.name, file.elf.soname
    expected = file.policy.sonames.get(name, name)
    # libc++.so.1.0 is the target of the link libc++.so.1.
    if soname is None or soname == expected or name.startswith(f"{soname}."):
        return
    if parse_qnn_name(name).is_htp_skel and file.elf.machine != EM_QDSP6:  # QNN306 reports it
        return
    if file.missing is None or soname in file.missing or _are_two_qnn_libraries(name, soname):
        yield file.seen(soname=soname)


def _are_two_qnn_libraries(name: str, soname: str) -> bool:
    """Return whether ``name`` and ``soname`` belong to two different QNN libraries. A difference in
    the Hexagon version alone does not count, because QNN306 checks it.
    """
    by_name, by_soname = parse_qnn_name(name), parse_qnn_name(soname)
    if by_name.backend and by_soname.backend:
        return by_name._replace(hexagon="") != by_soname._replace(hexagon="")
    # Libraries such as libGenie.so have no backend in their name.
    return all(
        parse_qnn_name(file_name).backend or QNN_LIBRARY.fullmatch(file_name)
        for file_name in (name, soname)
    )


def _leaves(entry: str, depth: int) -> bool:
    """Return whether a search path is not below $ORIGIN, or points outside the file's tree."""
    origin, *steps = PurePosixPath(entry.replace("${ORIGIN}", "$ORIGIN")).parts or ("",)
    level = lowest = 0
    for step in steps:
        level += -1 if step == ".." else 1
        lowest = min(lowest, level)
    return origin != "$ORIGIN" or -lowest > depth


def see_newer(family: str, file: Placed) -> Iterator[Seen]:
    """Report that a file needs a newer version of ``family``, such as GLIBC, than its policy
    allows.
    """
    limit: str | None = getattr(file.policy, family.lower())
    need = file.elf.highest_need(family)
    if limit and need and need > parse_version(limit).release:
        yield file.seen(version=".".join(map(str, need)), limit=limit)


CONTENT.each(
    QNN217=lambda file: (
        file.seen(entry=entry)
        for entry in file.elf.search_path
        if entry and not entry.startswith("/") and _leaves(entry, file.depth)
    ),
    QNN218=lambda file: (
        file.seen(entry=entry or "the current directory")
        for entry in file.elf.search_path
        if entry.startswith("/") or not entry
    ),
    QNN219=partial(see_newer, "GLIBC"),
    QNN220=partial(see_newer, "GLIBCXX"),
    QNN221=partial(see_newer, "CXXABI"),
)


CONTENT.when(
    QNN222=lambda file: file.policy.android_api is not None and file.elf.android is None,
    QNN223=lambda file: file.is_newer_level and file.knows_level,
    QNN234=lambda file: file.is_newer_level and not file.knows_level,
    # QNN's Android libraries are aligned to 4096 bytes from 2.13 to 2.28, and to 16384 from 2.31.
    QNN225=lambda file: (
        file.policy.android_api and 0 < file.elf.load_align < file.policy.load_align
    ),
    QNN226=lambda file: file.elf.textrel,
    QNN227=lambda file: file.elf.execstack,
    QNN230=lambda file: file.wrong_checksum and not file.wrong_checksum.is_stripped,
    # llvm-strip, which Gradle runs on jniLibs, changes e_shoff and so the sum. Unlike damage, this
    # has a remedy in Gradle.
    QNN236=lambda file: file.wrong_checksum and file.wrong_checksum.is_stripped,
    QNN231=lambda file: (
        file.version_without_checksum
        and not is_older(file.version_without_checksum, FIRST_CHECKSUM)
    ),
    # No skel of 2.38 or 2.39 was examined.
    QNN235=lambda file: (
        is_older(file.version_without_checksum, FIRST_CHECKSUM)
        and not is_older(file.version_without_checksum, LAST_WITHOUT)
    ),
    QNN228=lambda file: not file.elf.stripped and file.elf.machine != EM_QDSP6,  # see QNN236
)
