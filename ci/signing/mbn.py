"""Parse the hash segment: an MBN header of version 3 or 5 to 8, the hash table, signatures and
certificate chains.

All fields are little-endian 32-bit words. After the header come the metadata (from version 6), the
hash table, Qualcomm's signature and chain (from version 5), and the OEM's signature and chain. The
rest of the segment is padding of 0xff or, in an encrypted image, the encryption parameters. Fields
that only a loader reads are not checked. The signature covers the whole header, and genuine images
have image ids 0, 4, 5 and 0xc, and arbitrary addresses.

Sources of the layout:

* versions 3, 5, 6: https://github.com/msm8916-mainline/qtestsign/blob/main/fw/hashseg.py
* version 7: the same, and https://review.coreboot.org/c/coreboot/+/88240
  (util/cbfstool/platform_fixups.c, struct mbnv7_hashtbl_seg)
* version 8, which has not been seen in any image: https://github.com/dere3046/Android_Tool_RUST;
  its header has four more sizes, for a second signature and chain of Qualcomm and of the OEM
* encryption parameters: pas_mbn.c of https://github.com/OP-TEE/optee_os/pull/7937, by Qualcomm

Also parse the program headers of an ELF file exactly, with the segment types that Qualcomm adds.
Qualcomm uses bits 20 to 27 of p_flags: bit 20 is paging, bits 21 to 23 are an access type, and bits
24 to 26 are a segment type. Type 2 is the hash segment; type 7 is the placeholder for the ELF
header and the program headers. Sources: qtestsign as above, and
https://github.com/torvalds/linux/blob/master/include/linux/soc/qcom/mdt_loader.h
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from provisioning.elf.facts import (
    EF_HEXAGON_MACH,
    EM_QDSP6,
    PT_LOAD,
    PT_NULL,
    ElfHeaders,
    ProgramHeader,
)
from provisioning.elf.reader import HeadersTruncatedError, parse_headers

# The limit of the vendor's tool. It also limits the time: overlapping segments are all hashed.
MAX_SEGMENTS = 100
TYPE_HEADERS = 7
SPLIT = (
    "this is the first part (.mdt) of a split image; join it with the others (.b00, .b01, ...) by "
    "`pil-squasher OUT.mbn IN.mdt`, and verify OUT.mbn"
)


class MalformedError(ValueError):
    """The bytes of a file contradict its headers. Callers report this as a fault of the file, so a
    user never sees the exception.
    """


class TruncatedError(MalformedError):
    """The file ends earlier than its headers state."""


@dataclass(frozen=True)
class Segment:
    """One program header and its place in the table."""

    index: int
    header: ProgramHeader

    @property
    def end(self) -> int:
        """The position in the file just after this segment."""
        return self.header.offset + self.header.filesz

    @property
    def is_header_placeholder(self) -> bool:
        """Whether the segment is the placeholder for the ELF header and the program headers."""
        return self.header.type == PT_NULL and self.header.vendor_type == TYPE_HEADERS

    def describe(self) -> str:
        """Return text such as ``segment 2 (LOAD, 64 bytes at 0x1000)``."""
        number = self.header.type
        kind = {PT_NULL: "NULL", PT_LOAD: "LOAD"}.get(number, f"type {number:#x}")
        size, offset = self.header.filesz, self.header.offset
        return f"segment {self.index} ({kind}, {size} bytes at {offset:#x})"


@dataclass(frozen=True)
class Image:
    """An ELF file's bytes, with its ELF header and program headers."""

    data: memoryview
    headers: ElfHeaders
    segments: tuple[Segment, ...]

    def bytes_of(self, segment: Segment) -> memoryview:
        """Return the bytes of a segment in the file."""
        return self.data[segment.header.offset : segment.end]

    def loadable(self) -> Iterator[Segment]:
        """Return the segments that are not of type NULL, in the order of the program headers."""
        return (segment for segment in self.segments if segment.header.type != PT_NULL)

    @property
    def hash_segments(self) -> tuple[Segment, ...]:
        """The segments that are marked as hash segments: one in a signed image."""
        return tuple(segment for segment in self.segments if segment.header.is_hashes)

    @property
    def hexagon_version(self) -> int:
        """The Hexagon version in e_flags, such as 0x75 for V75, or 0 if the machine is not
        Hexagon."""
        return self.headers.flags & EF_HEXAGON_MACH if self.headers.machine == EM_QDSP6 else 0


