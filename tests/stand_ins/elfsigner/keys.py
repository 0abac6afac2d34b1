"""Keys of the stand-in signer for tests: in memory, and as the files that it reads."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.stand_ins.elfsigner.certify import (
    HARDWARE_ID,
    SOFTWARE_ID,
    make_leaf,
    write_authority,
)
from tests.stand_ins.elfsigner.mbn_writer import Key


def write_keys(directory: Path) -> None:
    """Write an authority, and valid.{json,der} and expired.{json,der} of it."""
    write_authority(directory)
    for stem, days in (("valid", 3650), ("expired", -1)):
        modulus, exponent, chain = make_leaf(directory, days)
        numbers = {
            "modulus": modulus,
            "private_exponent": exponent,
            "software_id": SOFTWARE_ID,
            "hardware_id": HARDWARE_ID,
        }
        (directory / f"{stem}.json").write_text(json.dumps(numbers))
        (directory / f"{stem}.der").write_bytes(chain)


def make_key(days: int = 3650) -> Key:
    """A leaf, an intermediate and a root; the leaf ends ``days`` from now."""
    with tempfile.TemporaryDirectory() as scratch:
        write_authority(Path(scratch))
        return Key(*make_leaf(Path(scratch), days), SOFTWARE_ID, HARDWARE_ID)
