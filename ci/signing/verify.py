"""Verify a signed library from its bytes alone.

Only a device can decide whether it trusts the root certificate, and whether it accepts the
identities in the metadata. Reports list both questions as not judged.

The recognised schemes of signatures are RSA with PKCS #1 v1.5 padding (with or without DigestInfo),
RSA-PSS and ECDSA. In each, the signed digest is a plain hash or a double hash. The double hash is
keyed by the SW_ID and HW_ID in the subject of the leaf certificate.

Source of the double hash: https://www.qualcomm.com/media/documents/files/
secure-boot-and-image-authentication-technical-overview-v2-0.pdf

No scheme is published for other kinds of keys; the result is then "not recognised".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils

from ci.signing.certificates import (
    Certificate,
    is_padding,
    list_chain_notes,
    list_date_errors,
    list_link_errors,
    measure_der,
    parse_chain,
)
from ci.signing.masking import read_serial
from ci.signing.mbn import (
    HashSegment,
    Image,
    MalformedError,
    Segment,
    TruncatedError,
    parse_hash_segment,
    parse_image,
)
from ci.signing.verdict import Kind, Scheme, SignedBy, Verification
from provisioning.documents import read_user_file
from provisioning.elf.facts import EM_AARCH64, EM_QDSP6, PT_LOAD, PT_NULL, Genuine, name_machine
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.manifest.catalogs import prove_skel

# The pads of HMAC (RFC 2104), which the double hash uses in the same way.
INNER_PAD, OUTER_PAD = 0x3636363636363636, 0x5C5C5C5C5C5C5C5C
# DER of DigestInfo up to the digest, https://www.rfc-editor.org/rfc/rfc8017#section-9.2
DIGEST_INFO = {
    "sha256": bytes.fromhex("3031300d060960864801650304020105000420"),
    "sha384": bytes.fromhex("3041300d060960864801650304020205000430"),
    "sha512": bytes.fromhex("3051300d060960864801650304020305000440"),
}
HASHES: dict[str, hashes.HashAlgorithm] = {
    "sha256": hashes.SHA256(),
    "sha384": hashes.SHA384(),
    "sha512": hashes.SHA512(),
}
# PSS padding must start with at least this many zero bytes, so that a random block does not pass.
TELLING_BYTES = 8


class Judgement(NamedTuple):
    """The scheme of a signature. If the signature is wrong, ``scheme`` is UNKNOWN and ``fault``
    states why.
    """

    scheme: Scheme = Scheme.UNKNOWN
    fault: str = ""


def judge_signature(leaf: Certificate, signature: bytes, signed: bytes) -> Judgement:
    """Judge whether ``signature`` was made over ``signed`` with the key of ``leaf``."""
    if is_padding(signature):
        filler = f"filled with {signature[0]:#04x}" if any(signature) else "empty"
        return Judgement(fault=f"the signature is {filler}")
    key = leaf.parsed.public_key()
    digests = list(list_digests(leaf.subject, signed))
    if isinstance(key, rsa.RSAPublicKey):
        return _judge_rsa(key, signature, digests)
    if isinstance(key, ec.EllipticCurvePublicKey):
        return _judge_ecdsa(key, signature, digests)
    return Judgement()


def list_digests(subject: str, signed: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield each digest that a signer may have signed, after the name of its hash algorithm. Plain
    digests come first, then those keyed by SW_ID and HW_ID.
    """
    plain = {name: hashlib.new(name, signed).digest() for name in HASHES}
    yield from plain.items()
    for name, digest in plain.items():
        for field, pad in (("SW_ID", INNER_PAD), ("HW_ID", OUTER_PAD)):
            # Only older leaf certificates have these fields.
            match = re.search(rf"OU=\d\d ([0-9A-Fa-f]{{16}}) {field}\b", subject)
            identity = int(match[1], 16) if match else 0
            digest = hashlib.new(name, (identity ^ pad).to_bytes(8, "big") + digest).digest()
        yield name, digest


