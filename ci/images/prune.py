"""Find and remove outdated images, and containers and volumes that are no longer used."""

from __future__ import annotations

from dataclasses import dataclass

from docker.client import DockerClient
from docker.errors import APIError
from docker.models.images import Image

from ci.images.definition import LABEL, REPOSITORY, TOOLCHAINS


@dataclass(frozen=True)
class Stale:
    """An image, a container or a volume that this project created and that nothing uses now."""

    kind: str
    name: str
    size_bytes: int = 0


PODMAN_DOMAIN = "docker.io/"  # Podman's prefix for a name without a domain


def list_images(client: DockerClient) -> dict[str, Image]:
    """Return the images that have this project's label or name. Some of them have no tag. The keys
    are the images' ids.
    """
    labelled = client.images.list(filters={"label": f"{LABEL}.image"})
    return {str(one.id): one for one in [*labelled, *client.images.list(name=f"{REPOSITORY}/*")]}


def find_bases(client: DockerClient) -> set[str]:
    """Return the names of the base images on which this project's images were built."""
    named = (one.labels.get(f"{LABEL}.base", "") for one in list_images(client).values())
    return set(filter(None, named))


def find_stale(client: DockerClient, current: set[str]) -> list[Stale]:
    """Return this project's outdated images, its unused volumes, and the containers of shells that
    have ended or never started.

    An image is outdated if none of its references is in ``current``. An image with toolchains is
    outdated if the image that it extends is.
    """
    stale = []
    for image_id, image in list_images(client).items():
        tags = {tag.removeprefix(PODMAN_DOMAIN).removesuffix(TOOLCHAINS) for tag in image.tags}
        if not tags & current:
            stale.append(Stale("image", image_id, int(image.attrs["Size"])))
    label = {"label": f"{LABEL}.shell"}
    containers = client.containers.list(
        all=True, filters={**label, "status": ["created", "exited"]}, ignore_removed=True
    )
    stale += [Stale("container", str(one.id)) for one in containers]
    volumes = client.volumes.list(filters={**label, "dangling": True})
    return [*stale, *(Stale("volume", str(one.name)) for one in volumes)]


def remove_stale(client: DockerClient, stale: list[Stale]) -> list[Stale]:
    """Remove the objects in ``stale`` and return those that were removed. Objects that are now
    in use are kept.
    """
    left, gone = sorted(stale, key=lambda one: one.kind), []  # containers, images, volumes
    while went := [
        one for one in left if _remove(client, one)
    ]:  # a parent can only be removed after its children
        gone += went
        left = [one for one in left if one not in went]
    return gone


def _remove(client: DockerClient, one: Stale) -> bool:
    try:
        if one.kind == "image":
            client.images.remove(one.name, force=True)
        elif one.kind == "container":
            client.containers.get(one.name).remove()
        else:
            client.volumes.get(one.name).remove()
    except APIError:
        return False
    return True
