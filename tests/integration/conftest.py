"""A place to type commands in, for the tests that do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.documented.stage import Stage, make_environments, make_stage


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One .nox for all stages, of all worker processes."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "documented"
    with FileLock(f"{shared}.lock"):
        if not shared.is_dir():
            making = shared.with_name("documented.making")
            making.mkdir()
            make_environments(making)
            making.rename(shared)
    return shared / "project" / ".nox"


@pytest.fixture
def stage(tmp_path: Path, environments: Path) -> Iterator[Stage]:
    made = make_stage(tmp_path, environments)
    with made.cleanup:
        yield made
