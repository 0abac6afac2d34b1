"""Texts that are compared with files, as a reader would see them.

WRITE_SNAPSHOTS=1 writes the files anew; look at the difference before it is committed.
"""

from __future__ import annotations

import os
from pathlib import Path


def check_snapshot(path: Path, text: str) -> None:
    """Compare a text with the file at ``path``."""
    if os.environ.get("WRITE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
