"""Genuine skels are listed from wheels: a diff first, and nothing that is not genuine."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from provisioning.__main__ import main
from provisioning.elf.facts import Genuine
from provisioning.elf.qnn_build import find_qnn_build
from provisioning.errors import ExitCode
from provisioning.files import hash_file
from provisioning.manifest import catalogs
from provisioning.manifest.reader import MANIFESTS_VARIABLE, manifests_root
from provisioning.verbs import lock_skels
from provisioning.verbs.lock_skels import join
from tests.stand_ins import elf_edits as elf
from tests.stand_ins.catalogs import NOW, TRUST, make_catalog

PLACEHOLDER = Path(__file__).parents[3] / "artifacts" / "elf" / "libplaceholder_for_hexagon.so"
BUILD, OTHER = "v2.49.40.260810104044", "v2.11.40.230710101010"


def make_skel(version: int, build: str = OTHER) -> bytes:
    """A skel of a build that is not listed, with a checksum."""
    data = bytearray(elf.named(PLACEHOLDER, f"libQnnHtpV{version}Skel.so"))
    elf.set_build(BUILD, build)(data)
    elf.add_swiv(data)
    return bytes(data)


SKELS = {f"libQnnHtpV{version}Skel.so": make_skel(version) for version in (73, 75)}
V73, V75 = SKELS
CATALOG = {"libqnnhtpv73.cat": make_catalog({V73: SKELS[V73]}, stamped=NOW)}
Lock = Callable[..., int]


def make_wheel(path: Path, files: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as wheel:
        for name, data in files.items():
            wheel.writestr(f"qnn/{name}", data)
    return path


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lock:
    """The command, on a copy of the manifests; it returns the exit code."""
    copy = tmp_path / "checkout" / "manifests"
    shutil.copytree(manifests_root(), copy)
    monkeypatch.setenv(MANIFESTS_VARIABLE, str(copy))
    monkeypatch.setattr(catalogs, "read_trust", lambda: TRUST)

    def run(*words: str | Path) -> int:
        catalogs.read_known.cache_clear()
        try:
            return main(["lock-skels", *map(str, words)])
        finally:
            catalogs.read_known.cache_clear()

    return run


def test_skels_are_shown_then_written_then_known(
    lock: Lock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = manifests_root() / "policies" / "skels.toml"
    before = path.read_text()
    few = make_wheel(tmp_path / "few.whl", {V73: SKELS[V73], **CATALOG})
    all_of_them = make_wheel(tmp_path / "all.whl", {**SKELS, **CATALOG, "libQnnHtp.so": b""})
    assert lock(few, all_of_them) == ExitCode.OK
    assert OTHER in capsys.readouterr().out
    assert path.read_text() == before
    assert lock(few, all_of_them, "--write") == ExitCode.OK
    assert lock(few, all_of_them) == ExitCode.OK
    assert capsys.readouterr().out.endswith("nothing changed\n")
    build = catalogs.read_known()[OTHER]
    assert (build.wheel, build.sha256) == ("all.whl", hash_file(all_of_them))
    assert path.read_text().startswith(before.partition("[builds.")[0])
    skel = tmp_path / V75
    skel.write_bytes(SKELS[V75])
    proof = catalogs.prove_skel(skel, find_qnn_build(skel), hash_file(skel))
    assert proof
    assert proof.outcome is Genuine.GENUINE
    catalogs.read_known.cache_clear()


DAMAGED = SKELS[V75].replace(b"\0" * 8, b"\0" * 7 + b"!", 1)
OF_ANOTHER_BUILD = bytearray(elf.named(PLACEHOLDER, V75))
REFUSED: dict[str, dict[str, bytes]] = {
    "damaged": {V75: DAMAGED},
    "not what its catalog names": {V73: make_skel(73) + b"!", **CATALOG},
    "a forged catalog": {V73: SKELS[V73], "libqnnhtpv73.cat": CATALOG["libqnnhtpv73.cat"][:-1]},
    "a forged catalog in capitals": {
        V73: SKELS[V73],
        "LIBQNNHTPV73.CAT": CATALOG["libqnnhtpv73.cat"][:-1],
    },
    "of two builds": {V73: SKELS[V73], V75: make_skel(75, OTHER.replace("2307", "2308"))},
    "not what is listed": {V75: bytes(OF_ANOTHER_BUILD)},
    "of no build": {V75: make_skel(75, "v" + "x" * (len(OTHER) - 1))},
    "of a version without a date": {V75: make_skel(75, "AISW_VERSION: 2.11.40".ljust(len(OTHER)))},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_not_genuine_is_not_listed(lock: Lock, tmp_path: Path, kind: str) -> None:
    wheel = make_wheel(tmp_path / "some.whl", REFUSED[kind])
    assert lock(wheel, "--write") == ExitCode.DOWNLOAD


def test_another_wheel_under_a_listed_name_is_refused(lock: Lock, tmp_path: Path) -> None:
    assert lock(make_wheel(tmp_path / "some.whl", SKELS), "--write") == ExitCode.OK
    other_wheel = make_wheel(tmp_path / "some.whl", {**SKELS, "more": b""})
    assert lock(other_wheel, "--write") == ExitCode.DOWNLOAD


def test_a_wheel_replaces_another_only_if_it_has_all_its_skels_and_more() -> None:
    def build(*names: str) -> catalogs.KnownBuild:
        return catalogs.KnownBuild(f"{'-'.join(names)}.whl", "a" * 64, dict.fromkeys(names, "b"))

    listed = build("v73", "v75")
    assert join(listed, build("v68", "v69", "v73")) == listed  # more skels, but not v75
    assert join(listed, build("v75", "v73")) == listed
    larger = build("v73", "v75", "v79")
    assert join(listed, larger) == larger
    assert join(larger, listed) == larger


def test_files_without_skels_are_refused(lock: Lock, tmp_path: Path) -> None:
    text = tmp_path / "text.whl"
    text.write_text("no wheel")
    for wheel in (text, make_wheel(tmp_path / "none.whl", {}), tmp_path / "missing.whl"):
        assert lock(wheel) == ExitCode.USAGE


@pytest.mark.parametrize(("at", "value"), [(8, 1), (10, 93), (16, 7)])
def test_a_wheel_that_cannot_be_unpacked_is_refused(
    lock: Lock, tmp_path: Path, at: int, value: int
) -> None:
    """It is encrypted, of an unknown method, and has a wrong checksum."""
    wheel = make_wheel(tmp_path / "bad.whl", {V73: SKELS[V73]})
    data = bytearray(wheel.read_bytes())
    data[data.rfind(b"PK\1\2") + at] ^= value
    wheel.write_bytes(data)
    assert lock(wheel) == ExitCode.USAGE


def test_a_wheel_that_unpacks_to_too_much_is_refused(
    lock: Lock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_skels, "MOST_BYTES", len(SKELS[V73]) - 1)
    assert lock(make_wheel(tmp_path / "bad.whl", {V73: SKELS[V73]})) == ExitCode.USAGE
