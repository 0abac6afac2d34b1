"""``image build`` on its size budget: the engine is not asked, the verdict is."""

from __future__ import annotations

import argparse
from unittest.mock import create_autospec

import pytest
from docker.client import DockerClient

from ci.images.build import Built
from ci.images.definition import Base, ImagePlan, find_checkout, find_image
from ci.verbs import image as verb
from provisioning.console.progress import Progress


@pytest.mark.parametrize(
    ("beyond_bytes", "toolchains", "code"), [(0, False, 0), (1_000_000, False, 1), (10**9, True, 0)]
)
def test_an_image_beyond_its_budget_fails(
    monkeypatch: pytest.MonkeyPatch, beyond_bytes: int, toolchains: bool, code: int
) -> None:
    image = find_image("emulator")
    built = Built("emulator:1", "sha256:1", image.budget_mb * 1_000_000 + beyond_bytes, fresh=True)
    plan = ImagePlan("emulator", image, "b", Base("b", "3.12"), "sha256:2", find_checkout())
    monkeypatch.setattr(verb, "build_image", lambda *_, **__: built)
    monkeypatch.setattr(verb, "plan_image", lambda *_, **__: plan)
    monkeypatch.setattr(verb, "bake_toolchains", lambda *_, **__: built)
    args = argparse.Namespace(
        action="build", words=[], base="", with_toolchains=toolchains, push=None
    )
    outcome = verb._build(create_autospec(DockerClient), args, Progress())
    assert outcome.exit_code == code
    assert ("over its budget" in outcome.text) is (beyond_bytes > 0)
