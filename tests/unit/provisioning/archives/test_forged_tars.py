"""Tar streams made by hand: each is wrong in one field, and right in all others."""

from __future__ import annotations

import gzip
import io
import lzma
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from provisioning.archives import layout, tarballs
from provisioning.archives.layout import Layout, Limits, Member
from provisioning.archives.tarballs import (
    BLOCK_BYTES,
    MAX_HEADER_BYTES,
    TarReader,
    XzStream,
    extract_tar,
    is_tarball,
    read_members,
)
from provisioning.errors import IntegrityError

END = bytes(2 * BLOCK_BYTES)
ANY = Limits()


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK_BYTES)


def header(
    name: bytes = b"a",
    size: int | bytes = 0,
    kind: bytes = b"0",
    link: bytes = b"",
    mode: bytes = b"0000644\0",
    magic: bytes = b"ustar\00000",
    prefix: bytes = b"",
    pad: bytes = bytes(12),
    checksum: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """One block; ``size`` may be the field as it stands there."""
    field = size if isinstance(size, bytes) else b"%011o\0" % size
    parts = [name.ljust(100, b"\0"), mode, bytes(16), field, bytes(12), b" " * 8, kind]
    parts += [link.ljust(100, b"\0"), magic, bytes(64 + 16), prefix.ljust(155, b"\0"), pad]
    block = b"".join(parts)
    assert len(block) == BLOCK_BYTES
    stated = (checksum or (lambda blank: b"%06o\0 " % sum(blank)))(block)
    return block[:148] + stated + block[156:]


def file(name: bytes = b"a", data: bytes = b"data", **change: Any) -> bytes:
    return header(name, len(data), **change) + padded(data)


def extra(kind: bytes, data: bytes) -> bytes:
    return header(b"x", len(data), kind) + padded(data)


def record(key: bytes, value: bytes) -> bytes:
    """A pax record, which begins with its own length."""
    tail = b" %s=%s\n" % (key, value)
    length = len(tail) + 1
    while length != len(b"%d" % length) + len(tail):
        length += 1
    return b"%d" % length + tail


class Trickle:
    """A stream that gives a few bytes at a time, as a socket may."""

    def __init__(self, data: bytes) -> None:
        self.inner = io.BytesIO(data)

    def read(self, count: int, /) -> bytes:
        return self.inner.read(min(count, 100))


def read(data: bytes) -> list[tuple[Member, bytes]]:
    """The members and their bytes, which come the same in any pieces."""

    def pairs(stream: tarballs.ByteStream) -> Iterator[tuple[Member, bytes]]:
        reader = TarReader(stream, "a.tar")
        for member in reader.members():
            yield member, b"".join(reader.data())

    members = list(pairs(io.BytesIO(data)))
    assert list(pairs(Trickle(data))) == members
    return members


def names(data: bytes) -> list[str]:
    return [member.name for member, _ in read(data)]


def refusal(data: bytes) -> str:
    with pytest.raises(IntegrityError) as caught:
        read(data)
    assert caught.value.what == "a.tar is refused"
    return caught.value.why


@pytest.mark.parametrize(
    ("block", "member"),
    [
        (header(kind=b"0"), Member("a", 0)),
        (header(kind=b"1", link=b"./b"), Member("a", 0, kind="hardlink", link="b")),
        (header(kind=b"2", link=b"./b"), Member("a", 0, kind="symlink", link="./b")),
        (header(kind=b"5"), Member("a/", 0, kind="dir")),
        (header(b"a/", kind=b"0"), Member("a/", 0, kind="dir")),
        (header(kind=b"S"), Member("a", 0, kind="sparse file")),
        (header(kind=b"3"), Member("a", 0, kind="device file")),
        (header(b"./a"), Member("a", 0)),
        (header(b"a", prefix=b"p/q"), Member("p/q/a", 0)),
        (header(kind=b"2", link=b"l" * 100), Member("a", 0, kind="symlink", link="l" * 100)),
        (header(b"\xff"), Member("\udcff", 0)),
        (
            header(b"\xff" * 100, kind=b"2", link=b"\xff" * 100),
            Member("\udcff" * 100, 0, kind="symlink", link="\udcff" * 100),
        ),
        (header(mode=b"0004755\0"), Member("a", 0, 0o755)),
    ],
)
def test_a_tar_header_is_read_as_its_member(block: bytes, member: Member) -> None:
    assert read(block + END) == [(member, b"")]


@pytest.mark.parametrize("name", [b".", b"./", b""])
def test_the_root_directory_of_a_tarball_is_skipped(name: bytes) -> None:
    assert names(header(name, kind=b"5") + file(b"b") + END) == ["b"]


@pytest.mark.parametrize(
    ("size", "count"),
    [
        (b"\x80" + (700).to_bytes(11, "big"), 700),
        (b"00000001274\0", 700),
        (b"1274\0\0\0\0\0\0\0\0", 700),
    ],
)
def test_the_size_in_a_tar_header_is_octal_or_base_256(size: bytes, count: int) -> None:
    data = header(size=size) + padded(b"x" * count)
    assert [(member.size, len(content)) for member, content in read(data + file(b"b") + END)] == [
        (count, count),
        (4, 4),
    ]


def signed(blank: bytes) -> bytes:
    """As tar programs of some machines have added bytes."""
    return b"%06o\0 " % sum(byte - 256 if byte > 127 else byte for byte in blank)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        (
            header(size=b"9" * 11 + b"\0") + END,
            "a header has b'99999999999\\x00' instead of a number",
        ),
        (header(size=b"\xff" * 12) + END, "a header has b'\\xff"),
        *(
            (header(size=size) + END, "a header has")
            for size in (*(b"\x80\1" + bytes(10), b"\x80" + b"\xff" * 11, b"\xff" * 12),)
        ),
        *(
            (header(size=b"-0000001000\0", kind=kind) + file() + END, "a header has")
            for kind in (b"x", b"g", b"L", b"K")
        ),
        (
            header(checksum=lambda blank: b"%06o\0 " % (sum(blank) + 1)),
            "a header's checksum is wrong",
        ),
        (header(checksum=signed)[:-1] + b"\xfe", "a header's checksum is wrong"),
        (bytes(BLOCK_BYTES) + file(), "its end is marked by one empty header instead of two"),
        (b"", "it is cut short"),
        (file(), "it is cut short"),
        (file() + END + b"X", "there is data after its end"),
        (extra(b"L", b"long\0") + END, "it ends after an extended header"),
        (extra(b"g", record(b"path", b"b")) + file() + END, "a global pax header sets path"),
        (
            extra(b"g", record(b"linkpath", b"b")) + file() + END,
            "a global pax header sets linkpath",
        ),
        *(
            (extra(b"x", data) + file() + END, "a pax header is malformed")
            for data in (
                b"x",
                b"+9 path=b\n",
                b"0000000000021 path=b\n",
                b"0 path=b\n",
                record(b"path", b"b") + b"\0",
            )
        ),
        *(
            (
                extra(b"x", record(b"size", size)) + file() + END,
                "the size field of a pax header is not a number",
            )
            for size in (b"", b"-1", b"+1", b"1.0", b"\xd9\xa3", b"1" * 19)
        ),
    ],
)
def test_a_malformed_tar_stream_is_refused_with_the_reason(stream: bytes, why: str) -> None:
    assert refusal(stream).startswith(why)


