"""What `stage` tells about files and libraries that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.verbs.stage import check_files, find_runtime
from provisioning.artifacts import environment
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError, UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_runtime_is_a_directory_or_an_artifact(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'runtime' is neither a directory nor an artifact"):
        find_runtime("runtime", Progress())
    with pytest.raises(UsageError, match="has no version 1"):
        find_runtime("qnn-runtime@1", Progress())
    for word in ("qnn-runtime", "qnn-sdk:base", "android+qnn-sdk@2.37.0.250724"):
        with pytest.raises(UnfitError, match="is not provisioned"):
            find_runtime(word, Progress())
    (tmp_path / "runtime").mkdir()
    assert find_runtime("runtime", Progress()) == tmp_path / "runtime"


def test_a_profile_stands_for_its_qnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "find_libraries", lambda _: {})  # libatomic is needed, too
    for profile, name in (("emulator", "qnn-runtime"), ("emulator-sdk", "qnn-sdk")):
        with pytest.raises(UnfitError, match=f"{name} .*is not provisioned"):
            find_runtime(profile, Progress())


def test_a_missing_runner_tells_which_session_builds_it(tmp_path: Path, home: Path) -> None:
    runner, program = tmp_path / "qnn_executor_runner", tmp_path / "m.pte"
    with pytest.raises(UsageError, match="qnn_executor_runner is not a file") as caught:
        check_files(runner, [program])
    assert "-s build_android" in caught.value.fix
    assert str(home / "builds") in caught.value.fix
    runner.touch()
    with pytest.raises(UsageError, match=r"m\.pte is not a file") as caught:
        check_files(runner, [program])
    assert "build" not in caught.value.fix
    program.touch()
    check_files(runner, [program])
