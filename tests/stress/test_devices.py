"""Calls whose process ends by SIGKILL at a random instant, and many that want one lease."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from ci.device.bundle import read_bundle
from ci.device.runner import DeviceRunner
from provisioning.console.progress import Progress
from tests.integration.device.conftest import Lab
from tests.integration.device.test_kills import (
    LIMIT_S,
    OUTPUTS,
    RUNNER,
    list_ours,
    require_none,
    start,
)
from tests.integration.device.test_verbs import write_bundle
from tests.stand_ins.waits import wait_until

# The scripts of a call, in their order.
PLACES = (
    "identify", "take the lease", "list the bundle", "push the bundle", "renew the lease",
    "list the case", "push the case", "renew it again", "run", "leave the lease",
)  # fmt: skip
KILLS = 2


def test_a_killed_run_leaves_nothing_on_the_device_and_the_next_run_succeeds(
    lab: Lab, tmp_path: Path, dice: random.Random
) -> None:
    """The run is killed in a device script: only its process, so that the client of adb or OpenSSH
    keeps running, or its whole process group."""
    bundle = write_bundle(tmp_path / "bundle", runner=RUNNER)
    whole_run = start(lab, bundle, lab.place / "whole")
    with whole_run.process as process:
        assert process.stdout
        lines = [(line, time.monotonic()) for line in process.stdout]
    assert (lines[-1][0].strip(), process.returncode) == (OUTPUTS, 0), whole_run.err.read_text()
    times = [at for _, at in lines]
    assert len(times) == len(PLACES) + 1
    for number, name in enumerate(["run", *dice.sample(PLACES, KILLS - 1)]):
        index = PLACES.index(name)
        place = lab.place / f"{number}"
        place.mkdir()
        is_alone, hangs = dice.random() < 0.5, name == "run" and dice.random() < 0.5
        if hangs:
            (place / "hang").touch()
        # What such a call left running is ended by the next, long before its limit.
        call = start(lab, bundle, place, limit_s=600 if hangs and is_alone else LIMIT_S)
        assert call.process.stdout
        for _ in range(index + 1):
            assert call.process.stdout.readline() == "call\n", call.err.read_text()
        if hangs:
            wait_until((place / "turns").is_file)
        else:
            time.sleep(dice.uniform(0, times[index + 1] - times[index]))
        (os.kill if is_alone else os.killpg)(call.process.pid, signal.SIGKILL)
        call.process.communicate()
        assert not (hangs and is_alone) or any("600" in our for our in list_ours(place))
        (place / "hang").unlink(missing_ok=True)
        if not is_alone:
            require_none(place)
        assert start(lab, bundle, place).finish() == OUTPUTS, name
        require_none(place)
        assert not (place / "lease").exists()
        assert [path.name for path in place.glob("bundles/*/*")] == ["runner"]
        assert list(place.glob("bundles/*/.part*")) == []


@pytest.mark.parametrize("before", ["", "expired", "fresh"])
def test_one_of_many_runners_takes_the_lease(
    local_lab: Lab, tmp_path: Path, dice: random.Random, before: str
) -> None:
    bundle = read_bundle(write_bundle(tmp_path / "bundle"))
    first_runner, *other_runners = (
        DeviceRunner(local_lab.device, bundle, "", Progress()) for _ in range(9)
    )
    if before:
        first_runner.renew(seconds=0 if before == "expired" else 60)
    lease_takers: list[DeviceRunner] = []
    threads = [
        threading.Thread(target=lambda each=each: each.take() or lease_takers.append(each))
        for each in other_runners
    ]
    dice.shuffle(threads)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lease_takers) == (0 if before == "fresh" else 1)
    owner = first_runner.owner if before == "fresh" else lease_takers[0].owner
    assert (local_lab.place / "lease/held").read_text().endswith(f" {owner}\n")
    assert [path.name for path in local_lab.place.iterdir()] == ["lease"]
