"""A verification as data, as text and as the exit code of ``verify-signature``; catalogs."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ci.__main__ import main
from ci.signing.mbn import parse_image
from ci.signing.record import check_record
from ci.signing.verdict import Kind, Scheme, SignedBy, Verdict, Verification, render_reports
from ci.signing.verify import verify_file
from provisioning.elf.facts import Genuine, Proof
from provisioning.errors import ExitCode
from provisioning.manifest import catalogs
from provisioning.manifest.catalogs import KnownBuild
from tests.build.signing import show
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.catalogs import NOW, TRUST, YEAR, make_catalog
from tests.stand_ins.elfsigner.certify import LEAF_NAME, ROOT_NAME, certify
from tests.stand_ins.elfsigner.keys import make_key
from tests.stand_ins.elfsigner.mbn_writer import Key, sign_elf
from tests.stand_ins.elfsigner.spoil import PLACE, flip, verify
from tests.stand_ins.snapshots import check_snapshot

ELF_FILES = Path(__file__).parents[3] / "artifacts" / "elf"
SNAPSHOTS = Path(__file__).with_name("snapshots")
SIGNED_ON = datetime(2026, 11, 20, tzinfo=timezone.utc)
PROVEN = [
    Verification(1, proof=Proof(Genuine.GENUINE, "a.cat")),
    Verification(1, proof=Proof(Genuine.GENUINE, "a.cat", signed=SIGNED_ON), build="v2.49"),
    Verification(1, proof=Proof(Genuine.NOT_COVERED, "a.cat", "no such name")),
]
NAME, CATALOG, BUILD = "libQnnHtpV73Skel.so", "libqnnhtpv73.cat", "v2.49.40.260810104044"


@pytest.mark.parametrize(
    ("schemes", "faulty", "verdict"),
    [
        ([Scheme.PSS], False, Verdict.PROVEN),
        ([Scheme.PSS, Scheme.UNKNOWN], False, Verdict.UNRECOGNISED),
        ([], False, Verdict.UNSIGNED),
        ([Scheme.PSS, Scheme.UNKNOWN], True, Verdict.INVALID),
        ([], True, Verdict.INVALID),
    ],
)
def test_a_verdict_is_the_worst_of_what_was_found(
    schemes: list[Scheme], faulty: bool, verdict: Verdict
) -> None:
    signers = [SignedBy("a", (), scheme, 1) for scheme in schemes]
    report = Verification(1, signed=bool(schemes), signers=signers)
    report.add(Kind.HASH, *(["x"] if faulty else []))
    assert report.verdict is verdict


def test_a_verification_reads_as_its_snapshot_as_data_and_text(key: Key, library: bytes) -> None:
    good, faulty = verify(sign_elf(library, key)), verify(sign_elf(library, key, wrong_entry=3))
    faulty.notes.append("a note")
    unsigned, signed = Verification(1), Verification(1, signed=True)
    signed.header_version, signed.machine = 6, "AArch64"
    reports = {Path("/x/testsig-0xbadcafe.so"): faulty, Path("a.so"): unsigned, Path("b"): signed}
    texts = {
        "as data": json.dumps(good.as_data(), indent=1),
        "faults as data": json.dumps(faulty.as_data()["errors"], indent=1),
        "unsigned as data": json.dumps(unsigned.as_data(), indent=1),
        "unsigned": render_reports({Path("a/b.so"): unsigned}),
        "several": render_reports(reports),
    }
    for number, report in enumerate(PROVEN):
        texts[f"catalog {number}"] = render_reports({Path("a.so"): report})
    chain = good.signers[0].chain
    dates = [
        date for certificate in chain for date in (certificate.not_before, certificate.not_after)
    ]
    hidden = {certificate.fingerprint: "SHA256" for certificate in chain}
    hidden |= {date.isoformat(): "DATE" for date in dates}
    hidden |= {f"{date:%Y-%m-%d}": "DAY" for date in dates}  # last: DATE contains it
    check_snapshot(SNAPSHOTS / "reports.txt", show(texts, hidden))


# Unsigned skels that a catalog next to them proves


@pytest.fixture
def skel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(catalogs, "read_trust", lambda: TRUST)
    monkeypatch.setattr(catalogs, "read_known", dict)
    path = tmp_path / "skel" / NAME
    path.parent.mkdir()
    path.write_bytes(elf.named(ELF_FILES / "libplaceholder_for_hexagon.so", NAME))
    path.with_name(CATALOG).write_bytes(make_catalog({NAME: path.read_bytes()}, stamped=NOW))
    return path


def judge(skel: Path, at: datetime | None = None) -> tuple[str, str | None]:
    """The verdict of a skel, and what its catalog proves."""
    data = verify_file(skel, at=at).as_data()
    return data["verdict"], data["catalog"] and data["catalog"]["outcome"]


def test_a_catalog_next_to_a_skel_proves_it(skel: Path) -> None:
    catalog = skel.with_name(CATALOG)
    report = verify_file(skel)
    assert report.verdict is Verdict.GENUINE
    assert report.as_data()["catalog"] == {
        "outcome": "genuine",
        "file": CATALOG,
        "why": "",
        "signed": "2026-06-01T00:00:00+00:00",
        "qnn_build": BUILD,
    }
    good, whole_catalog = skel.read_bytes(), catalog.read_bytes()
    skel.write_bytes(good + b"!")
    assert judge(skel) == ("unsigned", "not covered")
    skel.write_bytes(good)
    catalog.write_bytes(whole_catalog[:-1])
    forged = verify_file(skel)
    assert forged.verdict is Verdict.INVALID
    assert [fault.kind for fault in forged.faults] == [Kind.CATALOG]
    assert forged.errors[0].startswith(f"{CATALOG} proves nothing: ")
    catalog.write_bytes(make_catalog({NAME: good}))  # without a timestamp
    assert judge(skel, NOW)[0] == "genuine"
    assert judge(skel, NOW + 9 * YEAR)[0] == "invalid"
    catalog.unlink()
    assert judge(skel) == ("unsigned", None)


def test_without_a_catalog_the_list_of_genuine_skels_is_asked(
    skel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = hashlib.sha256(skel.read_bytes()).hexdigest()
    builds = {BUILD: KnownBuild("some.whl", "0" * 64, {NAME: listed})}
    monkeypatch.setattr(catalogs, "read_known", lambda: builds)
    skel.with_name(CATALOG).unlink()
    report = verify_file(skel)
    assert report.verdict is Verdict.GENUINE
    assert "some.whl" in report.as_data()["catalog"]["file"]
    skel.write_bytes(skel.read_bytes() + b"!")
    assert judge(skel) == ("unsigned", "not covered")
    assert listed in verify_file(skel).as_data()["catalog"]["why"]
    assert judge(skel.rename(skel.with_name("libQnnHtpV75Skel.so"))) == ("unsigned", None)


def test_a_signed_file_is_not_looked_up_in_catalogs(skel: Path, key: Key, library: bytes) -> None:
    skel.write_bytes(sign_elf(library, key))
    assert judge(skel) == ("proven", None)


# The verb


def check(*words: object) -> ExitCode:
    return ExitCode(main(["sign", "--verify", *map(str, words)]))


def test_the_expected_kind_of_signature_decides_the_exit_code(
    tmp_path: Path, skel: Path, key: Key, library: bytes
) -> None:
    authority = generate_private_key(SECP256R1())
    chain = certify(LEAF_NAME, Ed25519PrivateKey.generate(), ROOT_NAME, authority)
    chain += certify(ROOT_NAME, authority, ROOT_NAME, authority)
    places = {"genuine": skel}
    for name, data in {
        "signed": sign_elf(library, key),
        "expired": sign_elf(library, make_key(-1)),
        "unsigned": library,
        "invalid": flip(sign_elf(library, key), PLACE + 60),
        "unrecognised": sign_elf(library, dataclasses.replace(key, chain=chain)),
    }.items():
        places[name] = tmp_path / f"{name}.so"
        places[name].write_bytes(data)

    def passing(*words: object) -> list[str]:
        return [name for name, path in places.items() if check(path, *words) == ExitCode.OK]

    assert passing() == ["signed", "expired"]
    assert passing("--expect", "signed") == ["signed", "expired"]
    assert passing("--expect", "unsigned") == ["genuine", "unsigned"]
    assert passing("--expect", "genuine") == ["genuine"]
    assert passing("--accept-unrecognised") == ["signed", "expired", "unrecognised"]
    assert passing("--accept-unrecognised", "--expect", "unsigned") == ["genuine", "unsigned"]
    now = datetime.now(timezone.utc)
    assert passing("--at", f"{now:%Y-%m-%dT%H:%M:%S}") == ["signed"]


def test_one_bad_file_fails_the_verification_and_each_bad_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: Key, library: bytes
) -> None:
    assert check(tmp_path) == ExitCode.USAGE
    assert "no library to verify" in capsys.readouterr().err
    signed = sign_elf(library, key)
    names = ["libc++.so.1", *(f"{letter}.so" for letter in "gdba")]
    for name in (*names, "notes.txt"):
        (tmp_path / name).write_bytes(library if name == "d.so" else signed)
    assert check(tmp_path, "--json") == ExitCode.FAILED
    listed = [Path(file["path"]).name for file in json.loads(capsys.readouterr().out)["files"]]
    assert listed == sorted(names)
    (tmp_path / "d.so").unlink()
    assert check(tmp_path) == ExitCode.OK


def test_a_record_that_does_not_match_fails_good_files(
    library: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [tmp_path / name for name in ("recorded", "testsig-0xbadcafe")]
    for place in places:
        place.mkdir()
        (place / "a.so").write_bytes(library)
    assert check(*places, "--expect", "unsigned") == ExitCode.OK
    capsys.readouterr()
    (places[0] / "signing.json").write_text("{}")
    (fault,) = check_record(places[0])
    for order in (places, places[::-1]):
        assert check(*order, "--expect", "unsigned", "--json") == ExitCode.FAILED
        data = json.loads(capsys.readouterr().out)
        assert data["records"] == {str(places[0]): [fault]}
    verification = verify(library).as_data()
    assert [*data["files"]] == [
        {"path": f"{tmp_path}/{name}/a.so", **verification} for name in ("testsig-***", "recorded")
    ]
    assert check(*places, "--expect", "unsigned") == ExitCode.FAILED
    message = f"the record of {places[0]} does not match its files\n  wrong: {fault}\n"
    assert message in capsys.readouterr().out


def test_each_file_is_compared_with_the_input_of_its_name(
    key: Key, library: bytes, tmp_path: Path
) -> None:
    signed, inputs = tmp_path / "signed", tmp_path / "inputs"
    signed.mkdir()
    inputs.mkdir()
    (signed / "a.so").write_bytes(sign_elf(library, key))
    last = [
        segment for segment in parse_image(memoryview(library)).loadable() if segment.header.filesz
    ][-1]
    for data, code in ((library, ExitCode.OK), (flip(library, last.end - 1), ExitCode.FAILED)):
        (inputs / "a.so").write_bytes(data)
        assert check(signed, "--input", inputs) == code
        assert check(signed, "--input", inputs / "a.so") == code
    (inputs / "a.so").rename(inputs / "b.so")
    assert check(signed, "--input", inputs) == ExitCode.USAGE
