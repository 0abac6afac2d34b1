"""Push an image, unless it contains something that must not be published."""

from __future__ import annotations

import re
from pathlib import Path

from docker.client import DockerClient

from ci.images.build import TOOLCHAINS_LABEL, Built
from ci.images.normalize import read_layers
from provisioning.console.progress import Progress
from provisioning.errors import ToolError, UsageError

SHOWN = 10
REFERENCE = re.compile(r"[a-z0-9][\w.:/-]*[a-zA-Z0-9]")

# A file that a later layer deletes is still in the layer below, so all layers are searched.
WHITEOUT = ".wh."
FORBIDDEN = {
    "part of a vendor's toolchain": re.compile(
        r"(^|/)lib(Qnn|Genie|Snpe|SNPE|Lpai)[^/]*\.(so|a)(\.|$)"
        r"|(^|/)(android-ndk-r|Hexagon_SDK|HEXAGON_Tools|qairt/)"
        r"|(^|/)hexagon-clang"
    ),
    "a file that can hold a credential": re.compile(
        r"(^|/)(pip\.conf|\.netrc|\.pypirc|\.git-credentials|\.npmrc)$"
        r"|(^|/)\.docker/config\.json$|(^|/)\.ssh/|(^|/)\.config/pip/"
        r"|(^|/)etc/apt/auth\.conf(\.d/.+)?$|^run/secrets/"
    ),
}


def push_image(client: DockerClient, built: Built, reference: str, progress: Progress) -> str:
    """Tag ``built`` as ``reference``, push it, and return the digest that the registry reports.

    Raises UsageError if ``reference`` is invalid or the image contains something that must not be
    published, and ToolError if the registry refuses the image.
    """
    labels = client.images.get(built.image_id).labels
    if TOOLCHAINS_LABEL in labels:
        raise UsageError(
            f"{built.reference} is not pushed",
            why="the image contains toolchains whose licences do not allow publication: "
            f"{labels[TOOLCHAINS_LABEL]}",
            fix="build the image without --with-toolchains, and provision the toolchains on the "
            "machine that runs it",
        )
    if not REFERENCE.fullmatch(reference):
        raise UsageError(f"cannot push to {reference!r}", fix="pass REGISTRY/NAME:TAG")
    if found := find_forbidden(client, built.image_id):
        raise UsageError(
            f"{built.reference} is not pushed",
            why="\n".join(found[:SHOWN]),
            fix="these files come from the base or were added by hand: use a base without them",
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


def find_forbidden(client: DockerClient, image_id: str) -> list[str]:
    """Return ``layer N: PATH is WHAT`` for each file in any layer that must not be published."""
    return [
        f"layer {index}: {member.name} is {what}"
        for index, layer in enumerate(read_layers(client, image_id))
        for member in layer
        for what, pattern in FORBIDDEN.items()
        if not (member.isdir() or Path(member.name).name.startswith(WHITEOUT))
        and pattern.search(member.name.removeprefix("./"))
    ]
