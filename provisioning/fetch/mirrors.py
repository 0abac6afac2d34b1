"""The user's mirror: a directory, a URL, or a template of one."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from provisioning.errors import UnfitError

FILENAME, SHA256 = "{filename}", "{sha256}"


def mirror_urls(filename: str, sha256: str = "") -> list[str]:
    """Where QNN_CI_MIRROR would have a file; empty when it is not set, or names files by a hash
    that is not known.

    It is a directory, a URL (whose query stays at the end), or a template with ``{filename}`` or
    ``{sha256}``. Raises UnfitError for one that is none of these.
    """
    base = os.environ.get("QNN_CI_MIRROR", "")
    if not base:
        return []
    name = quote(filename)
    try:
        if "://" not in base:
            base = Path(base).expanduser().absolute().as_uri()
            base = base.replace("%7B", "{").replace("%7D", "}")
        if SHA256 in base and not sha256:
            return []
        if FILENAME in base or SHA256 in base:
            return [base.replace(FILENAME, name).replace(SHA256, sha256)]
        parts = urlsplit(base)
    except (RuntimeError, ValueError) as error:
        fix = "set it to a directory or a URL that `fetch --to` made, or unset it"
        raise UnfitError(
            "QNN_CI_MIRROR names no directory and no URL", why=str(error), fix=fix
        ) from error
    return [urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))]
