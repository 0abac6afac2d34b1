"""Sizes of files and of memory as text, in one unit rule: multiples of 1024."""

from __future__ import annotations


def show_size(size_bytes: float) -> str:
    """Return bytes with about three digits, such as ``812 B``, ``94.2 KiB``, ``128 KiB`` or ``3.10
    MiB``."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.{0 if unit == 'B' or size >= 100 else 1 if size >= 10 else 2}f} {unit}"
