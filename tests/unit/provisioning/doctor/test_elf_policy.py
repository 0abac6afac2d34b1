from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from provisioning.doctor.checks.elf import judge
from provisioning.doctor.checks.registry import Finding
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


def ids(findings: list[Finding]) -> list[str]:
    return [finding.id for finding in findings]


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


def test_the_flags_wanted_are_those_of_the_directory() -> None:
    chosen = choose_policy("lib/hexagon-v75/unsigned", read_elf_policies())
    assert chosen is not None
    assert ids(judge(HEXAGON, chosen[1])) == ["QNN214"]
    chosen = choose_policy("lib/hexagon-v100/unsigned", read_elf_policies())
    assert chosen is not None
    assert chosen[1].flags == 0x100
    assert elf_policy("hexagon-v100") == chosen[1]


def test_what_nothing_loads_is_judged_by_its_target_and_its_pages_only() -> None:
    small = tuple(head._replace(align=4096) for head in ANDROID.program_headers)
    unused = replace(ANDROID, path=Path("libQnnHtpV75CalculatorStub.so"), program_headers=small)
    assert ids(judge(unused, elf_policy("aarch64-android"))) == ["QNN225"]
    name = "libSnpeHtpV75CalculatorStub.so"
    facts = replace(OE, path=Path(name), soname="libQnn.so", rpath=("/prj/build",), textrel=True)
    assert ids(judge(facts, elf_policy("aarch64-oe-linux"))) == []
    assert ids(judge(facts, elf_policy("x86_64-linux-clang"))) == ["QNN212"]
    other = replace(facts, path=Path("libQnnHtp.so"))
    assert ids(judge(other, elf_policy("aarch64-oe-linux"))) == ["QNN215", "QNN218", "QNN226"]


def test_an_unknown_kind_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no ELF policy 'mips'"):
        elf_policy("mips")
