"""Signed against unsigned: what would load differently, and which bytes no hash covers."""

from __future__ import annotations

from ci.signing.proof.segments import Image, Segment
from provisioning.elf.facts import ProgramHeader

COMPARE_BYTES = 1 << 20


def list_differences(signed: Image, original: Image) -> list[str]:
    """What would load differently from ``original``: every segment but the added ones."""
    differences = [
        f"e_{key} is {getattr(signed.headers, key):#x}, "
        f"the input's {getattr(original.headers, key):#x}"
        for key in ("machine", "entry", "flags")
        if getattr(signed.headers, key) != getattr(original.headers, key)
    ]
    after, before = list(signed.loadable()), list(original.loadable())
    if len(after) != len(before):
        return [*differences, f"{len(after)} loadable segments, the input has {len(before)}"]
    for new, old in zip(after, before, strict=True):
        if _placement(new) != _placement(old):
            differences.append(f"{new.describe()} has other addresses or flags than in the input")
        elif not _is_equal(signed.bytes_of(new), original.bytes_of(old)):
            differences.append(f"{new.describe()} has other bytes than the input")
    return differences


def _placement(segment: Segment) -> ProgramHeader:
    """All of the program header but the offset in the file, which a signer moves."""
    return segment.header._replace(offset=0)


def _is_equal(one: memoryview, other: memoryview) -> bool:
    starts = range(0, len(one), COMPARE_BYTES)
    return len(one) == len(other) and all(
        bytes(one[start : start + COMPARE_BYTES]) == bytes(other[start : start + COMPARE_BYTES])
        for start in starts
    )


def list_uncovered(image: Image) -> list[tuple[int, int]]:
    """File ranges outside the headers and every segment: padding, section headers, trailers."""
    taken = sorted(
        [(0, image.headers_end)]
        + [(one.offset, one.end) for one in image.segments if one.file_size]
    )
    gaps, position = [], 0
    for start, end in taken:
        if start > position:
            gaps.append((position, start))
        position = max(position, end)
    if position < len(image.data):
        gaps.append((position, len(image.data)))
    return gaps
