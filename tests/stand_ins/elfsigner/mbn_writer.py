"""Writes a signed Hexagon library the way the vendor's tool lays one out. Standard library only.

Two program headers come first, one for the headers and one for the hash segment; every segment
moves down by whole pages and keeps its bytes; the section headers go. Layout read in
https://github.com/msm8916-mainline/qtestsign/blob/main/fw/hashseg.py
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

PAGE = 0x1000
PF_HEADERS, PF_HASH = 0x07000000, 0x02200000
CHAIN_BYTES = 0x1800
V6_METADATA = 120
PHDR = struct.Struct("<8I")
PLACES = {3: 40, 5: 40, 6: 48, 7: 40, 8: 56}
ALGORITHM_NUMBERS = {"sha256": 2, "sha384": 3, "sha512": 9}  # the last is not published


@dataclass(frozen=True)
class Key:
    """An RSA key as numbers, and the DER chain of its certificate upwards. With ``prime``, one of
    the two of its modulus, signing takes a third of the time."""

    modulus: int
    private_exponent: int
    chain: bytes
    software_id: int = 0
    hardware_id: int = 0
    prime: int = 0

    @property
    def size(self) -> int:
        return (self.modulus.bit_length() + 7) // 8

    def sign(self, signed: bytes, version: int) -> bytes:
        """The signature of ``size`` bytes over header, metadata and hash table."""
        return sign_pss(signed, self) if version >= 6 else sign_keyed(signed, self)


def sign_elf(
    data: bytes,
    key: Key,
    version: int = 6,
    algorithm: str = "sha384",
    serial: int = 0,
    wrong_entry: int | None = None,
    trailer: bytes = b"",
    vendor: Key | None = None,
    uncovered: int = 0,
) -> bytes:
    """The signed form of ``data``, an unsigned ELF32; ``wrong_entry`` spoils one hash.

    ``trailer`` stands after the chain in the hash segment; ``vendor`` signs before ``key`` does,
    in version 6. ``uncovered`` bytes of the headers are left out of the first hash.
    """
    phoff, count = struct.unpack_from("<I", data, 28)[0], struct.unpack_from("<H", data, 44)[0]
    before = [list(PHDR.unpack_from(data, phoff + PHDR.size * i)) for i in range(count)]
    digest_size = hashlib.new(algorithm).digest_size
    table_size = (count + 2) * digest_size
    chain = key.chain.ljust(CHAIN_BYTES, b"\xff")
    metadata = {6: V6_METADATA, 7: 24 + V6_METADATA, 8: 24 + V6_METADATA}.get(version, 0)
    size = PLACES[version] + metadata + table_size + key.size + len(chain) + len(trailer)
    if vendor:
        size += V6_METADATA + vendor.size + len(vendor.chain)
    headers_end = phoff + (count + 2) * PHDR.size
    place = _align(headers_end)
    shift = _align(place + size)
    address = _align(max(row[3] + row[5] for row in before))
    segments = [
        [0, 0, 0, 0, headers_end - uncovered, 0, PF_HEADERS, 0],
        [0, place, address, address, size, _align(size), PF_HASH, PAGE],
        *([kind, offset + shift, *following] for kind, offset, *following in before),
    ]
    header = bytearray(data[:phoff])
    struct.pack_into("<I", header, 32, 0)  # no section headers
    struct.pack_into("<H", header, 44, len(segments))
    struct.pack_into("<HH", header, 48, 0, 0)
    head = bytes(header) + b"".join(PHDR.pack(*segment) for segment in segments)
    entries = [
        hashlib.new(algorithm, head[: len(head) - uncovered]).digest(),
        serial.to_bytes(4, "little"),
    ]
    view = memoryview(data)
    for _, offset, _, _, file_size, *_ in before:
        part = view[offset : offset + file_size]
        entries.append(hashlib.new(algorithm, part).digest() if part else b"")
    if wrong_entry is not None:
        entries[wrong_entry] = bytes(byte ^ 0xFF for byte in entries[wrong_entry])
    table = b"".join(entry.ljust(digest_size, b"\0") for entry in entries)
    if vendor:
        start, signature = sign_twice(table, vendor, key, len(chain))
    else:
        start = mbn_header(version, algorithm, address, table, key.size, len(chain)) + table
        signature = key.sign(start, version)
    out = bytearray(shift + max(row[1] + row[4] for row in before))
    out[: len(head)] = head
    out[place : place + size] = start + signature + chain + trailer
    for _, offset, _, _, file_size, *_ in before:
        end = offset + file_size
        out[offset + shift : end + shift] = view[offset:end]
    return bytes(out)


def mbn_header(
    version: int, algorithm: str, address: int, table: bytes, signature: int, chain: int
) -> bytes:
    """Header and metadata of the hash segment."""
    size, total = len(table), len(table) + signature + chain
    none = 0xFFFFFFFF
    if version == 3:
        load = address + PLACES[3]
        parts = (load, total, size, load + size, signature, load + size + signature, chain)
        return struct.pack("<10I", 0, 3, 0, *parts)
    if version == 5:
        return struct.pack("<10I", 0, 5, 0, 0, total, size, none, signature, none, chain)
    if version == 6:
        words = (0, 6, 0, 0, total, size, none, signature, none, chain, 0, V6_METADATA)
        return struct.pack("<12I", *words) + bytes(V6_METADATA)
    words = (0, version, 24, 0, V6_METADATA, size, 0, 0, signature, chain)
    words += (0,) * 4 if version == 8 else ()
    common = (0, 0, 0x12, 0, ALGORITHM_NUMBERS[algorithm], 0)
    header = struct.pack(f"<{len(words)}I", *words)
    return header + struct.pack("<6I", *common) + bytes(V6_METADATA)


def sign_twice(table: bytes, vendor: Key, key: Key, chain: int) -> tuple[bytes, bytes]:
    """What stands before the OEM's chain, as read in images with two signatures of version 6.

    Each signs with the sizes and the metadata of the other as zeros.
    """
    total = len(table) + vendor.size + len(vendor.chain) + key.size + chain
    extras = (b"\x56" * V6_METADATA, b"\x4f" * V6_METADATA)

    def make(sizes: tuple[int, int], own_sizes: tuple[int, int], metadata: bytes) -> bytes:
        lengths = (total, len(table), 0, own_sizes[0], 0, own_sizes[1], V6_METADATA, V6_METADATA)
        words = (0, 6, *sizes, *lengths)
        return struct.pack("<12I", *words) + metadata + table

    sizes, key_sizes = (vendor.size, len(vendor.chain)), (key.size, chain)
    first = vendor.sign(make(sizes, (0, 0), extras[0] + bytes(V6_METADATA)), 6)
    second = key.sign(make((0, 0), key_sizes, bytes(V6_METADATA) + extras[1]), 6)
    return make(sizes, key_sizes, extras[0] + extras[1]) + first + vendor.chain, second


def sign_keyed(signed: bytes, key: Key) -> bytes:
    """PKCS #1 v1.5 without DigestInfo, over the digest keyed by the identities."""
    digest = hashlib.sha256(signed).digest()
    for pad, identity in ((0x36, key.software_id), (0x5C, key.hardware_id)):
        mask = int.from_bytes(bytes([pad]) * 8, "big")
        digest = hashlib.sha256((identity ^ mask).to_bytes(8, "big") + digest).digest()
    filler = b"\xff" * (key.size - 3 - len(digest))
    return _power(b"\0\1" + filler + b"\0" + digest, key)


