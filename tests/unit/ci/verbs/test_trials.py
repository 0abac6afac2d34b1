"""The environment in which small graphs are tried, and the versions that a matrix shows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.faults.known import read_faults
from ci.models.schemes import Scheme
from ci.onnx.options import HTP
from ci.onnx.toolchain import RUNTIMES
from ci.verbs import trials
from provisioning.artifacts.choice import QnnChoice
from provisioning.console.progress import Progress
from provisioning.errors import ExitCode, UsageError
from tests.stand_ins.android_apps import BUILD, library


@pytest.fixture
def entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the environment was entered with, and which variables its workers get."""
    entered_with: dict[str, Any] = {}

    @contextmanager
    def enter(profile: str, _: Any, **arguments: Any) -> Iterator[Any]:
        entered_with.update(profile=profile, **arguments)

        def start(variables: dict[str, str]) -> str:
            entered_with["variables"] = variables
            return "workers"

        names = ("other", *RUNTIMES)
        artifacts = [SimpleNamespace(name=name, root=tmp_path / name) for name in names]
        environment = SimpleNamespace(
            apply=lambda variables: {**variables, "APPLIED": "1"}, artifacts=artifacts
        )
        yield environment, SimpleNamespace(scratch=tmp_path, open=start), None

    def require(names: Any, extra: str) -> None:
        entered_with["packages"] = (tuple(names), extra)

    monkeypatch.setattr(trials, "enter_environment", enter)
    monkeypatch.setattr(trials, "require_packages", require)
    return entered_with


def put_library(place: Path, build: str) -> Path:
    """Put libQnnHtp.so into the runtime, and return its root."""
    root = place / RUNTIMES[0]
    (root / HTP).parent.mkdir(parents=True)
    data = library("libQnnHtp.so").replace(BUILD.encode(), build.encode().ljust(len(BUILD)))
    (root / HTP).write_bytes(data)
    return root


def test_a_trial_uses_the_qnn_version_and_library_of_the_runtime(
    entered: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(trials, "choose_options", lambda scheme, soc, _: {"soc": soc, "s": scheme})
    monkeypatch.setattr(trials, "find_library", lambda root, _: root / HTP)
    root = put_library(tmp_path, BUILD)
    usual = QnnChoice("", "")
    with trials.open_bench("onnx", usual, Progress(), offline=True) as bench:
        assert bench.qnn == "2.49.99"
        for _ in range(2):
            trial = bench.make(Scheme.FP16, "SM8750")
    assert entered["offline"]
    assert "PYTHONPATH" not in entered["variables"]
    assert trial.job.options == {"backend_path": str(root / HTP), "soc": "SM8750", "s": Scheme.FP16}
    assert (trial.workers, trial.job.frontend, trial.job.scheme, trial.job.soc) == (
        *("workers", "onnx", Scheme.FP16, "SM8750"),
    )
    assert trial.scratch == tmp_path / "fp16-SM8750"
    assert trial.scratch.is_dir()
    with trials.open_bench("executorch", usual, Progress()) as bench:
        assert bench.make(Scheme.FP16, "SM8750").job.options == {}


@pytest.mark.parametrize(
    ("frontend", "requested", "chosen"),
    [
        ("onnx", [], ["fp16", "u8", "u16a8w"]),
        ("executorch", [], ["fp16", "8a8w", "16a8w"]),
        ("executorch", ["16a4w", "8a8w", "16a4w"], ["16a4w", "8a8w"]),
    ],
)
def test_the_schemes_of_a_trial_depend_on_the_front_end(
    frontend: Any, requested: list[str], chosen: list[str]
) -> None:
    assert [scheme.value for scheme in trials.choose_schemes(frontend, requested)] == chosen
    for word in ("8a8w", "asis"):
        message = rf"--scheme {word} is not supported by onnx(.|\n)*u16a8w"
        with pytest.raises(UsageError, match=message):
            trials.choose_schemes("onnx", ["u8", word])


def test_a_matrix_with_known_shows_recorded_results_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fault = read_faults()[0].name
    matrix = ["upgrade-report", "--matrix"]
    assert main([*matrix, "--known", "--fault", fault, "--json"]) == ExitCode.OK
    text = capsys.readouterr().out
    assert fault in text
    assert not any(other_fault.name in text for other_fault in read_faults()[1:])
    assert json.loads(text)
    assert main([*matrix, "--fault", fault, "--fault", "no-such"]) == ExitCode.USAGE
    assert "no-such" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]
