"""A copy of the sources that a build may write into, so that the user's checkout stays clean.

Some projects write into their own source tree while they build (flatcc does), so each target
has a tree of its own and two targets can build side by side.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from ci.build.inputs import InputEntry, Snapshot
from provisioning.store.store import explain_errors


def sync_overlay(source: Path, overlay: Path, wanted: Snapshot, record: Path) -> int:
    """Make ``overlay`` hold the files of ``wanted``, as ``source`` has them; count the changes.

    A file whose bytes are as ``record`` says keeps its time, so that ninja rebuilds only what
    changed. Files that a build added are left. ``record`` never promises a file that is not
    yet there: an interrupted sync is taken up again. Raises StoreError when the disk is full.
    """
    present = _read_record(record)
    stale = [path for path, entry in wanted.items() if not _is_same(present.get(path), entry)]
    gone = present.keys() - wanted.keys()
    if not stale and not gone:
        return 0
    kept = {path: present[path] for path in wanted if path in present and path not in set(stale)}
    with explain_errors(overlay):
        overlay.mkdir(parents=True, exist_ok=True)
        record.write_bytes(msgspec.json.encode(kept))
        for path in gone:
            (overlay / path).unlink(missing_ok=True)
        for path in stale:
            _copy(source / path, overlay / path)
        record.write_bytes(msgspec.json.encode(wanted))
    return len(stale) + len(gone)


def _is_same(before: InputEntry | None, now: InputEntry) -> bool:
    return before is not None and (before.sha256, before.mode) == (now.sha256, now.mode)


def _read_record(record: Path) -> Snapshot:
    try:
        return msgspec.json.decode(record.read_bytes(), type=Snapshot)
    except (OSError, msgspec.DecodeError):
        return {}


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.exists():
        target.unlink()
    shutil.copy(source, target, follow_symlinks=False)  # its time is now: newer than old objects
