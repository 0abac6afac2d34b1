"""Where journeys start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documented.place import share_folder
from tests.integration.device.conftest import board  # noqa: F401 - a fixture
from tests.journeys.traveller import Traveller, join_team, start


@pytest.fixture(scope="session")
def shared() -> Iterator[Path]:
    with share_folder() as folder:
        yield folder


@pytest.fixture
def clone(shared: Path) -> Traveller:
    return start(shared)


@pytest.fixture
def team(shared: Path) -> Traveller:
    return join_team(shared)
