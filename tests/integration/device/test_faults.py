"""A device that reboots, and a slow link: the call fails in words, and the next one recovers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ci.cases.engine import RunError
from ci.device.bundle import BUNDLE, FILES
from ci.device.connection import list_phones, open_device
from provisioning.errors import ExitCode, UnfitError
from provisioning.files import hash_file
from tests.integration.device.conftest import PHONE_BY_DAY, Connect, Lab, switch, tool
from tests.integration.device.test_runner import ECHO, open_program
from tests.integration.device.test_verbs import Capture, deploy, write_bundle
from tests.stand_ins.clocks import expire_when
from tests.stand_ins.device_call import SETS
from tests.stand_ins.waits import wait_for_end, wait_for_text, wait_until

SIZE, BYTES_PER_S = 400_000, 400_000


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle whose runner takes 1 s on a slow link."""
    folder = write_bundle(tmp_path / "bundle")
    runner = folder / FILES / "runner"
    runner.write_bytes(os.urandom(SIZE))
    record = json.loads((folder / BUNDLE).read_text())
    record["files"][0] |= {"sha256": hash_file(runner), "size_bytes": SIZE}
    (folder / BUNDLE).write_text(json.dumps(record))
    return folder


def hold_arrivals(lab: Lab) -> Path:
    """Let what is pushed wait on the device while the file that is returned is there. However long
    a test takes to act, the push is not over."""
    hold = lab.place.parent / "hold"
    hold.touch()
    # It reads first: a phone's link waits for a program that does not read.
    wait = f"cat > '{hold}.tar'; while [ -e '{hold}' ]; do :; done"
    tool(lab.bin, "tar", f"#!/bin/sh\n{wait}\nexec /bin/tar \"$@\" < '{hold}.tar'\n")
    return hold


@PHONE_BY_DAY
def test_a_reboot_during_a_run_fails_it_and_the_next_run_works(lab: Lab, tmp_path: Path) -> None:
    opened = open_program(lab, tmp_path, f"#!/bin/sh\necho $$ > '{tmp_path}/pid'; exec sleep 600\n")
    pids = []

    def reboot() -> None:
        pids.append(int(wait_for_text(tmp_path / "pid")))
        lab.reboot()

    thread = threading.Thread(target=reboot)
    thread.start()
    with pytest.raises(RunError, match="cannot be reached") as caught:
        opened.run(SETS)
    thread.join()
    assert caught.value.lacks == lab.device.name
    wait_for_end(pids[0])
    tool(lab.place / "bundle", "runner", ECHO)
    sent = opened.runner.sent
    assert [outputs[0].tolist() for outputs in opened.run(SETS)] == [[1, 2], [3, 4]]
    assert opened.runner.sent == sent  # the files from before the reboot are there again


@PHONE_BY_DAY
def test_a_reboot_during_a_push_fails_it_and_the_next_push_works(
    lab: Lab, bundle: Path, capsys: Capture
) -> None:
    hold = hold_arrivals(lab)

    def reboot() -> None:
        wait_until(lambda: list(lab.place.glob("bundles/*/.part*")))
        lab.reboot()

    thread = threading.Thread(target=reboot)
    thread.start()
    name = "ssh:board" if lab.device.name.startswith("ssh") else "adb:"
    words = ["deploy", "--device", name, "--place", str(lab.place), "--bundle", str(bundle)]
    # It runs in its own process, because its lease stays on the device.
    first = subprocess.run(
        [sys.executable, "-m", "ci", *words], capture_output=True, text=True, check=False
    )
    thread.join()
    assert first.returncode == ExitCode.TOOL
    assert "cannot be reached" in first.stderr
    assert not list(lab.place.glob("bundles/*/runner"))
    hold.unlink()
    assert deploy(lab, bundle) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["sent_bytes"] == SIZE
    (bundle_place,) = lab.place.glob("bundles/*")
    assert [path.name for path in bundle_place.iterdir()] == ["runner"]
    assert not (lab.place / "lease").exists()


def test_an_offline_phone_is_refused_with_how_to_reconnect_it(
    connect: Connect, phones: list[subprocess.Popen[str]]
) -> None:
    serial = connect()
    switch(phones[0], signal.SIGUSR1)
    wait_until(lambda: list_phones("adb").get(serial) == "offline")
    with pytest.raises(UnfitError, match="offline") as caught:
        open_device(f"adb:{serial}")
    assert "adb reconnect" in caught.value.fix


@PHONE_BY_DAY
def test_a_push_over_a_slow_link_succeeds_unless_it_exceeds_its_time_limit(
    lab: Lab, bundle: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.slow.write_text(str(BYTES_PER_S))
    assert deploy(lab, bundle) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["sent_bytes"] == SIZE
    (runner_place,) = lab.place.glob("bundles/*/runner")
    runner_place.unlink()
    hold = hold_arrivals(lab)
    with monkeypatch.context() as short:
        expire_when(short, lambda: list(runner_place.parent.glob(".part*")))
        assert deploy(lab, bundle) == ExitCode.TOOL
    assert "did not answer in time" in capsys.readouterr().err
    hold.unlink()
    lab.slow.unlink()
    assert deploy(lab, bundle) == ExitCode.OK
    # adb's server may have all bytes when its client is killed: then the file arrives whole.
    sent = json.loads(capsys.readouterr().out)["sent_bytes"]
    assert sent in ({SIZE} if lab.device.name.startswith("ssh") else {0, SIZE})
    assert runner_place.read_bytes() == (bundle / FILES / "runner").read_bytes()
    assert not (lab.place / "lease").exists()
