"""``qnn-ci report``: a report shown again, and what reviewers of a change see of it."""

from __future__ import annotations

import html
import json
import os
import re
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.facts.finding import Place
from ci.report.schema import Digests, Report, Status, make_json_schema
from ci.report.write import LIMIT_BYTES, read_report, report_data, write_report
from provisioning.console.user_folder import RECORD
from provisioning.errors import ExitCode, UsageError
from tests.stand_ins.reports import change_case, say
from tests.stand_ins.shards import make_cases, make_shards

SARIF = Path(__file__).parents[3] / "artifacts" / "parity" / "sarif.schema.json"


def test_a_stored_report_is_shown_and_rewritten_unchanged(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    write_report(report, run)
    assert main(["report", str(run), "--to", str(copy)]) == ExitCode.OK
    assert "40 passed" in capsys.readouterr().out
    copied = {file.name for file in copy.iterdir()}
    assert copied == {RECORD, *(file.name for file in run.iterdir())}
    assert all((copy / file.name).read_bytes() == file.read_bytes() for file in run.iterdir())
    failed = tuple(change_case(case, status=Status.FAILED) for case in report.cases)
    write_report(replace(report, cases=failed), run)  # its summary says otherwise
    assert main(["report", str(run)]) == ExitCode.FAILED
    assert "0 passed, 40 failed" in capsys.readouterr().out
    for words in ([], ["no-such-file.json"]):
        assert main(["report", *words]) == ExitCode.USAGE
    assert "no-such-file.json" in capsys.readouterr().err


def test_json_is_report_json_and_a_bad_run_exits_with_1(
    troubled: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(troubled, tmp_path)
    assert main(["report", str(tmp_path), "--json"]) == ExitCode.FAILED
    assert json.loads(capsys.readouterr().out) == report_data(troubled)
    assert main(["report", "--schema"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == make_json_schema()


def test_a_finding_that_this_version_does_not_know_is_a_rule_of_the_sarif_log(
    failing: Path, tmp_path: Path
) -> None:
    data = json.loads((failing / "report.json").read_text())
    for case in data["cases"]:
        for finding in case["judgement"]["findings"]:
            finding["id"] = "QNN2999"
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(data))
    words = ["report", str(path), "--sarif", str(tmp_path / "log.sarif")]
    assert main(words) == ExitCode.FAILED
    (run,) = json.loads((tmp_path / "log.sarif").read_text())["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert {rules[result["ruleIndex"]] for result in run["results"]} == {"QNN2999"}


@pytest.mark.parametrize(("broken", "code"), [(False, ExitCode.OK), (True, ExitCode.FAILED)])
def test_several_reports_are_the_shards_of_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: bool, code: ExitCode
) -> None:
    """A failure in any shard fails the whole run."""
    cases = make_cases("mlp fp16 SM8650", "lstm fp16 SM8650", "mlp 8a8w SM8650")
    if broken:
        cases[2] = change_case(cases[2], status=Status.FAILED)
    words = []
    for index, shard in enumerate(make_shards(cases, 3)):
        write_report(shard, tmp_path / str(index))
        words.append(str(tmp_path / str(index)))
    assert main(["report", *words, "--json", "--to", str(tmp_path / "whole")]) == code
    data = json.loads(capsys.readouterr().out)
    assert [(case["model"], case["scheme"]) for case in data["cases"]] == [
        (case.model, case.scheme) for case in cases
    ]
    assert json.loads((tmp_path / "whole/report.json").read_text()) == data
    assert main(["report", *words[:2]]) == ExitCode.USAGE


@pytest.fixture
def failing(troubled: Report, tmp_path: Path) -> Path:
    """A report whose failures are at a line of a file with a name that a runner could obey."""
    failed = change_case(
        troubled.cases[1],
        model="nets/n.py:f",
        findings=say("no", Place(file="nets/a,b%::net.py", line=7)),
    )
    cases = tuple(replace(failed, scheme=scheme) for scheme in ("8a8w", "fp16", "16a8w"))
    write_report(replace(troubled, cases=cases), tmp_path / "now")
    return tmp_path / "now"


def test_failures_of_one_line_are_one_annotation(
    failing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert main(["report", str(failing), "--annotate"]) == ExitCode.FAILED
    assert capsys.readouterr().out == (
        "::error file=nets/a%2Cb%25%3A%3Anet.py,line=7,title=test_emulator%3A n.py%3Af::"
        "no [QNN2705] (8a8w SM8650, fp16 SM8650, 16a8w SM8650)\n"
    )


def test_failures_are_written_for_code_scanning(failing: Path, tmp_path: Path) -> None:
    main(["report", str(failing), "--sarif", str(tmp_path / "a.sarif")])
    log = json.loads((tmp_path / "a.sarif").read_text())
    jsonschema.validate(log, json.loads(SARIF.read_text()))
    (run,) = log["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "nets/a%2Cb%25%3A%3Anet.py"
    assert place["region"] == {"startLine": 7}
    assert "8a8w SM8650, fp16 SM8650" in result["message"]["text"]
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_a_summary_is_printed_or_added_to_the_page_of_the_run(
    report: Report,
    failing: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_report(report, tmp_path / "base")
    words = ["report", str(failing), "--summary", "--base", str(tmp_path / "base")]
    assert main(words) == ExitCode.FAILED
    printed = capsys.readouterr().out
    assert "Against the base" in printed
    page = tmp_path / "page.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(page))
    assert main(words) == ExitCode.FAILED
    assert page.read_text() == printed
    assert "Against the base" not in capsys.readouterr().out
    (tmp_path / "damaged.json").touch()
    assert main([*words[:-1], str(tmp_path / "damaged.json")]) == ExitCode.FAILED
    assert "not compared with the base" in page.read_text()
    page.write_text("")
    assert main(["report", str(failing)]) == ExitCode.FAILED
    assert page.read_text() == ""


def test_a_summary_on_a_terminal_has_no_escapes(
    failing: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", str(failing), "--summary"]
    assert main(words) == ExitCode.FAILED
    assert "&#" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(words) == ExitCode.FAILED
    assert not re.search("&#|&lt;|<pre|\u2060", capsys.readouterr().out)


def test_changed_weights_against_the_base_are_in_every_output(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def make(name: str, digest: str) -> str:
        cases = [change_case(case, digests=Digests(weights=digest * 64)) for case in report.cases]
        write_report(replace(report, cases=tuple(cases)), tmp_path / name)
        return str(tmp_path / name)

    base, now = make("base", "a"), make("now", "b")
    words = ["report", now, "--base", base, "--to", str(tmp_path / "to")]
    assert main(words) == ExitCode.OK
    note = "weights differ from the base: mlp fp16 SM8650"
    assert note in capsys.readouterr().out
    assert note in (tmp_path / "to" / "index.html").read_text("utf-8")
    assert main([*words, "--summary"]) == ExitCode.OK
    assert note in html.unescape(capsys.readouterr().out)
    written = str(tmp_path / "to")
    assert main(["report", written, "--base", base, "--json"]) == ExitCode.OK
    assert len(json.loads(capsys.readouterr().out)["remarks"]) == 1


@pytest.mark.parametrize(
    "data", [b"{", b"[]", b'{"schema_version": 1}', b'{"session": "\xff"}', b"[" * 100_000]
)
def test_a_file_of_another_format_or_too_large_says_why_and_where_the_format_is(
    tmp_path: Path, data: bytes
) -> None:
    file = tmp_path / "report.json"
    file.write_bytes(data)
    with pytest.raises(UsageError, match=r"report\.json does not have the format") as caught:
        read_report(tmp_path)
    assert caught.value.why not in {"", caught.value.fix}
    assert caught.value.fix == "docs/schemas/report.schema.json describes it"
    os.truncate(file, LIMIT_BYTES + 1)
    with pytest.raises(UsageError, match="longer than"):
        read_report(tmp_path)
