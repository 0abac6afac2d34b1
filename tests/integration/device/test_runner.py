from __future__ import annotations

import shutil
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ci.cases.engine import Program, RunError
from ci.device.bundle import Bundle, Target
from ci.device.runner import (
    LEASE_S,
    LOG_BYTES,
    SYSTEM_MARK,
    DeviceProgram,
    DeviceRunner,
    lease_first,
)
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError
from tests.integration.device.conftest import PHONE_BY_DAY, Lab, tool
from tests.stand_ins.device_call import COMPILED, SETS
from tests.stand_ins.lanes import SPEC

DUMP = Path(__file__).parents[2] / "artifacts/device/mlp.etdp"
# Returns its inputs, and ends when its memory has been measured.
ECHO = f"""#!/bin/sh
echo "the log $*"; echo $$ > ../../pid
number=0
while read -r input; do
  cp $input outputs/output_${{number}}_0.raw; number=$((number + 1))
done < input_list.txt
echo 2.5 > speed.txt; cp '{DUMP}' times.etdp
memory=$(head -c 20000000 /dev/zero | tr '\\0' x)
until [ "$(tail -n 1 memory.txt)" -gt 19600 ] 2>/dev/null; do :; done
"""


@pytest.fixture
def opened(lab: Lab, tmp_path: Path) -> DeviceProgram:
    """A program of the identity, and a runner of its kind on the device."""
    return open_program(lab, tmp_path, ECHO)


def open_program(lab: Lab, tmp_path: Path, script: str, timeout_s: float = 600) -> DeviceProgram:
    directory = lab.place / "bundle"
    directory.mkdir(parents=True, exist_ok=True)
    tool(directory, "runner", script)
    (tmp_path / "p").write_bytes(b"program")
    bundle = Bundle(target=Target.EMULATOR, socs=("SM8650",), runner="runner", qnn="", files=())
    runner = DeviceRunner(lab.device, bundle, str(directory), Progress())
    program = Program(SPEC, tmp_path / "p", COMPILED, tmp_path, tmp_path / "log")
    return DeviceProgram(runner, program, timeout_s)


@PHONE_BY_DAY
def test_a_program_runs_on_a_device(opened: DeviceProgram, tmp_path: Path) -> None:
    outputs = opened.run(SETS)
    assert [output[0].tolist() for output in outputs] == [[1, 2], [3, 4]]
    assert "--model_path=program.pte" in (tmp_path / "log").read_text()
    notes = opened.finish()
    assert notes.run_ms == 2.5
    assert notes.device
    assert (notes.device.load_ms, notes.device.runs, notes.device.emulated) == (63.2762, 15, True)
    assert 20 < (notes.device.peak_memory_bytes or 0) / 1e6 < 80
    first = opened.runner.sent
    assert first == sum((len(b"program"), 8, 8, len("0_0.raw\n1_0.raw\n")))
    opened.run(SETS)
    assert opened.runner.sent == first
    opened.run([SETS[0], [np.array([5, 6], np.float32)]])
    assert opened.runner.sent == first + 8


