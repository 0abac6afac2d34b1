"""What of a profile may be kept in a CI system's cache, and under what name.

A cache holds only what the project's own pins prove: trees of which every file is locked, else
the file that is fetched. So what comes out of a cache is hashed before it is used, whoever wrote
it. A cache that others can read holds only what its licence lets others have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.artifacts.provision import with_lock
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.store.store import Store


@dataclass(frozen=True)
class CachePlan:
    """``key`` names the content of ``paths``; ``left_out`` says of other artifacts why."""

    key: str
    paths: tuple[Path, ...]
    left_out: Mapping[str, str]


def plan_cache(requests: Iterable[ArtifactRequest], store: Store, *, private: bool) -> CachePlan:
    """What a cache may hold of artifacts; ``private``: none but their licensees read it.

    Raises IntegrityError and ManifestError for a damaged lock.
    """
    kept: dict[str, Path] = {}
    left_out: dict[str, str] = {}
    for request in (with_lock(one, store) for one in requests):
        licence = request.toolchain.licence
        if not (licence.redistribute or private):
            left_out[request.name] = f"its licence lets nobody pass it on: {licence.name}"
        elif path := _find_provable(request, store):
            kept[request.key().directory] = path
        else:
            left_out[request.name] = "no pinned hash of its files proves what a cache gives back"
    parts = [[name, path.parent.name, path.name] for name, path in sorted(kept.items())]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return CachePlan(f"qnn-ci-{digest}", tuple(sorted(kept.values())), left_out)


def _find_provable(request: ArtifactRequest, store: Store) -> Path | None:
    """The published tree where its files are locked, else the pinned download."""
    if request.lock and request.lock.files:
        return store.trees / request.key().directory
    if request.download and request.release.pin:
        return store.downloads / request.download
    return None
