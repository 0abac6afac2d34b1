"""The hash segment: an MBN header of version 3, 5, 6 or 7, the hash table, signatures, chains.

All fields are little-endian words of 32 bits. In file order after the header come metadata
(versions 6 and 7), the hash table, then Qualcomm's signature and chain (versions 5 to 7) and
the OEM's. Sources, read for the layout:
versions 3, 5, 6: https://github.com/msm8916-mainline/qtestsign/blob/main/fw/hashseg.py
version 7: the same, and https://review.coreboot.org/c/coreboot/+/88240
(util/cbfstool/platform_fixups.c, struct mbnv7_hashtbl_seg).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from ci.signing.proof.segments import MalformedError

SHORT_HEADER = struct.Struct("<10I")
LONG_HEADER = struct.Struct("<12I")
COMMON_METADATA = struct.Struct("<6I")
DIGEST_SIZES = {"sha256": 32, "sha384": 48}
# Version 7 names its algorithm. 3 is read in coreboot; 2 follows from the order of the list there.
NAMED_ALGORITHMS = {2: "sha256", 3: "sha384"}
NO_ADDRESS = 0xFFFFFFFF


@dataclass(frozen=True)
class Span:
    """Bytes ``start`` to ``end`` of the hash segment."""

    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def of(self, data: memoryview) -> memoryview:
        return data[self.start : self.end]


@dataclass(frozen=True)
class Authority:
    """One signer's part: its name, its signature and its chain."""

    name: str
    signature: Span
    chain: Span


@dataclass(frozen=True)
class HashSegment:
    """A parsed hash segment. ``complaints`` name what is not consistent in the header."""

    version: int
    header: Span
    metadata: Span
    table: Span
    authorities: tuple[Authority, ...]
    named_algorithm: str
    complaints: tuple[str, ...]

    @property
    def signed_bytes(self) -> Span:
        """What a signature covers: header, metadata and hash table."""
        return Span(0, self.table.end)

    def entries(self, data: memoryview, count: int) -> tuple[str, tuple[bytes, ...]]:
        """The algorithm, and the ``count`` digests of the table. Raises MalformedError."""
        for algorithm, size in DIGEST_SIZES.items():
            if self.table.size == count * size:
                table = bytes(self.table.of(data))
                return algorithm, tuple(table[i : i + size] for i in range(0, len(table), size))
        raise MalformedError(
            f"the hash table has {self.table.size} bytes, which is neither SHA-256 nor SHA-384 "
            f"for {count} program headers"
        )


def parse_hash_segment(data: memoryview, physical_address: int = 0) -> HashSegment:
    """Parse ``data``, the bytes of a hash segment that is loaded at ``physical_address``.

    Raises MalformedError when the parts cannot be told apart.
    """
    if len(data) < SHORT_HEADER.size:
        raise MalformedError(f"the hash segment has {len(data)} bytes, less than an MBN header")
    version = SHORT_HEADER.unpack_from(data)[1]
    if version in {3, 5, 6}:
        return _parse_early(data, version, physical_address)
    if version == 7:
        return _parse_seven(data)
    raise MalformedError(f"MBN header version {version} is none of 3, 5, 6, 7")


def _parse_early(data: memoryview, version: int, physical_address: int) -> HashSegment:
    layout = LONG_HEADER if version == 6 else SHORT_HEADER
    if len(data) < layout.size:
        raise MalformedError("truncated within the MBN header")
    words = layout.unpack_from(data)
    image_id, _, second, third, total, table, *rest = words
    signature_address, signature, chain_address, chain = rest[:4]
    metadata = sum(rest[4:])
    vendor = (0, 0) if version == 3 else (second, third)
    parts = [layout.size, metadata, table, *vendor, signature, chain]
    spans = _lay_out(parts, len(data))
    complaints = [f"image id {image_id:#x} instead of 0"] if image_id else []
    content = table + sum(vendor) + signature + chain
    # qtestsign counts the metadata in, SecTools counts it as header.
    if total not in {content, content + metadata}:
        complaints.append(f"the header says {total} bytes follow, its parts have {content}")
    if version == 3:
        complaints += _check_addresses(
            words, physical_address + layout.size if physical_address else third
        )
    else:
        complaints += [
            f"{name} address {address:#x} instead of {NO_ADDRESS:#x}"
            for name, address in (("signature", signature_address), ("chain", chain_address))
            if address != NO_ADDRESS
        ]
    return _assemble(version, spans, "", complaints)


def _check_addresses(words: tuple[int, ...], destination: int) -> list[str]:
    """Version 3 holds load addresses of its parts; all may be absent (0xffffffff)."""
    _, _, source, actual, _, table, signature_address, signature, chain_address, _ = words
    complaints = [f"source address {source:#x} instead of 0"] if source else []
    if (signature_address, chain_address) == (NO_ADDRESS, NO_ADDRESS):
        return complaints
    expected = {
        "destination": (actual, destination),
        "signature": (signature_address, actual + table),
        "chain": (chain_address, actual + table + signature),
    }
    return complaints + [
        f"{name} address {found:#x} instead of {wanted:#x}"
        for name, (found, wanted) in expected.items()
        if found != wanted
    ]


def _parse_seven(data: memoryview) -> HashSegment:
    words = SHORT_HEADER.unpack_from(data)
    reserved, _, common, vendor, oem, table = words[:6]
    spans = _lay_out([SHORT_HEADER.size, common + vendor + oem, table, *words[6:10]], len(data))
    complaints = [f"reserved word {reserved:#x} instead of 0"] if reserved else []
    named = ""
    if common < COMMON_METADATA.size:
        complaints.append(f"common metadata of {common} bytes instead of {COMMON_METADATA.size}")
    else:
        major, minor, *_, algorithm, _ = COMMON_METADATA.unpack_from(data, SHORT_HEADER.size)
        if (major, minor) != (0, 0):
            complaints.append(f"common metadata of version {major}.{minor} instead of 0.0")
        named = NAMED_ALGORITHMS.get(algorithm, f"number {algorithm}")
    return _assemble(7, spans, named, complaints)


def _lay_out(sizes: list[int], available: int) -> list[Span]:
    if sum(sizes) != available:
        raise MalformedError(
            f"the MBN header's parts have {sum(sizes)} bytes, the hash segment {available}"
        )
    spans, start = [], 0
    for size in sizes:
        spans.append(Span(start, start + size))
        start += size
    return spans


def _assemble(
    version: int, spans: list[Span], named_algorithm: str, complaints: list[str]
) -> HashSegment:
    header, metadata, table, vendor_signature, vendor_chain, signature, chain = spans
    authorities = (
        Authority("Qualcomm", vendor_signature, vendor_chain),
        Authority("OEM", signature, chain),
    )
    used = tuple(one for one in authorities if one.signature.size or one.chain.size)
    return HashSegment(version, header, metadata, table, used, named_algorithm, tuple(complaints))
