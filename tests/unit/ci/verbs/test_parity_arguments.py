"""What a call of parity compares, and what it prints, writes and exits with."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.__main__ import main
from ci.parity.run import ParityRequest
from ci.report.annotation import Annotation, Level
from ci.report.document import Document
from ci.verbs import parity as verb
from provisioning.errors import ExitCode


class Comparison:
    """Stands in for the comparison; ``report`` is what it finds."""

    def __init__(self) -> None:
        self.asked: list[tuple[ParityRequest, Any]] = []
        self.report: Any = SimpleNamespace(failing=(), unread=())

    def compare(self, request: ParityRequest, policy: Any) -> Any:
        self.asked.append((request, policy))
        return self.report


@pytest.fixture
def comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QNN_CI_CALLER_DIR", str(tmp_path))
    monkeypatch.setenv("QNN_CI_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("EXECUTORCH_ROOT", raising=False)
    made = Comparison()
    for name, own in {
        "compare_source": made.compare,
        "make_document": lambda _, notes: Document("", f"notes {notes}", ()),
        "render_document": lambda _: {"findings": []},
        "render_sarif": lambda *_: {"sarif": 1},
        "make_annotations": lambda _: [Annotation(Level.ERROR, "missing")],
    }.items():
        monkeypatch.setattr(verb, name, own)
    return made


def test_the_work_tree_is_compared_unless_the_call_says_otherwise(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = datetime.now(timezone.utc).date()
    for given, source in (("/a/checkout", Path("/a/checkout")), ("", tmp_path)):
        monkeypatch.setenv("EXECUTORCH_ROOT", given)
        assert main(["parity"]) == ExitCode.OK
        request, _ = comparison.asked[-1]
        own = {"source": request.source, "today": request.today}
        assert request == ParityRequest(**own, cache=tmp_path / "home" / "parity")
        assert request.source.absolute() == source
        assert before <= request.today <= datetime.now(timezone.utc).date()


def test_every_option_of_parity_reaches_the_comparison(
    comparison: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--source", "tree", "--rev", "R", "--base", "B", "--scope", "/a/b/", "--scope", "c"]
    more = ["--notes", "--no-cache", "--sarif", "out.sarif"]
    assert main(["parity", *words, *more]) == ExitCode.OK
    assert capsys.readouterr().out == "notes True\n"
    ((request, _),) = comparison.asked
    assert request == ParityRequest(
        source=tmp_path / "tree", revision="R", scope=("a/b", "c"), base="B", today=request.today
    )
    assert json.loads((tmp_path / "out.sarif").read_text()) == {"sarif": 1}


@pytest.mark.parametrize("name", ["failing", "unread"])
def test_parity_findings_and_unread_files_exit_with_1(
    comparison: Comparison, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    setattr(comparison.report, name, ("one",))
    assert main(["parity", "--annotate"]) == ExitCode.FAILED
    assert capsys.readouterr().out == "::error::missing\n"
    assert main(["parity", "--json"]) == ExitCode.FAILED
    assert json.loads(capsys.readouterr().out) == {"findings": []}
