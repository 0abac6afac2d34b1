"""The library without functions is one that the loader and our reader of ELF files accept."""

from __future__ import annotations

import ctypes
import platform
from pathlib import Path

import pytest

from ci.litert.empty_library import make_empty_library
from provisioning.elf.reader import read_elf

SONAME = "libQnnLpai.so"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / SONAME
    path.write_bytes(make_empty_library(SONAME))
    return path


def test_the_empty_library_has_its_soname_and_needs_no_other(library: Path) -> None:
    facts = read_elf(library)
    assert facts.soname == SONAME
    assert not facts.needed


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the library is for x86-64")
def test_the_empty_library_can_be_loaded(library: Path) -> None:
    ctypes.CDLL(str(library))
