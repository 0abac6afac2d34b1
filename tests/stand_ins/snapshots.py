"""Texts that are compared with files, as a reader would see them.

WRITE_SNAPSHOTS=1 writes the files anew; look at the difference before it is committed.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from provisioning.errors import QnnCiError


def check_snapshot(path: Path, text: str) -> None:
    """Compare a text with the file at ``path``."""
    if os.environ.get("WRITE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    changed = difflib.unified_diff(expected.splitlines(), text.splitlines(), lineterm="", n=1)
    assert text == expected, "\n".join(changed)


def try_call(call: Callable[[], object]) -> str:
    """Return what a call returns or, if it is refused, the error with its exit code."""
    try:
        return str(call())
    except QnnCiError as error:
        return f"{type(error).__name__} {error.exit_code:d} {error}"


def check_results(
    path: Path, calls: Mapping[str, Callable[[], object]], place: Path, omitted: str = ""
) -> None:
    """Compare the results of some calls, whose files are in ``place``, with a snapshot. ``omitted``
    is a text that many of them have, of which the snapshot has [...]."""
    text = "".join(f"{name}\n  {try_call(call)}\n" for name, call in calls.items())
    text = text.replace(str(place), "PLACE").replace("w" * 5000, "www")
    check_snapshot(path, text.replace(omitted, " [...]") if omitted else text)
