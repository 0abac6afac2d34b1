"""Check an ExecuTorch checkout for faults that CMake reports late or never, and compare an Android
NDK with the profile's pin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.facts import NDK, CheckoutFacts, NdkFacts, SubmoduleFacts
from provisioning.doctor.fitness import NdkPolicy
from provisioning.doctor.registry import Case, Seen, Subjects, seen
from provisioning.elf.facts import EM_AARCH64, EM_X86_64, MACHINE_NAMES
from provisioning.versions import parse_version


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


CHECKOUTS.when(
    QNN701=lambda checkout: not checkout.facts.is_directory,
    QNN702=lambda checkout: checkout.facts.root.name != "executorch",
    QNN703=lambda checkout: not checkout.facts.is_git,
    QNN704=lambda checkout: checkout.pin and checkout.commit != checkout.pin,
)


@CHECKOUTS.check("QNN705")
def see_no_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("missing"):
        if module.path == owner:
            yield checkout.seen(module.path, f"{checkout.facts.root}/{module.path}")


@CHECKOUTS.check("QNN706")
def see_no_nested_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("missing"):
        if module.path != owner:
            where = f"{checkout.facts.root}/{module.path}"
            yield checkout.seen(module.path, where, owner=owner)


@CHECKOUTS.check("QNN707")
def see_moved_submodule(checkout: Checkout) -> Iterator[Seen]:
    for module, owner in checkout.submodules("moved"):
        where = f"{checkout.facts.root}/{module.path}"
        yield checkout.seen(module.path, where, owner=owner, commit=module.commit[:12])


@CHECKOUTS.check("QNN708")
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
