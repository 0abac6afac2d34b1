"""Push an image, unless it holds what may not be published."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ci.images.build import Built
from ci.images.contents import find_forbidden
from ci.images.definition import LABEL
from provisioning.console.progress import Progress
from provisioning.errors import ToolError, UsageError

if TYPE_CHECKING:
    from docker.client import DockerClient

TOOLCHAINS_LABEL = f"{LABEL}.toolchains"
SHOWN = 10
REFERENCE = re.compile(r"[a-z0-9][\w.:/-]*[a-zA-Z0-9]")


def push_image(client: DockerClient, built: Built, reference: str, progress: Progress) -> str:
    """Tag ``built`` as ``reference``, push it, and give the digest that the registry answered.

    Raises UsageError for an image that holds what must not be published, ToolError when the
    registry refuses.
    """
    labels = client.images.get(built.image_id).labels
    if TOOLCHAINS_LABEL in labels:
        raise UsageError(
            f"{built.reference} is not pushed",
            why=f"it holds {labels[TOOLCHAINS_LABEL]}, whose licence forbids it",
            fix="build it without --with-toolchains, and provision where it runs",
        )
    if not REFERENCE.fullmatch(reference):
        raise UsageError(f"{reference!r} is not an image reference", fix="REGISTRY/NAME:TAG")
    if found := find_forbidden(client, built.image_id):
        raise UsageError(
            f"{built.reference} is not pushed",
            why="\n".join(found[:SHOWN]),
            fix="its base holds them, or something was added by hand: use a base without",
        )
    head, _, tail = reference.rpartition(":")
    repository, tag = (
        (head, tail)
        if head and "/" not in tail
        else (reference, built.reference.rpartition(":")[2])
    )
    client.api.tag(built.image_id, repository, tag)
    progress.step(f"pushing {repository}:{tag}")
    digest = ""
    for event in client.images.push(repository, tag=tag, stream=True, decode=True):
        if "error" in event:
            raise ToolError(f"{repository}:{tag} was not pushed", why=str(event["error"]))
        digest = str((event.get("aux") or {}).get("Digest", digest))
    return digest
