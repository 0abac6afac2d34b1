"""The images as they are built: named by QNN_CI_TEST_IMAGES, since a build takes minutes.

For example: ``QNN_CI_TEST_IMAGES="executorch-qnn-ci/emulator:latest"``.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from docker.client import DockerClient

from ci.images.definition import LABEL
from ci.images.engine import save_image

NAMES = os.environ.get("QNN_CI_TEST_IMAGES", "").split()
pytestmark = pytest.mark.skipif(not NAMES, reason="QNN_CI_TEST_IMAGES names no image")


def describe_machine() -> set[bytes]:
    """What would give the build machine away: its name, its proxies, where pip looks."""
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    rows = [line.partition("=") for line in shown.stdout.splitlines()]
    values = [value for key, _, value in rows if key.endswith(("index-url", "find-links", "proxy"))]
    values += [text for name, text in os.environ.items() if name.lower().endswith("_proxy")]
    words = [word for value in values for word in value.strip("'").split()]
    return {word.encode() for word in (*words, socket.gethostname()) if len(word) > 4}


@pytest.mark.parametrize("name", NAMES)
def test_no_file_of_our_layers_names_the_build_machine(
    engine: DockerClient, name: str, tmp_path: Path
) -> None:
    image = engine.images.get(name)
    base = engine.images.get(image.labels[f"{LABEL}.base"]).attrs["RootFS"]["Layers"]
    words = describe_machine()
    leaks = []
    save_image(engine, name, tmp_path / "image.tar")
    with tarfile.open(tmp_path / "image.tar") as saved:
        (manifest,) = json.load(saved.extractfile("manifest.json"))
        for path in manifest["Layers"][len(base) :]:
            with tarfile.open(fileobj=saved.extractfile(path)) as layer:
                for member in layer:
                    body = layer.extractfile(member) if member.isreg() else None
                    data = body.read() if body else b""
                    leaks += [(member.name, word) for word in words if word in data]
    assert leaks == []
