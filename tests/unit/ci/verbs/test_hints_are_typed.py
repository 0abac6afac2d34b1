"""Each fix that names an option or a command is typed in a situation that prints it.

``typed_hints`` of tests/unit/conftest.py does this for each call of ``main`` in a unit test; the
rows of tests/typed_fixes.py are the situations of the fixes that no other test prints.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.device.bundle import BUNDLE, FILES, Target
from ci.gate.schema import Plan
from ci.report.claim import LOCK
from ci.report.schema import CaseName
from ci.report.write import write_report
from provisioning.console import command
from provisioning.console.command import Outcome, Verb
from provisioning.errors import ExitCode, UsageError
from tests.documented.pages import ROOT
from tests.stand_ins import android_apps
from tests.stand_ins.lowered import make_program
from tests.stand_ins.reports import make_report
from tests.typed_fixes import ROWS
from tests.typed_hints import Typist

POLICY = 'extends = "default"\n[models.m]\npath = "net.py:factory"\n'
MIXTURE = (
    '[models.m.mixtures.mixed]\nbase = "8a8w"\nparts = [{ type = "Linear", scheme = "16a8w" }]\n'
)


TFLITE = 'extends = "default"\n[models.net]\npath = "net.tflite"\n'


# An adb that lists two phones, neither of which is ready.
ADB = r"test $1 = devices && printf '1\toffline\n2\toffline\n'"


def refuse(*_: Any) -> None:
    raise ConnectionRefusedError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory, in which nothing is provisioned, and a Python with all packages."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "nothing is provisioned"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("DOCKER_HOST", "no engine")
    for module in ("steps", "trials", "upgrade_matrix"):
        monkeypatch.setattr(f"ci.verbs.{module}.require_packages", lambda *_: None)
    (tmp_path / "net.py").write_text("def factory(): ...\n")
    for name in ("net.onnx", "net.tflite", "net.pte", "run.log"):
        (tmp_path / name).touch()
    for name in ("folder", "files"):
        (tmp_path / name).mkdir()
    (tmp_path / "files/net.onnx").touch()
    (tmp_path / "tree/backends/qualcomm").mkdir(parents=True)
    (tmp_path / "tree/CMakeLists.txt").touch()
    (tmp_path / "checkout").symlink_to(ROOT / "tests/stand_ins/tiny_executorch")
    case = CaseName(model="mlp", scheme="fp16", soc="SM8650")
    for name, cases in (("plan", (case,)), ("empty", ())):
        plan = Plan(base="before", head="now", cases=cases)
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(plan))
    (tmp_path / "qnn.toml").write_text(POLICY + MIXTURE)
    (tmp_path / "both.toml").write_text(f'{POLICY}[models.o]\npath = "net.onnx"\n')
    (tmp_path / "traced.toml").write_text(
        f'{POLICY}[models.m.lowering]\nprofile_level = "detailed"\n'
    )
    (tmp_path / "program.pte").write_bytes(make_program())
    with zipfile.ZipFile(tmp_path / "app.aab", "w") as bundle:
        bundle.writestr("BundleConfig.pb", b"")
    tiny = ROOT / "ci/llm/tiny"
    (tmp_path / "weights.bin").symlink_to(tiny / "weights.bin")
    pieces = 2 * (b"\0\0\x80\x3f\x01\0\0\0" + b"a")  # two of one text
    (tmp_path / "small.bin").write_bytes(b"\x01\0\0\0" + pieces)
    name = "libQnnHtpV75Skel.so"
    (tmp_path / name).write_bytes(android_apps.skel(name, 0x75))
    runner = b"#!/bin/sh\n"
    (tmp_path / "bundle" / FILES).mkdir(parents=True)
    (tmp_path / "bundle" / FILES / "runner").write_bytes(runner)
    file = {"name": "runner", "sha256": sha256(runner).hexdigest(), "size_bytes": len(runner)}
    record = {"target": Target.ANDROID.value, "socs": ["SM8650"], "runner": "runner", "qnn": ""}
    (tmp_path / "bundle" / BUNDLE).write_text(json.dumps({**record, "files": [file]}))
    for name, text in (("broken", "exit 1"), ("programs/adb", ADB)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:{os.environ['PATH']}")
    write_report(replace(make_report([]), session="fuzz"), tmp_path / "judged")
    (tmp_path / "judged/compiled.pte").write_bytes(make_program())
    (tmp_path / "taken/test_emulator").mkdir(parents=True)
    (tmp_path / "taken/test_emulator" / LOCK).symlink_to("elsewhere")
    (tmp_path / "lpai.toml").write_text(f"{POLICY}[models.m.run]\nlpai_fps = 30\n")
    return tmp_path


@pytest.mark.parametrize(("words", "fix"), ROWS)
def test_no_hint_of_a_refusal_ends_in_another_refusal(
    place: Path, typed_hints: Typist, capsys: pytest.CaptureFixture[str], words: str, fix: str
) -> None:
    assert main(shlex.split(words)) != ExitCode.OK
    message = capsys.readouterr().err
    printed = " ".join(message.replace("python -m ci ", "qnn-ci ").split())
    if fix not in printed:
        pytest.fail(f"{printed} does not contain {fix}", pytrace=False)


def test_a_policy_that_was_found_is_sent_to_the_lane_of_its_files(
    place: Path, typed_hints: Typist, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "qnn.toml").write_text(TFLITE)
    assert main(["test-onnx"]) == ExitCode.USAGE
    assert "run `python -m ci test-litert --model net`" in " ".join(capsys.readouterr().err.split())


def test_a_policy_that_is_a_directory_is_replaced_by_another(
    place: Path, typed_hints: Typist, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "qnn.toml").unlink()
    (place / "qnn.toml").mkdir()
    assert main(["test-emulator"]) == ExitCode.USAGE
    message = " ".join(capsys.readouterr().err.split())
    assert "or `--policy default` to test this project's own suite" in message


PLANTED = {
    "pass --scheme fp16": "ends in the same error",
    "leave out --scheme": "is refused: qnn-ci plant: it needs --scheme",
    "add --gone": "plant has no --gone",
    "run `qnn-ci plant --scheme other`": "ends in the same error",
    "pass --scheme right": "",
    "pass --scheme NAME": "",
}


@pytest.mark.parametrize(("fix", "fault"), PLANTED.items())
def test_a_fix_that_ends_in_an_error_again_is_found(
    monkeypatch: pytest.MonkeyPatch, typed_hints: Typist, fix: str, fault: str
) -> None:
    plant = ModuleType("tests.planted_verb")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--scheme")

    def execute(args: argparse.Namespace, _: Any) -> Outcome:
        if args.scheme is None:
            raise UsageError("it needs --scheme")
        if args.scheme != "right":
            raise UsageError("this scheme is wrong", fix=fix)
        return Outcome("right", {})

    plant.add_arguments, plant.execute = add_arguments, execute  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, plant.__name__, plant)
    verbs = {"plant": Verb(plant.__name__, "a planted verb")}
    assert command.run_command("qnn-ci", verbs, ["plant", "--scheme", "wrong"])[0] == 2
    faults = typed_hints.find_faults()
    typed_hints.refused.clear()
    assert len(faults) == bool(fault)
    assert all(text.endswith(fault) for text in faults)
