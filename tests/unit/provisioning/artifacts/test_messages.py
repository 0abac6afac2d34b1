"""Refusals and steps of provisioning, as a user reads them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from provisioning.artifacts import consent, installations, pins, trust
from provisioning.artifacts import provision as provisions
from provisioning.artifacts.choice import list_device_runtimes, read_choice
from provisioning.artifacts.environment import locate_profile, parse_selection
from provisioning.artifacts.provision import provision_artifacts
from provisioning.artifacts.sources import Options, archive, wheel
from provisioning.artifacts.sources.archive import obtain_archive
from provisioning.artifacts.sources.unpacking import judge_archive, unpack_file
from provisioning.errors import QnnCiError
from provisioning.store.store import Store
from provisioning.store.tree import TreeEntry
from tests.build.artifacts import Workspace, ask, install, of, pack_tar, show_refusals, tidy, write
from tests.stand_ins import elf_edits as elf
from tests.stand_ins import toolchains as made
from tests.stand_ins.snapshots import check_snapshot

SNAPSHOTS = Path(__file__).with_name("snapshots")
SKEL = Path(__file__).parents[3] / "artifacts/elf/libhexagon.so"
GIT_ROW = f'source = "git"\nurl = "https://vendor.invalid/x"\ncommit = "{"a" * 40}"\n'


def list_refusals(sdk: Workspace) -> dict[str, Callable[[], object]]:
    request, store, quiet, root = sdk.ask(), sdk.store, sdk.progress, sdk.root
    rule = request.release.layout[0]
    elsewhere = of(request, layout=[msgspec.structs.replace(rule, take="a/*")])
    tar = write(root / "sdk.tar.gz", pack_tar({"a": b""}, "other/"))
    tar_request = of(elsewhere, sha256="", filename="sdk.tar.gz")
    damaged = bytearray(SKEL.read_bytes())
    elf.add_swiv(damaged)
    damaged[200] ^= 1
    write(root / "skels/lib/hexagon-v75/unsigned/libA.so", bytes(damaged))
    write(root / "others/lib/aarch64-android/libA.so", made.make_library(62, 9000))
    write(root / "libraries/lib/x86_64-linux/a.so", "no library")
    write(root / "big/sdk.yaml", b"#" * (1 << 17))
    write(root / "yaml/sdk.yaml", "a: [")
    (root / "directory/sdk.yaml").mkdir(parents=True)
    write(root / "file", "")
    old = write(root / "old/sdk.yaml", "version: 1.2.2\n").parent
    named = {"TINY_ROOT": str(old)}
    made.describe(sdk.manifests, "code", GIT_ROW)
    write(root / "wheel.whl", b"wheel")
    row = made.describe_wheel(root / "wheel.whl")
    sdk.manifest.with_name("qnn-runtime.toml").write_text(row)
    offline = replace(ask("qnn-runtime"), options=Options(offline=True))
    moved = of(request, url=f"file://{root}/vendor.zip?token=secret")
    toml = sdk.manifest.read_text()
    unlike = msgspec.structs.replace(request.release, case_collisions=True)
    entry = TreeEntry("a", 1, 0o644, "1")

    def update_in_a_file() -> object:
        return pins.plan_update(request, "9", Store(root / "file/home"), quiet)

    return {
        "an unknown word": lambda: parse_selection(["gone"], Options()),
        "no version": lambda: parse_selection(["sdk@"], Options()),
        "no component": lambda: parse_selection(["sdk:,"], Options()),
        "an unknown component": lambda: sdk.ask("base", "gone").patterns,
        "an unknown directory": lambda: read_choice(str(root / "gone")),
        "an unknown device": lambda: list(list_device_runtimes(["gone"])),
        "a profile": lambda: locate_profile("emulator", quiet),
        "no hash": lambda: consent.require_trust(of(request, sha256="")),
        "a contradiction": lambda: trust.check_version(request, old),
        "no library": lambda: trust.check_machines(root / "libraries"),
        "a damaged library": lambda: trust.check_machines(root / "skels"),
        "another machine": lambda: trust.check_machines(root / "others"),
        "a lock that lacks a file": lambda: provisions.check_lock(
            request.locked_by(sdk.lock(files=(entry,))), []
        ),
        "nothing selected of a ZIP": lambda: unpack_file(sdk.archive, sdk.job(elsewhere)),
        "nothing selected of a tarball": lambda: unpack_file(tar, sdk.job(tar_request)),
        "a link out of a ZIP": lambda: unpack_file(
            sdk.archive, sdk.job(of(request, links={"lib/link.so": "../../one.so"}))
        ),
        "nothing to trust in a ZIP": lambda: judge_archive(sdk.archive, elsewhere),
        "nothing to trust in a tarball": lambda: judge_archive(tar, tar_request),
        "a stub": lambda: judge_archive(sdk.archive, of(request, unpacked_bytes=10**9)),
        "an archive that is gone": lambda: obtain_archive(
            sdk.job(of(request, url=f"file://{root}/gone.zip", filename="gone.zip"))
        ),
        "offline": lambda: wheel.obtain_wheel(sdk.job(offline)),
        "an offline update": lambda: wheel.find_release(sdk.job(offline), "2.0"),
        "an offline archive": lambda: obtain_archive(
            sdk.job(of(sdk.ask(offline=True), filename="gone.zip", sha256=""))
        ),
        "the URL of another version": lambda: archive.find_release(sdk.job(moved), "1.3"),
        "which version": lambda: archive.find_release(sdk.job(), ""),
        "an unfit installation": lambda: installations.find_installation(
            sdk.ask("libraries", "headers"), named
        ),
        "an old installation": lambda: installations.find_installation(
            replace(request, minimum="1.3"), named
        ),
        "an sdk.yaml that is no YAML": lambda: installations.read_sdk_yaml(root / "yaml"),
        "a large sdk.yaml": lambda: installations.read_sdk_yaml(root / "big"),
        "an sdk.yaml that is a directory": lambda: installations.read_sdk_yaml(root / "directory"),
        "two links": lambda: wheel.follow_links(
            {"lib/a.so": "b-1a.so"}, ["lib/b-2b.so", "lib/b-3c.so"]
        ),
        "pins that cannot be written": lambda: pins.Change(root / "file/row", "a", "b").write(),
        "an update that has no room": update_in_a_file,
        "no lock of a repository": lambda: pins.plan_lock(ask("code"), store, quiet),
        "no file": lambda: pins.take_archive(request, root / "gone", store),
        "not one file": lambda: pins.take_archive(ask("code"), root / "file", store),
        "another archive": lambda: pins.take_archive(request, root / "wheel.whl", store),
        "a manifest without tables": lambda: pins.rewrite_release("", request, request.release),
        "a manifest that lacks a value": lambda: pins.rewrite_release(toml, request, unlike),
        "a default": lambda: pins.rewrite_default("", request, "1.3"),
    }


def test_refusals_say_what_why_and_what_to_do(sdk: Workspace) -> None:
    shown = tidy(show_refusals(list_refusals(sdk)), sdk.root).replace(sys.executable, "PYTHON")
    check_snapshot(SNAPSHOTS / "refusals.txt", shown)


def test_provisioning_progress_reads_as_its_snapshot(
    sdk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ""

    def step(name: str, call: Callable[[], object], *, parallel: bool = False) -> None:
        nonlocal shown
        sdk.printed()
        try:
            call()
        except QnnCiError as error:
            sdk.stream.write(f"{type(error).__name__} {error}\n")
        lines = sdk.printed().splitlines()
        shown += "\n".join([name, *(sorted(lines) if parallel else lines), ""])

    def damage(*names: str) -> None:
        for name in names:
            (next(sdk.store.trees.glob("*/sdk")) / name).touch()

    step("fetch", sdk.provision)
    step("fetch again", sdk.provision)
    for count in (12, 11, 1):
        damage(*(f"extra{number:02}" for number in range(count)))
        step(f"verify {count} files more", lambda: sdk.provision(verify=True))
    damage("extra")
    with monkeypatch.context() as patch:
        patch.setattr(provisions, "_fetch", lambda *words: None)
        step("a repair that repairs nothing", lambda: sdk.provision(verify=True))
    write(sdk.store.downloads / "sdk.zip", "short")
    shutil.rmtree(sdk.store.trees)
    step("a download that was changed", lambda: sdk.provision("headers", "base"))
    installed = install(sdk.root / "installed", "1.2.2")
    monkeypatch.setenv("TINY_ROOT", str(installed))
    step("an installation", sdk.provision)
    monkeypatch.delenv("TINY_ROOT")
    shutil.rmtree(sdk.store.home)
    sdk.describe(pinned=False)
    sdk.add_artifact("other")
    requests = [sdk.ask(trust=True), replace(ask("other"), options=Options(trust_first_use=True))]

    def fetch_both() -> object:
        return provision_artifacts(requests, sdk.store, sdk.progress)

    step("two", fetch_both, parallel=True)
    made.describe(sdk.manifests, "code", GIT_ROW)
    request = of(sdk.ask(trust=True), unpacked_bytes=3 << 20, size_bytes=2 << 20)
    lock = msgspec.structs.replace(request.pinned(sdk.store).lock, size_bytes=2 << 20)
    monkeypatch.setenv("TINY_ROOT", "/opt/tiny")
    rows = [
        ask("code"),
        request.locked_by(lock),
        request.locked_by(msgspec.structs.replace(lock, files=())),
        of(request, url="https://user:secret@vendor.invalid:80/code", size_bytes=0),
    ]
    step("an outline", lambda: provisions.show_outline(rows, sdk.store, sdk.progress))
    check_snapshot(SNAPSHOTS / "steps.txt", tidy(shown, sdk.root))