def parse_image(data: memoryview) -> Image:
    """Parse the ELF header and the program headers of ``data``. Raises MalformedError."""
    try:
        headers = parse_headers(bytes(data))
    except HeadersTruncatedError as error:
        raise TruncatedError(f"truncated: {error}") from error
    except ValueError as error:
        raise MalformedError(f"this is not an ELF file that a DSP can load: {error}") from error
    if bytes(data[5:7]) != b"\1\1":
        raise MalformedError("this is not a little-endian ELF file of version 1")
    if not 0 < len(headers.program_headers) <= MAX_SEGMENTS:
        raise MalformedError(
            f"there are {len(headers.program_headers)} program headers instead of "
            f"1 to {MAX_SEGMENTS}"
        )
    image = Image(data, headers, tuple(map(Segment, count(), headers.program_headers)))
    outside = [
        segment for segment in image.segments if segment.header.filesz and segment.end > len(data)
    ]
    if outside:
        # A .mdt file ends after the program headers, or after a hash segment that follows them.
        hashes = sum(segment.header.filesz for segment in image.hash_segments)
        if len(data) in {headers.end, headers.end + hashes}:
            raise MalformedError(SPLIT)
        raise TruncatedError(f"truncated: {outside[0].describe()} extends past the end of the file")
    return image


SHORT_HEADER = struct.Struct("<10I")
LAYOUTS = {
    3: SHORT_HEADER,
    5: SHORT_HEADER,
    6: struct.Struct("<12I"),
    7: SHORT_HEADER,
    8: struct.Struct("<14I"),
}
EARLY = {3, 5, 6}
ENCRYPTED = b"ISMQ"  # the start of the parameters of Qualcomm's unified image encryption
# The header words with the sizes of Qualcomm's and the OEM's signature and chain.
SIZE_WORDS = {5: ((2, 3), (7, 9)), 6: ((2, 3), (7, 9)), 7: ((6, 7), (8, 9))}
COMMON_METADATA = struct.Struct("<6I")
DIGEST_SIZES = {"sha256": 32, "sha384": 48, "sha512": 64}
# Version 7 states the hash algorithm as a number. coreboot defines 3; 2 follows from the order of
# coreboot's list.
NAMED_ALGORITHMS = {2: "sha256", 3: "sha384"}
COMMON_VERSIONS = {(0, 0), (0, 1)}
AUTHORITIES = ("Qualcomm", "OEM")
# Public tools disagree on which of the four parts belongs to which signer.
SIGNERS = ("signer 1", "signer 2", "signer 3", "signer 4")


@dataclass(frozen=True)
class Authority:
    """The name, signature and chain of one signer.

    ``peer_parts`` are the slices of the header and the metadata that describe the other signer.
    """

    name: str
    signature: slice
    chain: slice
    peer_parts: tuple[slice, ...] = ()


@dataclass(frozen=True)
class HashSegment:
    """A parsed hash segment, whose parts are slices of its bytes. ``faults`` are its
    inconsistencies. ``named_algorithm`` is the hash algorithm in the metadata, or "" if there is
    none or if it is unknown.

    ``is_encrypted`` is true if it contains encryption parameters, which no signature covers.
    """

    version: int
    header: slice
    metadata: slice
    table: slice
    authorities: tuple[Authority, ...]
    named_algorithm: str
    faults: tuple[str, ...]
    is_encrypted: bool = False

    def list_signed(self, data: memoryview, authority: Authority) -> Iterator[bytes]:
        """Yield the byte strings that ``authority`` may have signed.

        The first consists of header, metadata and hash table. If there are several signers, the
        second is the same, but with zeros for the sizes and metadata of the other signer. All
        images of version 6 with two signatures that have been seen so far verify with the second.
        """
        signed = bytearray(data[: self.table.stop])
        yield bytes(signed)
        if len(self.authorities) > 1:
            for part in authority.peer_parts:
                signed[part] = bytes(len(signed[part]))
            yield bytes(signed)

    def entries(self, data: memoryview, count: int) -> tuple[str, tuple[bytes, ...]]:
        """Return the hash algorithm and the ``count`` digests of the hash table. The algorithm
        follows from the size of the table.

        Raises MalformedError if no algorithm matches that size.
        """
        table = bytes(data[self.table])
        for algorithm, size in DIGEST_SIZES.items():
            if len(table) == count * size:
                return algorithm, tuple(table[i : i + size] for i in range(0, len(table), size))
        raise MalformedError(
            f"the hash table is {len(table)} bytes long, which does not match SHA-256, "
            f"SHA-384 or SHA-512 for {count} program headers; hash tables per page are not "
            "supported"
        )


