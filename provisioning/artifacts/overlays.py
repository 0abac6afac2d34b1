"""Overlays that ``build aot`` made: an installed executorch with our own adaptor."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from provisioning.files import write_whole
from provisioning.store.store import store_home
from provisioning.store.tree import encode_record
from provisioning.versions import is_same

RECORD = "overlay.json"
# The QNN backend of ExecuTorch's Python runtime: until 1.4, and from 1.5 on.
BACKENDS = (
    "executorch/backends/qualcomm/libqnn_executorch_backend.so",
    "executorch/lib/libexecutorch_backend_qnn.so",
)


class OverlayRecord(msgspec.Struct, frozen=True):
    """overlay.json: the checkout's version, the SDK whose headers it was built with, its Python."""

    executorch: str
    sdk: str
    python: str


def python_tag() -> str:
    """``cpython-311``: what adaptors for the running Python are named after."""
    return f"cpython-{sys.version_info.major}{sys.version_info.minor}"


def write_overlay(overlay: Path, record: OverlayRecord) -> None:
    """Say in an overlay what it was built from."""
    write_whole(overlay / RECORD, encode_record(record))


def read_overlay(overlay: Path) -> OverlayRecord | None:
    """What an overlay was built from; None where it does not tell."""
    try:
        return msgspec.json.decode((overlay / RECORD).read_bytes(), type=OverlayRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def find_backends(overlay: Path) -> list[Path]:
    """Return an overlay's own QNN backends for Python's runtime, not the wheel's."""
    places = [overlay / place for place in BACKENDS]
    real = overlay.resolve()
    return [path for path in places if path.is_file() and path.resolve().is_relative_to(real)]


def find_overlays(sdk: str) -> list[tuple[Path, OverlayRecord]]:
    """The overlays below ``builds/`` for a QNN SDK and the running Python, the newest first."""
    found = [
        (path, record)
        for path in store_home().glob("builds/aot-*/overlay")
        if (record := read_overlay(path))
        and record.python == python_tag()
        and is_same(record.sdk, sdk)
    ]
    return sorted(found, key=lambda pair: pair[0].stat().st_mtime_ns, reverse=True)
