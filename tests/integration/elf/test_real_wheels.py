"""Wheels with QNN as an index serves them: the list of genuine skels is what they hold, their
catalogs are proven, and the doctor finds no fault.

QNN_CI_TEST_WHEELS names a directory for them (900 MB), into which pip downloads missing ones.
"""

from __future__ import annotations

import os
import zipfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
from cryptography.hazmat import asn1
from packaging.utils import parse_wheel_filename

from provisioning.artifacts.sources.wheel import download_with_pip
from provisioning.doctor.examine import examine_request, make_request
from provisioning.elf.catalog import SEQUENCE, CatalogError, Content, SignedData, parse_catalog
from provisioning.files import hash_file
from provisioning.manifest.catalogs import KnownBuild, read_known, read_trust
from provisioning.verbs.lock_skels import read_wheel

WHEELS = os.environ.get("QNN_CI_TEST_WHEELS", "")
pytestmark = pytest.mark.skipif(not WHEELS, reason="QNN_CI_TEST_WHEELS names no directory")
LISTED = list(read_known().items())


def wheel_of(build: KnownBuild) -> Path:
    path = Path(WHEELS) / build.wheel
    if not path.is_file():
        fetch_wheel(build, path.parent)
    assert hash_file(path) == build.sha256
    return path


def fetch_wheel(build: KnownBuild, directory: Path) -> None:
    name, version, _, (tag,) = parse_wheel_filename(build.wheel)
    directory.mkdir(parents=True, exist_ok=True)
    requirements = directory / f"{build.wheel}.txt"
    requirements.write_text(f"{name}=={version} --hash=sha256:{build.sha256}\n")
    words = ["--require-hashes", "--dest", str(directory), "--requirement", str(requirements)]
    python = f"{tag.interpreter[2]}.{tag.interpreter[3:]}"
    download_with_pip(build.wheel, [tag.platform], python, words)


@pytest.mark.parametrize(("build_id", "build"), LISTED, ids=[build for build, _ in LISTED])
def test_each_listed_build_is_that_of_its_wheel(build_id: str, build: KnownBuild) -> None:
    assert read_wheel(wheel_of(build)) == (build_id, build)


def find_unused(data: bytes) -> set[int]:
    """The positions of attribute certificates in the timestamp, which nothing relies on."""
    signed: SignedData = asn1.decode_der(Content, data).value.parse(SignedData)
    unsigned = signed.signers.as_list()[0].unsigned
    assert unsigned
    token: Content = unsigned.as_list()[0].values.as_list()[0].parse(Content)
    stamp: SignedData = token.value.parse(SignedData)
    positions: set[int] = set()
    for certificate in stamp.certificates.as_list():
        if certificate.tag_bytes != SEQUENCE:
            encoded = asn1.encode_der(certificate)
            start = data.index(encoded)
            positions.update(range(start, start + len(encoded)))
    return positions


@pytest.mark.parametrize(("build_id", "build"), LISTED, ids=[build for build, _ in LISTED])
def test_every_catalog_is_proven_and_none_with_a_flipped_bit(
    build_id: str, build: KnownBuild
) -> None:
    now, trust = datetime.now(timezone.utc), read_trust()
    with zipfile.ZipFile(wheel_of(build)) as wheel:
        for name in (name for name in wheel.namelist() if name.lower().endswith(".cat")):
            data = wheel.read(name)
            catalog = parse_catalog(data, trust, now)
            assert catalog.signed
            for position in set(range(0, len(data), 97)) - find_unused(data):
                flipped = bytearray(data)
                flipped[position] ^= 1 << position % 8
                with pytest.raises(CatalogError):
                    parse_catalog(bytes(flipped), trust, now)


@pytest.mark.parametrize(("build_id", "build"), LISTED, ids=[build for build, _ in LISTED])
def test_the_doctor_finds_no_fault_in_a_set(
    build_id: str, build: KnownBuild, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel_of(build)) as wheel:
        names = [name for name in wheel.namelist() if name.endswith((".so", ".cat"))]
        if not any(name.endswith("libQnnHtp.so") for name in names):
            pytest.skip("a wheel for Windows: of ELF files it has skels alone")
        wheel.extractall(tmp_path, names)
    verdict = examine_request(make_request("linux", {"staging": tmp_path}, {}))
    errors = [str(error) for error in verdict.errors if error.where.startswith(str(tmp_path))]
    assert not errors
    genuine = {Path(name).name for name in verdict.facts["trees"]["staging"]["genuine"]}
    assert genuine >= build.skels.keys()
