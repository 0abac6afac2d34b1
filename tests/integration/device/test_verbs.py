"""What a user types: stage, deploy, and the suite on a device."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from ci.__main__ import main
from ci.device.bundle import BUNDLE, FILES, Target, read_bundle
from ci.device.connection import Device
from ci.device.runner import DeviceRunner, lease_first
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, ToolError
from provisioning.files import hash_file
from tests.integration.device.conftest import PHONE_BY_DAY, Connect, Lab, tool

Capture = pytest.CaptureFixture[str]


def write_bundle(
    folder: Path,
    target: Target = Target.EMULATOR,
    soc: str = "SM8650",
    runner: str = "#!/bin/sh\n",
) -> Path:
    (folder / FILES).mkdir(parents=True)
    tool(folder / FILES, "runner", runner)
    sha256 = hash_file(folder / FILES / "runner")
    row = {"name": "runner", "sha256": sha256, "size_bytes": len(runner)}
    record = {"target": target.value, "socs": [soc], "runner": "runner", "qnn": "", "files": [row]}
    (folder / BUNDLE).write_text(json.dumps(record))
    return folder


def deploy(lab: Lab, bundle: Path, *words: str) -> int:
    return call_deploy(lab, "--bundle", str(bundle), "--json", *words)


def call_deploy(lab: Lab, *words: str) -> int:
    name = "ssh:board" if lab.device.name.startswith("ssh") else "adb:"
    return main(["deploy", "--device", name, "--place", str(lab.place), *words])


@PHONE_BY_DAY
def test_second_deploy_of_a_bundle_sends_nothing(lab: Lab, tmp_path: Path, capsys: Capture) -> None:
    bundle = write_bundle(tmp_path / "bundle")
    sent = []
    for _ in range(2):
        assert deploy(lab, bundle) == ExitCode.OK
        sent.append(json.loads(capsys.readouterr().out)["sent_bytes"])
    assert sent == [10, 0]
    assert not (lab.place / "lease").exists()
    assert call_deploy(lab, "--clean") == ExitCode.OK
    assert not lab.place.exists()


DF = """#!/bin/sh
case $2 in */full) echo 'disk 9 8 1 100% /full';; *) PATH=/usr/bin:/bin exec df "$@";; esac
"""


@PHONE_BY_DAY
def test_another_place_is_the_cure_of_one_that_cannot_be_used(
    lab: Lab, tmp_path: Path, capsys: Capture
) -> None:
    bundle, name = write_bundle(tmp_path / "bundle"), lab.device.name
    words = ["deploy", "--device", "ssh:board" if name.startswith("ssh") else "adb:"]
    tool(lab.bin, "df", DF)
    full, file, other = (lab.place.parent / name for name in ("full", "file", "other"))
    for folder in (full, other):
        folder.mkdir()
    for path in (file, other / "theirs"):
        path.touch()
    deploying = [*words, "--bundle", str(bundle), "--place"]
    assert main([*deploying, str(full)]) == ExitCode.DOWNLOAD
    assert "or pass another directory with --place" in " ".join(capsys.readouterr().err.split())
    assert main([*deploying, str(file / "below")]) == ExitCode.ENVIRONMENT
    assert "pass another directory with --place, or" in " ".join(capsys.readouterr().err.split())
    assert main([*deploying, str(lab.place)]) == ExitCode.OK
    assert main([*words, "--clean", "--place", str(other)]) == ExitCode.USAGE
    assert "--place with which the bundle was" in " ".join(capsys.readouterr().err.split())
    assert main([*words, "--clean", "--place", str(lab.place)]) == ExitCode.OK
    assert (other / "theirs").exists()


@PHONE_BY_DAY
@pytest.mark.parametrize(
    ("target", "soc", "word"),
    [
        (Target.LINUX, "SM8650", "x86_64"),
        (Target.ANDROID, "SM8750", "x86_64"),
    ],
)
def test_a_bundle_for_another_kind_of_device_is_not_sent(
    lab: Lab, tmp_path: Path, capsys: Capture, target: Target, soc: str, word: str
) -> None:
    assert deploy(lab, write_bundle(tmp_path / "bundle", target, soc)) == ExitCode.ENVIRONMENT
    assert word in capsys.readouterr().err
    assert not (lab.place / "bundles").exists()


DEPLOYED_TO_PHONE = {  # what the phone says and the bundle's target: whether it fits
    ("SM8650", Target.ANDROID): True,
    ("SM8750", Target.ANDROID): False,
    ("unheard-of", Target.ANDROID): True,  # what a phone calls itself need not be known
    ("SM8650", Target.LINUX): False,
}


def test_a_phone_s_soc_and_system_have_to_be_the_bundle_s(
    connect: Connect, tmp_path: Path, capsys: Capture
) -> None:
    connect()
    phone = tmp_path / "phone0"
    tool(phone / "bin", "uname", "#!/bin/sh\necho aarch64\n")
    for number, ((soc, target), fits) in enumerate(DEPLOYED_TO_PHONE.items()):
        (phone / "soc").write_text(f"{soc}\n")
        place = phone / f"there{number}"
        bundle = write_bundle(tmp_path / f"bundle{number}", target)
        words = ["deploy", "--device", "adb:", "--place", str(place), "--bundle", str(bundle)]
        assert main(words) == (ExitCode.OK if fits else ExitCode.ENVIRONMENT), (soc, target)
        assert (place / "bundles").exists() is fits


def give_up_lease_when_waited_for(patch: pytest.MonkeyPatch, lease: Path) -> None:
    """Whoever waits for a lease for the first time finds that its holder has given it up."""
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: shutil.rmtree(lease))
    patch.setattr("ci.device.runner.time", clock)


def test_deploy_waits_for_a_device_in_use_only_with_wait(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    place = tmp_path / "there"
    device = Device("here", ("sh", "-c"), str(place))
    monkeypatch.setattr("ci.verbs.deploy.open_device", lambda *_: device)
    bundle = read_bundle(write_bundle(tmp_path / "bundle"))
    words = ["deploy", "--device", "ssh:here", "--bundle", str(tmp_path / "bundle")]
    with lease_first([DeviceRunner(device, bundle, str(place), Progress())]):
        assert main(words) == ExitCode.ENVIRONMENT
        give_up_lease_when_waited_for(monkeypatch, place / "lease")
        assert main([*words, "--wait", "600"]) == ExitCode.OK


def here_with(tmp_path: Path, name: str, soc: str) -> Device:
    """A device of this computer that is a phone with an SoC."""
    programs = tmp_path / name[-1]  # ":" parts PATH
    programs.mkdir()
    tool(
        programs, "getprop", f"#!/bin/sh\ncase $1 in ro.soc.model) echo {soc};; *) echo 14;; esac\n"
    )
    tool(programs, "uname", "#!/bin/sh\necho aarch64\n")
    client = ("env", f"PATH={programs}:{os.environ['PATH']}", "sh", "-c")
    return Device(name, client, str(programs / "place"))


def test_any_chooses_the_first_free_device_with_the_requested_soc(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    socs = {"ssh:a": "SM8550", "ssh:b": "SM8650", "ssh:c": "SM8650"}
    devices = {name: here_with(tmp_path, name, soc) for name, soc in socs.items()}

    def find(word: str, _: str) -> Device:
        if word not in devices:
            raise ToolError(f"{word} cannot be reached")
        return devices[word]

    monkeypatch.setattr("ci.verbs.deploy.open_device", find)
    folder = write_bundle(tmp_path / "bundle", Target.ANDROID)
    bundle = read_bundle(folder)
    base = ["deploy", "--bundle", str(folder), "--json", "--any", "soc=sm8650"]
    words = [*base, *(word for name in ("ssh:off", *devices) for word in ("--device", name))]

    def deployed() -> str:
        assert main(words) == ExitCode.OK
        return str(json.loads(capsys.readouterr().out)["device"])

    assert deployed() == "ssh:b"
    runners = [DeviceRunner(devices[name], bundle, "", Progress()) for name in ("ssh:b", "ssh:c")]
    runners[0].renew()
    assert deployed() == "ssh:c"
    runners[1].renew()
    assert main(words) == ExitCode.ENVIRONMENT
    assert "all 2 devices are in use" in capsys.readouterr().err
    give_up_lease_when_waited_for(monkeypatch, tmp_path / "c/place/lease")
    words += ["--wait", "600"]
    assert deployed() == "ssh:c"
    assert main([*base, "--device", "ssh:a", "--device", "ssh:off"]) == ExitCode.ENVIRONMENT
    shown = capsys.readouterr().err
    assert "no usable device with SM8650" in shown
    assert "ssh:a has SM8550" in shown
    assert "ssh:off cannot be reached" in shown


def test_options_that_contradict_each_other_are_usage_errors(
    tmp_path: Path, capsys: Capture
) -> None:
    bundle = str(write_bundle(tmp_path / "bundle"))
    base = ["test-emulator", "--device", "ssh:board"]
    for words in (
        ["--bundle", bundle, "--runner", "cpp"],
        [],
        ["--bundle", bundle, "--soc", "SM8550"],
        ["--bundle", bundle, "--starts", "-1"],
    ):
        assert main([*base, *words]) == ExitCode.USAGE
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    runner = str(tmp_path / "bundle" / FILES / "runner")
    words = ["stage", "--soc", "SM8650", "--runner", runner, "--runtime", str(tmp_path)]
    assert main([*words, "--out", str(tmp_path / "full")]) == ExitCode.USAGE
    assert main([*words[:-1], "no-such-artifact", "--out", str(tmp_path / "o")]) == ExitCode.USAGE
    assert main([*words, "--out", str(tmp_path / "o")]) == ExitCode.ENVIRONMENT
