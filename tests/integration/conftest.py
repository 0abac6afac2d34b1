"""A place to type commands in, for the tests that do."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from provisioning.__main__ import VERBS
from tests.stand_ins import bad_server
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.forks import Forks, Run, start_forks
from tests.stand_ins.toolchains import World, serve_world

MakeOnce = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory) -> MakeOnce:
    """Let one of all worker processes fill a directory, for which the others wait."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        folder, unfinished = shared / name, shared / f"{name}.making"
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():
                shutil.rmtree(unfinished, ignore_errors=True)  # of a worker that failed
                unfinished.mkdir()
                fill(unfinished)
                unfinished.rename(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def verbs() -> Iterator[Forks]:
    """Forks of a process that has imported verbs that many tests run."""
    with start_forks(*(verb.module for verb in VERBS.values()), "ci.verbs.parity") as forks:
        yield forks


@pytest.fixture
def run(verbs: Forks) -> Run:
    """``python -m provisioning``, with the variables that there are when it is called."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return verbs.run_module("provisioning", *words, cwd=Path.cwd(), env=os.environ)

    return run


@pytest.fixture
def server() -> Iterator[BadServer]:
    """An HTTP server that does what a test asks, wrong things too."""
    with bad_server.running() as server:
        yield server


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: BadServer) -> World:
    """Artifacts of that server and of a package index, and a store; no licence is accepted."""
    world = serve_world(tmp_path, server)
    for name, value in {**world.variables, "QNN_CI_BACKOFF_S": "0.01"}.items():
        monkeypatch.setenv(name, value)
    for name in ("CI", "QNN_SDK_ROOT", "QNN_CI_MIRROR", "QNN_CI_ACCEPT_LICENCE"):
        monkeypatch.delenv(name, raising=False)
    return world
