"""The C++ runner is built from the C++ SDK in the wheel; nothing is compiled here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.builds import runner
from provisioning.console.progress import Progress
from provisioning.errors import FailedError, UnfitError


def install(monkeypatch: pytest.MonkeyPatch, *places: Path) -> None:
    """Let ``places`` be the directories of the installed package; without one, it is missing."""
    spec = SimpleNamespace(submodule_search_locations=[*map(str, places)]) if places else None
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: spec if name == "executorch" else 1
    )


def make_sdk(place: Path, *lacks: str) -> Path:
    for part in {"include", "lib", "share/cmake"} - {*lacks}:
        (place / part).mkdir(parents=True)
    return place


def test_a_wheel_has_an_sdk_with_all_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = [make_sdk(tmp_path / part[:3], part) for part in ("include", "lib", "share/cmake")]
    complete = make_sdk(tmp_path / "whole")
    install(monkeypatch, *lacking, complete)
    assert runner.find_wheel_sdk() == complete
    install(monkeypatch, *lacking)
    with pytest.raises(UnfitError, match=r"has no C\+\+ SDK") as caught:
        runner.find_wheel_sdk()
    assert "pip install " in caught.value.fix
    a_file = SimpleNamespace(submodule_search_locations=None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: a_file)
    with pytest.raises(UnfitError, match=r"has no C\+\+ SDK"):
        runner.find_wheel_sdk()
    install(monkeypatch)
    with pytest.raises(UnfitError, match="executorch is not installed in this Python") as caught:
        runner.find_wheel_sdk()
    assert "pip install " in caught.value.fix


def test_only_a_runner_that_was_published_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [SimpleNamespace(errors=("one", "two")), SimpleNamespace(errors=("three",))]
    result: Any = SimpleNamespace(
        published=True,
        artifacts=errors,
        plan=SimpleNamespace(place=SimpleNamespace(artifacts=tmp_path)),
    )
    monkeypatch.setattr(runner, "prepare_runner", lambda target, *_: target.name)
    monkeypatch.setattr(runner, "run_build", lambda job, _: result if job == "runner" else None)
    assert runner.ensure_wheel_runner(Progress(None)) == tmp_path / "qnn_wheel_runner"
    result.published = False
    with pytest.raises(FailedError) as caught:
        runner.ensure_wheel_runner(Progress(None))
    assert caught.value.why == "one\ntwo\nthree"
