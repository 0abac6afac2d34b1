"""Images that Qualcomm and device makers signed, where $QNN_CI_SIGNED_IMAGES names some."""

from __future__ import annotations

import hashlib
import json
import os
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ci.signing.mbn import parse_image
from ci.signing.verdict import Verdict
from ci.signing.verify import verify_bytes

VARIABLE = "QNN_CI_SIGNED_IMAGES"
EXPECTED = Path(__file__).parents[2] / "artifacts" / "signed_images" / "images.json"
FEWEST, FLIPS = 40, 1000
ROOTLESS = "the root is not in the file"
LARGEST_BYTES = 1 << 26

pytestmark = pytest.mark.skipif(
    VARIABLE not in os.environ, reason=f"{VARIABLE} names no directory of signed images"
)


@pytest.fixture(scope="module")
def images() -> list[tuple[dict[str, Any], bytes]]:
    """What is expected of each image that is there, and its bytes."""
    expected = {image_row["sha256"]: image_row for image_row in json.loads(EXPECTED.read_text())}
    images_by_digest = {}
    for path in sorted(Path(os.environ[VARIABLE]).rglob("*")):
        if path.is_file() and path.stat().st_size < LARGEST_BYTES:
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            if digest in expected:
                images_by_digest[digest] = (expected[digest], data)
    assert len(images_by_digest) >= FEWEST, (
        f"{len(images_by_digest)} known images in {os.environ[VARIABLE]}"
    )
    return list(images_by_digest.values())


def test_each_real_image_has_its_known_verdict(
    images: list[tuple[dict[str, Any], bytes]],
) -> None:
    for expected_row, data in images:
        report = verify_bytes(memoryview(data))
        verdict = (report.verdict.value, [signer.scheme.value for signer in report.signers])
        assert verdict == (expected_row["verdict"], expected_row["signatures"]), expected_row[
            "path"
        ]
        assert report.header_version == expected_row["header"]
        assert all(expected_row["error"] in error for error in report.errors), expected_row["path"]
        rootless = expected_row.get("rootless", False)
        assert all("expired on" in note or (rootless and ROOTLESS in note) for note in report.notes)
        assert any(ROOTLESS in note for note in report.notes) is rootless, expected_row["path"]


def test_a_certificate_chain_is_valid_until_its_last_second(
    images: list[tuple[dict[str, Any], bytes]],
) -> None:
    for expected_row, data in images:
        signers = verify_bytes(memoryview(data)).signers
        if expected_row["verdict"] == Verdict.PROVEN.value and len(signers) == 1:
            last = min(certificate.not_after for certificate in signers[0].chain)
            late = last + timedelta(seconds=1)
            assert verify_bytes(memoryview(data), at=last).verdict is Verdict.PROVEN, expected_row[
                "path"
            ]
            assert verify_bytes(memoryview(data), at=late).verdict is Verdict.INVALID


def test_no_image_with_a_flipped_bit_is_proven(images: list[tuple[dict[str, Any], bytes]]) -> None:
    """Half of the bits are anywhere in a file, half in its headers and hash segment. Images without
    a root are left out: nothing proves their last certificate."""
    rng = random.Random(13)
    with_root = [
        (expected_row, data) for expected_row, data in images if not expected_row.get("rootless")
    ]
    proven = [
        data for expected_row, data in with_root if expected_row["verdict"] == Verdict.PROVEN.value
    ]
    for number in range(FLIPS):
        data = bytearray(proven[number % len(proven)])
        (segment,) = (image := parse_image(memoryview(bytes(data)))).hash_segments
        telling = [*range(image.headers.end), *range(segment.header.offset, segment.end)]
        position = rng.randrange(len(data)) if number % 2 else rng.choice(telling)
        bit = 1 << rng.randrange(8)
        data[position] ^= bit
        verdict = verify_bytes(memoryview(bytes(data))).verdict
        assert verdict is not Verdict.PROVEN, (number, position, bit)