def _judge_rsa(
    key: rsa.RSAPublicKey, signature: bytes, digests: list[tuple[str, bytes]]
) -> Judgement:
    # Signers pad the field for the signature to a fixed size.
    size = (key.key_size + 7) // 8
    value = signature[:size]
    if len(value) < size or not is_padding(signature[size:]):
        bits, length = key.key_size, len(signature)
        return Judgement(fault=f"a signature by a key of {bits} bits cannot be {length} bytes long")
    numbers, number = key.public_numbers(), int.from_bytes(value, "big")
    if number >= numbers.n:
        return Judgement(fault="the signature is larger than the modulus of the leaf's key")
    payload = b""
    with suppress(InvalidSignature, ValueError):
        # None: the payload without a DigestInfo is recovered too, as some signers omit that.
        payload = key.recover_data_from_signature(value, padding.PKCS1v15(), None)
    # Compare the whole payload: with exponent 3, anything before the digest can be forged.
    if any(payload in {digest, DIGEST_INFO[name] + digest} for name, digest in digests):
        return Judgement(Scheme.PKCS1)
    for name, digest in digests:
        scheme = padding.PSS(padding.MGF1(HASHES[name]), padding.PSS.AUTO)
        with suppress(InvalidSignature, ValueError):
            key.verify(value, digest, scheme, utils.Prehashed(HASHES[name]))
            return Judgement(Scheme.PSS)
    # The raw block tells a signature over another digest from one of another key, which have
    # different remedies.
    block = pow(number, numbers.e, numbers.n).to_bytes(size, "big")
    if payload or any(_has_pss_padding(block, key.key_size, name) for name in HASHES):
        return Judgement(
            fault="the signature was made with the leaf's key, but over a different digest: it "
            "belongs to another file, or the header or the hash table was changed afterwards"
        )
    return Judgement(fault="the signature does not verify with the leaf's key")


