"""manifests/pairs.toml: the defaults fit together, and wrong pairs end with exit 3, each named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_row

from provisioning.doctor.examine import Verdict, find_fitness, judge_environment
from provisioning.doctor.facts import (
    CheckoutFacts,
    EnvironmentFacts,
    FileFacts,
    HostFacts,
    NdkFacts,
    PythonFacts,
    SdkFacts,
    TreeFacts,
)
from provisioning.doctor.policies import read_doctor_policy, read_elf_policies
from provisioning.doctor.registry import Case
from provisioning.elf.facts import EM_X86_64, ElfFacts
from provisioning.elf.qnn_build import QnnBuild
from provisioning.errors import ExitCode, UnfitError
from provisioning.manifest.pairs import QnnRange, read_pairs
from provisioning.manifest.reader import read_profile, read_toolchain
from provisioning.versions import find_place_version, is_older, is_same

PAIRS = read_pairs()
DEFAULT = PAIRS.find(PAIRS.default)
IDS = ("QNN104", "QNN105", "QNN505", "QNN514", "QNN602", "QNN603")


def test_the_default_versions_are_one_supported_pair() -> None:
    assert DEFAULT is not None
    assert read_toolchain("executorch").default == PAIRS.default
    assert is_same(read_toolchain("qnn-sdk").default, DEFAULT.qnn.pinned)
    pinned = read_toolchain("qnn-runtime").default
    assert PAIRS.is_supported(PAIRS.default, PAIRS.find_torch(), pinned)
    assert is_same(read_toolchain("hexagon-sdk").default, DEFAULT.hexagon)
    assert is_same(read_toolchain("android-ndk").default, DEFAULT.ndk.pinned)
    assert not is_older(DEFAULT.qnn.newest, read_toolchain("qnn-runtime").default)
    assert is_same(DEFAULT.wheel_adaptor + ".0", DEFAULT.qnn.pinned)


def test_an_executorch_without_a_row_uses_the_row_of_its_minor_version() -> None:
    assert DEFAULT is not None
    rows = [replace_row(DEFAULT, version=version) for version in ("1.5.1", "1.5.0", "1.4.2")]
    pairs = replace_row(PAIRS, executorch=tuple(rows))
    rows_by_version = {
        version: pairs.find(version) for version in ("1.5.0", "1.5.9", "1.4.0", "1.6.0")
    }
    assert rows_by_version == {"1.5.0": rows[1], "1.5.9": rows[0], "1.4.0": rows[2], "1.6.0": None}


def test_version_ranges_of_every_pair_are_ordered_and_match_the_policies() -> None:
    policy = read_doctor_policy()
    assert {str(policy.ndk.minimum)} == {row.ndk.oldest for row in PAIRS.executorch}
    for row in PAIRS.executorch:
        assert not is_older(row.qnn.pinned, row.qnn.oldest)
        assert not is_older(row.qnn.newest, row.qnn.pinned)
        assert row.source
    profiles = ("lpai", "direct-lpai")
    floors = {read_profile(name).minimum("qnn-sdk")[0] for name in profiles}
    assert floors == {row.lpai for row in PAIRS.executorch if row.lpai}


def test_every_checkout_that_can_be_fetched_has_a_row() -> None:
    versions = {row.version for row in PAIRS.executorch}
    assert {release.version for release in read_toolchain("executorch").releases} <= versions


@pytest.mark.parametrize(
    ("place", "version"),
    [
        ("/opt/Hexagon_SDK/6.0.0.2/", "6.0.0.2"),
        ("/h/store/hexagon-sdk-6.5.0.0-0123456789ab/hexagon-sdk", "6.5.0.0"),
        ("/h/store/hexagon-sdk-6.5.0.0-0123456789ab/6.4.0.2", "6.4.0.2"),
        ("/opt/6.0.0.2-old", ""),
        ("/opt/hexagon", ""),
        ("", ""),
    ],
)
def test_the_version_of_an_sdk_is_read_from_its_path(place: str, version: str) -> None:
    assert find_place_version(place) == version


def library(name: str, version: str) -> FileFacts:
    path = Path("/sdk/lib/x86_64-linux-clang", name)
    facts = ElfFacts(path, 1, 64, True, EM_X86_64, 3, 0, soname=name)
    stamp = "260810104044"
    build = QnnBuild(version, stamp, f"v{version}.{stamp}")
    return FileFacts(f"lib/x86_64-linux-clang/{name}", path, 1, facts, build)


def compose(
    profile: str,
    *,
    sdk: str = "2.37.0",
    executorch: str = "1.5.1",
    torch: str = "2.13.0",
    ndk: str = "26.2.11394342",
    hexagon: str = "6.5.0.0",
    soc: tuple[str, int] | None = None,
    checkout: str = "1.5.1",
    name: str = "",
    **adaptor: Any,
) -> Case:
    """An environment of versions alone: what else it lacks is told by checks of no pair."""
    root = Path("/sdk")
    files = (library("libQnnHtp.so", sdk), library("libQnnSystem.so", sdk))
    python = PythonFacts(
        "python",
        (3, 11, 7),
        ".so",
        {"torch": torch, "executorch": executorch},
        executorch="/site/executorch",
        adaptors=("/site/P.so",),
        adaptor=FileFacts("P.so", Path("/site/P.so"), 1, files[0].elf),
        **{"headers": "2.37", **adaptor},
    )
    name = name or find_fitness(profile).sdk[-1]
    facts = EnvironmentFacts(
        profile,
        HostFacts("Linux", "x86_64", "2.36", 2, 9, 99, "/"),
        roots={name: "/sdk", "hexagon-sdk": f"/opt/Hexagon_SDK/{hexagon}"},
        sdk_name=name,
        sdk=SdkFacts(root, is_directory=True, markers=("sdk.yaml",), version=sdk),
        trees={name: TreeFacts(root, files)},
        ndk=NdkFacts(Path("/ndk"), is_directory=True, revision=ndk),
        python=python if find_fitness(profile).python else None,
        checkout=CheckoutFacts(Path("/src/executorch"), is_directory=True, version=checkout),
    )
    policy, fitness, kinds = read_doctor_policy(), find_fitness(profile), read_elf_policies()
    required_kinds = {kind: kinds[kind] for kind in fitness.kinds}
    minimum = read_profile(profile).minimum(name)
    if fitness.python:
        facts = replace(facts, checkout=None, ndk=None)
    return Case(facts, policy, fitness, {**kinds, **required_kinds}, soc, minimum, PAIRS)


def find_pair_faults(case: Case) -> Verdict:
    """The verdict of the checks that are about a pair of versions."""
    findings = [
        finding
        for finding in judge_environment(case)
        if finding.id in IDS or finding.id.startswith("QNN9")
    ]
    return Verdict(case.facts.profile, tuple(findings))


SOCS = {"SM8750": ("SM8750", 79), "SM8850": ("SM8850", 81), "SM8650": ("SM8650", 75)}
WRONG: Mapping[str, tuple[str, dict[str, Any], tuple[str, str]]] = {
    "torch of an older release": ("emulator", {"torch": "2.12.0"}, ("1.5.1", "2.12.0")),
    "torch that upstream takes and nobody tried": (
        "emulator",
        {"torch": "2.14.0", "sdk": "2.49.40", "name": "qnn-runtime"},
        ("1.5.1", "2.14.0", "2.49.40"),
    ),
    "an overlay of an older checkout": ("emulator", {"checkout_of": "1.4.1"}, ("1.4.1", "1.5.1")),
    "the wheel's adaptor with moved structures": (
        "emulator-sdk",
        {"sdk": "2.47.0", "no_device": "unknown custom config socModel 0"},
        ("2.37", "2.47.0"),
    ),
    "an SDK before upstream's pin": ("aot", {"sdk": "2.36.1"}, ("2.36.1", "1.5.1")),
    "LPAI with upstream's pin": ("lpai", {"sdk": "2.37.0"}, ("2.37.0", "2.39")),
    "an NDK before r26": ("android", {"ndk": "25.2.9519653"}, ("25.2.9519653", "26")),
    "a Hexagon SDK without tools for v81": (
        "direct",
        {"hexagon": "6.0.0.2", "soc": SOCS["SM8850"]},
        ("6.0.0.2", "SM8850"),
    ),
}


@pytest.mark.parametrize("row", WRONG)
def test_versions_that_do_not_fit_together_are_named(row: str) -> None:
    profile, versions, named = WRONG[row]
    versions = dict(versions)
    if "checkout_of" in versions:
        versions["built_with"] = "2.37.0"
        of = versions.pop("checkout_of")
        case = compose(profile, **versions)
        python = case.facts.python
        assert python
        case = replace(case, facts=replace(case.facts, python=replace(python, checkout=of)))
    else:
        case = compose(profile, **versions)
    with pytest.raises(UnfitError) as caught:
        find_pair_faults(case).require()
    assert caught.value.exit_code == ExitCode.ENVIRONMENT
    assert all(version in caught.value.what for version in named), caught.value.what


@pytest.mark.parametrize(
    ("profile", "versions"),
    [
        ("emulator", {"sdk": "2.49.40", "name": "qnn-runtime"}),
        *(
            (
                "emulator",
                {
                    "executorch": supported.executorch,
                    "torch": f"{supported.torch}+cpu",
                    "sdk": supported.qnn,
                }
                | {"name": "qnn-runtime", "flatc": "/bin/flatc"},
            )
            for supported in PAIRS.supported
        ),
        ("emulator-sdk", {"no_device": ""}),
        ("aot", {}),
        ("android", {}),
        ("linux", {}),
        ("direct", {"soc": SOCS["SM8850"]}),
        ("lpai", {"sdk": "2.39.0"}),
    ],
)
def test_default_versions_have_no_pair_finding(profile: str, versions: dict[str, Any]) -> None:
    assert find_pair_faults(compose(profile, **versions)).findings == ()


@pytest.mark.parametrize(
    ("versions", "nearest"),
    [
        (("1.5.1", "2.14.0", "2.49.40"), ("1.5.1", "2.13.0", "2.49.40")),
        (("1.5.1", "2.13.0", "2.50.40"), ("1.5.1", "2.13.0", "2.49.40")),
        (("1.4.0", "2.13.0", "2.49.40"), ("1.4.1", "2.13.0", "2.49.40")),
        (("1.0.1", "2.9.0", ""), ("1.2.0", "2.11.0", "2.49.40")),
        (("1.3.1", "2.13.0", "2.49.40"), ("1.3.1", "2.12.0", "2.49.40")),
        (("1.6.0a0+abc", "2.15.0.dev1", ""), ("1.5.1", "2.13.0", "2.49.40")),
    ],
)
def test_the_nearest_supported_versions_are_named(
    versions: tuple[str, str, str], nearest: tuple[str, str, str]
) -> None:
    assert not PAIRS.is_supported(*versions)
    row = PAIRS.find_nearest(*versions)
    assert row
    assert row.versions == nearest


@pytest.mark.parametrize(
    ("sdk", "ids"),
    [
        ("2.29.9", ["QNN904"]),
        ("2.30.0", []),
        ("2.40.0", []),
        ("2.50.0", []),
        ("2.50.1", ["QNN905"]),
    ],
)
def test_an_sdk_works_from_the_oldest_to_the_newest_and_not_only_if_pinned(
    sdk: str, ids: list[str]
) -> None:
    assert DEFAULT
    row = replace_row(DEFAULT, qnn=QnnRange(oldest="2.30.0", newest="2.50.0", pinned="2.40.0"))
    case = replace(compose("aot", sdk=sdk), pairs=replace_row(PAIRS, executorch=(row,)))
    assert [
        finding.id for finding in judge_environment(case) if finding.id in {"QNN904", "QNN905"}
    ] == ids


def test_an_overlay_is_checked_by_its_headers_not_by_the_table_of_pairs() -> None:
    """The adaptor of an overlay is built for the QNN that it calls."""
    case = compose("emulator", sdk="2.51.0", name="qnn-runtime", headers="2.51")
    assert "QNN505" in {finding.id for finding in find_pair_faults(case).findings}
    python = case.facts.python
    assert python
    case = replace(case, facts=replace(case.facts, python=replace(python, checkout="1.5.1")))
    assert "QNN505" not in {finding.id for finding in find_pair_faults(case).findings}
