"""What a built image may not contain."""

from __future__ import annotations

import json
import os
import socket
import tarfile
from collections.abc import Iterable
from pathlib import Path

from docker.client import DockerClient

from ci.images.definition import LABEL
from ci.images.engine import save_image
from ci.packages.pip_settings import read_settings


def describe_machine() -> set[str]:
    """What would give the build machine away: its name, its proxies, where pip looks."""
    places = ("index-url", "extra-index-url", "find-links", "proxy")
    values = [text for option, text in read_settings(os.environ).items() if option in places]
    values += [text for name, text in os.environ.items() if name.lower().endswith("_proxy")]
    words = [word for value in values for word in value.split()]
    return {word for word in (*words, socket.gethostname()) if len(word) > 4}


def find_leaks(
    engine: DockerClient, name: str, words: Iterable[str], folder: Path
) -> list[tuple[str, str]]:
    """The files of an image's layers above its base that contain one of the words, each with the
    word. The image is saved to ``folder`` for it."""
    image = engine.images.get(name)
    base = engine.images.get(image.labels[f"{LABEL}.base"]).attrs["RootFS"]["Layers"]
    leaks = []
    saved = folder / "image.tar"
    save_image(engine, name, saved)
    with tarfile.open(saved) as image_archive:
        (manifest,) = json.load(image_archive.extractfile("manifest.json"))
        for path in manifest["Layers"][len(base) :]:
            with tarfile.open(fileobj=image_archive.extractfile(path)) as layer:
                for member in layer:
                    body = layer.extractfile(member) if member.isreg() else None
                    data = body.read() if body else b""
                    leaks += [(member.name, word) for word in words if word.encode() in data]
    saved.unlink()
    return leaks
