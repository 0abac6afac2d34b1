"""Facts of files that have not changed since they were read, in one file of the cache."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PosixPath
from typing import Any, NamedTuple

import msgspec

from provisioning.doctor.facts import FileFacts
from provisioning.files import digest_sources, write_whole

MAX_ROWS = 5000
_PROVISIONING = Path(__file__).parents[2]
READERS = (_PROVISIONING / "elf", _PROVISIONING / "doctor" / "facts.py")


class Identity(NamedTuple):
    """What changes with a file's bytes: a write alters ctime, which no call can set back."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )


class FactsCache:
    """Facts by path and identity. ``directory`` None keeps nothing.

    The file's name has a digest of the readers and of what they return.
    """

    def __init__(self, directory: Path | None) -> None:
        name = f"elf-facts-{digest_sources(*READERS)[:16]}.msgpack"
        self.file = directory / name if directory else None
        self.rows: dict[str, tuple[Identity, FileFacts]] = {}
        self.changed = False
        if self.file:
            with suppress(OSError, msgspec.DecodeError):
                self.rows = _DECODER.decode(self.file.read_bytes())

    def recall(self, path: Path, identity: Identity) -> FileFacts | None:
        """The facts of ``path``, if it is still what it was."""
        kept = self.rows.get(str(path))
        return kept[1] if kept and kept[0] == identity else None

    def keep(self, path: Path, identity: Identity, facts: FileFacts) -> None:
        self.rows[str(path)] = (identity, facts)
        self.changed = True

    def save(self) -> None:
        """Write what changed; other readers' files go. A cache that cannot be written is none."""
        if not (self.file and self.changed):
            return
        self.changed = False
        if len(self.rows) > MAX_ROWS:
            self.rows = {path: row for path, row in self.rows.items() if Path(path).exists()}
        with suppress(OSError, UnicodeEncodeError):
            write_whole(self.file, _ENCODER.encode(self.rows))
            for old in self.file.parent.glob("elf-facts-*.msgpack"):
                if old != self.file:
                    old.unlink()


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(type(value))


def _decode(kind: type, value: Any) -> Any:
    return Path(value) if issubclass(kind, Path | PosixPath) else value


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encode)
_DECODER = msgspec.msgpack.Decoder(dict[str, tuple[Identity, FileFacts]], dec_hook=_decode)
