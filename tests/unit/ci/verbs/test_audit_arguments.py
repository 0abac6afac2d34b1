"""What a call of audit passes on, and what it leaves. Nothing is provisioned or lowered."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.audit.operators import Found, Partition
from ci.cases.engine import Fallback
from ci.cases.pool import Ended
from ci.facts.finding import NOWHERE
from ci.report.schema import Tool
from ci.verbs import audit as verb
from provisioning.artifacts.choice import ADAPTOR_VARIABLE, SDK_VARIABLE, QnnChoice
from provisioning.errors import ExitCode

LINEAR = ("aten.linear.default", NOWHERE)
WHOLE = Found({LINEAR: 2}, (), (Partition("forward", 2, 64, 16),), 80)
NOTHING = Found({}, (Fallback("aten.erf.default", "unsupported"),), (), 80)


@dataclass
class Asked:
    """What the partitioner was asked for, and in which environment; ``partitioned`` is its
    answer."""

    partitioned: Found = WHOLE
    failure: str = ""
    jobs: list[tuple[Any, float]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)

    def run(self, job: Any, log: Path, timeout_s: float, *, max_bytes: int) -> Any:
        assert job.log == log == job.work / "log"
        assert job.work.is_dir()
        assert max_bytes == 0  # the policy sets none
        self.jobs.append((job, timeout_s))
        return Ended((self.partitioned, 0.5), self.failure, "")

    @contextmanager
    def enter(self, profile: str, _: Any, **arguments: Any) -> Iterator[Any]:
        self.environment = {"profile": profile, **arguments}
        pool = SimpleNamespace(run=self.run, close=lambda: None)
        scratch = SimpleNamespace(open=lambda _: pool, scratch=Path("scratch"))
        Path("scratch").mkdir()
        yield SimpleNamespace(apply=lambda _: {}), scratch, None


TOOLS = (Tool(name="other", version="1"), Tool(name=verb.LIBRARY, version="2.49"))


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    for name in (SDK_VARIABLE, ADAPTOR_VARIABLE, "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.setenv(name, "")
    stand_in = Asked()
    monkeypatch.setattr(verb.steps, "enter_environment", stand_in.enter)
    monkeypatch.setattr(verb, "describe_toolchain", lambda _: TOOLS)
    monkeypatch.setattr(verb.steps, "require_packages", lambda *_: None)
    return stand_in


def run(*words: str) -> int:
    return main(["audit", "--model", "mlp", "--scheme", "fp16", "--json", *words])


def test_every_option_of_audit_reaches_the_audit(
    recorder: Asked,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    qnn: list[str] = []
    match = "ci.audit.operators.match_faults"
    monkeypatch.setattr(match, lambda *arguments, **_: qnn.append(arguments[2]) or ())
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk/sdk.yaml").touch()
    Path("qnn.toml").write_text('extends = "default"\n[schemes.fp16.outputs.0]\nmin_cosine = 0.5\n')
    words = ["--model", "lstm", "--soc", "SM8750", "--sdk", "sdk", "--policy", "qnn.toml"]
    words += ["--timeout-s", "7", "--offline", "--reports", "out", "--adaptor", "wheel"]
    assert run(*words) == ExitCode.OK
    data = json.loads(capsys.readouterr().out)
    assert [(case["model"], case["soc"]) for case in data["cases"]] == [
        *(("mlp", "SM8750"), ("lstm", "SM8750"))
    ]
    assert Path("out/audit/audit.json").is_file()
    assert {timeout_s for _, timeout_s in recorder.jobs} == {7}
    assert {job.work.name for job, _ in recorder.jobs} == {"audit-0", "audit-1"}
    chosen = QnnChoice(str(tmp_path / "sdk"), "wheel")
    assert (recorder.environment["offline"], recorder.environment["choice"]) == (True, chosen)
    assert (recorder.environment["profile"], qnn) == (chosen.profile, ["2.49", "2.49"])
    pairs = {*pairwise(shlex.split(data["command"]))}
    assert pairs >= {(f"--{name}", word) for name, word in chosen.options.items()}
    assert ("--policy", "qnn.toml") in pairs


@pytest.mark.parametrize(
    ("partitioned", "failure", "reason"),
    [(NOTHING, "", "QNN accepted no node"), (WHOLE, "killed by SIGKILL", "killed by SIGKILL")],
)
def test_a_case_that_fails_fails_the_audit_and_is_annotated_on_github(
    recorder: Asked,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    partitioned: Found,
    failure: str,
    reason: str,
) -> None:
    recorder.partitioned, recorder.failure = partitioned, failure
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    assert run() == ExitCode.FAILED
    printed = capsys.readouterr()
    (case,) = json.loads(printed.out)["cases"]
    assert case["status"] == "failed"
    assert reason in case["findings"][0]["headline"]
    assert "::error" in printed.err
    assert "mlp" in Path("summary.md").read_text()


def test_cases_are_listed_and_another_executorch_is_refused_without_an_environment(
    recorder: Asked, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--list"]) == ExitCode.OK
    assert "mlp" in capsys.readouterr().out
    assert run("--executorch", "1.0.7") == ExitCode.ENVIRONMENT
    assert "--executorch 1.0.7" in capsys.readouterr().err
    assert not recorder.environment