LONG = b"d/" * 80 + b"XnameX"


def test_gnu_and_pax_headers_apply_only_to_the_next_member() -> None:
    stream = extra(b"L", LONG + b"\0") + file(prefix=b"p")
    stream += extra(b"K", b"end/" * 40 + b"X\0") + header(b"l", kind=b"2", link=b"x")
    stream += extra(b"x", record(b"path", b"pax/name") + record(b"mtime", b"1.5")) + file(
        prefix=b"p"
    )
    stream += extra(b"x", record(b"path", b"a b=c")) + file()
    stream += extra(b"x", record(b"linkpath", b"./t")) + header(b"h", kind=b"1")
    stream += extra(b"x", record(b"size", b"700")) + header(b"s", 3) + padded(b"y" * 700)
    stream += (
        extra(b"g", record(b"comment", b"c")) + file(b"e") + header(b"k", kind=b"2", link=b"m")
    )
    members = read(stream + END)
    assert [(member.name, member.size, member.link) for member, _ in members] == [
        (LONG.decode(), 4, ""),
        ("l", 0, "end/" * 40 + "X"),
        ("pax/name", 4, ""),
        ("a b=c", 4, ""),
        ("h", 0, "t"),
        ("s", 700, ""),
        ("e", 4, ""),
        ("k", 0, "m"),
    ]
    assert members[5][1] == b"y" * 700


def test_a_pax_header_of_sparse_data_makes_its_member_a_sparse_file() -> None:
    sparse = extra(b"x", record(b"GNU.sparse.major", b"1")) + header(b"a")
    plain = extra(b"x", record(b"GNU.sparsely", b"1")) + header(b"b")
    assert [member.kind for member, _ in read(sparse + plain + END)] == ["sparse file", "file"]


