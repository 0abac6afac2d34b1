"""A user to whom the modes of files mean something: this one or, for root, another."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def unprivileged(place: Path) -> Iterator[None]:
    """Do without root's rights in the block. ``place``, a directory of the test, can be entered."""
    if os.geteuid() != 0:
        yield
        return
    open_folders(place)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def as_unprivileged(place: Path, *words: str | Path) -> list[str | Path]:
    """Return the command that runs ``words`` without root's rights."""
    if os.geteuid() != 0:
        return [*words]
    open_folders(place)
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words]


def open_folders(place: Path) -> None:
    temporary = Path(tempfile.gettempdir())
    for folder in (place, *place.parents):
        if {temporary, Path("/tmp")} & {*folder.parents} and folder.is_dir():
            folder.chmod(folder.stat().st_mode | 0o555)
