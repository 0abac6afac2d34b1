"""ZIP files made by hand: each is wrong in one field, and right in all others."""

from __future__ import annotations

import stat
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from provisioning.archives import zipfiles
from provisioning.archives.layout import Member
from provisioning.archives.zipfiles import (
    CHUNK_BYTES,
    OUT_BYTES,
    FileSource,
    extract_member,
    extract_members,
    inflate_member,
    read_directory,
    read_link,
)
from provisioning.errors import IntegrityError

FULL = 0xFFFFFFFF
UNIX, MACOS, WINDOWS = 3, 19, 0


@dataclass(frozen=True)
class Entry:
    """A member; what is None follows from the rest."""

    name: bytes = b"a"
    data: bytes = b"data" * 9
    made_by: int = UNIX
    flags: int = 0
    method: int = 8
    mode: int = stat.S_IFREG | 0o644
    crc: int | None = None
    packed: int | None = None
    size: int | None = None
    offset: int | None = None
    extra: bytes = b""
    comment: bytes = b""
    local_name: bytes | None = None
    local_extra: bytes = b""
    body: bytes | None = None

    @property
    def bytes_in_file(self) -> bytes:
        if self.body is not None:
            return self.body
        if self.method != 8:
            return self.data
        packer = zlib.compressobj(wbits=-15)
        return packer.compress(self.data) + packer.flush()

    def local(self) -> bytes:
        name = self.name if self.local_name is None else self.local_name
        head = struct.pack(
            "<4s5HIIIHH", b"PK\3\4", *[9] * 5, 9, 9, 9, len(name), len(self.local_extra)
        )
        return head + name + self.local_extra + self.bytes_in_file

    def central(self, offset: int) -> bytes:
        def known(value: int | None, other: int) -> int:
            return other if value is None else value

        head = struct.pack(
            "<4s6HIIIHHHHHII",
            b"PK\1\2",
            self.made_by << 8 | 20,
            20,
            self.flags,
            self.method,
            7,
            7,
            known(self.crc, zlib.crc32(self.data)),
            known(self.packed, len(self.bytes_in_file)),
            known(self.size, len(self.data)),
            len(self.name),
            len(self.extra),
            len(self.comment),
            7,
            7,
            self.mode << 16 | 7,
            known(self.offset, offset),
        )
        return head + self.name + self.extra + self.comment


@dataclass(frozen=True)
class End:
    """The end record, and that of ZIP64 with its locator where ``is_64``."""

    disk: int = 0
    first: int = 0
    here: int | None = None
    count: int | None = None
    size: int | None = None
    offset: int | None = None
    comment: bytes = b""
    is_64: bool = False
    wide: dict[str, int] = field(default_factory=dict)
    at: int | None = None
    signature: bytes = b"PK\6\6"
    locator: bytes = b"PK\6\7"


def forge(*entries: Entry, end: End = End(), before: bytes = b"", after: bytes = b"") -> bytes:
    """A ZIP file; ``before`` and ``after`` are bytes around its directory."""
    out, directory = b"", b""
    for entry in entries:
        directory += entry.central(len(out))
        out += entry.local()
    out += before
    right = {
        "here": len(entries),
        "count": len(entries),
        "size": len(directory),
        "offset": len(out),
    }
    said = {name: getattr(end, name) for name in right if getattr(end, name) is not None}
    out += directory + after
    if end.is_64:
        wide = {"disk": 0, "first": 0, **right, **end.wide}
        at = len(out)
        out += struct.pack("<4sQHHIIQQQQ", end.signature, 44, 45, 45, *wide.values())
        out += struct.pack("<4sIQI", end.locator, 0, at if end.at is None else end.at, 1)
    numbers = {**right, **said}.values()
    fixed = struct.pack("<4sHHHHIIH", b"PK\5\6", end.disk, end.first, *numbers, len(end.comment))
    return out + fixed + end.comment


@pytest.fixture
def directory_of(tmp_path: Path) -> Callable[[bytes], list[Member]]:
    """The members of an archive."""

    def read(data: bytes) -> list[Member]:
        path = tmp_path / "a.zip"
        path.write_bytes(data)
        source = FileSource(path)
        try:
            return read_directory(source)
        finally:
            source.close()

    return read


