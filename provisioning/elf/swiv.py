"""The checksum in a Hexagon library, which finds a changed byte without a reference.

A section of type SWIV holds the magic and the CRC-32 of all PT_LOAD segments in their order, each
padded with zeros to p_memsz. Every skel of QNN has one; of 1,556 DSP libraries that devices ship
three do (2026-11), all of them skels of QNN. Sources: AIC100's loader names the type
(networkElfSWIVSectionType, https://github.com/quic/software-kit-for-qualcomm-cloud-ai-100); the sum
was seen to match in 27 of 27 skels.
"""

from __future__ import annotations

import mmap
import zlib
from collections.abc import Sequence

from provisioning.elf.facts import Checksum, ProgramHeader

SWIV_SECTION = 0xD3574956
MAGIC = b"SWIV"
SECTION_BYTES = 8
# The memory of a DSP library; a header may claim any size.
MAX_MEMORY_BYTES = 1 << 28
CHUNK_BYTES = 1 << 20


def read_checksum(
    data: bytes | mmap.mmap, section: bytes, loads: Sequence[ProgramHeader]
) -> Checksum:
    """The checksum in ``section`` and that of ``loads``. Raises ValueError when it is not one."""
    if len(section) < SECTION_BYTES or section[:4] != MAGIC:
        raise ValueError("its checksum section holds no checksum")
    if sum(head.memsz for head in loads) > MAX_MEMORY_BYTES:
        raise ValueError(f"its segments take more than {MAX_MEMORY_BYTES} bytes of memory")
    value = 0
    for head in loads:
        if head.filesz > head.memsz:
            raise ValueError("a segment has more bytes in the file than in memory")
        for start in range(head.offset, head.offset + head.filesz, CHUNK_BYTES):
            end = min(start + CHUNK_BYTES, head.offset + head.filesz)
            value = zlib.crc32(data[start:end], value)
        value = zlib.crc32(bytes(head.memsz - head.filesz), value)
    return Checksum(int.from_bytes(section[4:8], "little"), value)
