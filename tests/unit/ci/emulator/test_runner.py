from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ci.cases.runners import ProgramRunner, find_program
from provisioning.errors import UsageError


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "a folder" / "run.sh"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.delenv("QNN_CI_CALLER_DIR", raising=False)
    monkeypatch.chdir(path.parent)
    return path


@pytest.mark.parametrize(
    "word", ["./run.sh", "'../a folder/run.sh' run.sh ./run.sh x", "sh run.sh"]
)
def test_paths_of_a_runner_hold_wherever_it_is_started(runner: Path, word: str) -> None:
    found = find_program(word, {})
    assert isinstance(found, ProgramRunner)
    words = [one for one in found.argv if "run.sh" in one]
    assert set(words) == {str(runner)}
    assert Path(found.argv[0]).is_absolute()


def test_a_virtual_environment_s_python_is_not_the_one_it_was_made_of(runner: Path) -> None:
    for place in (runner.parent / "venv-python", runner.parent / "link.sh"):
        place.symlink_to(sys.executable if place.name == "venv-python" else runner)
    found = find_program("./venv-python link.sh", {})
    assert isinstance(found, ProgramRunner)
    assert [*found.argv] == [str(runner.parent / name) for name in ("venv-python", "link.sh")]
    assert found.name == "venv-python"


@pytest.mark.parametrize("word", ["./gone.sh", "gone-from-the-path", "'", ""])
def test_a_runner_that_is_not_there_is_a_usage_error(runner: Path, word: str) -> None:
    with pytest.raises(UsageError, match="no runner"):
        find_program(word, {})


def test_a_runner_that_may_not_be_run_is_a_usage_error(runner: Path) -> None:
    runner.chmod(0o644)
    with pytest.raises(UsageError, match="no runner"):
        find_program("./run.sh", {})
