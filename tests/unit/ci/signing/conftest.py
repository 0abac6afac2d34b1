"""A key of the stand-in signer, and a small real Hexagon library."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stand_ins.elfsigner.keys import make_key
from tests.stand_ins.elfsigner.mbn_writer import Key

KEY = make_key()
LIBRARY = Path(__file__).parents[3] / "artifacts" / "elf" / "libhexagon.so"


@pytest.fixture(scope="session")
def key() -> Key:
    return KEY


@pytest.fixture(scope="session")
def library() -> bytes:
    return LIBRARY.read_bytes()
