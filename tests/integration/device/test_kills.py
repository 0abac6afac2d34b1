"""A call whose process ends by SIGKILL, at any instant, and calls that meet on one device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from ci.device.bundle import read_bundle
from ci.device.connection import SCRIPTS
from ci.device.runner import DeviceRunner
from provisioning.console.process import fill_script
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from tests.integration.device.conftest import PHONE_BY_DAY, WHOLE, Lab, tool
from tests.integration.device.test_faults import SIZE
from tests.integration.device.test_runner import ECHO, SETS, open_program
from tests.integration.device.test_verbs import write_bundle

ROOT = Path(__file__).parents[3]
LIMIT_S, OUTPUTS = 4, "[[1.0, 2.0], [3.0, 4.0]]"
# Returns its inputs, but waits while a file exists; padding makes it slow to push.
RUNNER = (
    """#!/bin/sh
echo begins >> ../../turns
if [ -e ../../hang ]; then exec sleep 600; fi
while [ -e ../../wait ]; do sleep 0.05; done
sleep 0.3; cp 0_0.raw outputs/output_0_0.raw; cp 1_0.raw outputs/output_1_0.raw
echo ends >> ../../turns
exit 0
"""
    + "#" * (5 * SIZE)
)
# The scripts of a call, in their order.
PLACES = (
    "identify", "take the lease", "list the bundle", "push the bundle", "renew the lease",
    "list the case", "push the case", "renew it again", "run", "leave the lease",
)  # fmt: skip
FEW = {("take the lease", 0.5), ("push the bundle", 0.5), ("run", 0.5)}
INSTANTS = [(name, share) for name in PLACES for share in (0.0, 0.5)] + [("run", 0.5)]


class Call(NamedTuple):
    """A process that deploys and runs, and the time of each of its scripts."""

    process: subprocess.Popen[str]
    err: Path

    def finish(self) -> str:
        """Return what the whole call gave. It has to succeed."""
        out, _ = self.process.communicate(timeout=120)
        assert self.process.returncode == 0, self.err.read_text()
        return out.rpartition("call\n")[2].strip()


def start(lab: Lab, bundle: Path, place: Path, *words: str, limit_s: float = LIMIT_S) -> Call:
    name = "ssh:board" if lab.device.name.startswith("ssh") else "adb:"
    folder = bundle.parent / f"host{time.monotonic_ns()}"
    folder.mkdir()
    words = ("--device", name, "--bundle", str(bundle), "--place", str(place), *words)
    with (folder / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.stand_ins.device_call", folder, str(limit_s), *words],
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )
    return Call(process, folder / "err")


def list_ours(place: Path) -> list[str]:
    """What runs in a place of the device, or with it on its command line."""
    commands = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (path / "cmdline").read_bytes().decode("utf-8", "replace")
            if (path / "cwd").readlink().is_relative_to(place) or f"{place}'" in command:
                commands.append(command)
    return commands


def wait_until(condition: str, is_so: object) -> None:
    for _ in range(400):
        if is_so():  # type: ignore[operator]
            return
        time.sleep(0.05)
    pytest.fail(f"not in 20 s: {condition}")


def require_none(place: Path, within_s: float) -> None:
    ends = time.monotonic() + within_s
    while left := list_ours(place):
        assert time.monotonic() < ends, left
        time.sleep(0.1)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@PHONE_BY_DAY
def test_a_killed_run_leaves_nothing_on_the_device_and_the_next_run_succeeds(
    lab: Lab, tmp_path: Path
) -> None:
    """The run is killed at the start or in the middle of each device script: only its process, so
    that the client of adb or OpenSSH keeps running, or its whole process group."""
    bundle = write_bundle(tmp_path / "bundle", runner=RUNNER)
    whole_run = start(lab, bundle, lab.place / "whole")
    with whole_run.process as process:
        assert process.stdout
        lines = [(line, time.monotonic()) for line in process.stdout]
    assert (lines[-1][0].strip(), process.returncode) == (OUTPUTS, 0), whole_run.err.read_text()
    times = [at for _, at in lines]
    assert len(times) == len(PLACES) + 1
    for number, (name, share) in enumerate(INSTANTS):
        if not WHOLE and (name, share) not in FEW:
            continue
        index = PLACES.index(name)
        place = lab.place / f"{number}"
        place.mkdir()
        if name == "run":
            (place / "hang").touch()
        is_alone = (number // 2 + number) % 2  # both, of those in the middle of a run
        # What such a call left running is ended by the next, long before its limit.
        limit_s = 60 if name == "run" and is_alone else LIMIT_S
        call = start(lab, bundle, place, limit_s=limit_s)
        assert call.process.stdout
        for _ in range(index + 1):
            assert call.process.stdout.readline() == "call\n", call.err.read_text()
        if (name, share) == ("run", 0.5):
            wait_until("the runner runs", (place / "turns").is_file)
        else:
            time.sleep(share * (times[index + 1] - times[index]))
        (os.kill if is_alone else os.killpg)(call.process.pid, signal.SIGKILL)
        call.process.communicate()
        assert name != "run" or not share or any("600" in our for our in list_ours(place))
        (place / "hang").unlink(missing_ok=True)
        if not is_alone:
            require_none(place, LIMIT_S + 15)
        assert start(lab, bundle, place).finish() == OUTPUTS, (name, share)
        require_none(place, LIMIT_S + 15)
        assert not (place / "lease").exists()
        assert [path.name for path in place.glob("bundles/*/*")] == ["runner"]
        assert list(place.glob("bundles/*/.part*")) == []


@PHONE_BY_DAY
def test_one_of_two_concurrent_computers_waits_for_the_lease(lab: Lab, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", runner=RUNNER)
    lab.place.mkdir()
    (lab.place / "wait").touch()
    first = start(lab, bundle, lab.place, limit_s=60)
    wait_until("the first runs", (lab.place / "turns").is_file)
    second = start(lab, bundle, lab.place, "--wait", "60", limit_s=60)
    wait_until("the second waits", lambda: "waiting for" in second.err.read_text())
    (lab.place / "wait").unlink()
    assert [first.finish(), second.finish()] == [OUTPUTS] * 2
    assert (lab.place / "turns").read_text().split() == ["begins", "ends"] * 2
    assert not (lab.place / "lease").exists()


def test_a_run_that_has_ended_leaves_no_watchdog_process(local_lab: Lab, tmp_path: Path) -> None:
    assert open_program(local_lab, tmp_path, ECHO, timeout_s=600).run(SETS)
    require_none(local_lab.place, 30)


@pytest.mark.parametrize(
    ("command", "pattern", "before"),
    [
        ("mkdir", "lease/1000.*", ""),
        ("mkdir", "lease/1000.*", "rm -r lease;"),
        ("mv", "*", ""),
    ],
)
def test_a_lease_that_two_computers_replace_at_once_goes_to_exactly_one(
    local_lab: Lab, tmp_path: Path, command: str, pattern: str, before: str
) -> None:
    """The other computer replaces an expired lease just before or after this one announces its own
    replacement, also with a new directory."""
    bundle = read_bundle(write_bundle(tmp_path / "bundle"))
    runner, other_runner = (
        DeviceRunner(local_lab.device, bundle, "", Progress()) for _ in range(2)
    )
    (local_lab.place / "lease").mkdir(parents=True)
    lease_file = local_lab.place / "lease/held"
    lease_file.write_text("1000 another-1-a\n")
    script = fill_script(
        SCRIPTS / "take.sh", place=local_lab.place, me=other_runner.owner, gone="", seconds=60
    )
    (tmp_path / "take").write_text(script)
    between = f"{before} PATH=/usr/bin:/bin sh '{tmp_path}/take'; echo $? > '{tmp_path}/code'"
    once = f"case $1 in {pattern}) [ -e '{tmp_path}/code' ] || {{ {between}; }};; esac"
    tool(local_lab.bin, command, f'#!/bin/sh\n{once}\nexec /bin/{command} "$@"\n')
    refused = runner.take()
    code = int((tmp_path / "code").read_text())
    assert (code == 0) == bool(refused)
    assert lease_file.read_text().endswith(f" {other_runner.owner if refused else runner.owner}\n")
    assert bool(refused) == (command == "mkdir")
    assert [path.name for path in local_lab.place.iterdir()] == ["lease"]


@pytest.mark.parametrize("before", ["", "1000 another-1-a\n"])
def test_a_directory_that_cannot_be_written_is_not_in_use(
    local_lab: Lab, tmp_path: Path, before: str
) -> None:
    runner = DeviceRunner(
        local_lab.device, read_bundle(write_bundle(tmp_path / "bundle")), "", Progress()
    )
    if before:
        (local_lab.place / "lease").mkdir(parents=True)
        (local_lab.place / "lease/held").write_text(before)
    refuse = 'echo "$1: Permission denied" >&2; exit 1'
    tool(
        local_lab.bin,
        "mkdir",
        f'#!/bin/sh\n[ "$1" = -p ] || {{ {refuse}; }}; exec /bin/mkdir "$@"\n',
    )
    with pytest.raises(UnfitError, match="cannot write to"):
        runner.take()


@pytest.mark.parametrize("before", ["", "expired", "fresh"])
def test_one_of_many_runners_takes_the_lease(local_lab: Lab, tmp_path: Path, before: str) -> None:
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
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lease_takers) == (0 if before == "fresh" else 1)
    owner = first_runner.owner if before == "fresh" else lease_takers[0].owner
    assert (local_lab.place / "lease/held").read_text().endswith(f" {owner}\n")
    assert [path.name for path in local_lab.place.iterdir()] == ["lease"]
