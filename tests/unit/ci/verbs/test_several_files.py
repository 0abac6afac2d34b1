"""Verbs that take several files: each is told, and each can fail the call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode
from tests.stand_ins.lowered import make_program


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    program = make_program()
    for name, data in {"right.pte": program, "cut.pte": program[:200]}.items():
        (tmp_path / name).write_bytes(data)
    log = "make: *** No space left on device\n"
    for name, text in {"quiet.log": "all is well\n", "full.log": log, "out/a.log": log}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_damaged_file_before_a_whole_one_fails_the_inspection(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["cut.pte", "right.pte"]
    assert main(["inspect", *names, "--json"]) == ExitCode.FAILED
    files = json.loads(capsys.readouterr().out)["files"]
    assert [Path(file["file"]).name for file in files] == names
    assert [file["size_bytes"] for file in files] == [
        (place / name).stat().st_size for name in names
    ]
    assert [bool(file["damage"]) for file in files] == [True, False]


@pytest.mark.parametrize(
    ("names", "causes"), [(["full.log", "quiet.log"], [1, 0]), (["quiet.log", "out"], [0, 1])]
)
def test_a_log_with_a_cause_before_or_after_others_fails_the_explanation(
    names: list[str], causes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *names, "--json"]) == ExitCode.FAILED
    logs = json.loads(capsys.readouterr().out)["logs"]
    assert [len(log["causes"]) for log in logs] == causes
