"""The partial file of a download: its bytes, running hash and HTTP validator."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from provisioning.documents import DocumentError, decode_json
from provisioning.fetch.transfer import redact_url, usable_validator
from provisioning.files import hash_stream, open_own

PAGE_SHOWN = 160
MAX_RECORD_BYTES = 4096


def open_part(path: Path) -> int:
    """Open a part file, and return its descriptor. If it belongs to another user of a shared store,
    it is replaced.
    """
    try:
        return open_own(path)
    except PermissionError:
        path.unlink()
        return open_own(path)


class PartFile:
    """The bytes downloaded from one URL so far, with their running hash and their validator."""

    def __init__(self, target: Path, url: str) -> None:
        suffix = hashlib.sha256(redact_url(url).encode()).hexdigest()[
            :8
        ]  # a signed URL has a new query each time
        self.path = target.with_name(f".{target.name}.{suffix}.part")
        self.record = self.path.with_suffix(".json")
        self.digest = hashlib.sha256()
        self.size = 0
        self.restarts = 0
        self.validator = ""
        self.was_resumed = False
        self.fd = open_part(self.path)
        self._read_back()

    def _read_back(self) -> None:
        try:
            with open(open_part(self.record), "rb") as file:
                validator = decode_json(file.read(MAX_RECORD_BYTES), dict[str, str])["validator"]
        except (OSError, DocumentError, KeyError):
            validator = ""
        self.validator = usable_validator(validator)
        if not self.validator:
            self.restart()
            return
        with open(self.fd, "rb", buffering=0, closefd=False) as file:
            hash_stream(file, self.digest)
            self.size = file.tell()
        self.was_resumed = self.size > 0

    def restart(self, validator: str = "") -> None:
        """Remove the bytes downloaded so far, and record the validator of the bytes that follow."""
        self.restarts += self.size > 0
        self.was_resumed = False
        if os.fstat(self.fd).st_size:  # ext4 flushes a file on close if it was ever truncated
            os.ftruncate(self.fd, 0)
        self.digest = hashlib.sha256()
        self.size = 0
        self.validator = validator
        with open(open_part(self.record), "wb") as file:
            file.truncate()
            file.write(json.dumps({"validator": validator}).encode())

    def append(self, data: bytes) -> None:
        """Write and hash the next bytes. Raises OSError."""
        view = memoryview(data)
        at = self.size
        while view:
            count = os.pwrite(self.fd, view, at)
            view, at = view[count:], at + count
        self.digest.update(data)
        self.size = at

    def start_of(self) -> str:
        """Return the text at the start of the file, to show in a message."""
        text = os.pread(self.fd, PAGE_SHOWN, 0).decode("utf-8", "replace")
        # Control characters could change the user's terminal.
        unprintable = {ord(char): " " for char in text if not char.isprintable()}
        return " ".join(text.translate(unprintable).split())

    def discard(self) -> None:
        """Remove the file and its record."""
        self.path.unlink(missing_ok=True)
        self.record.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)
