"""A session that does not do what its row promises is red in reports/sessions."""

from __future__ import annotations

import json
from pathlib import Path

from tests.documented.place import Place
from tests.documented.sessions import SessionRow
from tests.programs import read_results, show_counts
from tests.sessions import run_rows


def find_nothing(place: Place) -> None:
    assert (place.clone / "nothing").exists(), "nothing was written"


ROWS = {
    SessionRow("last", "printf 'much\nmore\ndone\n'", "done"): "passed",
    SessionRow("red", "echo done; exit 3", "done", 3): "passed",
    SessionRow("code", "echo done; exit 3", "done"): "failed: exit code 3 is not 0:",
    SessionRow("early", "echo done; seq 9", "done"): (
        "failed: its last lines do not contain 'done'"
    ),
    SessionRow("traceback", "echo Traceback; echo done", "done"): (
        "failed: echo Traceback; echo done"
    ),
    SessionRow("after", "echo done", "done", after=find_nothing): "failed: nothing was written",
    SessionRow("program", "echo done", "done", needs=("no-such-program",)): (
        "skipped: not installed: no-such-program"
    ),
    SessionRow("earlier", "echo done", run_by="another stage"): "skipped: run by another stage",
}


def test_a_session_that_breaks_its_promise_is_red(shared: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    results = run_rows([*ROWS], shared, tmp_path, lines.append)
    ended = [": ".join(filter(None, (row.outcome, row.reason))) for row in results]
    assert ended == [*ROWS.values()]
    assert show_counts(read_results(tmp_path / "junit.xml")) == "2 passed, 4 failed, 2 skipped"
    document = json.loads((tmp_path / "report.json").read_text())
    assert [row["exit_code"] for row in document["rows"]] == [0, 3, 3, 0, 0, 0, None, None]
    assert (tmp_path / "early.log").read_text() == "done\n1\n2\n3\n4\n5\n6\n7\n8\n9\n"
    assert "    | Traceback" in lines
