"""Check each file of a tree against the policy of its directory, and check the dependencies."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import normpath
from typing import NamedTuple

import msgspec

from provisioning.doctor.checks.elf import TARGET, Placed, judge, judge_defect
from provisioning.doctor.facts import HOST_KIND, LIBCXX, STAGING, FileFacts, TreeFacts
from provisioning.doctor.fitness import ElfPolicy, choose_policy, hexagon_policy
from provisioning.doctor.registry import Case, Finding, Seen, Subjects, seen
from provisioning.elf.facts import EM_QDSP6, EM_X86_64, ElfError


@dataclass(frozen=True)
class Group:
    """Files that one loader finds together. ``kind`` is the kind of their directory, such as
    aarch64-android, and ``policy`` is the policy for it. ``depth`` and ``knows_level`` are as in
    Placed. ``brings`` maps libraries that may be installed on the machine to their path, or to None
    if they are not installed. ``nearby`` are names of libraries that the loader finds in other
    directories.
    """

    files: Sequence[FileFacts]
    kind: str
    policy: ElfPolicy
    depth: int = 1
    brings: Mapping[str, str | None] = field(default_factory=dict)
    nearby: Collection[str] = ()
    knows_level: bool = True


def find_groups(case: Case) -> Iterator[Group]:
    """Yield all groups of an environment: the SDK's directories, libc++, staged files."""
    facts, kinds = case.facts, case.kinds
    if facts.sdk and facts.sdk.is_directory:
        tree = facts.trees[facts.sdk_name]
        # SDKs since 2.23 contain no libc++: ExecuTorch takes that of LLVM 14.0.0.
        brings = {name: facts.host.libraries.get(name) for name in case.policy.host_libraries}
        entries = facts.variables.library_path if facts.variables else ()
        path_files = [file for entry in entries for file in entry.libraries]
        nearby = {file.name for file in path_files if file.machine == EM_X86_64}
        yield from group_tree(tree.files, kinds, brings, nearby | tree.link_names)
    if libcxx := facts.trees.get(LIBCXX):
        policy = kinds[HOST_KIND]
        yield Group(libcxx.files, HOST_KIND, policy, nearby=libcxx.link_names)
    staging = facts.trees.get(STAGING)
    if staging and not (staging.is_sdk or staging.is_pointers):
        of_device = (kind for kind in case.fitness.kinds if kind != HOST_KIND)
        yield from _group_staging(staging, kinds, next(of_device, "aarch64-android"))


def group_tree(
    files: Iterable[FileFacts],
    policies: Mapping[str, ElfPolicy],
    brings: Mapping[str, str | None],
    nearby: Collection[str] = (),
) -> Iterator[Group]:
    """Yield a group for each directory to which one of ``policies`` applies. Others are ignored."""
    groups: dict[str, list[FileFacts]] = {}
    for file in files:
        groups.setdefault(file.directory, []).append(file)
    for directory, group in groups.items():
        if chosen := choose_policy(directory, policies):
            paths = {entry for file in group if file.elf for entry in file.elf.search_path}
            texts = [path.replace("${ORIGIN}", "$ORIGIN") for path in paths]
            searched = [normpath(text.replace("$ORIGIN", directory)) for text in texts]
            near = {file.name for place in searched for file in groups.get(place, ())}
            yield Group(group, *chosen, directory.count("/") + 1, brings, near | {*nearby})


# Libraries that run on the CPU; direct mode has libQnnSystem.so for the DSP, without the others.
OF_CPU = re.compile(
    r"libQnn(Htp|HtpPrepare|System|Saver|Ir|Gpu|Cpu|ModelDlc|HtpV\d+Stub|LpaiStub)\.so"
)


def _group_staging(
    tree: TreeFacts, policies: Mapping[str, ElfPolicy], target: str
) -> Iterator[Group]:
    """Yield the groups of a staging directory, which holds libraries for ``target`` and for the
    DSP: one group for ``target``, and one for each Hexagon version.
    """
    groups: dict[str, list[FileFacts]] = {}
    hosts = {file.directory for file in tree.files if file.is_cpu_library}
    for file in tree.files:
        # Next to libraries for the CPU, a library with such a name for the DSP is out of place.
        is_misplaced = file.directory in hosts and OF_CPU.fullmatch(file.name)
        is_dsp = file.machine == EM_QDSP6 and not is_misplaced
        kind = f"hexagon-v{file.elf.hexagon_version:x}" if file.elf and is_dsp else target
        groups.setdefault(kind, []).append(file)
    for kind, group in sorted(groups.items()):
        hexagon = re.fullmatch(r"hexagon-v(.+)", kind)
        policy = hexagon_policy(policies["hexagon"], hexagon[1]) if hexagon else policies[kind]
        level = tree.min_sdk if policy.android_api else None
        if level:
            policy = msgspec.structs.replace(policy, android_api=level)
        is_known = bool(level) or not policy.android_api
        yield Group(group, kind, policy, depth=0, knows_level=is_known)


