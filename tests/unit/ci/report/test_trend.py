"""The trend over a directory of reports: what is read, in which order, and what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from ci.__main__ import main
from ci.report.schema import Report, Source, Status
from ci.report.trend import describe_trend, follow_cases, render_trend
from ci.report.write import write_report
from provisioning.errors import ExitCode
from tests.stand_ins.reports import change_case
from tests.stand_ins.snapshots import check_snapshot
from tests.unit.ci.report.test_renderings import read_page

SCHEMA = json.loads(
    (Path(__file__).parents[4] / "docs" / "schemas" / "trend.schema.json").read_text("utf-8")
)


@pytest.fixture
def runs(report: Report, tmp_path: Path) -> Path:
    """Three runs, written in another order than they were made: the second case fails in the
    second run, the third one in the last, and the fourth is new there."""
    first, second, third, fourth = report.cases[:4]
    failed = change_case(second, status=Status.FAILED, sqnr_db=4.0)
    cases = (
        (first, second, third),
        (first, failed, third),
        (
            change_case(first, sqnr_db=50.0),
            second,
            change_case(third, status=Status.FAILED),
            fourth,
        ),
    )
    for day in (2, 0, 1):
        started, source = f"2026-11-{day + 1:02d}T08:00:00Z", Source(commit=str(day) * 40)
        run = replace(report, cases=cases[day], started=started, source=source)
        write_report(run, tmp_path / "runs" / f"x{5 - day}")
    return tmp_path / "runs"


def test_a_failed_run_without_a_program_is_a_gap_not_a_zero(report: Report, tmp_path: Path) -> None:
    case = change_case(report.cases[0], delegated_nodes=18, fallback_nodes=0)
    failed = change_case(case, status=Status.FAILED, delegated_nodes=None, fallback_nodes=None)
    reports = [replace(report, cases=(case_of_run,)) for case_of_run in (case, failed, case)]
    (row,) = follow_cases(reports)
    line = row.lines[1]
    assert (line.values, line.label, line.gaps) == ((18, None, 18), "18/18", [(1, 50.0)])
    page = render_trend(reports, [row]).decode()
    assert page.count('<line class="failed" x1="50.0"') == 1


def test_trend_data_have_the_figures_of_each_run(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["report", "--trend", str(runs), "--to", str(tmp_path), "--json"]
    assert main(words) == ExitCode.OK
    trend = json.loads(capsys.readouterr().out)
    assert [run["commit"][0] for run in trend["runs"]] == ["0", "1", "2"]
    jsonschema.validate(trend, SCHEMA)
    assert {*SCHEMA["$defs"]["case"]["properties"]["status"]["items"]["enum"]} == {*Status, None}
    rows = {case["case"]: case for case in trend["cases"]}
    assert rows["mlp fp16 SM8650"]["figures"]["SQNR, dB"] == [62.0, 62.0, 50.0]
    assert rows["mlp 8a8w SM8650"]["status"] == ["passed", "failed", "passed"]
    assert rows["mlp 16a16w SM8650"]["status"] == [None, None, "passed"]
    assert (tmp_path / "trend.html").is_file()
    assert not (runs / "trend.html").exists()


def test_unreadable_reports_of_a_trend_are_named_and_skipped(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "x3" / "report.json").write_text("{")
    assert main(["report", "--trend", str(runs)]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert out.startswith("2 reports")
    assert "x3" in err
    (tmp_path / "none").mkdir()
    assert main(["report", "--trend", str(tmp_path / "none")]) == ExitCode.USAGE
    assert main(["report", str(runs), "--trend", str(runs)]) == ExitCode.USAGE


def test_a_trend_keeps_cases_of_different_sessions_and_backends_apart(report: Report) -> None:
    usual, passed = replace(report, cases=report.cases[:1]), Status.PASSED
    for unlike in (replace(usual, session="test_onnx"), replace(usual, backend="gpu")):
        rows = follow_cases([usual, unlike, usual])
        assert [row.statuses for row in rows] == [(passed, None, passed), (None, passed, None)]


def test_a_trend_reads_like_its_snapshot(troubled: Report, tmp_path: Path) -> None:
    """Cases appear, disappear, flip and are unsupported, in two sessions."""
    passed, failed, unsupported, crashed = troubled.cases
    better = change_case(failed, status=Status.PASSED, sqnr_db=42.0, lower_s=1.25)
    cases_of_runs = (
        (passed, unsupported),
        (change_case(passed, status=Status.FAILED), failed, replace(unsupported, model="gone")),
        (change_case(passed, sqnr_db=30.5), better, unsupported, crashed),
    )
    runs = [
        replace(troubled, cases=cases, started=f"2026-11-{day:02d}T08:00:00Z")
        for day, cases in enumerate(cases_of_runs, 1)
    ]
    runs.append(replace(runs[-1], session="test_onnx", cases=(passed,)))
    rows = follow_cases(runs)
    page = render_trend(runs, rows).decode()
    text = f"{describe_trend(runs, rows)}\n{read_page(page)}"
    check_snapshot(Path(__file__).with_name("snapshots") / "trend.txt", text)
