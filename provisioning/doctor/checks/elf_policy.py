"""One ELF file against the policy of its directory: ``judge(facts, policy)``.

Policies are data: manifests/policies/elf.toml, read by provisioning.doctor.policies. What needs
more than one file (DT_NEEDED, one build of QNN) is in checks.needs and checks.coherence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

import msgspec

from provisioning.doctor.checks.finding import Finding, Severity
from provisioning.elf.facts import MACHINE_NAMES, Defect, ElfError, ElfFacts

HEXAGON_DIRECTORY = re.compile(r"hexagon-v(?P<version>[0-9a-f]{2,3})(?:/|$)")
TYPE_NAMES = {1: "a relocatable object", 2: "an executable", 3: "a shared object", 4: "a core"}


class ElfPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What files of one kind of directory must be.

    ``directories`` are patterns for paths below a root. ``types`` are values of e_type;
    ``flags`` is the Hexagon version in e_flags (0x75), None where it is free. ``glibc``,
    ``glibcxx`` and ``cxxabi`` are the newest that the target has, ``android_api`` its API level;
    ``system`` the libraries it brings. ``load_align`` is advised, in bytes. ``sonames`` holds
    known exceptions by file name. Of files that match ``unused`` only the target is judged.
    """

    bits: int
    machine: int
    directories: tuple[str, ...] = ()
    little_endian: bool = True
    types: tuple[int, ...] = (3,)
    flags: int | None = None
    flags_of_directory: bool = False
    glibc: str | None = None
    glibcxx: str | None = None
    cxxabi: str | None = None
    android_api: int | None = None
    android_ndk: str | None = None
    load_align: int = 0
    system: tuple[str, ...] = ()
    sonames: Mapping[str, str] = {}
    unused: tuple[str, ...] = ()

    def is_unused(self, name: str) -> bool:
        """Whether nothing here loads a file of this name."""
        return any(fnmatchcase(name, pattern) for pattern in self.unused)


def choose_policy(
    directory: str, policies: Mapping[str, ElfPolicy]
) -> tuple[str, ElfPolicy] | None:
    """The kind and policy for ``directory`` (relative, '/' between), None where none applies.

    In a Hexagon directory the wanted e_flags are those that its name says.
    """
    for kind, policy in policies.items():
        if any(re.fullmatch(pattern, directory) for pattern in policy.directories):
            found = HEXAGON_DIRECTORY.search(directory)
            if found and policy.flags_of_directory:
                return f"hexagon-v{found['version']}", hexagon_policy(policy, found["version"])
            return kind, policy
    return None


def hexagon_policy(policy: ElfPolicy, version: str) -> ElfPolicy:
    """``policy`` for one Hexagon version: ``75`` means e_flags 0x75."""
    return msgspec.structs.replace(policy, flags=int(version, 16))


def judge(facts: ElfFacts, policy: ElfPolicy, *, depth: int = 1) -> list[Finding]:
    """Every fault of one file. A file for another machine has no other faults worth telling.

    ``depth`` is how many directories up from the file's own still belong to its tree.
    """
    identity = judge_identity(facts, policy)
    if identity or policy.is_unused(facts.path.name):
        return identity
    return [
        *_judge_soname(facts, policy),
        *_judge_search_path(facts, depth),
        *_judge_versions(facts, policy),
        *_judge_android(facts, policy),
        *_judge_hardening(facts),
    ]


def judge_defect(error: ElfError) -> Finding:
    """The fault of a file that could not be read as ELF."""
    return Finding(
        _DEFECTS[error.defect],
        error.path.name,
        f"{error.path.name} is {error.defect.value}",
        str(error.path),
        error.why or "the loader or the linker would refuse it with a message about its format",
        error.fix,
    )


_DEFECTS = {
    Defect.UNREADABLE: "QNN201",
    Defect.EMPTY: "QNN202",
    Defect.LFS_POINTER: "QNN203",
    Defect.HTML: "QNN204",
    Defect.NOT_ELF: "QNN205",
    Defect.TRUNCATED: "QNN206",
    Defect.CORRUPT: "QNN207",
}
_REBUILD = "build it for this target, or take it from the matching directory of the SDK"


def _fault(code: str, facts: ElfFacts, what: str, why: str, fix: str) -> Finding:
    name = facts.path.name
    return Finding(code, name, f"{name} {what}", str(facts.path), why, fix)


def _advice(code: str, facts: ElfFacts, what: str, why: str, fix: str) -> Finding:
    return replace(_fault(code, facts, what, why, fix), severity=Severity.WARNING)


def judge_identity(facts: ElfFacts, policy: ElfPolicy) -> list[Finding]:
    """Whether a file is for another target altogether."""
    return list(_judge_identity(facts, policy))


