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

from provisioning.doctor.checks.registry import Finding, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import parse_qnn_name
from provisioning.doctor.fitness import ElfPolicy
from provisioning.elf.facts import (
    EM_QDSP6,
    MACHINE_NAMES,
    Checksum,
    Defect,
    ElfError,
    ElfFacts,
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
REBUILD = "build it for this target, or use the file from the SDK's directory for this target"


class Placed(NamedTuple):
    """A file and the requirements of its directory.

    ``depth`` is the number of parent directories that belong to its tree. ``build`` is its QNN
    build, None if unknown. ``wanted`` are the missing libraries that the files next to it need;
    None if those files are not checked. ``knows_level`` is false if the policy's API level is a
    default, because the level of the app that loads the file is unknown.
    """

    elf: ElfFacts
    policy: ElfPolicy
    depth: int = 1
    build: QnnBuild | None = None
    wanted: Collection[str] | None = None
    knows_level: bool = True

    @property
    def is_newer_level(self) -> bool:
        """Whether the file needs a higher Android API level than its policy has."""
        wanted, note = self.policy.android_api, self.elf.android
        return wanted is not None and note is not None and note.api_level > wanted

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
        """How the content differs from the checksum."""
        return self.wrong_checksum.describe() if self.wrong_checksum else ""

    @property
    def version_without_checksum(self) -> str:
        """The QNN version of an unsigned HTP skel without a checksum, '' for other files."""
        signed = any(head.is_hashes for head in self.elf.program_headers)
        is_skel = _is_skel(self.elf.path.name) and self.elf.machine == EM_QDSP6
        version = self.build.version if self.build else None
        return version if version and is_skel and not (signed or self.elf.checksum) else ""

    def seen(self, **values: object) -> Seen:
        elf, policy = self.elf, self.policy
        return seen(elf.path.name, elf.path, file=self, elf=elf, policy=policy, **values)


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


def judge(facts: ElfFacts, policy: ElfPolicy, *, depth: int = 1) -> list[Finding]:
    """Return the findings on a single file, without those that depend on its neighbours. If the
    checks in TARGET find that it is for another target, return only these findings."""
    return judge_placed(Placed(facts, policy, depth))


def judge_placed(placed: Placed) -> list[Finding]:
    """Return the findings on a file. If the checks in TARGET find that it is for another target,
    return only these findings.
    """
    if identity := list(TARGET.judge(placed)):
        return identity
    is_unused = placed.policy.is_unused(placed.elf.path.name)
    return [one for one in CONTENT.judge(placed) if one.id in OF_UNUSED or not is_unused]


def judge_defect(error: ElfError) -> Finding:
    (finding,) = DEFECTS.judge(error)
    return finding


def has_defect(defect: Defect, error: ElfError) -> bool:
    return error.defect is defect


for code, defect, meaning in (
    ("QNN201", Defect.UNREADABLE, "loading it fails with 'Permission denied'"),
    ("QNN202", Defect.EMPTY, "loading it fails with 'file too short'"),
    ("QNN203", Defect.LFS_POINTER, "loading it fails with 'invalid ELF header'"),
    ("QNN204", Defect.HTML, "loading it fails with 'invalid ELF header'"),
    ("QNN205", Defect.NOT_ELF, "loading it fails with 'invalid ELF header'"),
    ("QNN206", Defect.TRUNCATED, "loading it fails with 'file too short' or crashes"),
    ("QNN207", Defect.CORRUPT, "the loader crashes, or refuses it"),
    ("QNN208", Defect.APPLE_DOUBLE, "nothing loads it; macOS writes it to keep attributes"),
):
    what = f"{{subject}} is {defect.value}{{reason}}"
    severity = Severity.NOTE if defect is Defect.APPLE_DOUBLE else Severity.ERROR
    DEFECTS.add(code, what, meaning, "{repair}", partial(has_defect, defect), severity=severity)


TARGET.add(
    "QNN212",
    "{subject} is for {elf.machine_name}, not {file.wanted_machine}",
    "programs for {file.wanted_machine} fail to load it: 'cannot open shared object file' or "
    "'wrong ELF class'",
    REBUILD,
    lambda file: file.elf.machine != file.policy.machine,
)


@TARGET.check(
    "QNN210",
    "{subject} is ELF{bits}, not ELF{wanted}",
    "loading it fails with 'wrong ELF class'",
    REBUILD,
    after=("QNN212",),
)
def see_other_class(file: Placed) -> Iterator[Seen]:
    if file.elf.bits != file.policy.bits:
        yield file.seen(bits=file.elf.bits, wanted=file.policy.bits)


TARGET.add(
    "QNN211",
    "{subject} is big-endian",
    "loading it fails with 'ELF file data encoding not little-endian'",
    REBUILD,
    lambda file: file.elf.little_endian != file.policy.little_endian,
    after=("QNN210",),
)


@TARGET.check(
    "QNN213",
    "{subject} is {kind}",
    "the loader refuses it: 'only ET_DYN and ET_EXEC can be loaded'",
    REBUILD,
    after=("QNN211",),
)
def see_other_type(file: Placed) -> Iterator[Seen]:
    if file.elf.type not in file.policy.types:
        yield file.seen(kind=TYPE_NAMES.get(file.elf.type, f"of e_type {file.elf.type}"))


@TARGET.check(
    "QNN232",
    "{subject} is for Linux with glibc, not for Android: it needs {needed}",
    "it fails to load on the device with 'library \"{needed}\" not found': Android has a different "
    "C library",
    "copy {subject} from the SDK's lib/aarch64-android",
    after=("QNN213",),
)
def see_glibc_on_android(file: Placed) -> Iterator[Seen]:
    needed = [name for name in file.elf.needed if name in GLIBC]
    if file.policy.android_api is not None and needed:
        yield file.seen(needed=needed[0])


TARGET.add(
    "QNN233",
    "{subject} is for Android, not for Linux with glibc",
    "it fails to load on the device: 'libc.so: cannot open shared object file' or "
    "'invalid ELF header'",
    "copy {subject} from the SDK's directory for that Linux, such as lib/aarch64-oe-linux-gcc11.2",
    lambda file: file.elf.android and file.policy.glibc is not None,
    after=("QNN213",),
)
TARGET.add(
    "QNN214",
    "{subject} is for Hexagon V{elf.hexagon_version:x}, but its directory is for V{policy.flags:x}",
    "a DSP refuses code for a newer Hexagon version than its own, with error 4000 or 14001 on a "
    "device",
    "copy {subject} from an unchanged SDK, or provision the SDK again",
    lambda file: file.policy.flags not in {None, file.elf.hexagon_version},
    after=("QNN213",),
)


@CONTENT.check(
    "QNN215",
    "{subject} has the soname {soname}",
    "files that need {soname} do not find it, and files that need {subject} load another library",
    "copy {subject} again from where it was built, and use the file name {soname} for "
    "the library with that soname",
)
def see_other_soname(file: Placed) -> Iterator[Seen]:
    name, soname = file.elf.path.name, file.elf.soname
    wanted = file.policy.sonames.get(name, name)
    # libc++.so.1.0 is the target of the link libc++.so.1.
    if soname is None or soname == wanted or name.startswith(f"{soname}."):
        return
    if _is_skel(name) and file.elf.machine != EM_QDSP6:  # QNN306 reports it
        return
    if file.wanted is None or soname in file.wanted or _are_two_qnn_libraries(name, soname):
        yield file.seen(soname=soname)


def _are_two_qnn_libraries(name: str, soname: str) -> bool:
    """Return whether ``name`` and ``soname`` belong to two different QNN libraries. A difference in
    the Hexagon version alone does not count, because QNN306 checks it.
    """
    if (one := parse_qnn_name(name)) and (other := parse_qnn_name(soname)):
        return one._replace(hexagon="") != other._replace(hexagon="")
    known = [parse_qnn_name(each) or QNN_LIBRARY.fullmatch(each) for each in (name, soname)]
    return all(known)


@CONTENT.check(
    "QNN217",
    "{subject} has {entry} in its RPATH or RUNPATH",
    "libraries outside the tree, which are not checked, may be loaded",
    "link it with an rpath of $ORIGIN, or run patchelf --set-rpath '$ORIGIN' on it",
)
def see_path_out(file: Placed) -> Iterator[Seen]:
    for entry in (*file.elf.rpath, *file.elf.runpath):
        if entry and not entry.startswith("/") and _leaves(entry, file.depth):
            yield file.seen(entry=entry)


def _leaves(entry: str, depth: int) -> bool:
    """Return whether a search path is not below $ORIGIN, or points outside the file's tree."""
    origin, *steps = PurePosixPath(entry.replace("${ORIGIN}", "$ORIGIN")).parts or ("",)
    level = lowest = 0
    for step in steps:
        level += -1 if step == ".." else 1
        lowest = min(lowest, level)
    return origin != "$ORIGIN" or -lowest > depth


@CONTENT.check(
    "QNN218",
    "{subject} has {entry} in its RPATH or RUNPATH",
    "the path is from the machine that built the file; on other machines, a different library may "
    "be there",
    "link it with -Wl,-rpath,'$ORIGIN', set CMAKE_INSTALL_RPATH, or run patchelf --set-rpath "
    "'$ORIGIN' on it",
)
def see_fixed_path(file: Placed) -> Iterator[Seen]:
    for entry in (*file.elf.rpath, *file.elf.runpath):
        if entry.startswith("/") or not entry:
            yield file.seen(entry=entry or "the current directory")


def see_newer(family: str, file: Placed) -> Iterator[Seen]:
    limit: str | None = getattr(file.policy, family.lower())
    need = file.elf.highest_need(family)
    if limit and need and need > parse_version(limit).release:
        yield file.seen(version=".".join(map(str, need)), limit=limit)


for code, family in (("QNN219", "GLIBC"), ("QNN220", "GLIBCXX"), ("QNN221", "CXXABI")):
    CONTENT.check(
        code,
        f"{{subject}} needs {family} {{version}}, but the target has {{limit}}",
        f"loading it fails with 'version `{family}_{{version}}' not found'",
        f"use a build that needs {family} {{limit}} or older, or a newer target",
    )(partial(see_newer, family))


CONTENT.add(
    "QNN222",
    "{subject} has no Android note",
    "it was not linked by an NDK, or its notes were stripped; its API level is unknown",
    "copy it from the SDK again, or link it with the NDK's clang and keep .note.android.ident",
    lambda file: file.policy.android_api is not None and file.elf.android is None,
    severity=Severity.WARNING,
)
CONTENT.add(
    "QNN223",
    "{subject} is for API level {elf.android.api_level}, but the target has {policy.android_api}",
    "it fails with 'cannot locate symbol' on a device with API level {policy.android_api}",
    "use a build for API level {policy.android_api} or lower: for your own libraries, "
    "build with ANDROID_PLATFORM android-{policy.android_api}; for QNN's, copy them "
    "from the SDK",
    lambda file: file.is_newer_level and file.knows_level,
)
CONTENT.add(
    "QNN234",
    "{subject} is for API level {elf.android.api_level}, and no build file states the app's minSdk",
    "it fails with 'cannot locate symbol' on devices with a lower API level, if the "
    "app allows those",
    "set minSdk to {elf.android.api_level} or higher in build.gradle, or use a build "
    "for an older level",
    lambda file: file.is_newer_level and not file.knows_level,
    severity=Severity.NOTE,
)
CONTENT.add(
    "QNN225",
    "{subject} has LOAD segments aligned to {elf.load_align} bytes, not {policy.load_align}",
    "a device with 16 KiB pages refuses it; NDK r26's libc++_shared.so is an example",
    "link with -Wl,-z,max-page-size=16384 (NDK r28 does so by default), or use a newer "
    "release of a prebuilt library: QNN's libraries have this alignment since 2.31",
    lambda file: file.policy.android_api and 0 < file.elf.load_align < file.policy.load_align,
    severity=Severity.WARNING,
)
CONTENT.add(
    "QNN226",
    "{subject} has text relocations",
    "Android and hardened kernels refuse it: 'has text relocations'",
    "compile it with -fPIC; if it is prebuilt, get a build without text relocations",
    lambda file: file.elf.textrel,
)
CONTENT.add(
    "QNN227",
    "{subject} requires an executable stack",
    "kernels that enforce W^X refuse it: 'cannot enable executable stack'",
    "link with -Wl,-z,noexecstack (a usual cause is an assembly file without "
    ".note.GNU-stack); if it is prebuilt, get a build that does not require it",
    lambda file: file.elf.execstack,
)


CONTENT.add(
    "QNN230",
    "{subject} is damaged: {file.damage}",
    "it was changed after the build: the DSP may refuse it ('ELF verification'), or run the "
    "changed code",
    "copy it from the SDK again, or fetch the artifact again; then compare the two files",
    lambda file: file.wrong_checksum and not file.wrong_checksum.is_stripped,
)
CONTENT.add(
    "QNN236",
    "{subject} was stripped: {file.damage}",
    "the Android Gradle Plugin strips everything in jniLibs; some devices then run the "
    "skel, some log 'fastrpc_crc_check', and some refuse it",
    "copy it from the SDK again and keep Gradle from stripping it, in build.gradle(.kts): "
    'android {{ packaging {{ jniLibs {{ keepDebugSymbols += "**/libQnnHtpV*Skel.so" }} }} }}',
    lambda file: file.wrong_checksum and file.wrong_checksum.is_stripped,
)
CONTENT.add(
    "QNN231",
    "{subject} has no checksum (SWIV)",
    f"every HTP skel of QNN {FIRST_CHECKSUM} and newer has one, so this file was modified; a "
    "loader that checks it fails with 'section header for CRC segment not found'",
    "copy it from the SDK again, and do not strip it (for Gradle, see QNN236)",
    lambda file: (
        file.version_without_checksum
        and not is_older(file.version_without_checksum, FIRST_CHECKSUM)
    ),
    severity=Severity.WARNING,
)
CONTENT.add(
    "QNN235",
    "{subject} of QNN {file.build.version} has no checksum (SWIV)",
    "changed bytes cannot be detected; skels up to 2.37.1 have no checksum, those from 2.40 "
    "on have one, and for {file.build.version} this is unknown",
    "compare it with the SDK's file",
    lambda file: (
        is_older(file.version_without_checksum, FIRST_CHECKSUM)
        and not is_older(file.version_without_checksum, LAST_WITHOUT)
    ),
    severity=Severity.NOTE,
)


def _is_skel(name: str) -> bool:
    found = parse_qnn_name(name)
    return found is not None and (found.backend, found.part) == ("Htp", "Skel")


CONTENT.add(
    "QNN228",
    "{subject} is not stripped",
    "its symbols take space, and everyone who has the file can read them",
    "run `strip --strip-unneeded` on it before you ship it",
    lambda file: not file.elf.stripped and file.elf.machine != EM_QDSP6,  # see QNN236
    severity=Severity.WARNING,
)
