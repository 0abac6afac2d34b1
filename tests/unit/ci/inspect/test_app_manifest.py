"""Manifests of Android apps: compiled by aapt2, as text, damaged and hostile."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from ci.inspect.app_manifest import AppManifest, parse_manifest
from tests.stand_ins.android_apps import MANIFESTS

DECLARED = AppManifest("org.example.app", "", 30, 35, True, {"libcdsprpc.so": False})
EXPECTED = {
    "declared": DECLARED,
    "inside": replace(DECLARED, extracts=False, native_libraries={"libcdsprpc.so": True}),
    "undeclared": replace(DECLARED, extracts=None, native_libraries={}),
    "split": replace(DECLARED, split="config.arm64_v8a", extracts=False, native_libraries={}),
}
ENTITIES = b"""<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>
<manifest package="&b;"/>"""


@pytest.mark.parametrize("name", EXPECTED)
def test_manifest_means_the_same_compiled_and_as_text(name: str) -> None:
    for suffix in ("bin", "xml"):
        assert parse_manifest((MANIFESTS / f"{name}.{suffix}").read_bytes()) == EXPECTED[name]


def test_manifest_that_is_cut_has_a_fault() -> None:
    data = (MANIFESTS / "declared.bin").read_bytes()
    found = [parse_manifest(data[:size]) for size in range(0, len(data), 9)]
    assert all(one.fault for one in found[: len(found) // 2])
    assert parse_manifest(b"").fault


@pytest.mark.parametrize("at", [28, 29, 116, 876])
def test_offset_that_leads_nowhere_is_a_fault(at: int) -> None:
    """Where a text, the texts, a chunk or the name of an element is."""
    data = (MANIFESTS / "declared.bin").read_bytes()
    found = parse_manifest(data[:at] + b"\xff" + data[at + 1 :])
    assert found == AppManifest(fault=found.fault)
    assert "damaged" in found.fault


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ENTITIES, "document type"),
        (b"<manifest", "not XML"),
        (b"<other/>", "no manifest element"),
        (bytes((2 << 20) + 1), "the limit is"),
        (b'<?xml version="1.0" encoding="x-none"?><manifest/>', "not XML"),
    ],
)
def test_other_documents_have_a_fault(data: bytes, reason: str) -> None:
    assert reason in parse_manifest(data).fault


@pytest.mark.parametrize("count", [600, 60_000])
def test_one_long_string_named_many_times_is_refused(count: int) -> None:
    text = ("a" * 20_000).encode("utf-16-le")
    pool = struct.pack(
        "<HHIIIIII", 1, 28, 28 + 4 * count + len(text), count, 0, 0, 28 + 4 * count, 0
    )
    pool += bytes(4 * count) + struct.pack("<H", 20_000) + text
    data = struct.pack("<HHI", 3, 8, 8 + len(pool)) + pool
    assert "over and over" in parse_manifest(data).fault
