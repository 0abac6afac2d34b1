"""`gc` knows builds: one goes when its sources, or the wheel under its overlay, have gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.store import collect
from provisioning.store.collect import BUILDS, ORIGIN, Garbage, find_garbage, remove_garbage
from provisioning.store.store import Store


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(collect, "PROC", tmp_path / "no process")
    return Store()


def make_build(store: Store, name: str, source: Path, wheel: Path) -> Path:
    build = store.home / BUILDS / name
    (build / "overlay" / "executorch").mkdir(parents=True)
    (build / "overlay" / "executorch" / "exir").symlink_to(wheel / "exir")
    (build / ORIGIN).write_text(str(source))
    return build


def test_builds_without_sources_or_wheel_go_and_others_stay(store: Store, tmp_path: Path) -> None:
    source, wheel = tmp_path / "checkout", tmp_path / "site" / "executorch"
    (wheel / "exir").mkdir(parents=True)
    source.mkdir()
    good = make_build(store, "aot-0123456789", source, wheel)
    orphan = make_build(store, "aot-1123456789", tmp_path / "gone", wheel)
    bare = make_build(store, "aot-2123456789", source, tmp_path / "gone")
    old = store.home / BUILDS / "runner-3123456789"
    old.mkdir()
    garbage, kept = find_garbage(store, set(), set(), downloads=False)
    assert {item.path: item.why.split(":")[0] for item in garbage} == {
        orphan: "its sources are gone",
        bare: "the executorch under its overlay is gone",
    }
    assert {item.path for item in kept} == {good, old}
    remove_garbage(store, [item for item in garbage if isinstance(item, Garbage)])
    assert (orphan.exists(), bare.exists(), good.exists(), old.exists()) == (
        False,
        False,
        True,
        True,
    )