Read = Callable[[bytes], list[Member]]
GOOD = Entry()
PACKED = len(GOOD.bytes_in_file)
CRC = zlib.crc32(GOOD.data)
WHOLE = Member("a", 36, 0o644, "file", "", 0, PACKED, CRC, 8)
SECOND = 30 + 1 + PACKED
SPLIT = "it is split over several files"
MISSING = "it is not a ZIP file, or its end is missing"
LONG = b"\xe9" * 201
CUT = "its central directory is cut short"


def test_a_directory_is_read_as_values(directory_of: Read) -> None:
    link = Entry(b"l", b"a", method=0, mode=stat.S_IFLNK | 0o777, extra=b"\7\0\2\0xy", comment=b"c")
    folder = Entry(b"d/", b"", method=0, mode=stat.S_IFDIR | 0o755)
    assert directory_of(forge(GOOD, link, folder)) == [
        WHOLE,
        Member("l", 1, 0o777, "symlink", "", SECOND, 1, zlib.crc32(b"a"), 0),
        Member("d/", 0, 0o755, "dir", "", SECOND + 32, 0, 0, 0),
    ]
    assert directory_of(forge()) == []


@pytest.mark.parametrize(
    ("made_by", "mode", "kind", "bits"),
    [
        (UNIX, stat.S_IFREG | 0o4755, "file", 0o4755),
        (MACOS, stat.S_IFREG | 0o755, "file", 0o755),
        (MACOS, stat.S_IFLNK | 0o755, "symlink", 0o755),
        (WINDOWS, stat.S_IFLNK | 0o755, "file", 0),
        (UNIX, 0o755, "file", 0o755),
        (UNIX, stat.S_IFDIR | 0o755, "dir", 0o755),
        (UNIX, stat.S_IFIFO | 0o755, "device file", 0o755),
        (UNIX, stat.S_IFSOCK | 0o755, "device file", 0o755),
    ],
)
def test_the_kind_of_a_member(
    directory_of: Read, made_by: int, mode: int, kind: str, bits: int
) -> None:
    (member,) = directory_of(forge(replace(GOOD, made_by=made_by, mode=mode)))
    assert (member.kind, member.mode) == (kind, bits)


