"""An Android NDK against the pin."""

from __future__ import annotations

from collections.abc import Iterator

from provisioning.doctor.checks.finding import Finding, Severity
from provisioning.doctor.checks.fitness import NdkPolicy
from provisioning.doctor.checks.version import parse_version
from provisioning.doctor.facts import NdkFacts


def judge_ndk(ndk: NdkFacts, policy: NdkPolicy) -> Iterator[Finding]:
    """A root that is no NDK, or one that cannot build for Android, has no other faults."""
    if not ndk.is_directory or ndk.revision is None:
        yield Finding(
            "QNN601",
            "Android NDK",
            "this is no Android NDK: source.properties names no revision",
            str(ndk.root),
            "CMake fails at its first compiler test",
            f"give the root of NDK {policy.name} (--root android-ndk=DIR)",
        )
        return
    yield from _judge_revision(ndk, ndk.revision, policy)
    if not ndk.has_toolchain_file:
        yield Finding(
            "QNN604",
            "Android NDK",
            "build/cmake/android.toolchain.cmake is missing",
            str(ndk.root),
            "CMake then builds for this machine, not for Android",
            "unpack the NDK again",
        )
    yield from _judge_host(ndk, policy)


def _judge_revision(ndk: NdkFacts, revision: str, policy: NdkPolicy) -> Iterator[Finding]:
    major = parse_version(revision)[:1]
    where = f"{ndk.root}/source.properties"
    if major < (policy.minimum,):
        yield Finding(
            "QNN602",
            "Android NDK",
            f"NDK {revision} is older than r{policy.minimum}",
            where,
            "its clang and libc++ refuse the sources: __builtin_available, '[[]] attributes are a"
            " C23 extension' (executorch#4230), a header that QnnBackendUnifiedRegistry.h includes",
            f"use NDK {policy.name} ({policy.revision})",
        )
    elif revision != policy.revision:
        yield Finding(
            "QNN603",
            "Android NDK",
            f"NDK {revision} is here, the pin is {policy.revision} ({policy.name})",
            where,
            "upstream verifies with the pin only",
            f"use NDK {policy.name}, or run the Android build's tests with this one",
            Severity.WARNING,
        )


def _judge_host(ndk: NdkFacts, policy: NdkPolicy) -> Iterator[Finding]:
    prebuilt = f"{ndk.root}/toolchains/llvm/prebuilt"
    if policy.host_tag not in ndk.host_tags:
        has = ", ".join(ndk.host_tags) or "none"
        yield Finding(
            "QNN605",
            "Android NDK",
            f"the NDK is not for this machine: it has {has}, not {policy.host_tag}",
            prebuilt,
            "'cannot execute binary file: Exec format error'",
            f"unpack the NDK for {policy.host_tag}",
        )
        return
    if ndk.clang is None or ndk.clang.version is None:
        said = ndk.clang.said if ndk.clang else "it is missing"
        yield Finding(
            "QNN606",
            "clang++",
            f"the NDK's clang++ does not run: {said}",
            ndk.clang.path or prebuilt if ndk.clang else prebuilt,
            "nothing can be compiled; a zip unpacked without its modes gives the same",
            "unpack the NDK again with a tool that keeps executable bits",
        )
    if policy.api_level not in ndk.api_levels:
        newest = max(ndk.api_levels, default=0)
        yield Finding(
            "QNN607",
            "Android NDK",
            f"the sysroot has no API level {policy.api_level}, its newest is {newest}",
            f"{prebuilt}/{policy.host_tag}/sysroot/usr/lib",
            "the linker finds no crtbegin_so.o",
            f"use an NDK with API level {policy.api_level}, or unpack it again",
        )
