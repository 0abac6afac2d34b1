"""What a user agrees to before a fetch, and the evidence for content that no hash speaks for."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import msgspec
import pytest

from provisioning.artifacts.lockfile import Lock, machine_lock_path, read_lock
from provisioning.artifacts.pins import plan_lock, plan_update
from provisioning.artifacts.provision import provision_artifacts
from provisioning.artifacts.trust import check_machines, check_version, prove_skels
from provisioning.elf.facts import Genuine, Proof
from provisioning.elf.qnn_build import QnnBuild
from provisioning.errors import IntegrityError, UnfitError
from provisioning.files import hash_file
from provisioning.manifest import catalogs
from provisioning.manifest.catalogs import KnownBuild
from provisioning.store.store import TREE_FILE
from provisioning.store.tree import parse_tree
from provisioning.verbs.fetch import fill_mirror
from tests.build.artifacts import FILES, Workspace, ask, of, pack_zip, write
from tests.stand_ins import elf_edits as elf
from tests.stand_ins import toolchains as made
from tests.stand_ins.catalogs import NOW, TRUST, make_catalog
from tests.stand_ins.provisioned import provision_one

# -- licences -------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def licensed(sdk: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """An SDK whose licence has to be accepted, away from a terminal."""
    sdk.edit("[licence]", "[licence]\naccept = true")
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    return sdk


def read_licences(sdk: Workspace) -> object:
    return msgspec.json.decode((sdk.store.home / "licences.json").read_bytes())


def test_licence_is_accepted_before_anything_is_fetched_or_planned(licensed: Workspace) -> None:
    request, store, progress = licensed.ask(accept=False), licensed.store, licensed.progress
    for call in (
        lambda: provision_artifacts([request], store, progress),
        lambda: plan_lock(request, store, progress),
        lambda: plan_update(request, "1.3", store, progress),
        lambda: fill_mirror([request], licensed.root / "mirror", store, progress),
    ):
        with pytest.raises(UnfitError, match="licence that you have not accepted"):
            call()
    assert "artifacts to fetch: 1; " in licensed.printed()
    assert not list(store.downloads.iterdir())
    assert licensed.provision().fetched
    assert read_licences(licensed) == {
        "sdk 1.2.3: free": {
            "licence": "free",
            "text": "none",
            "how": "--accept-licence",
            "accepted": "1970-01-02",
        }
    }
    part = licensed.ask("libraries", accept=False)
    assert provision_one(part, store, progress).fetched  # it is asked for once
    with pytest.raises(UnfitError, match="licence that you have not accepted"):
        provision_one(of(request, version="1.2.4"), store, progress)


@pytest.mark.parametrize(
    ("named", "how"),
    [
        ("a,sdk", "a sdk"),
        ("all", "all"),
        *((word, "") for word in ("other", "sdk-other", "sd", "SDK", "none", "1", "other,more")),
    ],
)
def test_variable_accepts_the_licences_of_the_named_artifacts(
    licensed: Workspace, monkeypatch: pytest.MonkeyPatch, named: str, how: str
) -> None:
    monkeypatch.setenv("QNN_CI_ACCEPT_LICENCE", named)
    request = licensed.ask(accept=False)
    if not how:
        with pytest.raises(UnfitError, match="not accepted"):
            provision_one(request, licensed.store, licensed.progress)
        return
    provision_one(request, licensed.store, licensed.progress)
    (record,) = read_licences(licensed).values()  # type: ignore[attr-defined]
    assert record["how"] == f"QNN_CI_ACCEPT_LICENCE={how}"


@pytest.mark.parametrize(
    ("answer", "ci", "accepts"),
    [
        ("y", "", True),
        ("n", "", False),
        ("", "", False),
        ("y", "true", False),
    ],
)
def test_consent_is_asked_for_on_a_terminal_except_in_ci(
    licensed: Workspace, monkeypatch: pytest.MonkeyPatch, answer: str, ci: str, accepts: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(f"{answer}\n"))
    monkeypatch.setenv("CI", ci)
    request = licensed.ask(accept=False)
    if accepts:
        provision_one(request, licensed.store, licensed.progress)
        assert "answered yes" in (licensed.store.home / "licences.json").read_text()
    else:
        with pytest.raises(UnfitError):
            provision_one(request, licensed.store, licensed.progress)
    question = "sdk 1.2.3 is licensed under: free\n  text: none\nDo you accept it? [y/N]\n"
    assert (question in licensed.printed()) is not bool(ci)


@pytest.mark.parametrize("text", ["", "{", "[]", '["sdk 1.2.3: free"]', '{"sdk 1.2.3: free": 5}'])
def test_damaged_record_of_licences_accepts_nothing(licensed: Workspace, text: str) -> None:
    write(licensed.store.home / "licences.json", text)
    request = licensed.ask(accept=False)
    with pytest.raises(UnfitError, match="not accepted"):
        provision_one(request, licensed.store, licensed.progress)
    assert licensed.provision().fetched
    assert provision_one(request, licensed.store, licensed.progress)


# -- first uses -----------------------------------------------------------------------------------


def test_first_use_is_recorded_without_credentials_and_pins_later_downloads(
    sdk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk.describe("https://me:secret@vendor.invalid/sdk.zip?key=secret", pinned=False)
    write(sdk.store.downloads / "sdk.zip", sdk.archive.read_bytes())
    for trust, ci in ((False, ""), (True, "true")):
        monkeypatch.setenv("CI", ci)
        with pytest.raises(IntegrityError, match="no known SHA-256"):
            sdk.provision(trust=trust)
    monkeypatch.setenv("CI", "")
    headers = sdk.provision("headers", trust=True)
    complete = sdk.provision()
    assert (headers.fetched, complete.fetched) == (True, True)
    path = machine_lock_path(sdk.store, "sdk", "1.2.3")
    lock = read_lock(path)
    assert lock == Lock(
        "sdk",
        "1.2.3",
        "https://vendor.invalid/sdk.zip",
        sdk.archive.stat().st_size,
        hash_file(sdk.archive),
        "1970-01-02",
        ("5 files unpacked, each matches its checksum in the archive", "sdk.yaml says 1.2.3"),
        parse_tree((complete.root.parent / TREE_FILE).read_bytes()).files,
    )
    for directory in (sdk.store.trees, sdk.store.downloads):
        for entry in directory.iterdir():
            entry.rename(sdk.root / entry.name)
    sdk.archive.write_bytes(pack_zip(FILES | {"lib/two.so": b"TWO" * 100}))
    sdk.describe(pinned=False)
    with pytest.raises(IntegrityError, match="does not match its pin"):
        sdk.provision(trust=True)


def test_archive_that_contradicts_its_manifest_is_forgotten_unless_it_is_pinned(
    sdk: Workspace,
) -> None:
    sdk.archive.write_bytes(pack_zip(FILES | {"sdk.yaml": b"version: 1.2.2\n"}))
    sdk.describe(pinned=False)
    with pytest.raises(IntegrityError, match="contradicts its manifest"):
        sdk.provision(trust=True)
    assert not (sdk.store.downloads / "sdk.zip").exists()
    assert not machine_lock_path(sdk.store, "sdk", "1.2.3").exists()
    sdk.describe()
    with pytest.raises(IntegrityError, match="contradicts its manifest"):
        sdk.lock()
    assert (sdk.store.downloads / "sdk.zip").exists()  # its hash is pinned: it is the vendor's


@pytest.mark.parametrize("ci", ["", "true"])
@pytest.mark.parametrize(
    ("licences", "unpinned", "words"),
    [
        (True, False, "sdk:headers other --accept-licence`"),
        (False, True, "sdk:headers other --trust-first-use`"),
        (True, True, "sdk:headers other --accept-licence --trust-first-use`"),
    ],
)
def test_one_suggested_command_gives_every_missing_consent(
    licensed: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    ci: str,
    licences: bool,
    unpinned: bool,
    words: str,
) -> None:
    """In CI, a first download without a known hash is never trusted."""
    if unpinned:
        licensed.describe(pinned=False)
        if licences:
            licensed.edit("[licence]", "[licence]\naccept = true")
    licensed.add_artifact("other")
    monkeypatch.setenv("CI", ci)
    requests = [licensed.ask("headers", accept=False), ask("other")]
    count = 2 * (licences + unpinned)
    with pytest.raises(UnfitError if licences else IntegrityError) as caught:
        provision_artifacts(requests, licensed.store, licensed.progress)
    assert caught.value.what == f"this fetch needs your consent to {count} items"
    assert caught.value.why.count("has a licence") == 2 * licences
    assert caught.value.why.count("has no known SHA-256") == 2 * unpinned
    if ci:
        words = words.replace(" --trust-first-use", "")
    assert f"`qnn-ci fetch {words}" in caught.value.fix
    assert ("on a machine that you trust" in caught.value.fix) == bool(ci and unpinned)
    assert not licensed.store.home.exists()


# -- evidence in libraries ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "machine"),
    [
        ("lib/x86_64-linux-clang", 62),
        ("lib/aarch64-android", 183),
        ("lib/hexagon-v75/unsigned", 164),
        ("qnn/lib/lpai-v6/unsigned", 164),
    ],
)
def test_machines_of_libraries_are_compared_with_their_directories(
    tmp_path: Path, folder: str, machine: int
) -> None:
    library = write(tmp_path / folder / "libA.so", made.make_library(machine, 9000))
    write(library.with_name("libB.so"), library.read_bytes())
    library.with_name("libLink.so").symlink_to("gone.so")
    write(tmp_path / "lib/other/libC.so", b"no ELF")
    names = {62: "x86-64", 183: "aarch64", 164: "hexagon"}
    (line,) = check_machines(tmp_path)
    assert line == f"2 libraries are {names[machine]}"
    for data, message in (
        (made.make_library(243, 9000), f"{folder}/libA.so is for the wrong machine"),
        (b"no ELF", f"{folder}/libA.so is not a library"),
    ):
        write(library, data)
        with pytest.raises(IntegrityError) as caught:
            check_machines(tmp_path)
        assert caught.value.what == message


def test_versions_in_libraries_are_compared_with_archives(sdk: Workspace, tmp_path: Path) -> None:
    request, root = of(sdk.ask(), version=made.VERSION), tmp_path / "root"
    library = made.make_library(62, 9000)
    write(root / "sdk.yaml", f"version: {made.VERSION}175447\n")
    for name in "AB":
        write(root / f"lib{name}.so", library)
    (root / "libLink.so").symlink_to("libA.so")
    write(root / "libGenie.so", b"AISW_VERSION: 2.49.40\0")  # only a part of a build
    write(root / "libQnnSystem.so", b"\x00260810104044\0")
    assert check_version(request, root) == [
        f"sdk.yaml says {made.VERSION}175447",
        f"2 libraries say {made.VERSION}175447",
    ]
    library_of_another_version = made.make_library(62, 9000, "2.36.0.250724")
    for names, why in (("B", "1 library is from"), ("BC", "2 libraries are from")):
        for name in names:
            write(root / f"lib{name}.so", library_of_another_version)
        with pytest.raises(IntegrityError, match="contradicts its manifest") as caught:
            check_version(request, root)
        assert caught.value.why == f"{why} 2.36.0.250724175447, not {made.VERSION}"
    for name in ("libB.so", "libC.so", "sdk.yaml"):
        (root / name).unlink()
    assert check_version(request, root) == [f"1 libraries say {made.VERSION}175447"]


# -- skels ----------------------------------------------------------------------------------------

LIBRARIES = Path(__file__).parents[3] / "artifacts" / "elf"
SKEL, CATALOG = "libQnnHtpV73Skel.so", "libqnnhtpv73.cat"
SKEL_PATH = f"lib/hexagon-v73/unsigned/{SKEL}"
OTHER_SKEL = "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"
BUILD, OTHER = "v2.49.40.260810104044", "v2.49.40.260810104045"
PROVEN = f"{SKEL} is genuine according to {CATALOG}, signed on 2026-06-01"
UNPROVEN = "nothing proves the QNN build: no library is verified"


@pytest.fixture
def qnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A QNN SDK with two skels, a library for Android and one without a build ID."""
    monkeypatch.delenv("QNN_CI_MANIFESTS", raising=False)
    monkeypatch.setattr(catalogs, "read_trust", lambda: TRUST)
    monkeypatch.setattr(catalogs, "read_known", dict)
    root = tmp_path / "qnn"
    for path, kind in (
        (SKEL_PATH, "hexagon"),
        (OTHER_SKEL, "hexagon"),
        ("lib/aarch64-android/libQnnHtp.so", "android"),
    ):
        named = elf.named(LIBRARIES / f"libplaceholder_for_{kind}.so", Path(path).name)
        write(root / path, named)
    write(root / "lib/aarch64-android/libc++_shared.so", b"no build")
    return root


