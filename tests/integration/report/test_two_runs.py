"""Two runs at a time of the sessions that are not verbs of ``qnn-ci``: the second one is refused
before it writes anything. tests/unit/ci/report/test_claim.py does the same for verbs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.ci.report.test_claim import ROOT, other_run

PYTEST = ("-m", "pytest", "-q", "--junit-xml={reports}/unit/junit.xml")


@pytest.mark.parametrize(
    ("words", "directory"),
    [
        (("-m", "tests.bench", "doctor", "--reports", "{reports}"), "bench"),
        (("-m", "tests.mutants", "ci/judging", "--reports", "{reports}"), "mutants"),
        (("-m", "tests.trained", "--reports", "{reports}/trained"), "trained"),
        ((*PYTEST, "tests/static/test_phrases.py"), "unit"),
        ((*PYTEST, "-n1", "tests/static/test_phrases.py"), "unit"),
    ],
    ids=lambda words: " ".join(words[1:3]) if isinstance(words, tuple) else words,
)
def test_a_second_run_is_refused_and_leaves_the_reports_of_the_first(
    words: tuple[str, ...], directory: str, tmp_path: Path
) -> None:
    command = [sys.executable, *(word.replace("{reports}", str(tmp_path)) for word in words)]
    with other_run(tmp_path / directory) as first:
        (tmp_path / directory / "junit.xml").write_text("of the first run")
        before = sorted((tmp_path / directory).iterdir())
        second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        text = " ".join((second.stdout + second.stderr).split())
        assert second.returncode in {2, 4}, text  # 4: pytest's code for a wrong call
        assert f"process {first.pid}" in text
        assert "Traceback" not in text
    assert sorted((tmp_path / directory).iterdir()) == before
    assert (tmp_path / directory / "junit.xml").read_text() == "of the first run"
