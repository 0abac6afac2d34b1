"""Worlds in which nothing was built, or one target, which is built once for a file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.builds.worlds import BuildWorld, Kept, keep, make_world, restore
from tests.stand_ins.forks import Forks, start_forks
from tests.stand_ins.tiny_toolchains import make_ndk


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """Forks of a process that has imported the verb."""
    with start_forks("ci.verbs.build") as forks:
        yield forks


@pytest.fixture
def world(tmp_path: Path, forks: Forks) -> BuildWorld:
    return make_world(tmp_path, forks)


@pytest.fixture(scope="module")
def kept_runner(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Kept:
    """The runner, built of a checkout that the call names."""
    world = make_world(tmp_path_factory.mktemp("built") / "world", forks)
    return keep(world, "runner", "--source", str(world.checkout))


@pytest.fixture
def built_runner(kept_runner: Kept) -> BuildWorld:
    return restore(kept_runner)


@pytest.fixture(scope="module")
def kept_aot(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Kept:
    """The adaptor, built and not installed."""
    world = make_world(tmp_path_factory.mktemp("aot") / "world", forks)
    return keep(world, "aot", "--install", "none")


@pytest.fixture
def built_aot(kept_aot: Kept) -> BuildWorld:
    return restore(kept_aot)


@pytest.fixture(scope="module")
def kept_android(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Kept:
    world = make_world(tmp_path_factory.mktemp("android") / "world", forks)
    world.variables["ANDROID_NDK_ROOT"] = str(make_ndk(world.folder / "ndk"))
    return keep(world, "android")


@pytest.fixture
def built_android(kept_android: Kept) -> BuildWorld:
    return restore(kept_android)
