"""Installed packages by their content: an edit in place changes the digest, a new date does not."""

from __future__ import annotations

import base64
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.cases import cache
from ci.cases.cache import digest_packages

NAME = "imported_by_lowering"
OBSERVER = f"{NAME}/pt2e/observer.py"
FILES = {f"{NAME}/__init__.py": "", OBSERVER: "scale = 1", f"{NAME}/include/torch.h": "int a;"}
INSTALLED_S = time.time() - 1000


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Site-packages with a distribution as pip leaves it: RECORD is its last file."""
    site = tmp_path / "site-packages"
    install(site)
    monkeypatch.syspath_prepend(site)
    return site


def install(site: Path) -> None:
    rows = []
    for name, text in FILES.items():
        write(site / name, text, INSTALLED_S)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
        rows.append(f"{name},sha256={digest.decode().rstrip('=')},{len(text)}\n")
    comma = f"{NAME}/a,b.py"  # as a shape in the name of a kernel's file
    write(site / comma, "", INSTALLED_S)
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"").digest()).decode().rstrip("=")
    rows += [f"{comma},sha256={digest},0\n", "a line of another form\n"]
    rows.append(f"{NAME}/__pycache__/__init__.pyc,,\n{NAME}-1.0.dist-info/RECORD,,\n")
    write(site / f"{NAME}-1.0.dist-info/RECORD", "".join(rows), INSTALLED_S + 1)


def write(path: Path, text: str, modified_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (modified_s, modified_s))


def edit_and_restore_date_and_size(site: Path) -> None:
    record = (site / f"{NAME}-1.0.dist-info/RECORD").stat()
    while (site / OBSERVER).stat().st_ctime_ns <= record.st_ctime_ns:  # the clock ticks slowly
        write(site / OBSERVER, "scale = 8", INSTALLED_S)


def edit_soon_after_the_installation(site: Path) -> None:
    record = (site / f"{NAME}-1.0.dist-info/RECORD").stat()
    write(site / OBSERVER, "scale = 8", record.st_ctime + 1)


CHANGES: list[Callable[[Path], object]] = [
    lambda site: (site / OBSERVER).write_text("scale = 8"),
    lambda site: write(site / OBSERVER, "scale = 1 * 8", INSTALLED_S),
    edit_and_restore_date_and_size,
    edit_soon_after_the_installation,
    lambda site: write(site / f"{NAME}.libs/libopenblas.so", "blas", INSTALLED_S),
    lambda site: (site / f"{NAME}/pt2e/qconfig.py").write_text(""),
    lambda site: (site / OBSERVER).unlink(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_package_that_was_edited_in_place_has_another_digest(
    installed: Path, change: Callable[[Path], None]
) -> None:
    if change is edit_and_restore_date_and_size:
        record = installed / f"{NAME}-1.0.dist-info/RECORD"
        record.write_bytes(record.read_bytes())  # installed a moment ago, and not copied
    before = digest_packages([NAME])
    assert digest_packages([NAME]) == before
    change(installed)
    assert digest_packages([NAME]) != before


def test_another_python_or_an_overlay_before_a_package_has_another_digest(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert installed.is_dir()
    digests = [digest_packages([NAME])]
    for name, text in FILES.items():
        write(tmp_path / "overlay" / name, text.replace("1", "8"), INSTALLED_S)
    monkeypatch.syspath_prepend(tmp_path / "overlay")
    digests.append(digest_packages([NAME]))
    monkeypatch.setattr("sys.version", "3.10.20 (main, Apr 10 2026, 12:00:00) [GCC 14.2.0]")
    digests.append(digest_packages([NAME]))
    assert len({*digests}) == 3


def test_the_digest_of_a_package_ignores_dates_headers_tests_and_bytecode(installed: Path) -> None:
    before = digest_packages([NAME])
    (installed / OBSERVER).touch()
    (installed / f"{NAME}/include/torch.h").write_text("int b;")
    write(installed / f"{NAME}/__pycache__/__init__.pyc", "cached", time.time())
    for folder in ("test", "tests", "pt2e/tests"):
        write(installed / f"{NAME}/{folder}/test_it.py", "", time.time())
    assert digest_packages([NAME]) == before


def test_a_package_without_a_record_counts_by_its_content(installed: Path) -> None:
    recorded = digest_packages([NAME])
    (installed / f"{NAME}-1.0.dist-info/RECORD").unlink()
    assert digest_packages([NAME]) == recorded
    write(installed / OBSERVER, "scale = 8", INSTALLED_S)
    assert digest_packages([NAME]) != recorded


def test_package_files_are_hashed_by_their_installation_record(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This avoids reading all of torch."""
    hashed: list[str] = []

    def note(path: Path) -> str:
        hashed.append(path.name)
        return "0" * 64

    monkeypatch.setattr(cache, "hash_file", note)
    write(installed / f"{NAME}-0.9.dist-info/RECORD", "", INSTALLED_S + 1)  # of an older version
    digest_packages([NAME])
    assert hashed == []
    write(installed / f"{NAME}/unrecorded.py", "", INSTALLED_S)
    record = installed / f"{NAME}-1.0.dist-info/RECORD"
    text = record.read_text() + f"{NAME}/unrecorded.py,,0\n"
    write(record, text, INSTALLED_S + 1)
    digest_packages([NAME])
    assert hashed == ["unrecorded.py"]
