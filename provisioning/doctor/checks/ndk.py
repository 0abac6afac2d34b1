"""An Android NDK against the pin of the profile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from provisioning.doctor.checks.registry import Case, Seen, Severity, Subjects, seen
from provisioning.doctor.facts import NDK, NdkFacts
from provisioning.versions import parse_version


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
