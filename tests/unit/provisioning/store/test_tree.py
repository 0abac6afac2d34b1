"""How a directory differs from its record, and what of a directory is looked at."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provisioning.store import tree as trees
from provisioning.store.tree import (
    FILE_TIME_S,
    Difference,
    Tree,
    TreeEntry,
    compare_tree,
    encode_record,
    list_files,
    parse_tree,
    remove_others,
    scan_tree,
)
from tests.build.store import entry, make_tree, touch

SHA256 = hashlib.sha256(b"some bytes").hexdigest()
OTHER = hashlib.sha256(b"SOME bytes").hexdigest()
UNKNOWN = "does not belong to the artifact"


def replace_file(path: Path, data: bytes | None = None, link: str = "") -> None:
    """A file, a link or a directory instead of what is there; a file with its usual time."""
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)
        path.chmod(0o644)
        os.utime(path, (FILE_TIME_S, FILE_TIME_S))
    elif link:
        path.symlink_to(link)
    else:
        path.mkdir()


def make(*paths: str) -> Callable[[Path], None]:
    return lambda root: touch(root, *paths)


def chmod(mode: int, *paths: str) -> Callable[[Path], None]:
    return lambda root: [(root / path).chmod(mode) for path in paths] and None


# What is done to the directory, and the differences; with True, the quick look finds none.
DAMAGES: list[tuple[Callable[[Path], Any], list[str], bool]] = [
    (lambda root: None, [], False),
    (lambda root: (root / "c").unlink(), ["c: is missing"], False),
    (lambda root: (root / "void").rmdir(), ["void/: is missing"], False),
    (
        make("new/deep/file", "lib/deep/extra", "lib/aa", "lib/A"),
        [f"{name}: {UNKNOWN}" for name in ("lib/A", "lib/aa", "lib/deep/extra", "new/deep/file")],
        False,
    ),
    (
        lambda root: (root / "lib/empty/too").mkdir(parents=True),
        [f"lib/empty/too/: {UNKNOWN}"],
        False,
    ),
    (lambda root: (root / "lib/other").symlink_to("a"), [f"lib/other: {UNKNOWN}"], False),
    (chmod(0o777, "lib/deep"), ["lib/deep/: wrong mode (777, not 755)"], False),
    (chmod(0o645, "lib/a"), ["lib/a: wrong mode (645, not 644)"], False),
    (
        lambda root: replace_file(root / "lib/a", b"some bytes!"),
        ["lib/a: wrong size (11, not 10 bytes)"],
        False,
    ),
    (
        lambda root: replace_file(root / "lib/a", b"SOME bytes"),
        [f"lib/a: changed bytes (SHA-256 {OTHER}, not {SHA256})"],
        True,
    ),
    (
        lambda root: replace_file(root / "lib/link", link="deep/er/bb"),
        ["lib/link: wrong link (deep/er/bb, not deep/er/b)"],
        False,
    ),
    (
        lambda root: replace_file(root / "lib/link", b"more"),
        ["lib/link: is not a symbolic link"],
        False,
    ),
    (
        lambda root: replace_file(root / "lib/a", link="deep/er/b"),
        ["lib/a: is not a regular file"],
        False,
    ),
    (lambda root: replace_file(root / "c"), ["c: is missing", f"c/: {UNKNOWN}"], False),
]


@pytest.mark.parametrize(("damage", "differences", "only_hashed"), DAMAGES)
def test_each_difference_from_the_record_is_named(
    tmp_path: Path, damage: Callable[[Path], Any], differences: list[str], only_hashed: bool
) -> None:
    entries = make_tree(tmp_path / "root")
    damage(tmp_path / "root")
    for order in (entries, entries[::-1]):
        assert [
            str(difference) for difference in compare_tree(tmp_path / "root", order)
        ] == differences
        quick = [
            str(difference) for difference in compare_tree(tmp_path / "root", order, quick=True)
        ]
        assert quick == ([] if only_hashed else differences)


@pytest.mark.parametrize("shift", [-1, 1])
def test_changed_file_time_is_a_difference_only_in_the_quick_comparison(
    tmp_path: Path, shift: int
) -> None:
    entries = make_tree(tmp_path)
    os.utime(tmp_path / "c", (FILE_TIME_S, FILE_TIME_S + shift))
    assert compare_tree(tmp_path, entries) == []
    assert compare_tree(tmp_path, entries, quick=True) == [Difference("c", "was touched")]


def test_file_of_another_user_is_a_difference_whatever_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = os.stat_result((0o100644, 0, 0, 1, 7, 8, 10, 0, FILE_TIME_S, 0))
    monkeypatch.setattr(trees, "scan_tree", lambda *_, **__: {"c": state})
    for owner, expected in ((7, []), (8, ["c: belongs to another user (7)"])):
        differences = compare_tree(tmp_path, [entry("c")], quick=True, owners=frozenset({owner}))
        assert [str(difference) for difference in differences] == expected


def test_files_not_in_the_list_and_empty_directories_are_removed(tmp_path: Path) -> None:
    make_tree(tmp_path)
    (tmp_path / "lib/also").mkdir()
    assert sorted(list_files(tmp_path)) == ["c", "lib/a", "lib/deep/er/b", "lib/link"]
    remove_others(tmp_path, ["lib/deep/er/b", "void/"])
    assert set(scan_tree(tmp_path)) == {
        "lib/",
        "lib/deep/",
        "lib/deep/er/",
        "lib/deep/er/b",
        "void/",
    }
    remove_others(tmp_path, [])
    assert list(tmp_path.iterdir()) == []


# -- records --------------------------------------------------------------------------------------


def test_record_of_a_tree_is_read_as_it_was_written(tmp_path: Path) -> None:
    entries = make_tree(tmp_path)
    tree = Tree("name", "1.0", "00", ("host",), tuple(entries))
    data = encode_record(tree)
    assert (parse_tree(data), tree.size_bytes) == (tree, 10 + 4 + 3)
    record = json.loads(data)
    assert record["files"][0] == {"path": "lib/a", "size": 10, "mode": 0o644, "sha256": SHA256}
    del record["files"][0]["mode"]  # the usual one
    read = parse_tree(json.dumps(record).encode())
    assert compare_tree(tmp_path, read.files) == []


@pytest.mark.parametrize(
    "change",
    [
        *(b"", b"{", b"[]", b'{"artifact": "a"}', b"\xff"),
        {"more": 1},
        {"files": [{"size": 1}]},
        {"files": [{"path": "../a"}]},
        {"schema_version": 2},
    ],
)
def test_malformed_tree_record_is_refused(change: bytes | dict[str, Any]) -> None:
    record = json.loads(encode_record(Tree("a", "1", "", (), ())))
    data = change if isinstance(change, bytes) else json.dumps({**record, **change}).encode()
    with pytest.raises(ValueError, match=r"."):
        parse_tree(data)


# -- what is looked at ----------------------------------------------------------------------------

GIT_DECIDES = {
    *(".git/config", ".git/hooks/pre-commit", ".git/hooks/refs/own", ".git/info/attributes"),
    *(".git/modules/sub/config", ".git/modules/sub/hooks/post-checkout", ".git/worktrees/config"),
}
GIT_OWNS = {
    *(".git/HEAD", ".git/ORIG_HEAD", ".git/FETCH_HEAD", ".git/index", ".git/shallow"),
    *(".git/packed-refs", ".git/objects/ab/cd", ".git/objects/info/packs", ".git/refs/heads/main"),
    *(".git/logs/HEAD", ".git/modules/sub/HEAD", ".git/modules/sub/index"),
    *(".git/modules/sub/objects/ab/cd", ".git/modules/sub/refs/heads/main"),
}


def test_scan_of_a_checkout_includes_files_that_control_git(tmp_path: Path) -> None:
    touch(tmp_path, "a", "deep/.git/index", "deep/b", *GIT_DECIDES, *GIT_OWNS)
    around = {"a", "deep/", "deep/.git/", "deep/.git/index", "deep/b"}
    assert set(scan_tree(tmp_path, checkout=True)) == GIT_DECIDES | around
    everything = set(scan_tree(tmp_path))
    assert everything >= GIT_DECIDES | GIT_OWNS | around | {".git/", ".git/refs/heads/"}


def test_scan_finds_alternates_and_links_in_git_directories(tmp_path: Path) -> None:
    touch(tmp_path, ".git/HEAD", ".git/modules/sub/HEAD", ".git/objects/info/alternates")
    alternates = tmp_path / ".git/modules/sub/objects/info/alternates"
    alternates.parent.mkdir(parents=True)
    (tmp_path / ".git/info").mkdir()
    for link, end in (
        (alternates, "nothing"),
        (tmp_path / ".git/hooks", "/elsewhere"),
        (tmp_path / ".git/info/away", tmp_path),
    ):
        link.symlink_to(end)
    assert set(scan_tree(tmp_path, checkout=True)) == {
        *(".git/hooks", ".git/info/away", ".git/objects/info/alternates"),
        ".git/modules/sub/objects/info/alternates",
    }
    for make_git in (Path.touch, lambda path: path.symlink_to("elsewhere")):
        other_tree = tmp_path / f"other{make_git is Path.touch}"
        (other_tree / "elsewhere").mkdir(parents=True)
        make_git(other_tree / ".git")  # is looked at as it is
        assert set(scan_tree(other_tree, checkout=True)) == {".git", "elsewhere/"}


def test_tree_entry_outside_the_tree_is_refused() -> None:
    for path in ("../a", "/a", "a/../../b"):
        with pytest.raises(ValueError, match="is outside its tree"):
            TreeEntry(path)
