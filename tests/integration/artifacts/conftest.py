"""What the tests of provisioning artifacts start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build.artifacts import Workspace, make_workspace


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    return make_workspace(tmp_path, monkeypatch)
