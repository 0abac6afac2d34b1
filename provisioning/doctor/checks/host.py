"""Check the machine and its tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.facts import ToolFacts
from provisioning.doctor.fitness import ToolPolicy
from provisioning.doctor.registry import ENVIRONMENT, Case, Seen, Subjects, seen
from provisioning.elf.facts import EM_X86_64
from provisioning.versions import is_older

PACKAGES = {
    "libatomic.so.1": "apt-get install libatomic1, or `qnn-ci fetch libatomic`",
    "libgcc_s.so.1": "apt-get install libgcc-s1",
    "libstdc++.so.6": "apt-get install libstdc++6",
    "libz.so.1": "apt-get install zlib1g",
}


ENVIRONMENT.when(
    QNN001=lambda case: (
        bool(case.fitness.machines)  # a profile for a device's files runs nothing on this machine
        and (
            case.facts.host.system != "Linux"
            or case.facts.host.machine not in case.fitness.machines
        )
    ),
    QNN002=lambda case: (
        bool(case.fitness.machines) and is_older(case.facts.host.glibc or "", case.fitness.glibc)
    ),
    QNN005=lambda case: case.facts.host.disk_free_gb < case.fitness.disk_gb,
    QNN006=lambda case: 0 < case.facts.host.memory_gb < case.fitness.memory_gb,
    QNN007=lambda case: case.facts.host.cores < case.fitness.cores,
)


@ENVIRONMENT.check("QNN004")
def see_lacking_flags(case: Case) -> Iterator[Seen]:
    has = case.facts.host.cpu_flags
    if missing := [flag for flag in case.fitness.cpu_flags if has and flag not in has]:
        yield seen("CPU", "/proc/cpuinfo", flags=", ".join(missing))


@ENVIRONMENT.check("QNN003")
def see_missing_library(case: Case) -> Iterator[Seen]:
    """Find missing system libraries that the SDK's host libraries need."""
    system = case.host_policy.system if case.host_policy else ()
    needed = {
        name: file.name
        for file in reversed(case.sdk_files)
        if file.elf and file.elf.machine == EM_X86_64
        for name in file.elf.needed
        if name in system
    }
    variables = case.facts.variables
    entries = variables.library_path if variables else ()
    listed = {file.name for entry in entries for file in entry.runtimes}
    for name, path in case.facts.host.libraries.items():
        if name in needed and path is None and name not in listed:
            package = PACKAGES.get(name, "the package that contains it")
            where = "LD_LIBRARY_PATH, the loader's cache and default directories"
            yield seen(name, where, user=needed[name], package=package)


class Tool(NamedTuple):
    """A program and its requirements."""

    facts: ToolFacts
    policy: ToolPolicy

    def seen(self) -> Seen:
        policy, facts = self.policy, self.facts
        return seen(
            policy.program,
            facts.path or "PATH",
            version=facts.version,
            answer=facts.output,
            minimum=policy.minimum,
            advised=policy.advised or policy.minimum,
            reason=policy.why or "the build's scripts fail",
        )


TOOLS: Subjects[Tool] = Subjects(
    lambda case: [Tool(tool, case.policy.tools[tool.name]) for tool in case.facts.host.tools],
    Tool.seen,
)


TOOLS.when(
    QNN010=lambda tool: tool.facts.path is None and not tool.policy.optional,
    QNN011=lambda tool: tool.facts.path and tool.facts.version is None,
    QNN012=lambda tool: tool.facts.version and is_older(tool.facts.version, tool.policy.minimum),
    QNN013=lambda tool: tool.facts.version and is_older(tool.facts.version, tool.policy.advised),
)
