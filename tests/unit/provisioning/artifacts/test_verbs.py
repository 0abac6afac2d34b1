"""The verbs of provisioning on a small store: what they print, and what they leave."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provisioning.artifacts.lockfile import machine_lock_path, project_lock_path
from provisioning.artifacts.pins import Change
from provisioning.errors import ExitCode, IntegrityError, StoreError, UnfitError
from provisioning.store.store import TREE_FILE, Store
from provisioning.verbs.fetch import fill_mirror
from provisioning.verbs.lock import conclude
from tests.build.artifacts import (
    FILES,
    PROFILE,
    WHOLE,
    Transcript,
    Workspace,
    names_below,
    pack_zip,
    run_verb,
    write,
)
from tests.stand_ins.provisioned import provision_one
from tests.stand_ins.snapshots import check_snapshot
from tests.typed_hints import Typist

SNAPSHOTS = Path(__file__).with_name("snapshots")
OTHER = FILES | {"lib/two.so": b"TWO" * 100}


def add_older_release(sdk: Workspace) -> None:
    release = sdk.manifest.read_text().partition("[[releases]]")[2]
    older = release.replace('"1.2.3"', '"1.2.2"').replace('"sdk.zip"', '"old.zip"')
    sdk.manifest.write_text(f"{sdk.manifest.read_text()}\n[[releases]]{older}")


# -- what verbs print -----------------------------------------------------------------------------


def test_list_and_path_show_pins_and_stored_trees(sdk: Workspace) -> None:
    shown = Transcript(sdk.root)
    sdk.describe(pinned=False)
    shown.run("list")
    shown.run("path", "sdk:headers")
    shown.note("trusted by this machine")
    sdk.provision(trust=True)
    shown.run("list")
    shown.run("path", "emulator")
    shown.note("a lock without files")
    sdk.describe()
    add_older_release(sdk)
    sdk.lock(files=())
    sdk.provision("headers")
    shown.run("list", "--json")
    shown.note("a damaged lock")
    project_lock_path("sdk", "1.2.3").write_text("{")
    shown.run("list")
    project_lock_path("sdk", "1.2.3").unlink()
    sdk.add_artifact("other")
    profiles = f'{PROFILE}[[emulator.artifacts]]\nname = "other"\n'
    (sdk.manifests / "profiles.toml").write_text(profiles)
    shown.note("a profile of two")
    shown.run("path", "emulator")
    check_snapshot(SNAPSHOTS / "verb_list.txt", shown.text)


def test_verify_shows_each_difference_with_what_to_do(sdk: Workspace) -> None:
    shown = Transcript(sdk.root)
    sdk.add_artifact("other")
    for words in ((), ("sdk",)):
        shown.run("verify", *words)
    root = sdk.provision().root
    shown.run("verify", "--json")
    shown.run("verify", "sdk", "other")
    shown.note("changed with the same size and time, and removed")
    state = (root / "lib/one.so").stat()
    write(root / "lib/one.so", b"ONE" * 100).chmod(stat.S_IMODE(state.st_mode))
    os.utime(root / "lib/one.so", ns=(state.st_atime_ns, state.st_mtime_ns))
    shown.run("verify", "--quick")
    (root / "lib/two.so").unlink()
    shown.run("verify")
    shown.run("verify", "--quick", "--repair", "--json")
    shown.run("verify")
    shown.note("a damaged record, a directory of another program and a damaged lock")
    (root.parent / TREE_FILE).write_text("{}")
    (sdk.store.trees / "sdk-0123456789ab").mkdir()
    write(machine_lock_path(sdk.store, "sdk", "9"), "no lock")
    shown.run("verify")
    shown.run("verify", "sdk", "--json")
    shown.run("verify", "sdk", "--repair")
    check_snapshot(SNAPSHOTS / "verb_verify.txt", shown.text)


def test_fetch_checks_files_only_with_verify(sdk: Workspace) -> None:
    shown = Transcript(sdk.root)
    shown.run("fetch", "sdk:libraries", "--json")
    (next(sdk.store.trees.glob("*/sdk")) / "lib/one.so").unlink()
    shown.run("fetch", "sdk:libraries")
    shown.run("fetch", "sdk:libraries", "--verify", "--json")
    shown.run("fetch", "sdk", "--to", str(sdk.root / "mirror"))
    shown.run("fetch", "sdk", "--to", str(sdk.root / "mirror"), "--json")
    check_snapshot(SNAPSHOTS / "verb_fetch.txt", shown.text)


def test_cache_and_gc_remove_what_qnn_ci_made(
    sdk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = sdk.root / "checkout"  # its environments are small
    monkeypatch.setattr("provisioning.store.collect.CHECKOUT", checkout)
    for name in ("noxfile.py", ".nox/core/bin/python"):
        write(checkout / name, "")
    shown = Transcript(sdk.root)
    for words in (("cache", "clean", "store", "downloads"), ("cache", "gc", "--downloads")):
        shown.run(*words, "--json")
    assert not sdk.store.home.exists()
    whole_tree, part = sdk.provision().root.parent, sdk.provision("headers").root.parent
    write(part / "sdk/more", bytes(3 << 20))
    (sdk.store.trees / "mine").write_text("kept")
    shown.run("cache", "gc", "--dry-run")
    shown.run("cache", "gc", "--json")
    assert (whole_tree.exists(), part.exists()) == (True, False)
    add_older_release(sdk)
    for name in ("old.zip", "mine.zip"):
        write(sdk.store.downloads / name, name)
    shown.run("cache", "gc", "--downloads", "--dry-run")
    assert run_verb("cache", "gc", "--downloads").code == 0
    assert names_below(sdk.store.downloads) == ["mine.zip"]
    for words in (("store",), ("downloads", "store"), ("store", "x")):
        shown.run("cache", "info", *words, "--json")
    shown.run("cache", "info", "--dry-run")
    shown.run("cache", "clean")
    shown.run("cache", "clean", "store", "--dry-run", "--json")
    assert whole_tree.exists()
    shown.run("cache", "clean", "store", "downloads", "downloads")
    assert [path.name for path in sdk.store.trees.iterdir()] == ["mine"]
    names = run_verb("cache", "info", "--json").data["parts"]
    assert names == run_verb("cache", "info", "all", "--json").data["parts"]
    assert {"store", "downloads", "environments"} < {name["name"] for name in names}
    check_snapshot(SNAPSHOTS / "verb_cache.txt", shown.text)


def test_cache_key_covers_pinned_artifacts_that_may_be_shared(
    sdk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*words: str) -> dict[str, Any]:
        data: dict[str, Any] = run_verb("cache", "key", *words, "--json").data
        return data

    shown = Transcript(sdk.root)
    shown.run("cache", "key", "sdk", "--json")
    shown.run("cache", "key", "sdk", "--private", "--json")
    pinned = ask("sdk", "--private")
    sdk.edit("[licence]", "[licence]\nredistribute = true")
    assert ask("sdk") == pinned
    sdk.lock(files=())
    assert ask("sdk") == pinned
    sdk.lock()
    shown.note("each file is locked")
    shown.run("cache", "key", "sdk", "--github")
    parts = ask("sdk:headers", "sdk:libraries")
    assert ask("sdk:libraries", "sdk:headers") == parts
    assert len(parts["paths"]) == 2
    project_lock_path("sdk", "1.2.3").unlink()
    sdk.archive.write_bytes(pack_zip(OTHER))
    sdk.describe()
    changed_key = ask("sdk", "--private")
    assert (changed_key["paths"], changed_key["key"] == pinned["key"]) == (pinned["paths"], False)
    sdk.describe(pinned=False)
    shown.note("no hash")
    shown.run("cache", "key", "sdk", "--private")
    check_snapshot(SNAPSHOTS / "verb_cache_key.txt", shown.text)
    monkeypatch.delenv("QNN_CI_MANIFESTS")
    checkout = ask("executorch", "--private")
    assert (checkout["paths"], [*checkout["left_out"]]) == ([], ["executorch"])


def test_lock_and_update_show_a_diff_and_write_it_only_if_told_to(sdk: Workspace) -> None:
    shown = Transcript(sdk.root)
    sdk.describe(pinned=False)
    own_archive = sdk.archive.rename(sdk.root / "own-1.2.3.zip")
    assert run_verb("lock", "sdk").code == ExitCode.DOWNLOAD
    shown.run("lock", "sdk", "sdk:headers", "--from", str(own_archive))
    shown.run("lock", "sdk", "--from", str(own_archive))
    assert not project_lock_path("sdk", "1.2.3").exists()
    assert run_verb("lock", "sdk", "--from", str(own_archive), "--write").code == 0
    shown.run("lock", "sdk", "--from", str(own_archive), "--json")
    write(sdk.root / "own-1.3.0.zip", pack_zip(FILES | {"sdk.yaml": b"version: 1.3.0\n"}))
    sdk.describe(archive=own_archive, filename="sdk-1.2.3.zip")
    write(sdk.manifests / "baselines/sdk-1.2.3.toml", "# figures\n")
    write(sdk.root / "pyproject.toml", "# sdk 1.2.3 is pinned\n")
    before = sdk.manifest.read_text()
    shown.run("update", "sdk@1.3.0", "--trust-first-use")
    assert sdk.manifest.read_text() == before
    shown.run(
        "update", "sdk@1.3.0", "--trust-first-use", "--baselines", "drop", "--write", "--json"
    )
    shown.run("update", "sdk@1.3.0", "--trust-first-use")
    shown.run("update", "sdk", "--cooldown", "7")
    check_snapshot(SNAPSHOTS / "verb_lock.txt", shown.text)
    assert sdk.provision().version == "1.3.0"


def test_hints_about_a_lock_a_version_and_a_full_disk_are_typed(
    sdk: Workspace, monkeypatch: pytest.MonkeyPatch, typed_hints: Typist
) -> None:
    entries = [msgspec.structs.replace(entry, mode=0o700) for entry in sdk.lock().files]
    sdk.lock(files=tuple(entries))
    assert "run `qnn-ci lock sdk` to see every difference" in join(run_verb("fetch", "sdk").err)
    assert typed_hints.find_faults() == []
    ended = run_verb("update", "sdk@1.3.0", "--trust-first-use")
    assert "by hand, then run `qnn-ci lock sdk --write`" in join(ended.err)
    assert typed_hints.find_faults() == []
    sdk.lock()
    monkeypatch.setattr("provisioning.store.store.free_bytes", lambda _: 0)
    assert "free some space, run `qnn-ci cache gc`, or set" in join(run_verb("fetch", "sdk").err)


def test_the_hint_about_a_manifest_that_cannot_be_rewritten_is_typed(
    sdk: Workspace, typed_hints: Typist
) -> None:
    own_archive = sdk.archive.rename(sdk.root / "own-1.2.3.zip")
    newer_archive = sdk.root / "own-1.3.0.zip"
    write(newer_archive, pack_zip(FILES | {"sdk.yaml": b"version: 1.3.0\n"}))
    sdk.describe(archive=own_archive, filename="sdk-1.2.3.zip")
    sdk.manifest.write_text(f'# default = "1.2.3"\n{sdk.manifest.read_text()}')
    ended = run_verb("update", "sdk@1.3.0", "--trust-first-use")
    assert "change the manifest by hand, then run `qnn-ci lock sdk --write`" in join(ended.err)
    assert typed_hints.find_faults() == []
    # By hand
    sdk.describe(archive=newer_archive, filename="sdk-1.3.0.zip", pinned=False)
    sdk.manifest.write_text(sdk.manifest.read_text().replace("1.2.3", "1.3.0"))
    assert run_verb("lock", "sdk", "--trust-first-use", "--write").code == ExitCode.OK


def join(text: str) -> str:
    return " ".join(text.replace("python -m provisioning", "qnn-ci").split())


def test_locks_are_written_before_the_manifest_that_needs_them(sdk: Workspace) -> None:
    lock = sdk.manifests / "locks/sdk.json"
    before = sdk.manifest.read_text()
    plans = {"sdk": [Change(sdk.manifest, before, f"{before}#\n"), Change(lock, "", "{}\n")]}
    lock.parent.write_text("in the way")
    with pytest.raises(StoreError):
        conclude(plans, write=True)
    assert sdk.manifest.read_text() == before
    lock.parent.unlink()
    conclude(plans, write=True)
    assert (sdk.manifest.read_text(), lock.read_text()) == (f"{before}#\n", "{}\n")


# -- environments ---------------------------------------------------------------------------------


def test_env_prints_variables_and_notes_the_use_of_trees(sdk: Workspace) -> None:
    shown = Transcript(sdk.root)
    (sdk.manifests / "profiles.toml").write_text(PROFILE + 'MARK = "##[a] b"\n')
    root = sdk.provision().root
    shown.run("env", "emulator", "--json")
    shown.run("env")
    shown.run("env", "--github")
    assert sdk.store.find_user(root.parent)
    check_snapshot(SNAPSHOTS / "verb_env.txt", shown.text)


# -- mirrors --------------------------------------------------------------------------------------


def test_mirror_holds_files_sums_and_locks_that_another_machine_can_use(
    sdk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sdk.describe(pinned=False)
    mirror = sdk.root / "mirror"
    digest, other_sum = (
        hashlib.sha256(sdk.archive.read_bytes()).hexdigest(),
        f"{'5e' * 32}  other.zip\n",
    )
    write(
        mirror / "SHA256SUMS", b"\xff\n\nshort  x\n" + f"{'0' * 64}  sdk.zip\n{other_sum}".encode()
    )
    write(mirror / ".sdk.zip", "of a killed command")
    before = os.umask(0o077)
    try:
        written = fill_mirror([sdk.ask(trust=True)], mirror, sdk.store, sdk.progress)
    finally:
        os.umask(before)
    assert written == [mirror / "sdk.zip"]
    assert (mirror / "SHA256SUMS").read_text() == f"{other_sum}{digest}  sdk.zip\n"
    assert stat.S_IMODE((mirror / "sdk.zip").stat().st_mode) == 0o644
    lock = machine_lock_path(sdk.store, "sdk", "1.2.3")
    assert (mirror / lock.name).read_bytes() == lock.read_bytes()
    assert names_below(mirror) == sorted(["SHA256SUMS", lock.name, "sdk.zip"])
    data = sdk.archive.read_bytes()
    sdk.describe(archive=sdk.archive.rename(sdk.root / "gone.zip"))
    (sdk.root / "gone.zip").unlink()
    monkeypatch.setenv("QNN_CI_MIRROR", str(mirror))
    other_store = Store(sdk.root / "elsewhere")
    assert names_below(provision_one(sdk.ask(), other_store, sdk.progress).root) == WHOLE
    (mirror / "sdk.zip").chmod(0o600)
    fill_mirror([sdk.ask()], mirror, Store(sdk.root / "third"), sdk.progress)
    assert stat.S_IMODE((mirror / "sdk.zip").stat().st_mode) == 0o644
    assert (mirror / "sdk.zip").read_bytes() == data


def test_mirror_holds_nothing_that_a_lock_contradicts_or_no_licence_allows(sdk: Workspace) -> None:
    mirror = sdk.root / "mirror"
    sdk.lock(sha256="0" * 64)
    with pytest.raises(IntegrityError):
        fill_mirror([sdk.ask()], mirror, sdk.store, sdk.progress)
    project_lock_path("sdk", "1.2.3").unlink()
    (sdk.store.downloads / "sdk.zip").unlink()
    sdk.describe(pinned=False)
    sdk.edit("[licence]", "[licence]\naccept = true")
    with pytest.raises(UnfitError, match="licence"):  # before trust is asked for
        fill_mirror([sdk.ask(trust=True, accept=False)], mirror, sdk.store, sdk.progress)
    assert [*mirror.iterdir(), *sdk.store.downloads.iterdir()] == []
    for trust in (True, False):  # for trust once
        (path,) = fill_mirror([sdk.ask(trust=trust)], mirror, sdk.store, sdk.progress)
        assert path == mirror / "sdk.zip"
