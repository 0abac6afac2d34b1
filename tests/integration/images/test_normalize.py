"""Two builds of equal contents are one image: with a real engine and the tiny image."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from docker.client import DockerClient

from ci.images.build import follow_build
from ci.images.engine import normalize_image, save_image
from provisioning.console.progress import Progress
from provisioning.errors import ToolError
from tests.integration.images.conftest import build, pack

STEP = (
    "FROM {base}\n"
    "RUN mkdir /made && echo same > /made/file && touch -d @{time_s} /made/file /made/empty\n"
)


def normalized(engine: DockerClient, image_id: str, base: str, directory: Path) -> str:
    saved, target = directory / "saved.tar", directory / "image.tar"
    save_image(engine, image_id, saved)
    keep = len(engine.images.get(base).attrs["RootFS"]["Layers"])
    normalize_image(saved, target, keep_layers=keep, time_s=86400, labels={"made.by": "a test"})
    with target.open("rb") as file:
        (image,) = engine.images.load(file)
    return str(image.id)


def layers(engine: DockerClient, image_id: str) -> list[str]:
    return list(engine.images.get(image_id).attrs["RootFS"]["Layers"])


def test_images_with_equal_contents_are_normalized_to_one_digest(
    engine: DockerClient, busybox: str, tmp_path: Path
) -> None:
    steps = [STEP.format(base=busybox, time_s=time_s) for time_s in (86400, 86401)]
    raw = [build(engine, step, {}) for step in steps]
    assert layers(engine, raw[0])[-1] != layers(engine, raw[1])[-1]
    first, second = (normalized(engine, image_id, busybox, tmp_path) for image_id in raw)
    assert first == second
    image = engine.images.get(first)
    assert layers(engine, first)[:-1] == layers(engine, busybox)
    assert image.labels["made.by"] == "a test"
    assert image.attrs["Created"].startswith("1970-01-02T00:00:00")
    assert image.attrs["Config"]["Entrypoint"] == ["/usr/local/bin/qnn-ci-entry"]
    output = engine.containers.run(first, ["cat", "/made/file"], entrypoint="", remove=True)
    assert output == b"same\n"


def test_a_failing_step_is_shown_with_its_last_lines(engine: DockerClient, busybox: str) -> None:
    text = f"FROM {busybox}\nRUN echo reason; false\n"
    events = engine.api.build(
        fileobj=io.BytesIO(pack({"Dockerfile": text.encode()})),
        custom_context=True,
        nocache=True,
        rm=True,
        forcerm=True,
        decode=True,
    )
    with pytest.raises(ToolError) as caught:
        follow_build(events, "tiny", busybox, Progress())
    assert "2/2" in caught.value.what
    assert "RUN echo reason; false" in caught.value.what
    assert "reason" in caught.value.why
