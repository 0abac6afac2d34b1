"""A verification as data and as text: one snapshot of each, and the verdict."""

from __future__ import annotations

import argparse
import json
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ci.__main__ import main
from ci.signing.record import RECORD_NAME
from ci.signing.verdict import (
    NOT_JUDGED,
    Kind,
    Scheme,
    SignedBy,
    Verdict,
    Verification,
    render_report,
    render_reports,
)
from ci.verbs import verify_signature
from ci.verbs.verify_signature import parse_date
from provisioning.elf.facts import PT_LOAD, Genuine, Proof
from provisioning.elf.reader import parse_headers
from provisioning.errors import ExitCode
from tests.stand_ins.elfsigner.mbn_writer import Key, sign_elf
from tests.stand_ins.elfsigner.spoil import PLACE, verify


@pytest.mark.parametrize(
    ("schemes", "signed", "faulty", "verdict"),
    [
        ((Scheme.PSS,), True, False, Verdict.PROVEN),
        ((Scheme.PSS, Scheme.UNKNOWN), True, False, Verdict.UNRECOGNISED),
        ((), False, False, Verdict.UNSIGNED),
        ((Scheme.PSS, Scheme.UNKNOWN), True, True, Verdict.INVALID),
        ((), False, True, Verdict.INVALID),
    ],
)
def test_a_verdict_is_the_worst_of_what_was_found(
    schemes: tuple[Scheme, ...], signed: bool, faulty: bool, verdict: Verdict
) -> None:
    signers = [SignedBy("a", (), scheme, 1) for scheme in schemes]
    report = Verification(1, signed=signed, signers=signers)
    report.add(Kind.HASH, *(["x"] if faulty else []))
    assert report.verdict is verdict


def test_a_verification_as_data(key: Key, library: bytes) -> None:
    report = verify(sign_elf(library, key))
    chain = report.signers[0].chain
    start = PLACE + 48 + 120 + 11 * 48

    assert report.as_data() == {
        "verdict": "proven",
        "errors": [],
        "notes": [],
        "size_bytes": report.size,
        "machine": "hexagon",
        "hexagon_version": "V69",
        "encrypted": False,
        "mbn_header_version": 6,
        "hash_algorithm": "sha384",
        "hashed_segments": 9,
        "signers": [
            {
                "authority": "OEM",
                "scheme": "RSA-PSS",
                "signature_bytes": 256,
                "certificates": [
                    {
                        "subject": one.subject,
                        "issuer": one.issuer,
                        "not_before": one.not_before.isoformat(),
                        "not_after": one.not_after.isoformat(),
                        "key": "RSA",
                        "key_bits": 2048,
                        "sha256": one.fingerprint,
                    }
                    for one in chain
                ],
            }
        ],
        "catalog": None,
        "uncovered_ranges": report.uncovered,
        "signature_ranges": [(start, start + 256)],
        "not_judged": list(NOT_JUDGED),
    }
    assert [one.subject.split("=")[-1] for one in chain] == [
        "Stand-in signer",
        "Stand-in attestation CA",
        "Stand-in root",
    ]


def test_faults_of_an_unsigned_file_as_data() -> None:
    report = Verification(7)
    report.add(Kind.HASH, "one", "two")
    data = report.as_data()
    assert data["errors"] == [{"kind": "hash", "what": "one"}, {"kind": "hash", "what": "two"}]
    assert (data["verdict"], data["hexagon_version"], data["not_judged"]) == ("invalid", None, [])


def test_a_verification_as_text(key: Key, library: bytes) -> None:
    report = verify(sign_elf(library, key, 6, wrong_entry=3))
    report.notes.append("a note")

    text = render_report(Path("/x/testsig-0xbadcafe.so"), report)
    chain = [f"    {index}: {one.describe()}" for index, one in enumerate(report.signers[0].chain)]
    assert text.splitlines() == [
        "testsig-***.so: invalid",
        "  hexagon V69, MBN header 6, sha384, 9 segments hashed",
        "  OEM: signature of 256 bytes, RSA-PSS",
        *chain,
        f"  wrong: {report.errors[0]}",
        "  note: a note",
    ]
    assert text.endswith("a note\n")


