"""Read a user's file as a whole; refuse devices, pipes and files above a size limit."""

from __future__ import annotations

from pathlib import Path

from provisioning.documents import CONTENT_BYTES, read_bytes
from provisioning.errors import UsageError

LIMIT_BYTES = CONTENT_BYTES


def read_user_file(
    path: Path, what: str, limit_bytes: int = LIMIT_BYTES, *, smaller: str = ""
) -> bytes:
    """Return the bytes of a file, read only once, so that all checks see the same content.

    Raises UsageError if the file cannot be read, is not a regular file, or is longer than
    ``limit_bytes``. The error calls the file ``what``; ``smaller`` is its fix for a file that is
    too long.
    """
    try:
        return read_bytes(path, limit_bytes)
    except OSError as error:
        why = error.strerror or str(error)
        fix = {"it is longer": smaller, "it is a": "use a regular file"}
        told = next((fix for start, fix in fix.items() if why.startswith(start)), "")
        raise UsageError(f"cannot read {what} {path}", why=why, fix=told) from error
