"""Find out for which SoCs a lowered program or a QNN context binary was compiled, and whether the
file is complete.

A context binary (as observed in QNN 2.29 to 2.51) starts with two big-endian u32, 2 and 3. At bytes
24 and 32, it has two little-endian u64: the offset and the size of the graphs, which add up to the
size of the file. A context binary for several SoCs is a DLC, which is a zip archive. Since QNN
2.36, each graph contains its compile options as text,
``soc_type=SM8750;arch=79;...;vtcm_size=8388608;``.

An ExecuTorch program has an extended header at byte 8 (executorch/exir/_serialize/_program.py):

- ``eh00``
- the length of this header (u32)
- the size of the flatbuffer (u64)
- the offset of the first segment in the file (u64)
- the size of all segments (u64), only if the length is at least 32

The flatbuffer is a Program of executorch/schema/program.fbs. Field 4 of Program lists the segments;
each has an offset (u64) from the first segment and a size (u64). ExecuTorch puts each segment at a
multiple of 128 bytes.
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
from typing import NamedTuple

from provisioning.elf.tables import Tables, View
from provisioning.versions import is_older

# If options lack vtcm_size, the match fails where the next options start, which keeps the search
# fast.
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
    """The SoC, Hexagon version and VTCM size that a graph was compiled for, according to its
    compile options.
    """

    soc: str
    hexagon: int
    vtcm_mb: int


def is_loadable(compiler: str, runtime: str) -> bool:
    """Return whether the QNN version ``runtime`` can load programs that the QNN version
    ``compiler`` compiled: it must not be older.

    Observed with all 25 pairs of QNN 2.47, 2.48.40, 2.49.40, 2.50.40 and 2.51 on the emulator, and
    with a program of 2.37 on 2.49.40.
    """
    return not is_older(runtime, compiler)


def find_targets(blob: View) -> tuple[Target, ...]:
    """Return the distinct targets of the graphs in a binary, sorted by SoC; empty if the binary
    does not state them.
    """
    found = {
        Target(name.decode("ascii", "replace"), int(arch), int(size) >> 20)
        for name, arch, size in map(re.Match.groups, COMPILED.finditer(blob))
    }
    return tuple(sorted(found, key=lambda one: one.soc))


def find_context_damage(blob: View) -> str:
    """Return why a context binary is incomplete, or '' if it looks complete."""
    if blob[:4] == ARCHIVE:
        try:
            zipfile.ZipFile(io.BytesIO(blob)).close()
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
            return f"is cut short: {error}"
        return ""
    if len(blob) < CONTEXT.size:
        size = f"{len(blob)} byte{'s' * (len(blob) != 1)}"
        return f"is only {size} long: it was cut short or is not from QNN"
    begin, size = CONTEXT.unpack_from(blob)
    if begin + size == len(blob):
        return ""
    told = begin + size if begin + size < 1 << 40 else "an impossible size"
    return (
        f"is {len(blob)} bytes long, but its header states {told}: it was cut short or is not from "
        "QNN"
    )


def find_program_damage(blob: View) -> str:
    """Return why an ExecuTorch program is incomplete, or '' if it looks complete."""
    if len(blob) < PROGRAM.size:
        return f"is cut short: it is only {len(blob)} bytes long"
    _, magic, length, size, segments = PROGRAM.unpack_from(blob)
    if magic != EXTENDED:
        return ""
    if length >= SEGMENTS_AT and segments and len(blob) >= PROGRAM.size + SIZE.size:
        size = segments + SIZE.unpack_from(blob, PROGRAM.size)[0]
    return f"is cut short: it has {len(blob)} of {size} bytes" if len(blob) < size else ""


def find_misplaced(blob: View) -> str:
    """Return why segments of a complete program cannot be mapped into memory, or '' if they can."""
    base = PROGRAM.unpack_from(blob)[4] if blob[8:12] == EXTENDED else 0
    found = BINARY.finditer(blob, 0, base or len(blob))
    # Other numbers in the flatbuffer that look like a context binary are not aligned.
    if any(one.start() % OFFSET_BYTES == 0 for one in found):
        return "contains a context binary in its flatbuffer, not in a segment"
    try:
        for start, size in list_segments(Tables(blob), base) if base else ():
            if start % SEGMENT_ALIGN:
                return f"has a segment at byte {start}, not at a multiple of {SEGMENT_ALIGN}"
            if start + size > len(blob):
                return f"is {len(blob)} bytes long, but a segment ends at byte {start + size}"
    except struct.error:
        return "has a flatbuffer that cannot be read"
    return ""


def list_segments(tables: Tables, base: int) -> list[tuple[int, int]]:
    """Return the offset in the file and the size of each segment, in bytes; ``base`` is the offset
    of the first segment. Raises struct.error.
    """
    segments = tables.root().list_tables(SEGMENTS_FIELD)
    return [(base + one.number(0, "Q"), one.number(1, "Q")) for one in segments]
