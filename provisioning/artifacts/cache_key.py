"""``cache key``: print the key and the paths of a CI system's cache for artifacts or profiles.

A cache contains only files that the project's pins can verify: an artifact's tree if all of its
files are locked, else the downloaded file. So whatever a cache returns is hashed before it is used,
no matter who wrote it. A cache that others can read contains only artifacts with a licence that
allows redistribution.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from provisioning.artifacts.environment import github_line, parse_selection
from provisioning.artifacts.sources import ArtifactRequest, Options
from provisioning.console.command import Outcome
from provisioning.console.progress import Progress
from provisioning.store.store import Store


def print_key(names: Sequence[str], progress: Progress, *, private: bool, github: bool) -> Outcome:
    """Return the ``paths`` to cache, the ``key`` that identifies their content, and ``left_out``,
    which maps each artifact that is not cached to the reason.
    """
    store = Store()
    cached_paths: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for selected in parse_selection(names, Options(offline=True)):
        request = selected.pinned(store)
        licence = request.toolchain.licence
        if not (licence.redistribute or private):
            left_out[request.name] = f"its licence does not allow redistribution: {licence.name}"
        elif path := _find_provable(request, store):
            cached_paths[request.key().directory] = path
        else:
            left_out[request.name] = "no pinned hash could verify what the cache returns"
    for name, why in left_out.items():
        progress.step(f"{name} is not cached: {why}")
    # Without the home's path, so that jobs with different homes share a cache.
    parts = [[name, path.parent.name, path.name] for name, path in sorted(cached_paths.items())]
    key = f"qnn-ci-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"
    paths = [str(path) for path in sorted(cached_paths.values())]
    if github:
        lines = github_line("key", key) + github_line("paths", "\n".join(paths))
        return Outcome(lines, exact=True)
    text = "".join(f"{line}\n" for line in (key, *paths))
    return Outcome(text, {"key": key, "paths": paths, "left_out": left_out})


def _find_provable(request: ArtifactRequest, store: Store) -> Path | None:
    """Return the path to cache: the published directory if the artifact's files are locked, else
    the download if it is pinned, else None.
    """
    if request.lock and request.lock.files:
        # The tree rather than the download, which would have to be unpacked in every job.
        return store.trees / request.key().directory
    if request.download and request.release.pin:
        return store.downloads / request.download
    return None