def test_the_extension_headers_of_a_member_have_a_common_size_limit() -> None:
    half = extra(b"L", b"n" * (MAX_HEADER_BYTES // 2 - 1))
    assert len(names(half + half + file() + END)[0]) == MAX_HEADER_BYTES // 2 - 1
    link_header = extra(b"K", b"n" * (MAX_HEADER_BYTES // 2))
    assert (
        refusal(half + link_header + file() + END) == "it has a header of more than 1048576 bytes"
    )
    assert len(names(half + file() + link_header + file() + END)) == 2


def compress(*parts: bytes) -> bytes:
    """A stream of xz for each part, padding of zeros between."""
    return b"\0\0\0\0".join(map(lzma.compress, parts))


def test_xz_of_several_streams_is_read_to_its_end() -> None:
    data = bytes(range(256)) * 4000
    stream = XzStream(io.BytesIO(compress(data[:500_000], b"", data[500_000:])))
    pieces = []
    while piece := stream.read(70_000):
        assert len(piece) <= 70_000
        pieces.append(piece)
    assert b"".join(pieces) == data
    assert stream.read(1) == b""
    assert XzStream(io.BytesIO(compress(b"x"))).read(0) == b""


PACK: dict[str, Callable[[bytes], bytes]] = {
    "a.tar": bytes,
    "a.tar.gz": gzip.compress,
    "a.tgz": gzip.compress,
    "a.tar.xz": lzma.compress,
    "a.txz": lzma.compress,
}


def extract(
    tmp_path: Path,
    data: bytes,
    *rules: tuple[str, str],
    limits: Limits = ANY,
    read_all: bool = True,
    name: str = "a.tar",
) -> tuple[dict[str, str], dict[str, str]]:
    """The text of each entry below ``root``, and the links."""
    (tmp_path / name).write_bytes(PACK[name](data))
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    entries, links = extract_tar(tmp_path / name, root, Layout(rules), limits, read_all=read_all)
    for entry in entries:
        state = (root / entry.path).stat()
        assert entry.mode == state.st_mode & 0o777
        assert entry.path.endswith("/") or entry.size == state.st_size
    return {
        entry.path: "" if entry.path.endswith("/") else (root / entry.path).read_text()
        for entry in entries
    }, links


def why_not(tmp_path: Path, data: bytes, *rules: tuple[str, str], **ways: object) -> str:
    with pytest.raises(IntegrityError) as caught:
        extract(tmp_path, data, *rules, **ways)  # type: ignore[arg-type]
    assert caught.value.what == "a.tar is refused"
    return caught.value.why


@pytest.mark.parametrize("name", PACK)
def test_the_suffix_of_a_tarball_chooses_its_decompressor(tmp_path: Path, name: str) -> None:
    data = file(b"d/a") + header(b"d/l", kind=b"2", link=b"a") + header(b"e", kind=b"5") + END
    assert extract(tmp_path, data, name=name) == ({"d/a": "data", "e/": ""}, {"d/l": "a"})
    assert is_tarball(name)


def test_an_error_of_the_disk_is_not_blamed_on_the_archive(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        extract_tar(tmp_path / "none.tar", tmp_path, Layout(), ANY)
    (tmp_path / "a.tar").write_bytes(file(b"d/a") + END)
    with pytest.raises(OSError, match="proc"):
        extract_tar(tmp_path / "a.tar", Path("/proc/none"), Layout(), ANY)


def test_two_tar_members_at_one_path_are_refused(tmp_path: Path) -> None:
    rules = (("a/*", "lib/"), ("b/*", "lib/"))
    for second in (
        file(b"b/x"),
        header(b"b/x", kind=b"2", link=b"y"),
        header(b"b/x", kind=b"1", link=b"a/x"),
    ):
        assert (
            why_not(tmp_path, file(b"a/x") + second + END, *rules)
            == "two members would be written to 'lib/x'"
        )
        (tmp_path / "root/lib/x").unlink()
    link = header(b"a/x", kind=b"2", link=b"y")
    assert (
        why_not(tmp_path, link + file(b"b/x") + END, *rules)
        == "two members would be written to 'lib/x'"
    )
    assert list((tmp_path / "root/lib").iterdir()) == []


def test_a_member_below_a_file_is_refused(tmp_path: Path) -> None:
    assert why_not(tmp_path, file(b"a") + file(b"a/b") + END) == "member 'a/b' clashes with another"


def test_the_total_is_compared_before_a_file_is_written(tmp_path: Path) -> None:
    data = file(b"a", b"1234") + file(b"b", b"5678") + file(b"c", b"9") + END
    limits = Limits(unpacked_bytes=9)
    assert sorted(extract(tmp_path, data, limits=limits)[0]) == ["a", "b", "c"]
    for name in "abc":
        (tmp_path / "root" / name).unlink()
    limits = Limits(unpacked_bytes=8)
    assert why_not(tmp_path, data, limits=limits) == "it unpacks to more than 8 bytes"
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == ["a", "b"]


def test_members_outside_the_layout_count_and_are_checked_too(tmp_path: Path) -> None:
    data = file(b"in/a", b"1234") + file(b"out/b", b"56789") + END
    rules = ("in/*", "")
    limits = Limits(unpacked_bytes=8)
    assert why_not(tmp_path, data, rules, limits=limits) == "it unpacks to more than 8 bytes"
    (tmp_path / "root/a").unlink()
    hostile = file(b"in/a") + file(b"out/../../b") + END
    assert why_not(tmp_path, hostile, rules) == "member 'out/../../b' is outside the tree"


SINGLE = (("p/a", "lib/"), ("p/b", "lib/"))


def test_verified_tarball_is_read_only_until_all_wanted_files_are_unpacked(tmp_path: Path) -> None:
    """Only if its hash was compared; otherwise the whole tarball is checked."""
    data = file(b"p/a") + file(b"q") + file(b"p/b") + b"cut"
    assert extract(tmp_path, data, *SINGLE, read_all=False)[0] == {"lib/a": "data", "lib/b": "data"}
    for name in "ab":
        (tmp_path / "root/lib" / name).unlink()
    assert why_not(tmp_path, data, *SINGLE) == "it is cut short"
    (tmp_path / "root/lib/a").unlink()
    (tmp_path / "root/lib/b").unlink()
    one_is_missing = file(b"p/a") + file(b"q") + b"cut"
    assert why_not(tmp_path, one_is_missing, *SINGLE, read_all=False) == "it is cut short"
    (tmp_path / "root/lib/a").unlink()
    assert why_not(tmp_path, data, ("p/*", "lib/"), read_all=False) == "it is cut short"


def test_hard_links_in_a_tarball_become_hard_links(tmp_path: Path) -> None:
    data = header(b"x/h", kind=b"1", link=b"a") + file(b"a", mode=b"0000755\0")
    data += header(b"g", kind=b"1", link=b"./a") + END
    assert extract(tmp_path, data)[0] == {"a": "data", "x/h": "data", "g": "data"}
    assert (tmp_path / "root/a").stat().st_nlink == 3


def test_a_hard_link_to_a_member_outside_the_layout_gets_its_bytes(tmp_path: Path) -> None:
    data = file(b"pkg/big", b"12345") + file(b"pkg/other", b"x")
    data += b"".join(header(b"lib/" + name, kind=b"1", link=b"pkg/big") for name in (b"b", b"a"))
    data += header(b"lib/c", kind=b"1", link=b"pkg/other") + END
    got, _ = extract(tmp_path, data, ("lib/**", ""))
    assert got == {"a": "12345", "b": "12345", "c": "x"}
    assert (tmp_path / "root/a").samefile(tmp_path / "root/b")


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.xz"])
def test_a_small_tarball_that_declares_a_huge_file_is_refused(tmp_path: Path, name: str) -> None:
    archive = tmp_path / name
    archive.write_bytes(PACK[name](header(size=2 << 30) + END))
    for read_it in (
        lambda: read_members(archive, name, ANY),
        lambda: extract_tar(archive, tmp_path, Layout(), ANY),
    ):
        with pytest.raises(IntegrityError, match="unpacks to more than"):
            read_it()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.xz"])
@pytest.mark.parametrize(
    ("limit", "most", "path", "words"),
    [
        ("MAX_MEMBERS", 9, b"f%d", "it has more than 9 members"),
        ("MAX_DIRECTORIES", 9, b"%d/f", "it has more than 9 directories"),
        ("MAX_NAMES", 19, b"f%d", "it has more than 19 characters in names"),
    ],
)
def test_a_tarball_beyond_a_limit_is_refused_while_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, limit: str, most: int, path: bytes,
    words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(layout, limit, most)
    for count in (9, 60):
        data = b"".join(file(path % at) for at in range(count)) + END
        (tmp_path / name).write_bytes(PACK[name](data))
        (root := tmp_path / str(count)).mkdir()
        with nullcontext() if count == 9 else pytest.raises(IntegrityError, match=words):
            extract_tar(tmp_path / name, root, Layout(), ANY)
        assert len(list(root.iterdir())) == 9


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.xz"])
def test_damaged_compressed_data_is_refused(tmp_path: Path, name: str) -> None:
    packed = bytearray(PACK[name](file(b"f") + END))
    packed[10:] = b"\xff" * (len(packed) - 10)  # for gzip, a block of no known type
    (tmp_path / name).write_bytes(packed)
    with pytest.raises(IntegrityError, match="it cannot be read: "):
        extract_tar(tmp_path / name, tmp_path, Layout(), ANY)
