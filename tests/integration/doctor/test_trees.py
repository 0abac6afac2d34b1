"""One fault in a tree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.doctor.examine import examine_request, find_pins, wanted_requests
from tests.stand_ins.environments import HOST, LIBRARIES, LINUX, LPAI, World, git, write_program
from tests.stand_ins.faults import SIZES, Fault, check, content, moved, removed
from tests.stand_ins.second_ndk import PROFILE, REVISION, make_manifests

NDK_HOST = "toolchains/llvm/prebuilt/linux-x86_64"
SYSTEM = f"{HOST}/libQnnSystem.so"


def unmode(world: World) -> None:
    path = world.ndk / NDK_HOST / "bin" / "clang++"
    world.replace(path, path.read_bytes())
    path.chmod(0o644)


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


def leave_foreign_flatcc(world: World) -> None:
    compiler = (LIBRARIES / "libaarch64.so").read_bytes()
    world.add(world.checkout / "third-party" / "flatcc" / "bin" / "flatcc", compiler)


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
    Fault("no libQnnSystem", "emulator", "QNN107", removed(SYSTEM)),
    Fault("no LPAI skel", "lpai", "QNN107", removed(f"android/{LPAI}/libQnnLpaiSkel.so")),
    Fault("no LPAI headers", "linux", "QNN108", removed("include/QNN/LPAI")),
    Fault("no HTP header", "aot", "QNN108", removed("include/QNN/HTP/QnnHtpDevice.h")),
    Fault("no API version", "aot", "QNN109", content("include/QNN/QnnCommon.h", b"#pragma once\n")),
    Fault("no NDK there", "android", "QNN601", removed("ndk/source.properties")),
    Fault(
        "NDK r25c",
        "android",
        "QNN602",
        content("ndk/source.properties", b"Pkg.Revision = 25.2.9519653\n"),
    ),
    Fault(
        "NDK r26d",
        "android",
        "QNN603",
        content("ndk/source.properties", b"Pkg.Revision = 26.3.11579264\n"),
    ),
    Fault(
        "NDK r28",
        "android",
        "QNN603",
        content("ndk/source.properties", b"Pkg.Revision = 28.0.13004108\n"),
    ),
    Fault(
        "no toolchain file", "android", "QNN604", removed("ndk/build/cmake/android.toolchain.cmake")
    ),
    Fault("an NDK for macOS", "android", "QNN605", moved(f"ndk/{NDK_HOST}", "darwin-x86_64")),
    Fault("no clang", "android", "QNN608", removed(f"ndk/{NDK_HOST}/bin/clang++")),
    Fault("a clang without its mode", "android", "QNN606", unmode),
    Fault(
        "no API level 30",
        "android",
        "QNN607",
        removed(f"ndk/{NDK_HOST}/sysroot/usr/lib/aarch64-linux-android/30"),
    ),
    Fault("no git", "linux", "QNN703", removed("checkout/.git")),
    Fault("another commit", "linux", "QNN704", commit),
    Fault(
        "a submodule that is not there",
        "linux",
        "QNN705",
        lambda world: deinit(world, "third-party/flatcc"),
    ),
    Fault(
        "a nested one that is not there",
        "linux",
        "QNN706",
        lambda world: deinit(world, "deep", "third-party/json"),
    ),
    Fault(
        "a submodule elsewhere",
        "linux",
        "QNN707",
        lambda world: commit(world, "third-party/flatcc"),
    ),
    Fault("flatcc built for the host", "linux", "QNN708", leave_flatcc),
    Fault("a flatcc that cannot run here", "linux", "QNN708", leave_foreign_flatcc),
    Fault("no cmake", "linux", "QNN010", removed("tools/cmake")),
    Fault("a broken ninja", "linux", "QNN011", lambda world: tool(world, "ninja", "cannot run", 1)),
    Fault(
        "an old cmake",
        "linux",
        "QNN012",
        lambda world: tool(world, "cmake", "cmake version 3.18.4"),
    ),
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
