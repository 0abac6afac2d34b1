"""Context signatures by content."""

from __future__ import annotations

import os
import struct
import warnings
from unittest.mock import patch

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")

# Without QNN_SDK_ROOT ExecuTorch's import downloads an SDK; and it warns of what it uses itself.
with patch.dict(os.environ, QNN_SDK_ROOT="nowhere"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from ci.executorch.lower import sign_by_content

from provisioning.doctor.survey.programs import HEADER, HEADER_MAGIC


def wrap(signature: int, context: bytes) -> bytes:
    return HEADER.pack(HEADER_MAGIC, signature, len(context)) + context


def test_signing_by_content_makes_contexts_equal_that_differ_only_in_time() -> None:
    first = b"head" + wrap(1795009000000000001, b"context one") + b"mid" + wrap(7, b"two") + b"end"
    later = b"head" + wrap(1795009000000000099, b"context one") + b"mid" + wrap(9, b"two") + b"end"
    assert sign_by_content(first) == sign_by_content(later)
    assert len(sign_by_content(first)) == len(first)


def test_a_context_after_a_stray_header_magic_is_signed() -> None:
    head = b"head" + HEADER.pack(HEADER_MAGIC, 3, 1 << 60)
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
        struct.pack("<I", HEADER_MAGIC),
        HEADER.pack(HEADER_MAGIC, 3, 1 << 60) + b"short",
        HEADER.pack(HEADER_MAGIC, 3, 0) + b"empty",
    ],
)
def test_data_without_a_context_is_not_changed(data: bytes) -> None:
    assert sign_by_content(data) == data
