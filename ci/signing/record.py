"""signing.json and the in-toto statement: what was signed, from what, by what.

``check_record`` is for everything that uses signed libraries later, such as a deployment or an
image: it refuses a library whose bytes are not the recorded ones.
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
    """A file's SHA-256 and size."""

    sha256: str
    size_bytes: int


class Program(msgspec.Struct, frozen=True):
    """A file that the signer's command consists of."""

    path: str
    sha256: str


class SignedLibrary(msgspec.Struct, frozen=True):
    """One library: ``source`` is its place without a machine's paths."""

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
    """The in-toto statement; its predicate is the record, so signing.json is a predicate file."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": one.name, "digest": {"sha256": one.output.sha256}} for one in record.libraries
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": msgspec.to_builtins(record),
    }


def read_record(directory: Path) -> SigningRecord:
    """Read signing.json. Raises ValueError when it is missing or not of this schema."""
    path = directory / RECORD_NAME
    try:
        record = msgspec.json.decode(path.read_bytes(), type=SigningRecord)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"{RECORD_NAME} cannot be read: {error}") from error
    if record.schema_version != SCHEMA_VERSION:
        raise ValueError(f"{RECORD_NAME} has schema {record.schema_version}, not {SCHEMA_VERSION}")
    return record


def check_record(directory: Path) -> tuple[str, ...]:
    """What in ``directory`` is not as its record says; empty when every byte is.

    Libraries without a record, libraries that are not in it, missing ones and changed ones are
    findings, and so is a statement that contradicts the record. Each begins with the name of the
    file that it is about.
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
            findings.append(f"{name} is recorded and missing")
        elif digest_of(path.read_bytes()) != one.output:
            findings.append(f"{name} has other bytes than recorded")
    try:
        statement = json.loads((directory / STATEMENT_NAME).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return (*findings, f"{STATEMENT_NAME} cannot be read: {error}")
    if statement != json.loads(json.dumps(make_statement(record))):
        findings.append(f"{STATEMENT_NAME} contradicts {RECORD_NAME}")
    return tuple(findings)
