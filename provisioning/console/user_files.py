"""Read a user's file as a whole; refuse devices, pipes and files above a size limit."""

from __future__ import annotations

import stat
from pathlib import Path

from provisioning.errors import UsageError

LIMIT_BYTES = 2 << 30
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_user_file(
    path: Path, what: str, limit_bytes: int = LIMIT_BYTES, *, smaller: str = ""
) -> bytes:
    """Return the bytes of a file, read only once, so that all checks see the same content.

    Raises UsageError if the file cannot be read, is not a regular file, or is longer than
    ``limit_bytes``. The error calls the file ``what``; ``smaller`` is its fix for a file that is
    too long.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = KINDS[stat.S_IFMT(status.st_mode)]
            raise UsageError(
                f"cannot read {what} {path}", why=f"it is {kind}", fix="use a regular file"
            )
        if status.st_size > limit_bytes:
            why = f"it is {status.st_size} bytes long; the limit is {limit_bytes}"
            raise UsageError(f"{what} {path} is too large", why=why, fix=smaller)
        return path.read_bytes()
    except OSError as error:
        why = error.strerror or str(error)
        raise UsageError(f"cannot read {what} {path}", why=why) from error
