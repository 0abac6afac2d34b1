"""What may go: images of other inputs than today's, and containers and volumes that were left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.images.definition import LABEL, REPOSITORY

if TYPE_CHECKING:
    from docker.client import DockerClient


@dataclass(frozen=True)
class Stale:
    """Something of ours in the engine that nothing uses: an image, a container or a volume."""

    kind: str
    name: str
    size_bytes: int = 0


PODMAN_DOMAIN = "docker.io/"  # which it puts before a name without a domain


def find_stale(client: DockerClient, current: set[str]) -> list[Stale]:
    """Our images without a reference in ``current``, shells that never started, unused volumes."""
    stale = []
    for image in client.images.list(name=f"{REPOSITORY}/*"):
        tags = {tag.removeprefix(PODMAN_DOMAIN) for tag in image.tags}
        if not tags & current:
            stale.append(Stale("image", str(image.id), int(image.attrs["Size"])))
    label = {"label": f"{LABEL}.shell"}
    containers = client.containers.list(
        all=True, filters={**label, "status": ["created", "exited"]}, ignore_removed=True
    )
    stale += [Stale("container", str(one.id)) for one in containers]
    volumes = client.volumes.list(filters={**label, "dangling": True})
    return [*stale, *(Stale("volume", str(one.name)) for one in volumes)]


def remove_stale(client: DockerClient, stale: list[Stale]) -> list[Stale]:
    """Remove them and give those that went; what is in use meanwhile stays."""
    from docker.errors import APIError

    gone = []
    for one in sorted(stale, key=lambda row: row.kind):  # containers, then images, then volumes
        try:
            if one.kind == "image":
                client.images.remove(one.name, force=True)
            elif one.kind == "container":
                client.containers.get(one.name).remove()
            else:
                client.volumes.get(one.name).remove()
        except APIError:
            continue
        gone.append(one)
    return gone
