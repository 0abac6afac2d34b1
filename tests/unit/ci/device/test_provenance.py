from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ci.device.provenance import BundleFile, find_evidence, list_signed, write_sbom
from ci.report.schema import Status
from ci.signing.record import (
    LOG_NAME,
    SCHEMA_VERSION,
    Digest,
    Program,
    SignedLibrary,
    SigningRecord,
    digest_of,
    write_record,
)
from provisioning.errors import UnfitError, UsageError
from tests.stand_ins import statements


def test_an_sbom_names_every_file_and_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("cyclonedx", reason="another session installs it")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in "abcd"]
    parts = {
        BundleFile("runner", digests[0], 1): ("libc.so", "libQnnHtp.so", "runner", "liba.so"),
        BundleFile("libQnnHtp.so", digests[1], 1, "v2.49.40.260810104044"): (),
        BundleFile("model.pte", digests[2], 1): (),
        BundleFile("liba.so", digests[3], 1): ("libQnnHtp.so",),
    }
    for path in (tmp_path / "one.json", tmp_path / "two.json"):
        write_sbom(path, "bundle", "d" * 64, parts)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    bom = json.loads((tmp_path / "one.json").read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    components = {component["name"]: component for component in bom["components"]}
    assert {name: component["type"] for name, component in components.items()} == {
        "runner": "application",
        "libQnnHtp.so": "library",
        "liba.so": "library",
        "model.pte": "machine-learning-model",
    }
    assert {
        name: component["version"]
        for name, component in components.items()
        if "version" in component
    } == {"libQnnHtp.so": "v2.49.40.260810104044"}
    assert components["model.pte"]["hashes"] == [{"alg": "SHA-256", "content": digests[2]}]
    root = bom["metadata"]["component"]
    assert (root["name"], root["version"], root["type"]) == ("bundle", 64 * "d", "application")
    assert bom["metadata"]["timestamp"].startswith("2023-11-14T22:13:20")
    needs = {
        dependency["ref"]: dependency.get("dependsOn", []) for dependency in bom["dependencies"]
    }
    assert {name: sorted(needed) for name, needed in needs.items()} == {
        "bundle": sorted(components),
        "runner": ["libQnnHtp.so", "liba.so"],
        "liba.so": ["libQnnHtp.so"],
        "libQnnHtp.so": [],
        "model.pte": [],
    }
    write_sbom(tmp_path / "other.json", "bundle", "e" * 64, parts)
    assert json.loads((tmp_path / "other.json").read_text())["serialNumber"] != bom["serialNumber"]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "model.pte"
    path.write_bytes(statements.PROGRAM)
    return path


def state(folder: Path, **changes: object) -> None:
    statement = statements.state(statements.make(**changes))
    (folder / f"{statements.SHA256}.intoto.json").write_text(json.dumps(statement))


def test_only_evidence_of_a_pass_of_the_program_is_staged(program: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no statement"):
        find_evidence([program], tmp_path)
    without_statement = tmp_path / "other.pte"
    without_statement.write_bytes(b"of which there is no statement")
    state(tmp_path)
    assert list(find_evidence([without_statement, program], tmp_path)) == [program]
    copy = tmp_path / "same.pte"
    copy.write_bytes(program.read_bytes())
    assert list(find_evidence([program, without_statement, copy], tmp_path)) == [program, copy]
    (path,) = find_evidence([program], tmp_path).values()
    assert path.name == f"{statements.SHA256}.intoto.json"
    path.write_text("{}")
    with pytest.raises(UnfitError, match=r"does not prove that model\.pte passed") as caught:
        find_evidence([program], tmp_path)
    assert path.name in caught.value.what
    assert caught.value.why
    assert f"verify-evidence {program} --evidence {path}" in caught.value.fix
    state(tmp_path, status=Status.FAILED)
    with pytest.raises(UnfitError, match="does not prove"):
        find_evidence([program], tmp_path)


def test_signed_libraries_must_match_their_signing_record(tmp_path: Path) -> None:
    library = tmp_path / "libQnnLpaiSkel.so"
    library.write_bytes(b"signed")
    with pytest.raises(UnfitError, match="is not the output"):
        list_signed(tmp_path)
    row = SignedLibrary(
        *(library.name, "{qnn_sdk}/libQnnLpaiSkel.so", Digest("0" * 64, 3), digest_of(b"signed")),
        *((), "proven", 6, "sha384", ("ab" * 32,)),
    )
    signer = (Program("/sdk/elfsigner.py", "cd" * 32),)
    record = SigningRecord(
        *(SCHEMA_VERSION, "2026-11-20T00:00:00+00:00", "clock", "a test", signer),
        *("3.11.7", "2.49.40", "6.4.0", (row,)),
    )
    write_record(tmp_path, record)
    (tmp_path / LOG_NAME).write_text("what the signer printed")
    assert list_signed(tmp_path) == {library.name: library}
    library.write_bytes(b"Signed")
    with pytest.raises(UnfitError, match="differs from the recorded bytes"):
        list_signed(tmp_path)
