"""One artifact put in place, as `fetch` does it for several."""

from __future__ import annotations

from provisioning.artifacts.provision import Provisioned, provision_artifacts
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.progress import Progress
from provisioning.store.store import Store


def provision_one(
    request: ArtifactRequest, store: Store, progress: Progress, *, verify: bool = False
) -> Provisioned:
    (artifact,) = provision_artifacts([request], store, progress, verify=verify)
    return artifact
