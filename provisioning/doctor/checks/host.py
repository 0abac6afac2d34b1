"""The machine and its tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provisioning.doctor.checks.finding import Finding, Severity
from provisioning.doctor.checks.fitness import Fitness, ToolPolicy
from provisioning.doctor.checks.version import is_older
from provisioning.doctor.facts import HostFacts


def judge_host(host: HostFacts, fitness: Fitness) -> Iterator[Finding]:
    """What the machine lacks. A machine of another kind has no other faults worth telling."""
    platform = f"{host.system} {host.machine}"
    if host.system != "Linux" or host.machine not in fitness.machines:
        wanted = f"Linux {' or '.join(fitness.machines)}"
        yield Finding(
            "QNN001",
            platform,
            f"this is {platform}, not {wanted}",
            "this machine",
            "QNN's host libraries and the HTP emulator are built for nothing else",
            f"use {wanted}, or the project's container image on such a machine",
        )
        return
    yield from _judge_glibc(host, fitness)
    yield from _judge_resources(host, fitness)


def _judge_glibc(host: HostFacts, fitness: Fitness) -> Iterator[Finding]:
    if host.glibc is None or is_older(host.glibc, fitness.glibc):
        has = f"glibc {host.glibc}" if host.glibc else "no glibc"
        yield Finding(
            "QNN002",
            "glibc",
            f"the machine has {has}, QNN needs {fitness.glibc}",
            "this machine",
            f'"version `GLIBC_{fitness.glibc}\' not found" when libQnnHtp.so is loaded',
            "use Debian 12, Ubuntu 22.04 or newer, or the project's container image",
        )


def _judge_resources(host: HostFacts, fitness: Fitness) -> Iterator[Finding]:
    missing = [flag for flag in fitness.cpu_flags if host.cpu_flags and flag not in host.cpu_flags]
    if missing:
        yield Finding(
            "QNN004",
            "CPU",
            f"the CPU lacks {', '.join(missing)}",
            "/proc/cpuinfo",
            "the emulator may end with an illegal instruction (SIGILL)",
            "use another machine, or pass the host's CPU through to the virtual one",
            Severity.WARNING,
        )
    if host.disk_free_gb < fitness.disk_gb:
        what = f"{host.disk_free_gb:g} GB are free, {fitness.disk_gb:g} GB are needed"
        yield Finding(
            "QNN005",
            "disk",
            what,
            host.disk_path,
            "'No space left on device' in the middle of an unpacking or a build",
            "free some, or set QNN_CI_HOME to a larger disk",
        )
    if 0 < host.memory_gb < fitness.memory_gb:
        what = f"the machine has {host.memory_gb:g} GB of memory, {fitness.memory_gb:g} are advised"
        yield Finding(
            "QNN006",
            "memory",
            what,
            "this machine",
            "the kernel may end a compiler or a lowering (exit code 137)",
            "use fewer jobs (--jobs 1) or a larger machine",
            Severity.WARNING,
        )
    if host.cores < fitness.cores:
        what = f"{host.cores} core may be used, {fitness.cores} are advised"
        yield Finding(
            "QNN007",
            "cores",
            what,
            "this machine",
            "a run takes several times as long",
            "give the machine or the container more cores",
            Severity.WARNING,
        )


def judge_system_libraries(host: HostFacts, needed_by: Mapping[str, str]) -> Iterator[Finding]:
    """Libraries that the tree expects of the system; ``needed_by`` names who needs each."""
    for name, path in host.libraries.items():
        if path is None and name in needed_by:
            yield Finding(
                "QNN003",
                name,
                f"{name} is not on this machine; {needed_by[name]} needs it",
                "the loader's cache and default directories",
                f"'{name}: cannot open shared object file' when {needed_by[name]} is loaded",
                f"install it: {PACKAGES.get(name, 'the package that has it')}",
            )


PACKAGES = {
    "libatomic.so.1": "apt-get install libatomic1",
    "libgcc_s.so.1": "apt-get install libgcc-s1",
    "libstdc++.so.6": "apt-get install libstdc++6",
    "libc++.so.1": "apt-get install libc++1",
    "libc++abi.so.1": "apt-get install libc++abi1",
    "libunwind.so.1": "apt-get install libunwind-14 (LLVM's, not libunwind8)",
    "libz.so.1": "apt-get install zlib1g",
}


def judge_tools(host: HostFacts, policies: Mapping[str, ToolPolicy]) -> Iterator[Finding]:
    """Programs that are missing, broken or old."""
    for tool in host.tools:
        policy = policies[tool.name]
        program = policy.program
        if tool.path is None and policy.optional:
            continue
        if tool.path is None:
            yield Finding(
                "QNN010",
                program,
                f"{program} is not on PATH",
                "PATH",
                "the build stops at its first step",
                f"install {program}",
            )
        elif tool.version is None:
            yield Finding(
                "QNN011",
                program,
                f"{program} does not tell its version: {tool.said}",
                tool.path,
                "a program that cannot run --version cannot build",
                f"reinstall {program}",
            )
        elif policy.minimum and is_older(tool.version, policy.minimum):
            what = f"{program} is {tool.version}, at least {policy.minimum} is needed"
            yield Finding(
                "QNN012",
                program,
                what,
                tool.path,
                policy.why or "the build fails in its scripts",
                f"install {program} {policy.advised or policy.minimum} or newer",
            )
        elif policy.advised and is_older(tool.version, policy.advised):
            what = f"{program} is {tool.version}, {policy.advised} is advised"
            yield Finding(
                "QNN013",
                program,
                what,
                tool.path,
                policy.why,
                f"install {program} {policy.advised}",
                Severity.WARNING,
            )