@pytest.mark.parametrize(
    ("outcome", "why", "build", "line"),
    [
        (Genuine.GENUINE, "", "", "  genuine according to a.cat"),
        (Genuine.GENUINE, "", "v2.49", "  genuine according to a.cat, QNN v2.49"),
        (Genuine.NOT_COVERED, "no such name", "", "  not covered by a.cat: no such name"),
    ],
)
def test_what_a_catalog_proves_is_told_and_data(
    outcome: Genuine, why: str, build: str, line: str
) -> None:
    signed = datetime(2026, 11, 20, tzinfo=timezone.utc) if build else None
    report = Verification(1, proof=Proof(outcome, "a.cat", why, signed), build=build)
    date = ", signed on 2026-11-20" if signed else ""
    wanted = line.replace("a.cat", f"a.cat{date}")
    assert render_report(Path("a.so"), report) == f"a.so: {report.verdict.value}\n{wanted}\n"
    assert report.as_data()["catalog"] == {
        "outcome": outcome.value,
        "file": "a.cat",
        "why": why,
        "signed": "2026-11-20T00:00:00+00:00" if signed else None,
        "qnn_build": build or None,
    }


def test_what_only_a_device_can_judge_is_told_once(library: bytes) -> None:
    unsigned, signed = verify(library), Verification(1, signed=True)
    signed.header_version, signed.machine = 6, "AArch64"

    assert render_reports({Path("a/b.so"): unsigned}) == "b.so: unsigned\n"
    lines = render_reports({Path("a.so"): unsigned, Path("b.so"): signed}).splitlines()
    assert lines[:3] == [
        "a.so: unsigned",
        "b.so: proven",
        "  AArch64, MBN header 6, no hash table, 0 segments hashed",
    ]
    assert lines[3:] == [
        f"not checked, because only the device can check it: {what}" for what in NOT_JUDGED
    ]
    assert ["root certificate" in lines[3], "identities" in lines[4]] == [True, True]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20", "2026-11-20T00:00:00+00:00"),
        ("2026-11-20T12:00:00", "2026-11-20T12:00:00+00:00"),
        ("2026-11-20T12:00:00+02:00", "2026-11-20T12:00:00+02:00"),
    ],
)
def test_a_date_is_utc_wherever_this_machine_is(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert parse_date(text).isoformat() == expected
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "yesterday", "20.11.2026"])
def test_other_text_is_no_date(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a date such as"):
        parse_date(text)


@pytest.mark.parametrize(
    ("faults", "code"), [([], ExitCode.OK), (["other", "another"], ExitCode.FAILED)]
)
def test_a_record_that_does_not_match_fails_good_files(
    library: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    faults: list[str],
    code: ExitCode,
) -> None:
    places = [tmp_path / name for name in ("recorded", "testsig-0xbadcafe")]
    for place in places:
        place.mkdir()
        (place / "a.so").write_bytes(library)
    (places[0] / RECORD_NAME).write_text("{}")
    monkeypatch.setattr(verify_signature, "check_record", lambda _: iter(faults))
    words = ["verify-signature", *map(str, places), "--expect", "unsigned"]
    assert main(["verify-signature", *map(str, reversed(places)), *words[-2:]]) == code
    capsys.readouterr()
    assert main(words) == code
    matches = "does not match" if faults else "matches"
    assert capsys.readouterr().out.splitlines() == [
        *("a.so: unsigned", "a.so: unsigned"),
        f"the record of {places[0]} {matches} its files",
        *(f"  wrong: {one}" for one in faults),
    ]
    assert main([*words, "--json"]) == code
    data = verify(library).as_data()
    assert json.loads(capsys.readouterr().out) == {
        "expected": "unsigned",
        "files": [
            {"path": f"{tmp_path}/{name}/a.so", **data} for name in ("recorded", "testsig-***")
        ],
        "records": {str(places[0]): faults},
    }


@pytest.mark.parametrize(
    ("expected", "code"), [("signed", ExitCode.OK), ("unsigned", ExitCode.FAILED)]
)
def test_a_key_of_no_published_scheme_is_accepted_as_a_signature_alone(
    library: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str, code: ExitCode
) -> None:
    signer = SignedBy("a", (), Scheme.UNKNOWN, 1)
    found = Verification(1, signed=True, signers=[signer])
    assert found.verdict is Verdict.UNRECOGNISED
    (tmp_path / "a.so").write_bytes(library)
    monkeypatch.setattr(verify_signature, "verify_file", lambda *_, **__: found)
    words = ["verify-signature", str(tmp_path / "a.so"), "--expect", expected]
    assert main([*words, "--accept-unrecognised"]) == code
    assert main(words) == ExitCode.FAILED


@pytest.mark.parametrize(
    ("expected", "passing"),
    [("signed", ["signed"]), ("unsigned", ["genuine", "unsigned"]), ("genuine", ["genuine"])],
)
def test_a_genuine_file_is_unsigned_and_no_other_kind_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str, passing: list[str]
) -> None:
    (tmp_path / "a.so").touch()
    files = {
        "signed": Verification(1, signed=True),
        "unsigned": Verification(1),
        "genuine": Verification(1, proof=Proof(Genuine.GENUINE, "a.cat")),
    }
    accepted = []
    for name, found in files.items():
        monkeypatch.setattr(verify_signature, "verify_file", lambda *_, one=found, **__: one)
        if main(["verify-signature", str(tmp_path), "--expect", expected]) == ExitCode.OK:
            accepted.append(name)
    assert sorted(accepted) == passing


