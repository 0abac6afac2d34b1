"""``test`` runs the verb of each runtime with its own Python, and ends with one exit code. The
Pythons here are scripts that write a report and end as they are told."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from ci.__main__ import main
from ci.cases.policy import read_emulator_policy
from ci.cases.spec import select_cases
from ci.facts.finding import Certainty, advise
from ci.facts.kinds import UNRECORDED
from ci.models.schemes import RUNTIMES, Scheme
from ci.report.document import escape_markdown
from ci.report.schema import Case, JudgementFacts, Status
from ci.report.write import encode_report
from ci.verbs.environments import choose_runtimes
from ci.verbs.lanes.choice import choose_lane
from ci.verbs.registry import choose_environment
from provisioning.errors import ExitCode, ManifestError, UsageError
from tests.stand_ins import reports
from tests.stand_ins.reports import say

SCRIPT = """#!/bin/sh
[ "$1" != -c ] || {{ echo {lacks}; exit 0; }}
echo "$@" >> {words}
echo "$QNN_CI_JOBS $QNN_CI_RUNS_AT_ONCE" > {words}.shares
echo "$QNN_CI_SESSION" > {words}.session
{first}
while [ "$1" != --reports ]; do shift; done
mkdir -p "$2/{session}"
[ ! -e {report} ] || cp {report} "$2/{session}/report.json"
echo {output}
{last}
exit {code}
"""
ONLY_LITERT = "QCM2290"
LAST = "--estimate --translate-schemes"  # of the arguments of each verb
SESSIONS = {"executorch": "test_emulator", "onnxruntime": "test_onnx", "litert": "test_litert"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The caller's directory, with the models that calls name."""
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text("def net(): ...\n")
    for name in ("a.onnx", "b.tflite", "net.pt"):
        (tmp_path / name).touch()
    return tmp_path


def add_python(
    place: Path,
    runtime: str,
    *schemes: str,
    code: int = 0,
    output: str = "",
    red: bool = False,
    fault: str = "",
    lacks: str = "",
    soc: str = "SM8650",
    first: str = "",
    last: str = "",
) -> str:
    """The option with a Python for a runtime whose report has a case per scheme, which are red
    because of a known ``fault``. It says that it lacks the modules ``lacks``, and runs the lines
    ``first`` and ``last`` of a shell."""
    status = Status.FAILED if red or fault else Status.PASSED
    findings = say("it is wrong") if red else ()
    if fault:
        advice = advise(fault, name=fault, certainty=Certainty.KNOWN)
        findings = (UNRECORDED.find(f"known fault {fault}", advice=advice),)
    judged = JudgementFacts(status=status, sqnr_db=40.0, findings=findings)
    cases = [Case(model="net.py:net", scheme=name, soc=soc, judgement=judged) for name in schemes]
    report = place / f"{runtime}.json"
    if cases:
        report.write_bytes(encode_report(reports.make_report(cases)))
    values = {"words": place / f"{runtime}.words", "report": report}
    quoted = {name: shlex.quote(str(value)) for name, value in values.items()}
    script = place / runtime
    script.write_text(
        SCRIPT.format(
            **quoted,
            session=SESSIONS[runtime],
            output=shlex.quote(output),
            code=code,
            lacks=shlex.quote(lacks),
            first=first,
            last=last,
        )
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
        *(capsys, *models, "--scheme", "8a8w", "--scheme", "16a8w", "--soc", "SM8650", *pythons),
        *("--diagnose", "0", "--timeout-s", "60.5", "--no-cache", "--strict-noise", "--offline"),
    )
    assert code == ExitCode.OK
    common = "--soc SM8650 --timeout-s 60.5 --diagnose 0 --no-cache --strict-noise --offline"
    assert read_words(place, "executorch") == (
        f"-m ci test-emulator --model net.py:net --scheme 8a8w --scheme 16a8w {common} {LAST}"
    )
    assert read_words(place, "onnxruntime") == (
        "-m ci test-onnx --model net.py:net --model a.onnx --scheme u8 --scheme u16a8w"
        f" {common} {LAST}"
    )
    assert read_words(place, "litert") == (
        f"-m ci test-litert --model net.py:net --model b.tflite --scheme fp16 {common} {LAST}"
    )
    assert data["reports"] == {name: f"{name}/{session}" for name, session in SESSIONS.items()}
    page = (place / "reports/test/index.html").read_text()
    assert "ONNX Runtime" in page
    assert json.loads((place / "reports/test/runtimes.json").read_text()) == data