def _judge_identity(facts: ElfFacts, policy: ElfPolicy) -> Iterator[Finding]:
    wanted = MACHINE_NAMES.get(policy.machine, str(policy.machine))
    if facts.machine != policy.machine:
        why = (
            f"'cannot open shared object file' or 'wrong ELF class' when a {wanted} program starts"
        )
        yield _fault("QNN212", facts, f"is for {facts.machine_name}, not {wanted}", why, _REBUILD)
    elif facts.bits != policy.bits:
        what = f"is ELF{facts.bits}, not ELF{policy.bits}"
        yield _fault("QNN210", facts, what, "'wrong ELF class' when it is loaded", _REBUILD)
    elif facts.little_endian != policy.little_endian:
        what = "has the other byte order"
        yield _fault("QNN211", facts, what, "'ELF file data encoding not little-endian'", _REBUILD)
    elif facts.type not in policy.types:
        kind = TYPE_NAMES.get(facts.type, f"of e_type {facts.type}")
        why = "only what the loader can map may lie here: 'only ET_DYN and ET_EXEC can be loaded'"
        yield _fault("QNN213", facts, f"is {kind}", why, _REBUILD)
    elif policy.flags is not None and facts.hexagon_version != policy.flags:
        what = f"is for Hexagon V{facts.hexagon_version:x}, its directory is for V{policy.flags:x}"
        why = "the DSP refuses code for a newer Hexagon; on a device that is error 4000 or 14001"
        yield _fault("QNN214", facts, what, why, _REBUILD)


def _judge_soname(facts: ElfFacts, policy: ElfPolicy) -> Iterator[Finding]:
    name = facts.path.name
    wanted = policy.sonames.get(name, name)
    # libc++.so.1.0 is libc++.so.1, of which there is a link.
    if facts.soname in (None, wanted) or name.startswith(f"{facts.soname}."):
        return
    why = f"what is linked with it asks for {facts.soname} at run time and does not find it"
    fix = f"rename it to {facts.soname}, or take a fresh copy"
    yield _fault("QNN215", facts, f"calls itself {facts.soname}", why, fix)


def _judge_search_path(facts: ElfFacts, depth: int) -> Iterator[Finding]:
    for entry in (*facts.rpath, *facts.runpath):
        if entry.startswith("/") or not entry:
            why = "it names a place of the machine that built it; another library may lie there"
            fix = "link with -Wl,-rpath,'$ORIGIN' or set CMAKE_INSTALL_RPATH"
            yield _fault("QNN218", facts, f"searches {entry or 'the current directory'}", why, fix)
        elif _leaves(entry, depth):
            why = "libraries from outside the tree may be taken instead of those that were checked"
            yield _fault("QNN217", facts, f"searches {entry}", why, "link with an rpath of $ORIGIN")


def _leaves(entry: str, depth: int) -> bool:
    """Whether a search path is not tied to the file, or goes further up than its tree."""
    origin, *steps = PurePosixPath(entry.replace("${ORIGIN}", "$ORIGIN")).parts or ("",)
    level = lowest = 0
    for step in steps:
        level += -1 if step == ".." else 1
        lowest = min(lowest, level)
    return origin != "$ORIGIN" or -lowest > depth


def _judge_versions(facts: ElfFacts, policy: ElfPolicy) -> Iterator[Finding]:
    for code, family, limit in (
        ("QNN219", "GLIBC", policy.glibc),
        ("QNN220", "GLIBCXX", policy.glibcxx),
        ("QNN221", "CXXABI", policy.cxxabi),
    ):
        need = facts.highest_need(family)
        if limit is None or need is None or need <= tuple(map(int, limit.split("."))):
            continue
        version = ".".join(map(str, need))
        why = f"'version `{family}_{version}' not found' when it is loaded"
        fix = "build it against the target's sysroot, or use a newer target"
        what = f"needs {family} {version}, the target has {limit}"
        yield _fault(code, facts, what, why, fix)


def _judge_android(facts: ElfFacts, policy: ElfPolicy) -> Iterator[Finding]:
    if policy.android_api is None:
        return
    note = facts.android
    if note is None:
        why = "it was not linked by an NDK, or its notes were stripped; nothing says what it needs"
        fix = "link it with the NDK's clang and keep .note.android.ident"
        yield _advice("QNN222", facts, "has no Android note", why, fix)
    elif note.api_level > policy.android_api:
        what = f"is for API level {note.api_level}, the target has {policy.android_api}"
        why = "'cannot locate symbol' on a device of that level"
        yield _fault(
            "QNN223", facts, what, why, f"build with ANDROID_PLATFORM {policy.android_api}"
        )
    elif policy.android_ndk and note.ndk != policy.android_ndk:
        what = f"was built with NDK {note.ndk}, the pin is {policy.android_ndk}"
        why = "two libc++ of different NDKs in one process are not promised to work"
        fix = f"build with NDK {policy.android_ndk}"
        yield _advice("QNN224", facts, what, why, fix)
    if 0 < facts.load_align < policy.load_align:
        what = f"has LOAD segments aligned to {facts.load_align} bytes, not {policy.load_align}"
        why = "a device with 16 KiB pages refuses it; NDK r26's own libc++_shared.so is such too"
        fix = "link with -Wl,-z,max-page-size=16384 (NDK r28 does so by itself)"
        yield _advice("QNN225", facts, what, why, fix)


def _judge_hardening(facts: ElfFacts) -> Iterator[Finding]:
    if facts.textrel:
        why = "Android and hardened kernels refuse it: 'has text relocations'"
        yield _fault("QNN226", facts, "has text relocations", why, "compile with -fPIC")
    if facts.execstack:
        why = "kernels that enforce W^X refuse it: 'cannot enable executable stack'"
        fix = "link with -Wl,-z,noexecstack; an assembly file without .note.GNU-stack is the cause"
        yield _fault("QNN227", facts, "asks for an executable stack", why, fix)
    if not facts.stripped:
        why = "its symbols are shipped: size, and names that others can read"
        fix = "strip --strip-unneeded, if it is for shipping"
        yield _advice("QNN228", facts, "is not stripped", why, fix)