def parse_hash_segment(data: memoryview) -> HashSegment:
    """Parse ``data``, the bytes of a hash segment.

    Raises MalformedError if the header is incomplete or of an unknown version, or if the parts of
    the segment are larger than ``data``.
    """
    if len(data) < SHORT_HEADER.size:
        raise MalformedError(
            f"the hash segment is {len(data)} bytes long, too short for an MBN header"
        )
    version = SHORT_HEADER.unpack_from(data)[1]
    if version not in LAYOUTS:
        versions = ", ".join(map(str, LAYOUTS))
        raise MalformedError(f"MBN header version {version} is not one of {versions}")
    layout = LAYOUTS[version]
    if len(data) < layout.size:
        raise MalformedError("the hash segment ends inside its MBN header")
    parse = _parse_early if version in EARLY else _parse_late
    return parse(data, version, layout.unpack_from(data))


def _parse_early(data: memoryview, version: int, words: tuple[int, ...]) -> HashSegment:
    second, third, total, table, _, signature, _, chain, *metadata_sizes = words[2:]
    # In version 3, these words are the image's source and destination addresses.
    vendor = (0, 0) if version == 3 else (second, third)
    parts = (*vendor, signature, chain)
    metadata = (0, *metadata_sizes) if metadata_sizes else (0, 0, 0)
    hash_segment = _lay_out(data, version, metadata, table, parts)
    content = table + sum(parts)
    # Some signers count the padding up to the segment's end, others the metadata.
    most = len(data) - hash_segment.header.stop
    if not content <= total <= most:
        fault = f"the MBN header states that {total} bytes follow it, not {content} to {most}"
        return replace(hash_segment, faults=(*hash_segment.faults, fault))
    return hash_segment


def _parse_late(data: memoryview, version: int, words: tuple[int, ...]) -> HashSegment:
    reserved, _, common, vendor, oem, table, *parts = words
    hash_segment = _lay_out(data, version, (common, vendor, oem), table, parts)
    faults = [f"the header's reserved word is {reserved:#x} instead of 0"] if reserved else []
    named = ""
    if version == 7 and common < COMMON_METADATA.size:
        faults.append(
            f"the common metadata is only {common} bytes long, shorter than {COMMON_METADATA.size}"
        )
    # Public sources describe this metadata only for version 7.
    elif version == 7:
        major, minor, *_, algorithm, _ = COMMON_METADATA.unpack_from(data, hash_segment.header.stop)
        if (major, minor) not in COMMON_VERSIONS:
            faults.append(
                f"the common metadata has version {major}.{minor}, whose format is not published"
            )
        named = NAMED_ALGORITHMS.get(algorithm, "")
    return replace(hash_segment, named_algorithm=named, faults=(*hash_segment.faults, *faults))


def _lay_out(
    data: memoryview, version: int, metadata: Sequence[int], table: int, parts: Sequence[int]
) -> HashSegment:
    """Return the hash segment with the position of each part.

    ``metadata`` are the sizes of the common metadata, Qualcomm's metadata and the OEM's metadata.
    ``table`` is the size of the hash table. ``parts`` contains two sizes for each signer: the size
    of its signature and the size of its chain. Raises MalformedError if the parts are larger than
    ``data``.
    """
    header, _, *vendors, hashes = _place([LAYOUTS[version].size, *metadata, table], 0)
    places = _place(parts, hashes.stop)
    end = places[-1].stop
    if end > len(data):
        raise MalformedError(
            f"according to the MBN header, the hash segment's last part ends at byte {end}, but"
            f" the segment ends at byte {len(data)}"
        )
    descriptions = []  # of Qualcomm's signature and of the OEM's: the sizes and the metadata
    for words, own_metadata in zip(SIZE_WORDS.get(version, ()), vendors, strict=False):
        sizes = [slice(4 * word, 4 * word + 4) for word in words]
        descriptions.append((*sizes, own_metadata))
    peers: list[tuple[slice, ...]] = [*reversed(descriptions)] or [()] * len(SIGNERS)
    names = AUTHORITIES if descriptions or version == 3 else SIGNERS
    authorities = []
    for name, signature, chain, peer in zip(names, places[::2], places[1::2], peers, strict=False):
        if signature.start < chain.stop:  # an absent signer has the sizes 0
            authorities.append(Authority(name, signature, chain, peer))
    faults = []
    is_encrypted = bytes(data[end:]).startswith(ENCRYPTED)
    if set(data[end:]) - {0xFF} and not is_encrypted:
        faults.append(f"{len(data) - end} bytes after the last part are not padding of 0xff")
    body = slice(header.stop, hashes.start)
    return HashSegment(
        version, header, body, hashes, tuple(authorities), "", tuple(faults), is_encrypted
    )


def _place(sizes: Sequence[int], start: int) -> list[slice]:
    ends = itertools.accumulate(sizes, initial=start)
    return [slice(*pair) for pair in itertools.pairwise(ends)]
