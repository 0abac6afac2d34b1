"""Check the machine and its tools; an ExecuTorch checkout, for faults that CMake reports late or
never; and an Android NDK, which is compared with the profile's pin.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from provisioning.doctor.facts import NDK, CheckoutFacts, NdkFacts, SubmoduleFacts, ToolFacts
from provisioning.doctor.fitness import NdkPolicy, ToolPolicy
from provisioning.doctor.registry import ENVIRONMENT, Case, Seen, Subjects, seen
from provisioning.elf.facts import EM_AARCH64, EM_X86_64, MACHINE_NAMES
from provisioning.quoting import shell_words
from provisioning.versions import is_older, parse_version

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
    QNN008=lambda case: 0 < case.facts.host.address_space_gb < case.fitness.address_space_gb,
    QNN007=lambda case: case.facts.host.cores < case.fitness.cores,
)


@ENVIRONMENT.check("QNN004")
def see_lacking_flags(case: Case) -> Iterator[Seen]:
    """Report the CPU's missing instruction sets. Nothing is reported if the flags are unknown."""
    has = case.facts.host.cpu_flags
    if missing := [flag for flag in case.fitness.cpu_flags if has and flag not in has]:
        yield seen("CPU", "/proc/cpuinfo", flags=", ".join(missing))


@ENVIRONMENT.check("QNN003")
def see_missing_library(case: Case) -> Iterator[Seen]:
    """Find missing system libraries that the SDK's host libraries need."""
    system = case.host_policy.system if case.host_policy else ()
    needed = {
        name: file.name
        # Reversed, so that the first file that needs a library is the one that is named.
        for file in reversed(case.sdk_files)
        if file.elf and file.machine == EM_X86_64
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
        """Return a fault of the tool, with the values that the texts of its checks use."""
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


class Checkout(NamedTuple):
    """A checkout of ExecuTorch, and the case (environment and requirements) that it belongs to."""

    facts: CheckoutFacts
    case: Case

    @property
    def commit(self) -> str:
        """The commit that is checked out; empty if it is unknown."""
        return self.facts.commit or ""

    @property
    def pin(self) -> str:
        """The pinned commit, '' if there is none."""
        return self.case.facts.pins.get("executorch-commit", "")

    def seen(self, subject: str = "checkout", where: object = "", **values: object) -> Seen:
        """Return a fault of the checkout, with the values that the texts of its checks use."""
        root = self.facts.root
        return seen(subject, where or root, root=root, checkout=self, **values)

    def submodules(self, state: str) -> Iterator[tuple[SubmoduleFacts, str]]:
        """Yield each submodule in ``state`` that is needed or is nested in a needed one, and the
        path of the needed one.
        """
        needed = self.case.facts.submodules
        for module in self.facts.submodules:
            within = (path for path in needed if f"{module.path}/".startswith(f"{path}/"))
            owner = next(within, None)
            if owner and module.state == state:
                yield module, owner


CHECKOUTS = Subjects(
    lambda case: [Checkout(case.facts.checkout, case)] if case.facts.checkout else [],
    Checkout.seen,
)


CHECKOUTS.when(
    QNN701=lambda checkout: not checkout.facts.is_directory,
    # ExecuTorch's CMake files require this name.
    QNN702=lambda checkout: checkout.facts.root.name != "executorch",
    QNN703=lambda checkout: not checkout.facts.is_git,
    QNN704=lambda checkout: checkout.pin and checkout.commit != checkout.pin,
)


def see_submodules(state: str, nested: set[bool], checkout: Checkout) -> Iterator[Seen]:
    """Report submodules in ``state``: needed ones if ``nested`` contains False, and those
    nested in needed ones if it contains True. ``owners`` are the needed ones of all of them, for
    one command that updates them.
    """
    modules = [
        (module, owner)
        for module, owner in checkout.submodules(state)
        if (module.path != owner) in nested
    ]
    owners = shell_words(sorted({owner for _, owner in modules}))
    for module, owner in modules:
        where, commit = f"{checkout.facts.root}/{module.path}", module.commit[:12]
        yield checkout.seen(module.path, where, owner=owner, owners=owners, commit=commit)


CHECKOUTS.each(
    QNN705=partial(see_submodules, "missing", {False}),
    QNN706=partial(see_submodules, "missing", {True}),
    QNN707=partial(see_submodules, "moved", {False, True}),
)


@CHECKOUTS.check("QNN708")
def see_leftovers(checkout: Checkout) -> Iterator[Seen]:
    """Find leftovers of other builds: flatcc's compiler, which runs on the host, and its runtime
    library, which is linked into the target.
    """
    target = EM_X86_64 if checkout.case.runs_on_host else EM_AARCH64
    # The compiler runs on the host, so only the runtime library has to be the target's.
    for path, machine in checkout.facts.leftovers:
        # flatcc writes into the source tree, so a build for another target leaves its outputs for
        # this one.
        expected = MACHINE_NAMES[target if path.endswith(".a") else EM_X86_64]
        if machine not in (expected, "unknown"):
            yield checkout.seen("flatcc", path, machine=machine, wanted=expected)


class Ndk(NamedTuple):
    """An Android NDK, and the case (environment and requirements) that it belongs to."""

    facts: NdkFacts
    case: Case

    @property
    def pin(self) -> str:
        """The pinned revision, '' if there is none."""
        return self.case.facts.pins.get(NDK, "")

    def seen(self) -> Seen:
        """Return a fault of the NDK, with the values that the texts of its checks use."""
        name = f"NDK {ndk_name(self.pin)} ({self.pin})" if self.pin else "the pinned NDK"
        where, tags = f"{self.facts.root}/source.properties", ", ".join(self.facts.host_tags)
        values = {"pinned": name, "revision": self.facts.revision, "found": tags or "none"}
        newest = max(self.facts.api_levels, default="none")
        values["place"] = (self.facts.clang and self.facts.clang.path) or self.prebuilt
        return seen("Android NDK", where, ndk=self, newest=newest, **values)

    @property
    def policy(self) -> NdkPolicy:
        """The requirements of an NDK."""
        return self.case.policy.ndk

    @property
    def prebuilt(self) -> str:
        """The directory with the compilers, one subdirectory for each kind of host."""
        return f"{self.facts.root}/toolchains/llvm/prebuilt"


def ndk_name(revision: str) -> str:
    """Return an NDK's name: ``r26c`` for 26.2.11394342, ``r27`` for 27.0.12077973."""
    version = parse_version(revision)
    return f"r{version.major}{chr(ord('a') + version.minor) if version.minor else ''}"


NDKS = Subjects(lambda case: [Ndk(case.facts.ndk, case)] if case.facts.ndk else [], Ndk.seen)


NDKS.when(
    QNN601=lambda ndk: not ndk.facts.is_directory or ndk.facts.revision is None,
    QNN602=lambda ndk: parse_version(ndk.facts.revision or "").major < ndk.policy.minimum,
    QNN603=lambda ndk: ndk.pin and ndk.facts.revision != ndk.pin,
    QNN604=lambda ndk: not ndk.facts.has_toolchain_file,
    QNN605=lambda ndk: ndk.policy.host_tag not in ndk.facts.host_tags,
    QNN606=lambda ndk: ndk.facts.clang and ndk.facts.clang.version is None,
    QNN608=lambda ndk: ndk.facts.clang is None,
    QNN607=lambda ndk: ndk.case.android_api not in ndk.facts.api_levels,
)
