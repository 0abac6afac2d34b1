"""What an update of a version leaves to its user."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.artifacts.pins import list_by_hand
from provisioning.manifest.reader import MANIFESTS_VARIABLE


def test_lines_of_the_old_version_are_listed_without_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manifests").mkdir()
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(tmp_path / "manifests"))
    lines = [
        '"executorch==1.5.1",',
        '"asn1crypto>=1.5.1",',
        '"executorch-tools==1.5.1",',
        '"executorch==1.5.10",',
        '"asn1crypto==1.5.1", # of executorch 1.5.1',
    ]
    (tmp_path / "pyproject.toml").write_text("\n".join(lines))
    assert list_by_hand([], "executorch", "1.5.1") == [
        f"pyproject.toml:1: {lines[0]}",
        f"pyproject.toml:5: {lines[4]}",
    ]
