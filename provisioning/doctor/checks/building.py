"""Check an ExecuTorch checkout for faults that CMake reports late or never, and compare an Android
NDK with the profile's pin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.registry import Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import NDK, CheckoutFacts, NdkFacts, SubmoduleFacts
from provisioning.doctor.fitness import NdkPolicy
from provisioning.elf.facts import EM_AARCH64, EM_X86_64, MACHINE_NAMES
from provisioning.versions import parse_version

UPDATE = "git -C {root} submodule update --init --recursive"


class Checkout(NamedTuple):
    """A checkout of ExecuTorch, and the case (environment and requirements) that it belongs to."""

    facts: CheckoutFacts
    case: Case

    @property
    def commit(self) -> str:
        return self.facts.commit or ""

    @property
    def pin(self) -> str:
        """The pinned commit, '' if there is none."""
        return self.case.facts.pins.get("executorch-commit", "")

    def seen(self, subject: str = "checkout", where: object = "", **values: object) -> Seen:
        root = self.facts.root
        return seen(subject, where or root, root=root, checkout=self, **values)

    def submodules(self, state: str) -> Iterator[tuple[SubmoduleFacts, str]]:
        """Yield each submodule in ``state`` that is needed or is nested in a needed one, and the
        path of the needed one.
        """
        needed = self.case.facts.submodules
        known = {module.path for module in self.facts.submodules}
        unknown = [SubmoduleFacts(path, "missing") for path in needed if path not in known]
        for module in (*self.facts.submodules, *unknown):
            within = (path for path in needed if f"{module.path}/".startswith(f"{path}/"))
            owner = next(within, None)
            if owner and module.state == state:
                yield module, owner


CHECKOUTS = Subjects(
    lambda case: [Checkout(case.facts.checkout, case)] if case.facts.checkout else [],
    Checkout.seen,
)


CHECKOUTS.add(
    "QNN701",
    "the path of the ExecuTorch checkout is not a directory",
    "there is nothing to build",
    "pass the checkout with --root executorch=DIR, or run `qnn-ci fetch executorch`",
    lambda checkout: not checkout.facts.is_directory,
)
CHECKOUTS.add(
    "QNN702",
    "the checkout is named {root.name}, not executorch",
    "its sources include <executorch/...> from the parent directory, so compiling fails with "
    "'file not found'",
    "rename the directory to executorch",
    lambda checkout: checkout.facts.root.name != "executorch",
    after=("QNN701",),
)
CHECKOUTS.add(
    "QNN703",
    "git finds no commit in the checkout",
    "its commit and its submodules cannot be checked",
    "clone ExecuTorch with git; a release archive does not contain the submodules. If it is a "
    "clone, `git -C {root} status` shows what git refuses, such as the directory of another user",
    lambda checkout: not checkout.facts.is_git,
    after=("QNN701",),
)
CHECKOUTS.add(
    "QNN704",
    "the checkout is at {checkout.commit:.12}, but the pin is {checkout.pin:.12}",
    "the build differs from the tested one",
    f"git -C {{root}} checkout {{checkout.pin:.12}} && {UPDATE}",
    lambda checkout: checkout.pin and checkout.commit != checkout.pin,
    after=("QNN703",),
    severity=Severity.WARNING,
)


@CHECKOUTS.check(
    "QNN705",
    "submodule {subject} is missing",
    "CMake reports only the first group of missing submodules, or fails at a target that needs "
    "this one",
    f"{UPDATE} {{subject}}",
    after=("QNN703",),
)
def see_no_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("missing"):
        if module.path == owner:
            yield checkout.seen(module.path, f"{checkout.facts.root}/{module.path}")


@CHECKOUTS.check(
    "QNN706",
    "submodule {subject} inside {owner} is missing",
    "CMake fails at a target that needs this submodule",
    f"{UPDATE} {{owner}}",
    after=("QNN703",),
)
def see_no_nested_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("missing"):
        if module.path != owner:
            where = f"{checkout.facts.root}/{module.path}"
            yield checkout.seen(module.path, where, owner=owner)


@CHECKOUTS.check(
    "QNN707",
    "submodule {subject} is at {commit}, not at the recorded commit",
    "headers and sources of different commits can compile and then misbehave at run time",
    f"{UPDATE} --force {{owner}}",
    after=("QNN703",),
)
def see_moved_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("moved"):
        where = f"{checkout.facts.root}/{module.path}"
        yield checkout.seen(module.path, where, owner=owner, commit=module.commit[:12])


@CHECKOUTS.check(
    "QNN708",
    "flatcc's source tree contains outputs of an earlier build for {machine}",
    "the build uses them instead of outputs for {wanted}, and fails with 'is incompatible with' or "
    "'Exec format error'",
    "remove {where}, or use a separate work tree per target",
    after=("QNN703",),
)
def see_leftovers(checkout: Checkout) -> Iterator[Seen]:
    """Find leftovers of other builds: flatcc's compiler, which runs on the host, and its runtime
    library, which is linked into the target.
    """
    target = EM_X86_64 if checkout.case.runs_on_host else EM_AARCH64
    for path, machine in checkout.facts.leftovers:
        wanted = MACHINE_NAMES[target if path.endswith(".a") else EM_X86_64]
        if machine not in (wanted, "unknown"):
            yield checkout.seen("flatcc", path, machine=machine, wanted=wanted)


class Ndk(NamedTuple):
    """An Android NDK, and the case (environment and requirements) that it belongs to."""

    facts: NdkFacts
    case: Case

    @property
    def pin(self) -> str:
        """The pinned revision, '' if there is none."""
        return self.case.facts.pins.get(NDK, "")

    def seen(self) -> Seen:
        name = f"NDK {ndk_name(self.pin)} ({self.pin})" if self.pin else "the pinned NDK"
        where, tags = f"{self.facts.root}/source.properties", ", ".join(self.facts.host_tags)
        values = {"pinned": name, "revision": self.facts.revision, "found": tags or "none"}
        newest = max(self.facts.api_levels, default="none")
        values["place"] = (self.facts.clang and self.facts.clang.path) or self.prebuilt
        return seen("Android NDK", where, ndk=self, newest=newest, **values)

    @property
    def policy(self) -> NdkPolicy:
        return self.case.policy.ndk

    @property
    def prebuilt(self) -> str:
        return f"{self.facts.root}/toolchains/llvm/prebuilt"


def ndk_name(revision: str) -> str:
    """Return an NDK's name: ``r26c`` for 26.2.11394342, ``r27`` for 27.0.12077973."""
    version = parse_version(revision)
    return f"r{version.major}{chr(ord('a') + version.minor) if version.minor else ''}"


