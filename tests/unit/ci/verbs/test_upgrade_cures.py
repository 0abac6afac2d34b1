"""`upgrade-report --model`: which versions are run for the user's red cases, and what is told."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from ci.__main__ import main
from ci.audit.cures import CureReport
from ci.audit.upgrade import Difference
from ci.report.schema import Case, JudgementFacts, Report, Status
from ci.verbs import upgrade_cures
from ci.verbs.sides import Side
from ci.verbs.upgrade_runs import UpgradeRequest
from provisioning.errors import DownloadError, ExitCode
from tests.stand_ins.reports import make_report


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    for name in ("net.onnx", "net.tflite"):
        (tmp_path / name).touch()
    (tmp_path / "net.py").write_text("def factory(): ...\n")
    return tmp_path


def make_cases(statuses: dict[str, Status]) -> Report:
    return make_report(
        [
            Case(
                model="net.onnx", scheme=scheme, soc="SM8650", judgement=JudgementFacts(status=row)
            )
            for scheme, row in statuses.items()
        ]
    )


RED, GREEN = Status.FAILED, Status.PASSED


class Versions:
    """Stands in for the runs: ``statuses`` are those of the cases by version and scheme."""

    def __init__(self, statuses: dict[str, dict[str, Status]]) -> None:
        self.statuses = statuses
        self.requests: dict[str, UpgradeRequest] = {}

    def find(self, word: str, session: str, _: Any) -> Side:
        if word not in self.statuses:
            raise DownloadError(f"pip could not fetch {word}")
        return Side(word, session=session)

    def run(
        self, side: Side, request: UpgradeRequest, _: Any, failures: list[Difference]
    ) -> Report | None:
        self.requests[side.name] = request
        statuses = self.statuses[side.name]
        if statuses:
            return make_cases(statuses)
        failures.append(Difference(side.name, "run", "a report", "exited with 3", "worse"))
        return None


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(statuses: dict[str, dict[str, Status]], words: str) -> tuple[int, Versions]:
        versions = Versions(statuses)
        monkeypatch.setattr(upgrade_cures, "find_side", versions.find)
        monkeypatch.setattr(upgrade_cures, "run_side", versions.run)
        monkeypatch.setattr(upgrade_cures.metadata, "version", lambda _: "2.5.0")
        index = SimpleNamespace(output="Available versions: 2.9.0, 2.8.0rc1, 2.7.0, 2.1.0\n")
        monkeypatch.setattr(upgrade_cures, "run_process", lambda *_, **__: index)
        return main(["upgrade-report", *shlex.split(words)]), versions

    return run


def read_cures() -> CureReport:
    return msgspec.json.decode(Path("reports/upgrade/cures.json").read_bytes(), type=CureReport)


def test_all_versions_of_the_provider_judge_the_red_cases_alone(run: Any) -> None:
    code, versions = run(
        {
            "onnxruntime-qnn==2.5.0": {"u8": RED, "fp16": GREEN},
            "onnxruntime-qnn==2.3.0+onnxruntime==1.26.0": {"u8": RED},
            "onnxruntime-qnn==2.4.0": {},
            "onnxruntime-qnn==2.6.0": {"u8": GREEN},
            "onnxruntime-qnn==2.7.0": {"u8": GREEN},
        },
        "--model net.onnx",
    )
    assert code == ExitCode.OK
    assert [*versions.requests] == [
        "onnxruntime-qnn==2.5.0",  # the installed one first
        "onnxruntime-qnn==2.3.0+onnxruntime==1.26.0",  # with the ONNX Runtime that it needs
        *(f"onnxruntime-qnn=={version}" for version in ("2.4.0", "2.6.0", "2.7.0")),
    ]
    assert versions.requests["onnxruntime-qnn==2.5.0"].schemes == ()
    assert versions.requests["onnxruntime-qnn==2.7.0"].schemes == ("u8",)
    report = read_cures()
    # 2.9.0 is newer than what this project has tried, and the index serves it.
    assert report.failures == {
        "onnxruntime-qnn 2.4.0": "exited with 3",
        "onnxruntime-qnn 2.9.0": "pip could not fetch onnxruntime-qnn==2.9.0",
    }
    (case,) = report.cases
    missing = "not run: onnxruntime-qnn 2.4.0, onnxruntime-qnn 2.9.0"
    assert case.verdict == f"green from onnxruntime-qnn 2.6.0 on; {missing}"


def test_a_case_that_no_version_mends_fails(run: Any) -> None:
    red = {f"onnxruntime-qnn=={version}": {"u8": RED} for version in ("2.5.0", "2.7.0")}
    code, _ = run(red, "--model net.onnx --with onnxruntime-qnn==2.7.0")
    assert code == ExitCode.FAILED
    assert read_cures().cases[0].verdict == "red in all"


def test_nothing_else_is_run_if_nothing_is_red(run: Any) -> None:
    code, versions = run({"onnxruntime-qnn==2.5.0": {"u8": GREEN}}, "--model net.onnx")
    assert code == ExitCode.OK
    assert len(versions.requests) == 1


def test_the_installed_version_must_have_a_report(run: Any) -> None:
    code, _ = run({"onnxruntime-qnn==2.5.0": {}}, "--model net.onnx")
    assert code == ExitCode.ENVIRONMENT


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--model net.tflite", "LiteRT's plugin works with one version"),
        ("--model net.onnx --model net.py:factory", "run the command once for each kind"),
        ("--model net.onnx --with executorch==1.4.1", "name a version of onnxruntime-qnn"),
        ("--model net.py:factory --with executorch==0.1", "is not supported"),
        ("--model net.onnx --with onnxruntime-qnn==latest", "onnxruntime-qnn==latest"),
        ("--model net.onnx --scheme 8a8w", "has no scheme 8a8w"),
        ("--model net.onnx --fault pad-beyond-range", "--fault needs --matrix"),
        ("--with onnxruntime-qnn==2.7.0", "--with needs --matrix or --model"),
        ("2.49.0 --model net.onnx", "there are no two versions"),
        ("2.49.0 2.50.0 --model net.onnx --with onnxruntime-qnn==2.7.0", "leave out --with"),
        ("", "there are no two versions"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything(
    place: Path, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upgrade-report", *shlex.split(words)]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert not (place / "reports").exists()
