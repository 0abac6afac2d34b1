"""From a pin to a verified tree in the store: fetched once, locked, verified, repaired, shared."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from provisioning.artifacts.environment import parse_selection, unique_requests
from provisioning.artifacts.lockfile import (
    find_lock,
    machine_lock_path,
    project_lock_path,
    read_lock,
)
from provisioning.artifacts.provision import (
    Provisioned,
    find_differences,
    locate_artifact,
    trusted_tree,
)
from provisioning.artifacts.sources import Options, substitute
from provisioning.errors import DownloadError, IntegrityError, ManifestError, StoreError
from provisioning.store.store import TREE_FILE, Published
from provisioning.store.tree import TreeEntry, encode_record, parse_tree
from tests.build.artifacts import (
    FILES,
    LIBRARIES,
    WHOLE,
    Workspace,
    names_below,
    of,
    pack_tar,
    pack_zip,
    read_tree,
    write,
)

ONE = "lib/one.so"


def test_tree_is_fetched_once(sdk: Workspace) -> None:
    provisioned = sdk.provision()
    origin = sdk.ask().release.origin
    assert provisioned == Provisioned("sdk", "1.2.3", provisioned.root, origin, (), fetched=True)
    assert names_below(provisioned.root) == WHOLE
    assert (provisioned.root / "note").read_bytes() == b"x"
    assert (provisioned.root / "lib/link.so").readlink() == Path("one.so")
    sdk.printed()
    left = sdk.store.trees / ".sdk.staging-0123"  # of a killed process
    left.mkdir()
    assert sdk.provision() == replace(provisioned, fetched=False)
    assert sdk.printed() == ""
    assert not left.exists()
    assert locate_artifact(sdk.ask(), sdk.store, sdk.progress) == replace(
        provisioned, fetched=False
    )


def test_concurrent_requests_fetch_one_tree(sdk: Workspace) -> None:
    results: list[Provisioned] = []
    threads = [threading.Thread(target=lambda: results.append(sdk.provision())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.fetched for result in results) == [False, False, False, True]


@pytest.mark.parametrize(
    ("size", "match"),
    [("packed", r"not enough space for sdk\.zip"), ("unpacked", r"for sdk 1\.2\.3 unpacked")],
)
def test_tree_needs_room_on_the_disk(
    sdk: Workspace, monkeypatch: pytest.MonkeyPatch, size: str, match: str
) -> None:
    sdk.archive.write_bytes(pack_zip(FILES | {"lib/big.so": bytes(2000)}))
    sdk.describe(added="")
    unpacked = sum(map(len, FILES.values())) + 2000
    needed = sdk.archive.stat().st_size if size == "packed" else unpacked
    if size == "unpacked":
        sdk.provision()  # the download is there
        shutil.rmtree(sdk.store.trees)
    free = (64 << 20) + needed - 1
    monkeypatch.setattr("provisioning.store.store.free_bytes", lambda place: free)
    with pytest.raises(StoreError, match=match):
        sdk.provision()
    free += 1
    assert sdk.provision().fetched


def test_version_in_a_text_is_replaced_except_within_longer_numbers() -> None:
    for text, words, replaced in (
        ("1.2.5 11.2 0.1.2 1.25 a1.21", {"1.2": "1.3"}, "1.2.5 11.2 0.1.2 1.25 a1.21"),
        ("v1.2/1.2-1.2.zip", {"1.2": "1.3"}, "v1.3/1.3-1.3.zip"),
        ("a 1.2", {}, "a 1.2"),
        ("r26c", {"r26": "r27", "r26c": "r28"}, "r28"),
        ("1.2.0 1.2", {"1.2": "2", "1.2.0": "3"}, "3 2"),
        ("a1x2 1+0 110", {"1.2": "x", "1+0": "2"}, "a1x2 2 110"),
    ):
        assert substitute(text, words) == replaced


# -- keys and stored trees ------------------------------------------------------------------------


def test_key_of_a_tree_holds_everything_that_makes_it(
    sdk: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recipe's names are part of the digest: with others, everything would be fetched again."""
    key = sdk.ask("libraries", "headers").key()
    assert (key.artifact, key.version, key.recipe) == (
        "sdk",
        "1.2.3",
        {
            "source": hashlib.sha256(sdk.archive.read_bytes()).hexdigest(),
            "layout": [["sdk/**", ""]],
            "links": {"lib/link.so": "one.so"},
            "write": {"note": "x"},
            "components": ["include/**", "lib/**"],
        },
    )
    assert sdk.ask("headers", "libraries").key() == key
    request = sdk.ask()
    layout = request.release.layout[0]
    changes: list[dict[str, Any]] = [
        {},
        {"sha256": "0" * 64},
        {"links": {"lib/other.so": "one.so"}},
        {"write": {"note": "y"}},
        {"layout": [msgspec.structs.replace(layout, put="deep/")]},
        {"sha256": "", "url": "https://h/a.zip"},
        {"sha256": "", "url": "https://h/b.zip"},
    ]
    keys = [key.directory, *(of(request, **change).key().directory for change in changes)]
    assert len(set(keys)) == len(keys)
    monkeypatch.setenv("TINY_ROOT", str(sdk.root))
    assert request.key().directory == keys[1]  # an installation is no part of what is fetched


