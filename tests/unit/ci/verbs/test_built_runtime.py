"""What a session makes of the runtime that a build of the same call left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.verbs import built
from ci.verbs.built import Built, compare_built, explain_apart, find_built, find_qnn
from provisioning.artifacts.choice import QnnChoice
from provisioning.manifest.reader import read_toolchain

WHEEL_QNN = read_toolchain("qnn-runtime").default


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built, "version", {"executorch": "1.5.1"}.__getitem__)
    monkeypatch.delenv("QNN_CI_SDK", raising=False)


def write_builds(reports: Path, session: str, **identity: str) -> None:
    before = {"identity": {**identity, "qnn_sdk_version": "1.1"}, "lowers_with": "/other"}
    rows = [before, {"identity": identity, "lowers_with": "/sdk", "target": "any"}]
    (reports / session).mkdir(parents=True)
    (reports / session / "artifacts.json").write_text(json.dumps({"builds": rows}))


def test_only_runtimes_that_this_call_built_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session, executorch, qnn in (
        *(("build_linux", "1.5.1", "2.40"), ("build_android", "1.4.1", "2.37")),
        ("parity", "1.5.1", "2.41"),
    ):
        write_builds(tmp_path, session, executorch_version=executorch, qnn_sdk_version=qnn)
    write_builds(tmp_path, "build_runner", wheel_version="1.5.1")  # the wheel's: no checkout
    (tmp_path / "build_direct").mkdir()
    linux = Built("build_linux", "1.5.1", "2.40", "/sdk")
    android = Built("build_android", "1.4.1", "2.37", "/sdk")
    for finished, newest in (
        ("", None),
        ("build_linux build_android build_runner parity", android),
        ("build_linux build_direct", linux),
    ):
        monkeypatch.setenv(built.FINISHED, finished)
        assert find_built(tmp_path) == newest
    for text in ("{", "[]", '{"builds": []}'):
        (tmp_path / "build_direct/artifacts.json").write_text(text)
        assert find_built(tmp_path) == linux


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
    runtime = Built("build_android", executorch, qnn, "/of/the/build")
    comparison, is_loaded = compare_built(runtime, QnnChoice())
    assert is_loaded is loads
    for part in ("ExecuTorch 1.5.1", WHEEL_QNN, "build_android", executorch, qnn):
        assert part in comparison
    apart = explain_apart(runtime)
    assert (f"--executorch {executorch}" in apart) is (executorch != "1.5.1")
    assert ("--sdk /of/the/build" in apart) is (executorch == "1.5.1")


def test_each_sdk_choice_gives_its_qnn_version(tmp_path: Path) -> None:
    (tmp_path / "sdk.yaml").write_text("version: 2.37.0.250724\n")
    assert find_qnn(QnnChoice()) == WHEEL_QNN
    assert find_qnn(QnnChoice("pinned")) == read_toolchain("qnn-sdk").default
    assert find_qnn(QnnChoice("2.40.0.251030")) == "2.40.0.251030"
    assert find_qnn(QnnChoice(str(tmp_path))) == "2.37.0.250724"
