"""What check-app passes on of its options; the app and the verdict on it are stand-ins."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.verbs import check_app
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UsageError


@pytest.mark.parametrize("words", [["--strict"], []])
def test_every_soc_and_the_severity_reach_the_verdict_on_each_unit(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    strict, seen = bool(words), list[Any]()

    def judge(unit: Any, socs: list[str]) -> list[Any]:
        seen.append((unit.name, socs))
        return []

    def choose(checked: list[Any], *, strict: bool) -> ExitCode:
        seen.append((len(checked), strict))
        return ExitCode.FAILED

    units = [SimpleNamespace(name=name) for name in ("first", "second")]
    monkeypatch.setattr(check_app, "read_app", lambda *_: units)
    monkeypatch.setattr(check_app, "judge_unit", judge)
    monkeypatch.setattr(
        check_app, "render_units", lambda *_, strict, width: f"{strict} {width > 0}"
    )
    monkeypatch.setattr(check_app, "data_of", lambda *given, strict: {"given": (*given, strict)})
    monkeypatch.setattr(check_app, "choose_exit", choose)
    parser = argparse.ArgumentParser()
    check_app.add_arguments(parser)
    args = parser.parse_args(["a.apk", "--soc", "sm8650", "--soc", "SM8750", *words])
    outcome = check_app.execute(args, Progress(None))
    socs = ["SM8650", "SM8750"]
    assert seen == [("first", socs), ("second", socs), (2, strict)]
    assert (outcome.text, outcome.exit_code) == (f"{strict} True", ExitCode.FAILED)
    name, checked, told, severity = outcome.data["given"]
    assert (name, told, severity) == (Path("a.apk").name, socs, strict)
    assert [one.unit.name for one in checked] == ["first", "second"]


def test_every_soc_is_a_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_app, "read_app", None)
    args = argparse.Namespace(app=Path("a.apk"), soc=["SM8650", "SM1"], strict=False)
    with pytest.raises(UsageError, match="SM1"):
        check_app.execute(args, Progress(None))


@pytest.mark.parametrize(("columns", "width"), [("10", 40), ("40", 40), ("50", 50), ("999", 100)])
def test_a_verdict_is_as_wide_as_the_terminal_within_limits(
    monkeypatch: pytest.MonkeyPatch, columns: str, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(check_app, "read_app", lambda *_: [])
    monkeypatch.setattr(check_app, "render_units", lambda *_, strict, width: f"{strict} {width}")
    args = argparse.Namespace(app=Path("a.apk"), soc=[], strict=False)
    assert check_app.execute(args, Progress(None)).text == f"False {width}"
