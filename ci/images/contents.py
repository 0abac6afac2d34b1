"""What must not be in an image that others can pull, looked for in its layers, not in its name."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ci.images.normalize import saved_layers

if TYPE_CHECKING:
    from docker.client import DockerClient

# A file that a later layer deletes is still in the layer below, so every layer counts.
WHITEOUT = ".wh."
FORBIDDEN = {
    "a vendor's toolchain": re.compile(
        r"(^|/)lib(Qnn|Genie|Snpe|SNPE|Lpai)[^/]*\.(so|a)(\.|$)"
        r"|(^|/)(android-ndk-r|Hexagon_SDK|HEXAGON_Tools|qairt/)"
        r"|(^|/)hexagon-clang"
    ),
    "a setting that can hold a credential": re.compile(
        r"(^|/)(pip\.conf|\.netrc|\.pypirc|\.git-credentials|\.npmrc)$"
        r"|(^|/)\.docker/config\.json$|(^|/)\.ssh/|(^|/)\.config/pip/"
        r"|(^|/)etc/apt/auth\.conf(\.d/.+)?$|^run/secrets/"
    ),
}


def find_forbidden(client: DockerClient, image_id: str) -> list[str]:
    """``layer N: PATH is WHAT`` for every file of any layer that must not be published."""
    with open_layers(client, image_id) as layers:
        return [
            f"layer {index}: {member.name} is {what}"
            for index, layer in enumerate(layers)
            for member in layer
            for what, pattern in FORBIDDEN.items()
            if not (member.isdir() or Path(member.name).name.startswith(WHITEOUT))
            and pattern.search(member.name.removeprefix("./"))
        ]


@contextmanager
def open_layers(client: DockerClient, image_id: str) -> Iterator[Iterator[tarfile.TarFile]]:
    """The layers of an image, the lowest first, each to be read in order."""
    with tempfile.TemporaryDirectory(prefix="qnn-ci-image-") as directory:
        saved = Path(directory) / "saved.tar"
        save_image(client, image_id, saved)
        yield saved_layers(saved)


def save_image(client: DockerClient, image_id: str, target: Path) -> None:
    """Write the image as the engine saves it."""
    with target.open("wb") as file:
        for chunk in client.images.get(image_id).save(named=False):
            file.write(chunk)