def test_arguments_select_each_profile_and_artifact_once(sdk: Workspace) -> None:
    sdk.add_artifact("other")
    sdk.edit('version = "1.2.3"', 'version = "1.2.2"\nsource = "git"\nurl = "u"\ncommit = '
             f'"{"a" * 40}"\n[[releases]]\nversion = "1.2.3"')  # fmt: skip
    options = Options(offline=True)

    def select(*words: str) -> list[tuple[str, str, tuple[str, ...]]]:
        requests = parse_selection(words, options)
        assert all(request.options == options for request in requests)
        return [(request.name, request.release.version, request.components) for request in requests]

    whole_sdk = ("sdk", "1.2.3", ())
    for words, selected in (
        ((), [whole_sdk]),
        (("emulator", "sdk", "emulator"), [whole_sdk]),
        (("sdk@1.2.2",), [("sdk", "1.2.2", ())]),
        (("sdk@1.2.3:headers,base,", "sdk:base,headers"), [("sdk", "1.2.3", ("base", "headers"))]),
        (("emulator+sdk@1.2.2", "other"), [("sdk", "1.2.2", ()), ("other", "1.2.3", ())]),
    ):
        assert select(*words) == selected, words
    assert unique_requests([sdk.ask(), sdk.ask("headers"), sdk.ask()]) == [
        sdk.ask(),
        sdk.ask("headers"),
    ]


# -- locks ----------------------------------------------------------------------------------------

ELSE = "5" * 64
TWO = "SHA-256 TWO, 300 bytes, mode 444"


@pytest.mark.parametrize(
    ("path", "locked", "actual", "locked_text"),
    [
        ("lib/two.so", None, TWO, "nothing"),
        ("a", TreeEntry("a", 1, 0o444, ELSE), "nothing", f"SHA-256 {ELSE}, 1 byte, mode 444"),
        (
            *("lib/two.so", {"sha256": ELSE, "size": 0}, TWO),
            f"SHA-256 {ELSE}, 0 bytes, mode 444",
        ),
        ("lib/two.so", {"mode": 0o555}, TWO, "SHA-256 TWO, 300 bytes, mode 555"),
        ("lib/two.so", TreeEntry("lib/two.so", link="one.so"), TWO, "a link to 'one.so'"),
        ("lib/link.so", {"link": "two.so"}, "a link to 'one.so'", "a link to 'two.so'"),
    ],
)
def test_tree_that_differs_from_its_lock_is_refused(
    sdk: Workspace,
    path: str,
    locked: TreeEntry | dict[str, Any] | None,
    actual: str,
    locked_text: str,
) -> None:
    entries = {entry.path: entry for entry in sdk.lock().files}
    if isinstance(locked, dict):
        entries[path] = msgspec.structs.replace(entries[path], **locked)
    elif locked:
        entries[path] = locked
    else:
        del entries[path]
    sdk.lock(files=tuple(entries.values()))
    with pytest.raises(IntegrityError) as caught:
        sdk.provision()
    two = hashlib.sha256(FILES["lib/two.so"]).hexdigest()
    assert caught.value.what == f"{path} in sdk 1.2.3 does not match the lock"
    why = f"found {actual}; the lock has {locked_text}".replace("TWO", two)
    assert caught.value.why == why
    assert list(sdk.store.trees.iterdir()) == []
    sdk.lock()
    assert sdk.provision().fetched


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (os.mkfifo, "it is a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
        (Path.mkdir, "it is a directory"),
        (lambda path: path.symlink_to(path), os.strerror(errno.ELOOP)),
        (b'{"artifact": "\xff"}', ""),
        (b'{"artifact": "sdk"}', ""),
        ({"artifact": "sd"}, "it is the lock of sd 1.2.3"),
    ],
)
def test_lock_that_cannot_be_used_is_named(
    sdk: Workspace, spoil: Callable[[Path], None] | bytes | dict[str, Any], why: str
) -> None:
    path = project_lock_path("sdk", "1.2.3")
    lock = sdk.lock()
    assert read_lock(path) == lock
    assert read_lock(path / "below a file-1.json") is None
    path.unlink()
    assert read_lock(path) is None
    if isinstance(spoil, bytes):
        path.write_bytes(spoil)
    elif isinstance(spoil, dict):
        path.write_bytes(encode_record(msgspec.structs.replace(lock, **spoil)))
    else:
        spoil(path)
    with pytest.raises(ManifestError, match=path.name) as caught:
        sdk.provision()
    assert caught.value.why == (why or caught.value.why) != ""


