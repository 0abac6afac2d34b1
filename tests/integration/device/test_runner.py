from __future__ import annotations

import io
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ci.cases.engine import Compiled, Delegation, Program, RunError
from ci.device.bundle import Bundle, Target
from ci.device.connection import Device
from ci.device.runner import LEASE_S, DeviceProgram, DeviceRunner
from ci.models.tensors import TensorInfo
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from tests.integration.device.conftest import Lab, tool
from tests.stand_ins.lanes import SPEC

PAIR = TensorInfo("float32", (2,))
COMPILED = Compiled(
    program="p",
    binary="p",
    size_bytes=1,
    sets=2,
    inputs=(PAIR,),
    outputs=(PAIR,),
    delegation=Delegation(1, 0, 1),
)
SETS = [[np.array([1, 2], np.float32)], [np.array([3, 4], np.float32)]]
# Gives back its inputs, as a program of the identity would.
ECHO = """#!/bin/sh
echo "the log $*"; echo $$ > ../../pid
number=0
while read -r input; do
  cp $input outputs/output_${number}_0.raw; number=$((number + 1))
done < input_list.txt
echo 2.5 > speed.txt
"""


@pytest.fixture
def opened(lab: Lab, tmp_path: Path) -> DeviceProgram:
    """A program of the identity, and a runner of its kind on the device."""
    return open_program(lab, tmp_path, ECHO)


def open_program(lab: Lab, tmp_path: Path, script: str, timeout_s: float = 20) -> DeviceProgram:
    directory = lab.place / "bundle"
    directory.mkdir(parents=True, exist_ok=True)
    tool(directory, "runner", script)
    (tmp_path / "p").write_bytes(b"program")
    bundle = Bundle(target=Target.EMULATOR, socs=("SM8650",), runner="runner", qnn="", files=())
    runner = DeviceRunner(lab.device, bundle, str(directory), Progress())
    program = Program(SPEC, tmp_path / "p", COMPILED, tmp_path, tmp_path / "log")
    return DeviceProgram(runner, program, timeout_s)


def test_a_program_runs_on_a_device(opened: DeviceProgram, tmp_path: Path) -> None:
    outputs = opened.run(SETS)
    assert [one[0].tolist() for one in outputs] == [[1, 2], [3, 4]]
    assert "--model_path=program.pte" in (tmp_path / "log").read_text()
    assert opened.finish().run_ms == 2.5
    first = opened.runner.sent
    assert first == sum((len(b"program"), 8, 8, len("0_0.raw\n1_0.raw\n")))
    opened.run(SETS)
    assert opened.runner.sent == first
    opened.run([SETS[0], [np.array([5, 6], np.float32)]])
    assert opened.runner.sent == first + 8


def test_a_device_is_held_for_longer_than_a_run_may_take(tmp_path: Path) -> None:
    place = tmp_path / "there"
    lab = Lab(Device("here", ("sh", "-c"), str(place)), place, tmp_path)
    for timeout_s, seconds in ((20, LEASE_S), (LEASE_S, 2 * LEASE_S)):
        open_program(lab, tmp_path, ECHO, timeout_s).run(SETS)
        until, _ = (place / "lease/held").read_text().split()
        assert -LEASE_S / 2 < int(until) - time.time() - seconds <= 1
        shutil.rmtree(place / "lease")


def test_outputs_of_an_earlier_run_are_none_of_this_one(lab: Lab, tmp_path: Path) -> None:
    opened = open_program(lab, tmp_path, ECHO)
    opened.run(SETS)
    tool(lab.place / "bundle", "runner", "#!/bin/sh\nexit 0\n")
    with pytest.raises(RunError):
        opened.run(SETS)
    tool(lab.place / "bundle", "runner", "#!/bin/sh\necho why; exit 7\n")
    with pytest.raises(RunError, match="exited with 7"):
        opened.run(SETS)
    assert (tmp_path / "log").read_text() == "why\n"


def test_a_run_is_ended_on_the_device_itself(lab: Lab, tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(RunError, match="ended on the device after 1 s"):
        open_program(lab, tmp_path, "#!/bin/sh\nexec sleep 60\n", timeout_s=1).run(SETS)
    assert time.monotonic() - began < 30


def test_nothing_outlives_its_limit_though_this_computer_is_gone(lab: Lab, tmp_path: Path) -> None:
    """The client is killed in the middle of a run."""
    opened = open_program(
        lab, tmp_path, f"#!/bin/sh\necho $$ > '{tmp_path}/pid'; exec sleep 60\n", 4
    )
    script = [*lab.device.client]
    gone = replace(lab.device, client=("timeout", "-s", "KILL", "2", *script))
    opened.runner.device = gone
    with pytest.raises(RunError):
        opened.run(SETS)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()
    opened.runner.device = lab.device
    tool(lab.place / "bundle", "runner", ECHO)
    assert opened.run(SETS)[0][0].tolist() == [1, 2]


def test_a_device_in_use_is_refused_or_waited_for(lab: Lab, tmp_path: Path) -> None:
    first, second = (open_program(lab, tmp_path, ECHO).runner for _ in range(2))
    with first.lease():
        with pytest.raises(UnfitError, match=first.owner):
            second.renew()
        first.renew()  # its own is no obstacle
        threading.Timer(1, first.device.call, [f"rm -r '{lab.place}/lease'"]).start()
        second.renew(20)
    with pytest.raises(UnfitError, match=second.owner):
        first.renew()


def test_a_lease_of_a_computer_that_died_ends_by_itself(lab: Lab, tmp_path: Path) -> None:
    first, second = (open_program(lab, tmp_path, ECHO).runner for _ in range(2))
    first.renew(seconds=0)
    with second.lease():
        assert second.owner in (lab.place / "lease/held").read_text()
        with pytest.raises(UnfitError):
            first.renew()
    assert not (lab.place / "lease").exists()


def test_a_lease_of_a_process_that_was_killed_is_taken_at_once(lab: Lab, tmp_path: Path) -> None:
    first, second = (open_program(lab, tmp_path, ECHO).runner for _ in range(2))
    with subprocess.Popen(["true"]) as process:
        pass
    first.owner = f"{socket.gethostname()}-{process.pid}-0"
    first.renew()
    second.renew()
    with pytest.raises(UnfitError):
        first.renew()
    lab.device.call(f"rm -r '{lab.place}/lease'")
    first.owner = f"elsewhere-{process.pid}-0"  # of another computer: it may be alive
    first.renew()
    with pytest.raises(UnfitError):
        second.renew()


@pytest.mark.parametrize("name", ["../outside", "/outside", "outputs/../outside", "other/x.raw"])
def test_an_archive_from_a_device_writes_nothing_else(tmp_path: Path, name: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for one, data in ((name, b"bad"), ("outputs/code", b"0\n"), ("outputs/link.raw", b"")):
            entry = tarfile.TarInfo(one)
            entry.size = len(data)
            if "link" in one:
                entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(entry, io.BytesIO(data))
    place = tmp_path / "in" / "here"
    place.mkdir(parents=True)
    program = Program(SPEC, tmp_path / "p", COMPILED, place, place / "log")
    opened = DeviceProgram(None, program, 1)  # type: ignore[arg-type]
    assert opened.unpack(packed.getvalue(), place) == (False, 0)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (place / "outputs/link.raw").exists()
