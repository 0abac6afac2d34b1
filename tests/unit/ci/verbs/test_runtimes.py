"""``test`` runs the verb of each runtime with its own Python, and ends with one exit code. The
Pythons here are scripts that write a report and end as they are told."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.report.schema import Case, JudgementFacts, Status
from ci.report.write import encode_report
from provisioning.errors import ExitCode
from tests.stand_ins import reports
from tests.stand_ins.reports import say

SCRIPT = """#!/bin/sh
echo "$@" >> {words}
while [ "$1" != --reports ]; do shift; done
mkdir -p "$2/{session}"
[ ! -e {report} ] || cp {report} "$2/{session}/report.json"
echo {output}
exit {code}
"""
ONLY_LITERT = "QCM2290"
SESSIONS = {"executorch": "test_emulator", "onnxruntime": "test_onnx", "litert": "test_litert"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caller's directory."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add_python(
    place: Path, runtime: str, *schemes: str, code: int = 0, output: str = "", red: bool = False
) -> str:
    """The option with a Python for a runtime whose report has a case per scheme."""
    status = Status.FAILED if red else Status.PASSED
    findings = say("it is wrong") if red else ()
    judged = JudgementFacts(status=status, sqnr_db=40.0, findings=findings)
    cases = [
        Case(model="net.py:net", scheme=name, soc="SM8650", judgement=judged) for name in schemes
    ]
    report = place / f"{runtime}.json"
    if cases:
        report.write_bytes(encode_report(reports.make_report(cases)))
    values = {"words": place / f"{runtime}.words", "report": report}
    quoted = {name: shlex.quote(str(value)) for name, value in values.items()}
    script = place / runtime
    script.write_text(
        SCRIPT.format(**quoted, session=SESSIONS[runtime], output=shlex.quote(output), code=code)
    )
    script.chmod(0o755)
    return f"--python={runtime}={runtime}"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, object]]:
    """The exit code and the JSON."""
    code = main(["test", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def read_words(place: Path, runtime: str) -> str:
    """The arguments that a runtime's Python got."""
    return (place / f"{runtime}.words").read_text().partition(" --reports")[0]


def test_each_runtime_gets_the_models_that_it_takes_and_its_own_name_of_a_scheme(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pythons = [add_python(place, runtime, "fp16") for runtime in SESSIONS]
    models = ("--model", "net.py:net", "--model", "a.onnx", "--model", "b.tflite")
    code, data = run(
        capsys, *models, "--scheme", "8a8w", "--scheme", "16a8w", "--soc", "SM8650", *pythons
    )
    assert code == ExitCode.OK
    common = "--soc SM8650"
    assert read_words(place, "executorch") == (
        f"-m ci test-emulator --model net.py:net --scheme 8a8w --scheme 16a8w {common} --estimate"
    )
    assert read_words(place, "onnxruntime") == (
        "-m ci test-onnx --model net.py:net --model a.onnx --scheme u8 --scheme u16a8w"
        f" {common} --estimate"
    )
    assert read_words(place, "litert") == (
        f"-m ci test-litert --model net.py:net --model b.tflite --scheme fp16 {common}"
    )
    assert data["reports"] == {name: f"{name}/{session}" for name, session in SESSIONS.items()}
    page = (place / "reports/test/index.html").read_text()
    assert "ONNX Runtime" in page
    assert json.loads((place / "reports/test/runtimes.json").read_text()) == data


@pytest.mark.parametrize(
    ("code", "red", "output", "ended"),
    [
        (0, False, "", ExitCode.OK),
        (1, True, "", ExitCode.FAILED),
        (3, False, "no library", ExitCode.ENVIRONMENT),
        (2, False, "what it needs", ExitCode.USAGE),
    ],
)
def test_a_runtime_that_fails_does_not_keep_the_others_from_being_compared(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    code: int,
    red: bool,
    output: str,
    ended: ExitCode,
) -> None:
    good = add_python(place, "executorch", "fp16")
    schemes = ["fp16"] if code < 2 else []
    other = add_python(place, "onnxruntime", *schemes, code=code, output=output, red=red)
    runtimes = ("--runtime", "executorch", "--runtime", "onnxruntime")
    result, data = run(capsys, "--model", "net.py:net", *runtimes, good, other)
    assert result == ended
    assert data["not_run"] == ({"onnxruntime": output} if output else {})
    assert len(data["rows"]) == 2 - bool(output)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no model to judge"),
        (["--model", "a.tflite", "--runtime", "executorch"], "a.tflite cannot be judged by Exec"),
        (["--model", "net.txt"], "net.txt cannot be judged by ExecuTorch, ONNX Runtime, LiteRT"),
        (["--model", "net.py:net", "--scheme", "9a9w"], "no scheme '9a9w'"),
        (["--model", "net.py:net", "--soc", "SM8651"], "no SoC 'SM8651'"),
        (["--model", "net.py:net", "--python", "tvm=python3"], "it is not RUNTIME=PYTHON"),
        (["--model", "net.py:net", "--python", "litert=gone"], "gone cannot be run"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_runs(
    place: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["test", *words]) == ExitCode.USAGE
    assert message in capsys.readouterr().err
    assert not (place / "reports").exists()


def test_a_runtime_gets_only_the_socs_that_it_knows(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pythons = [add_python(place, runtime, "fp16") for runtime in SESSIONS]
    chosen = [soc for soc in ("SM8650", ONLY_LITERT) for soc in ("--soc", soc)]
    code, data = run(capsys, "--model", "net.py:net", *chosen, *pythons)
    assert code == ExitCode.OK
    assert read_words(place, "litert").endswith(f"--soc SM8650 --soc {ONLY_LITERT}")
    assert ONLY_LITERT not in read_words(place, "executorch")
    assert data["unknown_socs"] == {name: [ONLY_LITERT] for name in ("executorch", "onnxruntime")}
