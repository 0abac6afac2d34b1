"""Files of reports in folders of the user's, through the verb."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from ci.__main__ import main
from ci.gate.schema import Plan
from ci.latency.simulation import convert_trace
from ci.report.export import check_session, is_own_trace, is_plan, is_result_file, is_verdict
from ci.report.schema import Report
from ci.report.write import render_files, write_report
from provisioning.console.user_folder import Recognise, require_output, write_output
from provisioning.errors import ExitCode, UsageError

FILES = ("index.html", "junit.xml", "report.json")


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_user_is_refused_or_renamed(
    report: Report, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_report(report, tmp_path / "run")
    target = tmp_path / "site"
    target.mkdir()
    (target / name).write_text("{}")
    words = ["report", str(tmp_path / "run"), "--to", str(target)]
    assert main(words) == ExitCode.USAGE
    assert name in capsys.readouterr().err
    assert [path.name for path in target.iterdir()] == [name]
    with pytest.raises(UsageError, match=name):
        check_session(target)
    assert main([*words, "--force"]) == ExitCode.OK
    assert (target / f"{name}.old").read_text() == "{}"
    check_session(target)
    (target / name).write_text((target / name).read_text() + "\n")
    assert main(words) == ExitCode.USAGE
    assert "was changed" in capsys.readouterr().err


def test_reports_of_earlier_versions_are_replaced(report: Report, tmp_path: Path) -> None:
    target = tmp_path / "run"
    for name, data in render_files(report).items():
        target.mkdir(exist_ok=True)
        (target / name).write_bytes(data)
    content = json.loads((target / "report.json").read_text())
    (target / "report.json").write_text(json.dumps({**content, "schema_version": 1}))
    check_session(target)
    write_report(report, tmp_path / "new")
    assert main(["report", str(tmp_path / "new"), "--to", str(target)]) == ExitCode.OK


def test_a_sarif_file_replaces_only_a_log_of_this_project(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path / "run")
    log, their_log = tmp_path / "out.sarif", tmp_path / "other.sarif"
    words = ["report", str(tmp_path / "run"), "--sarif"]
    assert main([*words, str(log)]) == main([*words, str(log)]) == ExitCode.OK
    theirs = json.loads(log.read_text())
    theirs["runs"][0]["tool"]["driver"]["name"] = "their linter"
    their_log.write_text(json.dumps(theirs))
    assert main([*words, str(their_log)]) == ExitCode.USAGE
    assert json.loads(their_log.read_text()) == theirs
    assert main([*words, str(their_log), "--force"]) == ExitCode.OK
    assert json.loads((tmp_path / "other.sarif.old").read_text()) == theirs


VERDICT = {"schema_version": 1, "profile": "onnx", "fit": True, "findings": []}
TRACE = json.dumps(convert_trace(b"")).encode()
NAMED = [
    (is_plan, "plan.json", msgspec.json.encode(Plan(base="a", head="b")), b'{"base": "a"}'),
    (is_verdict, "doctor.json", json.dumps(VERDICT).encode(), b'{"profile": "onnx"}'),
    (is_own_trace, "net.json", TRACE, b'{"traceEvents": []}'),
    (is_result_file, "audit.json", b'{"schema_version": 1}', b"{}"),
    (is_result_file, "fuzz.json", b'[{"scheme": "8a8w", "findings": []}]', b"[1]"),
    (is_result_file, "index.html", None, b"<p>theirs"),
]


@pytest.mark.parametrize(("recognise", "name", "own_bytes", "theirs"), NAMED)
def test_a_named_file_replaces_only_one_of_this_project(
    recognise: Recognise,
    name: str,
    own_bytes: bytes | None,
    theirs: bytes,
    report: Report,
    tmp_path: Path,
) -> None:
    path = tmp_path / name
    ours = own_bytes or render_files(report)[name]
    for content in (b"", ours, ours):
        path.write_bytes(content)
        write_output(path, ours, recognise, "")
    path.write_bytes(theirs)
    with pytest.raises(UsageError, match=name):
        require_output(path, recognise, "")
    path.unlink()
    (tmp_path / "target").write_bytes(theirs)
    path.symlink_to("target")
    with pytest.raises(UsageError, match=name):
        require_output(path, recognise, "")
    assert (tmp_path / "target").read_bytes() == theirs
