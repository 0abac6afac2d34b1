"""All checks of one environment: facts and policies in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from provisioning.doctor.checks.checkout import judge_checkout
from provisioning.doctor.checks.coherence import judge_builds, judge_pairs, judge_soc, usual_build
from provisioning.doctor.checks.device import DeviceLibraries, judge_device
from provisioning.doctor.checks.elf_policy import ElfPolicy
from provisioning.doctor.checks.files import (
    HOST_KIND,
    Surroundings,
    judge_files,
    judge_flat,
    judge_staged,
)
from provisioning.doctor.checks.finding import Finding
from provisioning.doctor.checks.fitness import DoctorPolicy, Fitness
from provisioning.doctor.checks.host import judge_host, judge_system_libraries, judge_tools
from provisioning.doctor.checks.ndk import judge_ndk
from provisioning.doctor.checks.python import judge_python
from provisioning.doctor.checks.sdk import judge_sdk
from provisioning.doctor.checks.variables import judge_python_path, judge_variables
from provisioning.doctor.facts import CheckoutFacts, EnvironmentFacts, FileFacts, TreeFacts
from provisioning.elf.facts import EM_AARCH64, EM_X86_64, MACHINE_NAMES

STAGING, LIBCXX = "staging", "libcxx"


def judge_environment(
    facts: EnvironmentFacts,
    policy: DoctorPolicy,
    fitness: Fitness,
    kinds: Mapping[str, ElfPolicy],
    soc: tuple[str, int] | None = None,
) -> list[Finding]:
    """Every finding, sorted by id, each once. ``soc`` is a name and its Hexagon version."""
    kinds = _with_host_glibc(kinds, facts.host.glibc)
    findings = [
        *judge_host(facts.host, fitness),
        *judge_tools(facts.host, policy.tools),
        *_judge_roots(facts, fitness),
        *_judge_sdk(facts, policy, fitness, kinds, soc),
        *_judge_libcxx(facts, kinds),
        *_judge_staging(facts, fitness, kinds),
        *_judge_rest(facts, policy, fitness),
        *_judge_devices(facts, policy, soc, needs_root=fitness.root_on_device),
    ]
    return sorted({finding.printable() for finding in findings})


def _with_host_glibc(kinds: Mapping[str, ElfPolicy], glibc: str | None) -> dict[str, ElfPolicy]:
    """Programs of the host run on this machine, so its glibc is the one that counts."""
    if glibc is None or HOST_KIND not in kinds:
        return dict(kinds)
    return {**kinds, HOST_KIND: msgspec.structs.replace(kinds[HOST_KIND], glibc=glibc)}


def _judge_roots(facts: EnvironmentFacts, fitness: Fitness) -> Iterator[Finding]:
    wanted = [*fitness.roots, *([] if facts.sdk_name or not fitness.sdk else [fitness.sdk[0]])]
    for name in wanted:
        if name not in facts.roots:
            yield Finding(
                "QNN100",
                name,
                f"profile {facts.profile} needs {name}, and there is none",
                f"profile {facts.profile}",
                "what the profile builds or runs takes its files from it",
                f"`qnn-ci fetch {facts.profile}`, or --root {name}=DIR",
            )


def _judge_sdk(
    facts: EnvironmentFacts,
    policy: DoctorPolicy,
    fitness: Fitness,
    kinds: Mapping[str, ElfPolicy],
    soc: tuple[str, int] | None,
) -> Iterator[Finding]:
    if facts.sdk is None:
        return
    tree = facts.trees[facts.sdk_name]
    pin = facts.pins.get(facts.sdk_name)
    yield from judge_sdk(facts.sdk, tree, fitness, pin, policy.headers)
    if facts.sdk.is_directory:
        yield from judge_files(tree.files, kinds, _surroundings(facts, policy))
        yield from judge_builds(tree.files, facts.sdk.version, facts.sdk.stamp)
        yield from judge_system_libraries(facts.host, _system_needs(tree, kinds))
    if fitness.skels:
        yield from judge_pairs(tree.files, ("Htp",))
        if soc and facts.sdk.markers:
            yield from judge_soc(tree.files, *soc)


def _surroundings(facts: EnvironmentFacts, policy: DoctorPolicy) -> Surroundings:
    brings = {name: facts.host.libraries.get(name) for name in policy.host_libraries}
    entries = facts.variables.library_path if facts.variables else ()
    beside = {file.name for entry in entries for file in entry.libraries if _is_host(file)}
    return Surroundings(brings, beside | set(facts.trees[facts.sdk_name].link_names))


def _is_host(file: FileFacts) -> bool:
    return file.elf is not None and file.elf.machine == EM_X86_64


def _system_needs(tree: TreeFacts, kinds: Mapping[str, ElfPolicy]) -> dict[str, str]:
    """Each library of the system that a host library needs, with one that needs it."""
    system = set(kinds[HOST_KIND].system) if HOST_KIND in kinds else set()
    return {
        name: file.name
        for file in reversed(tree.files)
        if file.elf and file.elf.machine == EM_X86_64
        for name in file.elf.needed
        if name in system
    }


def _judge_libcxx(facts: EnvironmentFacts, kinds: Mapping[str, ElfPolicy]) -> Iterator[Finding]:
    """The libc++ that is provisioned for SDKs that ship none."""
    if tree := facts.trees.get(LIBCXX):
        around = Surroundings({}, tree.link_names)
        yield from judge_flat(tree.files, HOST_KIND, kinds[HOST_KIND], around)


def _judge_staging(
    facts: EnvironmentFacts, fitness: Fitness, kinds: Mapping[str, ElfPolicy]
) -> Iterator[Finding]:
    tree = facts.trees.get(STAGING)
    if tree is None:
        return
    target = next((kind for kind in fitness.kinds if kind != HOST_KIND), "aarch64-android")
    yield from judge_staged(tree.files, kinds, target)
    yield from judge_builds(tree.files, None)
    yield from judge_pairs(tree.files)


def _judge_rest(
    facts: EnvironmentFacts, policy: DoctorPolicy, fitness: Fitness
) -> Iterator[Finding]:
    runs_on_host = HOST_KIND in fitness.kinds
    checkout = _importable(facts.checkout)
    if facts.variables and facts.sdk and facts.sdk.is_directory:
        yield from judge_variables(facts.variables, facts.sdk.root, runs=runs_on_host)
    if facts.variables:
        uses_wheel = fitness.python
        yield from judge_python_path(facts.variables, checkout, uses_wheel=uses_wheel)
    if facts.python:
        yield from judge_python(facts.python, policy.python, facts.host.glibc)
    if facts.ndk:
        yield from judge_ndk(facts.ndk, policy.ndk)
    if facts.checkout:
        pin = facts.pins.get("executorch-commit")
        machine = MACHINE_NAMES[EM_X86_64] if runs_on_host else "aarch64"
        yield from judge_checkout(facts.checkout, pin, facts.submodules, machine)


def _device_libraries(files: Sequence[FileFacts]) -> DeviceLibraries:
    build = usual_build(files)
    aligns = [file.elf.load_align for file in files if file.elf and file.elf.machine == EM_AARCH64]
    return DeviceLibraries(build.text if build else None, min(aligns, default=0))


def _importable(checkout: CheckoutFacts | None) -> Path | None:
    """The root of a checkout that Python can import from the directory above."""
    if checkout and checkout.is_directory and checkout.root.name == "executorch":
        return checkout.root
    return None


def _judge_devices(
    facts: EnvironmentFacts,
    policy: DoctorPolicy,
    soc: tuple[str, int] | None,
    *,
    needs_root: bool,
) -> Iterator[Finding]:
    tree = facts.trees.get(facts.sdk_name)
    libraries = _device_libraries(tree.files if tree else ())
    for device in facts.devices or ():
        yield from judge_device(
            device,
            policy.device,
            soc=soc[0] if soc else None,
            libraries=libraries,
            needs_root=needs_root,
        )
