"""Tests whose result depends on when something happens: `./nox -s stress` runs them one after the
other, each with several seeds.

All other tests choose their instants. These let the machine choose them, so they can miss a fault,
but they fail only if there is one. Those of hostile and of long input measure the processor's time,
which other programs hardly change.
"""

from __future__ import annotations

import random

import pytest

from tests.integration.conftest import server, world
from tests.integration.device.conftest import (
    adb_server,
    board,
    connect,
    lab,
    local_lab,
    phone,
    phones,
    short_folder,
)

FIXTURES = (
    *(server, world),
    *(adb_server, board, connect, lab, local_lab, phone, phones, short_folder),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test once per seed."""
    if "dice" in metafunc.fixturenames:
        seeds = range(metafunc.config.getoption("--seeds"))
        metafunc.parametrize("dice", seeds, indirect=True, ids=[f"seed{seed}" for seed in seeds])


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """What a test takes its instants from."""
    return random.Random(request.param)
