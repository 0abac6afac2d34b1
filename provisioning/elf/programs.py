"""What a lowered program or a context binary of QNN says of itself: the SoCs that it was compiled
for, and how long it is.

Seen of a context binary (QNN 2.29 to 2.51): two big-endian u32 2 and 3, at 24 and 32 little-endian
u64, where the graphs begin and their size, which together are the size of the file. That for
several SoCs is a DLC, a zip archive. From 2.36 on each graph has the options that it was compiled
with as text, ``soc_type=SM8750;arch=79;...;vtcm_size=8388608;``. A program of ExecuTorch has an
extended header at 8 (executorch/exir/_serialize/_program.py): ``eh00``, its length (u32), the size
of the flatbuffer, the offset of the segments and, in 32 bytes, their size (u64). Its flatbuffer is
a Program of executorch/schema/program.fbs: field 4 lists the segments, each an offset (u64) from
that of all and a size (u64). ExecuTorch puts each at a multiple of 128 bytes.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from typing import NamedTuple

from provisioning.elf.tables import Tables, View
from provisioning.versions import is_older

# The end of one that has no vtcm_size is where the next begins, so that no file takes long.
COMPILED = re.compile(
    rb"soc_type=([^;]{1,40});arch=(\d{1,3});(?:(?!soc_type=).){1,4000}?;vtcm_size=(\d{1,12});",
    re.DOTALL,
)
NO_SOC = "UNKNOWN_SDM"  # compiled without a soc_model
MAGIC, ARCHIVE = b"\0\0\0\2\0\0\0\3", b"PK\x03\x04"
BINARY = re.compile(re.escape(MAGIC))
CONTEXT = struct.Struct("<24xQQ")
PROGRAM = struct.Struct("<4x4s4sIQQ")
EXTENDED, SEGMENTS_AT, SIZE = b"eh00", 32, struct.Struct("<Q")
SEGMENT_ALIGN = 128  # ExecutorchBackendConfig.segment_alignment
SEGMENTS_FIELD, OFFSET_BYTES = 4, 4


class Target(NamedTuple):
    """What a graph was compiled for, by its own bytes."""

    soc: str
    hexagon: int
    vtcm_mb: int


def is_loadable(compiler: str, runtime: str) -> bool:
    """Whether a runtime of QNN loads what a version of QNN compiled: its own and older ones do.

    Seen of all 25 pairs of QNN 2.47, 2.48.40, 2.49.40, 2.50.40 and 2.51 on the emulator, and of
    2.37 on 2.49.40.
    """
    return not is_older(runtime, compiler)


def find_targets(blob: View) -> tuple[Target, ...]:
    """What the graphs in a binary were compiled for, by SoC; empty if it does not say."""
    found = {
        Target(name.decode("ascii", "replace"), int(arch), int(size) >> 20)
        for name, arch, size in map(re.Match.groups, COMPILED.finditer(blob))
    }
    return tuple(sorted(found, key=lambda one: one.soc))


def find_context_damage(blob: View) -> str:
    """Why a context binary is not a whole one; empty if it may be."""
    if blob[:4] == ARCHIVE:
        try:
            zipfile.ZipFile(io.BytesIO(blob)).close()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            return f"is cut short: {error}"
        return ""
    begin, size = CONTEXT.unpack_from(blob) if len(blob) >= CONTEXT.size else (0, 0)
    if len(blob) >= CONTEXT.size and begin + size == len(blob):
        return ""
    told = begin + size if begin + size < 1 << 40 else "no size that can be"
    return (
        f"has {len(blob)} bytes and its header says {told}: it was cut short, or is not one of"
        " QNN's"
    )


def find_program_damage(blob: View) -> str:
    """Why a program of ExecuTorch is not a whole one; empty if it may be."""
    if len(blob) < PROGRAM.size:
        return f"is cut short: it has {len(blob)} bytes"
    _, magic, length, size, segments = PROGRAM.unpack_from(blob)
    if magic != EXTENDED:
        return ""
    if length >= SEGMENTS_AT and segments and len(blob) >= PROGRAM.size + SIZE.size:
        size = segments + SIZE.unpack_from(blob, PROGRAM.size)[0]
    return f"is cut short: it has {len(blob)} of {size} bytes" if len(blob) < size else ""


def find_misplaced(blob: View) -> str:
    """Why segments of a whole program cannot be mapped into memory; empty if they can."""
    base = PROGRAM.unpack_from(blob)[4] if blob[8:12] == EXTENDED else 0
    found = BINARY.finditer(blob, 0, base or len(blob))
    # Numbers of the flatbuffer that look like it are not at such a place.
    if any(one.start() % OFFSET_BYTES == 0 for one in found):
        return "holds a context binary in its flatbuffer, not in a segment"
    try:
        for start, size in list_segments(Tables(blob), base) if base else ():
            if start % SEGMENT_ALIGN:
                return f"has a segment at byte {start}, not at a multiple of {SEGMENT_ALIGN}"
            if start + size > len(blob):
                return f"has {len(blob)} bytes, and a segment that ends at {start + size}"
    except struct.error:
        return "has a flatbuffer that cannot be read"
    return ""


def list_segments(tables: Tables, base: int) -> list[tuple[int, int]]:
    """Start in the file and size of each segment, in bytes; ``base`` is the first one's. Raises
    struct.error."""
    segments = tables.root().list_tables(SEGMENTS_FIELD)
    return [(base + one.number(0, "Q"), one.number(1, "Q")) for one in segments]