@pytest.mark.parametrize(
    ("raw", "flags", "name"),
    [
        ("é".encode(), 0x800, "é"),
        ("é".encode(), 0, "é"),
        (b"a", 0x800, "a"),
        (b"a", 0x8, "a"),
    ],
)
def test_a_name_is_utf8(directory_of: Read, raw: bytes, flags: int, name: str) -> None:
    assert directory_of(forge(replace(GOOD, name=raw, flags=flags)))[0].name == name


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (
            replace(GOOD, name=b"\xe9a", flags=0x800),
            "member b'\\xe9a' has a name that is not UTF-8",
        ),
        (replace(GOOD, name=b"\xe9a"), "member b'\\xe9a' has a name that is not UTF-8"),
        (
            replace(GOOD, name=LONG),
            f"member {LONG[:200]!r} has a name that is not UTF-8",
        ),
        (replace(GOOD, flags=1), "member 'a' is encrypted"),
        (replace(GOOD, flags=0x809), "member 'a' is encrypted"),
        (replace(GOOD, method=1), "member 'a' has compression method 1"),
        (replace(GOOD, method=12), "member 'a' has compression method 12"),
        (
            replace(GOOD, size=1 << 31, packed=0),
            "member 'a' is 0 bytes long, too few for 2147483648 bytes",
        ),
    ],
)
def test_a_member_that_is_refused(directory_of: Read, entry: Entry, why: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        directory_of(forge(GOOD, entry))
    assert (caught.value.what, caught.value.why) == ("a.zip is refused", why)


def test_only_files_have_a_method(directory_of: Read) -> None:
    folder = Entry(b"d/", b"", method=99)
    assert [member.kind for member in directory_of(forge(folder))] == ["dir"]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: forge(GOOD, end=End(disk=1)), SPLIT),
        (lambda: forge(GOOD, end=End(first=1)), SPLIT),
        (lambda: forge(GOOD, end=End(here=2)), SPLIT),
        (lambda: forge(GOOD, end=End(is_64=True, count=0xFFFF, wide={"disk": 1})), SPLIT),
        (lambda: forge(GOOD, end=End(is_64=True, count=0xFFFF, wide={"first": 1})), SPLIT),
        (lambda: forge(GOOD, end=End(is_64=True, count=0xFFFF, wide={"here": 2})), SPLIT),
        (
            lambda: forge(GOOD, end=End(is_64=True, offset=FULL, signature=b"PK\6\5")),
            "its ZIP64 end record is missing",
        ),
        *(
            (
                partial(forge, GOOD, end=End(is_64=True, offset=FULL, at=at)),
                "its ZIP64 end record is missing",
            )
            for at in (0, (1 << 64) - 1)
        ),
        *(
            (
                partial(forge, GOOD, end=End(is_64=True, offset=FULL, wide={name: (1 << 64) - 1})),
                "its central directory is outside the file",
            )
            for name in ("size", "offset")
        ),
        (
            lambda: forge(GOOD, end=End(here=0, count=0)),
            "its central directory has data after its last member",
        ),
        (
            lambda: forge(GOOD, end=End(here=2, count=2)),
            "its central directory has fewer members than it declares",
        ),
        (
            lambda: forge(GOOD, after=b"x", end=End(size=len(GOOD.central(0)) + 1)),
            "its central directory has data after its last member",
        ),
        (lambda: forge(GOOD, end=End(size=len(GOOD.central(0)) - 1)), CUT),
        (
            lambda: forge(GOOD, end=End(offset=1 << 20)),
            "its central directory is outside the file",
        ),
        (lambda: forge(GOOD, end=End(size=1 << 20)), "its central directory is outside the file"),
        (
            lambda: forge(GOOD, end=End(offset=FULL)),
            "its central directory is outside the file",
        ),
        (lambda: forge(GOOD)[:-1], MISSING),
        (lambda: forge(GOOD) + b"x", MISSING),
        (lambda: forge(GOOD, end=End(comment=b"hello"))[:-1], MISSING),
        (lambda: b"", MISSING),
        (lambda: forge(GOOD, replace(GOOD, name=b"b", offset=0)), "member 'b' overlaps another"),
        (
            lambda: forge(GOOD, replace(GOOD, name=b"b", offset=SECOND - 1)),
            "member 'b' overlaps another",
        ),
        (
            lambda: forge(GOOD, replace(GOOD, name=b"b", offset=SECOND + 1)),
            "member 'b' extends into the central directory",
        ),
        (
            lambda: forge(replace(GOOD, packed=PACKED + 1)),
            "member 'a' extends into the central directory",
        ),
    ],
)
def test_a_directory_that_is_refused(
    directory_of: Read, made: Callable[[], bytes], why: str
) -> None:
    with pytest.raises(IntegrityError) as caught:
        directory_of(made())
    assert caught.value.why.startswith(why)
    assert caught.value.what == "a.zip is refused"


def test_the_end_is_the_last_that_its_comment_fits(directory_of: Read) -> None:
    twins = forge(end=End(comment=b"PK\5\6 and more of what is no end record"))
    assert directory_of(twins) == []
    assert directory_of(forge(end=End(comment=b"PK\5\6"))) == []
    assert directory_of(forge(GOOD, end=End(comment=b"c" * 0xFFFF))) == [WHOLE]
    inner = forge()
    outer = forge(GOOD, end=End(comment=inner + b"x"))
    assert directory_of(outer) == [WHOLE]


def test_a_directory_before_the_tail_is_read(directory_of: Read) -> None:
    """One longer than all that an end record and its comment can be."""
    many = [Entry(f"{number:05}".encode(), b"x", method=0) for number in range(1500)]
    members = directory_of(forge(*many))
    assert [member.name for member in members] == [f"{number:05}" for number in range(1500)]


def test_a_directory_may_lie_apart_from_the_last_member(directory_of: Read) -> None:
    assert directory_of(forge(GOOD, before=b"padding", after=b"")) == [WHOLE]
    assert directory_of(forge(replace(GOOD, offset=0), before=b"x" * 70_000)) == [WHOLE]


