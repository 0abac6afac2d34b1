"""How a directory differs from its tree: each way alone, and what is as it should be beside it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from provisioning.files import hash_file
from provisioning.store import tree as trees
from provisioning.store.tree import (
    DIRECTORY_MODE,
    FILE_TIME_S,
    Difference,
    Tree,
    TreeEntry,
    compare_tree,
    encode_record,
    find_parents,
    parse_tree,
    remove_others,
    scan_tree,
)

DATA = b"some bytes"
SHA256 = hashlib.sha256(DATA).hexdigest()


def entry(path: str, data: bytes = DATA, mode: int = 0o644) -> TreeEntry:
    return TreeEntry(path, len(data), mode, hashlib.sha256(data).hexdigest())


ENTRIES = [
    entry("lib/a"),
    entry("lib/deep/er/b", b"more", 0o755),
    TreeEntry("lib/link", link="deep/er/b"),
    TreeEntry("void/", mode=DIRECTORY_MODE),
    entry("c", b"top"),
]
CONTENT = {"lib/a": DATA, "lib/deep/er/b": b"more", "c": b"top"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory that is ENTRIES."""
    root = tmp_path / "root"
    for name, data in CONTENT.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if name.endswith("b") else 0o644)
        os.utime(path, (FILE_TIME_S, FILE_TIME_S))
    (root / "void").mkdir()
    for directory, _, _ in os.walk(root):
        Path(directory).chmod(DIRECTORY_MODE)
    (root / "lib/link").symlink_to("deep/er/b")
    return root


def compare(root: Path, *, quick: bool = False) -> list[str]:
    found = compare_tree(root, ENTRIES, quick=quick)
    assert compare_tree(root, reversed(ENTRIES), quick=quick) == found
    return [str(one) for one in found]


def test_a_directory_that_is_its_tree_differs_in_nothing(root: Path) -> None:
    assert compare(root) == []
    assert compare(root, quick=True) == []


def test_a_record_without_a_mode_is_of_a_file_with_the_usual_one(root: Path) -> None:
    row = {"path": "c", "size": 3, "sha256": hashlib.sha256(b"top").hexdigest()}
    head = {"artifact": "a", "version": "1", "source_sha256": "", "components": []}
    (read,) = parse_tree(json.dumps({**head, "files": [row]}).encode()).files
    others = [one for one in ENTRIES if one.path != "c"]
    assert compare_tree(root, [*others, read]) == []
    (root / "c").chmod(0o755)
    assert [str(one) for one in compare_tree(root, [*others, read])] == [
        "c: wrong mode (755, not 644)"
    ]


@pytest.mark.parametrize("quick", [False, True])
def test_each_thing_that_is_missing_is_named(root: Path, quick: bool) -> None:
    (root / "c").unlink()
    (root / "lib/link").unlink()
    (root / "void").rmdir()
    assert compare(root, quick=quick) == [
        "c: is missing",
        "lib/link: is missing",
        "void/: is missing",
    ]


def test_what_is_not_of_the_artifact_is_named_once(root: Path) -> None:
    for name in ("new/deep/file", "lib/deep/extra", "lib/aa", "lib/A"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "lib/empty/too").mkdir(parents=True)
    (root / "lib/other").symlink_to("a")
    assert compare(root) == [
        f"{name}: does not belong to the artifact"
        for name in (
            "lib/A",
            "lib/aa",
            "lib/deep/extra",
            "lib/empty/too/",
            "lib/other",
            "new/deep/file",
        )
    ]
    assert compare(root, quick=True) == compare(root)


@pytest.mark.parametrize(("mode", "shown"), [(0o777, "777"), (0o700, "700"), (0o1755, "1755")])
def test_a_directory_of_the_tree_has_its_mode(root: Path, mode: int, shown: str) -> None:
    (root / "lib/deep").chmod(mode)
    (root / "void").chmod(mode)
    assert compare(root) == [
        f"lib/deep/: wrong mode ({shown}, not 755)",
        f"void/: wrong mode ({shown}, not 755)",
    ]


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(("data", "size"), [(DATA + b"x", 11), (DATA[:-1], 9)])
def test_a_byte_more_or_less_is_a_wrong_size(
    root: Path, quick: bool, data: bytes, size: int
) -> None:
    (root / "lib/a").write_bytes(data)
    assert compare(root, quick=quick) == [f"lib/a: wrong size ({size}, not 10 bytes)"]


def test_bytes_of_the_same_size_are_hashed(root: Path) -> None:
    other = b"SOME bytes"
    (root / "lib/a").write_bytes(other)
    shown = hashlib.sha256(other).hexdigest()
    assert compare(root) == [f"lib/a: changed bytes (SHA-256 {shown}, not {SHA256})"]
    assert compare(root, quick=True) == ["lib/a: was touched"]
    os.utime(root / "lib/a", (FILE_TIME_S, FILE_TIME_S))
    assert compare(root, quick=True) == []


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_time_shows_in_the_quick_look_alone(root: Path, shift: int) -> None:
    os.utime(root / "c", (FILE_TIME_S, FILE_TIME_S + shift))
    assert compare(root) == []
    assert compare(root, quick=True) == ["c: was touched"]


