"""Write and check signing.json and the in-toto statement, which record the signed libraries, their
inputs and the tools.

Code that uses signed libraries later, such as a deployment or an image build, calls
``check_record``, which finds libraries that differ from the recorded bytes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from ci.signing.masking import Masker
from provisioning.files import write_json

RECORD_NAME, STATEMENT_NAME, LOG_NAME = "signing.json", "statement.intoto.json", "signer.log"
SCHEMA_VERSION = 2
# https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:executorch-qnn-ci:skel-signing:v1"


class Digest(msgspec.Struct, frozen=True):
    """The SHA-256 and size of a file."""

    sha256: str
    size_bytes: int


class Program(msgspec.Struct, frozen=True):
    """A file that is part of the signer's command."""

    path: str
    sha256: str


class SignedLibrary(msgspec.Struct, frozen=True):
    """A signed library. ``source`` is the input's path with a placeholder for its root."""

    name: str
    source: str
    input: Digest
    output: Digest
    arguments: tuple[str, ...]
    verdict: str
    mbn_header_version: int
    hash_algorithm: str
    certificates: tuple[str, ...]


class SigningRecord(msgspec.Struct, frozen=True):
    """The content of signing.json. ``certificates`` are SHA-256 fingerprints, leaf first."""

    schema_version: int
    created: str
    created_from: str
    tool: str
    signer: tuple[Program, ...]
    python: str
    qnn_sdk: str
    hexagon_sdk: str
    libraries: tuple[SignedLibrary, ...]


def digest_of(data: bytes | memoryview) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest(), len(data))


def write_record(directory: Path, record: SigningRecord) -> None:
    write_json(directory / RECORD_NAME, msgspec.to_builtins(record))
    write_json(directory / STATEMENT_NAME, make_statement(record))


def make_statement(record: SigningRecord) -> dict[str, Any]:
    """Return the in-toto statement, with the content of signing.json as predicate."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": one.name, "digest": {"sha256": one.output.sha256}} for one in record.libraries
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": msgspec.to_builtins(record),
    }


def read_record(directory: Path) -> SigningRecord:
    """Read signing.json. Raises ValueError if it is missing or has another schema version."""
    path = directory / RECORD_NAME
    try:
        record = msgspec.json.decode(path.read_bytes(), type=SigningRecord)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{RECORD_NAME} cannot be read: {error}") from error
    if record.schema_version != SCHEMA_VERSION:
        raise ValueError(f"{RECORD_NAME} has schema {record.schema_version}, not {SCHEMA_VERSION}")
    return record


def check_record(directory: Path) -> tuple[str, ...]:
    """Return the differences between ``directory`` and its record; empty if every byte agrees.

    These are an unreadable record, libraries that are not in the record, missing or changed, and a
    statement that contradicts the record. Each difference starts with the name of its file.
    """
    try:
        record = read_record(directory)
    except ValueError as error:
        return (str(error),)
    ours = {RECORD_NAME, STATEMENT_NAME, LOG_NAME}
    present = {Masker()(path.name): path for path in directory.iterdir() if path.name not in ours}
    recorded = {one.name: one for one in record.libraries}
    findings = [
        f"{name} is not in {RECORD_NAME}" for name in sorted(present.keys() - recorded.keys())
    ]
    for name, one in recorded.items():
        path = present.get(name)
        if path is None or not path.is_file():
            findings.append(f"{name} is in the record but missing")
        elif digest_of(path.read_bytes()) != one.output:
            findings.append(f"{name} differs from the recorded bytes")
    try:
        statement = json.loads((directory / STATEMENT_NAME).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return (*findings, f"{STATEMENT_NAME} cannot be read: {error}")
    if statement != json.loads(json.dumps(make_statement(record))):
        findings.append(f"{STATEMENT_NAME} contradicts {RECORD_NAME}")
    return tuple(findings)
