"""What is built and with what: a checkout of ExecuTorch, of which CMake says these late or never,
and an Android NDK against the pin of the profile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.registry import Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import NDK, CheckoutFacts, NdkFacts, SubmoduleFacts
from provisioning.elf.facts import EM_AARCH64, EM_X86_64, MACHINE_NAMES
from provisioning.versions import parse_version

UPDATE = "git -C {root} submodule update --init --recursive"


class Checkout(NamedTuple):
    """A checkout in its case."""

    facts: CheckoutFacts
    case: Case

    def seen(self, subject: str = "checkout", where: object = "", **values: object) -> Seen:
        root = self.facts.root
        return seen(subject, where or root, root=root, **values)

    def submodules(self, state: str) -> Iterator[tuple[SubmoduleFacts, str]]:
        """Each needed submodule, or one within, that is in this state, and the needed one."""
        needed = self.case.facts.submodules
        known = {module.path for module in self.facts.submodules}
        unknown = [SubmoduleFacts(path, "missing") for path in needed if path not in known]
        for module in (*self.facts.submodules, *unknown):
            within = (path for path in needed if _is_within(module.path, path))
            owner = next(within, None)
            if owner and module.state == state:
                yield module, owner


def _is_within(path: str, owner: str) -> bool:
    return path == owner or path.startswith(owner + "/")


CHECKOUTS = Subjects(
    lambda case: [Checkout(case.facts.checkout, case)] if case.facts.checkout else []
)


@CHECKOUTS.check(
    "QNN701",
    "the checkout of ExecuTorch is not a directory",
    "there is nothing to build",
    "correct --root executorch=DIR, or provision executorch",
)
def see_no_directory(checkout: Checkout) -> Iterator[Seen]:
    if not checkout.facts.is_directory:
        yield checkout.seen()


@CHECKOUTS.check(
    "QNN702",
    "the checkout is named {name}, not executorch",
    "its includes are <executorch/...>, found from the directory above: 'file not found'",
    "rename the directory to executorch",
    after=("QNN701",),
)
def see_other_name(checkout: Checkout) -> Iterator[Seen]:
    if checkout.facts.root.name != "executorch":
        yield checkout.seen(name=checkout.facts.root.name)


@CHECKOUTS.check(
    "QNN703",
    "git knows no commit of the checkout",
    "neither its commit nor its submodules can be compared with anything",
    "clone it with git; an archive of a release has no submodules in it",
    after=("QNN701",),
)
def see_no_git(checkout: Checkout) -> Iterator[Seen]:
    if not checkout.facts.is_git:
        yield checkout.seen()


@CHECKOUTS.check(
    "QNN704",
    "the checkout is at {commit}, the pin is {pin}",
    "what is built is not what was tested",
    f"git -C {{root}} checkout {{pin}} && {UPDATE}",
    after=("QNN703",),
    severity=Severity.WARNING,
)
def see_other_commit(checkout: Checkout) -> Iterator[Seen]:
    commit = checkout.facts.commit or ""
    pin = checkout.case.facts.pins.get("executorch-commit", "")
    if pin and commit != pin:
        yield checkout.seen(commit=commit[:12], pin=pin[:12])


@CHECKOUTS.check(
    "QNN705",
    "submodule {subject} is not there",
    "CMake names the first group of missing ones only, or stops at a target without it",
    f"{UPDATE} {{subject}}",
    after=("QNN703",),
)
def see_no_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("missing"):
        if module.path == owner:
            yield checkout.seen(module.path, f"{checkout.facts.root}/{module.path}")


@CHECKOUTS.check(
    "QNN706",
    "submodule {subject} inside {owner} is not there",
    "CMake stops at a target without it",
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
    "headers and sources of different commits compile, and differ at run time",
    f"{UPDATE} --force {{owner}}",
    after=("QNN703",),
)
def see_moved_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("moved"):
        where = f"{checkout.facts.root}/{module.path}"
        yield checkout.seen(module.path, where, owner=owner, commit=module.commit[:12])


@CHECKOUTS.check(
    "QNN708",
    "flatcc's source tree holds outputs of an earlier build for {machine}",
    "the build takes it: 'is incompatible with' {wanted}, or 'Exec format error'",
    "remove {where}, or use one work tree a target",
    after=("QNN703",),
)
def see_leftovers(checkout: Checkout) -> Iterator[Seen]:
    """flatcc's compiler runs on the host, its runtime library is linked into the target."""
    target = EM_X86_64 if checkout.case.runs_on_host else EM_AARCH64
    for path, machine in checkout.facts.leftovers:
        wanted = MACHINE_NAMES[target if path.endswith(".a") else EM_X86_64]
        if machine not in (wanted, "unknown"):
            yield checkout.seen("flatcc", path, machine=machine, wanted=wanted)