def test_one_of_several_files_fails_them_all_and_each_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["libc++.so.1", *(f"{letter}.so" for letter in "hgfedcba")]
    dates: list[datetime | None] = []

    def check(path: Path, _: Path | None, *, at: datetime | None) -> Verification:
        dates.append(at)
        return Verification(1, signed=path.name != "d.so")

    monkeypatch.setattr(verify_signature, "verify_file", check)
    words = ["verify-signature", str(tmp_path), "--json"]
    assert main(words) == ExitCode.USAGE
    assert "no library to verify" in capsys.readouterr().err
    for name in (*names, "notes.txt"):
        (tmp_path / name).touch()
    assert main([*words, "--at", "2026-11-20"]) == ExitCode.FAILED
    told = [Path(one["path"]).name for one in json.loads(capsys.readouterr().out)["files"]]
    assert told == sorted(names)
    assert {*dates} == {parse_date("2026-11-20")}
    (tmp_path / "d.so").unlink()
    assert main(words) == ExitCode.OK
    assert dates[-1] is None


def test_each_file_is_compared_with_the_input_of_its_name(
    key: Key, library: bytes, tmp_path: Path
) -> None:
    signed, inputs = tmp_path / "signed", tmp_path / "inputs"
    signed.mkdir()
    inputs.mkdir()
    (signed / "a.so").write_bytes(sign_elf(library, key))
    (inputs / "a.so").write_bytes(library)
    words = ["verify-signature", str(signed), "--accept-unrecognised", "--input"]
    assert main([*words, str(inputs)]) == ExitCode.OK
    assert main([*words, str(inputs / "a.so")]) == ExitCode.OK
    last = next(
        head
        for head in reversed(parse_headers(library).program_headers)
        if head.type == PT_LOAD and head.filesz
    )
    other = bytearray(library)
    other[last.offset + last.filesz - 1] ^= 1
    (inputs / "a.so").write_bytes(other)
    assert main([*words, str(inputs)]) == ExitCode.FAILED
    assert main([*words, str(inputs / "a.so")]) == ExitCode.FAILED
    (inputs / "a.so").rename(inputs / "b.so")
    assert main([*words, str(inputs)]) == ExitCode.USAGE
