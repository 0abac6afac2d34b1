"""The artifacts of a profile side by side: sooner, each whole, and ended by one interrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.stand_ins import bad_server as bad
from tests.stand_ins.bad_server import BadServer
from tests.stand_ins.toolchains import World
from tests.stand_ins.waits import wait_until

WORDS = [sys.executable, "-m", "provisioning", "fetch", "aot"]


@pytest.fixture(autouse=True)
def accept_licences(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setenv("QNN_CI_ACCEPT_LICENCE", "all")


def test_two_artifacts_are_downloaded_concurrently(world: World, server: BadServer) -> None:
    arrivals: list[int] = []

    def meet(handler: bad.Handler, data: bytes) -> None:
        """Nobody is served before both are here."""
        arrivals.append(1)
        wait_until(lambda: len(arrivals) >= 2)
        handler.server.busy = max(handler.server.busy, len(arrivals))
        bad.serve(handler, data)

    server.faults = {"sdk.zip": [meet], "llvm.tar.xz": [meet]}
    ended = subprocess.run(WORDS, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert server.busy == 2
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["qnn-sdk", "libcxx"]


def test_one_failed_artifact_does_not_stop_the_other(world: World, server: BadServer) -> None:
    server.files.pop("sdk.zip")
    ended = subprocess.run(WORDS, capture_output=True, text=True, check=False)
    assert ended.returncode == 4
    assert "qnn-sdk" in ended.stderr
    assert [path.name[:6] for path in (world.home / "store").iterdir()] == ["libcxx"]


def test_an_interrupt_ends_concurrent_downloads_and_publishes_nothing(
    world: World, server: BadServer
) -> None:
    server.faults = {"sdk.zip": [bad.stall(0.5, 600)] * 2, "llvm.tar.xz": [bad.stall(0.5, 600)]}
    process = subprocess.Popen(WORDS, stderr=subprocess.PIPE, text=True, env={**os.environ})
    wait_until(lambda: len(server.requests) >= 2)
    process.send_signal(signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == 130, errors
    assert not [path for path in (world.home / "store").iterdir() if path.name[0] != "."]
