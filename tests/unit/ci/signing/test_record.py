"""The record refuses everything that is not as it was signed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec

from ci.signing.record import (
    RECORD_NAME,
    SCHEMA_VERSION,
    STATEMENT_NAME,
    Digest,
    Program,
    SignedLibrary,
    SigningRecord,
    check_record,
    digest_of,
    write_record,
)
from tests.build.signing import show
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOT = Path(__file__).with_name("snapshots") / "records.txt"
FILES = {"libone.so": b"one", "libc++.so.1": b"two", "testsig-0xdeadbeef.so": b"three"}
NAMES = [*list(FILES)[:2], "testsig-***.so"]
Change = Callable[[Path], object]


def make_signed(folder: Path) -> Path:
    folder.mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    record = SigningRecord(
        schema_version=SCHEMA_VERSION,
        created="2026-11-20T00:00:00+00:00",
        created_from="clock",
        tool="executorch-qnn-ci, Python 3.11.7",
        signer=(Program("/sdk/elfsigner.py", "cd" * 32),),
        python="3.11.7",
        qnn_sdk="2.49.40",
        hexagon_sdk="6.4.0",
        libraries=tuple(
            SignedLibrary(
                name=name,
                source=f"{{qnn_sdk}}/{name}",
                input=Digest("0" * 64, 3),
                output=digest_of(data),
                arguments=("-i", name),
                verdict="proven",
                mbn_header_version=6,
                hash_algorithm="sha384",
                certificates=("ab" * 32,),
            )
            for name, data in zip(NAMES, FILES.values(), strict=True)
        ),
    )
    write_record(folder, record)
    return folder


def edit_json(path: Path, change: Callable[[dict], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def change_byte(path: Path) -> None:
    path.write_bytes(b"0" + path.read_bytes()[1:])


def change_library_and_record(folder: Path) -> None:
    change_byte(folder / "libone.so")
    digest = digest_of((folder / "libone.so").read_bytes())
    edit_json(
        folder / RECORD_NAME,
        lambda record: record["libraries"][0].update(output=msgspec.to_builtins(digest)),
    )


def change_everything(folder: Path) -> None:
    (folder / "libone.so").unlink()
    (folder / "libone.so").mkdir()  # a directory with the name of a library is not one
    for name in ("z.so", "new.so", "b.so", "y.so", "a.so"):
        (folder / name).touch()
    (folder / "libc++.so.1").write_bytes(b"")
    (folder / STATEMENT_NAME).write_text("{}")


def set_version(version: int) -> Change:
    return lambda folder: edit_json(
        folder / RECORD_NAME, lambda record: record.update(schema_version=version)
    )


CHANGES: dict[str, Change] = {
    "a byte of a library": lambda folder: change_byte(folder / "libone.so"),
    "a byte of a test signature": lambda folder: change_byte(folder / "testsig-0xdeadbeef.so"),
    "a byte more": lambda folder: (folder / "libone.so").write_bytes(b"one\0"),
    "no library": lambda folder: (folder / "libone.so").unlink(),
    "a new library": lambda folder: (folder / "libnew.so").touch(),
    "no record": lambda folder: (folder / RECORD_NAME).unlink(),
    "half a record": lambda folder: (folder / RECORD_NAME).write_text("{"),
    "a deep record": lambda folder: (folder / RECORD_NAME).write_text('{"x":' + "[" * 100_000),
    "an older schema": set_version(SCHEMA_VERSION - 1),
    "a newer schema": set_version(SCHEMA_VERSION + 1),
    "no statement": lambda folder: (folder / STATEMENT_NAME).unlink(),
    "a subject less": lambda folder: edit_json(
        folder / STATEMENT_NAME, lambda statement: statement["subject"].pop()
    ),
    "a library and the record": change_library_and_record,
    "everything": change_everything,
}


def test_each_change_of_a_signed_directory_is_a_finding(tmp_path: Path) -> None:
    assert check_record(make_signed(tmp_path / "untouched")) == ()
    findings = {}
    for name, change in CHANGES.items():
        folder = make_signed(tmp_path / name)
        change(folder)
        # What a parser or the system says after the colon is not ours.
        findings[name] = [finding.partition(" read: ")[0] for finding in check_record(folder)]
    assert all(findings.values())
    check_snapshot(SNAPSHOT, show(findings))


def test_the_statement_is_an_in_toto_statement_with_the_record_as_predicate(tmp_path: Path) -> None:
    signed = make_signed(tmp_path / "signed")
    assert json.loads((signed / STATEMENT_NAME).read_text()) == {
        "_type": "https://in-toto.io/Statement/v1",
        "predicateType": "urn:executorch-qnn-ci:skel-signing:v1",
        "predicate": json.loads((signed / RECORD_NAME).read_text()),
        "subject": [
            {"name": name, "digest": {"sha256": digest_of(data).sha256}}
            for name, data in zip(NAMES, FILES.values(), strict=True)
        ],
    }
