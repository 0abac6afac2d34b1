"""One set of fit environments a worker; each test gets it whole and leaves it so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from provisioning.doctor.survey import host
from provisioning.elf.loader import find_libraries
from tests.stand_ins.environments import World, make_environments


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_environments(tmp_path_factory.mktemp("environments"))


@pytest.fixture(autouse=True)
def libatomic(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with libatomic.so.1: without it, each of these environments has one fault more."""

    def find(names: Iterable[str]) -> dict[str, str | None]:
        libraries = find_libraries(requested := set(names))
        return libraries | {name: f"/lib/{name}" for name in requested & {"libatomic.so.1"}}

    monkeypatch.setattr(host, "find_libraries", find)


@pytest.fixture
def world(environments: World) -> Iterator[World]:
    yield environments
    environments.restore()
