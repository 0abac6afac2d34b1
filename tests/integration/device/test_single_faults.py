"""Single faults of a device: each ends with its exit code and in its words, and the next call is
right. By day on this computer's shell, by night over ssh and over adb."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from ci.cases.engine import Program, RunError
from ci.device.runner import DeviceProgram
from ci.explain.explain import find_known
from ci.explain.rules import read_rules
from ci.verbs.deploy import add_arguments, read_device, ready_device
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, QnnCiError
from tests.integration.device.conftest import Lab, tool
from tests.integration.device.test_verbs import write_bundle
from tests.stand_ins.device_call import COMPILED, SETS
from tests.stand_ins.lanes import SPEC

RIGHT = [[1, 2], [3, 4]]
# Returns its inputs, or does what the file "fault" of our directory says.
RUNNER = """#!/bin/sh
if [ -e ../../fault ]; then . ../../fault; fi
cp 0_0.raw outputs/output_0_0.raw; cp 1_0.raw outputs/output_1_0.raw
"""
NO_SKEL = (
    "[ERROR] [Qnn ExecuTorch]: QnnDsp <E> DspTransport.openSession qnn_open failed, 0x80000406\\n"
    "[ERROR] [Qnn ExecuTorch]: QnnDsp <E> Unable to load Skel Library. transportStatus: 9\\n"
)


class Fault(NamedTuple):
    """How a device is spoiled, by a program that it finds first, by what its runner does, or by
    hand; and what comes of it: the exit code, and words of the error or the log."""

    code: ExitCode
    words: str
    name: str = ""
    script: str = ""
    runner: str = ""
    spoil: Callable[[Path], object] = lambda place: None


def holds(owner: str, seconds: str) -> Callable[[Path], object]:
    def spoil(place: Path) -> None:
        (place / "lease").mkdir()
        (place / "lease/held").write_text(f"{seconds} {owner}\n")

    return spoil


def on_each(pattern: str, change: Callable[[Path], object]) -> Callable[[Path], object]:
    def spoil(place: Path) -> None:
        paths = list(place.glob(pattern))
        assert paths
        for path in paths:
            change(path)

    return spoil


def make_file(place: Path) -> None:
    shutil.rmtree(place)
    place.write_text("a file")


AGAIN = on_each("bundles/*/runner", Path.unlink)  # then it is sent again
OK, FAILED, ENVIRONMENT = ExitCode.OK, ExitCode.FAILED, ExitCode.ENVIRONMENT
DF = "echo head; echo '/dev/x 100 90 {} 90% /'"
NO_SIZE = "echo head; echo 'name@host:/x 0 0 0 - /'"  # as of FUSE file systems without statfs
SUM = '[ "$1" = -c ] && exit 1; exec /usr/bin/sha256sum "$@"'
TAR = '[ "$1" = -x ] && exec /usr/bin/tar "$@"; /usr/bin/tar "$@" | '
RUBBISH = f"{TAR} tr o x"
FULL = "echo 'tar: write: No space left on device' >&2; exit 1"
FAULTS = {
    "too little room": Fault(ExitCode.DOWNLOAD, "0 MiB free", "df", DF.format(10)),
    "no room at all": Fault(ExitCode.DOWNLOAD, "0 MiB free", "df", DF.format(0)),
    "a file system that does not report its room": Fault(OK, "", "df", NO_SIZE),
    "full in a push": Fault(ExitCode.DOWNLOAD, "has no space left", "tar", FULL, spoil=AGAIN),
    "damaged on the way": Fault(
        ExitCode.TOOL, "did not arrive completely", "sha256sum", SUM, spoil=AGAIN
    ),
    "our directory is a file": Fault(ENVIRONMENT, "cannot write to", spoil=make_file),
    "in use": Fault(ENVIRONMENT, "in use by another-1-a", spoil=holds("another-1-a", "9999999999")),
    "a lease that has ended": Fault(OK, "", spoil=holds("another-1-a", "1000")),
    "a stale file of the right size": Fault(
        OK, "", spoil=on_each("bundles/*/runner", lambda path: path.write_bytes(b"#" * len(RUNNER)))
    ),
    "a program that is gone": Fault(OK, "", spoil=on_each("cases/*/program.pte", Path.unlink)),
    "an archive that is none": Fault(ENVIRONMENT, "did not send the archive", "tar", RUBBISH),
    "a signal": Fault(FAILED, "exited with code 139 on the device", runner="kill -SEGV $$"),
    "an exit code": Fault(FAILED, "exited with code 7 on the device", runner="exit 7"),
    "half an output": Fault(
        FAILED,
        "output_0_0.raw",
        runner="for n in 0 1; do echo > outputs/output_${n}_0.raw; done; exit",
    ),
    "a hang": Fault(FAILED, "exceeded 1 s and was stopped on the device", runner="exec sleep 600"),
    "no skel": Fault(FAILED, "ADSP_LIBRARY_PATH", runner=f"printf '{NO_SKEL}'; exit 1"),
}


@pytest.fixture(
    params=[
        "local_lab",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("board", "phone")),
    ]
)
def any_lab(request: pytest.FixtureRequest) -> Lab:
    requested_lab: Lab = request.getfixturevalue(request.param)
    return requested_lab


def call(args: argparse.Namespace, program: Program, limit_s: float = 600) -> tuple[ExitCode, str]:
    """Deploy and run; return the exit code of a lane that does, and what it says."""
    program.log.unlink(missing_ok=True)
    choice = read_device(args)
    assert choice
    try:
        with ready_device(choice, Progress()) as (runner, _):
            outputs = DeviceProgram(runner, program, limit_s).run(SETS)
    except RunError as error:
        log = program.log.read_text() if program.log.exists() else ""
        rule = find_known(log, read_rules())
        code = ENVIRONMENT if error.lacks else FAILED
        return code, f"{error}\n{rule.fix if rule else ''}"
    except QnnCiError as error:
        return error.exit_code, f"{error.what}\n{error.why}"
    assert [output[0].tolist() for output in outputs] == RIGHT
    return OK, ""


def test_each_fault_has_its_exit_code_and_message_and_the_next_call_succeeds(
    any_lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, place = any_lab, any_lab.place
    monkeypatch.setattr("ci.verbs.deploy.open_device", lambda *_: lab.device)
    bundle = write_bundle(tmp_path / "bundle", runner=RUNNER)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--device", "ssh:board", "--bundle", str(bundle)])
    (tmp_path / "p").write_bytes(b"program")
    program = Program(SPEC, tmp_path / "p", COMPILED, tmp_path, tmp_path / "log")

    assert call(args, program) == (OK, "")
    for name, fault in FAULTS.items():
        fault.spoil(place)
        if fault.name:
            tool(lab.bin, fault.name, f"#!/bin/sh\n{fault.script}\n")
        if fault.runner:
            (place / "fault").write_text(fault.runner)
        code, words = call(args, program, 1 if name == "a hang" else 600)
        assert (code, fault.words in words) == (fault.code, True), (name, code, words)
        if fault.name:
            (lab.bin / fault.name).unlink()
        if place.is_file():
            place.unlink()
        elif fault.code:
            for path in (place / "fault", place / "lease/held"):
                path.unlink(missing_ok=True)
        assert call(args, program) == (OK, ""), name
    assert not (place / "lease").exists()
