"""The pages as a site: a link or an anchor that leads nowhere ends the build, which lint runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = Path(__file__).parents[2] / ".ci" / "mkdocs.yml"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("# Title\n\n[a](#title) [b](other.md)\n", 0),
        ("# Title\n\n[a](gone.md) [b](other.md)\n", 1),
        ("# Title\n\n[a](#gone) [b](other.md)\n", 1),
        ("# Title\n\n[a](/other.md) [b](other.md)\n", 1),
    ],
)
def test_a_broken_link_fails_the_build_of_the_site(tmp_path: Path, text: str, code: int) -> None:
    pytest.importorskip("mkdocs", reason="only lint's environment has mkdocs")
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "index.md").write_text(text)
    (pages / "other.md").write_text("# Other\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {CONFIG}\ndocs_dir: docs\nsite_dir: site\n")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=1200)
    assert ended.returncode == code, ended.stderr
