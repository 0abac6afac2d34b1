"""Calls that meet on one device. tests/stress kills them at random instants."""

from __future__ import annotations

import secrets
import subprocess
import sys
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
from tests.integration.device.conftest import PHONE_BY_DAY, Lab, tool
from tests.integration.device.test_faults import SIZE
from tests.integration.device.test_runner import ECHO, SETS, open_program
from tests.integration.device.test_verbs import write_bundle
from tests.stand_ins.waits import wait_until

ROOT = Path(__file__).parents[3]
LIMIT_S, OUTPUTS = 4, "[[1.0, 2.0], [3.0, 4.0]]"
# Returns its inputs, but waits while a file exists; padding makes it slow to push.
RUNNER = (
    """#!/bin/sh
echo begins >> ../../turns
if [ -e ../../hang ]; then exec sleep 600; fi
while [ -e ../../wait ]; do :; done
cp 0_0.raw outputs/output_0_0.raw; cp 1_0.raw outputs/output_1_0.raw
echo ends >> ../../turns
exit 0
"""
    + "#" * (5 * SIZE)
)


class Call(NamedTuple):
    """A process that deploys and runs, and the time of each of its scripts."""

    process: subprocess.Popen[str]
    err: Path

    def finish(self) -> str:
        """Return what the whole call gave. It has to succeed."""
        out, _ = self.process.communicate()
        assert self.process.returncode == 0, self.err.read_text()
        return out.rpartition("call\n")[2].strip()


def start(lab: Lab, bundle: Path, place: Path, *words: str, limit_s: float = LIMIT_S) -> Call:
    name = "ssh:board" if lab.device.name.startswith("ssh") else "adb:"
    folder = bundle.parent / f"host{secrets.token_hex()}"
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


def require_none(place: Path) -> None:
    """Wait until nothing of ours runs in a place."""
    wait_until(lambda: not list_ours(place))


@PHONE_BY_DAY
def test_one_of_two_concurrent_computers_waits_for_the_lease(lab: Lab, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "bundle", runner=RUNNER)
    lab.place.mkdir()
    (lab.place / "wait").touch()
    first = start(lab, bundle, lab.place, limit_s=600)
    wait_until((lab.place / "turns").is_file)
    second = start(lab, bundle, lab.place, "--wait", "600", limit_s=600)
    wait_until(lambda: "waiting for" in second.err.read_text())
    (lab.place / "wait").unlink()
    assert [first.finish(), second.finish()] == [OUTPUTS] * 2
    assert (lab.place / "turns").read_text().split() == ["begins", "ends"] * 2
    assert not (lab.place / "lease").exists()


def test_a_run_that_has_ended_leaves_no_watchdog_process(local_lab: Lab, tmp_path: Path) -> None:
    assert open_program(local_lab, tmp_path, ECHO, timeout_s=600).run(SETS)
    require_none(local_lab.place)


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
