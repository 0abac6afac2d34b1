"""What a run shows while pytest works."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ci.upstream.judged import make_result
from ci.upstream.session import describe_progress
from ci.upstream.suites import count_file, step_file


def test_each_step_of_pytest_is_shown_and_then_the_tests_that_ended(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    shown = [describe_progress(results)]
    for step in ("imports ExecuTorch and its tests", "found 564 tests"):
        step_file(results).write_text(step)
        shown.append(describe_progress(results))
    count_file(results).write_text("3")
    shown.append(describe_progress(results))
    step_file(results).write_text("test_relu")
    for name, ran in (("test_add", "skipped"), ("test_abs", "failed")):
        row = make_result(f"Case::{name}", "SM8650", ran, "why", ())
        with results.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
        shown.append(describe_progress(results))
    assert shown == [
        "pytest starts",
        "pytest imports ExecuTorch and its tests",
        "pytest found 564 tests",
        "0 of 3, found 564 tests",
        "1 of 3, test_relu",
        "2 of 3, 1 failed, test_relu",
    ]
