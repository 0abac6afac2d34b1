"""What tarfile and zipfile write, with any names, kinds and sizes, is read as they read it."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from provisioning.archives.layout import MIN_BOMB_BYTES, Limits, Member
from provisioning.archives.tarballs import COPY_BYTES, TarReader, read_members
from provisioning.archives.zipfiles import (
    OUT_BYTES,
    FileSource,
    inflate_member,
    read_directory,
    read_link,
)

SIZES = [0, 1, 511, 512, 513, COPY_BYTES + 1, OUT_BYTES - 1, OUT_BYTES, 2 * OUT_BYTES + 7]
CONTENTS = {
    "noise": random.Random(1).randbytes(SIZES[-1]),
    "words": b"0123456789abcdef" * (SIZES[-1] // 16 + 1),
    "zeros": bytes(SIZES[-1]),
}
NAMES = st.lists(st.text("aé-", min_size=1, max_size=130), min_size=1, max_size=3).map("/".join)


class Given(NamedTuple):
    """A member; each has a first directory of its own, so that no two clash."""

    name: str
    kind: str
    content: str
    size: int
    mode: int
    link: str

    @property
    def data(self) -> bytes:
        return CONTENTS[self.content][: self.size]


MEMBERS = st.lists(
    st.builds(
        Given,
        NAMES,
        st.sampled_from(["file", "file", "dir", "symlink"]),
        st.sampled_from(sorted(CONTENTS)),
        st.sampled_from(SIZES),
        st.sampled_from([0o644, 0o755]),
        st.just("0"),
    ),
    max_size=4,
).map(
    lambda members: [
        member._replace(name=f"{at}{member.name}") for at, member in enumerate(members)
    ]
)
KINDS = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "symlink": tarfile.SYMTYPE}
BITS = {"file": stat.S_IFREG, "dir": stat.S_IFDIR, "symlink": stat.S_IFLNK}
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
PACK: dict[str, Callable[[bytes], bytes]] = {
    "a.tar": bytes,
    "a.tar.gz": lambda data: gzip.compress(data, 1),
    "a.tar.xz": lambda data: lzma.compress(data, preset=0),
}


class Trickle(io.BytesIO):
    """A stream that gives part of what is asked for, as a socket may."""

    def read(self, count: int | None = -1, /) -> bytes:
        return super().read(min(count or 0, 50_000))


def write_tar(members: list[Given], form: int) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for member in members:
            entry = tarfile.TarInfo(member.name)
            entry.type, entry.mode = KINDS[member.kind], member.mode
            entry.size, entry.linkname = (
                (member.size, "") if member.kind == "file" else (0, member.link)
            )
            archive.addfile(entry, io.BytesIO(member.data))
    return out.getvalue()


@settings(max_examples=40, deadline=None)
@given(members=MEMBERS, form=st.sampled_from(FORMATS), pack=st.sampled_from(sorted(PACK)))
def test_a_tarball_is_read_as_tarfile_wrote_it(
    tmp_path_factory: pytest.TempPathFactory, members: list[Given], form: int, pack: str
) -> None:
    try:
        stream = write_tar(members, form)
    except ValueError:  # a name that is too long for the format
        assume(False)
    expected = [
        {
            "file": (Member(member.name, member.size, member.mode), member.data),
            "dir": (Member(f"{member.name}/", 0, member.mode, "dir"), b""),
            "symlink": (Member(member.name, 0, member.mode, "symlink", member.link), b""),
        }[member.kind]
        for member in members
    ]

    def read(source: io.BytesIO) -> Iterator[tuple[Member, bytes]]:
        reader = TarReader(source, "a.tar")
        for member in reader.members():
            yield member, b"".join(reader.data())

    assert list(read(io.BytesIO(stream))) == expected
    assert list(read(Trickle(stream))) == expected
    if len(stream) > MIN_BOMB_BYTES:  # it may be refused as a bomb, if its bytes are alike
        return
    path = tmp_path_factory.getbasetemp() / pack
    path.write_bytes(PACK[pack](stream))
    assert read_members(path, pack, Limits()) == [member for member, _ in expected]


class Pipe(io.BytesIO):
    """Where no size can be written into a local header later, so that it follows the data."""

    def seekable(self) -> bool:
        return False

    def seek(self, *_: int) -> int:
        raise io.UnsupportedOperation

    def tell(self) -> int:
        raise io.UnsupportedOperation


@settings(max_examples=40, deadline=None)
@given(
    members=MEMBERS,
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    is_wide=st.booleans(),
    kind_of_file=st.sampled_from([io.BytesIO, Pipe]),
    comment=st.binary(max_size=40),
)
def test_a_zip_is_read_as_zipfile_wrote_it(
    tmp_path_factory: pytest.TempPathFactory,
    members: list[Given],
    method: int,
    is_wide: bool,
    kind_of_file: type[io.BytesIO],
    comment: bytes,
) -> None:
    out = kind_of_file()
    contents = []
    with zipfile.ZipFile(out, "w") as archive:
        archive.comment = comment
        for member in members:
            entry = zipfile.ZipInfo(f"{member.name}/" if member.kind == "dir" else member.name)
            entry.create_system, entry.external_attr = 3, (BITS[member.kind] | member.mode) << 16
            entry.compress_type = method
            contents.append(
                {"file": member.data, "dir": b"", "symlink": member.link.encode()}[member.kind]
            )
            with archive.open(entry, "w", force_zip64=is_wide) as file:
                file.write(contents[-1])
        written = archive.infolist()
    path = tmp_path_factory.getbasetemp() / "a.zip"
    path.write_bytes(out.getvalue())
    source = FileSource(path)
    try:
        directory = read_directory(source)
        assert directory == [
            Member(
                *(entry.filename, entry.file_size, given_member.mode, given_member.kind, ""),
                *(entry.header_offset, entry.compress_size, entry.CRC, entry.compress_type),
            )
            for entry, given_member in zip(written, members, strict=True)
        ]
        for member, data in zip(directory, contents, strict=True):
            if member.kind == "symlink":
                assert read_link(source, member) == data.decode()
                continue
            pieces = [*inflate_member(source, member)]
            assert b"".join(pieces) == data
            assert max(map(len, pieces), default=0) <= OUT_BYTES
    finally:
        source.close()
