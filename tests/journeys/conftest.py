"""Where journeys start."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.device.conftest import board  # noqa: F401 - a fixture
from tests.journeys.traveller import Traveller, join_team, start


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "readers"


@pytest.fixture
def clone(shared: Path) -> Traveller:
    return start(shared)


@pytest.fixture
def team(shared: Path) -> Traveller:
    return join_team(shared)
