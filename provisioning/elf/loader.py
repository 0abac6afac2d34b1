"""Find libraries as the dynamic loader of this machine does."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from provisioning.documents import read_bytes

LOADER_CACHE = Path("/etc/ld.so.cache")
DEFAULT_DIRECTORIES = (
    "/lib/{machine}-linux-gnu",
    "/usr/lib/{machine}-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)


def find_libraries(names: Iterable[str]) -> dict[str, str | None]:
    """Map each library name to the path where the loader finds it without LD_LIBRARY_PATH, None if
    it does not.

    Searches the loader's cache, a file with the names and paths of libraries, and then its default
    directories.
    """
    if not (sorted_names := sorted(names)):
        return {}
    cached: dict[str, str] = {}
    # The paths are searched for in its bytes: `ldconfig -p` is not in every user's PATH.
    with suppress(OSError):
        for text in re.findall(rb"/[\x21-\x7e]+", read_bytes(LOADER_CACHE)):
            path = text.decode()
            cached.setdefault(path.rpartition("/")[2], path)
    # A container may have no cache, and musl's loader has none.
    directories = [form.format(machine=platform.machine()) for form in DEFAULT_DIRECTORIES]
    paths: dict[str, str | None] = {}
    for name in sorted_names:
        candidates = [f"{directory}/{name}" for directory in directories]
        if name in cached:
            candidates.insert(0, cached[name])
        paths[name] = next((path for path in candidates if Path(path).exists()), None)
    return paths
