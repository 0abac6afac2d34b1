"""Where readers of pages type commands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.documented.place import share_folder


@pytest.fixture(scope="session")
def shared() -> Iterator[Path]:
    with share_folder() as folder:
        yield folder
