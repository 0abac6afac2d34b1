"""First uses of a made SDK: proven by a catalog, taken on faith, refused."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from provisioning.artifacts import consent
from provisioning.artifacts.sources import ArtifactRequest
from provisioning.elf.facts import Genuine, Proof
from provisioning.elf.qnn_build import QnnBuild, find_qnn_build
from provisioning.errors import IntegrityError
from provisioning.files import hash_file
from provisioning.manifest import catalogs
from provisioning.manifest.catalogs import KnownBuild
from provisioning.manifest.reader import read_toolchain
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.catalogs import NOW, TRUST, make_catalog

LIBRARIES = Path(__file__).parents[3] / "artifacts" / "elf"
SKEL, CATALOG = "libQnnHtpV73Skel.so", "libqnnhtpv73.cat"
BUILD, OTHER = "v2.49.40.260810104044", "v2.49.40.260810104045"


def request() -> ArtifactRequest:
    toolchain = read_toolchain("qnn-sdk")
    return ArtifactRequest(toolchain, toolchain.release())


@pytest.fixture
def sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(catalogs, "read_trust", lambda: TRUST)
    monkeypatch.setattr(catalogs, "read_known", dict)
    for directory, kind, name in (
        ("hexagon-v73/unsigned", "hexagon", SKEL),
        ("hexagon-v75/unsigned", "hexagon", "libQnnHtpV75Skel.so"),
        ("aarch64-android", "android", "libQnnHtp.so"),
    ):
        path = tmp_path / "lib" / directory / name
        path.parent.mkdir(parents=True)
        path.write_bytes(elf.named(LIBRARIES / f"libplaceholder_for_{kind}.so", name))
    (tmp_path / "lib" / "aarch64-android" / "libc++_shared.so").write_bytes(b"no build")
    return tmp_path


def catalog_of(sdk: Path, **other: bytes) -> None:
    place = sdk / "lib/hexagon-v73/unsigned"
    data = {SKEL: (place / SKEL).read_bytes(), **other}
    (place / CATALOG).write_bytes(make_catalog(data, stamped=NOW))


def test_a_catalog_proves_the_skel_and_its_build(sdk: Path) -> None:
    catalog_of(sdk)
    other = sdk / "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"
    (other.parent / CATALOG).write_bytes(
        make_catalog({other.name: other.read_bytes()}, stamped=NOW)
    )
    *genuine, same, faith = consent.prove_skels(request(), sdk)
    assert genuine == [
        f"{name} is genuine according to {CATALOG}, signed on 2026-06-01"
        for name in (SKEL, other.name)
    ]
    assert same.startswith("3 libraries")
    assert BUILD in same
    assert "the build of 1 " in faith


def test_a_link_to_a_library_proves_and_counts_nothing(sdk: Path) -> None:
    catalog_of(sdk)
    lines = consent.prove_skels(request(), sdk)
    (sdk / "lib/linked").mkdir()
    for path in sorted(sdk.rglob("lib*.so")):
        (sdk / "lib/linked" / path.name).symlink_to(path)
    assert consent.prove_skels(request(), sdk) == lines


@pytest.mark.parametrize("left", [b"", b"\x00260810104044"])
def test_a_genuine_skel_without_a_version_proves_itself_alone(sdk: Path, left: bytes) -> None:
    path = sdk / "lib/hexagon-v73/unsigned" / SKEL
    path.write_bytes(path.read_bytes().replace(BUILD.encode(), left.ljust(len(BUILD), b"\x00")))
    build = find_qnn_build(path)
    assert (build and build.stamp) == (left[1:].decode() or None)
    catalog_of(sdk)
    genuine, rest = consent.prove_skels(request(), sdk)
    assert genuine.startswith(f"{SKEL} is genuine according to {CATALOG}")
    assert "no library is verified" in rest


def test_a_catalog_is_judged_at_the_given_time_or_now(
    sdk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[datetime] = []
    monkeypatch.setattr(
        "provisioning.elf.catalog.prove_file", lambda *words: asked.append(words[-1])
    )
    path = sdk / "lib/hexagon-v73/unsigned" / SKEL
    assert catalogs.prove_skel(path, None, hash_file(path), NOW) is None
    catalog_of(sdk)
    (path.parent / CATALOG).rename(path.parent / CATALOG.upper())
    before = datetime.now(timezone.utc)
    for at in (NOW, None):
        assert catalogs.prove_skel(path, None, hash_file(path), at) is None
    assert asked[0] == NOW
    assert before <= asked[1] <= datetime.now(timezone.utc)


def test_without_a_catalog_all_is_taken_on_faith(sdk: Path) -> None:
    (line,) = consent.prove_skels(request(), sdk)
    assert "no library is verified" in line
    assert consent.prove_skels(request(), sdk / "lib/aarch64-android") == []


def test_a_false_catalog_is_refused(sdk: Path) -> None:
    catalog_of(sdk)
    path = sdk / "lib/hexagon-v73/unsigned" / CATALOG
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(IntegrityError, match="contradicts its manifest") as caught:
        consent.prove_skels(request(), sdk)
    assert "forged" in caught.value.why


def test_a_skel_that_its_catalog_does_not_name_is_refused(sdk: Path) -> None:
    catalog_of(sdk)
    with (sdk / "lib/hexagon-v73/unsigned" / SKEL).open("ab") as file:
        file.write(b"!")
    with pytest.raises(IntegrityError) as caught:
        consent.prove_skels(request(), sdk)
    assert "not covered" in caught.value.why


@pytest.mark.parametrize(
    "name", ["lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so", "lib/aarch64-android/libQnnHtp.so"]
)
def test_a_library_of_another_build_than_the_proven_skel_is_refused(sdk: Path, name: str) -> None:
    catalog_of(sdk)
    data = bytearray((sdk / name).read_bytes())
    elf.set_build(BUILD, OTHER)(data)
    (sdk / name).write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        consent.prove_skels(request(), sdk)
    assert name in caught.value.why


def test_a_listed_skel_proves_its_build_and_a_changed_one_is_refused(
    sdk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "libQnnHtpV75Skel.so"
    path = sdk / "lib/hexagon-v75/unsigned" / name
    known = {BUILD: KnownBuild("some.whl", "0" * 64, {name: hash_file(path)})}
    monkeypatch.setattr(catalogs, "read_known", lambda: known)
    (sdk / "lib/linked").mkdir()
    (sdk / "lib/linked" / name).symlink_to(path)
    genuine, same, _ = consent.prove_skels(request(), sdk)
    assert name in genuine
    assert "some.whl" in genuine
    assert same.startswith("3 libraries")
    with path.open("ab") as file:
        file.write(b"!")
    with pytest.raises(IntegrityError) as caught:
        consent.prove_skels(request(), sdk)
    assert name in caught.value.why


@pytest.mark.parametrize("job", ["", "_124859"])
def test_the_number_of_the_vendors_job_is_no_part_of_a_listed_build(
    sdk: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    path = sdk / "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"
    digest = hash_file(path)
    known = {BUILD: KnownBuild("some.whl", "0" * 64, {path.name: digest})}
    monkeypatch.setattr(catalogs, "read_known", lambda: known)
    build, source = QnnBuild("2.49.40", "260810104044", BUILD + job), "skels.toml (some.whl)"
    assert catalogs.prove_skel(path, build, digest) == Proof(Genuine.GENUINE, source, listed=digest)
    changed = catalogs.prove_skel(path, build, "1" * 64)
    assert changed is not None
    assert (changed.outcome, changed.catalog, changed.listed) == (
        Genuine.NOT_COVERED, source, digest,
    )  # fmt: skip
    assert catalogs.prove_skel(path.with_name("libQnnHtpV79Skel.so"), build, digest) is None
    assert catalogs.prove_skel(path, None, digest) is None
    assert catalogs.prove_skel(path, build._replace(text=OTHER + job), digest) is None
