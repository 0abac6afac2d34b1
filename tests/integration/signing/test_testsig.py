"""A device's test signature, other signers, dry runs; and that nothing secret is shown."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ci.signing.record import check_record
from ci.signing.signer import find_interpreter
from tests.stand_ins.waits import wait_until

ADB = Path(__file__).parents[2] / "stand_ins" / "elfsigner"
FORMS = ("deadbeef", "3735928559")


def with_adb(verb, tmp_path: Path) -> str:
    """A PATH on which adb is the stand-in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy(ADB / "adb", folder)
    return f"{folder}:{os.environ['PATH']}"


def assert_nothing_shown(text: str) -> None:
    assert not [form for form in (*FORMS, "s3cr3t-value") if form in text.lower()]


@pytest.mark.parametrize("serial", ["0xDEADBEEF", "3735928559", "adb"])
def test_a_test_signature_is_made_and_its_serial_not_shown(
    verb, libraries, tmp_path: Path, serial: str
) -> None:
    words = ["sign", "--json", "--testsig", serial, "--out", "signed", "--device", "mine"]
    wants = "-s mine shell cat /sys/devices/soc0/serial_number"
    path = with_adb(verb, tmp_path)
    ended = verb.run(*words, *libraries, PATH=path, ADB_WANTS=wants, SIGN_TOKEN="s3cr3t-value")
    assert ended.returncode == 0, ended.stderr
    out = tmp_path / "signed"
    assert (out / "testsig-0xdeadbeef.so").is_file()
    assert len(list(out.glob("*.so"))) == 3
    for shown in (ended.stdout, ended.stderr, *(path.read_text() for path in out.glob("s*"))):
        assert_nothing_shown(shown)
    # The stand-in prints both, so there was something to mask.
    assert "Signing for device *** with token ***" in (out / "signer.log").read_text()
    assert check_record(out) == ()
    verified = verb.run("sign", "--verify", "signed")
    assert verified.returncode == 0
    assert_nothing_shown(verified.stdout + verified.stderr)


def test_another_signer_command_gets_its_input_and_output_placeholders_filled(
    verb, libraries, tmp_path: Path
) -> None:
    script = Path(verb.environment["HEXAGON_SDK_ROOT"]) / "tools/elfsigner/elfsigner.py"
    python = find_interpreter()
    command = f"{python.path} {os.path.relpath(script, tmp_path)} -o {{output}} -i {{input}}"
    verb.environment.pop("HEXAGON_SDK_ROOT")
    ended = verb.run("sign", "--json", "--signer", command, "--out", "signed", *libraries)
    assert ended.returncode == 0, ended.stderr
    record = json.loads(ended.stdout)["record"]
    assert [Path(file["path"]).name for file in record["signer"]][1] == "elfsigner.py"
    assert record["libraries"][0]["arguments"] == ["-o", "OUT", "-i", "IN/libfirst.so"]
    refused = verb.run("sign", "--signer", command, "--testsig", "0x1", "--out", "other")
    assert refused.returncode == 2
    assert "{input}" in refused.stderr


def test_sign_dry_run_checks_every_library_and_writes_nothing(
    verb, libraries, take_snapshot, tmp_path: Path
) -> None:
    before = take_snapshot(tmp_path)
    verb.environment.pop("HEXAGON_SDK_ROOT")
    ended = verb.run("sign", "--json", "--dry-run", "--testsig", "adb", *libraries)
    assert ended.returncode == 0, ended.stderr
    data = json.loads(ended.stdout)
    assert [library["name"] for library in data["libraries"]] == ["libfirst.so", "libsecond.so"]
    assert data["signer"].startswith("none")
    assert data["testsig"] is True
    assert take_snapshot(tmp_path) == before
    libraries[1].write_bytes(b"\x7fELF")
    assert verb.run("sign", "--dry-run", *libraries).returncode == 3


def test_interrupt_ends_the_signer_and_publishes_nothing(verb, libraries, tmp_path: Path) -> None:
    process = verb.start("sign", "--out", "area/signed", *libraries, STAND_IN_FAILS="hang")
    assert process.stderr
    assert "signing libfirst.so" in process.stderr.readline()
    log = ".signed.staging-*/.scratch/0/out/Elfsigner_log.txt"
    wait_until(lambda: list((tmp_path / "area").glob(log)))
    process.send_signal(2)
    process.communicate()
    assert process.returncode == 130
    assert list((tmp_path / "area").iterdir()) == []
