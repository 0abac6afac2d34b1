from __future__ import annotations

import json
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.report.schema import Report, make_json_schema
from ci.report.write import report_data, write_report
from provisioning.errors import ExitCode


def test_a_report_is_shown_again(
    report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(report, tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--to", str(tmp_path / "copy")]) == ExitCode.OK
    assert "40 passed" in capsys.readouterr().out
    names = [path.name for path in sorted((tmp_path / "run").iterdir())]
    assert [path.name for path in sorted((tmp_path / "copy").iterdir())] == names
    for name in names:
        assert (tmp_path / "copy" / name).read_bytes() == (tmp_path / "run" / name).read_bytes()


def test_json_is_report_json_and_a_bad_run_exits_with_1(
    troubled: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(troubled, tmp_path)
    assert main(["report", str(tmp_path), "--json"]) == ExitCode.FAILED
    assert json.loads(capsys.readouterr().out) == report_data(troubled)


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--schema"]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == make_json_schema()


def test_no_report_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == ExitCode.USAGE
    assert main(["report", "no-such-file.json"]) == ExitCode.USAGE
    assert "no-such-file.json" in capsys.readouterr().err
