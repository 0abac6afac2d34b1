"""A QNN SDK: root, markers, version against the pin and the profile, layout, headers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provisioning.doctor.checks.finding import Finding, Severity
from provisioning.doctor.checks.fitness import Fitness
from provisioning.doctor.checks.version import is_older, is_same
from provisioning.doctor.facts import SdkFacts, TreeFacts

REFETCH = "provision it again, or give another root"


def judge_sdk(
    sdk: SdkFacts, tree: TreeFacts, fitness: Fitness, pin: str | None, headers: Sequence[str]
) -> Iterator[Finding]:
    """Everything about the SDK that is not about a single file in it."""
    if not sdk.is_directory:
        yield Finding(
            "QNN101",
            "QNN SDK",
            "the root of the QNN SDK is not a directory",
            str(sdk.root),
            "QNN_SDK_ROOT would point at nothing; ExecuTorch's CMake configures and then fails",
            "provision it, or correct --root or QNN_SDK_ROOT",
        )
        return
    if "sdk.yaml" not in sdk.markers:
        yield Finding(
            "QNN102",
            "QNN SDK",
            "this is no QNN SDK: sdk.yaml is missing",
            str(sdk.root),
            "a half-unpacked SDK looks the same; what is missing shows up in the middle of a build",
            f"{REFETCH}; the root is the directory that has sdk.yaml in it",
        )
        return
    yield from _judge_version(sdk, fitness, pin)
    yield from _judge_layout(sdk, tree, fitness)
    if fitness.headers:
        yield from _judge_headers(sdk, headers)


def _judge_version(sdk: SdkFacts, fitness: Fitness, pin: str | None) -> Iterator[Finding]:
    where = f"{sdk.root}/sdk.yaml"
    if sdk.version is None:
        yield Finding(
            "QNN103",
            "sdk.yaml",
            "sdk.yaml names no version",
            where,
            "nothing tells which SDK this is, so no program it makes can be traced",
            REFETCH,
        )
    elif fitness.sdk_minimum and is_older(sdk.version, fitness.sdk_minimum):
        yield Finding(
            "QNN105",
            "QNN SDK",
            f"QNN {sdk.version} is too old for this profile: {fitness.sdk_minimum} is needed",
            where,
            fitness.sdk_why,
            f"provision QNN {fitness.sdk_minimum} or newer for this profile",
        )
    elif pin and not is_same(sdk.version, pin):
        yield Finding(
            "QNN104",
            "QNN SDK",
            f"QNN {sdk.version} is here, the pin is {pin}",
            where,
            "what was tested is another one; with others the emulator has failed with error 14001",
            f"provision {pin}, or change the pin and run the emulator's suite",
        )


def _judge_layout(sdk: SdkFacts, tree: TreeFacts, fitness: Fitness) -> Iterator[Finding]:
    there = {file.relative for file in tree.files} | tree.links.keys()
    for directory, names in fitness.libraries.items():
        if directory not in sdk.directories:
            yield Finding(
                "QNN106",
                directory,
                f"{directory} is missing",
                str(sdk.root),
                "the profile takes its libraries from it: 'cannot find -lQnnHtp' or a failed push",
                f"{REFETCH}; a provisioned subset must include this component",
            )
            continue
        for name in names:
            if f"{directory}/{name}" not in there:
                yield Finding(
                    "QNN107",
                    name,
                    f"{name} is missing from {directory}",
                    f"{sdk.root}/{directory}",
                    f"'{name}: cannot open shared object file' when the backend is made",
                    REFETCH,
                )


def _judge_headers(sdk: SdkFacts, headers: Sequence[str]) -> Iterator[Finding]:
    where = f"{sdk.root}/include/QNN"
    missing = [name for name in headers if name not in sdk.headers]
    if missing:
        yield Finding(
            "QNN108",
            "include/QNN",
            f"headers are missing: {', '.join(missing)}",
            where,
            "CMake configures without a word, the compiler fails: 'no such file or directory'",
            f"{REFETCH} with its include directory; ExecuTorch needs all of these",
        )
    elif sdk.api_version is None:
        yield Finding(
            "QNN109",
            "QnnCommon.h",
            "QnnCommon.h has no QNN_API_VERSION",
            where,
            "the sources compare it with the library's own at run time",
            REFETCH,
            Severity.WARNING,
        )
