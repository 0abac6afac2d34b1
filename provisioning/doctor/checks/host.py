"""Check the machine and its tools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.registry import ENVIRONMENT, Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import ToolFacts
from provisioning.doctor.fitness import ToolPolicy
from provisioning.elf.facts import EM_X86_64
from provisioning.versions import is_older

HERE = "this machine"
PACKAGES = {
    "libatomic.so.1": "apt-get install libatomic1, or `qnn-ci fetch libatomic`",
    "libgcc_s.so.1": "apt-get install libgcc-s1",
    "libstdc++.so.6": "apt-get install libstdc++6",
    "libz.so.1": "apt-get install zlib1g",
}


ENVIRONMENT.add(
    "QNN001",
    "this is {subject}, not {wanted}",
    "QNN's host libraries and the HTP emulator exist only for {wanted}",
    "use a machine with {wanted}, or the project's container image on such a machine",
    lambda case: (
        bool(case.fitness.machines)  # a profile for a device's files runs nothing on this machine
        and (
            case.facts.host.system != "Linux"
            or case.facts.host.machine not in case.fitness.machines
        )
    ),
    subject="{host.system} {host.machine}",
)
ENVIRONMENT.add(
    "QNN002",
    "the machine has {found}, but QNN needs glibc {glibc} or newer",
    'loading libQnnHtp.so fails with "version `GLIBC_{glibc}\' not found"',
    "use Debian 12, Ubuntu 22.04 or newer, or the project's container image",
    lambda case: (
        bool(case.fitness.machines) and is_older(case.facts.host.glibc or "", case.fitness.glibc)
    ),
    subject="glibc",
    after=("QNN001",),
)


@ENVIRONMENT.check(
    "QNN004",
    "the CPU lacks {flags}",
    "the emulator may be killed by SIGILL (illegal instruction)",
    "use another machine, or pass the host's CPU through to the virtual machine",
    after=("QNN001",),
    severity=Severity.WARNING,
)
def see_lacking_flags(case: Case) -> Iterator[Seen]:
    has = case.facts.host.cpu_flags
    if missing := [flag for flag in case.fitness.cpu_flags if has and flag not in has]:
        yield seen("CPU", "/proc/cpuinfo", flags=", ".join(missing))


ENVIRONMENT.add(
    "QNN005",
    "{host.disk_free_gb:g} GB of disk space is free, but {disk_needed_gb:g} GB is needed",
    "unpacking or building fails with 'No space left on device'",
    "free some space, or set QNN_CI_HOME to a directory on a larger disk",
    lambda case: case.facts.host.disk_free_gb < case.fitness.disk_gb,
    subject="disk",
    where="{host.disk_path}",
    after=("QNN001",),
)
ENVIRONMENT.add(
    "QNN006",
    "the machine has {host.memory_gb:g} GB of memory, but {memory_advised_gb:g} GB is recommended",
    "the kernel may kill a compiler or a lowering (exit code 137)",
    "use fewer jobs (--jobs 1) or a larger machine",
    lambda case: 0 < case.facts.host.memory_gb < case.fitness.memory_gb,
    subject="memory",
    after=("QNN001",),
    severity=Severity.WARNING,
)
ENVIRONMENT.add(
    "QNN007",
    "usable CPU cores: {host.cores}, recommended: {cores_advised}",
    "a run takes several times as long",
    "give the machine or the container more cores",
    lambda case: case.facts.host.cores < case.fitness.cores,
    subject="cores",
    after=("QNN001",),
    severity=Severity.WARNING,
)


@ENVIRONMENT.check(
    "QNN003",
    "{subject} is not on this machine; {user} needs it",
    "loading {user} fails with '{subject}: cannot open shared object file'",
    "install it: {package}",
)
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


TOOLS.add(
    "QNN010",
    "{subject} is not on PATH",
    "the build fails at its first step",
    "install {subject} {advised}",
    lambda tool: tool.facts.path is None and not tool.policy.optional,
)
TOOLS.add(
    "QNN011",
    "{subject} does not print its version: {answer}",
    "the program is broken, or is not the expected one, so a build with it would fail",
    "reinstall {subject}",
    lambda tool: tool.facts.path and tool.facts.version is None,
)
TOOLS.add(
    "QNN012",
    "{subject} is {version}, but at least {minimum} is needed",
    "{reason}",
    "install {subject} {advised} or newer",
    lambda tool: tool.facts.version and is_older(tool.facts.version, tool.policy.minimum),
)
TOOLS.add(
    "QNN013",
    "{subject} is {version}, but {advised} or newer is recommended",
    "{reason}",
    "install {subject} {advised} or newer",
    lambda tool: tool.facts.version and is_older(tool.facts.version, tool.policy.advised),
    after=("QNN012",),
    severity=Severity.WARNING,
)
