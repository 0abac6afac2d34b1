"""What installed packages contain: the version of a package that was edited in place does not tell.

A wheel's installer writes RECORD, the hash and size of each file, after all of them. A file that
has the size in RECORD and was not modified later counts by that hash, any other by its content.
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

# C++ headers are for extensions that users compile; nothing imports a package's tests.
SKIPPED = frozenset({"__pycache__", "include", "test", "tests"})


def digest_packages(names: Iterable[str]) -> str:
    """Return the SHA-256 over Python's version and the files of packages, or of directories of
    them such as ``executorch/exir``, from where they would be imported.

    A package or directory that is missing counts as one without files. Raises OSError.
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
                digest = f"sha256={raw.decode().rstrip('=')}"  # as RECORD has it
            yield f"{path}\0{digest}\n"


def _read_record(package: str, parent: Path) -> tuple[dict[str, tuple[str, str]], int]:
    """Return hash and size by path, and when they were written, in ns; nothing if there is no
    RECORD next to the package, as in a checkout."""
    found = sorted(parent.glob(f"{package}-*.dist-info/RECORD"))
    if not found:
        return {}, 0
    rows = (line.rsplit(",", 2) for line in found[-1].read_text(encoding="utf-8").splitlines())
    recorded = {row[0]: (row[1], row[2]) for row in rows if len(row) == 3 and row[1]}
    return recorded, found[-1].stat().st_mtime_ns


def _walk(top: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the files below a directory; those that its links lead to count, too."""
    pending = [str(top)] if top.is_dir() else []
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if not entry.is_dir():
                    yield entry
                elif entry.name not in SKIPPED:
                    pending.append(entry.path)
