from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.doctor.checks.elf import judge
from provisioning.doctor.facts import parse_qnn_name
from provisioning.doctor.fitness import choose_policy
from provisioning.doctor.policies import elf_policy, read_elf_policies
from provisioning.elf.facts import ElfFacts
from provisioning.elf.reader import read_elf
from provisioning.errors import UsageError

LIBRARIES = Path(__file__).parents[3] / "artifacts" / "elf"
X86 = read_elf(LIBRARIES / "libx86.so")
ANDROID = read_elf(LIBRARIES / "libandroid16k.so")
OE = replace(read_elf(LIBRARIES / "libaarch64.so"), runpath=("$ORIGIN",))
HEXAGON = read_elf(LIBRARIES / "libhexagon.so")


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (X86, "x86_64-linux-clang"),
        (ANDROID, "aarch64-android"),
        (OE, "aarch64-oe-linux"),
        (HEXAGON, "hexagon-v69"),
        (HEXAGON, "lpai"),
    ],
)
def test_a_library_fits_its_own_directory(facts: ElfFacts, kind: str) -> None:
    assert judge(facts, elf_policy(kind)) == []


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("lib/x86_64-linux-clang", "x86_64-linux-clang"),
        ("bin/aarch64-android", "aarch64-android"),
        ("lib/aarch64-oe-linux-gcc11.2", "aarch64-oe-linux"),
        ("lib/hexagon-v81/unsigned", "hexagon-v81"),
        ("lib/hexagon-v100/unsigned", "hexagon-v100"),
        ("my/lib/hexagon-v81/unsigned", None),
        ("lib/hexagon-v81/unsigned/more", None),
        ("lib/lpai-v6/unsigned", "lpai"),
        ("lib/aarch64-windows-msvc", None),
        ("lib", None),
    ],
)
def test_a_directory_has_a_kind(directory: str, kind: str | None) -> None:
    chosen = choose_policy(directory, read_elf_policies())
    assert (chosen[0] if chosen else None) == kind


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("libQnnHtp.so", ("Htp", "", "")),
        ("libQnnHtpV75Skel.so", ("Htp", "75", "Skel")),
        ("libQnnHtpV100Stub.so", ("Htp", "100", "Stub")),
        ("libQnnHtpPrepare.so", ("Htp", "", "Prepare")),
        ("libQnnLpaiSkel_v6.so", ("Lpai", "", "Skel")),
        ("libQnnLpaiStub.so", ("Lpai", "", "Stub")),
        *((name, None) for name in ("libQnnGpu.so", "libQnnHtpV75Skel.so.1", "QnnHtp.so")),
    ],
)
def test_the_parts_of_a_library_s_name(name: str, parts: tuple[str, ...] | None) -> None:
    found = parse_qnn_name(name)
    assert (found and tuple(found)) == parts


def test_an_unknown_kind_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no ELF policy 'mips'"):
        elf_policy("mips")
