"""A file that others read while it is written: they see the old one or the new one, whole."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes | str) -> None:
    """Replace ``path`` by ``data`` (text as UTF-8) in one step, making its directory.

    What a symbolic link names, a pipe or a device is written to as it is. Raises OSError.
    """
    raw = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or (path.exists() and not path.is_file()):  # /dev/stdout is both
        path.write_bytes(raw)
        return
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(raw)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
