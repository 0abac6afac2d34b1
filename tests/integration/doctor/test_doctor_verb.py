"""The doctor as a user runs it: exit codes, JSON by its schema, a device behind adb."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest

from provisioning.doctor.survey.host import survey_devices
from tests.stand_ins.forks import Forks, Run

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs" / "schemas" / "doctor.schema.json").read_text())
ADB = ROOT / "tests" / "stand_ins" / "adb"
DIRECTORY = "/data/local/tmp"


@pytest.fixture
def run_doctor(verbs: Forks) -> Run:
    """The doctor, with a store and no variables but those that are given."""

    def run(home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ["PATH"], "QNN_CI_HOME": str(home), **variables}
        return verbs.run_module("provisioning", "doctor", *words, cwd=ROOT, env=env)

    return run


def test_a_broken_environment_exits_with_3_and_leads_with_its_first_fault(
    tmp_path: Path, run_doctor: Run
) -> None:
    ended = run_doctor(tmp_path, "linux", f"--root=qnn-sdk={tmp_path / 'none'}")
    assert ended.returncode == 3
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("linux: not fit")
    assert lines[3].startswith("  QNN100")
    assert len(lines) <= 24
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "profile"),
    [
        (("emulator", "--shell", "--sdk=2.50.0.260828"), "emulator-sdk+qnn-sdk@2.50.0.260828"),
        (("onnx", "--sdk=2.50.0.260828"), "onnx-sdk+qnn-sdk@2.50.0.260828"),
        (("linux", "--sdk=2.50.0.260828"), "linux+qnn-sdk@2.50.0.260828"),
    ],
)
def test_a_missing_sdk_of_another_version_is_fetched_with_its_profile(
    tmp_path: Path, run_doctor: Run, words: tuple[str, ...], profile: str
) -> None:
    ended = run_doctor(tmp_path, *words, "--json")
    (fix,) = {
        finding["fix"]
        for finding in json.loads(ended.stdout)["findings"]
        if "qnn-sdk=" in finding["fix"]
    }
    assert f"fetch {profile}`" in fix


def test_json_fits_its_schema(tmp_path: Path, run_doctor: Run) -> None:
    ended = run_doctor(tmp_path, "android", f"--root=qnn-sdk={tmp_path}", "--device", "--json")
    verdict = json.loads(ended.stdout)
    jsonschema.validate(verdict, SCHEMA)
    assert (ended.returncode, verdict["fit"]) == (3, False)
    assert "QNN102" in {finding["id"] for finding in verdict["findings"]}


@pytest.mark.parametrize("change", [{"fit": "yes"}, {"schema_version": 3}, {"more": 1}])
def test_the_verdict_schema_refuses_changed_or_extra_fields(
    tmp_path: Path, change: dict[str, object], run_doctor: Run
) -> None:
    verdict = json.loads(run_doctor(tmp_path, "emulator", "--json").stdout)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**verdict, **change}, SCHEMA)


def test_a_wrong_profile_or_option_is_a_usage_error(tmp_path: Path, run_doctor: Run) -> None:
    assert run_doctor(tmp_path, "nonsense").returncode == 2
    assert run_doctor(tmp_path, "--root", "nonsense").returncode == 2
    assert run_doctor(tmp_path, "--soc", "SM1").returncode == 2


def test_a_root_option_that_the_profile_does_not_use_is_a_usage_error(
    tmp_path: Path, run_doctor: Run
) -> None:
    for name in ("qnn-skd", "android-ndk"):
        ended = run_doctor(tmp_path, "emulator", f"--root={name}={tmp_path}")
        assert (ended.returncode, "qnn-runtime, qnn-sdk" in ended.stderr) == (2, True)
    assert run_doctor(tmp_path, "emulator", f"--root=qnn-sdk={tmp_path}").returncode == 3


@pytest.fixture
def phone(tmp_path: Path) -> dict[str, str]:
    """A phone with one library of QNN on it, and the variables that attach it."""
    place = tmp_path / "phone" / "data" / "local" / "tmp"
    place.mkdir(parents=True)
    library = ROOT / "tests" / "artifacts" / "elf" / "libplaceholder_for_android.so"
    shutil.copy(library, place / "libQnnHtp.so")
    (tmp_path / "phone" / "properties").write_text(
        "ro.soc.model=SM8750\nro.build.version.release=15\nro.build.version.sdk=35\n"
    )
    path = f"{ADB.parent}:{os.environ['PATH']}"
    return {"PATH": path, "ADB_DEVICE": str(tmp_path / "phone")}


def test_a_phone_reports_its_soc_android_version_and_qnn_libraries(phone: dict[str, str]) -> None:
    (device,) = survey_devices(phone, DIRECTORY)
    assert (device.soc, device.android, device.api_level) == ("SM8750", "15", 35)
    assert (device.page_bytes, device.is_root) == (4096, False)
    assert device.free_mb is not None
    assert device.libraries == {"libQnnHtp.so": "v2.49.40.260810104044"}


def test_unusable_phone_or_broken_adb_gives_no_facts(phone: dict[str, str], tmp_path: Path) -> None:
    (device,) = survey_devices({**phone, "ADB_START": "1"}, DIRECTORY)
    assert device.serial == "emulator-5554"  # not what the server prints as it starts
    (device,) = survey_devices({**phone, "ADB_STATE": "unauthorized"}, DIRECTORY)
    assert (device.state, device.soc) == ("unauthorized", "")
    (tmp_path / "adb").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "adb").chmod(0o755)
    broken, gone = {"PATH": str(tmp_path)}, {"PATH": "/nonexistent"}
    for variables in ({**phone, "ADB_STATE": "none"}, broken, gone):
        assert survey_devices(variables, DIRECTORY) == ()


def test_a_device_with_another_soc_than_requested_is_a_warning(
    phone: dict[str, str], tmp_path: Path, run_doctor: Run
) -> None:
    words = ("linux", "--device", "--soc", "SM8650", "--json")
    verdict = json.loads(run_doctor(tmp_path, *words, **phone).stdout)
    jsonschema.validate(verdict, SCHEMA)
    severities = {finding["id"]: finding["severity"] for finding in verdict["findings"]}
    assert severities["QNN802"] == "warning"