def test_lock_of_the_project_takes_precedence_over_the_machines(sdk: Workspace) -> None:
    lock = sdk.lock()
    machine_lock = machine_lock_path(sdk.store, "sdk", "1.2.3")
    write(machine_lock, encode_record(msgspec.structs.replace(lock, size_bytes=1)))
    assert sdk.ask().pinned(sdk.store).lock == lock
    project_lock_path("sdk", "1.2.3").unlink()
    assert find_lock("sdk", sdk.ask().release, sdk.store) == read_lock(machine_lock)
    near = lock.sha256[:-1] + ("1" if lock.sha256.endswith("0") else "0")
    write(machine_lock, encode_record(msgspec.structs.replace(lock, sha256=near)))
    with pytest.raises(IntegrityError, match="have different hashes") as caught:
        sdk.provision()
    assert re.search(f"lock .*{near}.* manifest .*{lock.sha256}", caught.value.why)


# -- verification ---------------------------------------------------------------------------------


def change_bytes(root: Path) -> None:
    """Only the hash differs."""
    file = root / ONE
    state = file.stat()
    write(file, b"x" * state.st_size).chmod(stat.S_IMODE(state.st_mode))
    os.utime(file, ns=(state.st_atime_ns, state.st_mtime_ns))


def forge_record(root: Path) -> None:
    """tree.json tells of the changed file."""
    change_bytes(root)
    record = root.parent / TREE_FILE
    tree = parse_tree(record.read_bytes())
    digest = hashlib.sha256((root / ONE).read_bytes()).hexdigest()
    files = [
        msgspec.structs.replace(file, sha256=digest) if file.path == ONE else file
        for file in tree.files
    ]
    record.write_bytes(encode_record(msgspec.structs.replace(tree, files=tuple(files))))