@pytest.mark.parametrize(
    "end",
    [
        End(is_64=True, count=0xFFFF),
        End(is_64=True, size=FULL),
        End(is_64=True, offset=FULL),
        End(is_64=True, here=0xFFFF, count=0xFFFF, size=FULL, offset=FULL),
    ],
)
def test_an_end_of_zip64_counts_where_one_field_says_so(directory_of: Read, end: End) -> None:
    assert directory_of(forge(GOOD, end=end)) == [WHOLE]


def test_an_end_of_zip64_counts_only_where_a_field_says_so(directory_of: Read) -> None:
    assert directory_of(forge(GOOD, end=End(is_64=True, wide={"count": 5}))) == [WHOLE]
    with pytest.raises(IntegrityError) as caught:
        directory_of(forge(GOOD, end=End(is_64=True, offset=FULL, locator=b"PK\6\6")))
    assert caught.value.why == "its central directory is outside the file"


def test_limits_of_a_directory(directory_of: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(GOOD.central(0)) * 2
    data = forge(GOOD, replace(GOOD, name=b"b"))
    for members, limit, fits in ((2, size, True), (1, size, False), (2, size - 1, False)):
        monkeypatch.setattr(zipfiles, "MAX_MEMBERS", members)
        monkeypatch.setattr(zipfiles, "MAX_DIRECTORY_BYTES", limit)
        if fits:
            assert len(directory_of(data)) == 2
            continue
        with pytest.raises(IntegrityError) as caught:
            directory_of(data)
        assert caught.value.why == f"its directory is too large: 2 members, {size} bytes"


def wide(*values: int, before: bytes = b"", tag: int = 1) -> bytes:
    return before + struct.pack(f"<HH{len(values)}Q", tag, 8 * len(values), *values)


OTHER = b"\7\0\3\0xyz"


@pytest.mark.parametrize(
    ("saturated", "extra"),
    [
        ({"size": FULL}, wide(36)),
        ({"packed": FULL}, wide(PACKED)),
        ({"offset": FULL}, wide(0)),
        ({"size": FULL, "packed": FULL}, wide(36, PACKED)),
        ({"size": FULL, "offset": FULL}, wide(36, 0)),
        ({"packed": FULL, "offset": FULL}, wide(PACKED, 0)),
        ({"size": FULL, "packed": FULL, "offset": FULL}, wide(36, PACKED, 0)),
        ({"size": FULL}, wide(36, before=OTHER)),
        ({"size": FULL}, wide(36, before=wide(9, tag=2)) + OTHER),
        ({"size": FULL}, wide(36) + wide(37)),
        ({}, wide(37)),
        ({}, b"\1\0"),
        ({}, OTHER + b"\1\0\0"),
    ],
)
def test_fields_that_are_full_are_in_the_extra_field(
    directory_of: Read, saturated: dict[str, Any], extra: bytes
) -> None:
    assert directory_of(forge(replace(GOOD, extra=extra, **saturated))) == [WHOLE]


@pytest.mark.parametrize(
    ("saturated", "extra"),
    [
        (("size", "packed"), wide(36)),
        (("size",), wide()),
        (("size",), OTHER + wide()),
        (("offset",), wide()),
    ],
)
def test_an_extra_field_that_is_cut_short_is_refused(
    directory_of: Read, saturated: tuple[str, ...], extra: bytes
) -> None:
    entry = replace(GOOD, extra=extra, **dict.fromkeys(saturated, FULL))
    with pytest.raises(IntegrityError) as caught:
        directory_of(forge(entry))
    assert caught.value.why.startswith(f"{CUT}: ")


def test_bytes_are_read_at_their_place(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"0123456789")
    source = FileSource(tmp_path / "a.zip")
    assert (source.name, source.size) == ("a.zip", 10)
    assert [source.read_at(3, 4), source.read_at(8, 4), source.read_at(11, 1)] == [
        b"3456",
        b"89",
        b"",
    ]
    source.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        source.read_at(0, 1)


class Archive:
    """A source of bytes, with what was read of it."""

    name = "a.zip"

    def __init__(self, data: bytes) -> None:
        self.data, self.size, self.counts = data, len(data), list[int]()

    def read_at(self, offset: int, count: int) -> bytes:
        self.counts.append(count)
        return self.data[offset : offset + count]


def inflate(entry: Entry, **declared: Any) -> list[bytes]:
    """The pieces of a member that begins after a byte."""
    source = Archive(b"!" + entry.local())
    size, packed = len(entry.data), len(entry.bytes_in_file)
    member = Member(
        "a", size, offset=1, compressed=packed, crc=zlib.crc32(entry.data), method=entry.method
    )
    pieces: list[bytes] = []
    inflate_member(source, replace(member, **declared), pieces.append)
    return pieces


def test_a_member_is_inflated_after_its_local_header() -> None:
    assert b"".join(inflate(replace(GOOD, local_extra=b"extra"))) == GOOD.data
    assert inflate(replace(GOOD, method=0, local_extra=b"extra")) == [GOOD.data]
    assert inflate(replace(GOOD, data=b"")) == []
    assert inflate(replace(GOOD, data=b"", method=0)) == []


@pytest.mark.parametrize("method", [0, 8])
@pytest.mark.parametrize(
    ("declared", "why"),
    [
        ({"size": 35}, "member 'a' is longer than its declared size"),
        ({"size": 37}, "member 'a' is shorter than its declared size"),
        ({"crc": 0xAB}, f"member 'a' has CRC-32 {CRC:08x}, not 000000ab"),
        ({"offset": 0}, "member 'a' has no local header"),
        ({"offset": 10_000}, "member 'a' has no local header"),
        ({"name": "b"}, "member 'b' has a different name in its local header"),
        ({"name": "aa"}, "member 'aa' has a different name in its local header"),
        ({"compressed": 100}, "member 'a' is cut short"),
    ],
)
def test_a_member_that_is_not_what_its_directory_says(
    method: int, declared: dict[str, Any], why: str
) -> None:
    if method == 8 and "compressed" in declared:
        declared = {"compressed": PACKED - 1}
    with pytest.raises(IntegrityError) as caught:
        inflate(replace(GOOD, method=method), **declared)
    assert (caught.value.what, caught.value.why) == ("a.zip is refused", why)


def test_a_local_name_that_ends_alike_is_another() -> None:
    with pytest.raises(IntegrityError) as caught:
        inflate(replace(GOOD, local_name=b"ba"))
    assert caught.value.why == "member 'a' has a different name in its local header"


def test_what_does_not_inflate_is_refused() -> None:
    with pytest.raises(IntegrityError) as caught:
        inflate(replace(GOOD, body=b"\xff" * 40))
    assert caught.value.why.startswith("member 'a' cannot be inflated: ")
    assert caught.value.what == "a.zip is refused"


def test_a_header_that_is_cut_short_is_none() -> None:
    with pytest.raises(IntegrityError, match="is refused") as caught:
        inflate_member(Archive(GOOD.local()[:29]), Member("a", 1), lambda _: None)
    assert caught.value.why == "member 'a' has no local header"


def test_a_dense_member_is_inflated_in_pieces() -> None:
    data = bytes(3 * OUT_BYTES + 5)
    pieces = inflate(Entry(data=data))
    assert max(map(len, pieces)) <= OUT_BYTES
    assert b"".join(pieces) == data


def test_stored_bytes_are_read_in_pieces() -> None:
    data = bytes(range(256)) * (CHUNK_BYTES // 128) + b"end"
    pieces = inflate(Entry(data=data, method=0))
    assert [len(piece) for piece in pieces] == [CHUNK_BYTES, CHUNK_BYTES, 3]
    assert b"".join(pieces) == data


def placed_in(entries: Sequence[Entry], tmp_path: Path) -> tuple[Archive, list[tuple[str, Member]]]:
    data = forge(*entries)
    (tmp_path / "a.zip").write_bytes(data)
    source = FileSource(tmp_path / "a.zip")
    members = read_directory(source)
    source.close()
    return Archive(data), [(f"in/{member.name}", member) for member in members]


LINKED = Entry(b"l", b"a", mode=stat.S_IFLNK | 0o777)
FOLDER = Entry(b"d/", b"", method=0)


def test_members_are_written_and_links_are_told(tmp_path: Path) -> None:
    program = replace(GOOD, name=b"b", mode=stat.S_IFREG | 0o750, data=b"x" * 50)
    source, placed = placed_in([GOOD, LINKED, FOLDER, program], tmp_path)
    root = tmp_path / "root"
    told: list[int] = []
    entries, links = extract_members(source, root, placed, told.append)
    assert {entry.path: (entry.size, entry.mode) for entry in entries} == {
        "in/a": (36, 0o444),
        "in/b": (50, 0o554),
        "in/d/": (0, 0o755),
    }
    assert links == {"in/l": "a"}
    assert (sum(told), (root / "in/b").read_bytes()) == (86, b"x" * 50)
    assert (root / "in/d").is_dir()
    assert extract_members(source, tmp_path / "other", placed)[1] == links


@pytest.mark.parametrize(
    ("data", "mode"),
    [(b"#!/bin/sh", 0o555), (b"\x7fELF.", 0o555), (b"#", 0o444), (b"\x7fELA", 0o444), (b"", 0o444)],
)
@pytest.mark.parametrize("made_by", [WINDOWS, UNIX])
def test_programs_of_a_zip_without_modes_can_be_run(
    tmp_path: Path, data: bytes, mode: int, made_by: int
) -> None:
    entry = replace(GOOD, data=data, made_by=made_by)
    source, ((path, member),) = placed_in([entry], tmp_path)
    (tmp_path / "in").mkdir()
    written = extract_member(source, tmp_path, path, member)
    assert written.mode == (mode if made_by == WINDOWS else 0o444)
    assert (tmp_path / path).read_bytes() == data


def test_a_wrong_member_ends_the_others(tmp_path: Path) -> None:
    """One that has begun, and those that have not; a descriptor of no file stays open."""
    large = Entry(b"large", bytes(20 * OUT_BYTES))
    wrong = replace(GOOD, name=b"w", crc=1, data=bytes(2_000), method=0)
    others = [replace(GOOD, name=f"{number:03}".encode()) for number in range(100)]
    source, placed = placed_in([*others, wrong, large], tmp_path)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(IntegrityError) as caught:
        extract_members(source, tmp_path / "root", placed, lambda _: time.sleep(0.01))
    assert "member 'w' has CRC-32" in caught.value.why
    assert len(list((tmp_path / "root/in").iterdir())) < 100
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert not [one.name for one in threading.enumerate() if "ThreadPool" in one.name]


def test_the_largest_members_begin_first(tmp_path: Path) -> None:
    small, large = replace(GOOD, method=0), Entry(b"b", bytes(9_000), method=0)
    source, placed = placed_in([small, large], tmp_path)
    source.counts.clear()
    entries, _ = extract_members(source, tmp_path / "root", placed)
    assert [entry.path for entry in entries] == ["in/b", "in/a"]


def test_one_path_is_not_for_two_members(tmp_path: Path) -> None:
    source, placed = placed_in([GOOD, LINKED], tmp_path)
    twice = [("y", placed[0][1]), *(("x", member) for _, member in placed)]
    with pytest.raises(IntegrityError, match=r"a\.zip is refused") as caught:
        extract_members(source, tmp_path / "root", twice)
    assert caught.value.why == "the manifest's layout puts two members at 'x'"
    assert not (tmp_path / "root").exists()


def test_the_target_of_a_link_has_a_limit() -> None:
    def target(data: bytes) -> str:
        entry = replace(LINKED, data=data)
        crc, packed = zlib.crc32(data), len(entry.bytes_in_file)
        member = Member("l", len(data), kind="symlink", compressed=packed, crc=crc, method=8)
        return read_link(Archive(entry.local()), member)

    assert target(b"a" * 4095) == "a" * 4095
    for data, why in (
        (b"a" * 4096, "the target of link 'l' is 4096 bytes long; the limit is 4095"),
        (b"\xff", "the target of link 'l' is not UTF-8"),
    ):
        with pytest.raises(IntegrityError) as caught:
            target(data)
        assert (caught.value.what, caught.value.why) == ("a.zip is refused", why)


@pytest.mark.parametrize(
    ("name", "is_told"), [("a.tar.bz2", True), ("a.7z", True), ("a.ZIP", False)]
)
def test_what_is_neither_a_zip_nor_a_tarball_that_can_be_read(
    tmp_path: Path, name: str, is_told: bool
) -> None:
    (tmp_path / name).write_bytes(b"BZh9" * 20)
    source = FileSource(tmp_path / name)
    with pytest.raises(IntegrityError) as caught:
        read_directory(source)
    source.close()
    assert (".tar.gz" in caught.value.why) == is_told
