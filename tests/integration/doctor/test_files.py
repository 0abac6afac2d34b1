"""One fault in one file: exactly its own check reports it."""

from __future__ import annotations

import pytest

from provisioning.doctor.examine import examine_request
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.environments import ANDROID, BUILD, HOST, LINUX, World
from tests.stand_ins.faults import (
    SIZES,
    Fault,
    check,
    content,
    cut,
    damage,
    file_edit,
    removed,
    staged,
    taken,
)

OTHER_BUILD = "v2.11.40.230710101010"
STUB79, SKEL79 = f"{LINUX}/libQnnHtpV79Stub.so", "lib/hexagon-v79/unsigned/libQnnHtpV79Skel.so"
SKEL75 = "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"
SAVER, SYSTEM = f"{HOST}/libQnnSaver.so", f"{HOST}/libQnnSystem.so"


def misname(world: World) -> None:
    """Code for V75, where V75 belongs, that calls itself V79."""
    data = bytearray((world.sdk / SKEL75).read_bytes())
    elf.set_string("libQnnHtpV75Skel.so", "libQnnHtpV79Skel.so", everywhere=True)(data)
    elf.reseal(data)
    world.add(world.sdk / SKEL75.replace("V75Skel", "V79Skel"), bytes(data))


FILES = [
    Fault("an empty file", "emulator", "QNN202", content(SAVER, b"")),
    Fault("a cut skel", "linux", "QNN206", cut(SKEL79, 5_000_000)),
    Fault("an aarch64 library", "emulator", "QNN212", taken(SAVER, f"{LINUX}/libQnnSaver.so")),
    Fault("a skel that Gradle stripped", "linux", "QNN236", damage(SKEL79, elf.strip_like_gradle)),
    Fault(
        "a newer glibc on the host",
        "emulator",
        "QNN219",
        file_edit(SYSTEM, elf.set_string("GLIBC_2.34\0", "GLIBC_2.99\0")),
    ),
    Fault(
        "no Android note",
        "android",
        "QNN222",
        file_edit(f"android/{ANDROID}/libQnnHtp.so", elf.set_string("Android\0", "Andxoid\0")),
    ),
    Fault(
        "pages of 4 KiB",
        "android",
        "QNN225",
        file_edit(f"android/{ANDROID}/libQnnHtp.so", elf.set_all_aligns(4096)),
    ),
]


COHERENCE = [
    Fault(
        "a host library of another build",
        "emulator",
        "QNN301",
        file_edit(SAVER, elf.set_build(BUILD, OTHER_BUILD)),
    ),
    Fault("a misnamed skel", "linux", "QNN305", misname),
]


STAGED = [
    Fault("a skel that is missing", "staging", "QNN317", removed("staging/libQnnHtpV79Skel.so")),
    Fault(
        "code for V75 in a V79 skel",
        "staging",
        "QNN306",
        file_edit("staging/libQnnHtpV79Skel.so", elf.set_u32(elf.E_FLAGS_32, 0x75)),
    ),
]


@pytest.mark.parametrize("fault", [*FILES, *COHERENCE, *STAGED], ids=str)
def test_each_fault_of_files_is_found_by_one_check(world: World, fault: Fault) -> None:
    check(fault, world)


@pytest.mark.parametrize("profile", ["emulator", "aot", "linux", "android", "lpai", "staging"])
def test_a_fit_environment_has_no_finding(world: World, profile: str) -> None:
    request = staged(world) if profile == "staging" else world.request(profile)
    findings = examine_request(request).findings
    assert [str(finding) for finding in findings if finding.id not in SIZES] == []