def _has_pss_padding(block: bytes, key_bits: int, name: str) -> bool:
    """Return whether ``block`` is padded for RSA-PSS. The digest in it is not compared.

    https://www.rfc-editor.org/rfc/rfc8017#section-9.1.2
    """
    digest_size = HASHES[name].digest_size
    masked, digest = block[: -digest_size - 1], block[-digest_size - 1 : -1]
    counters = range(-(-len(masked) // digest_size))
    mask = b"".join(hashlib.new(name, digest + i.to_bytes(4, "big")).digest() for i in counters)
    padded = int.from_bytes(masked, "big") ^ int.from_bytes(mask[: len(masked)], "big")
    padded &= (1 << (8 * len(masked) - (8 * len(block) - key_bits + 1))) - 1
    unmasked = padded.to_bytes(len(masked), "big")
    zeros = len(unmasked) - len(unmasked.lstrip(b"\0"))
    return block[-1:] == b"\xbc" and zeros >= TELLING_BYTES and unmasked[zeros : zeros + 1] == b"\1"


def _judge_ecdsa(
    key: ec.EllipticCurvePublicKey, signature: bytes, digests: list[tuple[str, bytes]]
) -> Judgement:
    try:
        # A DER signature states its own length, and padding follows it.
        size = measure_der(signature)
        utils.decode_dss_signature(signature[:size])
    except (MalformedError, ValueError):
        return Judgement(
            fault="the leaf's key is for ECDSA, but the signature is not an ECDSA signature"
        )
    if not is_padding(signature[size:]):
        return Judgement(fault="the bytes after the signature are not padding")
    for name, digest in digests:
        with suppress(InvalidSignature, ValueError):
            key.verify(signature[:size], digest, ec.ECDSA(utils.Prehashed(HASHES[name])))
            return Judgement(Scheme.ECDSA)
    return Judgement(fault="the signature does not verify with the leaf's key")


# Machines of images that Qualcomm and device makers signed: none (mcfg_hw.mbn, modem settings),
# DTB, Arm, Xtensa, Hexagon, AArch64, RISC-V.
SIGNED_MACHINES = {0, 1, 40, 94, EM_QDSP6, EM_AARCH64, 243}
# Versions are named by their hexadecimal digits, V68 to V81 in current SDKs.
LAST_HEXAGON = 0x99


def verify_file(
    path: Path, original: Path | None = None, *, at: datetime | None = None
) -> Verification:
    """Verify the file ``path``, and compare it with the unsigned library ``original`` if that is
    given.

    An unsigned library is looked up in the catalogs next to it and in the list of genuine skels.
    For ``at``, see ``verify_bytes``. Raises UsageError if a file cannot be read.
    """
    serial = read_serial(path.name)
    before = memoryview(read_user_file(original, "the library")) if original else None
    # Read once, so that all checks see the same bytes.
    data = memoryview(read_user_file(path, "the library"))
    report = verify_bytes(data, before, serial=serial, at=at)
    if not report.signed:
        build = find_qnn_build(path)
        report.build = build.text if build else ""
        report.proof = prove_skel(path, build, at)
        if report.proof and report.proof.outcome is Genuine.FORGED:
            report.add(Kind.CATALOG, f"{report.proof.catalog} proves nothing: {report.proof.why}")
    return report


def verify_bytes(
    data: memoryview,
    original: memoryview | None = None,
    *,
    serial: int = 0,
    at: datetime | None = None,
) -> Verification:
    """Judge the bytes of a library. If ``original`` is given, also judge whether the loadable
    content is the same.

    ``serial`` is the serial number for which a test signature was made, or 0 for any other file. In
    a test signature, it is the hash segment's own entry in the hash table.

    A certificate that is not valid at time ``at`` is a fault. Without ``at``, a certificate that is
    not valid now is only a note: leaf certificates are valid for about two years, but images are
    used for longer.
    """
    report = Verification(len(data))
    try:
        image = parse_image(data)
        report.machine = name_machine(image.headers.machine)
        report.hexagon_version = image.hexagon_version
        if image.headers.machine not in SIGNED_MACHINES:
            report.add(Kind.LAYOUT, f"no signed image is known for machine {report.machine}")
        if original is not None:
            try:
                report.add(Kind.DIFFERENT, *list_differences(image, parse_image(original)))
            except MalformedError as error:
                report.add(Kind.DIFFERENT, f"the input cannot be compared: {error}")
        _judge_image(image, report, serial, at)
    except MalformedError as error:
        truncated = isinstance(error, TruncatedError)
        report.add(Kind.TRUNCATED if truncated else Kind.LAYOUT, str(error))
    return report


def _judge_image(image: Image, report: Verification, serial: int, at: datetime | None) -> None:
    hash_segments = image.hash_segments
    report.signed = bool(hash_segments)
    if not hash_segments:
        for segment in image.segments:
            if segment.header.type == PT_NULL and segment.header.vendor_type:
                report.add(Kind.LAYOUT, f"{segment.describe()} is left over from a signature")
        return
    # It is not defined which of them a loader uses.
    if len(hash_segments) > 1:
        raise MalformedError(f"there are {len(hash_segments)} hash segments instead of one")
    data = image.bytes_of(hash_segments[0])
    parsed = parse_hash_segment(data)
    report.header_version = parsed.version
    if image.hexagon_version > LAST_HEXAGON:
        report.notes.append(f"Hexagon V{image.hexagon_version:X} is not a known version")
    report.add(Kind.HEADER, *parsed.faults)
    _judge_layout(image, hash_segments[0], report)
    _judge_hashes(image, parsed, report, data, serial)
    _judge_signers(parsed, report, data, hash_segments[0].header.offset, at)
    report.uncovered = list_uncovered(image)
    for start, end in report.uncovered:
        if not is_padding(bytes(image.data[start:end])):
            text = f"bytes {start:#x} to {end:#x}, which no hash covers, are not padding"
            report.add(Kind.LAYOUT, text)


def _judge_layout(image: Image, hash_segment: Segment, report: Verification) -> None:
    """Check that a loader accepts the layout.

    The placeholder must come first and cover the headers, nothing may overlap the hash segment, and
    each loadable segment must fit in its memory. Raises MalformedError if the placeholder is
    missing; adds other faults to ``report``.
    """
    first = image.segments[0]
    if not first.is_header_placeholder:
        raise MalformedError("the first program header is not the placeholder for the headers")
    size, offset = first.header.filesz, first.header.offset
    # The hash of the headers is the only proof of the addresses to which segments are loaded.
    if (offset, size) != (0, image.headers.end):
        report.add(
            Kind.LAYOUT,
            f"the first hash covers {size} bytes at {offset:#x}, but "
            f"the headers are {image.headers.end} bytes at 0x0",
        )
    loaded = [segment for segment in image.segments if segment.header.type == PT_LOAD]
    if not loaded:
        report.add(Kind.LAYOUT, "no segment is loadable (type LOAD)")
    for segment in loaded:
        memory = segment.header.memsz
        if memory < segment.header.filesz:
            report.add(Kind.LAYOUT, f"{segment.describe()} has only {memory} bytes of memory")
    start, end = hash_segment.header.offset, hash_segment.end
    for segment in image.segments:
        is_apart = segment.end <= start or end <= segment.header.offset
        if segment is not hash_segment and segment.header.filesz and not is_apart:
            report.add(Kind.LAYOUT, f"{segment.describe()} overlaps the hash segment")


def _judge_hashes(
    image: Image, parsed: HashSegment, report: Verification, data: memoryview, serial: int
) -> None:
    algorithm, entries = parsed.entries(data, len(image.segments))
    report.algorithm = algorithm
    if parsed.named_algorithm not in {"", algorithm}:
        report.add(
            Kind.HEADER,
            f"the metadata states hash algorithm {parsed.named_algorithm}, but the "
            f"hash table contains {algorithm} digests",
        )
    report.encrypted = parsed.is_encrypted
    for segment, entry in zip(image.segments, entries, strict=True):
        fault = f"the hash of {segment.describe()} does not match"
        if segment.header.is_hashes:
            # The hash segment cannot contain its own hash: its entry is zero, or a test signature's
            # serial number.
            expected = serial.to_bytes(4, "little").ljust(len(entry), b"\0")
            fault = (
                "the hash segment's own entry in the hash table is neither zero nor the serial "
                "number in the file name"
            )
        # A signer may write zeros for a segment without bytes.
        elif not segment.header.filesz and not any(entry):
            continue
        else:
            expected = hashlib.new(algorithm, image.bytes_of(segment)).digest()
            report.hashed_segments += 1
            if segment.is_header_placeholder:
                fault = "the hash of the ELF header and the program headers does not match"
        # The hashes are those of the plain bytes, which only the device can decrypt.
        if entry != expected and parsed.is_encrypted and segment.header.type != PT_NULL:
            report.hashed_segments -= 1
            report.notes.append(
                f"the hash of {segment.describe()} does not match its encrypted bytes"
            )
        elif entry != expected:
            report.add(Kind.HASH, fault)


def _judge_signers(
    parsed: HashSegment, report: Verification, data: memoryview, base: int, at: datetime | None
) -> None:
    if not parsed.authorities:
        report.add(Kind.SIGNATURE, "the hash segment contains hashes but no signature")
    for authority in parsed.authorities:
        name, place = authority.name, authority.signature
        report.signature_ranges.append((base + place.start, base + place.stop))
        signature, chain = bytes(data[place]), parse_chain(bytes(data[authority.chain]))
        dates = list_date_errors(chain, at or datetime.now(timezone.utc))
        if at:
            report.add(Kind.DATE, *(f"{name}: {error}" for error in dates))
        else:
            report.notes += [f"{name}: {error}" for error in dates]
        report.add(Kind.CHAIN, *(f"{name}: {error}" for error in list_link_errors(chain)))
        report.notes += [f"{name}: {note}" for note in list_chain_notes(chain)]
        tried = [
            judge_signature(chain[0], signature, signed)
            for signed in parsed.list_signed(data, authority)
        ]
        judged = next((judgement for judgement in tried if not judgement.fault), tried[0])
        if judged.fault:
            report.add(Kind.SIGNATURE, f"{name}: {judged.fault}")
        elif judged.scheme is Scheme.UNKNOWN:
            report.notes.append(
                f"{name}: no scheme is published for {chain[0].key} keys, so only the device can "
                "judge the signature"
            )
        report.signers.append(SignedBy(name, chain, judged.scheme, len(signature)))


def list_differences(signed: Image, original: Image) -> list[str]:
    """Return how the loadable segments of ``signed`` differ from those of ``original``.

    The entry point, the machine and the ELF flags must be equal too. Segments that are not
    loadable, such as those that signing adds, may differ.
    """
    differences = []
    for key in ("machine", "entry", "flags"):
        signed_value, original_value = getattr(signed.headers, key), getattr(original.headers, key)
        if signed_value != original_value:
            differences.append(
                f"e_{key} is {signed_value:#x}, not {original_value:#x} as in the input"
            )
    after, before = list(signed.loadable()), list(original.loadable())
    if len(after) != len(before):
        counts = f"there are {len(after)} loadable segments, but the input has {len(before)}"
        return [*differences, counts]
    for new, old in zip(after, before, strict=True):
        # A signer may move a segment in the file, but changes nothing else.
        if new.header._replace(offset=0) != old.header._replace(offset=0):
            differences.append(f"{new.describe()} differs from the input in its program header")
        elif bytes(signed.bytes_of(new)) != bytes(original.bytes_of(old)):
            differences.append(f"{new.describe()} differs from the input in its bytes")
    return differences


def list_uncovered(image: Image) -> list[tuple[int, int]]:
    """Return the start and end of each range of the file that is outside the headers and all
    segments.

    Such ranges contain padding, section headers and trailers.
    """
    taken = [
        (segment.header.offset, segment.end) for segment in image.segments if segment.header.filesz
    ]
    gaps, position = [], image.headers.end
    # The end of the file counts as a last segment, so that what follows the others is found, too.
    for start, end in [*sorted(taken), (len(image.data), len(image.data))]:
        if start > position:
            gaps.append((position, start))
        position = max(position, end)
    return gaps