def add_catalog(qnn: Path, path: str = SKEL_PATH) -> Path:
    data = make_catalog({Path(path).name: (qnn / path).read_bytes()}, stamped=NOW)
    return write((qnn / path).with_name(CATALOG), data)


def prove(qnn: Path) -> list[str]:
    return prove_skels(ask("qnn-sdk"), qnn)


def refuse(qnn: Path) -> str:
    with pytest.raises(IntegrityError, match="contradicts its manifest") as caught:
        prove(qnn)
    return caught.value.why


def test_catalog_proves_skels_and_their_build(qnn: Path) -> None:
    assert prove(qnn) == [UNPROVEN]
    assert prove_skels(ask("qnn-sdk"), qnn / "lib/aarch64-android") == []
    add_catalog(qnn)
    lines = prove(qnn)
    assert [line.split("_")[0] for line in lines] == [
        PROVEN,
        f"3 libraries contain the same build ID as a proven skel, {BUILD}",
        "unproven: all other files, and the build of 1 libraries without a build ID",
    ]
    (qnn / "lib/linked").mkdir()
    for path in sorted(qnn.rglob("lib*.so")):  # a link proves and counts nothing
        (qnn / "lib/linked" / path.name).symlink_to(path)
    assert prove(qnn) == lines
    add_catalog(qnn, OTHER_SKEL)
    assert prove(qnn) == [PROVEN, PROVEN.replace("V73", "V75"), *lines[1:]]


