"""One fault in a tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.doctor.examine import examine_request, find_pins, wanted_requests
from tests.stand_ins.environments import LINUX, World, git
from tests.stand_ins.faults import SIZES, Fault, check, moved, removed
from tests.stand_ins.second_ndk import PROFILE, REVISION, make_manifests

NDK_HOST = "toolchains/llvm/prebuilt/linux-x86_64"


def commit(world: World, module: str = ".") -> None:
    repository = world.checkout / module
    before = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "commit", "-q", "--allow-empty", "-m", "mine")
    world.undo.append(lambda: git(repository, "reset", "-q", "--hard", before))


def deinit(world: World, module: str, within: str = ".") -> None:
    repository = world.checkout / within
    git(repository, "submodule", "deinit", "-q", "-f", module)
    update = ("submodule", "update", "-q", "--init", "--recursive", module)
    world.undo.append(lambda: git(repository, *update))


TREES = [
    Fault("a libc++ without its libunwind", "aot", "QNN216", removed("libcxx/lib/libunwind.so.1")),
    Fault("no directory of the profile", "linux", "QNN106", removed(LINUX)),
    Fault("no library of the profile", "linux", "QNN107", removed(f"{LINUX}/libQnnHtpPrepare.so")),
    Fault("no NDK there", "android", "QNN601", removed("ndk/source.properties")),
    Fault("an NDK for macOS", "android", "QNN605", moved(f"ndk/{NDK_HOST}", "darwin-x86_64")),
    Fault("another commit", "linux", "QNN704", commit),
    Fault(
        "a nested one that is not there",
        "linux",
        "QNN706",
        lambda world: deinit(world, "deep", "third-party/json"),
    ),
    Fault("no cmake", "linux", "QNN010", removed("tools/cmake")),
]


def test_a_second_ndk_release_is_checked_against_its_own_pin(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(make_manifests(tmp_path / "manifests")))
    request = world.request("android")
    pins = {**request.pins, "android-ndk": find_pins(wanted_requests(PROFILE), {})["android-ndk"]}
    second = replace(request, profile=PROFILE, pins=pins)
    (finding,) = [
        finding for finding in examine_request(second).findings if finding.id not in SIZES
    ]
    assert finding.id == "QNN603"
    assert "the pin is NDK r27 (27.0.12077973)" in finding.what
    world.replace(world.ndk / "source.properties", f"Pkg.Revision = {REVISION}\n".encode())
    assert [
        finding.id for finding in examine_request(second).findings if finding.id not in SIZES
    ] == []
    (finding,) = [
        finding for finding in examine_request(request).findings if finding.id not in SIZES
    ]
    assert "the pin is NDK r26c (26.2.11394342)" in finding.what
    assert find_pins(wanted_requests("android"), {})["android-ndk"] == "26.2.11394342"


@pytest.mark.parametrize("fault", TREES, ids=str)
def test_each_fault_of_a_tree_is_found_by_one_check(world: World, fault: Fault) -> None:
    check(fault, world)
