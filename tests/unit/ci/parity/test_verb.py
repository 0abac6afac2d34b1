"""`parity`: what it compares, and when it fails."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.verbs import parity as verb


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The requests, and at first the report that is given for the next one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    report = SimpleNamespace(failing=(), unread=())
    found: list[Any] = [report]
    monkeypatch.setattr(verb, "compare_source", lambda *given: (found.append(given[0]), report)[1])
    monkeypatch.setattr(verb, "render_table", lambda _, notes: f"notes {notes}\n")
    monkeypatch.setattr(verb, "render_document", lambda _: {})
    return found


@pytest.mark.parametrize(
    ("failing", "unread", "code"), [((), (), 0), ((1,), (), 1), ((), (1,), 1), ((1,), (1,), 1)]
)
def test_a_difference_and_a_side_that_is_not_read_fail(
    asked: list[Any], failing: tuple[int, ...], unread: tuple[int, ...], code: int
) -> None:
    asked[0].failing, asked[0].unread = failing, unread
    assert main(["parity"]) == code


def test_each_option_is_passed_on(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--rev",
        "a",
        "--base",
        "b",
        "--scope",
        "/x/",
        "--scope",
        "y",
        "--source",
        "t",
        "--notes",
    ]
    assert main(["parity", *words]) == 0
    assert main(["parity", "--no-cache"]) == 0
    _, first, second = asked
    assert (first.revision, first.base, first.scope) == ("a", "b", ("x", "y"))
    assert (Path(first.source).name, first.cache) == ("t", tmp_path / "home" / "parity")
    assert (second.revision, second.base, second.scope, second.cache) == (None, None, (), None)
    assert capsys.readouterr().out == "notes True\nnotes False\n"


def test_keys_of_a_policy_without_effect_are_each_told(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for generated, told in (((), ["queries"]), (("y",), ["generated", "queries"])):
        layout = SimpleNamespace(queries=("x",), generated=generated)
        policy = SimpleNamespace(layout=layout)
        monkeypatch.setattr(verb, "read_policy", lambda *_, found=policy: found)
        capsys.readouterr()
        assert main(["parity"]) == 0
        said = capsys.readouterr().err
        assert [key for key in ("generated", "queries") if f"layout.{key} in" in said] == told