def test_catalog_that_proves_nothing_is_refused(qnn: Path) -> None:
    catalog, skel = add_catalog(qnn), qnn / SKEL_PATH
    good = skel.read_bytes()
    write(skel, good + b"!")
    assert "not covered" in refuse(qnn)
    write(skel, good)
    catalog.write_bytes(catalog.read_bytes()[:-1])
    assert "forged" in refuse(qnn)


@pytest.mark.parametrize("name", [OTHER_SKEL, "lib/aarch64-android/libQnnHtp.so"])
def test_library_of_another_build_than_the_proven_skel_is_refused(qnn: Path, name: str) -> None:
    add_catalog(qnn)
    data = bytearray((qnn / name).read_bytes())
    elf.set_build(BUILD, OTHER)(data)
    write(qnn / name, bytes(data))
    assert refuse(qnn).startswith(f"{name} is from {OTHER}")


def test_listed_skel_proves_its_build_and_a_changed_one_is_refused(
    qnn: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = qnn / OTHER_SKEL
    digest = hash_file(path)
    builds = {BUILD: KnownBuild("some.whl", "0" * 64, {path.name: digest})}
    monkeypatch.setattr(catalogs, "read_known", lambda: builds)
    genuine, build_line, _ = prove(qnn)
    assert genuine.startswith(f"{path.name} is genuine according to skels.toml (some.whl)")
    assert build_line.startswith("3 libraries")
    for build, is_proven in (
        (BUILD, True),
        (f"{BUILD}_124859", True),  # the number of the vendor's job is no part of the build
        (OTHER, False),
    ):
        proof = catalogs.prove_skel(path, QnnBuild("2.49.40", "260810104044", build))
        genuine_proof = Proof(Genuine.GENUINE, "skels.toml (some.whl)", listed=digest)
        assert proof == (genuine_proof if is_proven else None)
    write(path, path.read_bytes() + b"!")
    assert refuse(qnn).startswith(OTHER_SKEL)
