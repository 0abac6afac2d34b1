"""What a unit test may find on the machine that runs it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci.cases import limited
from ci.models.numerics import THREADS
from provisioning.console.process import Completed
from provisioning.elf import loader
from tests.typed_hints import Typist, watch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """torch computes in one thread, as in a run. Threads of several workers wait for each other:
    the graphs of tests/unit/ci/faults/test_generate.py took 18 s of CPU instead of 8."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def no_host_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader finds no library, so that a test gives the same result on each machine. A test
    that needs a library of the machine puts it into ``host_libraries``."""
    monkeypatch.setattr(loader, "LOADER_CACHE", Path("/nonexistent/ld.so.cache"))
    monkeypatch.setattr(loader, "DEFAULT_DIRECTORIES", ())


@pytest.fixture(autouse=True)
def no_limited_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of ci.cases.limited runs in the test's process: a new one imports torch again."""

    def answer(argv: list[str], *, data: bytes, env: dict[str, str], **_: Any) -> Completed:
        mark = env[limited.MARK].encode()
        return Completed(tuple(argv), 0, "", 0.0, stdout=mark + limited.answer(data))

    monkeypatch.setattr(limited, "run_streams", answer)


@pytest.fixture
def host_libraries(
    no_host_libraries: None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """The only directory in which the loader looks for libraries of the machine."""
    folder = tmp_path_factory.mktemp("host-libraries")
    monkeypatch.setattr(loader, "DEFAULT_DIRECTORIES", (str(folder),))
    return folder


@pytest.fixture(autouse=True)
def typed_hints(monkeypatch: pytest.MonkeyPatch) -> Iterator[Typist]:
    """The hints of each refused command are typed where they were printed, after the test."""
    typist = watch(monkeypatch)
    yield typist
    assert typist.find_faults() == []
