"""Real logs and public threads: of what was broken, the right first cause; of runs that succeeded,
none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.explain.explain import Explanation, explain
from ci.explain.rules import read_rules
from provisioning.manifest.reader import read_toml

LOGS = Path(__file__).parents[3] / "artifacts" / "logs"
ROWS: list[dict[str, Any]] = read_toml("table.toml", dict[str, Any], LOGS)["log"]
BROKEN = [row for row in ROWS if row["cause"]]
GOOD = [row for row in ROWS if not row["cause"]]
MOST_WRONG = 0.05
THREADS: list[dict[str, str]] = read_toml("threads.toml", dict[str, Any], LOGS.parent)["log"]


def explain_log(name: str) -> Explanation:
    return explain(name, [(LOGS / name).read_bytes()], read_rules())


def find_wrong(rows: list[dict[str, Any]]) -> list[str]:
    """The logs whose first cause is another than the right one."""
    wrong = []
    for row in rows:
        causes = explain_log(row["file"]).causes
        if not causes or causes[0].rule != row["cause"]:
            wrong.append(row["file"])
    return wrong


def test_the_first_cause_is_right_for_nearly_all_logs_of_the_corpus() -> None:
    wrong = find_wrong(BROKEN)
    assert len(BROKEN) >= 60
    assert len(wrong) <= MOST_WRONG * len(BROKEN), wrong


def test_half_of_the_corpus_was_written_before_the_rules_and_is_explained_as_well() -> None:
    writing_times = [row["made"] for row in THREADS]
    assert (writing_times.count("before the rules"), writing_times.count("after")) == (20, 20)
    older = [row for row in BROKEN if row["made"] == "before the rules"]
    assert len(older) >= 30
    assert len(find_wrong(older)) <= MOST_WRONG * len(older)


@pytest.mark.parametrize("row", GOOD, ids=lambda row: row["file"])
def test_a_run_that_succeeded_has_no_cause(row: dict[str, Any]) -> None:
    assert explain_log(row["file"]).causes == ()


@pytest.mark.parametrize("row", THREADS, ids=lambda row: row["thread"])
def test_each_log_of_a_public_thread_has_its_known_cause_and_remedy(row: dict[str, str]) -> None:
    explanation = explain("", [row["log"].lstrip("\n").encode()], read_rules())
    assert [cause.rule for cause in explanation.causes][:1] == (
        [row["cause"]] if row["cause"] else []
    )
    assert row.get("note", "") in ("", *(note.rule for note in explanation.notes))
    remedy = explanation.causes[0].fix if explanation.causes else ""
    assert row.get("says", "") in remedy
    assert "not" not in row or row["not"] not in remedy