NDKS = Subjects(lambda case: [Ndk(case.facts.ndk, case)] if case.facts.ndk else [], Ndk.seen)


NDKS.add(
    "QNN601",
    "this is not an Android NDK: source.properties states no revision",
    "CMake fails at its first compiler test",
    "pass the root of {pinned}: --root android-ndk=DIR",
    lambda ndk: not ndk.facts.is_directory or ndk.facts.revision is None,
    where="{ndk.facts.root}",
)
NDKS.add(
    "QNN602",
    "NDK {revision} is older than r{ndk.policy.minimum}",
    "its clang and libc++ cannot compile the sources: they fail at __builtin_available, with '[[]] "
    "attributes are a C23 extension' (executorch#4230), or at a header that "
    "QnnBackendUnifiedRegistry.h includes",
    "run `qnn-ci fetch android-ndk`, or set ANDROID_NDK_ROOT to {pinned}",
    lambda ndk: parse_version(ndk.facts.revision or "").major < ndk.policy.minimum,
    after=("QNN601",),
)
NDKS.add(
    "QNN603",
    "NDK {revision} was found, but the pin is {pinned}",
    "the Android build was not tested with it; ExecuTorch's documentation says that its Qualcomm "
    "backend was verified with r26c",
    "use {pinned}, or run the Android build's tests with this NDK",
    lambda ndk: ndk.pin and ndk.facts.revision != ndk.pin,
    after=("QNN602",),
    severity=Severity.WARNING,
)
NDKS.add(
    "QNN604",
    "build/cmake/android.toolchain.cmake is missing",
    "CMake then builds for this machine, not for Android",
    "unpack the NDK again",
    lambda ndk: not ndk.facts.has_toolchain_file,
    where="{ndk.facts.root}",
    after=("QNN601",),
)
NDKS.add(
    "QNN605",
    "the NDK is not for this machine: it is for {found}, not {ndk.policy.host_tag}",
    "its compiler fails with 'cannot execute binary file: Exec format error'",
    "unpack the NDK for {ndk.policy.host_tag}",
    lambda ndk: ndk.policy.host_tag not in ndk.facts.host_tags,
    where="{ndk.prebuilt}",
    after=("QNN601",),
)
NDKS.add(
    "QNN606",
    "the NDK's clang++ does not run: {ndk.facts.clang.output}",
    "nothing can be compiled; one possible cause is that the files lost their executable bits",
    "run chmod +x on clang++; if it still does not run, unpack the NDK again with `unzip`",
    lambda ndk: ndk.facts.clang and ndk.facts.clang.version is None,
    where="{place}",
    after=("QNN605",),
)
NDKS.add(
    "QNN608",
    "the NDK has no clang++",
    "nothing can be compiled: CMake fails at its first compiler test",
    "unpack the whole NDK again: part of it is missing",
    lambda ndk: ndk.facts.clang is None,
    where="{ndk.prebuilt}/{ndk.policy.host_tag}/bin",
    after=("QNN605",),
)
NDKS.add(
    "QNN607",
    "the NDK's sysroot has no API level {ndk.case.android_api}; its newest is {newest}",
    "the linker does not find crtbegin_so.o",
    "use an NDK with API level {ndk.case.android_api}, or unpack it again",
    lambda ndk: ndk.case.android_api not in ndk.facts.api_levels,
    where="{ndk.prebuilt}/{ndk.policy.host_tag}/sysroot/usr/lib",
    after=("QNN605",),
)
