"""Makes a lowered program a function of its inputs.

ExecuTorch's QnnContextCustomProtocol puts a header before each context binary: magic (u32),
signature (u64), size of what follows (u64), little-endian and packed. The signature is the
system clock in nanoseconds, and only tells contexts apart within a process; it is all that
differs between two lowerings of the same model (seen with ExecuTorch 1.5.1). A digest of the
context does the same and is the same each time.
"""

from __future__ import annotations

import hashlib
import struct

MAGIC = 0x5678ABCD
HEADER = struct.Struct("<IQQ")


def sign_by_content(program: bytes) -> bytes:
    """``program`` with the signature of every context replaced by a digest of the context."""
    data = bytearray(program)
    magic = struct.pack("<I", MAGIC)
    start = data.find(magic)
    while start >= 0:
        end = _replace_signature(data, start)
        start = data.find(magic, end)
    return bytes(data)


def _replace_signature(data: bytearray, start: int) -> int:
    """Returns where to look on: behind the context, or behind a magic that heads none."""
    begin = start + HEADER.size
    if begin > len(data):
        return len(data)
    _, _, size = HEADER.unpack_from(data, start)
    end = begin + size
    if not size or end > len(data):
        return start + 4
    digest = hashlib.sha256(memoryview(data)[begin:end]).digest()
    HEADER.pack_into(data, start, MAGIC, int.from_bytes(digest[:8], "little"), size)
    return end
