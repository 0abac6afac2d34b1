"""Options of inspect that judge one file, and files that they do not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.__main__ import main
from provisioning.errors import ExitCode
from tests.stand_ins.android_apps import write_apk
from tests.stand_ins.lowered import make_program


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["net.pte", "net.pte", "--load"], "only one file can be judged"),
        (["net.pte", "--seal", "--load"], "only one file can be judged"),
        (["net.pte", "--load"], "neither a runtime nor an SoC is specified"),
        (["net.pte", "--strict"], "--strict is for an app, and net.pte is none"),
        (["net.pte", "--soc", "SM8650", "--soc", "SM8750"], "more than one --soc is for an app"),
        (["net.pte", "--soc", "SM1"], "SM1"),
        (["app.apk", "--soc", "SM1"], "SM1"),
        (["app.apk", "--runtime", "2.49"], "--runtime is for a program, and this is an app"),
        (["app", "--runtime", "2.49"], "--runtime is for a program, and this is an app"),
    ],
)
def test_options_that_do_not_fit_the_file_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.pte").write_bytes(make_program())
    write_apk(Path("app.apk"), {})
    Path("app").mkdir()
    assert main(["inspect", *arguments]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
