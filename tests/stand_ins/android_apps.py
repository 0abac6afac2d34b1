"""Small Android apps: libraries of QNN with a name and a build, and APKs as Gradle or zip
write them."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tests.stand_ins import elf_edits

ARTIFACTS = Path(__file__).parents[1] / "artifacts"
MANIFESTS = ARTIFACTS / "manifests"
PLACEHOLDER = "v2.49.40.260810104044"
BUILD, OLDER = (
    "v2.49.99.260810104044",
    "v2.48.99.260702151143",
)  # no genuine skel is known of either
ABI = "arm64-v8a"
PADDING = 0xD935  # the extra field that zipalign writes
E_FLAGS = 36


def library(name: str, build: str = BUILD) -> bytes:
    """A library for Android."""
    data = bytearray(elf_edits.named(ARTIFACTS / "elf" / "libplaceholder_for_android.so", name))
    elf_edits.set_build(PLACEHOLDER, build)(data)
    return bytes(data)


def skel(name: str, hexagon: int, build: str = BUILD, *, stripped: bool = False) -> bytes:
    """A skel with its checksum; ``hexagon`` is e_flags, 0x75 for V75."""
    data = bytearray(elf_edits.named(ARTIFACTS / "elf" / "libplaceholder_for_hexagon.so", name))
    elf_edits.set_build(PLACEHOLDER, build)(data)
    elf_edits.set_u32(E_FLAGS, hexagon)(data)
    elf_edits.add_swiv(data)
    if stripped:
        elf_edits.strip_like_gradle(data)
    return bytes(data)


def make_set(build: str = BUILD, hexagon: int = 0x75) -> dict[str, bytes]:
    """What an app needs to run programs on one Hexagon version, by file name."""
    names = ("libQnnHtp.so", "libQnnSystem.so", f"libQnnHtpV{hexagon:x}Stub.so")
    dsp = f"libQnnHtpV{hexagon:x}Skel.so"
    return {name: library(name, build) for name in names} | {dsp: skel(dsp, hexagon, build)}


def write_apk(
    path: Path,
    libraries: Mapping[str, bytes],
    *,
    manifest: str = "declared",
    abi: str = ABI,
    other_files: Mapping[str, bytes] | None = None,
    stored: bool = False,
    align: int = 16384,
) -> Path:
    """An APK; ``stored`` libraries start at multiples of ``align`` bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = {f"lib/{abi}/{name}": data for name, data in libraries.items()} | dict(
        other_files or {}
    )
    if manifest:
        files = {"AndroidManifest.xml": (MANIFESTS / f"{manifest}.bin").read_bytes(), **files}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            if stored and name.endswith(".so"):
                info.compress_type = zipfile.ZIP_STORED
                start = (archive.fp.tell() if archive.fp else 0) + 30 + len(name) + 4
                info.extra = struct.pack("<HH", PADDING, -start % align) + bytes(-start % align)
            archive.writestr(info, data)
    return path
