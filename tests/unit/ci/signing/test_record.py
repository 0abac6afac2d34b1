"""The record refuses whatever is not as it was signed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ci.signing.record import (
    PREDICATE_TYPE,
    RECORD_NAME,
    SCHEMA_VERSION,
    STATEMENT_NAME,
    Digest,
    Program,
    SignedLibrary,
    SigningRecord,
    check_record,
    digest_of,
    make_statement,
    read_record,
    write_record,
)

FILES = {"libone.so": b"one", "libc++.so.1": b"two", "testsig-0xdeadbeef.so": b"three"}


def make_library(name: str, data: bytes) -> SignedLibrary:
    return SignedLibrary(
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


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    names = [*list(FILES)[:2], "testsig-***.so"]
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
            make_library(name, data) for name, data in zip(names, FILES.values(), strict=True)
        ),
    )
    write_record(tmp_path, record)
    return tmp_path


def test_an_untouched_directory_has_no_findings(signed: Path) -> None:
    assert check_record(signed) == ()


def edit_json(path: Path, change: Callable[[dict], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def change_byte(path: Path) -> None:
    path.write_bytes(b"0" + path.read_bytes()[1:])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: change_byte(d / "libone.so"), "libone.so differs from the recorded bytes"),
        (
            lambda d: change_byte(d / "testsig-0xdeadbeef.so"),
            "testsig-***.so differs from the recorded bytes",
        ),
        (
            lambda d: (d / "libone.so").unlink(),
            "libone.so is in signing.json, but not in the directory",
        ),
        (lambda d: (d / "libnew.so").touch(), "libnew.so is not in signing.json"),
        (lambda d: (d / RECORD_NAME).unlink(), "signing.json cannot be read"),
        (lambda d: (d / RECORD_NAME).write_text("{"), "signing.json cannot be read"),
        (
            lambda d: (d / RECORD_NAME).write_text('{"x":' + "[" * 100_000),
            "signing.json cannot be read",
        ),
        (lambda d: (d / STATEMENT_NAME).unlink(), "statement.intoto.json cannot be read"),
        (
            lambda d: edit_json(d / STATEMENT_NAME, lambda s: s["subject"].pop()),
            "statement.intoto.json contradicts signing.json",
        ),
        *(
            (
                lambda d, other=other: edit_json(
                    d / RECORD_NAME, lambda r: r.update(schema_version=other)
                ),
                f"signing.json has schema version {other}, not {SCHEMA_VERSION}",
            )
            for other in (SCHEMA_VERSION - 1, SCHEMA_VERSION + 1)
        ),
    ],
)
def test_each_change_is_a_finding(signed: Path, change, message: str) -> None:
    change(signed)
    (found,) = check_record(signed)
    assert found.startswith(message)


def test_all_findings_are_listed(signed: Path) -> None:
    (signed / "libone.so").unlink()
    (signed / "libone.so").mkdir()  # a directory of its name is no library
    for name in ("z.so", "new.so", "b.so", "y.so", "a.so"):
        (signed / name).touch()
    (signed / "libc++.so.1").write_bytes(b"")
    (signed / STATEMENT_NAME).write_text("{}")

    assert check_record(signed) == (
        *(f"{name}.so is not in signing.json" for name in ("a", "b", "new", "y", "z")),
        "libone.so is in signing.json, but not in the directory",
        "libc++.so.1 differs from the recorded bytes",
        "statement.intoto.json contradicts signing.json",
    )
    (signed / STATEMENT_NAME).unlink()
    assert check_record(signed)[-1].startswith(f"{STATEMENT_NAME} cannot be read")


def test_a_rewritten_record_still_contradicts_the_statement(signed: Path) -> None:
    change_byte(signed / "libone.so")
    digest = digest_of((signed / "libone.so").read_bytes())
    edit_json(
        signed / RECORD_NAME, lambda r: r["libraries"][0].update(output=msgspec.to_builtins(digest))
    )
    assert check_record(signed) == ("statement.intoto.json contradicts signing.json",)


def test_the_statement_is_an_in_toto_statement_with_the_record_as_predicate(signed: Path) -> None:
    statement = json.loads((signed / STATEMENT_NAME).read_text())
    assert statement == json.loads(json.dumps(make_statement(read_record(signed))))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == PREDICATE_TYPE
    assert statement["predicate"] == json.loads((signed / RECORD_NAME).read_text())
    names = [*list(FILES)[:2], "testsig-***.so"]
    assert statement["subject"] == [
        {"name": name, "digest": {"sha256": digest_of(data).sha256}}
        for name, data in zip(names, FILES.values(), strict=True)
    ]