def sign_pss(signed: bytes, key: Key) -> bytes:
    """RSA-PSS with SHA-384 and a salt of 48 zero bytes, so that output is reproducible."""
    salt = bytes(48)
    inner = hashlib.sha384(bytes(8) + hashlib.sha384(signed).digest() + salt).digest()
    size = key.size - len(inner) - 1
    block = bytes(size - len(salt) - 1) + b"\1" + salt
    mask = b"".join(
        hashlib.sha384(inner + struct.pack(">I", i)).digest() for i in range(size // 48 + 1)
    )
    hidden = bytes(a ^ b for a, b in zip(block, mask))  # noqa: B905 - Python 3.9 runs this too
    return _power(bytes([hidden[0] & 0x7F]) + hidden[1:] + inner + b"\xbc", key)


def _power(message: bytes, key: Key) -> bytes:
    number = int.from_bytes(message, "big")
    if not (p := key.prime):
        return pow(number, key.private_exponent, key.modulus).to_bytes(key.size, "big")
    q = key.modulus // p  # by the Chinese remainder theorem
    of_p, of_q = (pow(number, key.private_exponent % (prime - 1), prime) for prime in (p, q))
    return (of_q + (of_p - of_q) * pow(q, -1, p) % p * q).to_bytes(key.size, "big")


def _align(value: int) -> int:
    return -(-value // PAGE) * PAGE
