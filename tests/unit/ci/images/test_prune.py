"""What is stale, by the names that engines give: Podman puts a domain before them."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
from docker.client import DockerClient

from ci.images.prune import find_stale


@pytest.mark.parametrize(
    ("tag", "stale"),
    [
        ("executorch-qnn-ci/emulator:1", False),
        ("docker.io/executorch-qnn-ci/emulator:1", False),
        ("docker.io/executorch-qnn-ci/emulator:2", True),
        ("executorch-qnn-ci/emulator:2", True),
    ],
)
def test_today_s_image_is_not_stale_under_either_name(tag: str, stale: bool) -> None:
    client = create_autospec(DockerClient, instance=True)
    image = SimpleNamespace(tags=[tag], id="sha256:1", attrs={"Size": 1})
    client.images.list.return_value = [image]
    client.containers.list.return_value = client.volumes.list.return_value = []
    found = find_stale(client, {"executorch-qnn-ci/emulator:1"})
    assert [one.name for one in found] == (["sha256:1"] if stale else [])
