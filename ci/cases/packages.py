"""Hashes the content of installed packages, because a version does not change with local edits.

A wheel's installer writes RECORD last, with the hash and size of each file. If a file still has
that size and was not modified after RECORD, the hash in RECORD is used, else the file is hashed.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from provisioning.files import hash_file

# Only user extensions compile against C++ headers, and nothing imports a package's tests.
SKIPPED = frozenset({"__pycache__", "include", "test", "tests"})


def digest_packages(names: Iterable[str]) -> str:
    """Return the SHA-256 of Python's version and of the files of some importable packages or
    directories, such as ``executorch/exir``.

    A missing package or directory is treated as empty. Raises OSError.
    """
    parts = [name.partition("/")[::2] for name in names]
    grouped = groupby(sorted(parts), key=itemgetter(0))
    rows = [row for package, group in grouped for row in _describe(package, [p for _, p in group])]
    return hashlib.sha256("".join([sys.version, *sorted(rows)]).encode()).hexdigest()


def _describe(package: str, parts: Iterable[str]) -> Iterator[str]:
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations if spec else None) or ():
        parent = Path(place).parent
        recorded, written_ns = _read_record(package, parent)
        for entry in (entry for part in parts for entry in _walk(Path(place, part))):
            path, state = entry.path[len(str(parent)) + 1 :], entry.stat()
            digest, size = recorded.get(path, ("", ""))
            if size != str(state.st_size) or state.st_mtime_ns > written_ns:
                raw = base64.urlsafe_b64encode(bytes.fromhex(hash_file(Path(entry.path))))
                digest = f"sha256={raw.decode().rstrip('=')}"  # as in RECORD
            yield f"{path}\0{digest}\n"


def _read_record(package: str, parent: Path) -> tuple[dict[str, tuple[str, str]], int]:
    """Return hash and size by path, and the modification time of RECORD in ns. Both are empty
    without a RECORD next to the package, as in a checkout."""
    found = sorted(parent.glob(f"{package}-*.dist-info/RECORD"))
    if not found:
        return {}, 0
    rows = (line.rsplit(",", 2) for line in found[-1].read_text(encoding="utf-8").splitlines())
    recorded = {row[0]: (row[1], row[2]) for row in rows if len(row) == 3 and row[1]}
    return recorded, found[-1].stat().st_mtime_ns


def _walk(top: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a directory. Symbolic links are followed."""
    pending = [str(top)] if top.is_dir() else []
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if not entry.is_dir():
                    yield entry
                elif entry.name not in SKIPPED:
                    pending.append(entry.path)
