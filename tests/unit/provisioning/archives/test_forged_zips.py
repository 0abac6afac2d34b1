"""ZIP files made by hand: each is wrong in one field, and right in all others."""

from __future__ import annotations

import stat
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from provisioning.archives import zipfiles
from provisioning.archives.layout import Member
from provisioning.archives.zipfiles import (
    FileSource,
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
        def known(value: int | None, usual: int) -> int:
            return usual if value is None else value

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
    count_on_disk: int | None = None
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
        "count_on_disk": len(entries),
        "count": len(entries),
        "size": len(directory),
        "offset": len(out),
    }
    declared = {name: getattr(end, name) for name in right if getattr(end, name) is not None}
    out += directory + after
    if end.is_64:
        wide = {"disk": 0, "first": 0, **right, **end.wide}
        at = len(out)
        out += struct.pack("<4sQHHIIQQQQ", end.signature, 44, 45, 45, *wide.values())
        out += struct.pack("<4sIQI", end.locator, 0, at if end.at is None else end.at, 1)
    numbers = {**right, **declared}.values()
    fixed = struct.pack("<4sHHHHIIH", b"PK\5\6", end.disk, end.first, *numbers, len(end.comment))
    return out + fixed + end.comment


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or why the archive is refused."""
    try:
        return call()
    except IntegrityError as error:
        return error.why if error.what == "a.zip is refused" else error.what


class Archive:
    """A source of bytes, with what was read of it."""

    name = "a.zip"

    def __init__(self, data: bytes) -> None:
        self.data, self.size, self.counts = data, len(data), list[int]()

    def read_at(self, offset: int, count: int) -> bytes:
        self.counts.append(count)
        return self.data[offset : offset + count]


def wide(*values: int, before: bytes = b"", tag: int = 1) -> bytes:
    return before + struct.pack(f"<HH{len(values)}Q", tag, 8 * len(values), *values)


GOOD = Entry()
PACKED = len(GOOD.bytes_in_file)
CRC = zlib.crc32(GOOD.data)
WHOLE = Member("a", 36, 0o644, "file", "", 0, PACKED, CRC, 8)
SECOND = 30 + 1 + PACKED
OTHER = b"\7\0\3\0xyz"
TWINS = b"PK\5\6 and more of what is no end record"
ALL_64 = End(is_64=True, count_on_disk=0xFFFF, count=0xFFFF, size=FULL, offset=FULL)


def good(**change: Any) -> Entry:
    return replace(GOOD, **change)


@pytest.mark.parametrize(
    ("data", "members"),
    [
        (forge(), []),
        (
            forge(
                GOOD,
                Entry(b"l", b"a", UNIX, 0, 0, stat.S_IFLNK | 0o777, extra=OTHER, comment=b"c"),
                Entry(b"d/", b"", method=99, mode=stat.S_IFDIR | 0o755),
            ),
            [
                WHOLE,
                Member("l", 1, 0o777, "symlink", "", SECOND, 1, zlib.crc32(b"a"), 0),
                Member("d/", 0, 0o755, "dir", "", SECOND + 32, 0, 0, 99),
            ],
        ),
        *(
            (forge(good(made_by=made_by, mode=mode)), [replace(WHOLE, kind=kind, mode=bits)])
            for made_by, mode, kind, bits in (
                (UNIX, stat.S_IFREG | 0o4755, "file", 0o4755),
                (MACOS, stat.S_IFREG | 0o755, "file", 0o755),
                (WINDOWS, stat.S_IFLNK | 0o755, "file", 0),
                (UNIX, stat.S_IFDIR | 0o755, "dir", 0o755),
                (UNIX, stat.S_IFIFO | 0o755, "device file", 0o755),
            )
        ),
        *(
            (forge(good(name=name.encode(), flags=flags)), [replace(WHOLE, name=name)])
            for name in ("é", "a")
            for flags in (0x800, 0, 8)
        ),
        *(  # the end is the last that its comment fits
            (forge(*entries, end=End(comment=comment)), [WHOLE] if entries else [])
            for entries in ((), (GOOD,))
            for comment in (TWINS, b"PK\5\6", b"c" * 0xFFFF, forge() + b"x")
        ),
        *(
            (forge(GOOD, end=end), [WHOLE])
            for end in (
                End(is_64=True, count=0xFFFF),
                End(is_64=True, offset=FULL),
                ALL_64,
                End(is_64=True, wide={"count": 5}),  # of which no field says that it counts
            )
        ),
        (forge(GOOD, before=b"padding"), [WHOLE]),
        (forge(good(offset=0), before=b"x" * 70_000), [WHOLE]),
        *(
            (forge(good(extra=extra, **dict.fromkeys(full.split(), FULL))), [WHOLE])
            for full, extra in (
                ("size", wide(36)),
                ("offset", wide(0)),
                ("size packed", wide(36, PACKED)),
                ("size packed offset", wide(36, PACKED, 0)),
                ("size", wide(36, before=OTHER)),
                ("size", wide(36, before=wide(9, tag=2)) + OTHER),
                ("", wide(37)),
            )
        ),
    ],
)
def test_a_zip_directory_is_read_as_its_members(data: bytes, members: list[Member]) -> None:
    assert outcome(lambda: read_directory(Archive(data))) == members


SPLIT = "it is split over several files"
MISSING = "it is not a ZIP file, or its end is missing"
CUT = "its central directory is cut short"
OUTSIDE = "its central directory is outside the file"
NO_64 = "its ZIP64 end record is missing"
AFTER = "its central directory has data after its last member"
NO_UTF8 = "has a name that is not UTF-8"
LONG, HUGE, BYTES = b"\xe9" * 201, (1 << 64) - 1, len(GOOD.central(0))


def ended(**change: Any) -> bytes:
    return forge(GOOD, end=End(**change))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", MISSING),
        (forge(GOOD)[:-1], MISSING),
        (forge(GOOD) + b"x", MISSING),
        (ended(comment=b"hello")[:-1], MISSING),
        *((ended(**change), SPLIT) for change in ({"disk": 1}, {"first": 1}, {"count_on_disk": 2})),
        *(
            (ended(is_64=True, count=0xFFFF, wide=change), SPLIT)
            for change in ({"disk": 1}, {"first": 1}, {"count_on_disk": 2})
        ),
        (ended(is_64=True, offset=FULL, signature=b"PK\6\5"), NO_64),
        (ended(is_64=True, offset=FULL, at=0), NO_64),
        (ended(is_64=True, offset=FULL, locator=b"PK\6\6"), OUTSIDE),
        (ended(is_64=True, offset=FULL, wide={"size": HUGE}), OUTSIDE),
        (ended(offset=1 << 20), OUTSIDE),
        (ended(offset=FULL), OUTSIDE),
        (ended(count_on_disk=0, count=0), AFTER),
        (forge(GOOD, after=b"x", end=End(size=BYTES + 1)), AFTER),
        (
            ended(count_on_disk=2, count=2),
            "its central directory has fewer members than it declares",
        ),
        (ended(size=BYTES - 1), CUT),
        *(
            (forge(good(extra=extra, **dict.fromkeys(full, FULL))), f"{CUT}: ")
            for full, extra in (
                (("size", "packed"), wide(36)),
                (("size",), wide()),
                (("offset",), wide()),
            )
        ),
        (forge(GOOD, good(name=b"b", offset=0)), "member 'b' overlaps another"),
        (forge(GOOD, good(name=b"b", offset=SECOND - 1)), "member 'b' overlaps another"),
        (
            forge(GOOD, good(name=b"b", offset=SECOND + 1)),
            "member 'b' extends into the central directory",
        ),
        (forge(good(packed=PACKED + 1)), "member 'a' extends into the central directory"),
        (forge(GOOD, good(name=b"\xe9a", flags=0x800)), f"member b'\\xe9a' {NO_UTF8}"),
        (forge(GOOD, good(name=b"\xe9a")), f"member b'\\xe9a' {NO_UTF8}"),
        (forge(GOOD, good(name=LONG)), f"member {LONG[:200]!r} {NO_UTF8}"),
        (forge(GOOD, good(flags=1)), "member 'a' is encrypted"),
        (forge(GOOD, good(method=1)), "member 'a' has compression method 1"),
        (
            forge(GOOD, good(size=1 << 31, packed=0)),
            "member 'a' is 0 bytes long, too few for 2147483648 bytes",
        ),
    ],
)
def test_a_malformed_zip_directory_is_refused_with_the_reason(data: bytes, why: str) -> None:
    reason = outcome(lambda: read_directory(Archive(data)))
    assert reason == why or (why.startswith(CUT) and reason.startswith(why))


@pytest.mark.parametrize(
    ("members", "spare", "fits"), [(2, 0, True), (1, 0, False), (2, -1, False)]
)
def test_a_zip_directory_has_limits_of_members_and_bytes(
    monkeypatch: pytest.MonkeyPatch, members: int, spare: int, fits: bool
) -> None:
    monkeypatch.setattr(zipfiles, "MAX_MEMBERS", members)
    monkeypatch.setattr(zipfiles, "MAX_DIRECTORY_BYTES", 2 * BYTES + spare)
    result = outcome(lambda: len(read_directory(Archive(forge(GOOD, good(name=b"b"))))))
    assert result == (2 if fits else f"its directory is too large: 2 members, {2 * BYTES} bytes")


STORED, LINKED = good(method=0), Entry(b"l", b"a", mode=stat.S_IFLNK | 0o777)
MEMBER = replace(WHOLE, offset=1)
FLAT = replace(MEMBER, compressed=36, method=0)


@pytest.mark.parametrize(
    ("entry", "declared", "expected"),
    [
        (good(local_extra=b"extra"), {}, GOOD.data),
        (good(body=b"\xff" * 40), {}, "member 'a' cannot be inflated: "),
        (good(local_name=b"ba"), {}, "member 'a' has a different name in its local header"),
        *(
            (entry, declared, why)
            for entry, packed in ((GOOD, PACKED - 1), (STORED, 100))
            for declared, why in (
                ({}, GOOD.data),
                ({"size": 35}, "member 'a' is longer than its declared size"),
                ({"size": 37}, "member 'a' is shorter than its declared size"),
                ({"crc": 0xAB}, f"member 'a' has CRC-32 {CRC:08x}, not 000000ab"),
                ({"offset": 0}, "member 'a' has no local header"),
                ({"offset": 10_000}, "member 'a' has no local header"),
                ({"name": "b"}, "member 'b' has a different name in its local header"),
                ({"compressed": packed}, "member 'a' is cut short"),
            )
        ),
    ],
)
def test_a_zip_member_that_contradicts_its_directory_is_refused(
    entry: Entry, declared: dict[str, Any], expected: bytes | str
) -> None:
    """The member starts at byte 1 of the archive, after a filler byte."""

    def inflate() -> bytes:
        member = replace(MEMBER if entry.method else FLAT, **declared)
        if entry.body is not None:
            member = replace(member, compressed=len(entry.body))
        return b"".join(inflate_member(Archive(b"!" + entry.local()), member))

    result = outcome(inflate)
    assert result == expected or (entry.body is not None and result.startswith(expected))


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (b"a" * 4096, "the target of link 'l' is 4096 bytes long; the limit is 4095"),
        (b"\xff", "the target of link 'l' is not UTF-8"),
    ],
)
def test_target_of_a_zip_link_has_a_length_limit_and_is_utf8(target: bytes, message: str) -> None:
    entry = replace(LINKED, data=target)
    crc, packed = zlib.crc32(target), len(entry.bytes_in_file)
    member = Member("l", len(target), kind="symlink", compressed=packed, crc=crc, method=8)
    assert outcome(lambda: read_link(Archive(entry.local()), member)) == message


def placed_in(entries: Sequence[Entry]) -> tuple[Archive, list[tuple[str, Member]]]:
    source = Archive(forge(*entries))
    return source, [(f"in/{member.name}", member) for member in read_directory(source)]


FOLDER = Entry(b"d/", b"", method=0)


def test_zip_members_are_written_and_links_returned(tmp_path: Path) -> None:
    program = replace(GOOD, name=b"b", mode=stat.S_IFREG | 0o750, data=b"x" * 50)
    source, placed = placed_in([GOOD, LINKED, FOLDER, program])
    root = tmp_path / "root"
    counts: list[int] = []
    entries, links = extract_members(source, root, placed, counts.append)
    assert {entry.path: (entry.size, entry.mode) for entry in entries} == {
        "in/a": (36, 0o444),
        "in/b": (50, 0o554),
        "in/d/": (0, 0o755),
    }
    assert links == {"in/l": "a"}
    assert (sum(counts), (root / "in/b").read_bytes()) == (86, b"x" * 50)
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
    source, placed = placed_in([entry])
    (written,), _ = extract_members(source, tmp_path, placed)
    assert written.mode == (mode if made_by == WINDOWS else 0o444)
    assert (tmp_path / written.path).read_bytes() == data


def test_a_layout_that_puts_two_zip_members_at_one_path_is_refused(tmp_path: Path) -> None:
    source, placed = placed_in([GOOD, LINKED])
    twice = [("y", placed[0][1]), *(("x", member) for _, member in placed)]
    with pytest.raises(IntegrityError, match=r"a\.zip is refused") as caught:
        extract_members(source, tmp_path / "root", twice)
    assert caught.value.why == "the manifest's layout puts two members at 'x'"
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("name", "is_told"), [("a.tar.bz2", True), ("a.7z", True), ("a.ZIP", False)]
)
def test_archive_of_unsupported_format_is_refused(tmp_path: Path, name: str, is_told: bool) -> None:
    (tmp_path / name).write_bytes(b"BZh9" * 20)
    source = FileSource(tmp_path / name)
    with pytest.raises(IntegrityError) as caught:
        read_directory(source)
    source.close()
    assert (".tar.gz" in caught.value.why) == is_told
