"""Write and check signing.json and the in-toto statement. They record the signed libraries, the
unsigned originals, and the tools.

Code that uses signed libraries later, such as a deployment, calls ``check_record`` to find
libraries that differ from the record.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec

from ci.signing.masking import Masker
from provisioning.console import user_folder
from provisioning.documents import CONTENT_BYTES, DocumentError, read_bytes, read_json
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
    """A file in the signer's command, such as a script."""

    path: str
    sha256: str


class SignedLibrary(msgspec.Struct, frozen=True):
    """A signed library. ``source`` is the path of the unsigned library, with a placeholder for its
    root. ``certificates`` are SHA-256 fingerprints, leaf first.
    """

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
    """The content of signing.json. ``created`` is a time in ISO 8601. ``python`` is the version of
    the Python that ran the SDK's signer, or "" if a different signer was used.
    """

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
    """Return the SHA-256 and the size of ``data``."""
    return Digest(hashlib.sha256(data).hexdigest(), len(data))


def write_record(directory: Path, record: SigningRecord) -> None:
    """Write the record, and the statement that states the same in the format of in-toto. Raises
    StoreError."""
    write_json(directory / RECORD_NAME, msgspec.to_builtins(record))
    write_json(directory / STATEMENT_NAME, make_statement(record))


def make_statement(record: SigningRecord) -> dict[str, Any]:
    """Return the in-toto statement. Its predicate is the content of signing.json."""
    return {
        "_type": STATEMENT_TYPE,
        "subject": [
            {"name": library.name, "digest": {"sha256": library.output.sha256}}
            for library in record.libraries
        ],
        "predicateType": PREDICATE_TYPE,
        "predicate": msgspec.to_builtins(record),
    }


def check_record(directory: Path) -> tuple[str, ...]:
    """Return the differences between ``directory`` and its record. Each text starts with the name
    of the file.

    These are differences:

    - a record or a statement that cannot be read, or a record with another schema version
    - a library that is missing, changed or not in the record
    - a statement that contradicts the record
    """
    try:
        record = read_json(directory / RECORD_NAME, SigningRecord)
    except DocumentError as error:
        return (f"{RECORD_NAME} cannot be read: {error}",)
    if (version := record.schema_version) != SCHEMA_VERSION:
        return (f"{RECORD_NAME} has schema version {version}, not {SCHEMA_VERSION}",)
    ours = {RECORD_NAME, STATEMENT_NAME, LOG_NAME, user_folder.RECORD}
    # The record contains the masked name of a test signature: the serial number is a secret.
    present = {Masker()(path.name): path for path in directory.iterdir() if path.name not in ours}
    recorded = {library.name: library for library in record.libraries}
    findings = [
        f"{name} is not in {RECORD_NAME}" for name in sorted(present.keys() - recorded.keys())
    ]
    for name, entry in recorded.items():
        path = present.get(name)
        if path is None or not path.is_file():
            findings.append(f"{name} is in {RECORD_NAME}, but not in the directory")
        elif digest_of(read_bytes(path, CONTENT_BYTES)) != entry.output:
            findings.append(f"{name} differs from the recorded bytes")
    try:
        statement = read_json(directory / STATEMENT_NAME, dict[str, Any])
    except DocumentError as error:
        return (*findings, f"{STATEMENT_NAME} cannot be read: {error}")
    # Through JSON, in which tuples are lists.
    if statement != json.loads(json.dumps(make_statement(record))):
        findings.append(f"{STATEMENT_NAME} contradicts {RECORD_NAME}")
    return tuple(findings)
