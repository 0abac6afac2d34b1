"""An engine that stands in, wheels that were fetched, and a checkout that images are built from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from ci.images import build as building
from ci.images import definition
from ci.images.definition import find_checkout, read_images
from ci.verbs import image as verb
from tests.stand_ins.docker_engine import FakeEngine, FakeImage, pack

ROOT = find_checkout()
ROW = read_images().bases[read_images().default_base]
OWN = "team/debian:12"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """An engine that can pull the default base, and has one of the user's own."""
    fake_engine = FakeEngine()
    layers = [pack({"base": b"ubuntu"}, mtime=1), pack({"more": b"of it"}, mtime=2)]
    fake_engine.remote[ROW.image] = FakeImage(layers)
    fake_engine.add(FakeImage([pack({"base": b"debian"})]), OWN)
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(verb, "connect_engine", fake_engine.connect)
    return fake_engine


@pytest.fixture
def wheels(engine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wheels that were fetched; the engine notes when they were asked for."""
    path = tmp_path / "a-1-py3-none-any.whl"
    path.write_bytes(b"wheel")

    def fetch(*_: Any) -> list[Path]:
        engine.note("wheels")
        return [path]

    monkeypatch.setattr(building, "fetch_wheels", fetch)


@pytest.fixture
def checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkout that images are built from."""
    place = tmp_path / "checkout"
    place.mkdir()
    shutil.copytree(ROOT / "docker", place / "docker")
    for module in (definition, verb):
        monkeypatch.setattr(module, "find_checkout", lambda: place)
    return place
