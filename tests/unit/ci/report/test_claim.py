from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.report import claim
from ci.report.claim import claim_reports
from provisioning.errors import ExitCode, UsageError

ROOT = Path(__file__).parents[4]
HOLDER = (
    "import sys, pathlib; from ci.report.claim import claim_reports;"
    " claim_reports(pathlib.Path(sys.argv[1])); print('claimed', flush=True); sys.stdin.read()"
)


@contextmanager
def other_run(reports: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that has claimed ``reports``."""
    command = [sys.executable, "-c", HOLDER, str(reports)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"claimed\n"
        try:
            yield process
        finally:
            process.kill()


def test_reports_belong_to_one_run_until_it_ends_even_by_kill(tmp_path: Path) -> None:
    with other_run(tmp_path) as process:
        for _ in range(2):  # the refused run keeps nothing
            with pytest.raises(UsageError, match="another run writes its reports to") as caught:
                claim_reports(tmp_path)
        assert f"process {process.pid} ({sys.executable} -c" in caught.value.why
        assert "--reports" in caught.value.fix
        claim_reports(tmp_path / "other")
    claim_reports(tmp_path)
    claim_reports(tmp_path)  # a run may ask twice


def test_a_claim_writes_neither_through_a_link_nor_over_a_file_of_the_user(tmp_path: Path) -> None:
    notes, reports = tmp_path / "notes.txt", tmp_path / "reports"
    notes.write_text("mine", "utf-8")
    reports.mkdir()
    (reports / ".lock").write_text("packages = 7\n", "utf-8")
    claim_reports(reports)
    assert (reports / ".lock").read_text("utf-8") == "packages = 7\n"
    for name, make in (("soft", Path.symlink_to), ("hard", Path.hardlink_to)):
        (tmp_path / name).mkdir()
        link = tmp_path / name / ".lock"
        make(link, notes)
        with pytest.raises(UsageError, match=r"\.lock is a link, or not a file"):
            claim_reports(tmp_path / name)
        assert (link.samefile(notes), notes.read_text("utf-8")) == (True, "mine")


@pytest.mark.parametrize(
    ("words", "session"),
    [
        (["test-emulator"], "test_emulator"),
        (["test-emulator", "--suite", "faults"], "faults"),
        (["test-onnx"], "test_onnx"),
        (["test-llm"], "test_llm"),
        (["audit"], "audit"),
        (["mend", "--model", "mlp"], "mend"),
        (["fuzz"], "fuzz"),
        (["build", "android"], "build_android"),
    ],
)
def test_a_second_run_of_a_session_is_refused_before_any_work(
    words: list[str],
    session: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claim, "GRACE_S", 0.0)
    report = tmp_path / session / "report.json"
    of_the_first_run = json.dumps({"schema_version": 6, "session": session, "cases": []})
    with other_run(report.parent):
        report.write_text(of_the_first_run, "utf-8")
        assert main([*words, "--reports", str(tmp_path)]) == ExitCode.USAGE
    assert f"another run writes its reports to {report.parent}" in capfd.readouterr().err
    assert report.read_text("utf-8") == of_the_first_run


def test_a_wrong_option_is_named_even_while_another_run_writes_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["test-emulator", "--backend", "lpai", "--soc", "SM8650", "--reports", str(tmp_path)]
    with other_run(tmp_path / "test_emulator"):
        assert main(words) == ExitCode.USAGE
    assert "SM8650 has no LPAI block" in capfd.readouterr().err


def test_a_verb_that_has_ended_leaves_its_reports_to_others(tmp_path: Path) -> None:
    words = ["fuzz", "--frontend", "nothing", "--reports", str(tmp_path)]
    assert main(words) == ExitCode.USAGE
    claim_reports(tmp_path / "mine")
    assert main(["test-emulator", "--shard", "9/1", "--reports", str(tmp_path)]) == ExitCode.USAGE
    for session in ("fuzz", "test_emulator", "mine"):
        with other_run(tmp_path / session):
            pass