DAMAGES: Mapping[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "a file more": (lambda root: (root / "extra").touch(), ("extra",)),
    "a file less": (lambda root: (root / ONE).unlink(), (ONE,)),
    "another mode": (lambda root: (root / ONE).chmod(0o600), (ONE,)),
    "other bytes": (change_bytes, (ONE,)),
    "other bytes and a record of them": (forge_record, (ONE,)),
    "a damaged record": (lambda root: (root.parent / TREE_FILE).write_text("{"), (TREE_FILE,)),
    "a tree that others can change": (lambda root: root.chmod(0o777), ("./",)),
    "its record": (lambda root: (root.parent / TREE_FILE).chmod(0o666), ("../tree.json",)),
    "the directory of trees": (lambda root: root.parent.parent.chmod(0o777), ("../../",)),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_and_repaired_if_the_files_are_verified(sdk: Workspace, kind: str) -> None:
    sdk.lock()
    provisioned = replace(sdk.provision(), fetched=False)
    damage, paths = DAMAGES[kind]
    request, published = sdk.ask().pinned(sdk.store), Published(provisioned.root.parent, "sdk")
    assert find_differences(request, published) == []
    damage(provisioned.root)
    assert [difference.path for difference in find_differences(request, published)] == [*paths]
    assert sdk.provision() == provisioned  # nothing is hashed again without being asked for
    is_new = paths == (TREE_FILE,)
    assert sdk.provision(verify=True) == replace(provisioned, repaired=paths, fetched=is_new)
    assert find_differences(request, published) == []
    assert sdk.provision(verify=True) == provisioned
    assert read_tree(provisioned.root) == FILES | {"note": b"x"}


def test_tree_is_trusted_only_for_the_request_that_it_was_made_for(sdk: Workspace) -> None:
    parts = ((), ("libraries",), ("libraries", "headers"))
    for components in parts:
        sdk.provision(*components)
    for components_of_tree in (*parts, ("headers", "libraries")):
        request = sdk.ask(*components_of_tree)
        published = sdk.store.find(request.key())
        assert published
        tree = parse_tree((published.path / TREE_FILE).read_bytes())
        assert trusted_tree(request, published) == tree
        for other_components in (*parts, ("base",)):
            if sorted(other_components) != sorted(components_of_tree):
                assert trusted_tree(sdk.ask(*other_components), published) is None
        assert trusted_tree(of(request, sha256="0" * 64), published) is None
        for changed in ({"components": ("gone",)}, {"version": "1"}, {"artifact": "other"}):
            record = encode_record(msgspec.structs.replace(tree, **changed))
            (published.path / TREE_FILE).write_bytes(record)
            assert trusted_tree(request, published) is None
        (published.path / TREE_FILE).write_bytes(encode_record(tree))


# -- trees that share files -----------------------------------------------------------------------


@pytest.fixture(params=["zip", "tar"])
def packed(request: pytest.FixtureRequest, sdk: Workspace) -> str:
    """A locked archive: a ZIP, or a tarball, which is read from its start anyway."""
    if request.param == "tar":
        sdk.archive.write_bytes(pack_tar(FILES))
        sdk.describe(filename="sdk.tar.gz")
    sdk.lock()
    return str(request.param)


def hide_archive(sdk: Workspace) -> None:
    shutil.rmtree(sdk.store.downloads)
    sdk.archive.rename(sdk.root / "hidden")


def test_component_is_linked_from_a_stored_whole_tree(sdk: Workspace, packed: str) -> None:
    whole_root = sdk.provision().root
    hide_archive(sdk)
    part = sdk.provision("libraries").root
    assert names_below(part) == LIBRARIES
    assert (part / ONE).samefile(whole_root / ONE)
    assert (
        find_differences(sdk.ask("libraries").pinned(sdk.store), Published(part.parent, "sdk"))
        == []
    )


@pytest.mark.parametrize("damage", ["bytes", "another archive"])
def test_no_file_comes_from_a_tree_that_is_not_of_the_pin(sdk: Workspace, damage: str) -> None:
    sdk.lock()
    whole_root = sdk.provision().root
    hide_archive(sdk)
    if damage == "bytes":
        change_bytes(whole_root)
    else:
        tree = msgspec.structs.replace(
            parse_tree((whole_root.parent / TREE_FILE).read_bytes()), source_sha256="0" * 64
        )
        (whole_root.parent / TREE_FILE).write_bytes(encode_record(tree))
    with pytest.raises(DownloadError):
        sdk.provision("libraries")


def test_rest_of_a_tree_is_added_to_the_files_that_other_trees_have(
    sdk: Workspace, packed: str
) -> None:
    """Components of a tarball come from a tree that has all of them, or from the tarball."""
    header = sdk.provision("headers").root / "include/a.h"
    root = sdk.provision("headers", "libraries").root
    assert names_below(root) == ["include/a.h", *LIBRARIES]
    assert (root / "include/a.h").samefile(header) == (packed == "zip")
    sdk.edit("\nheaders =", '\none = ["lib/one.so"]\nheaders =')
    shutil.rmtree(
        sdk.store.trees / sdk.ask("headers", "libraries").pinned(sdk.store).key().directory
    )
    one_root = sdk.provision("one").root
    assert names_below(one_root) == [ONE]  # the link to it is of another component
    libraries = sdk.provision("libraries").root
    assert names_below(libraries) == LIBRARIES
    assert (libraries / ONE).samefile(one_root / ONE) == (packed == "zip")


def test_kept_archive_is_checked_against_its_pin(sdk: Workspace) -> None:
    good = sdk.archive.read_bytes()
    kept_archive = sdk.store.downloads / "sdk.zip"
    for data, words in (
        (b"short", "it is 5 bytes long"),
        (bytes([good[0] ^ 1]) + good[1:], "its SHA-256 is"),
    ):
        write(kept_archive, data)
        with pytest.raises(DownloadError, match="--offline"):
            sdk.provision(offline=True)
        assert kept_archive.read_bytes() == data
        assert sdk.provision().fetched
        assert f"the existing sdk.zip does not match its pin: {words}" in sdk.printed()
        shutil.rmtree(sdk.store.home)
