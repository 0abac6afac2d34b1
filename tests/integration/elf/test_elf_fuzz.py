"""Mutated ELF files: facts or an ElfError, in little memory; never anything else.

QNN_CI_FUZZ_FILES sets how many (200 by default).
"""

from __future__ import annotations

import os
import resource
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provisioning.doctor.checks.elf import Placed, judge, judge_defect
from provisioning.doctor.policies import elf_policy
from provisioning.doctor.survey.tree import read_file
from provisioning.elf.facts import ElfError, ElfFacts
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.elf.reader import read_elf

FILES = int(os.environ.get("QNN_CI_FUZZ_FILES", "200"))
LIBRARIES = Path(__file__).parents[2] / "artifacts" / "elf"
BASES = [path.read_bytes() for path in sorted(LIBRARIES.glob("*.so"))]
POLICIES = [elf_policy(kind) for kind in ("x86_64-linux-clang", "aarch64-android", "hexagon-v69")]
MAX_GROWTH_KIB = 64 << 10

EXTREMES = st.sampled_from(
    [0, 1, 2, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]
)
SIZES = st.sampled_from([1, 2, 4, 8])


def structured_offsets(data: bytes) -> list[int]:
    """Where the tables are that hold counts, offsets and links."""
    is_64 = data[4] == 2
    order = "<" if data[5] == 1 else ">"
    phoff, shoff = struct.unpack_from(order + ("QQ" if is_64 else "II"), data, 32 if is_64 else 28)
    header = list(range(4, 64 if is_64 else 52, 2))
    program = list(range(phoff, min(phoff + 600, len(data)), 4))
    sections = list(range(shoff, min(shoff + 1500, len(data)), 4))
    return header * 4 + program * 2 + sections


OFFSETS = [structured_offsets(data) for data in BASES]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """One of the libraries with some fields overwritten, some bytes changed, perhaps cut."""
    index = draw(st.integers(0, len(BASES) - 1))
    data = bytearray(BASES[index])
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.sampled_from(OFFSETS[index]) | st.integers(0, len(data) - 1))
        size = draw(SIZES)
        value = draw(EXTREMES | st.integers(0, len(data) + 64)) & ((1 << (8 * size)) - 1)
        data[at : at + size] = value.to_bytes(size, "little")
    if draw(st.integers(0, 9)) == 0:
        data = data[: draw(st.integers(0, len(data)))]
    return bytes(data)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "libQnnSystem.so"


@given(data=mutated())
@settings(
    max_examples=FILES,
    deadline=None,
    database=None,
    derandomize="QNN_CI_FUZZ_FILES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
def test_a_mutated_file_gives_facts_or_an_error_of_the_tree(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    facts_or_defect = read(path)
    if isinstance(facts_or_defect, ElfFacts):
        use(facts_or_defect, path)
    else:
        assert judge_defect(facts_or_defect).id.startswith("QNN20")
        assert "\n" not in str(facts_or_defect.what)
    find_qnn_build(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_GROWTH_KIB


def read(path: Path) -> ElfFacts | ElfError:
    """Facts or the one error that is allowed."""
    try:
        return read_elf(path)
    except ElfError as error:
        return error


def use(facts: ElfFacts, path: Path) -> None:
    """What the doctor does with facts: judge them, write them as JSON."""
    for policy in POLICIES:
        for finding in judge(Placed(facts, policy)):
            msgspec.json.encode(finding)
    file = read_file(path.name, path)
    assert file.elf == facts or (file.defect and not facts.program_headers)
