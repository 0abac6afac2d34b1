"""Makes lowered programs reproducible.

ExecuTorch's QnnContextCustomProtocol writes a header before each context binary: magic (u32),
signature (u64) and size of the remainder (u64), little-endian and packed. The signature is the
system time in nanoseconds. Its only use is to distinguish contexts within a process, and it is the
only difference between two lowerings of one model (seen with ExecuTorch 1.5.1). Here it is replaced
by a digest of the context, which also distinguishes contexts.
"""

from __future__ import annotations

import hashlib
import struct

MAGIC = 0x5678ABCD
HEADER = struct.Struct("<IQQ")


def sign_by_content(program: bytes) -> bytes:
    """Return ``program`` after replacing the signature of every context by a digest of the
    context."""
    data = bytearray(program)
    magic = struct.pack("<I", MAGIC)
    start = data.find(magic)
    while 0 <= start <= len(data) - HEADER.size:
        begin = start + HEADER.size
        _, _, size = HEADER.unpack_from(data, start)
        if 0 < size <= len(data) - begin:
            digest = hashlib.sha256(memoryview(data)[begin : begin + size]).digest()
            HEADER.pack_into(data, start, MAGIC, int.from_bytes(digest[:8], "little"), size)
            start = data.find(magic, begin + size)
        else:  # these bytes equal the magic, but no context follows
            start = data.find(magic, start + len(magic))
    return bytes(data)