def test_relative_places_are_below_the_directory_in_which_shells_start(
    local_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/nowhere")
    place = Path("on device")
    lab = local_lab._replace(device=replace(local_lab.device, place=str(place)), place=place)
    assert open_program(lab, tmp_path, ECHO).run(SETS)


def test_a_lease_lasts_longer_than_the_time_limit_of_a_run(local_lab: Lab, tmp_path: Path) -> None:
    tool(local_lab.bin, "date", "#!/bin/sh\necho 5000\n")
    for timeout_s, seconds in ((20, LEASE_S), (LEASE_S, 2 * LEASE_S)):
        open_program(local_lab, tmp_path, ECHO, timeout_s).run(SETS)
        until, _ = (local_lab.place / "lease/held").read_text().split()
        assert 5000 + seconds <= int(until) <= 5000 + seconds + LEASE_S / 2
        shutil.rmtree(local_lab.place / "lease")


def test_run_does_not_reuse_outputs_or_log_lines_of_earlier_run(
    local_lab: Lab, tmp_path: Path
) -> None:
    lines = "I/other: words\nQnnDsp <E> fastrpc: error 14001"
    tool(local_lab.bin, "logcat", f"#!/bin/sh\n[ $4 = -T ] && echo '{lines}'\n")
    opened = open_program(local_lab, tmp_path, ECHO)
    opened.run(SETS)
    tool(local_lab.place / "bundle", "runner", "#!/bin/sh\nexit 0\n")
    with pytest.raises(RunError):
        opened.run(SETS)
    tool(local_lab.place / "bundle", "runner", "#!/bin/sh\necho why; exit 7\n")
    with pytest.raises(RunError, match="exited with code 7"):
        opened.run(SETS)
    log = (tmp_path / "log").read_text()
    assert log == f"why\n{SYSTEM_MARK}QnnDsp <E> fastrpc: error 14001\n"
    tool(local_lab.place / "bundle", "runner", "#!/bin/sh\necho alone; exit 0\n")
    (local_lab.bin / "logcat").unlink()
    tool(local_lab.bin, "dmesg", "#!/bin/sh\necho not permitted >&2; exit 1\n")
    with pytest.raises(RunError):
        opened.run(SETS)
    assert (tmp_path / "log").read_text() == "alone\n"


@PHONE_BY_DAY
def test_a_runner_that_floods_its_log_keeps_its_beginning_and_end(lab: Lab, tmp_path: Path) -> None:
    flood = f"head -c {LOG_BYTES + 25_000_000} /dev/zero | tr '\\0' x"
    open_program(lab, tmp_path, f"{ECHO}{flood}; echo the end\n").run(SETS)
    log = (tmp_path / "log").read_bytes()
    assert log.startswith(b"the log --")
    assert b"\n[25000 kB are left out]\n" in log
    assert log.endswith(b"xthe end\n")
    assert len(log) < LOG_BYTES + 100


def test_an_expired_lease_is_taken_over_and_cannot_be_renewed(
    local_lab: Lab, tmp_path: Path
) -> None:
    first, second = (open_program(local_lab, tmp_path, ECHO).runner for _ in range(2))
    first.renew(seconds=0)
    with lease_first([second]):
        assert second.owner in (local_lab.place / "lease/held").read_text()
        with pytest.raises(UnfitError):
            first.renew()
    assert not (local_lab.place / "lease").exists()


def test_a_lease_of_a_killed_process_is_taken_over_at_once(local_lab: Lab, tmp_path: Path) -> None:
    first, second = (open_program(local_lab, tmp_path, ECHO).runner for _ in range(2))
    with subprocess.Popen(["true"]) as process:
        pass
    first.owner = f"{socket.gethostname()}-{process.pid}-0"
    first.renew()
    second.renew()
    with pytest.raises(UnfitError):
        first.renew()
    local_lab.device.call(f"rm -r '{local_lab.place}/lease'")
    first.owner = f"elsewhere-{process.pid}-0"  # of another computer: it may be alive
    first.renew()
    with pytest.raises(UnfitError):
        second.renew()


FLAKY = """#!/bin/sh
cp 0_0.raw outputs/output_0_0.raw; cp 1_0.raw outputs/output_1_0.raw
echo x >> ../../starts; [ $(wc -l < ../../starts) != 3 ] || cp 0_0.raw outputs/output_1_0.raw
"""


def test_a_program_runs_the_requested_number_of_starts_and_a_differing_one_is_a_fault(
    local_lab: Lab, tmp_path: Path
) -> None:
    opened = open_program(local_lab, tmp_path, FLAKY)
    opened.runner.starts = 4
    assert [outputs[0].tolist() for outputs in opened.run(SETS)] == [[1, 2], [3, 4]]
    assert (local_lab.place / "starts").read_text() == "x\n" * 4
    notes = opened.finish()
    assert notes.device
    assert notes.device.starts == 4
    (fault,) = notes.faults
    assert fault.startswith("start 3 ")
