"""The proof of a signed library from its bytes alone.

What only a device can judge is said to be not judged: whether it trusts the root, and whether
the identities in the metadata are its own.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from pathlib import Path

from ci.signing.proof.certificates import (
    list_chain_notes,
    list_date_errors,
    list_link_errors,
    parse_chain,
    utc_now,
)
from ci.signing.proof.compare import list_differences, list_uncovered
from ci.signing.proof.mbn import Authority, HashSegment, parse_hash_segment
from ci.signing.proof.segments import (
    PT_NULL,
    Image,
    MalformedError,
    Segment,
    TruncatedError,
    parse_image,
    read_bytes,
)
from ci.signing.proof.signature import recognise_signature
from ci.signing.proof.verdict import Kind, Scheme, SignedBy, Verification

TESTSIG_NAME = re.compile(r"testsig-0x([0-9a-fA-F]{1,8})\.so")


def verify_file(
    path: Path, original: Path | None = None, *, now: datetime | None = None
) -> Verification:
    """Verify ``path``, beside ``original`` when that is given. Raises UsageError."""
    found = TESTSIG_NAME.fullmatch(path.name)
    serial = int(found[1], 16) if found else 0
    before = memoryview(read_bytes(original)) if original else None
    return verify_bytes(memoryview(read_bytes(path)), before, serial=serial, now=now)


def verify_bytes(
    data: memoryview,
    original: memoryview | None = None,
    *,
    serial: int = 0,
    now: datetime | None = None,
) -> Verification:
    """Judge the bytes of a library, and that they load as those of ``original`` do.

    ``serial`` is what the hash segment's own entry holds in a device's test signature.
    """
    report = Verification(len(data))
    try:
        image = parse_image(data)
        report.hexagon_version = image.hexagon_version
        if original is not None:
            report.add(Kind.DIFFERENT, *list_differences(image, parse_image(original)))
        _judge_image(image, report, serial, now or utc_now())
    except MalformedError as error:
        truncated = isinstance(error, TruncatedError)
        report.add(Kind.TRUNCATED if truncated else Kind.LAYOUT, str(error))
    return report


def _judge_image(image: Image, report: Verification, serial: int, now: datetime) -> None:
    found = image.hash_segments
    report.signed = bool(found)
    if not found:
        left = [one for one in image.segments if one.type == PT_NULL and one.vendor_type]
        report.add(Kind.LAYOUT, *(f"{one.describe()} is left of a signature" for one in left))
        return
    if len(found) > 1:
        raise MalformedError(f"{len(found)} hash segments instead of one")
    data = image.bytes_of(found[0])
    parsed = parse_hash_segment(data, found[0].physical_address)
    report.header_version = parsed.version
    report.add(Kind.HEADER, *parsed.complaints)
    _judge_layout(image, found[0], report)
    _judge_hashes(image, parsed, report, data, serial)
    _judge_signers(parsed, report, data, found[0].offset, now)
    report.uncovered = list_uncovered(image)
    if any(bytes(image.data[start:end]).strip(b"\0") for start, end in report.uncovered):
        report.notes.append("bytes that no hash covers are not all zero; a loader skips them")


def _judge_layout(image: Image, hash_segment: Segment, report: Verification) -> None:
    """The placeholder stands first and covers the headers; nothing overlaps the hash segment."""
    first = image.segments[0]
    if not first.is_header_placeholder:
        raise MalformedError("the first program header does not stand for the headers")
    if (first.offset, first.file_size) != (0, image.headers_end):
        report.add(
            Kind.LAYOUT,
            f"the first hash covers {first.file_size} bytes at {first.offset:#x}, "
            f"the headers have {image.headers_end} at 0x0",
        )
    for other in image.segments:
        apart = other.end <= hash_segment.offset or hash_segment.end <= other.offset
        if other is not hash_segment and other.file_size and not apart:
            report.add(Kind.LAYOUT, f"{other.describe()} overlaps the hash segment")
        if other.is_paged:
            report.add(
                Kind.LAYOUT, f"{other.describe()} is hashed by the page, which is not judged"
            )


def _judge_hashes(
    image: Image, parsed: HashSegment, report: Verification, data: memoryview, serial: int
) -> None:
    algorithm, entries = parsed.entries(data, len(image.segments))
    report.algorithm = algorithm
    if parsed.named_algorithm not in {"", algorithm}:
        report.add(
            Kind.HEADER,
            f"the metadata names hash algorithm {parsed.named_algorithm}, the table is {algorithm}",
        )
    for segment, entry in zip(image.segments, entries, strict=True):
        wanted = _own_entry(serial, len(entry)) if segment.is_hash_segment else None
        if wanted is None:
            digest = hashlib.new(algorithm, image.bytes_of(segment)).digest()
            empty = not segment.file_size and not any(entry)
            wanted = entry if empty else digest
            report.hashed_segments += not empty
        if entry != wanted:
            report.add(Kind.HASH, _name_mismatch(segment))


def _own_entry(serial: int, size: int) -> bytes:
    """The hash segment cannot hash itself: its entry is zero, or a test signature's serial."""
    return serial.to_bytes(4, "little").ljust(size, b"\0")


def _name_mismatch(segment: Segment) -> str:
    if segment.is_header_placeholder:
        return "the hash of the ELF header and the program headers does not match"
    if segment.is_hash_segment:
        return "the hash segment's own entry is neither zero nor the serial in the file's name"
    return f"the hash of {segment.describe()} does not match"


def _judge_signers(
    parsed: HashSegment, report: Verification, data: memoryview, base: int, now: datetime
) -> None:
    if not parsed.authorities:
        report.add(Kind.SIGNATURE, "the hash segment holds hashes but no signature")
    for authority in parsed.authorities:
        span = authority.signature
        report.signature_ranges.append((base + span.start, base + span.end))
        report.signers.append(_judge_signer(authority, parsed, report, data, now))


def _judge_signer(
    authority: Authority, parsed: HashSegment, report: Verification, data: memoryview, now: datetime
) -> SignedBy:
    name, signature = authority.name, bytes(authority.signature.of(data))
    chain = parse_chain(bytes(authority.chain.of(data)))
    report.add(Kind.DATE, *(f"{name}: {error}" for error in list_date_errors(chain, now)))
    report.add(Kind.CHAIN, *(f"{name}: {error}" for error in list_link_errors(chain)))
    report.notes += [f"{name}: {note}" for note in list_chain_notes(chain)]
    if not any(signature):
        report.add(Kind.SIGNATURE, f"{name}: the signature is empty")
    if chain[0].key == "RSA" and not _has_length(signature, chain[0].key_bits // 8):
        report.add(
            Kind.SIGNATURE,
            f"{name}: a signature of {len(signature)} bytes for a key of {chain[0].key_bits} bits",
        )
    scheme = recognise_signature(chain[0], signature, bytes(parsed.signed_bytes.of(data)))
    if scheme is Scheme.UNKNOWN:
        report.notes.append(
            f"{name}: the signature verifies with the leaf's key by no published scheme; "
            "the device judges it"
        )
    return SignedBy(name, chain, scheme, len(signature))


def _has_length(signature: bytes, size: int) -> bool:
    """Whether it is ``size`` bytes, or more of which the rest is padding."""
    padding = set(signature[size:])
    return len(signature) >= size and padding in (set(), {0x00}, {0xFF})