@pytest.mark.parametrize("quick", [False, True])
def test_each_bit_of_a_mode_counts_unless_it_does_not_matter(root: Path, quick: bool) -> None:
    (root / "lib/a").chmod(0o645)
    assert compare(root, quick=quick) == ["lib/a: wrong mode (645, not 644)"]
    free = [entry("lib/a", mode=-1), *ENTRIES[1:]]
    assert compare_tree(root, free, quick=quick) == []
    (root / "lib/a").chmod(0)
    strict = [entry("lib/a", mode=0), *ENTRIES[1:]]
    assert compare_tree(root, strict, quick=True) == []  # only root could read it
    assert [str(one) for one in compare_tree(root, ENTRIES, quick=True)] == [
        "lib/a: wrong mode (0, not 644)"
    ]
    (root / "lib/a").chmod(0o644)
    assert [str(one) for one in compare_tree(root, strict, quick=quick)] == [
        "lib/a: wrong mode (644, not 0)"
    ]


def test_a_link_is_one_and_names_what_it_should(root: Path) -> None:
    (root / "lib/link").unlink()
    (root / "lib/link").symlink_to("deep/er/bb")
    assert compare(root) == ["lib/link: wrong link (deep/er/bb, not deep/er/b)"]
    (root / "lib/link").unlink()
    (root / "lib/link").write_bytes(b"more")
    assert compare(root) == ["lib/link: is not a symbolic link"]


def test_a_link_with_the_right_bytes_is_no_file(root: Path) -> None:
    (root / "lib/a").unlink()
    (root / "copy").write_bytes(DATA)
    (root / "lib/a").symlink_to("../copy")
    assert compare(root) == [
        "copy: does not belong to the artifact",
        "lib/a: is not a regular file",
    ]


def test_a_directory_with_the_name_of_a_file_is_not_it(root: Path) -> None:
    (root / "c").unlink()
    (root / "c").mkdir()
    assert compare(root) == ["c: is missing", "c/: does not belong to the artifact"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(errno.ENOENT, "gone"), "is missing"),
        (OSError(errno.EIO, "broken disk"), "cannot be read ([Errno 5] broken disk)"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    root: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, words: str
) -> None:
    real = hash_file

    def read(path: Path) -> str:
        if path.name == "a":
            raise error
        return real(path)

    monkeypatch.setattr(trees, "hash_file", read)
    assert compare(root) == [f"lib/a: {words}"]


def test_a_difference_in_words() -> None:
    assert str(Difference("a", "is missing")) == "a: is missing"
    assert str(Difference("a", "wrong mode", "7, not 6")) == "a: wrong mode (7, not 6)"


def test_every_directory_above_is_a_parent() -> None:
    assert find_parents(["a/b/c", "a/d", "top", "e/f/", "g/"]) == {"a/", "a/b/", "e/"}
    assert find_parents([]) == set()
    assert find_parents(["X/X/"]) == {"X/"}
    assert find_parents(["a/b/c/d/e", "a/b/x"]) == {"a/", "a/b/", "a/b/c/", "a/b/c/d/"}


def test_everything_else_is_removed_with_directories_that_are_then_empty(root: Path) -> None:
    (root / "lib/also").mkdir()
    remove_others(root, ["lib/deep/er/b", "void/"])
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == [
        *("lib", "lib/deep", "lib/deep/er", "lib/deep/er/b", "void")
    ]
    remove_others(root, [])
    assert not list(root.iterdir())


