"""One set of fit environments a worker; each test gets it whole and leaves it so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stand_ins.environments import World, make_environments


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_environments(tmp_path_factory.mktemp("environments"))


@pytest.fixture
def world(environments: World) -> Iterator[World]:
    yield environments
    environments.restore()
