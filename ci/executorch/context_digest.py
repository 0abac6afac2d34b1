"""Make a lowered program a function of its inputs.

ExecuTorch's QnnContextCustomProtocol puts a header before each context binary: magic (u32),
signature (u64), size of the rest (u64), little-endian and packed. The signature is the system clock
in nanoseconds and only distinguishes contexts within a process; it is the only difference between
two lowerings of the same model (seen with ExecuTorch 1.5.1). A digest of the context serves the
same purpose and is the same each time.
"""

from __future__ import annotations

import hashlib
import struct

MAGIC = 0x5678ABCD
HEADER = struct.Struct("<IQQ")


def sign_by_content(program: bytes) -> bytes:
    """Return ``program`` with the signature of every context replaced by a digest of the
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
        else:  # these bytes look like the magic, but no context follows
            start = data.find(magic, start + len(magic))
    return bytes(data)