def test_a_tree_is_written_and_read(root: Path) -> None:
    tree = Tree("name", "1.0", "00", ("host",), tuple(ENTRIES))
    data = encode_record(tree)
    assert parse_tree(data) == tree
    assert data.endswith(b"}\n")
    assert b'\n "artifact": "name",\n' in data
    said = json.loads(data)
    assert said["schema_version"] == 1
    assert said["files"][2] == {"path": "lib/link", "link": "deep/er/b"}
    assert said["files"][0] == {
        "path": "lib/a",
        "size": 10,
        "mode": 0o644,
        "sha256": SHA256,
    }
    assert tree.size_bytes == 10 + 4 + 3


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"artifact": "a"}', b"\xff"])
def test_what_is_no_tree_is_refused_as_a_value(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_tree(data)
    with pytest.raises(ValueError, match=r"missing required field `version`"):
        parse_tree(b'{"artifact": "a"}')
    whole = json.loads(encode_record(Tree("a", "1", "", (), ())))
    for wrong in (
        {**whole, "more": 1},
        {**whole, "files": [{"size": 1}]},
        {**whole, "schema_version": 2},
    ):
        with pytest.raises(ValueError, match=r"."):
            parse_tree(json.dumps(wrong).encode())


def make_files(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


GIT_DECIDES = {
    ".git/config",
    ".git/hooks/pre-commit",
    ".git/hooks/refs/own",
    ".git/info/attributes",
    ".git/modules/sub/config",
    ".git/modules/sub/hooks/post-checkout",
    ".git/worktrees/config",
}
GIT_OWNS = {
    ".git/HEAD",
    ".git/ORIG_HEAD",
    ".git/FETCH_HEAD",
    ".git/index",
    ".git/shallow",
    ".git/packed-refs",
    ".git/objects/ab/cd",
    ".git/objects/info/packs",
    ".git/refs/heads/main",
    ".git/logs/HEAD",
    ".git/modules/sub/HEAD",
    ".git/modules/sub/index",
    ".git/modules/sub/objects/ab/cd",
    ".git/modules/sub/refs/heads/main",
}


def test_of_a_checkout_what_decides_what_git_does_is_seen(tmp_path: Path) -> None:
    make_files(tmp_path, "a", "deep/.git/index", "deep/b", *GIT_DECIDES, *GIT_OWNS)
    around = {"a", "deep/", "deep/.git/", "deep/.git/index", "deep/b"}
    assert set(scan_tree(tmp_path, checkout=True)) == GIT_DECIDES | around
    whole = set(scan_tree(tmp_path))
    assert whole >= GIT_DECIDES | GIT_OWNS | around | {".git/", ".git/refs/heads/"}


def test_a_directory_that_cannot_be_read_counts_as_empty_if_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files(tmp_path, "a/file", "b/file")
    real = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "a":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert set(scan_tree(tmp_path, closed=True)) == {"a/", "b/", "b/file"}
    with pytest.raises(PermissionError):
        scan_tree(tmp_path)


def test_a_directory_whose_path_is_too_long_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "LONGEST_BYTES", 4)
    make_files(tmp_path, "abc/file", "abcd/file", "ä/file", "äbc/file")
    assert set(scan_tree(tmp_path)) == {"abc/", "abc/file", "abcd/", "ä/", "ä/file", "äbc/"}


def test_alternates_and_links_in_git_directories_are_seen(tmp_path: Path) -> None:
    make_files(tmp_path, ".git/HEAD", ".git/modules/sub/HEAD", ".git/objects/info/alternates")
    alternates = tmp_path / ".git/modules/sub/objects/info/alternates"
    alternates.parent.mkdir(parents=True)
    alternates.symlink_to("nothing")
    (tmp_path / ".git/hooks").symlink_to("/elsewhere")
    (tmp_path / ".git/info").mkdir()
    (tmp_path / ".git/info/away").symlink_to(tmp_path)
    seen = scan_tree(tmp_path, checkout=True)
    assert set(seen) == {
        ".git/hooks",
        ".git/info/away",
        ".git/objects/info/alternates",
        ".git/modules/sub/objects/info/alternates",
    }
    assert all(state.st_size or not path.endswith("away") for path, state in seen.items())


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("elsewhere")])
def test_a_git_that_is_no_directory_is_seen_as_it_is(tmp_path: Path, make: object) -> None:
    (tmp_path / "elsewhere").mkdir()
    make(tmp_path / ".git")  # type: ignore[operator]
    assert set(scan_tree(tmp_path, checkout=True)) == {".git", "elsewhere/"}


def test_a_checkout_is_known_by_the_git_configuration_in_its_tree(tmp_path: Path) -> None:
    make_files(tmp_path, ".git/HEAD", ".git/index", ".git/config", "a")
    for directory, _, _ in os.walk(tmp_path):
        Path(directory).chmod(DIRECTORY_MODE)
    tree = [
        TreeEntry(name, 0, -1, hashlib.sha256(b"").hexdigest()) for name in ("a", ".git/config")
    ]
    assert compare_tree(tmp_path, tree) == []
    make_files(tmp_path, ".git/hooks/post-checkout")
    (tmp_path / ".git/hooks").chmod(DIRECTORY_MODE)
    assert [one.path for one in compare_tree(tmp_path, tree)] == [".git/hooks/post-checkout"]
    assert [one.path for one in compare_tree(tmp_path, tree[:1])] == [
        ".git/HEAD",
        ".git/config",
        ".git/hooks/post-checkout",
        ".git/index",
    ]


def test_a_file_of_another_user_is_a_difference_whatever_its_group(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = (each for each in ENTRIES if each.path == "c")
    state = os.stat_result((0o100644, 0, 0, 1, 7, 8, one.size, 0, FILE_TIME_S, 0))
    monkeypatch.setattr(trees, "scan_tree", lambda *_, **__: {"c": state})
    assert compare_tree(root, [one], owners=frozenset({7})) == []
    (found,) = compare_tree(root, [one], owners=frozenset({8}))
    assert (found.path, found.detail) == ("c", "7")
