"""What must be refused, with a real engine and the tiny image."""

from __future__ import annotations

from pathlib import Path

import pytest
from docker.client import DockerClient

from ci.images.build import Built, push_image
from provisioning.console.progress import Progress
from provisioning.errors import ToolError, UsageError
from tests.integration.images.conftest import build

NOWHERE = "127.0.0.1:9/executorch-qnn-ci/tiny:test"


def test_what_a_layer_holds_is_not_pushed_though_a_later_one_deletes_it(
    engine: DockerClient, busybox: str
) -> None:
    """tests/unit/ci/images/test_verdicts_on_images.py has the names that are refused."""
    path = "opt/sdk/lib/libQnnHtp.so"
    text = f"FROM {busybox}\nRUN mkdir -p /{Path(path).parent} && touch /{path}\nRUN rm /{path}\n"
    image_id = build(engine, text, {})
    with pytest.raises(UsageError) as caught:
        push_image(engine, Built("tiny:1", image_id, 0, fresh=True), NOWHERE, Progress())
    assert caught.value.why == f"layer 1: {path} is part of a vendor's toolchain"
    engine.images.remove(image_id, force=True, noprune=True)


def test_one_without_is_offered_to_the_registry(engine: DockerClient, busybox: str) -> None:
    with pytest.raises(ToolError, match="was not pushed"):
        push_image(engine, Built("tiny:1", busybox, 0, fresh=True), NOWHERE, Progress())
