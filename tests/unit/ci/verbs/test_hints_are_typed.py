"""Each fix that names an option or a command is typed in a situation that prints it.

``typed_hints`` of tests/unit/conftest.py does this for each call of ``main`` in a unit test; the
rows of tests/typed_fixes.py are the situations of the fixes that no other test prints.
"""

from __future__ import annotations

import argparse
import shlex
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from ci.__main__ import main
from ci.gate.schema import Plan
from ci.report.schema import CaseName
from provisioning.console import command
from provisioning.console.command import Outcome, Verb
from provisioning.errors import ExitCode, UsageError
from tests.typed_fixes import ROWS
from tests.typed_hints import Typist

POLICY = 'extends = "default"\n[models.m]\npath = "net.py:factory"\n'
MIXTURE = (
    '[models.m.mixtures.mixed]\nbase = "8a8w"\nparts = [{ type = "Linear", scheme = "16a8w" }]\n'
)


TFLITE = 'extends = "default"\n[models.net]\npath = "net.tflite"\n'


def refuse(*_: Any) -> None:
    raise ConnectionRefusedError


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's directory, in which nothing is provisioned, and a Python with all packages."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "nothing is provisioned"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    for module in ("steps", "trials", "upgrade_matrix"):
        monkeypatch.setattr(f"ci.verbs.{module}.require_packages", lambda *_: None)
    (tmp_path / "net.py").write_text("def factory(): ...\n")
    for name in ("net.onnx", "net.tflite", "net.pte", "libQnnHtp.so"):
        (tmp_path / name).touch()
    for name in ("folder", "files"):
        (tmp_path / name).mkdir()
    (tmp_path / "files/net.onnx").touch()
    (tmp_path / "tree/backends/qualcomm").mkdir(parents=True)
    (tmp_path / "tree/CMakeLists.txt").touch()
    case = CaseName(model="mlp", scheme="fp16", soc="SM8650")
    for name, cases in (("plan", (case,)), ("empty", ())):
        plan = Plan(base="before", head="now", cases=cases)
        (tmp_path / f"{name}.json").write_bytes(msgspec.json.encode(plan))
    (tmp_path / "qnn.toml").write_text(POLICY + MIXTURE)
    (tmp_path / "both.toml").write_text(f'{POLICY}[models.o]\npath = "net.onnx"\n')
    (tmp_path / "traced.toml").write_text(
        f'{POLICY}[models.m.lowering]\nprofile_level = "detailed"\n'
    )
    (tmp_path / "lpai.toml").write_text(f"{POLICY}[models.m.run]\nlpai_fps = 30\n")
    return tmp_path


@pytest.mark.parametrize(("words", "fix"), ROWS)
def test_no_hint_of_a_refusal_ends_in_another_refusal(
    place: Path, typed_hints: Typist, capsys: pytest.CaptureFixture[str], words: str, fix: str
) -> None:
    assert main(shlex.split(words)) in {ExitCode.USAGE, ExitCode.ENVIRONMENT, ExitCode.TOOL}
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
