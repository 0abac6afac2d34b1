"""What an archive's members may be and where they go: each limit met, and passed by one."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioning.archives import layout
from provisioning.archives.layout import (
    MAX_DEPTH,
    Layout,
    Limits,
    LinkResolver,
    Member,
    check_members,
    check_name,
    place_members,
    write_file,
)
from provisioning.errors import IntegrityError
from provisioning.store.tree import TreeEntry

FREE = Limits()
TOO_LONG = "has a name that is too long"
LONG_LINK = "has a target of more than 4095 bytes"


def refusal(*members: Member, limits: Limits = FREE) -> str:
    """Why an archive of these members is refused, "" when it is not."""
    try:
        check_members("a.zip", members, limits)
    except IntegrityError as error:
        return error.why if error.what == "a.zip is refused" else error.what
    return ""


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        (Member("", 0), "has no name"),
        (Member("/a", 0), "is an absolute path"),
        (Member("C:a", 0), "is an absolute path"),
        (Member("a/../b", 0), "is outside the tree"),
        (Member("..", 0), "is outside the tree"),
        (Member("a\x1f", 0), "has a control character or a backslash in its name"),
        (Member("\0a", 0), "has a control character or a backslash in its name"),
        (Member("a\\b", 0), "has a control character or a backslash in its name"),
        (Member("a//b", 0), "has an empty or '.' part in its path"),
        (Member("a\udcff", 0), "has a name that is not UTF-8"),
        (Member("a", 0, kind="symlink", link="\ud800"), "has a name that is not UTF-8"),
        (Member("d/" * MAX_DEPTH + "a", 0), "is more than 100 directories deep"),
        (Member("é" * 128, 0), TOO_LONG),
        (Member(f"{'é' * 99}n/" * 10 + "n", 0), TOO_LONG),
        (Member("a", 0, kind="device file"), "is a device file"),
        (Member("a", 0, kind="symlink", link="./" * 2047 + "ab"), LONG_LINK),
        (Member("a", 0, kind="symlink", link="é" * 2048), LONG_LINK),
    ],
)
def test_a_member_with_an_unsafe_name_is_refused(member: Member, problem: str) -> None:
    assert refusal(member) == f"member {member.name[:200]!r} {problem}"
    with pytest.raises(IntegrityError) as caught:
        check_name("a.zip", member)
    assert caught.value.what == "a.zip is refused"
    assert caught.value.fix.endswith("; download the archive from its vendor again")


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ((Member("a", 0), Member("b", 0), Member("a", 0)), "two members are named 'a'"),
        ((Member("a/", 0, kind="dir"), Member("a", 0)), "two members are named 'a'"),
        ((Member("a/", 0, kind="dir"), Member("a/", 0, kind="dir")), ""),
        ((Member("x/A", 0), Member("x/a", 0)), "'x/A' and 'x/a' differ only in case"),
        ((Member("ß", 0), Member("SS", 0)), "'ß' and 'SS' differ only in case"),
        ((Member("A/", 0, kind="dir"), Member("a/b", 0)), ""),
        ((Member("A", 0), Member("a/b", 0)), "'A' and the directory 'a' differ only in case"),
        (
            (Member("a/b", 0), Member("A", 0, kind="symlink", link="a")),
            "'A' and the directory 'a' differ only in case",
        ),
        ((Member("a", 0), Member("a/b/c", 0)), "'a' is a file but contains 'a/b/c'"),
        ((Member("a", 0), Member("ab/c", 0), Member("a.d", 0)), ""),
        (
            (Member("l", 0, kind="symlink", link="b"), Member("l/c", 0)),
            "'l' is a symlink but contains 'l/c'",
        ),
        (
            (Member("l", 0, kind="symlink", link="../b"),),
            "link 'l' points outside the tree or into a loop: '../b'",
        ),
        ((Member("l", 0, kind="symlink"), Member("a/m", 0, kind="symlink", link="../b")), ""),
        ((Member("a", 0, link="../b"), Member("b/", 0, kind="dir", link="/")), ""),
        ((Member("a", 0), Member("h", 0, kind="hardlink", link="a")), ""),
        *(
            (
                (target, Member("h", 0, kind="hardlink", link="a")),
                "hard link 'h' points to 'a', which is not a file in it",
            )
            for target in (
                Member("ab", 0),
                Member("a/", 0, kind="dir"),
                Member("a", 0, kind="symlink", link="ab"),
            )
        ),
    ],
)
def test_members_whose_names_clash_are_refused(members: tuple[Member, ...], why: str) -> None:
    assert refusal(*members) == why


DENSE = 1100 * 7 + (1 << 20)
THREE = [Member(name, 40) for name in "abc"]
LINKS = [Member("a", 40), *(Member(name, 0, kind="hardlink", link="a") for name in "bc")]


@pytest.mark.parametrize(
    ("members", "most", "why"),
    [
        (THREE, 120, ""),
        ([*THREE, Member("d", 1)], 120, "it unpacks to more than 120 bytes"),
        ([*THREE, Member("d", 1)], 0, ""),
        (LINKS, 120, ""),  # a hard link has the size of its file
        (LINKS, 119, "it unpacks to more than 119 bytes"),
        ([Member("a", DENSE, compressed=7)], 0, ""),
        (
            [Member("a", DENSE + 1, compressed=7)],
            0,
            "member 'a' has a compression ratio above 1100:1",
        ),
        ([Member("a", DENSE + 1)], 0, ""),
        ([Member("abcd", 1), Member("bcde", 0, kind="symlink", link="abcd")], 0, ""),
        (
            [Member("abcde", 1), Member("bcde", 0, kind="symlink", link="abcd")],
            0,
            "it has more than 12 characters in names",
        ),
    ],
)
def test_the_total_size_and_name_length_of_members_are_limited(
    monkeypatch: pytest.MonkeyPatch, members: list[Member], most: int, why: str
) -> None:
    monkeypatch.setattr(layout, "MAX_NAMES", 12)
    assert refusal(*members, limits=Limits(unpacked_bytes=most)) == why


@pytest.mark.parametrize(
    ("name", "links", "end"),
    [
        ("a/b", {}, "a/b"),
        ("..", {}, None),
        ("a/../../b", {}, None),
        ("l", {"l": "a/b"}, "a/b"),
        ("x/l", {"x/l": "../.."}, None),
        ("l/c", {"l": "m", "m": "n/o"}, "n/o/c"),
        ("x/l/c", {"x/l": "m/..", "x/m": "y"}, "x/c"),
        ("l", {"l": "/a"}, None),
        ("l", {"l": "m", "m": "l"}, None),
        ("lm", {"l": "x"}, "lm"),
    ],
)
def test_a_path_is_resolved_through_the_links_of_an_archive(
    name: str, links: dict[str, str], end: str | None
) -> None:
    assert LinkResolver(links).resolve(name) == end


def write(root: Path, *pieces: bytes, size: int, mode: int = 0o444) -> TreeEntry:
    return write_file(root, "a.so", "a.zip", size, pieces, mode=mode)


def test_an_existing_file_or_link_is_never_written_to(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"mine")
    (tmp_path / "a.so").symlink_to("other")
    for path in (tmp_path / "a.so", tmp_path / "none"):
        with pytest.raises(FileExistsError):
            write(tmp_path, b"ab", size=2)
        (tmp_path / "a.so").unlink()
        (tmp_path / "a.so").symlink_to(path)
    assert (tmp_path / "other").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("size", "why"),
    [
        (1, "'a.so' is longer than the declared 1 bytes"),
        (3, "'a.so' is 2 bytes long, not the declared 3"),
    ],
)
def test_a_file_of_another_size_than_declared_is_refused(
    tmp_path: Path, size: int, why: str
) -> None:
    with pytest.raises(IntegrityError, match=r"a\.zip is refused") as caught:
        write(tmp_path, b"a", b"b", size=size)
    assert caught.value.why == why


RULES = [
    ("pkg/lib/*.so", "lib/"),
    ("pkg/README.?xt", "docs/readme.txt"),
    ("pkg/inc/**", "include/"),
    ("pkg/bin/**/*.py", ""),
    ("pkg/a.b", "same/"),
]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("pkg/lib/a.so", "lib/a.so"),
        ("pkg/lib/sub/a.so", ""),
        ("my/pkg/lib/a.so", ""),
        ("pkg/README.txt", "docs/readme.txt"),
        ("pkg/README./xt", ""),
        ("pkg/inc/QNN/a.h", "include/QNN/a.h"),
        ("pkg/bin/x/y.py", "x/y.py"),
        ("pkg/a.b", "same/a.b"),
        ("other", ""),
    ],
)
def test_a_layout_maps_each_member_to_its_path(name: str, path: str) -> None:
    assert Layout(RULES).place(name) == path


def test_a_layout_without_rules_takes_all_members_and_components_restrict_it() -> None:
    assert Layout().place("a/b") == "a/b"
    chosen = Layout(RULES, ["lib/a*", "docs/**"])
    assert chosen.place("pkg/lib/a.so") == "lib/a.so"
    assert chosen.place("pkg/lib/b.so") == ""
    assert chosen.place("pkg/README.txt") == "docs/readme.txt"
    assert chosen.place("other") == ""
    assert [chosen.wants(path) for path in ("lib/a.so", "lib/b.so", "my/lib/a.so")] == [
        True,
        False,
        False,
    ]
    assert Layout(RULES).wants("anything")
    named = Layout([], ["lib/a.so"])
    assert [named.place("lib/a.so"), named.place("lib/a.so.1")] == ["lib/a.so", ""]
    assert not named.wants("lib/a.so.1")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.so", ("a.so", ".so"), ("a/b.so", "a.so.1", "a.sO")),
        ("**.so", ("a.so", "a/b/c.so"), ("a.so/b",)),
        ("**a*b", ("a/ab", "ab/a/b/ab", "a.b"), ("a/b", "ab/", "a")),
        ("a*/**/b*c", ("a/x/bc", "ax/b/y/bxc"), ("a/bc", "a/x/b/c")),
        ("a[b]+.\\*", ("a[b]+.\\c",), ("ab.\\c", "a[b]+x\\c")),
    ],
)
def test_a_component_glob_matches_only_its_paths(
    pattern: str, yes: tuple[str, ...], no: tuple[str, ...]
) -> None:
    layout = Layout([], [pattern])
    assert [name for name in (*yes, *no) if layout.wants(name)] == list(yes)


@pytest.mark.parametrize("wildcard", ["*", "**", "**?*", "**a*"])
def test_a_glob_of_many_wildcards_is_matched_in_bounded_time(wildcard: str) -> None:
    """Trying every way to match would take hours."""
    layout = Layout([], [f"{wildcard}a" * 30 + "b"])
    assert not layout.wants("a" * 250)
    assert layout.wants("a" * 250 + "b")


def test_only_empty_directories_of_an_archive_are_members_of_the_layout() -> None:
    members = [
        Member("pkg/", 0, kind="dir"),
        Member("pkg/lib/", 0, kind="dir"),
        Member("pkg/lib/a.so", 1),
        Member("pkg/inc/empty/", 0, kind="dir"),
        Member("pkg/binX/", 0, kind="dir"),
        Member("pkg/lib/b.txt", 1),
        Member("pkg/inc/l", 0, kind="symlink", link="empty"),
    ]
    assert list(place_members(members, Layout(RULES))) == [
        ("lib/a.so", members[2]),
        ("include/empty/", members[3]),
        ("include/l", members[6]),
    ]
    assert [path for path, member in place_members(members, Layout()) if member.kind == "dir"] == [
        "pkg/inc/empty/",
        "pkg/binX/",
    ]
