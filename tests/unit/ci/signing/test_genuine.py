"""Unsigned skels that a Windows catalog next to them proves, by ``verify-signature``."""

from __future__ import annotations

import hashlib
from datetime import datetime
from pathlib import Path

import pytest

from ci.signing import verify
from ci.signing.verdict import Kind, Verdict
from provisioning.manifest import catalogs
from provisioning.manifest.catalogs import KnownBuild
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.catalogs import NOW, TRUST, YEAR, make_catalog

PLACEHOLDER = Path(__file__).parents[3] / "artifacts" / "elf" / "libplaceholder_for_hexagon.so"
NAME, BUILD = "libQnnHtpV73Skel.so", "v2.49.40.260810104044"


@pytest.fixture
def skel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(catalogs, "read_trust", lambda: TRUST)
    monkeypatch.setattr(catalogs, "read_known", dict)
    path = tmp_path / NAME
    path.write_bytes(elf.named(PLACEHOLDER, NAME))
    (tmp_path / "libqnnhtpv73.cat").write_bytes(
        make_catalog({NAME: path.read_bytes()}, stamped=NOW)
    )
    return path


def test_a_genuine_skel(skel: Path) -> None:
    report = verify.verify_file(skel)
    assert report.verdict is Verdict.GENUINE
    assert report.as_data()["catalog"] == {
        "outcome": "genuine",
        "file": "libqnnhtpv73.cat",
        "why": "",
        "signed": "2026-06-01T00:00:00+00:00",
        "qnn_build": BUILD,
    }


def test_a_skel_that_the_catalog_does_not_cover_is_unsigned(skel: Path) -> None:
    with skel.open("ab") as file:
        file.write(b"!")
    report = verify.verify_file(skel)
    assert report.verdict is Verdict.UNSIGNED
    assert report.as_data()["catalog"]["outcome"] == "not covered"


@pytest.mark.parametrize(
    ("at", "verdict"), [(NOW, Verdict.GENUINE), (NOW + 9 * YEAR, Verdict.INVALID)]
)
def test_a_catalog_without_a_timestamp_is_judged_at_the_time_that_is_asked_for(
    skel: Path, at: datetime, verdict: Verdict
) -> None:
    skel.with_name("libqnnhtpv73.cat").write_bytes(make_catalog({NAME: skel.read_bytes()}))
    assert verify.verify_file(skel, at=at).verdict is verdict


def test_a_forged_catalog_is_a_fault(skel: Path) -> None:
    catalog = skel.with_name("libqnnhtpv73.cat")
    catalog.write_bytes(catalog.read_bytes()[:-1])
    report = verify.verify_file(skel)
    assert report.verdict is Verdict.INVALID
    assert [one.kind for one in report.faults] == [Kind.CATALOG]


def test_without_a_catalog_nothing_is_said(skel: Path) -> None:
    skel.with_name("libqnnhtpv73.cat").unlink()
    report = verify.verify_file(skel)
    assert report.verdict is Verdict.UNSIGNED
    assert report.as_data()["catalog"] is None


def test_without_a_catalog_the_list_of_genuine_skels_is_asked(
    skel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = hashlib.sha256(skel.read_bytes()).hexdigest()
    known = {BUILD: KnownBuild("some.whl", "0" * 64, {NAME: listed})}
    monkeypatch.setattr(catalogs, "read_known", lambda: known)
    skel.with_name("libqnnhtpv73.cat").unlink()
    report = verify.verify_file(skel)
    assert report.verdict is Verdict.GENUINE
    assert "some.whl" in report.as_data()["catalog"]["file"]
    with skel.open("ab") as file:
        file.write(b"!")
    report = verify.verify_file(skel)
    assert report.verdict is Verdict.UNSIGNED
    assert report.as_data()["catalog"]["outcome"] == "not covered"
    assert listed in report.as_data()["catalog"]["why"]
    other = skel.rename(skel.with_name("libQnnHtpV75Skel.so"))
    assert verify.verify_file(other).as_data()["catalog"] is None
