"""A run in shards and a whole one come to the same, on the emulator."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci.report.schema import Report
from ci.report.write import read_report

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.skipif(importlib.util.find_spec("executorch") is None, reason="no executorch here"),
]
ROOT = Path(__file__).resolve().parents[3]
WORDS = ("--model", "mlp", "--scheme", "fp16", "--scheme", "8a8w", "--scheme", "16a8w")
# One case fails, so the shard with it has to fail, too.
POLICY = """extends = "default"
[suite]
mlp = ["fp16"]
[[override]]
model = "mlp"
scheme = "8a8w"
reason = "to have a case that fails"
limits = { min_sqnr_db = 99.0, min_cosine = 0.9 }
"""


def run(folder: Path, *words: str) -> tuple[int, Report]:
    argv = [sys.executable, "-m", "ci", "test-emulator", *WORDS, "--reports", str(folder), *words]
    argv += ["--policy", str(folder.parent / "policy.toml")]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    file = folder / "test_emulator"
    assert file.is_dir(), ended.stderr
    return ended.returncode, read_report(file)


def judged(report: Report) -> Any:
    """What a run says, without what is measured, and without remedies: these name the schemes that
    passed in the same shard."""
    data = json.loads(json.dumps([list(map(str, report.toolchain)), *map(str, report.thresholds)]))
    cases = [
        (c.model, c.scheme, c.soc, c.judgement.status, c.judgement.sqnr_db, c.headline)
        for c in report.cases
    ]
    controls = [(c.model, c.scheme, c.kind, c.rejected, c.sqnr_db) for c in report.controls]
    return data, cases, controls, report.ok


@pytest.mark.nightly
def test_merged_shards_give_the_verdicts_of_a_whole_run(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY)
    code, whole_report = run(tmp_path / "whole")
    assert code == 1
    assert [case.judgement.status.value for case in whole_report.cases] == [
        "passed",
        "failed",
        "passed",
    ]
    codes = []
    for shard in ("1/2", "2/2"):
        code, report = run(tmp_path / shard.replace("/", "-of-"), "--shard", shard)
        codes.append(code)
        assert len(report.cases) in {1, 2}
    assert sorted(codes) == [0, 1]
    places = [str(tmp_path / name / "test_emulator") for name in ("2-of-2", "1-of-2")]
    words = ["-m", "ci", "report", *places, "--to", str(tmp_path / "merged")]
    ended = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == 1
    assert judged(read_report(tmp_path / "merged")) == judged(whole_report)