class Ndk(NamedTuple):
    """An NDK in its case."""

    facts: NdkFacts
    case: Case

    @property
    def pin(self) -> str:
        """The pinned revision, "" if there is none."""
        return self.case.facts.pins.get(NDK, "")

    def seen(self, where: object = "", **values: object) -> Seen:
        name = f"NDK {ndk_name(self.pin)} ({self.pin})" if self.pin else "the pinned NDK"
        place = where or f"{self.facts.root}/source.properties"
        return seen("Android NDK", place, pinned=name, revision=self.facts.revision, **values)

    @property
    def prebuilt(self) -> str:
        return f"{self.facts.root}/toolchains/llvm/prebuilt"


def ndk_name(revision: str) -> str:
    """``r26c`` of 26.2.11394342, ``r27`` of 27.0.12077973."""
    version = parse_version(revision)
    return f"r{version.major}{chr(ord('a') + version.minor) if version.minor else ''}"


NDKS = Subjects(lambda case: [Ndk(case.facts.ndk, case)] if case.facts.ndk else [])


@NDKS.check(
    "QNN601",
    "this is not an Android NDK: source.properties names no revision",
    "CMake fails at its first compiler test",
    "give the root of {pinned}: --root android-ndk=DIR",
)
def see_no_ndk(ndk: Ndk) -> Iterator[Seen]:
    if not ndk.facts.is_directory or ndk.facts.revision is None:
        yield ndk.seen(ndk.facts.root)


@NDKS.check(
    "QNN602",
    "NDK {revision} is older than r{minimum}",
    "its clang and libc++ refuse the sources: __builtin_available, '[[]] attributes are a C23 "
    "extension' (executorch#4230), a header that QnnBackendUnifiedRegistry.h includes",
    "run `qnn-ci fetch android-ndk`, or set ANDROID_NDK_ROOT to {pinned}",
    after=("QNN601",),
)
def see_old_ndk(ndk: Ndk) -> Iterator[Seen]:
    if parse_version(ndk.facts.revision or "").major < ndk.case.policy.ndk.minimum:
        yield ndk.seen(minimum=ndk.case.policy.ndk.minimum)


@NDKS.check(
    "QNN603",
    "NDK {revision} is here, the pin is {pinned}",
    "upstream verifies with the pin only",
    "use {pinned}, or run the Android build's tests with this one",
    after=("QNN602",),
    severity=Severity.WARNING,
)
def see_other_ndk(ndk: Ndk) -> Iterator[Seen]:
    if ndk.pin and ndk.facts.revision != ndk.pin:
        yield ndk.seen()


@NDKS.check(
    "QNN604",
    "build/cmake/android.toolchain.cmake is missing",
    "CMake then builds for this machine, not for Android",
    "unpack the NDK again",
    after=("QNN601",),
)
def see_no_toolchain_file(ndk: Ndk) -> Iterator[Seen]:
    if not ndk.facts.has_toolchain_file:
        yield ndk.seen(ndk.facts.root)


@NDKS.check(
    "QNN605",
    "the NDK is not for this machine: it is for {found}, not {wanted}",
    "'cannot execute binary file: Exec format error'",
    "unpack the NDK for {wanted}",
    after=("QNN601",),
)
def see_other_host(ndk: Ndk) -> Iterator[Seen]:
    if ndk.case.policy.ndk.host_tag not in ndk.facts.host_tags:
        has = ", ".join(ndk.facts.host_tags) or "none"
        yield ndk.seen(ndk.prebuilt, found=has, wanted=ndk.case.policy.ndk.host_tag)


@NDKS.check(
    "QNN606",
    "the NDK's clang++ does not run: {answer}",
    "nothing can be compiled; an NDK whose executable bits were lost looks the same",
    "run chmod +x on it; if it still does not run, unpack the NDK again with `unzip`",
    after=("QNN605",),
)
def see_broken_clang(ndk: Ndk) -> Iterator[Seen]:
    clang = ndk.facts.clang
    if clang and clang.version is None:
        yield ndk.seen(clang.path or ndk.prebuilt, answer=clang.said)


@NDKS.check(
    "QNN608",
    "the NDK has no clang++",
    "nothing can be compiled: CMake stops at its first compiler test",
    "unpack the whole NDK again: part of it was left out",
    after=("QNN605",),
)
def see_no_clang(ndk: Ndk) -> Iterator[Seen]:
    if ndk.facts.clang is None:
        yield ndk.seen(f"{ndk.prebuilt}/{ndk.case.policy.ndk.host_tag}/bin")


@NDKS.check(
    "QNN607",
    "the sysroot has no API level {level}, its newest is {newest}",
    "the linker finds no crtbegin_so.o",
    "use an NDK with API level {level}, or unpack it again",
    after=("QNN605",),
)
def see_no_level(ndk: Ndk) -> Iterator[Seen]:
    if ndk.case.android_api not in ndk.facts.api_levels:
        where = f"{ndk.prebuilt}/{ndk.case.policy.ndk.host_tag}/sysroot/usr/lib"
        newest = max(ndk.facts.api_levels, default="none")
        yield ndk.seen(where, level=ndk.case.android_api, newest=newest)
