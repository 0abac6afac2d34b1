"""What the tests of provisioning artifacts start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build.artifacts import Workspace, make_workspace
from tests.stand_ins import bad_server
from tests.stand_ins.bad_server import BadServer


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    return make_workspace(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def only_server() -> Iterator[BadServer]:
    with bad_server.running() as server:
        yield server


@pytest.fixture
def server(only_server: BadServer) -> BadServer:
    for record in (only_server.files, only_server.faults, only_server.requests):
        record.clear()
    return only_server