def judge_group(group: Group) -> Iterator[Finding]:
    """Yield the findings on each file, and then a finding for each missing library that a file
    needs, if that file is for the right target and may be loaded.
    """
    fitting = []
    for file in group.files:
        if file.elf is None:
            if file.defect:
                yield judge_defect(ElfError(file.path, file.defect, file.defect_why))
            continue
        # What a library for another machine needs says nothing about this directory.
        is_other = any(TARGET.judge(Placed(file.elf, group.policy)))
        if not is_other and not group.policy.is_unused(file.name):
            fitting.append(file)
    # By file name, as the loader searches, and not by soname.
    present = {file.name for file in group.files}
    brings = group.brings if group.kind == HOST_KIND else {}
    needs = list(find_needs(fitting, {*present, *group.policy.system, *group.nearby}, brings))
    missing_names = {need.name for need in needs}
    renamed: set[str | None] = set()  # sonames of the files that QNN215 reports
    for file in group.files:
        if file.elf:
            place = (
                file.elf,
                group.policy,
                group.depth,
                file.build,
                missing_names,
                group.knows_level,
                file.proof,
            )
            findings = judge(Placed(*place))
            yield from findings
            if any(finding.id == "QNN215" for finding in findings):
                renamed.add(file.elf.soname)
    for need in needs:
        # The missing name is the soname of a file that QNN215 reports: one fault, one finding.
        if need.name not in renamed:
            yield from NEEDS.judge(need)


class Need(NamedTuple):
    """A missing library. ``users`` are the names of the files that need it. ``where`` is the path
    of the first of these files, and ``chain`` names this file and the files that need it.
    ``is_libcxx`` is true for LLVM's C++ libraries, which may be installed on the machine.
    """

    name: str
    users: list[str]
    where: Path
    chain: str
    is_libcxx: bool

    def seen(self) -> Seen:
        """Return the fault of a missing library, with the values that the texts of its
        checks use.
        """
        other_count = len(self.users) - 1
        others_text = (
            f" and {other_count} other file{'s' * (other_count > 1)}" if other_count else ""
        )
        return seen(self.name, self.where, chain=self.chain, others=others_text, user=self.users[0])


NEEDS: Subjects[Need] = Subjects(tell=Need.seen)


NEEDS.when(
    QNN216=lambda need: not need.is_libcxx,
    QNN229=lambda need: need.is_libcxx,
)


def find_needs(
    files: Iterable[FileFacts], provided: Collection[str], host_brings: Mapping[str, str | None]
) -> Iterator[Need]:
    """Yield each missing library once, with the chain of files that need it.

    ``files`` are the files to check; ``provided`` are names that the loader finds in their
    directory, on the search path or in the system. ``host_brings`` maps names of libraries that may
    be installed on the machine to their path, or to None if they are not.
    """
    elves = {file.name: file.elf for file in files if file.elf}
    users_of: dict[str, list[str]] = {}
    for name in sorted(elves):
        for needed in elves[name].needed:
            users_of.setdefault(needed, []).append(name)
    for name, users in sorted(users_of.items()):
        if name not in provided and not host_brings.get(name):
            where = elves[users[0]].path
            yield Need(name, users, where, _chain(users_of, users[0]), name in host_brings)


def _chain(users_of: Mapping[str, list[str]], name: str) -> str:
    """Return a chain such as ``libA.so (which libB.so needs)``, from ``name`` up to a file that
    nothing needs. ``users_of`` maps names to the files that need them.
    """
    chain = [name]
    while above := [user for user in users_of.get(chain[-1], []) if user not in chain]:
        chain.append(above[0])
    users_above = ", ".join(f"which {user} needs" for user in chain[1:])
    return f"{name} ({users_above})" if users_above else name