def test_runtimes_run_side_by_side_and_show_their_lines_one_after_the_other(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(place / "ended")  # whoever opens it waits for the other one
    pythons = [
        add_python(
            place, "executorch", "fp16", first="echo begun; timeout 60 cat ended", output="judged"
        ),
        add_python(place, "onnxruntime", "fp16", last="timeout 60 sh -c 'echo its end > ended'"),
        add_python(place, "litert", "fp16", output="the last"),
    ]
    assert main(["test", "--model", "net.py:net", "--jobs", "5", *pythons]) == ExitCode.OK
    shown = capsys.readouterr().err.splitlines()
    assert shown[:7] == [
        "ExecuTorch: test-emulator",
        "begun",
        "its end",
        "judged",
        "ONNX Runtime: test-onnx",
        "",
        "LiteRT: test-litert",
    ]
    shares = {(place / f"{runtime}.words.shares").read_text() for runtime in SESSIONS}
    assert shares == {"1 3\n"}


@pytest.mark.parametrize("session", ["test", "qnn_ci"])
def test_a_runtime_prints_commands_of_its_own_session_if_test_has_one(
    session: str, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_SESSION", session)
    pythons = [add_python(place, runtime, "fp16") for runtime in SESSIONS]
    code, _ = run(capsys, "--model", "net.py:net", *pythons)
    assert code == ExitCode.OK
    sessions = [(place / f"{runtime}.words.session").read_text().strip() for runtime in SESSIONS]
    assert sessions == ([*SESSIONS.values()] if session == "test" else [session] * 3)


def test_with_one_job_one_runtime_runs_at_a_time(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = "[ ! -e running ] || exit 3; : > running"
    pythons = [
        add_python(place, runtime, "fp16", first=first, last="rm running") for runtime in SESSIONS
    ]
    code, _ = run(capsys, "--model", "net.py:net", "--jobs", "1", *pythons)
    assert code == ExitCode.OK
    assert {(place / f"{runtime}.words.shares").read_text() for runtime in SESSIONS} == {"1 1\n"}


def test_a_known_fault_that_litert_has_in_other_operators_is_listed_once(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pythons = [
        add_python(place, "executorch", "fp16", fault="broadcast-add-before-norm"),
        add_python(place, "onnxruntime", "fp16"),
        add_python(place, "litert", "fp16", fault="broadcast-before-merged-norm"),
    ]
    code, data = run(capsys, "--model", "net.py:net", *pythons)
    assert code == ExitCode.FAILED
    rows: Any = data["rows"]
    assert [row["faults"][:2] for row in rows] == [
        ["broadcast-add-before-norm"],
        [],
        ["broadcast-before-merged-norm", "broadcast-add-before-norm"],
    ]
    page = (place / "reports/test/index.html").read_text()
    assert "ExecuTorch fp16, LiteRT fp16: known fault broadcast-add-before-norm" in page
    assert "only LiteRT" not in page


@pytest.mark.parametrize(
    ("code", "red", "output", "ended"),
    [
        (0, False, "", ExitCode.OK),
        (1, True, "", ExitCode.FAILED),
        (70, True, "", ExitCode.DEFECT),  # what one case shows
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
    schemes = [] if output else ["fp16"]
    other_python = add_python(place, "onnxruntime", *schemes, code=code, output=output, red=red)
    runtimes = ("--runtime", "executorch", "--runtime", "onnxruntime")
    result, data = run(capsys, "--model", "net.py:net", *runtimes, good, other_python)
    assert result == ended
    assert data["not_run"] == ({"onnxruntime": output} if output else {})
    assert len(data["rows"]) == 2 - bool(output)  # type: ignore[arg-type]
    (answer,) = data["answers"]  # type: ignore[attr-defined]
    assert ("not compared: ONNX Runtime, which was not run" in answer) is bool(output)


@pytest.mark.parametrize(
    ("ending", "reason", "ended"),
    [
        ("exit 0", "litert exited with 0, and wrote no report", ExitCode.ENVIRONMENT),
        (
            "echo no module; exit 1",
            "litert exited with 1, and wrote no report. Its output ends with: no module",
            ExitCode.ENVIRONMENT,
        ),
        (
            "echo compile; kill -9 $$",
            "litert was killed by SIGKILL, and wrote no report. Its output ends with: compile",
            ExitCode.TOOL,
        ),
        ("exit 99", "litert exited with 99, and wrote no report", ExitCode.TOOL),
        # The progress before an error is no reason.
        (
            "printf '3/4 compile\\ntest-litert: no model\\n  fix: pass one\\n'; exit 2",
            "test-litert: no model; fix: pass one",
            ExitCode.USAGE,
        ),
    ],
)
def test_a_python_that_writes_no_report_is_no_verdict_and_hides_no_earlier_one(
    place: Path, capsys: pytest.CaptureFixture[str], ending: str, reason: str, ended: ExitCode
) -> None:
    good, litert = (add_python(place, name, "fp16") for name in ("executorch", "litert"))
    words = ["--model", "net.py:net", "--runtime", "executorch", "--runtime", "litert"]
    _, data = run(capsys, *words, good, litert)
    assert len(data["rows"]) == 2  # type: ignore[arg-type]
    (place / "litert").write_text(f"#!/bin/sh\n{ending}\n")
    code, data = run(capsys, *words, good, litert)
    assert (code, data["not_run"]) == (ended, {"litert": reason})
    assert len(data["rows"]) == 1  # type: ignore[arg-type]


def test_no_report_of_an_earlier_run_is_left_while_a_runtime_judges(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pythons = [add_python(place, name, "fp16") for name in SESSIONS]
    run(capsys, "--model", "net.py:net", *pythons)
    for name, session in SESSIONS.items():
        for file in ("index.html", "junit.xml"):
            (place / "reports/test" / name / session / file).touch()
    files = "-name '*.json' -o -name '*.html' -o -name '*.xml'"
    python = add_python(place, "executorch", "fp16", first=f"find reports {files} > left")
    run(capsys, "--model", "net.py:net", "--runtime", "executorch", python)
    assert (place / "left").read_text() == ""


def test_a_file_in_the_place_of_a_runtime_s_reports_is_no_defect(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "reports/test").mkdir(parents=True)
    (place / "reports/test/onnxruntime").touch()
    python = add_python(place, "onnxruntime", "fp16")
    assert main(["test", "--model", "a.onnx", python]) == ExitCode.DOWNLOAD
    shown = capsys.readouterr().err
    assert "onnxruntime" in shown
    assert "pass a writable directory with --reports" in shown


@pytest.mark.parametrize(
    ("model", "groups"),
    [
        ("mlp", {"executorch": "lowering", "onnxruntime": "onnx-torch"}),
        ("transformer", {"executorch": "lowering", "onnxruntime": "onnx-torch"}),
        ("dense", {"litert": "litert"}),
        ("a.onnx", {"onnxruntime": "onnx"}),
        (
            "net.py:net",
            {"executorch": "lowering", "onnxruntime": "onnx-torch", "litert": "litert-torch"},
        ),
    ],
)
def test_the_environments_that_nox_makes_are_those_of_the_runtimes_that_judge(
    place: Path, capsys: pytest.CaptureFixture[str], model: str, groups: dict[str, str]
) -> None:
    assert choose_runtimes(["--model", model]) == groups
    pythons = [add_python(place, runtime, "fp16") for runtime in groups]
    code, data = run(capsys, "--model", model, *pythons)
    assert (code, [*data["reports"]]) == (ExitCode.OK, [*groups])  # type: ignore[misc]


@pytest.mark.parametrize(
    ("model", "extra"),
    [("a.onnx", "onnx]"), ("b.tflite", "litert]"), ("net.py:net", "onnx-torch]")],
)
def test_a_runtime_without_packages_names_the_line_that_installs_what_the_models_need(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    extra: str,
) -> None:
    del place
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, data = run(capsys, "--model", model)
    assert code == ExitCode.ENVIRONMENT
    reasons = " ".join(data["not_run"].values())  # type: ignore[attr-defined]
    assert extra in reasons


def test_what_a_runtime_lacks_is_said_before_another_one_runs(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "qnn.toml").write_text(
        'extends = "default"\n[models.net]\npath = "net.py:net"\n'
        '[by_runtime.onnxruntime.models.net]\nschemes = ["fp16a8w"]\n'
    )
    good, refused = (add_python(place, name, "fp16") for name in ("executorch", "onnxruntime"))
    lacking = add_python(place, "litert", "fp16", lacks="litert_torch jax")
    words = ["test", "--policy", "qnn.toml", good, refused, lacking]
    assert main(words) == ExitCode.USAGE
    said, started, _ = capsys.readouterr().err.partition("ExecuTorch: test-emulator")
    assert started
    assert "warning: ONNX Runtime is not run: models.net.schemes: fp16a8w" in said
    lacks = "warning: LiteRT is not run: litert_torch, jax are not installed"
    assert f"{lacks}; fix: {place}/litert -m pip install" in said
    for name in ("onnxruntime", "litert"):
        assert not (place / f"{name}.words").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no model to judge"),
        (["--model", "a.tflite", "--runtime", "executorch"], "a.tflite cannot be judged by Exec"),
        (["--model", ""], "an option's value is empty"),
        (["--model", "net.py"], "write net.py:factory"),
        (["--model", ":net"], "write net.py:net"),
        (["--model", "net:net"], "did you mean net.py:net?"),
        (["--model", "net.pt"], "net.pt is a file with a model, which this command does not read"),
        (["--model", "net.txt"], "net.txt cannot be judged by ExecuTorch, ONNX Runtime, LiteRT"),
        (["--model", "net.py:net", "--scheme", "9a9w"], "no scheme '9a9w'"),
        (["--model", "net.py:net", "--soc", "SM8651"], "no SoC 'SM8651'"),
        (["--model", "net.py:net", "--soc", "Galaxy S24"], "use SM8650, its SoC"),
        (["--model", "net.py:net", "--soc", "SM9*"], "no SoC 'SM9*'"),
        (
            ["--model", "net.py:net", "--runtime", "executorch", "--soc", ONLY_LITERT.lower()],
            "is compiled for by ExecuTorch",
        ),
        (
            ["--model", "net.py:net", "--runtime", "executorch", "--scheme", "asis"],
            "no counterpart of it is in ExecuTorch",
        ),
        (
            ["--model", "a.onnx", "--runtime", "executorch", "--runtime", "litert"],
            "a.onnx cannot be judged by ExecuTorch, LiteRT",
        ),
        (["--model", "net.py:net", "--python", "tvm=python3"], "it is not RUNTIME=PYTHON"),
        (["--model", "net.py:net", "--python", "litert=gone"], "gone cannot be run"),
        (["--model", "gone.py:net"], "gone.py is not a file"),
        (["--model", "net.py:gone"], "net.py has no function 'gone'"),
        (["--model", "net.py:net", "--policy", "gone.toml"], "there is no policy"),
        (["--model", "net.py:net", "--diagnose", "-1"], "--diagnose -1"),
        (["--model", "net.py:net", "--timeout-s", "0"], "--timeout-s 0"),
        (["--model", "net.py:net", "--jobs", "0"], "--jobs 0"),
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
    assert read_words(place, "litert").endswith(f"--soc SM8650 --soc {ONLY_LITERT} {LAST}")
    assert ONLY_LITERT not in read_words(place, "executorch")
    assert data["unknown_socs"] == {name: [ONLY_LITERT] for name in ("executorch", "onnxruntime")}


@pytest.mark.parametrize("word", [ONLY_LITERT.lower(), "QCM22*"])
def test_an_soc_that_a_runtime_lacks_is_named_however_it_was_typed(
    place: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    pythons = [add_python(place, runtime, "fp16", soc=ONLY_LITERT) for runtime in SESSIONS]
    code, data = run(capsys, "--model", "net.py:net", "--soc", word, *pythons)
    assert code == ExitCode.OK
    assert read_words(place, "litert").endswith(f" --soc {ONLY_LITERT} {LAST}")
    assert data["unknown_socs"] == {name: [ONLY_LITERT] for name in ("executorch", "onnxruntime")}
    lacking = ("ExecuTorch", "ONNX Runtime")
    reasons = ", and ".join(
        f"{title}, which does not compile for {ONLY_LITERT}" for title in lacking
    )
    (answer,) = data["answers"]  # type: ignore[attr-defined]
    assert answer.endswith(f"; not compared: {reasons}")


def test_the_run_s_page_of_a_ci_system_has_the_sentence(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(place / "summary.md"))
    pythons = [add_python(place, runtime, "fp16") for runtime in SESSIONS]
    _, data = run(capsys, "--model", "net.py:net", *pythons)
    (answer,) = data["answers"]  # type: ignore[attr-defined]
    assert escape_markdown(answer) in (place / "summary.md").read_text()
    assert answer in (place / "reports/test/index.html").read_text()


POLICY = """extends = "default"

[models.net]
path = "net.py:net"
schemes = ["8a8w", "u16a8w"]
runtimes = ["executorch", "onnxruntime"]

[models.file]
path = "net.onnx"

[by_runtime.onnxruntime.schemes.fp16]
min_sqnr_db_all = 55.0

[by_runtime.onnxruntime.models.net.limits.u16a8w]
min_sqnr_db_all = 44.0

[by_runtime.executorch.models.net]
schemes = ["16a8w"]

[by_runtime.executorch.models.net.lowering]
profile_level = "detailed"
"""


@pytest.fixture
def policy(place: Path) -> Path:
    """A policy with a model for two runtimes, and one for any that can take it."""
    (place / "net.py").write_text("def net(): ...\n")
    (place / "net.onnx").touch()
    path = place / "qnn.toml"
    path.write_text(POLICY)
    return path


def test_without_a_model_each_runtime_judges_those_of_the_policy_that_list_it(
    policy: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pythons = [add_python(place, runtime, "fp16") for runtime in ("executorch", "onnxruntime")]
    code, data = run(capsys, "--policy", policy.name, *pythons)
    assert (code, data["not_run"]) == (ExitCode.OK, {})
    chosen = f"--policy {policy} {LAST}"
    assert read_words(place, "executorch") == f"-m ci test-emulator --model net {chosen}"
    assert read_words(place, "onnxruntime") == f"-m ci test-onnx --model net --model file {chosen}"
    assert main(["test", "--model", "net", "--runtime", "litert"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "net cannot be judged by LiteRT" in said
    assert "models.net.runtimes of the policy lists executorch, onnxruntime" in said


def test_a_verb_of_one_runtime_reads_its_own_tables_of_a_common_policy(policy: Path) -> None:
    emulator, onnx = read_emulator_policy(policy), read_emulator_policy(policy, "onnx")
    assert emulator.by_runtime == onnx.by_runtime == {}
    usual = read_emulator_policy(None, "onnx").limits_of("net", Scheme.FP16)
    assert onnx.limits_of("net", Scheme.FP16).min_sqnr_db_all == 55.0 != usual.min_sqnr_db_all
    assert onnx.limits_of("net", Scheme.U16A8W).min_sqnr_db_all == 44.0
    assert onnx.models["net"].lowering.profile_level == ""
    assert emulator.limits_of("net", Scheme.FP16).min_sqnr_db_all != 55.0
    assert emulator.models["net"].schemes == ("16a8w",)
    assert emulator.models["net"].lowering.profile_level == "detailed"


SELECTED = {
    "executorch": ["net 16a8w"],
    "onnxruntime": ["net u8", "net u16a8w", "file fp16", "file u8", "file u16a8w"],
}


@pytest.mark.parametrize("runtime", SELECTED)
def test_a_runtime_selects_the_models_that_list_it(policy: Path, runtime: str) -> None:
    lane = RUNTIMES[runtime]
    name = {"executorch": "emulator", "onnxruntime": "onnx"}[runtime]
    entries = read_emulator_policy(policy, name).models
    if runtime == "executorch":
        entries = {"net": entries["net"]}  # it refuses files, as without runtimes
    cases = select_cases({}, ["SM8650"], entries=entries, lane=lane)
    assert [f"{case.model} {case.scheme}" for case in cases] == SELECTED[runtime]
    with pytest.raises(UsageError, match="does not list litert"):
        select_cases({}, ["SM8650"], entries=entries, models=["net"], lane=RUNTIMES["litert"])


OF_EXECUTORCH = """extends = "default"
[suite]
mlp = ["8a8w"]
[models.net]
path = "net.py:net"
schemes = ["fp16", "8a8w", "fp16a8w", "mixed"]
[models.net.mixtures.mixed]
base = "16a8w"
parts = [{op = "relu", scheme = "8a8w"}]
[models.usual]
path = "net.py:net"
"""
TRANSLATED = {
    "executorch": {
        "net": ["fp16", "8a8w", "fp16a8w", "mixed"],
        "usual": ["fp16", "8a8w", "16a8w"],
        "mlp": ["8a8w"],
    },
    "onnxruntime": {
        "net": ["fp16", "u8", "u16a8w"],
        "usual": ["fp16", "u8", "u16a8w"],
        "mlp": ["u8"],
    },
    "litert": {"net": ["fp16"], "usual": ["asis"]},
}


@pytest.mark.parametrize("runtime", TRANSLATED)
def test_a_runtime_has_its_own_schemes_for_those_that_a_policy_lists_for_another(
    place: Path, capsys: pytest.CaptureFixture[str], runtime: str
) -> None:
    path = place / "qnn.toml"
    path.write_text(OF_EXECUTORCH)
    models = ("--model", "net", "--model", "usual")
    code, data = run(capsys, *models, "--runtime", runtime, add_python(place, runtime, "fp16"))
    assert (code, data["not_run"]) == (ExitCode.OK, {})
    expected = TRANSLATED[runtime]
    policy = read_emulator_policy(path)
    cases = select_cases(
        {"mlp": ["8a8w"]} if "mlp" in expected else {},
        ["SM8650"],
        entries=policy.models,
        lane=RUNTIMES[runtime],
        translates=True,
    )
    schemes: dict[str, list[str]] = {}
    for case in cases:
        schemes.setdefault(case.model, []).append(case.scheme.value)
    assert schemes == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[models.a]\npath = "net.py:net"\nruntimes = ["tvm"]', "tvm cannot judge this model"),
        ('[models.a]\npath = "net.onnx"\nruntimes = ["litert"]', "litert cannot judge this model"),
        ("[by_runtime.tvm.schemes.fp16]", "by_runtime.tvm is for no runtime"),
        ("[by_runtime.executorch]\nbudgets = 1", "budgets"),
        ("by_runtime = 1", "Expected `object`"),
        ("[by_runtime.executorch.by_runtime.litert]", "by_runtime has no effect"),
        (
            "[by_runtime.litert.models.a.limits.8a8w]",
            "by_runtime.litert.models.a.limits.8a8w has no effect",
        ),
        ("[by_runtime.onnxruntime.schemes.16a8w]", "schemes.16a8w has no effect"),
        (
            '[models.a]\npath = "net.py:net"\nruntimes = ["executorch"]\n[models.a.limits.u8]',
            "limits.u8 has no effect for ExecuTorch",
        ),
    ],
)
def test_a_runtime_of_a_policy_that_has_no_effect_is_refused(
    policy: Path, text: str, message: str
) -> None:
    policy.write_text(f'extends = "default"\n{text}\n')
    with pytest.raises(ManifestError, match=message):
        read_emulator_policy(policy)


def test_a_model_without_executorch_is_divided_by_the_first_runtime_that_it_lists(
    policy: Path, place: Path
) -> None:
    text = POLICY.replace('["executorch", "onnxruntime"]', '["litert"]')
    policy.write_text(text)
    words = ["localise", "--model", "net", "--policy", str(policy)]
    assert choose_environment(words) == "litert-torch"
    assert choose_lane(["net"], policy).schemes.runtime == "litert"
    assert choose_runtimes(["--model", "net", "--policy", str(policy)]) == {
        "litert": "litert-torch"
    }
    assert choose_runtimes(["--policy", str(policy)]) == {
        "onnxruntime": "onnx",
        "litert": "litert-torch",
    }
    del place


OWN = """
[by_runtime.litert.models.phone]
path = "phone.tflite"

[by_runtime.litert.models.shared]
path = "net.py:net"

[by_runtime.executorch.models.shared]
path = "net.py:net"
"""


def test_a_model_that_only_tables_of_a_runtime_name_is_judged_by_that_runtime(
    policy: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy.write_text(POLICY + OWN)
    (place / "phone.tflite").touch()
    pythons = [add_python(place, name, "fp16") for name in ("executorch", "onnxruntime", "litert")]
    code, data = run(capsys, "--policy", policy.name, *pythons)
    assert (code, data["not_run"]) == (ExitCode.OK, {})
    models = {
        "executorch": "--model net --model shared",
        "onnxruntime": "--model net --model file",
        "litert": "--model shared --model phone",
    }
    for runtime, words in models.items():
        assert f" {words} --policy " in read_words(place, runtime)
    assert choose_runtimes(["--model", "phone", "--policy", str(policy)]) == {"litert": "litert"}
    assert choose_environment(["test-onnx", "--policy", str(policy)]) == "onnx-torch"
    assert choose_environment(["test-litert", "--policy", str(policy)]) == "litert-torch"
    assert main(["test", "--model", "phone", "--runtime", "executorch"]) == ExitCode.USAGE
    assert "phone cannot be judged by ExecuTorch" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["audit", "localise", "mend"])
def test_a_file_is_changed_in_the_environment_that_compiles_it(place: Path, verb: str) -> None:
    del place
    assert choose_environment([verb, "--model", "net.tflite"]) == "litert"
    assert choose_environment([verb, "--model", "net.onnx"]) == "onnx"
