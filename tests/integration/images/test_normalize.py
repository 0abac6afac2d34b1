from __future__ import annotations

import time
from pathlib import Path

import pytest
from docker.client import DockerClient

from ci.images.build import follow_build
from ci.images.contents import save_image
from ci.images.digest import Comparison, describe_comparison, find_differences
from ci.images.normalize import normalize_image
from provisioning.console.progress import Progress
from provisioning.errors import StoreError, ToolError
from tests.integration.images.conftest import build, pack

STEP = "FROM {base}\nRUN mkdir /made && echo {text} > /made/file && touch /made/empty\n"


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


def build_twice(engine: DockerClient, base: str, texts: tuple[str, str]) -> list[str]:
    ids = []
    for text in texts:
        ids.append(build(engine, STEP.format(base=base, text=text), {}))
        time.sleep(1.1)  # file times are whole seconds
    return ids


def test_equal_contents_become_one_image(
    engine: DockerClient, busybox: str, tmp_path: Path
) -> None:
    raw = build_twice(engine, busybox, ("same", "same"))
    assert layers(engine, raw[0])[-1] != layers(engine, raw[1])[-1]
    first, second = (normalized(engine, one, busybox, tmp_path) for one in raw)
    assert first == second
    image = engine.images.get(first)
    assert layers(engine, first)[:-1] == layers(engine, busybox)
    assert image.labels["made.by"] == "a test"
    assert image.attrs["Created"].startswith("1970-01-02T00:00:00")
    assert image.attrs["Config"]["Entrypoint"] == ["/usr/local/bin/qnn-ci-entry"]
    output = engine.containers.run(first, ["cat", "/made/file"], entrypoint="", remove=True)
    assert output == b"same\n"


def test_a_layer_that_differs_is_named_with_its_paths(
    engine: DockerClient, busybox: str, tmp_path: Path
) -> None:
    raw = build_twice(engine, busybox, ("one", "other"))
    ids = tuple(normalized(engine, one, busybox, tmp_path) for one in raw)
    assert ids[0] != ids[1]
    found = find_differences(engine, ids[0], ids[1])
    assert found == {len(layers(engine, busybox)): ("made/file",)}
    compared = Comparison("tiny", (ids[0], ids[1]), 2, found)
    assert not compared.equal
    assert describe_comparison(compared)[0].startswith("tiny: two clean builds are NOT equal")
    assert "    made/file" in describe_comparison(compared)


def test_a_failing_step_is_shown_with_its_last_lines(engine: DockerClient, busybox: str) -> None:
    import io

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
        follow_build(events, "tiny", Progress())
    assert "2/2" in caught.value.what
    assert "RUN echo reason; false" in caught.value.what
    assert "reason" in caught.value.why


@pytest.mark.parametrize("words", ["Step 2/2 : RUN false", "STEP 2/2: RUN false"])
def test_the_failing_step_is_named_in_the_words_of_docker_and_podman(words: str) -> None:
    events = [{"stream": f"{words}\n"}, {"error": "exit status 1"}]
    with pytest.raises(ToolError) as caught:
        follow_build(events, "tiny", Progress())
    assert caught.value.what == f"image tiny was not built: {words}"


def test_a_full_disk_is_told_apart() -> None:
    events = [{"stream": "Step 1/1 : RUN dd\n"}, {"error": "write /x: no space left on device"}]
    with pytest.raises(StoreError) as caught:
        follow_build(events, "tiny", Progress())
    assert caught.value.exit_code == 4
