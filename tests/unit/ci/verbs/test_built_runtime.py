"""What a session makes of the runtime that a build of the same call left."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from ci.verbs.lanes import built
from ci.verbs.lanes.built import (
    Built,
    compare_built,
    explain_apart,
    find_built,
    find_qnn,
    follow_build,
)
from provisioning.artifacts.choice import QnnChoice
from provisioning.manifest.reader import read_toolchain

WHEEL_QNN = read_toolchain("qnn-runtime").default


def test_an_executorch_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def miss(name: str) -> str:
        raise PackageNotFoundError(name)

    assert built.installed_executorch() == "1.5.1"
    monkeypatch.setattr(built, "version", miss)
    assert built.installed_executorch() == ""
    assert follow_build(Built("build_android", "1.5.1", "2.37", "/sdk"), "") == ""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built, "version", {"executorch": "1.5.1"}.__getitem__)
    monkeypatch.delenv("QNN_CI_SDK", raising=False)


def write_builds(reports: Path, session: str, **identity: str) -> None:
    before = {"identity": {**identity, "qnn_sdk_version": "1.1"}, "lowers_with": "/other"}
    rows = [before, {"identity": identity, "lowers_with": "/sdk", "target": "any"}]
    (reports / session).mkdir(parents=True)
    (reports / session / "artifacts.json").write_text(json.dumps({"builds": rows}))


def test_only_what_this_call_built_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_builds(tmp_path, "build_linux", executorch_version="1.5.1", qnn_sdk_version="2.40")
    write_builds(tmp_path, "build_android", executorch_version="1.4.1", qnn_sdk_version="2.37")
    write_builds(tmp_path, "build_runner", wheel_version="1.5.1")  # the wheel's: no checkout
    write_builds(tmp_path, "parity", executorch_version="1.5.1", qnn_sdk_version="2.41")
    assert find_built(tmp_path) is None
    monkeypatch.setenv(built.FINISHED, "build_linux build_android build_runner parity")
    assert find_built(tmp_path) == Built("build_android", "1.4.1", "2.37", "/sdk")
    monkeypatch.setenv(built.FINISHED, "build_linux build_direct")
    assert find_built(tmp_path) == Built("build_linux", "1.5.1", "2.40", "/sdk")
    (tmp_path / "build_direct").mkdir()
    for text in ("{", "[]", '{"builds": []}'):
        (tmp_path / "build_direct/artifacts.json").write_text(text)
        assert find_built(tmp_path) == Built("build_linux", "1.5.1", "2.40", "/sdk")
    (tmp_path / "build_direct/artifacts.json").unlink()
    (tmp_path / "build_direct").rmdir()
    write_builds(tmp_path, "build_direct", executorch_version="1.5.0", qnn_sdk_version="2.39")
    assert find_built(tmp_path) == Built("build_direct", "1.5.0", "2.39", "/sdk")


@pytest.mark.parametrize(
    ("executorch", "qnn", "loads"),
    [
        ("1.5.1", WHEEL_QNN, True),
        ("1.5.1", "2.99.0", True),  # a runtime may be newer
        ("1.5.1", "2.37.0.250724", False),
        ("1.4.1", "2.99.0", False),
    ],
)
def test_a_runner_loads_programs_of_its_own_executorch_and_of_no_newer_qnn(
    executorch: str, qnn: str, loads: bool
) -> None:
    runtime = Built("build_android", executorch, qnn)
    told, found = compare_built(runtime, QnnChoice())
    assert found is loads
    for part in ("ExecuTorch 1.5.1", WHEEL_QNN, "build_android", executorch, qnn):
        assert part in told
    if not loads:
        assert f"QNN SDK {qnn}" in explain_apart(runtime)
        assert (f"--executorch {executorch}" in explain_apart(runtime)) is (executorch != "1.5.1")


def test_the_sdk_of_the_build_is_named_if_nothing_else_is_apart() -> None:
    assert "--sdk /of/the/build" in explain_apart(
        Built("build_linux", "1.5.1", "2.37", "/of/the/build")
    )


def test_the_qnn_of_a_choice_is_its_own(tmp_path: Path) -> None:
    (tmp_path / "sdk.yaml").write_text("version: 2.37.0.250724\n")
    assert find_qnn(QnnChoice()) == WHEEL_QNN
    assert find_qnn(QnnChoice("pinned")) == read_toolchain("qnn-sdk").default
    assert find_qnn(QnnChoice("2.40.0.251030")) == "2.40.0.251030"
    assert find_qnn(QnnChoice(str(tmp_path))) == "2.37.0.250724"
