"""What `stage` tells about files and libraries that do not exist."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from ci.verbs import stage as verb
from ci.verbs.stage import check_files, find_runtime
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.console.progress import Progress
from provisioning.errors import UnfitError, UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_runtime_is_a_directory_or_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="'runtime' is neither a directory nor an artifact"):
        find_runtime("runtime", Progress())
    with pytest.raises(UsageError, match="has no version 1"):
        find_runtime("qnn-runtime@1", Progress())
    for word in ("qnn-runtime", "qnn-sdk:base", "android+qnn-sdk@2.37.0.250724"):
        with pytest.raises(UnfitError, match="is not provisioned"):
            find_runtime(word, Progress())
    (tmp_path / "runtime").mkdir()
    for caller in (True, False):
        if not caller:
            monkeypatch.delenv("QNN_CI_CALLER_DIR")
        assert find_runtime("runtime", Progress()) == tmp_path / "runtime"
    requests = []
    monkeypatch.setattr(
        verb, "locate_artifact", lambda *words: requests.append(words[0]) or words[0]
    )
    monkeypatch.setattr(
        ArtifactRequest, "root", property(lambda request: request.name), raising=False
    )
    assert find_runtime("android+qnn-sdk@2.43.0.260128", Progress()) == "qnn-sdk"
    assert (requests[0].release.version, requests[0].options.offline) == ("2.43.0.260128", True)


def test_a_missing_runner_tells_which_session_builds_it(tmp_path: Path, home: Path) -> None:
    runner, program = tmp_path / "qnn_executor_runner", tmp_path / "m.pte"
    with pytest.raises(UsageError, match="qnn_executor_runner is not a file") as caught:
        check_files(runner, [program])
    assert "qnn-ci build android" in caught.value.fix
    assert str(home / "builds") in caught.value.fix
    runner.touch()
    with pytest.raises(UsageError, match=r"m\.pte is not a file") as caught:
        check_files(runner, [runner, program])
    assert "build" not in caught.value.fix
    assert "--keep-artifacts" in caught.value.fix
    program.touch()
    check_files(runner, [program])


def test_only_an_empty_directory_or_a_bundle_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "runner").touch()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    args = Namespace(
        runner=tmp_path / "runner",
        program=[],
        cases=None,
        evidence=None,
        signed=None,
        out=tmp_path / "out",
        runtime=["nothing"],
        force=False,
    )
    with pytest.raises(UsageError, match=r"mine\.txt would be overwritten"):
        verb.execute(args, Progress())
    for name in ("cases", "evidence", "signed"):
        with pytest.raises(UsageError, match=r"mine\.txt is not a directory"):
            verb.execute(Namespace(**{**vars(args), name: tmp_path / "out/mine.txt"}), Progress())
    (tmp_path / "out" / "mine.txt").unlink()
    (tmp_path / "empty").mkdir()
    for out in ("out", "empty", "gone"):
        with pytest.raises(UsageError, match="neither a directory nor an artifact"):
            verb.execute(Namespace(**{**vars(args), "out": tmp_path / out}), Progress())
    for name, path in (("runner", tmp_path / "r"), ("program", [tmp_path / "m.pte"])):
        with pytest.raises(UsageError, match="is not a file"):
            verb.execute(Namespace(**{**vars(args), name: path}), Progress())
