"""Versions that are not in manifests/pairs.toml: refused, or tried without the patches."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ci.executorch.patches import PATCHES
from ci.report.write import read_report
from provisioning.errors import ExitCode
from tests.integration.conftest import MakeOnce

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.emulator
pytest.importorskip("executorch", reason="ExecuTorch is not installed in this environment")


def run_with(version: str, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """test-emulator where ExecuTorch says that it is another version."""
    site = directory / "site" / f"executorch-{version}.dist-info"
    site.mkdir(parents=True, exist_ok=True)
    text = f"Metadata-Version: 2.1\nName: executorch\nVersion: {version}\n"
    (site / "METADATA").write_text(text)
    argv = [sys.executable, "-m", "ci", "test-emulator", "--json", *words]
    argv += ["--model", "mlp", "--scheme", "8a8w", "--reports", str(directory / "reports")]
    argv += ["--keep-artifacts", str(directory / "kept"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(site.parent)}
    return subprocess.run(
        argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_unsupported_versions_end_with_3_before_anything_is_lowered(tmp_path: Path) -> None:
    ended = run_with("1.5.99", tmp_path)
    assert ended.returncode == ExitCode.ENVIRONMENT, ended.stderr
    error = json.loads(ended.stdout)
    assert "1.5.99" in error["what"]
    assert "executorch==1.5.1" in error["fix"]
    assert not list((tmp_path / "kept").iterdir())


def try_unsupported(directory: Path) -> None:
    ended = run_with("1.5.99", directory, "--try-unsupported")
    assert ended.returncode == ExitCode.OK, ended.stderr


@pytest.mark.nightly
def test_try_unsupported_marks_the_report_and_applies_no_patches(
    make_once: MakeOnce,
) -> None:
    directory = make_once("unsupported", try_unsupported)
    report = read_report(directory / "reports" / "test_emulator")
    assert "1.5.99" in report.unsupported
    assert any(report.unsupported in note for note in report.notes)
    assert report.command.endswith("--try-unsupported")
    log = (directory / "kept" / "mlp-8a8w-SM8650" / "lower.log").read_text()
    off = re.findall(r"patch (\w+) is off: not verified with executorch 1\.5\.99", log)
    assert off == [patch.apply.__name__ for patch in PATCHES]
