"""One fault in a tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.doctor.examine import examine_request, find_pins, wanted_requests
from tests.stand_ins.environments import LIBRARIES, LINUX, LPAI, World, git, write_program
from tests.stand_ins.faults import SIZES, Fault, check, content, moved, removed
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


def leave_flatcc(world: World) -> None:
    library = (LIBRARIES / "libx86.so").read_bytes()
    member = b"!<arch>\n" + b"builder.o/".ljust(48) + f"{len(library):<10}`\n".encode() + library
    world.add(world.checkout / "third-party" / "flatcc" / "lib" / "libflatccrt.a", member)


def tool(world: World, name: str, says: str, code: int = 0) -> None:
    world.remove(world.tools / name)
    write_program(world.tools / name, says, code)


TREES = [
    Fault("a libc++ without its libunwind", "aot", "QNN216", removed("libcxx/lib/libunwind.so.1")),
    Fault(
        "a libc++ that is a page", "aot", "QNN204", content("libcxx/lib/libc++.so.1.0", b"<html>")
    ),
    Fault("no sdk.yaml", "emulator", "QNN102", removed("sdk.yaml")),
    Fault("no version in sdk.yaml", "emulator", "QNN103", content("sdk.yaml", b"product: QNN\n")),
    Fault("no directory of the profile", "linux", "QNN106", removed(LINUX)),
    Fault("no library of the profile", "linux", "QNN107", removed(f"{LINUX}/libQnnHtpPrepare.so")),
    Fault("no LPAI skel", "lpai", "QNN107", removed(f"android/{LPAI}/libQnnLpaiSkel.so")),
    Fault("no LPAI headers", "linux", "QNN108", removed("include/QNN/LPAI")),
    Fault("no API version", "aot", "QNN109", content("include/QNN/QnnCommon.h", b"#pragma once\n")),
    Fault("no NDK there", "android", "QNN601", removed("ndk/source.properties")),
    Fault(
        "NDK r26d",
        "android",
        "QNN603",
        content("ndk/source.properties", b"Pkg.Revision = 26.3.11579264\n"),
    ),
    Fault(
        "no toolchain file", "android", "QNN604", removed("ndk/build/cmake/android.toolchain.cmake")
    ),
    Fault("an NDK for macOS", "android", "QNN605", moved(f"ndk/{NDK_HOST}", "darwin-x86_64")),
    Fault(
        "no API level 30",
        "android",
        "QNN607",
        removed(f"ndk/{NDK_HOST}/sysroot/usr/lib/aarch64-linux-android/30"),
    ),
    Fault("no git", "linux", "QNN703", removed("checkout/.git")),
    Fault("another commit", "linux", "QNN704", commit),
    Fault(
        "a nested one that is not there",
        "linux",
        "QNN706",
        lambda world: deinit(world, "deep", "third-party/json"),
    ),
    Fault("flatcc built for the host", "linux", "QNN708", leave_flatcc),
    Fault("no cmake", "linux", "QNN010", removed("tools/cmake")),
    Fault("g++ 11", "aot", "QNN012", lambda world: tool(world, "g++", "g++ (Ubuntu) 11.4.0")),
    Fault("g++ 12.2", "aot", "QNN013", lambda world: tool(world, "g++", "g++ (Debian) 12.2.0")),
]


def test_a_second_ndk_is_one_release_row_and_one_profile(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_MANIFESTS", str(make_manifests(tmp_path / "manifests")))
    request = world.request("android")
    pins = {**request.pins, "android-ndk": find_pins(wanted_requests(PROFILE), {})["android-ndk"]}
    second = replace(request, profile=PROFILE, pins=pins)
    (finding,) = [one for one in examine_request(second).findings if one.id not in SIZES]
    assert finding.id == "QNN603"
    assert "the pin is NDK r27 (27.0.12077973)" in finding.what
    world.replace(world.ndk / "source.properties", f"Pkg.Revision = {REVISION}\n".encode())
    assert [one.id for one in examine_request(second).findings if one.id not in SIZES] == []
    (finding,) = [one for one in examine_request(request).findings if one.id not in SIZES]
    assert "the pin is NDK r26c (26.2.11394342)" in finding.what
    assert find_pins(wanted_requests("android"), {})["android-ndk"] == "26.2.11394342"


@pytest.mark.parametrize("fault", TREES, ids=str)
def test_one_fault_has_one_check(world: World, fault: Fault) -> None:
    check(fault, world)
