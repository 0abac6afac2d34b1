"""Context signatures by content."""

from __future__ import annotations

import struct

import pytest

from ci.executorch.context_digest import HEADER, MAGIC, sign_by_content


def wrap(signature: int, context: bytes) -> bytes:
    return HEADER.pack(MAGIC, signature, len(context)) + context


def test_programs_that_differ_only_in_time_become_equal() -> None:
    first = b"head" + wrap(1795009000000000001, b"context one") + b"mid" + wrap(7, b"two") + b"end"
    later = b"head" + wrap(1795009000000000099, b"context one") + b"mid" + wrap(9, b"two") + b"end"
    assert sign_by_content(first) == sign_by_content(later)
    assert len(sign_by_content(first)) == len(first)


def test_a_context_behind_a_magic_that_heads_none_is_signed() -> None:
    head = b"head" + HEADER.pack(MAGIC, 3, 1 << 60)
    first, later = (sign_by_content(head + wrap(signature, b"one")) for signature in (7, 9))
    assert first == later
    assert first.startswith(head)


@pytest.mark.parametrize("start", [b"on", b"one beginning of both" * 99])
def test_other_contexts_get_other_signatures(start: bytes) -> None:
    signed = [sign_by_content(wrap(5, start + end)) for end in (b"e", b"f")]
    assert signed[0][4:12] != signed[1][4:12]
    assert signed[0][HEADER.size :] == start + b"e"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no context here",
        struct.pack("<I", MAGIC),
        HEADER.pack(MAGIC, 3, 1 << 60) + b"short",
        HEADER.pack(MAGIC, 3, 0) + b"empty",
    ],
)
def test_what_is_no_context_stays_as_it_is(data: bytes) -> None:
    assert sign_by_content(data) == data
